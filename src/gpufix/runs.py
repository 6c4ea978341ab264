"""Runs as their journals tell of them: which there are, whether they live, which may be pruned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpufix.core.run_history import History, read_history
from gpufix.errors import GpufixError
from gpufix.text import did_you_mean
from gpufix.world import runs as folders
from gpufix.world.journal import process_began, state_folder


@dataclass(frozen=True, slots=True)
class Run:
    """One run on disk. ``state``: running | finished | unfinished | unreadable."""

    folder: Path
    history: History
    state: str

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def node(self) -> str:
        return str(self.history.start.get("node", ""))


def list_runs(node: str = "") -> list[Run]:
    """All runs, oldest first; those of ``node`` only, where one is given."""
    found = [_read(folder, text) for folder, text in folders.journals()]
    return [run for run in found if not node or run.node == node]


def _read(folder: Path, text: str | None) -> Run:
    history = read_history(text or "")
    if text is None or not history.start:
        return Run(folder, history, "unreadable")
    if history.ended:
        return Run(folder, history, "finished")
    return Run(folder, history, "running" if is_running(history) else "unfinished")


def is_running(history: History) -> bool:
    """Whether the process that wrote this journal still lives on this machine: same boot, same pid, same start."""
    pid, began = history.start.get("pid"), history.start.get("pid_began")
    return isinstance(pid, int) and isinstance(began, str) and bool(began) and process_began(pid) == began


def find_run(named: str) -> Run:
    """By its id, or the last one of a node. Raises GpufixError (status 2) where there is none."""
    runs = list_runs()
    found = [run for run in runs if run.id == named] or [run for run in runs if run.node == named]
    if found:
        return found[-1]
    names = [name for run in runs for name in (run.id, run.node)]
    hint = did_you_mean(named, names) if names else f"there are no runs in {state_folder() / 'runs'}"
    raise GpufixError(f"no run {named!r}", hint)


def to_prune(runs: Sequence[Run], keep: int) -> list[Run]:
    """The finished runs of each node but its last ``keep``. What is not finished is never pruned: it may be resumed."""
    by_node: dict[str, list[Run]] = {}
    for run in runs:
        if run.state == "finished":
            by_node.setdefault(run.node, []).append(run)
    return [run for finished in by_node.values() for run in finished[: max(0, len(finished) - keep)]]


def prune(runs: Sequence[Run]) -> None:
    """Take their folders away. Raises GpufixError (status 5) for one that cannot be."""
    for run in runs:
        folders.remove(run.folder)
