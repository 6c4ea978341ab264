"""The journal as starts: when each began, which line ended it, whether a person has stopped the unit since."""

from __future__ import annotations

import pytest
from snapshots_for_tests import (
    REFUSAL,
    case,
    changed,
    facts,
    failed,
    journal,
    refused_once,
    rescheduled,
    said,
    started,
    stopped,
)

from gpufix.core.parse import parse_snapshot
from gpufix.model import JournalFacts, StartFacts


def read(text: str) -> JournalFacts:
    found = facts(host_kubelet_journal=text).journal
    assert found.value is not None, found.unknown
    return found.value


def last(text: str) -> StartFacts:
    return read(text).starts[-1]


def words(start: StartFacts) -> str:
    assert start.fatal is not None
    return start.fatal.excerpt


@pytest.mark.parametrize(
    ("name", "line", "starts", "status"),
    [
        ("02-swap-partition-uuid-old-kubelet", 17, 2, "1/FAILURE"),
        ("04-swap-gpt-auto-generator", 31, 2, "1/FAILURE"),
        ("06-swap-native-systemd-unit", 23, 2, "1/FAILURE"),
        ("10-swap-with-apiserver-noise", 19, 2, "1/FAILURE"),
        ("14-swap-on-tolerated-old-kubelet-cgroup2", 24, 2, "255/EXCEPTION"),
        ("40-unknown-kernel-flag", 30, 2, "1/FAILURE"),
        ("trace-1-kubelet-dead", 118, 7, "1/FAILURE"),
    ],
)
def test_the_fatal_line_of_real_journals(name: str, line: int, starts: int, status: str) -> None:
    found = parse_snapshot(case(name)).journal.value
    assert found is not None
    assert len(found.starts) == starts
    fatal = found.starts[-1].fatal
    assert fatal is not None
    assert fatal.source == f"host/kubelet.journal:{line}"
    assert found.starts[-1].exit_status == status
    assert not found.held


def test_silent_starts_keep_the_older_words() -> None:
    found = parse_snapshot(case("20-flag-pod-infra-image-removed")).journal.value
    assert found is not None
    spoke = [start for start in found.starts if start.fatal is not None]
    assert len(spoke) == 2
    assert all(start.how == "failure" for start in found.starts)
    assert len(found.starts) == 14


@pytest.mark.parametrize("offset", ["+0000", "+00:00", "Z", "-0500", "+0530"])
def test_every_offset_of_a_timestamp(offset: str) -> None:
    text = refused_once().replace("+0000", offset)
    start = last(text)
    assert start.at is not None
    assert start.at.utcoffset() is not None
    assert words(start).endswith('flag to false"')


@pytest.mark.parametrize(
    "line",
    [
        "Error: failed to run Kubelet: Running with swap on is not supported, please disable swap!",
        "error: failed to run Kubelet: Running with swap on is not supported, please disable swap!",
        "failed to run Kubelet: Running with swap on is not supported",
        "F0302 09:59:50.1 4242 server.go:261] failed to run Kubelet: Running with swap on is not supported",
        'E0302 09:59:50.1 4242 server.go:302] "Failed to run kubelet" err="failed to run Kubelet: swap"',
        'E0302 09:59:50.1 4242 run.go:72] "command failed" err="failed to run Kubelet: running with swap on"',
        'time="2026-03-02T09:59:50Z" level=fatal msg="kubelet exited: running with swap on is not supported"',
    ],
)
def test_last_words_in_every_wrapper(line: str) -> None:
    text = journal(started("09:59:49"), said("09:59:50", "I0302 start"), said("09:59:50", line), failed("09:59:50"))
    assert line in words(last(text))


def test_a_goroutine_dump_does_not_hide_the_fatal_line() -> None:
    dump = [said("09:59:50", f"goroutine {number} [running]:") for number in range(400)]
    fatal = said("09:59:50", "F0302 09:59:50.1 4242 server.go:269] failed to run Kubelet: running with swap on")
    start = last(journal(started("09:59:49"), fatal, *dump, failed("09:59:50", "255/EXCEPTION")))
    assert "server.go:269" in words(start)


def test_words_that_come_after_systemds_own_line_still_belong_to_their_start() -> None:
    start = last(journal(started("09:59:49"), failed("09:59:50"), said("09:59:50", REFUSAL), rescheduled("09:59:59")))
    assert "running with swap on" in words(start)
    assert len(read(journal(started("09:59:49"), failed("09:59:50"), said("09:59:50", REFUSAL))).starts) == 1


def test_a_new_process_is_a_new_start_even_where_systemds_lines_are_lost() -> None:
    found = read(journal(said("09:00:00", "I0302 x", "kubelet[1]"), said("09:10:00", "I0302 y", "kubelet[2]")))
    assert [len(start.lines) for start in found.starts] == [1, 1]


def test_an_error_that_the_kubelet_went_on_after_is_no_last_word() -> None:
    lines = [said("09:59:50", "Error: something it survived")]
    lines += [said("09:59:51", f"I0302 09:59:5{n}.1 4242 kubelet.go:1] going on") for n in range(5)]
    start = last(journal(started("09:59:49"), *lines))
    assert start.fatal is None
    assert not start.ended


def test_an_error_line_at_the_very_end_is_the_last_word() -> None:
    line = 'E0302 09:59:50.1 4242 kubelet.go:1542] "Failed to start ContainerManager" err="invalid kernel flag"'
    assert "invalid kernel flag" in words(
        last(journal(started("09:59:49"), said("09:59:50", line), failed("09:59:50")))
    )


def test_a_stop_by_hand_is_no_failure_and_holds() -> None:
    stopping = said("09:59:50", "Stopping kubelet.service - kubelet: The Kubernetes Node Agent...", "systemd[1]")
    noise = said("09:59:50", "E0302 09:59:50.1 4242 reflector.go:1] watch ended")
    done = said("09:59:50", "kubelet.service: Deactivated successfully.", "systemd[1]")
    found = read(journal(started("09:00:00"), said("09:00:01", "I0302 x"), stopping, noise, done, stopped("09:59:50")))
    assert found.held
    assert found.starts[-1].how == "stop"
    assert found.starts[-1].fatal is None


def test_stopped_within_a_restart_does_not_hold_and_stopped_after_a_failure_does() -> None:
    assert not read(refused_once() + "\n" + stopped("09:59:59")).held
    held = journal(started("09:59:49"), said("09:59:50", REFUSAL), failed("09:59:50"), stopped("09:59:55"))
    assert read(held).held
    assert read(held).starts[-1].how == "failure"
    assert not read(held + started("09:59:58")).held


def test_the_old_words_for_a_scheduled_restart() -> None:
    text = refused_once().replace(
        "Scheduled restart job, restart counter is at 7.", "Service hold-off time over, scheduling restart."
    )
    assert not read(text + "\n" + stopped("09:59:59")).held


def test_starting_and_started_are_one_start() -> None:
    starting = said("09:59:48", "Starting Lightweight Kubernetes...", "systemd[1]")
    ready = said("09:59:49", "Started Lightweight Kubernetes.", "systemd[1]")
    found = read(journal(starting, said("09:59:48", "I0302 x", "k3s[7]"), ready, said("09:59:50", "I0302 y", "k3s[7]")))
    assert len(found.starts) == 1


def test_a_reboot_ends_a_start_and_forgets_process_ids() -> None:
    boot = "-- Boot 0123456789abcdef0123456789abcdef --"
    found = read(
        journal(
            started("09:00:00"),
            said("09:00:01", "I0302 x", "kubelet[801]"),
            boot,
            started("09:30:00"),
            said("09:30:01", "I0302 y", "kubelet[801]"),
        )
    )
    assert [start.how for start in found.starts] == ["reboot", ""]
    assert len(found.starts[-1].lines) == 2


@pytest.mark.parametrize(
    "text", ["", "-- No entries --\n", "no journal here\n", "Hint: you are currently not seeing messages\n"]
)
def test_no_journal_is_unknown(text: str) -> None:
    assert not facts(host_kubelet_journal=text).journal.known


def test_a_missing_journal_says_why() -> None:
    snapshot = changed(case("18-kubelet-config-missing"), {"host/kubelet.journal": None})
    assert parse_snapshot(snapshot).journal.unknown == "host/kubelet.journal is not in the snapshot"


def test_line_numbers_are_those_of_the_file() -> None:
    text = "\n\n" + refused_once()
    fatal = last(text).fatal
    assert fatal is not None
    number = int(fatal.source.rsplit(":", 1)[1])
    assert text.split("\n")[number - 1] == fatal.excerpt
