"""The terminal: prints lines, keeps one live progress line, passes questions to the prompts."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from gpufix.core.render.terminal import Style
from gpufix.text import clipped, safe
from gpufix.world import prompts
from gpufix.world.prompts import Option


def style_for(stream: TextIO | None) -> Style:
    """Colour only on a terminal and without NO_COLOR (no-color.org); 120 columns at most, 100 off a terminal."""
    tty = stream is not None and stream.isatty()  # None: it was closed before gpufix began
    width = min(shutil.get_terminal_size((100, 24)).columns, 120) if tty else 100
    colour = tty and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return Style(width=width, colour=colour)


class TerminalUi:
    """Talks on ``out``; progress goes to ``err`` when that is a terminal, one line that replaces itself.

    Off a terminal each new progress text is a line of its own, without the seconds that only tick.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        *,
        quiet: bool = False,
        answer: TextIO | None = None,
    ) -> None:
        """``quiet``: nothing is said. ``answer`` is where the result will be printed, if elsewhere than the talk: lines
        are made for that stream, so that no colour reaches a file."""
        self.out = out if out is not None else sys.stdout
        self.err = err if err is not None else sys.stderr
        self.quiet = quiet
        self.style = style_for(answer if answer is not None and not answer.isatty() else self.out)
        self._live = False
        self._last = ""

    def say(self, lines: Iterable[str]) -> None:
        self.progress("")
        if self.quiet:
            return
        for line in lines:
            self.out.write(line + "\n")
        self.out.flush()

    def progress(self, text: str) -> None:
        if self.quiet:
            return
        if self.err.isatty():
            width = max(20, shutil.get_terminal_size((100, 24)).columns - 1)
            if text:
                self.err.write("\r\x1b[K" + clipped(safe(f"  ... {text}"), width))
                self._live = True
            elif self._live:
                self.err.write("\r\x1b[K")
                self._live = False
            self.err.flush()
            return
        words = text.split(": ", 1)[-1]
        if words and words != self._last:
            self.err.write(safe(f"... {text}", limit=400) + "\n")
            self.err.flush()
        self._last = words or self._last

    def ask_choice(self, message: str, options: Sequence[Option], default: str) -> str:
        self.progress("")
        return prompts.ask_choice(message, options, default)

    def ask_text(self, message: str) -> str:
        self.progress("")
        return prompts.ask_text(message)
