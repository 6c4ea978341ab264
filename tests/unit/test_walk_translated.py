"""Whole walks in another language: nothing that is said is left in English, and no code reads what it says."""

from __future__ import annotations

import gettext
import json
import os
import re
import string
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from model_session import ModelSession, Ui, calm, whole
from order_model import NODE, World
from test_resume import alone, choose  # noqa: F401 - alone: each test here has a state folder of its own

from gpufix import cli, recovery, resuming, undoing
from gpufix.consents import Request
from gpufix.core.render.run_text import run_lines, run_row, table_lines
from gpufix.core.render.terminal import Style
from gpufix.core.run_history import steps_of
from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import speaking
from gpufix.runs import list_runs, run_to_resume, run_to_undo
from gpufix.session import read_runbooks
from gpufix.text import columns
from gpufix.world.catalogs import catalog
from gpufix.world.journal import state_folder
from gpufix.world.prompts import Option

CASES = Path(__file__).resolve().parents[1] / "cases"


class Bracketing(gettext.NullTranslations):
    """Puts each sentence in ⟦⟧, and leaves out of them what is put in its places."""

    def gettext(self, message: str) -> str:
        said = ""
        for words, place, _, _ in string.Formatter().parse(message):
            said += f"⟦{words}⟧" if words else ""
            said += f"{{{place}}}" if place is not None else ""
        return said

    def ngettext(self, one: str, many: str, n: int) -> str:
        return self.gettext(one if n == 1 else many)


COMMAND = re.compile(r"gpufix (?:recover|resume|undo|runs show|plan|answers)(?: [^\s⟦⟧;,)]+)*|ansible-playbook [^\n]*")
DATA = re.compile(r"/swapfile none swap sw|it broke half-way")
"""A line of fstab, and what the model's playbook says when it breaks."""
LEFT = re.compile(r"(?<![\w./-])[A-Za-z']{2,}[,;:]? [A-Za-z']{2,}(?![\w./=-])")


def unmarked(text: str) -> list[str]:
    """Where two words in a row stand that no catalog was asked for."""
    outside, depth = "", 0
    for char in DATA.sub("", COMMAND.sub("", text)):
        depth += {"⟦": 1, "⟧": -1}.get(char, 0)
        outside += char if depth == 0 and char != "⟧" else "|" if char == "⟦" else ""
    return LEFT.findall(outside)


def test_words_that_no_catalog_was_asked_for_are_found() -> None:
    said = Bracketing().gettext("{node} is not {state}")
    assert said == "{node}⟦ is not ⟧{state}"
    assert unmarked(said.format(node="omen2", state="ready or not")) == ["ready or"]
    assert unmarked("⟦look: ⟧gpufix runs show a-1⟦ tells⟧") == []


@dataclass
class Hearing(Ui):
    """Keeps all that a person sees: the questions and the progress too."""

    def progress(self, text: str) -> None:
        self.said += [text] if text else []

    def ask_choice(self, message: str, options: Sequence[Option], default: str) -> str:
        self.said += [message, *(option.label for option in options)]
        return super().ask_choice(message, options, default)

    def ask_text(self, message: str) -> str:
        self.said.append(message)
        return super().ask_text(message)


def heard(world: World, ends: Callable[[Sequence[Any]], Any] = whole, **wanted: str) -> ModelSession:
    return ModelSession(world, Hearing(choose(**wanted)), calm, ends)


def asked() -> Request:
    return Request(read_runbooks(), who="tester@bench")


def details_once() -> Callable[[str, Sequence[str]], str]:
    """Looks at the details of each gate before it is passed."""
    seen: set[str] = set()

    def decide(message: str, options: Sequence[str]) -> str:
        if "details" in options and message not in seen:
            seen.add(message)
            return "details"
        return next(one for one in ("apply", "container", *options) if one in options)

    return decide


def nothing_unmarked(one: ModelSession, lines: Iterable[str] = ()) -> None:
    assert unmarked("\n".join([*one.ui.said, *lines])) == []


def test_a_recovery_speaks_through_the_catalog_from_plan_to_end() -> None:
    with speaking(Bracketing()):
        one = heard(World())
        one.ui.choose = details_once()
        result = recovery.recover(one, asked())  # type: ignore[arg-type]
        assert result.status is ExitStatus.OK
        nothing_unmarked(one, result.lines)
        assert "⟦Recovered: ⟧" in result.line
        run = list_runs(state_folder())[0]
        shown = run_lines(run.id, "folder", run.state, run.history, Style())
        table = table_lines([run_row(run.id, run.state, run.history)], Style())
        assert unmarked("\n".join([*shown, *table])) == []
    consents = [str(line["by"]) for line in run.history.all("consent")]
    assert consents and not any("⟦" in by for by in consents), "what programs read is in English"


@pytest.mark.parametrize(
    ("world", "ends", "wanted", "status"),
    [
        (World(heavy=True), whole, {}, ExitStatus.BLOCKED),
        (World(), lambda possible: possible[0], {}, ExitStatus.STEP_FAILED),
        (World(), whole, {"disable_swap": "quit"}, ExitStatus.DECLINED),
        (World(kubelet="active", swap=False, fstab=False), whole, {}, ExitStatus.DECLINED),
    ],
    ids=["blocked", "failed", "quit", "undo-of-nothing"],
)
def test_what_ends_a_recovery_early_speaks_through_the_catalog(
    world: World, ends: Callable[[Sequence[Any]], Any], wanted: dict[str, str], status: ExitStatus
) -> None:
    with speaking(Bracketing()):
        one = heard(world, ends, **wanted)
        if status is ExitStatus.DECLINED and not wanted:
            with pytest.raises(GpufixError) as refused:
                run_to_undo(state_folder(), None)
            assert unmarked(f"{refused.value.message} {refused.value.hint}") == []
            return
        result = recovery.recover(one, asked())  # type: ignore[arg-type]
        assert result.status is status, result.line
        nothing_unmarked(one, result.lines)


def test_going_on_and_undoing_speak_through_the_catalog() -> None:
    with speaking(Bracketing()):
        one = heard(World(), disable_swap="quit")
        recovery.recover(one, asked())  # type: ignore[arg-type]
        one.ui.choose, one.ui.said = choose(), []
        result = resuming.resume(one, asked(), run_to_resume(state_folder(), NODE))  # type: ignore[arg-type]
        assert result.status is ExitStatus.OK
        nothing_unmarked(one, result.lines)
        one.ui.said = []
        undone = undoing.undo(one, asked(), run_to_undo(state_folder(), NODE))  # type: ignore[arg-type]
        assert undone.status is ExitStatus.OK
        nothing_unmarked(one, undone.lines)


def test_a_run_begun_in_korean_is_gone_on_with_in_english_and_shown_as_it_was_recorded() -> None:
    with speaking(catalog("ko")):
        one = ModelSession(World(), Ui(choose(disable_swap="quit"), style=Style(width=80)), calm, whole)
        recovery.recover(one, asked())  # type: ignore[arg-type]
    assert max(map(columns, one.ui.said)) <= 80
    run = run_to_resume(state_folder(), NODE)
    assert {step.outcome for step in steps_of(run.history)} <= {"done", "no-op", "quit"}, "ids, in any language"
    told = "\n".join(run_lines(run.id, "folder", run.state, run.history, Style()))
    assert "disable-swap       quit" in told
    assert "게이트에서 거절했습니다" in told, "a sentence as it was recorded"
    one.ui.choose = choose()
    assert resuming.resume(one, asked(), run).status is ExitStatus.OK  # type: ignore[arg-type]
    assert list_runs(state_folder())[0].state == "finished"


def test_json_is_in_english_in_any_locale(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    case = ["diagnose", "omen2", "--snapshot", str(CASES / "trace-1-kubelet-dead")]
    monkeypatch.setenv("LC_ALL", "ko_KR.UTF-8")
    assert cli.main(case) == 0
    said = capsys.readouterr().out
    assert "근본 원인: swap-on (확인됨)" in said
    assert "Root cause" not in said
    assert cli.main([*case, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["root_cause"]["status"] == "confirmed"
    assert cli.main([*case, "--lang", "en"]) == 0
    assert "Root cause: swap-on (confirmed)" in capsys.readouterr().out


def test_every_line_of_a_korean_diagnosis_is_within_the_width(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diagnose", "omen2", "--snapshot", str(CASES / "trace-1-kubelet-dead"), "--lang", "ko"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(columns, lines)) <= 100
    assert max(map(columns, lines)) > 90


@pytest.mark.parametrize(
    ("encoding", "shown"), [("euc_kr", "근본 원인"), ("ascii", "swap-on (?"), ("latin-1", "…"[:0])]
)
def test_what_an_old_encoding_has_no_letter_for_is_replaced(encoding: str, shown: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpufix", "diagnose", "omen2", "--lang", "ko",
         "--snapshot", str(CASES / "trace-1-kubelet-dead")],
        env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert shown in done.stdout.decode(encoding)
