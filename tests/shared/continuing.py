"""A run that died, gone on with and undone, on the real node and in the practice lab alike."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from operator_hands import ENTER, PATIENCE, Gpufix, Wizard, journal
from recoveries import CONTAINER, GPU, PASSTHROUGH, WHO, WORKLOAD_CONFIG, Node
from unattended import edited_sample

Start = Callable[..., Wizard]


def until_line(state: Path, process: subprocess.Popen[bytes], wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until a line of the run's journal is what is wanted, or the process has ended."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        for path in state.glob("gpufix/runs/*/run.jsonl"):
            whole = path.read_text().rpartition("\n")[0].splitlines()
            if any(wanted(json.loads(line)) for line in whole if line):
                return
        time.sleep(0.005)


def run_killed_at(state: Path, arguments: Sequence[str], seen: set[tuple[str, str]]) -> int | None:
    """Run gpufix until its journal has a point that is not in ``seen``, and kill -9 it there.

    Its status if it ended by itself, else None.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "gpufix", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def is_new(line: dict[str, Any]) -> bool:
        point = str(line["event"]), str(line.get("step", ""))
        new = point not in seen and line["event"] != "run-end"  # after that there is nothing to go on with
        seen.add(point)
        return new

    until_line(state, process, is_new)
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    status = process.wait(PATIENCE)
    (path,) = state.glob("gpufix/runs/*/run.jsonl")
    last = path.read_text().rpartition("\n")[0].rpartition("\n")[2]
    if last and json.loads(last)["event"] == "run-end":  # written before the kill came: the run has ended
        return int(json.loads(last)["exit_status"])
    return None if status == -signal.SIGKILL else status


def test_killed_at_every_point_of_the_journal_and_resumed_each_time(
    cluster: Node, gpufix: Gpufix, access: list[str], state: Path, tmp_path: Path
) -> None:
    cluster.incident(PASSTHROUGH)
    answers = str(edited_sample(gpufix, tmp_path / "answers.yml"))
    seen: set[tuple[str, str]] = set()
    first = ["recover", "omen2", *access, "--answers", answers, "-q"]
    kills = 0
    status = run_killed_at(state, first, seen)
    while status is None:
        kills += 1
        assert cluster.calls("unbind") == [], "the job on the card lives, wherever it was killed"
        status = run_killed_at(state, ["resume", "omen2", "--answers", answers, "-q"], seen)
    assert status == 0, gpufix.run("runs", "show", "omen2", access=[]).stdout
    for step in ("relabel", "stop-vfio-manager", "disable-swap", "restart-kubelet"):
        for event in ("preview", "consent", "intent"):
            assert (event, step) in seen, f"killed at {event} of {step}"
    assert kills >= 15
    assert cluster.is_ready() and cluster.allocatable(GPU) == 1
    assert cluster.labels()[WORKLOAD_CONFIG] == CONTAINER
    assert cluster.calls("unbind") == []
    assert cluster.read("/etc/fstab") == cluster.fstab_fixed
    assert cluster.active_swaps() == []


def test_quit_then_recover_offers_it_and_undo_restores_the_start(
    cluster: Node, wizard: Start, gpufix: Gpufix, state: Path
) -> None:
    cluster.incident(PASSTHROUGH)
    run = wizard()
    run.answer(WHO)
    run.gate("relabel")
    run.gate("stop-vfio-manager", name="omen2")
    run.gate("disable-swap")
    run.ask("restart-kubelet:")
    run.child.kill(signal.SIGKILL)
    run.expect_end(PATIENCE)
    listed = json.loads(gpufix.run("runs", "list", "-o", "json", access=[]).stdout)
    assert [one["state"] for one in listed] == ["unfinished"]

    run = wizard(verb="undo")
    run.gate("undo-disable-swap", name="omen2")
    run.gate("undo-relabel", name="omen2")
    assert run.end() == 0, run.text
    assert "this node is dead again" in " ".join(run.text.split())
    assert cluster.labels()[WORKLOAD_CONFIG] == PASSTHROUGH
    assert cluster.read("/etc/fstab") == cluster.fstab_incident
    assert cluster.active_swaps() == ["/swapfile"]
    assert cluster.swap_at_boot()
    assert cluster.unit_state().split("/")[0] in ("inactive", "failed"), "no kubelet is started into swap"
    assert cluster.calls("unbind") == []

    run = wizard()  # and the way back from there is a recovery
    run.answer(WHO)
    run.gate("relabel")
    run.gate("disable-swap")
    run.gate("restart-kubelet", name="omen2")
    assert run.end() == 0, run.text
    assert cluster.is_ready()


def test_two_operators_at_once_and_exactly_one_goes_on(
    cluster: Node, wizard: Start, gpufix: Gpufix, access: list[str], state: Path
) -> None:
    cluster.incident(CONTAINER)
    first = wizard()
    first.answer(WHO)
    first.ask("disable-swap:")
    second = gpufix.run("resume", "omen2")
    assert second.returncode == 8, second.stderr
    other = wizard(*access, "--state-dir", str(state / "of-somebody-else"))
    assert other.end() == 8
    assert "omen2 is being recovered by" in other.text
    first.child.send(ENTER)
    first.gate("restart-kubelet", name="omen2")
    assert first.end() == 0, first.text
    assert journal(state)[0]["lock"] == "lease kube-node-lease/gpufix-omen2"
