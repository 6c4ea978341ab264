"""What breaks around a run: the disk its journal is on, the clock, the credentials. It stops before the next change,
says in one line how to go on, and a resume goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import order_model as model
import pytest
from model_session import BOOK, Killed, ModelSession, Ui, calm, whole
from order_model import NODE, World

from gpufix import recovery, resuming, runs, undoing
from gpufix import walk as walk_module
from gpufix.consents import Request
from gpufix.core.fold import PlayResult
from gpufix.core.run_history import read_history
from gpufix.errors import ExitStatus, GpufixError
from gpufix.model import Diagnosis, Snapshot
from gpufix.runs import list_runs, run_to_resume, run_to_undo
from gpufix.session import Reading
from gpufix.world import journal as journal_module
from gpufix.world.journal import JOURNAL, JournalError

ASKED = Request([BOOK], who="tester@bench")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_module, "POLL_SECONDS", 5.0)
    monkeypatch.setattr(runs, "process_began", lambda pid: "")  # the process of every journal here is dead


def yes(message: str, options: Any) -> str:
    return next(one for one in ("apply", "on", "container", *options) if one in options)


def session(state: Path) -> ModelSession:
    one = ModelSession(World(), Ui(yes), calm, whole)
    one.state = state
    return one


def recover(one: ModelSession, *listeners: Any) -> Any:
    return recovery.recover(one, ASKED, list(listeners))  # type: ignore[arg-type]


def resume(one: ModelSession) -> Any:
    return resuming.resume(one, ASKED, run_to_resume(one.state, NODE))  # type: ignore[arg-type]


def undo(one: ModelSession) -> Any:
    return undoing.undo(one, ASKED, run_to_undo(one.state, NODE))  # type: ignore[arg-type]


# --- the disk --------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own, of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        pytest.skip("there is no mount here")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here (that takes root): {done.stderr.strip()}")
    yield folder
    subprocess.run([umount, "-l", folder], check=True)


def fill(disk: Path, but: int = 0) -> None:
    """Take all the room of ``disk`` except for ``but`` bytes."""
    with (disk / "filler").open("wb", buffering=0) as stream:
        while _write(stream.fileno(), b"x" * 4096):
            pass
        stream.truncate(max(0, os.fstat(stream.fileno()).st_size - but))


def _write(handle: int, data: bytes) -> int:
    try:
        return os.write(handle, data)
    except OSError:
        return 0


def one_line(error: GpufixError, *words: str) -> bool:
    text = f"{error.message}: {error.hint}"
    return "\n" not in text and all(word in text for word in words)


def test_a_full_disk_stops_a_run_before_its_first_change(disk: Path) -> None:
    fill(disk)
    one = session(disk / "state")
    with pytest.raises(GpufixError) as caught:
        recover(one)
    assert one_line(caught.value, "No space left on device", str(disk), "--state-dir", "nothing was changed")
    assert caught.value.exit_status is ExitStatus.STEP_FAILED
    assert (one.applied, one.world) == ([], World())


def test_a_disk_that_is_read_only_does_too(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    one = session(disk / "state")
    with pytest.raises(GpufixError) as caught:
        recover(one)
    assert one_line(caught.value, "Read-only file system", str(disk), "--state-dir", "nothing was changed")
    assert caught.value.exit_status is ExitStatus.STEP_FAILED
    assert (one.applied, one.world) == ([], World())


@pytest.mark.parametrize("room", range(0, 49152, 4096))
def test_with_little_room_a_run_stops_before_a_change_and_can_be_gone_on_with(disk: Path, room: int) -> None:
    """Wherever the room ends: in the folder, in a line, in the snapshot. What was applied is at most one step further
    than what is on record."""
    fill(disk, but=room)
    one = session(disk / "state")
    ended: GpufixError | None = None
    try:
        result = recover(one)
    except GpufixError as error:
        ended = error
        assert one_line(error, "No space left on device", str(disk))
        assert error.exit_status is ExitStatus.STEP_FAILED
    else:
        assert result.status is ExitStatus.OK
    (disk / "filler").unlink()
    text = "".join(path.read_text() for path in disk.glob(f"state/runs/*/{JOURNAL}"))
    intents = [line["step"] for line in read_history(text).all("intent")]
    assert one.applied == intents, "what was begun is on record"
    if ended is not None:
        if "nothing was changed" in ended.hint:
            assert one.applied == []
        result = resume(one) if any(run.is_open for run in list_runs(one.state)) else recover(one)
    assert result.status is ExitStatus.OK, result.line
    assert one.fault == ""
    assert undo(one).status is ExitStatus.OK
    assert (one.world.label, one.world.swap, one.world.fstab) == ("vm-passthrough", True, True)


class Filler:
    """Fills the disk as soon as ``event`` of ``step`` is on it. The rest of the journal's last page is still free."""

    def __init__(self, disk: Path, event: str, step: str) -> None:
        self.disk, self.at = disk, (event, step)

    def event(self, event: Any, fields: Mapping[str, Any]) -> None:
        if (event, fields.get("step")) == self.at:
            fill(self.disk)


@pytest.mark.parametrize("event", ["consent", "intent", "applied"])
@pytest.mark.parametrize("step", ["relabel", "stop-vfio-manager", "disable-swap"])
def test_a_disk_that_fills_up_during_a_run_stops_it_and_a_resume_goes_on(disk: Path, event: str, step: str) -> None:
    one = session(disk / "state")
    real = one.run

    def run(playbook: str, host: str, variables: Any, *, check: bool = False) -> PlayResult:
        """Its dry runs are so wordy that a page is full of one."""
        result = real(playbook, host, variables, check=check)
        wordy = (replace(task, result={**task.result, "warnings": ["x" * 5000]}) for task in result.tasks)
        return replace(result, tasks=tuple(wordy)) if check else result

    one.run = run  # type: ignore[method-assign]
    with pytest.raises(JournalError) as caught:
        recover(one, Filler(disk, event, step))
    begun = "nothing was changed" if not one.applied else "nothing more was changed"
    assert one_line(caught.value, "No space left on device", "free space there", begun)
    told = " ".join(one.ui.text.split())
    assert "The run broke off" in told and "gpufix resume omen2" in told
    with pytest.raises(GpufixError, match="No space left on device"):
        resume(one)  # nobody has made room yet
    before = list(one.applied)
    (disk / "filler").unlink()
    (run,) = list_runs(one.state)
    assert run.state == "unfinished"
    assert [line["step"] for line in run.history.all("intent")] == before
    assert resume(one).status is ExitStatus.OK
    assert one.fault == ""


# --- the clock -------------------------------------------------------------------------------------------------------


class Wall:
    """A wall clock that somebody sets: ``jumps`` are the days by which each look at it is off."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, jumps: Callable[[int], float]) -> None:
        self.looks = 0
        wall = self

        class Stand(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                wall.looks += 1
                return datetime(2026, 12, 2, tzinfo=UTC) + timedelta(days=jumps(wall.looks))

        monkeypatch.setattr(journal_module, "datetime", Stand)


JUMPS = {
    "backwards at each line": lambda look: -look,
    "forwards at each line": lambda look: 400 * look,
    "to and fro": lambda look: (look * 7919) % 13 - 6,
    "back to 1970": lambda look: 0 if look < 8 else -20789,
    "stands still": lambda look: 0,
}


@pytest.mark.parametrize("jumps", JUMPS.values(), ids=JUMPS)
@pytest.mark.parametrize("event", ["intent", "step-result"])
def test_a_clock_that_is_set_between_lines_and_runs_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jumps: Callable[[int], float], event: str
) -> None:
    Wall(monkeypatch, jumps)
    one = session(tmp_path)
    with pytest.raises(Killed):
        recover(one, Killer(event, "disable-swap"))
    (run,) = list_runs(tmp_path)
    assert resume(one).status is ExitStatus.OK
    assert undo(one).status is ExitStatus.OK
    assert (one.world.label, one.world.swap, one.world.fstab) == ("vm-passthrough", True, True)
    assert recover(one).status is ExitStatus.OK, "and the way back from there"
    names = [(found.number, found.history.kind, found.state) for found in list_runs(tmp_path)]
    assert names == [(1, "recover", "undone"), (2, "undo", "finished"), (3, "recover", "finished")]
    assert run_to_undo(tmp_path, NODE).number == 3, "the last one, whatever its time says"
    assert run.id == list_runs(tmp_path)[0].id
    for found in list_runs(tmp_path):
        assert found.history.damage == ""


class Killer:
    def __init__(self, event: str, step: str) -> None:
        self.at = (event, step)

    def event(self, event: Any, fields: Mapping[str, Any]) -> None:
        if (event, fields.get("step")) == self.at:
            raise Killed


# --- the credentials -------------------------------------------------------------------------------------------------

EXPIRED = "list nodes: 401 Unauthorized"


class LoggedOut:
    """The token of the kubeconfig is refused from the ``at``-th look on, for ``times`` looks."""

    def __init__(self, one: ModelSession, at: Callable[[ModelSession], bool], times: int = 10_000) -> None:
        self.left, real = times, one.read

        def read() -> Reading:
            reading = real()
            if not at(one) or self.left <= 0:
                return reading
            self.left -= 1
            facts = replace(reading.facts, **dict.fromkeys(model.CLUSTER, model.UNREAD))
            unknown = Diagnosis(NODE, None, reading.diagnosis.root_cause, ())
            return Reading(Snapshot(NODE, {}, {"cluster": EXPIRED}), facts, unknown)

        one.read = read  # type: ignore[method-assign]


STEPS = ("relabel", "stop-vfio-manager", "disable-swap", "restart-kubelet")


@pytest.mark.parametrize("step", STEPS)
def test_a_token_that_expires_after_a_step_stops_the_run_and_a_resume_works(tmp_path: Path, step: str) -> None:
    one = session(tmp_path)
    LoggedOut(one, lambda now: step in now.applied)
    result = recover(one)
    assert result.status is ExitStatus.UNREACHABLE
    assert EXPIRED in result.line and "log in again" in result.line and "\n" not in result.line
    assert "gpufix resume omen2" in result.line
    assert one.applied[-1] == step, "nothing is begun without a look"
    assert one.clock.now < 60, "waiting does not bring a token back"
    with pytest.raises(GpufixError) as caught:
        resume(one)
    assert one_line(caught.value, EXPIRED, "log in again")
    again = session(tmp_path)
    again.world = one.world
    assert resume(again).status is ExitStatus.OK
    assert one.fault == again.fault == ""


def test_one_refusal_while_the_api_server_restarts_is_waited_out(tmp_path: Path) -> None:
    one = session(tmp_path)
    LoggedOut(one, lambda now: "restart-kubelet" in now.applied, times=1)
    assert recover(one).status is ExitStatus.OK


def test_a_token_that_expires_while_a_gate_stands_open_changes_nothing(tmp_path: Path) -> None:
    one = session(tmp_path)
    asked: list[str] = []

    def choose(message: str, options: Any) -> str:
        asked.append(message)
        return yes(message, options)

    one.ui.choose = choose
    LoggedOut(one, lambda now: "disable-swap:" in asked)
    result = recover(one)
    assert result.status is ExitStatus.UNREACHABLE
    assert "log in again" in result.line and "nothing of it was done" in result.line
    assert "disable-swap" not in one.applied


def test_a_token_that_expires_between_two_steps_is_told_before_the_second(tmp_path: Path) -> None:
    one = session(tmp_path)
    done: list[str] = []

    class Later:
        def event(self, event: Any, fields: Mapping[str, Any]) -> None:
            if event == "step-result":
                done.append(str(fields["step"]))
                one.clock.now += 3600

    LoggedOut(one, lambda now: "relabel" in done)
    result = recover(one, Later())
    assert result.status is ExitStatus.UNREACHABLE
    assert "stop-vfio-manager" in result.line and "log in again" in result.line
    assert one.applied == ["relabel"]
