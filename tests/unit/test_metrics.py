"""The metrics file: read back by a strict parser of the exposition format, put in place whole, never failing a run."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufix.core.render.metrics import RunMetrics, StepMetrics, escape_label, metrics_text
from gpufix.errors import ExitStatus, GpufixError
from gpufix.world.metrics import check_metrics_file, write_metrics

NOON = datetime(2026, 12, 2, 12, 0, tzinfo=UTC)
RUN = RunMetrics(
    node="omen2",
    runbook="revive-kubelet-swap",
    exit_status=0,
    finished_at=NOON,
    seconds=61.5,
    steps=(StepMetrics("relabel", "done", 2.25), StepMetrics("swap-off", "no-op", 0)),
    failed_since=NOON - timedelta(days=112),
    vms_waiting=1,
)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> Samples:
    """A strict reader of text format 0.0.4: what Prometheus would refuse, and what it should not be given, fails."""
    samples: Samples = {}
    family, seen, expecting = "", set(), "HELP"
    assert text.endswith("\n") or not text
    for line in text.split("\n")[:-1]:  # only LF ends a line
        if found := re.fullmatch(r"# HELP ([a-z_]+) ([^\\\n]+)", line):
            family = found[1]
            assert family not in seen, "a family is in one piece"
            seen.add(family)
            expecting = "TYPE"
        elif expecting == "TYPE":
            assert line == f"# TYPE {family} gauge"
            expecting = "sample"
        else:
            name, rest = line.split("{", 1)
            assert name == family
            labels, value = parse_labels(rest)
            assert (name, labels) not in samples, "a series occurs once"
            samples[name, labels] = float(value)
            expecting = ""
    assert expecting in ("", "HELP"), "a family has samples"
    return samples


def parse_labels(text: str) -> tuple[frozenset[tuple[str, str]], str]:
    labels: dict[str, str] = {}
    while True:
        found = re.match(r'([a-z_]+)="', text)
        assert found
        value, text = parse_value(text[found.end() :])
        assert found[1] not in labels
        labels[found[1]] = value
        if text.startswith(","):
            text = text[1:]
            continue
        assert text.startswith("} ")
        return frozenset(labels.items()), text[2:]


def parse_value(text: str) -> tuple[str, str]:
    out, position = "", 0
    while text[position] != '"':
        if text[position] == "\\":
            position += 1
            out += {"\\": "\\", "n": "\n", '"': '"'}[text[position]]
        else:
            out += text[position]
        position += 1
    return out, text[position + 1 :]


def values(run: RunMetrics) -> dict[str, float]:
    return {name: value for (name, _), value in parse(metrics_text(run)).items()}


def test_everything_that_is_known() -> None:
    run = frozenset({("node", "omen2"), ("runbook", "revive-kubelet-swap")})
    assert parse(metrics_text(RUN)) == {
        ("gpufix_recover_exit_status", run): 0,
        ("gpufix_recover_success", run): 1,
        ("gpufix_recover_last_run_timestamp_seconds", run): NOON.timestamp(),
        ("gpufix_recover_duration_seconds", run): 61.5,
        ("gpufix_recover_step_duration_seconds", run | {("step", "relabel"), ("outcome", "done")}): 2.25,
        ("gpufix_recover_step_duration_seconds", run | {("step", "swap-off"), ("outcome", "no-op")}): 0,
        ("gpufix_node_failed_since_timestamp_seconds", frozenset({("node", "omen2")})): NOON.timestamp() - 112 * 86400,
        ("gpufix_recover_failure_age_seconds", run): 112 * 86400,
        ("gpufix_recover_vms_waiting", run): 1,
    }


def test_the_text_itself() -> None:
    assert metrics_text(RUN).splitlines()[3:6] == [
        "# HELP gpufix_recover_success Whether the last recovery ended with exit status 0.",
        "# TYPE gpufix_recover_success gauge",
        'gpufix_recover_success{node="omen2",runbook="revive-kubelet-swap"} 1',
    ]


def test_what_is_not_known_is_left_out() -> None:
    bare = values(replace(RUN, exit_status=5, steps=(), failed_since=None, vms_waiting=None))
    assert set(bare) == {
        "gpufix_recover_exit_status",
        "gpufix_recover_success",
        "gpufix_recover_last_run_timestamp_seconds",
        "gpufix_recover_duration_seconds",
    }
    assert bare["gpufix_recover_success"] == 0
    assert bare["gpufix_recover_exit_status"] == 5


def test_no_vm_waiting_is_known_and_a_clock_that_is_ahead_gives_no_negative_age() -> None:
    found = values(replace(RUN, vms_waiting=0, failed_since=NOON + timedelta(seconds=3), seconds=-0.1))
    assert found["gpufix_recover_vms_waiting"] == 0
    assert found["gpufix_recover_failure_age_seconds"] == 0
    assert found["gpufix_recover_duration_seconds"] == 0


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_labels_come_back_as_they_were(node: str, step: str) -> None:
    text = metrics_text(replace(RUN, node=node, steps=(StepMetrics(step, "done", 1),)))
    labels = [dict(labels) for name, labels in parse(text) if name == "gpufix_recover_step_duration_seconds"]
    assert labels == [{"node": node, "runbook": RUN.runbook, "step": step, "outcome": "done"}]


@given(st.text(st.characters()))
def test_any_label_can_be_written_as_utf8(text: str) -> None:
    assert "\n" not in escape_label(text)
    escape_label(text).encode()


@given(
    st.lists(
        st.builds(StepMetrics, st.sampled_from("ab"), st.sampled_from("xy"), st.floats(allow_subnormal=True)),
        max_size=6,
    )
)
def test_any_number_is_one_and_a_series_occurs_once(steps: list[StepMetrics]) -> None:
    parse(metrics_text(replace(RUN, steps=tuple(steps))))


# --- the file --------------------------------------------------------------------------------------------------------


def test_the_file_is_replaced_in_one_move_and_all_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "gpufix.prom"
    path.write_text("old\n")
    path.chmod(0o600)
    before = path.stat().st_ino
    check_metrics_file(path)
    assert write_metrics(path, metrics_text(replace(RUN, node="o\udc80men\u2028"))) is None
    assert parse(path.read_bytes().decode())
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert path.stat().st_ino != before
    assert [entry.name for entry in tmp_path.iterdir()] == ["gpufix.prom"]


@pytest.mark.parametrize("call", ["fsync", "fchmod"])
def test_a_full_disk_is_one_line_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "gpufix.prom"
    path.write_text("old\n")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    assert write_metrics(path, metrics_text(RUN)) == f"metrics: {path}: No space left on device"
    assert path.read_text() == "old\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["gpufix.prom"]


def test_a_folder_that_went_away_meanwhile(tmp_path: Path) -> None:
    trouble = write_metrics(tmp_path / "gone" / "gpufix.prom", "")
    assert trouble is not None
    assert "No such file" in trouble
    assert "\n" not in trouble


def test_text_that_no_file_can_hold_is_one_line_too(tmp_path: Path) -> None:
    assert write_metrics(tmp_path / "gpufix.prom", "\udc80") is not None
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_refused_up_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> str:
        with pytest.raises(GpufixError) as caught:
            check_metrics_file(path)
        assert caught.value.exit_status is ExitStatus.USAGE
        assert caught.value.hint
        return caught.value.message

    (tmp_path / "folder.prom").mkdir()
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe.prom")
    assert "no folder" in refused(tmp_path / "none" / "gpufix.prom")
    assert "no folder" in refused(tmp_path / "file" / "gpufix.prom")
    assert "not a file" in refused(tmp_path / "folder.prom")
    assert "not a file" in refused(tmp_path / "pipe.prom")
    assert "end in .prom" in refused(tmp_path / "gpufix.txt")
    refused(Path("/a\0b/c.prom"))
    monkeypatch.setattr(os, "access", lambda *arguments: False)
    assert "cannot be written" in refused(tmp_path / "gpufix.prom")
