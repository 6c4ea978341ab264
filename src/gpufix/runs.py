"""Runs as their journals tell of them: which there are, which live, which may be gone on with, undone or pruned."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpufix.core.render.words import word
from gpufix.core.run_history import History, count, read_history
from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import t
from gpufix.text import did_you_mean
from gpufix.world import runs as folders
from gpufix.world.journal import Journal, process_began

_NAME = re.compile(r"\d{8}T\d{6}Z-(.+?)(?:-\d+){1,2}")
"""Of a run's folder: when, its node, its process."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run on disk. ``state``:

    running | unfinished (its process died) | stopped (it ended before its end, after it had changed something) |
    finished | undone | unreadable.
    """

    folder: Path
    history: History
    state: str

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def node(self) -> str:
        """As its journal says; as its folder is named, where that says nothing."""
        named = _NAME.fullmatch(self.id)
        return str(self.history.start.get("node") or (named[1] if named else ""))

    @property
    def number(self) -> int:
        """Counts the runs of one state folder: clocks jump, so the time in a run's name does not order them."""
        return count(self.history.start.get("number"))

    @property
    def node_uid(self) -> str:
        return str(self.history.start.get("node_uid") or "")

    @property
    def is_open(self) -> bool:
        return self.state in ("unfinished", "stopped")

    @property
    def of(self) -> str:
        """Of an undo: the run that it undoes."""
        return str(self.history.start.get("undoes") or "")


def list_runs(state: Path, node: str = "") -> list[Run]:
    """All runs below ``state``, oldest first; those of ``node`` only, where one is given."""
    found = sorted((_read(*one) for one in folders.journals(state)), key=lambda run: (run.number, run.id))
    undone = {run.of for run in found if run.history.kind == "undo" and _undoes_all(run)}
    return [_as_of_now(run, undone) for run in found if not node or run.node == node]


def _as_of_now(run: Run, undone: set[str]) -> Run:
    if run.id in undone and run.state != "running":
        return replace(run, state="undone")
    if run.is_open and run.of in undone:  # another undo did what was left of this one
        return replace(run, state="finished")
    return run


def _undoes_all(run: Run) -> bool:
    return (
        run.state == "finished"
        and not run.history.start.get("only")
        and (run.history.end or {}).get("exit_status") == 0
    )


def _read(folder: Path, text: str | None) -> Run:
    history = read_history(text or "")
    if text is None or not history.start:
        return Run(folder, history, "unreadable")
    end = history.end
    if end is None:
        return Run(folder, history, "running" if is_running(history) else "unfinished")
    stopped = end.get("exit_status") != 0 and not end.get("closed") and history.changed
    return Run(folder, history, "stopped" if stopped else "finished")


def is_running(history: History) -> bool:
    """Whether the process that wrote this journal still lives on this machine: same boot, same pid, same start."""
    pid, began = history.process.get("pid"), history.process.get("pid_began")
    return isinstance(pid, int) and isinstance(began, str) and bool(began) and process_began(pid) == began


def next_number(state: Path) -> int:
    return max((run.number for run in list_runs(state)), default=0) + 1


def find_run(state: Path, named: str) -> Run:
    """By its id, or the last one of a node. Raises GpufixError (status 2) where there is none."""
    runs = list_runs(state)
    found = [run for run in runs if run.id == named] or [run for run in runs if run.node == named]
    if found:
        return found[-1]
    names = [name for run in runs for name in (run.id, run.node)]
    hint = did_you_mean(named, names) if names else t("there are no runs in {folder}", folder=state / "runs")
    raise GpufixError(t("no run {run}", run=repr(named)), hint)


def run_to_resume(state: Path, named: str | None) -> Run:
    """The run that can be gone on with: by its id, else the newest of a node (the only node, where none is named) that
    is open or goes on, and after which no other run changed that node.

    Raises GpufixError: status 2 where there is none or more than one, 4 where the newest cannot be read, 8 for one
    that still runs.
    """
    runs = list_runs(state)
    run = next((run for run in runs if run.id == named), None)
    if run is None:
        going = [run for run in runs if (run.is_open or run.state == "running") and not _later_than(run, runs)]
        run = _newest(going, named, t("none is unfinished")) or find_run(state, named or "")
    if run.state == "running":
        raise still_running(run)
    if not run.is_open:
        if run.state == "undone":
            told = t("the run {run} was undone: there is nothing to go on with", run=run.id)
        elif run.state == "unreadable":
            told = t("the run {run} has a journal that cannot be read: there is nothing to go on with", run=run.id)
        else:
            told = t("the run {run} has ended: there is nothing to go on with", run=run.id)
        unread = [other for other in newer_runs(state, run) if other.state == "unreadable"]
        if unread:
            newer = t("a newer run of this node cannot be read: {folder}", folder=unread[-1].folder)
            raise GpufixError(told, newer, ExitStatus.BLOCKED)
        raise GpufixError(told, f"gpufix runs show {run.id}")
    if later := _later_than(run, runs):
        raise GpufixError(
            t(
                "the run {run} is not the last one of {node}: {later} came after it",
                run=run.id,
                node=run.node,
                later=later[-1].id,
            ),
            t(
                "{command} looks at the node anew; {close} ends this one",
                command=f"gpufix recover {run.node}",
                close=f"gpufix runs close {run.id}",
            ),
        )
    return run


def _newest(runs: Sequence[Run], named: str | None, none: str) -> Run | None:
    """The last of ``runs`` on the node ``named``, None where it has none; without a name, of the only node with any.

    Raises GpufixError (status 2): which of them is meant is not known.
    """
    last = {run.node: run for run in runs}
    if named is not None:
        return last.get(named)
    if len(last) != 1:
        told = ", ".join(run.id for run in last.values()) or none
        raise GpufixError(t("which run?"), t("name a run or a node: {runs}", runs=told))
    return next(iter(last.values()))


def run_to_undo(state: Path, named: str | None) -> Run:
    """The run that can be undone: by its id, else the newest of a node (the only node, where none is named) that
    changed something and was not undone.

    Raises GpufixError: status 2 where there is none, 8 for one that still runs.
    """
    runs = [run for run in list_runs(state) if run.history.changed or run.id == named]
    mine = [run for run in runs if run.history.kind == "recover" and run.state not in ("undone", "unreadable")]
    run = next((run for run in mine if run.id == named), None) or _newest(mine, named, t("none is left to undo"))
    if run is None:
        last = find_run(state, named or "")
        raise GpufixError(t("there is nothing to undo of {run}", run=named), _nothing_to_undo(last))
    if run.state == "running":
        raise still_running(run)
    if not run.history.changed:
        told = t("the run {run} changed nothing: there is nothing to undo", run=run.id)
        raise GpufixError(told, f"gpufix runs show {run.id}")
    later = [other for other in mine if other.node == run.node and _is_later(other, run)]
    if later:
        raise GpufixError(
            t("{later} changed {node} after the run {run}", later=later[-1].id, node=run.node, run=run.id),
            t("undo that one first: {command}", command=f"gpufix undo {later[-1].id}"),
        )
    return run


def run_to_close(state: Path, named: str) -> Run:
    """By its id, or the only open one of a node. Raises GpufixError: status 2 where it has ended, 8 while it runs."""
    runs = list_runs(state)
    found = [run for run in runs if run.id == named] or [run for run in runs if run.node == named and run.is_open]
    if len(found) > 1:
        raise GpufixError(t("which run?"), t("name one: {runs}", runs=", ".join(run.id for run in found)))
    run = found[0] if found else find_run(state, named)
    if run.state == "running":
        raise still_running(run)
    if run.state == "unreadable" or run.history.newer:
        raise GpufixError(
            t("the run {run} cannot be closed: its journal cannot be read by this gpufix", run=run.id),
            t("once you have looked at it, take its folder away by hand: {folder}", folder=run.folder),
        )
    if not run.is_open:
        told = t("the run {run} is {state}: there is nothing to close", run=run.id, state=word(run.state))
        raise GpufixError(told, f"gpufix runs show {run.id}")
    return run


def close(run: Run, who: str) -> str:
    """End ``run`` on record, with no look at its node. Returns the line that says so.

    Raises GpufixError: status 8 while another process writes it, JournalError where it cannot be written.
    """
    line = t(
        "The run {run} is closed by {who}: what it did stays as it is, and nothing was looked at or changed.",
        run=run.id,
        who=who,
    )
    journal = Journal.reopen(run.folder, run.history.seq)
    try:
        status = int(ExitStatus.DECLINED)
        journal.write("run-end", exit_status=status, line=line, verdicts={}, changes=[], closed=True)
    finally:
        journal.close()
    return line


def newer_runs(state: Path, run: Run) -> list[Run]:
    """The runs that changed a node of this name after ``run``, but for its own undoing; oldest first. Of one whose
    journal cannot be read nobody knows, and only the time in its name says that it is newer."""
    return [
        other for other in list_runs(state, run.node)
        if (other.state == "unreadable" and other.id > run.id)
        or ((other.number, other.id) > (run.number, run.id) and other.history.changed and other.of != run.id)
    ]  # fmt: skip


def _later_than(run: Run, runs: Sequence[Run]) -> list[Run]:
    return [other for other in runs if _is_later(other, run)]


def _is_later(other: Run, run: Run) -> bool:
    """``other`` changed the same node object after ``run`` did."""
    if (other.number, other.id) <= (run.number, run.id) or other.node != run.node or other.of == run.id:
        return False
    return other.history.changed and other.node_uid == run.node_uid


def _nothing_to_undo(run: Run) -> str:
    if run.history.kind == "undo":
        return t(
            "the last run here, {run}, is an undo itself: {command} is the way back",
            run=run.id,
            command=f"gpufix recover {run.node}",
        )
    return t("gpufix runs list shows the runs; the last one here is {run} ({state})", run=run.id, state=word(run.state))


def require_own(run: Run) -> None:
    """Raises GpufixError (status 4) where somebody else may have written the journal: an inventory that it names is run
    by Ansible, and what it calls the start is put back."""
    if why := folders.why_not_own(run.folder):
        raise GpufixError(
            t("the run {run} is not gone on with and not undone: {why}", run=run.id, why=why),
            t(
                "go on as that user; where you know that nobody tampered with it: chown and chmod -R go-w {folder}",
                folder=run.folder,
            ),
            ExitStatus.BLOCKED,
        )


def still_running(run: Run) -> GpufixError:
    process = run.history.process
    return GpufixError(
        t(
            "the run {run} is going on: {who} (process {pid})",
            run=run.id,
            who=process.get("who") or t("somebody"),
            pid=process.get("pid"),
        ),
        t("let it end, or stop it there with Ctrl-C"),
        ExitStatus.LOCKED,
    )


def open_run(state: Path, node: str, node_uid: str) -> Run | None:
    """The last run of this very node object, when it changed something and was not brought to its end."""
    runs = [run for run in list_runs(state, node) if run.node_uid == node_uid and run.history.changed]
    return runs[-1] if runs and runs[-1].is_open else None


def to_prune(runs: Sequence[Run], keep: int) -> list[Run]:
    """The ended runs of each node but its last ``keep``. What may be gone on with is never pruned."""
    by_node: dict[str, list[Run]] = {}
    for run in runs:
        over = run.state == "stopped" and any(_is_later(other, run) for other in runs)
        if run.state in ("finished", "undone") or over:
            by_node.setdefault(run.node, []).append(run)
    return [run for finished in by_node.values() for run in finished[: max(0, len(finished) - keep)]]


def prune(runs: Sequence[Run]) -> None:
    """Take their folders away. Raises GpufixError (status 5) for one that cannot be."""
    for run in runs:
        folders.remove(run.folder)
