"""The fold of Ansible's events: success is never read out of a return code alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufix.core.fold import Trouble, explain, finish, fold, fold_event, progress


def ok(host: str = "omen2", **result: Any) -> dict[str, Any]:
    return {"event": "runner_on_ok", "event_data": {"host": host, "task": "t", "task_action": "m", "res": result}}


def failed(message: str, host: str = "omen2", **extra: Any) -> dict[str, Any]:
    return {"event": "runner_on_failed", "event_data": {"host": host, "task": "t", "res": {"msg": message}, **extra}}


def stats(
    processed: tuple[str, ...] = ("omen2",), failures: tuple[str, ...] = (), dark: tuple[str, ...] = ()
) -> dict[str, Any]:
    data = {
        "processed": dict.fromkeys(processed, 1),
        "failures": dict.fromkeys(failures, 1),
        "dark": dict.fromkeys(dark, 1),
    }
    return {"event": "playbook_on_stats", "event_data": data}


WORDS = "Failed to connect to the host via ssh: ssh: connect to host 192.0.2.41 port 22: No route to host"
UNREACHABLE = {"event": "runner_on_unreachable", "event_data": {"host": "omen2", "res": {"msg": WORDS}}}


def test_success_needs_all_of_it() -> None:
    assert finish(fold([ok(changed=True), stats()]), 0, "omen2").ok
    assert not finish(fold([ok(), stats()]), 2, "omen2").ok
    assert not finish(fold([ok(), stats(processed=("other",))]), 0, "omen2").ok
    assert not finish(fold([ok(), stats(failures=("omen2",))]), 0, "omen2").ok
    assert not finish(fold([ok(), stats(dark=("omen2",))]), 0, "omen2").ok
    assert not finish(fold([ok()]), 0, "omen2").ok


def test_no_hosts_matched_is_no_success_although_the_code_is_zero() -> None:
    result = finish(fold([stats(processed=())]), 0, "omen2")
    assert result.trouble is Trouble.NO_HOST


@pytest.mark.parametrize(
    ("event", "trouble"),
    [
        (failed("Missing sudo password"), Trouble.BECOME),
        (failed("Incorrect sudo password"), Trouble.BECOME),
        (failed("sudo: a password is required"), Trouble.BECOME),
        (failed("swap cannot go off: used 9 GiB > available 2 GiB"), Trouble.FAILED),
        (UNREACHABLE, Trouble.UNREACHABLE),
    ],
)
def test_who_refused(event: dict[str, Any], trouble: Trouble) -> None:
    result = finish(fold([event, stats(failures=("omen2",))]), 2, "omen2")
    assert result.trouble is trouble
    line = explain(result, "omen2")
    assert "\n" not in line
    assert "Failed to connect to the host via ssh" not in line


def test_what_a_task_returned_and_changed() -> None:
    diff = {"before": "a\n", "after": "b\n"}
    result = finish(fold([ok(changed=True, diff=[diff], fstab_sha256="ab"), ok(host="localhost"), stats()]), 0, "omen2")
    assert result.changed
    assert result.returned("fstab_sha256") == "ab"
    assert result.returned("nothing") is None
    assert result.tasks[0].diffs == (diff,)


def test_ignored_failures_are_not_failures() -> None:
    assert finish(fold([failed("no", ignore_errors=True), stats()]), 0, "omen2").ok


def test_a_run_that_never_began_says_ansible_s_own_error() -> None:
    events = [
        {
            "event": "verbose",
            "stdout": "[WARNING]: odd\n[ERROR]: the playbook x.yml could not be found",
            "event_data": {},
        }
    ]
    result = finish(fold(events), 1, "omen2")
    assert result.trouble is Trouble.NOT_RUN
    assert "could not be found" in result.message


KEYS = ["event", "event_data", "res", "host", "task", "diff", "changed", "msg", "processed", "failures", "dark"]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
EVENTS = st.sampled_from(
    [ok(), ok(changed=True), failed("no"), stats(), stats(failures=("omen2",)), stats(processed=())]
) | st.builds(
    lambda kind, data: {"event": kind, "event_data": data},
    st.sampled_from(["runner_on_ok", "runner_on_failed", "runner_on_unreachable", "playbook_on_stats", "warning", "x"]),
    JUNK,
)


@given(st.lists(EVENTS, max_size=6), st.sampled_from([0, 1, 2, 4, 127, None]))
def test_no_stream_of_events_breaks_the_fold_or_fakes_a_success(events: list[dict[str, Any]], code: int | None) -> None:
    result = finish(fold(events), code, "omen2")
    ended = [event for event in events if event["event"] == "playbook_on_stats"]
    if result.ok:
        assert code == 0
        assert ended
        assert not any(event["event"] == "runner_on_unreachable" for event in events)
    for event in events:
        progress(event)


@given(st.lists(EVENTS, max_size=6))
def test_folding_one_by_one_is_folding_all(events: list[dict[str, Any]]) -> None:
    state = fold([])
    for event in events:
        state = fold_event(state, event)
    assert state == fold(events)
