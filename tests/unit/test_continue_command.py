"""``resume`` and ``undo`` as commands: what is taken from a journal, and what is refused, in one line and in JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from model_session import BOOK, ModelSession, Ui, calm, whole
from order_model import NODE, World

from gpufix import cli, recovery, resources, runs
from gpufix import walk as walk_module
from gpufix.consents import Request
from gpufix.world import runs as folders
from gpufix.world.journal import JOURNAL, state_folder


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(walk_module, "POLL_SECONDS", 5.0)
    monkeypatch.setattr(runs, "process_began", lambda pid: "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def world() -> ModelSession:
    """After a recovery that was left at the gate of swap: it can be gone on with, and undone."""

    def choose(message: str, options: Any) -> str:
        return "quit" if message.startswith("disable-swap") else "apply" if "apply" in options else "container"

    one = ModelSession(World(), Ui(choose), calm, whole)
    recovery.recover(one, Request([BOOK], who="tester@bench"))  # type: ignore[arg-type]
    return one


@pytest.fixture
def run(world: ModelSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """``gpufix ...``; the session's doors are the model's. What it was asked for is in ``run.asked``."""

    def session_of(arguments: Any, ui: Any) -> ModelSession:
        asked.update(vars(arguments))
        world.ui = ui
        return world

    asked: dict[str, Any] = {}
    monkeypatch.setattr(cli, "_session", session_of)
    command: Any = lambda *words: cli.main([str(word) for word in words])  # noqa: E731 - it carries what was asked
    command.asked = asked
    return command  # type: ignore[no-any-return]


def rewrite(**start: Any) -> Path:
    """Change the first line of the only journal."""
    (one,) = runs.list_runs(state_folder())
    path = one.folder / JOURNAL
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(first), **start}), *rest]) + "\n")
    return path


def refused(capsys: pytest.CaptureFixture[str], run: Callable[..., int], *words: str, status: int) -> str:
    capsys.readouterr()
    assert run(*words) == status
    told = capsys.readouterr()
    assert told.out == "" and "internal error" not in told.err
    return told.err


# --- whose journal it is ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["resume", "undo"])
@pytest.mark.parametrize("whole_folder", [False, True])
def test_a_journal_that_others_can_write_is_not_followed(
    run: Any, capsys: pytest.CaptureFixture[str], verb: str, whole_folder: bool
) -> None:
    """What it calls an inventory would be run by Ansible, as this user."""
    path = rewrite(access={"inventory": ["/tmp/theirs.sh"]})
    (path.parent if whole_folder else path).chmod(0o777)
    told = refused(capsys, run, verb, NODE, "--check" if verb == "undo" else "--answers=none.yml", status=4)
    assert "can be written by other users" in told and "chmod -R go-w" in told
    assert run.asked == {}


def test_a_journal_of_another_user_is_not_followed(
    run: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = runs.list_runs(state_folder())
    monkeypatch.setattr(folders.os, "geteuid", lambda: one.folder.stat().st_uid + 1)
    assert "belongs to another user" in refused(capsys, run, "undo", NODE, "--check", status=4)
    assert run("runs", "show", NODE) == 0, "it can be looked at all the same"


# --- what is taken from it -------------------------------------------------------------------------------------------


def test_the_access_is_that_of_the_run(run: Any) -> None:
    rewrite(access={"inventory": ["/etc/hosts.ini"], "kubeconfig": "/k", "context": "one"}, host="omen-two")
    assert run("undo", NODE, "--check") == 0
    assert (run.asked["inventory"], run.asked["kubeconfig"]) == (["/etc/hosts.ini"], "/k")
    assert (run.asked["context"], run.asked["host"]) == ("one", "omen-two")


def test_a_context_is_not_looked_for_in_another_kubeconfig(run: Any) -> None:
    rewrite(access={"inventory": [], "kubeconfig": "/k", "context": "one"})
    assert run("undo", NODE, "--check", "--kubeconfig", "/other") == 0
    assert (run.asked["kubeconfig"], run.asked["context"]) == ("/other", "")


@pytest.mark.parametrize(
    ("start", "told"),
    [
        ({"node": "../../omen2"}, "is no node name"),
        ({"node": "{{ 1 }}"}, "is no node name"),
        ({"host": "all:!x"}, "is no inventory host name"),
    ],
)
def test_names_are_looked_at_wherever_they_come_from(
    run: Any, capsys: pytest.CaptureFixture[str], start: dict[str, str], told: str
) -> None:
    path = rewrite(**start)
    assert told in refused(capsys, run, "undo", path.parent.name, "--check", status=2)
    assert run.asked == {}


@pytest.mark.parametrize("number", [True, -1, 10**4299, "7", None, 1.5])
def test_a_number_that_counts_nothing_does_not_end_the_counting(run: Any, number: Any) -> None:
    rewrite(number=number)
    assert runs.next_number(state_folder()) == 1


def test_which_run_it_is_about_comes_before_anything_else(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(at="2026-12-02T08:43:27.123456Z")
    capsys.readouterr()
    run("undo", NODE, "--check")
    (one,) = runs.list_runs(state_folder())
    told = " ".join(capsys.readouterr().err.split())
    assert told.startswith(
        f"Run {one.id} on omen2: revive-kubelet-swap, begun 2026-12-02 08:43:27 UTC by tester@bench; stopped. "
        "It acted in: relabel, stop-vfio-manager."
    )


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "hint", "not_there"),
    [
        (("undo", NODE, "-o", "json"), "give --check to see the plan only", "--answers"),
        (("undo", NODE), "run it in a terminal; without one give --check to see the plan only", "--answers"),
        (("resume", NODE, "-q"), "give --answers FILE (gpufix answers writes a sample)", "--check"),
        (("resume", NODE), "without one give --answers FILE", "--check"),
        (("recover", NODE), "without one give --answers FILE (gpufix answers writes a sample), or --check", "undone"),
    ],
)
def test_only_options_that_there_are_are_named(
    run: Any, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], hint: str, not_there: str
) -> None:
    capsys.readouterr()
    assert run(*words) == 2
    told = capsys.readouterr().err
    assert hint in " ".join(told.split()) and not_there not in told


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("undo", "nobody", "-o", "json"), 2),
        (("undo", "nobody", "--check", "-o", "json"), 2),
        (("undo", NODE, "--check", "--step", "disable-swap", "-o", "json"), 2),
        (("undo", NODE, "--check", "--step", "stop-vfio-manager", "-o", "json"), 4),
        (("resume", "nobody", "-o", "json", "--answers", "none.yml"), 2),
        (("resume", NODE, "-o", "json"), 2),
        (("resume", NODE, "-o", "json", "--answers", "none.yml"), 2),
        (("resume", NODE, "--no-such-option", "-o", "json"), 2),
        (("runs", "show", "nobody", "-o", "json"), 2),
        (("runs", "list", "-o", "json", "--state-dir", "~nobody-of-this-name/x"), 2),
        (("runs", "prune", "--keep", "some", "--output=json"), 2),
        (("runs", "close", NODE, "-ojson"), 2),
        (("diagnose", "omen2", "-o", "json", "--snapshot", "none"), 2),
        (("diagnose", "No Node", "-o", "json"), 2),
        (("diagnose", "-o", "json"), 2),
        (("show", "none.json", "-o", "json"), 2),
        (("plan", "omen2", "-o", "json", "--answers", "none.yml"), 2),
        (("recover", "omen2", "-o", "json"), 2),
        (("lab", "recover", "-o", "json", "--answers", "none.yml", "--dir", "lab", "--scenario", "none"), 2),
    ],
)
def test_a_refusal_is_json_where_json_was_asked_for(
    run: Any, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int
) -> None:
    capsys.readouterr()
    assert run(*words) == status
    told = capsys.readouterr()
    data = json.loads(told.out)
    assert (data["version"], data["error"], data["exit_status"]) == (1, True, status)
    assert f"gpufix: {data['line']}" in told.err
    jsonschema.validate(data, resources.result_schema())


@pytest.mark.parametrize(
    ("raised", "status", "line"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("x"), 1, "internal error: ZeroDivisionError: x"),
    ],
)
def test_what_breaks_a_command_off_is_json_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, status: int, line: str
) -> None:
    def broken(*_: Any) -> Any:
        raise raised

    monkeypatch.setattr(runs, "list_runs", broken)
    monkeypatch.setattr("gpufix.runs_command.list_runs", broken)
    capsys.readouterr()
    assert cli.main(["runs", "list", "-o", "json"]) == status
    told = capsys.readouterr()
    data = json.loads(told.out)
    assert (data["exit_status"], data["line"]) == (status, line) and line in told.err


@pytest.mark.parametrize("words", [("report", "nobody", "-o", "json"), ("runbook", "No Node", "-o", "json")])
def test_a_file_that_is_called_json_is_no_wish_for_it(capsys: pytest.CaptureFixture[str], words: Any) -> None:
    capsys.readouterr()
    assert cli.main(list(words)) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("verb", ["resume", "undo"])
def test_odd_state_folders(run: Any, capsys: pytest.CaptureFixture[str], verb: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "itself").symlink_to(tmp_path / "itself")
    (tmp_path / "with space" / "runs" / "x").mkdir(parents=True)
    for folder in ("none", "file", "with space", "~nobody-of-this-name/x", "itself"):
        told = refused(capsys, run, verb, NODE, "--state-dir", folder, status=2)
        assert told.count("\n") <= 2, told


def test_a_state_folder_that_cannot_be_read(
    run: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", denied)
    assert "cannot be read: Permission denied" in refused(capsys, run, "undo", NODE, "--check", status=2)


def test_a_pipe_in_place_of_a_journal_is_not_waited_for() -> None:
    folder = state_folder() / "runs" / "odd"
    folder.mkdir(parents=True)
    os.mkfifo(folder / JOURNAL)
    assert [one.state for one in runs.list_runs(state_folder())] == ["unreadable"]
