"""A key that was pressed before a question stood there is no answer to it, and SIGTERM ends it as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

from gpufix.errors import GpufixError
from gpufix.world import prompts

CHILD = """
import sys
from gpufix.world.prompts import Option, ask_choice, ask_text
print("working", flush=True)
open(sys.argv[1]).read()
print("chosen:", ask_choice("relabel:", [Option("apply", "apply"), Option("quit", "quit")], "apply"), flush=True)
open(sys.argv[1]).read()
print("typed:", repr(ask_text("name?")), flush=True)
"""


def test_what_is_typed_ahead_answers_nothing(tmp_path: Path) -> None:
    door = tmp_path / "door"
    os.mkfifo(door)
    child = pexpect.spawn(
        sys.executable, ["-c", CHILD, str(door)], encoding="utf-8", timeout=60,
        env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
    )  # fmt: skip
    child.expect("working")
    child.send("\r\romen2\r")  # while a step runs
    door.write_text("")
    child.expect(r"\(arrow keys, Enter\)")
    child.send("\x1b[B\r")
    child.expect("chosen: quit")
    child.send("omen2\r")
    door.write_text("")
    child.expect(r"name\?")
    child.send("omen3\r")
    child.expect("typed: 'omen3'")
    child.expect(pexpect.EOF)


ENDED = """
import signal, sys, termios
from gpufix.world.interrupts import Interrupts
from gpufix.world.prompts import Interrupted, Option, ask_choice, ask_text
before = termios.tcgetattr(0)
asked = {
    "choice": lambda: ask_choice("relabel:", [Option("apply", "apply"), Option("quit", "quit")], "apply"),
    "text": lambda: ask_text("name?"),
}
with Interrupts(lambda: print("heard", flush=True)) as interrupts:
    mine = signal.getsignal(signal.SIGTERM)
    try:
        asked[sys.argv[1]]()
    except Interrupted:
        same = termios.tcgetattr(0) == before and signal.getsignal(signal.SIGTERM) == mine
        print("ended:", same, interrupts.stop, flush=True)
"""


@pytest.mark.parametrize(("kind", "shows"), [("choice", r"\(arrow keys, Enter\)"), ("text", r"name\?")])
def test_sigterm_ends_a_question_and_leaves_the_terminal_as_it_was(kind: str, shows: str) -> None:
    child = pexpect.spawn(
        sys.executable, ["-c", ENDED, kind], encoding="utf-8", timeout=60,
        env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
    )  # fmt: skip
    child.expect(shows)
    child.kill(signal.SIGTERM)
    child.expect("ended: True False")
    child.expect(pexpect.EOF)


@pytest.mark.parametrize("stream", ["stdin", "stdout"])
def test_a_closed_stream_is_no_terminal(monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    monkeypatch.setattr(sys, stream, None)  # as Python has it where the descriptor was closed before it began
    with pytest.raises(GpufixError, match="no terminal"):
        prompts.check_terminal("give --answers FILE")


class Answered:
    """A question's application whose answer came in the same moment as the signal."""

    future = None

    class loop:  # noqa: N801
        @staticmethod
        def call_soon_threadsafe(told: Callable[[], None]) -> None:
            told()


def test_sigterm_counts_also_where_the_answer_came_in_the_same_moment() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(prompts.Interrupted), prompts._ended_by_sigterm(Answered()):  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
