"""A key that was pressed before a question stood there is no answer to it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pexpect

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
