"""gpufix as a person uses it: the wizard in a real terminal, the other commands, the journal they leave."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest

UP, DOWN, ENTER = "\x1b[A", "\x1b[B", "\r"
PATIENCE = 600.0
"""Seconds. Only a failure takes as long: what is waited for comes, however busy the machine is."""
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")


class Wizard:
    """``gpufix recover`` in a pseudo-terminal of 50 lines and 120 columns, typed at like a person would."""

    def __init__(self, *arguments: str, columns: int = 120) -> None:
        environment = {**os.environ, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"}
        for name in ("COLUMNS", "LINES"):  # pytest's, which would win over the terminal's own size
            environment.pop(name, None)
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "gpufix", *arguments],
            env=environment,
            encoding="utf-8",
            codec_errors="replace",
            dimensions=(50, columns),
            timeout=PATIENCE,
        )
        self.seen: list[str] = []

    @property
    def text(self) -> str:
        """All that was shown so far, without the terminal's own codes."""
        return ANSI.sub("", "".join(self.seen))

    def expect(self, pattern: str, timeout: float = PATIENCE) -> None:
        """Wait until ``pattern`` was shown after what was waited for before. Fails with the whole screen."""
        try:
            self.child.expect(pattern, timeout=timeout)
        except (pexpect.TIMEOUT, pexpect.EOF):
            self.seen.append(self.child.before if isinstance(self.child.before, str) else "")
            pytest.fail(f"never saw {pattern!r} in:\n{self.text}")
        self.seen += [self.child.before, self.child.after]

    def ask(self, question: str, timeout: float = PATIENCE) -> None:
        """Wait for a question, with its keys' hint: then it takes keys."""
        self.expect(re.escape(question) + r"[^\n]*\(arrow keys, Enter\)", timeout)

    def answer(self, question: str, keys: str = ENTER, timeout: float = PATIENCE) -> None:
        self.ask(question, timeout)
        self.child.send(keys)

    def gate(self, step: str, keys: str = ENTER, name: str = "", timeout: float = PATIENCE) -> None:
        """At the gate of ``step`` press ``keys`` (Enter applies) and, where it is destructive, type ``name``."""
        self.answer(f"{step}:", keys, timeout)
        if name:
            self.expect("Type the node's name to apply")
            self.child.send(name + ENTER)

    def end(self, timeout: float = PATIENCE) -> int:
        """Wait for the end. The exit status."""
        self.expect_end(timeout)
        self.child.close()
        return int(self.child.exitstatus if self.child.exitstatus is not None else -1)

    def expect_end(self, timeout: float) -> None:
        try:
            self.child.expect(pexpect.EOF, timeout=timeout)
        except pexpect.TIMEOUT:
            self.seen.append(self.child.before if isinstance(self.child.before, str) else "")
            pytest.fail(f"it did not end:\n{self.text}")
        self.seen.append(self.child.before)


QUIT = UP + ENTER
"""From the first choice of a gate, up goes round to the last: quit."""


class Gpufix:
    """The other commands, run as a person would."""

    def __init__(self, access: list[str]) -> None:
        self.access = access

    def run(
        self, *arguments: str, access: list[str] | None = None, timeout: float = PATIENCE
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpufix", *arguments, *(self.access if access is None else access)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)

    def diagnose(self) -> dict[str, Any]:
        done = self.run("diagnose", "omen2", "-o", "json")
        assert done.returncode == 0, done.stderr
        data: dict[str, Any] = json.loads(done.stdout)
        return data


def journal(state: Path) -> list[dict[str, Any]]:
    """The lines of the one run under ``state``."""
    (path,) = state.glob("gpufix/runs/*/run.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]
