"""Whatever a snapshot's files hold, parsing and diagnosing end with an answer, and say nothing that was not read."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from snapshots_for_tests import NODE, case, case_names, changed, diagnosis

from gpufix.core.parse import parse_snapshot
from gpufix.model import Observation, Snapshot, Status

PATHS = sorted(
    {path for name in case_names() for path in case(name).files}
    | {f"host/{name}" for name in ("boot_id", "overcommit", "virt", "swap_services", "unit", "kubelet_flags")}
    | {f"host/{name}" for name in ("kubelet_config", "kubelet_config_d", "pci_drivers", "gpu_holders", "iommu_groups")}
)
ODD = st.sampled_from(
    [
        *(
            "\x00",
            "\r\n",
            "\t",
            "{",
            "}",
            "[",
            "]",
            '"',
            ":",
            "=",
            "# file: x.conf\n",
            "failSwapOn: ",
            "&a [*a]",
            "\ud800",
        ),
        *(
            "2026-03-02T08:00:00Z",
            "2026-99-99T99:99:99+9999",
            "{{ lookup('pipe','id') }}",
            "Id=x.swap\n",
            "-- Boot 0 --\n",
        ),
        *(
            "Filename\tType\tSize\tUsed\tPriority\n",
            "ActiveState=",
            "9" * 5000,
            '{"items": [',
            "null",
            "TASK PID STATUS\n",
        ),
    ]
)
TEXT = st.one_of(st.text(max_size=300), st.lists(ODD | st.text(max_size=20), max_size=15).map("".join))
TIMES = st.one_of(st.just(""), st.text(max_size=30), st.just("2026-03-02T08:20:00Z"))


@settings(max_examples=300)
@given(files=st.dictionaries(st.sampled_from(PATHS), TEXT, max_size=6), captured_at=TIMES)
def test_any_text_in_any_file(files: dict[str, str], captured_at: str) -> None:
    snapshot = Snapshot(NODE, files, {}, captured_at)
    facts = parse_snapshot(snapshot)
    for field in fields(facts):
        value = getattr(facts, field.name)
        if isinstance(value, Observation):
            assert value.known or value.value is None
            assert value.known == (not value.unknown)
    assert diagnosis(snapshot).root_cause.status is not Status.REFUTED


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_real_case_with_one_file_spoilt(data: st.DataObject) -> None:
    snapshot = case(data.draw(st.sampled_from(case_names())))
    path = data.draw(st.sampled_from(sorted(snapshot.files)))
    text = snapshot.files[path]
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 400)))
    spoilt = changed(snapshot, {path: text[:start] + data.draw(TEXT) + text[end:]})
    found = diagnosis(spoilt)
    assert len(found.chain) == 5
    for claim in (*found.chain, *found.alternatives):
        assert claim.evidence or claim.status is Status.UNKNOWN


@given(text=TEXT)
def test_nothing_readable_is_never_healthy(text: str) -> None:
    files = dict.fromkeys(PATHS, text)
    found = diagnosis(Snapshot(NODE, files, {}, "")).root_cause
    assert (found.id, found.status) == ("unknown", Status.UNKNOWN)
