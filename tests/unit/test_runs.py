"""Journals read back: what is cut off is left out, what is broken is named, what was begun and not ended is unknown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_session import BOOK, ModelSession, Ui, calm, whole
from order_model import NODE, World

from gpufix import cli, recovery
from gpufix import walk as walk_module
from gpufix.consents import Request
from gpufix.core.run_history import read_history, steps_of, unsettled
from gpufix.session import Session
from gpufix.world import runs as folders
from gpufix.world.cluster import ClusterAccess
from gpufix.world.journal import Journal, process_began, state_folder
from gpufix.world.playbooks import Access
from gpufix.world.private import PRIVATE


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(walk_module, "POLL_SECONDS", 5.0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def journal() -> Path:
    """The journal of a whole run."""
    ui = Ui(lambda message, options: "apply" if "apply" in options else "container")
    session = ModelSession(World(), ui, calm, whole)
    result = recovery.recover(session, Request([BOOK], who="tester@bench"))  # type: ignore[arg-type]
    return Path(result.run) / "run.jsonl"


def rewrite(journal: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    journal.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def show(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    capsys.readouterr()
    assert cli.main(["runs", *words]) == status
    told = capsys.readouterr()
    return told.out + told.err


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_journal_cut_off_anywhere_is_read_up_to_there(journal: Path) -> None:
    text = journal.read_text()
    whole_lines = read_history(text).lines
    for cut in range(0, len(text), 7):
        history = read_history(text[:cut])
        assert history.broken == ()
        assert history.lines == whole_lines[: text[:cut].count("\n")] or not text[:cut].endswith("\n")
        assert history.torn == (cut > 0 and not text[:cut].endswith("\n"))


@given(st.text())
def test_any_text_is_read_or_counted(text: str) -> None:
    history = read_history(text)
    assert all(isinstance(line["event"], str) for line in history.lines)
    assert steps_of(history) is not None


@given(st.lists(st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.lists(st.text()))))
def test_lines_of_any_shape_break_nothing(values: list[Any]) -> None:
    text = "".join(
        json.dumps({"v": 1, "event": event, "step": value, "undo": value, "outcome": value, "answers": value}) + "\n"
        for value in values
        for event in ("run-start", "consent", "intent", "step-result", "run-end")
    )
    for step in steps_of(read_history(text)):
        assert isinstance(step.outcome, str)


def test_a_broken_line_in_the_middle_is_named(journal: Path) -> None:
    lines = journal.read_text().splitlines()
    lines[2] = lines[2][:20]
    assert read_history("\n".join(lines) + "\n").broken == (3,)


def test_a_step_without_a_result_is_unknown(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def died(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        at = next(n for n, line in enumerate(lines) if line["event"] == "applied" and line["step"] == "disable-swap")
        return [line if line["event"] != "run-start" else {**line, "pid_began": "another life"} for line in lines[:at]]

    rewrite(journal, died)
    assert unsettled(steps_of(read_history(journal.read_text()))) == ("disable-swap",)
    told = show(capsys, "show", NODE)
    assert "unfinished" in told and "disable-swap was begun and its end is not on record" in told
    data = json.loads(show(capsys, "show", NODE, "-o", "json"))
    assert data["state"] == "unfinished"
    assert [step["outcome"] for step in data["steps"]] == ["done", "done", "unknown"]


def test_the_end_before_it_was_gone_on_with_is_not_its_end(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with journal.open("a") as lines:
        lines.write(json.dumps({"v": 1, "seq": 99, "event": "resume", "pid": 1, "pid_began": "another life"}) + "\n")
    data = json.loads(show(capsys, "show", NODE, "-o", "json"))
    assert (data["state"], data["exit_status"], data["ended_at"]) == ("unfinished", None, None)
    assert "Ended with status" not in show(capsys, "show", NODE)
    assert show(capsys, "list").splitlines()[1].split()[3] == BOOK.id, "no status before the runbook"


# --- the commands ----------------------------------------------------------------------------------------------------


def test_list_and_show(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(capsys, "list").splitlines()[1].split() == [
        journal.parent.name, NODE, "finished", "0", BOOK.id, "tester@bench",
    ]  # fmt: skip
    assert show(capsys, "list", "--node", "omen9") == "no runs\n"
    told = show(capsys, "show", journal.parent.name)
    assert "target_workload = container (the prompt)" in told
    assert "restart-kubelet    done, consent at its gate" in told
    assert "Ended with status 0: Recovered: omen2" in told
    assert "did you mean omen2" in show(capsys, "show", "omen3", status=2)


def test_the_list_is_empty_where_there_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(capsys, "list") == "no runs\n"
    assert json.loads(show(capsys, "list", "-o", "json")) == []
    assert "there are no runs in" in show(capsys, "show", NODE, status=2)


def died(journal: Path) -> None:
    """Its process is gone, and it has not ended."""

    def change(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**line, "pid_began": "another life"} for line in lines if line["event"] != "run-end"]

    rewrite(journal, change)


def test_a_run_can_be_closed_with_no_look_at_its_node(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    died(journal)
    assert "no terminal" in show(capsys, "close", NODE, status=2)
    assert "give --yes" in show(capsys, "close", NODE, "-o", "json", status=2)
    told = " ".join(show(capsys, "close", NODE, "--yes").split())
    assert f"The run {journal.parent.name} is closed by " in told and "nothing was looked at" in told
    data = json.loads(show(capsys, "show", NODE, "-o", "json"))
    assert (data["state"], data["exit_status"]) == ("finished", 3)
    assert "there is nothing to close" in show(capsys, "close", NODE, "--yes", status=2)
    show(capsys, "prune", "--keep", "0")
    assert show(capsys, "list") == "no runs\n"


@pytest.mark.parametrize(("choice", "status", "state"), [("keep", 3, "unfinished"), ("close", 0, "finished")])
def test_closing_is_asked_for(
    journal: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, choice: str, status: int,
    state: str,
) -> None:  # fmt: skip
    died(journal)
    monkeypatch.setattr("gpufix.runs_command.prompts.check_terminal", lambda unattended: None)
    monkeypatch.setattr("gpufix.runs_command.prompts.ask_choice", lambda message, options, default: choice)
    told = show(capsys, "close", journal.parent.name, status=status)
    assert "unfinished" in told and "Its node is not looked at." in told, "what it is, before it is asked"
    assert json.loads(show(capsys, "show", NODE, "-o", "json"))["state"] == state


def test_a_run_that_goes_on_or_cannot_be_read_is_not_closed(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(journal, lambda lines: [line for line in lines if line["event"] != "run-end"])
    assert "is going on" in show(capsys, "close", NODE, "--yes", status=8)
    died(journal)
    rewrite(journal, lambda lines: [*lines, {**lines[-1], "v": 2}])
    assert "cannot be read by this gpufix" in show(capsys, "close", NODE, "--yes", status=2)
    journal.write_text("")
    told = show(capsys, "close", journal.parent.name, "--yes", status=2)
    assert str(journal.parent) in told, "the way to be rid of it"


def test_times_are_told_as_a_diagnosis_tells_them(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(journal, lambda lines: [{**line, "at": "2026-12-02T08:43:27.123456Z"} for line in lines])
    told = show(capsys, "show", NODE)
    assert "began       2026-12-02 08:43:27 UTC" in told and "ended       2026-12-02 08:43:27 UTC" in told
    assert "2026-12-02T08" not in told


def test_a_run_of_a_living_process_is_running(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(journal, lambda lines: [line for line in lines if line["event"] != "run-end"])
    assert " running " in show(capsys, "list"), "this process wrote it, and lives"


def test_prune_leaves_what_is_not_finished(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = journal.parent.parent
    for number in range(3):
        other = runs / f"20200101T00000{number}Z-{NODE}-1"
        other.mkdir()
        (other / "run.jsonl").write_text(journal.read_text())
    unfinished = runs / f"20190101T000000Z-{NODE}-1"
    unfinished.mkdir()
    (unfinished / "run.jsonl").write_text(journal.read_text().splitlines()[0] + "\n")
    (runs / "20180101T000000Z-nothing").mkdir()
    assert "2 would be pruned" in show(capsys, "prune", "--keep", "2", "--dry-run")
    assert len(list(runs.iterdir())) == 6
    assert "2 pruned" in show(capsys, "prune", "--keep", "2")
    assert {path.name for path in runs.iterdir()} == {
        journal.parent.name, f"20200101T000002Z-{NODE}-1", unfinished.name, "20180101T000000Z-nothing",
    }  # fmt: skip
    assert "a whole number" in show(capsys, "prune", "--keep", "-1", status=2)


def test_hostile_text_in_a_journal_does_not_reach_the_terminal(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(
        journal, lambda lines: [{**line, "text": "\x1b[2J", "line": "\x1b]0;x\x07", "by": "\x9b1m"} for line in lines]
    )
    told = show(capsys, "show", NODE)
    assert not any(char in told for char in "\x1b\x07\x9b")


# --- sweeping up -----------------------------------------------------------------------------------------------------


def test_what_a_killed_run_left_is_swept_up_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    gone, mine = tmp_path / f"{PRIVATE}{child.pid}-abc", tmp_path / f"{PRIVATE}{os.getpid()}-abc"
    fresh, old = tmp_path / f"{PRIVATE}abc", tmp_path / f"{PRIVATE}xyz"
    for folder in (gone, mine, fresh, old, tmp_path / "gpufix-mine"):
        (folder / "env").mkdir(parents=True)
    os.utime(old, (1, 1))
    (tmp_path / f"{PRIVATE}999-link").symlink_to(tmp_path / "gpufix-mine")
    folders.sweep()
    assert {path.name for path in tmp_path.iterdir()} == {
        mine.name, fresh.name, "gpufix-mine", f"{PRIVATE}999-link",
    }  # fmt: skip


def test_a_folder_says_by_a_lock_whether_its_gpufix_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Process numbers say nothing of another container that shares the temporary folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    command = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]; from gpufix.world import private\n"
        "with private.private_folder() as folder:\n    print(folder, flush=True); input()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", command, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        folder = Path(child.stdout.readline().strip())
        assert folder.parent == tmp_path and folder.name.startswith(f"{PRIVATE}{child.pid}-")
        monkeypatch.setattr(folders, "process_began", lambda pid: "")  # as seen from another process namespace
        assert folders.sweep() == [] and folder.is_dir()
        monkeypatch.setattr(folders, "process_began", lambda pid: "alive")  # its number was given to another process
        child.kill()
        child.wait()
        folders.sweep()
        assert list(tmp_path.iterdir()) == []
    finally:
        child.kill()
        child.communicate()


def playbook_that_runs(folder: Path, path: Path) -> subprocess.Popen[bytes]:
    """A stand-in of ansible-playbook by name, as ansible-runner starts it for ``folder``; on its input it waits."""
    command = path / "bin" / "ansible-playbook"
    command.parent.mkdir(exist_ok=True)
    command.write_text("print(flush=True)\ninput()\n")
    environment = {**os.environ, "AWX_ISOLATED_DATA_DIR": str(folder / "artifacts" / "1")}
    process = subprocess.Popen(
        [sys.executable, str(command), "x.yml"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout
    process.stdout.readline()  # Popen returns while execve(2) is at work, when /proc has no environment of it yet
    return process


def test_a_playbook_that_outlived_its_gpufix_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    dead, alive = tmp_path / f"{PRIVATE}{child.pid}-abc", tmp_path / f"{PRIVATE}{os.getpid()}-abc"
    for folder in (dead, alive):
        folder.mkdir()
    orphan, ours = playbook_that_runs(dead, tmp_path), playbook_that_runs(alive, tmp_path)
    try:
        assert folders.sweep() == [orphan.pid]
        assert orphan.wait() == -signal.SIGKILL
        assert ours.poll() is None
        assert not dead.exists() and alive.exists()
        assert folders.sweep() == []
    finally:
        for process in (orphan, ours):
            process.kill()
            process.communicate()


def test_a_process_is_named_for_good() -> None:
    assert process_began(os.getpid()) == process_began(os.getpid()) != ""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    began = process_began(child.pid)
    assert began and began != process_began(os.getpid())
    child.communicate()
    assert process_began(child.pid) == ""


def test_the_way_on_names_the_run_and_where_its_journal_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of an undo, which recover would not go on with, and also where the journals are kept elsewhere."""
    elsewhere = tmp_path / "an other place"
    journal = Journal.start(elsewhere, "omen2")
    journal.write("run-start", node="omen2", kind="undo", steps=[])
    journal.write("intent", step="undo-disable-swap")
    journal.close()
    assert cli.main(["runs", "show", "omen2", "--state-dir", str(elsewhere)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"gpufix resume --state-dir '{elsewhere}' {journal.folder.name} looks at the node and goes on" in told
    ui = Ui(lambda *_: pytest.fail("asked"))
    for state, more in ((elsewhere, f" --state-dir '{elsewhere}'"), (state_folder(), "")):
        session = Session(NODE, NODE, Access(()), ClusterAccess(), ui, state=state)
        assert session.words("resume") == f"gpufix resume omen2{more}"
