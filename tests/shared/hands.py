"""A person who has a printed runbook and two shells, and no gpufix: reads the page, types what stands in it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Typed:
    """A block of commands as the page has it, below ``heading``. ``prints``: what the page says that it prints."""

    heading: str
    shell: str
    text: str
    prints: str | None


_ON = {"**On the admin machine**": "admin", "**On the node**": "node"}


def blocks(page: str) -> list[Typed]:
    """Every block of commands in the rendered Markdown, in its order."""
    found: list[Typed] = []
    heading, shell, prints = "", "", False
    for line, code, language in _lines(page):
        if code is None:
            if line.startswith("#"):
                heading, shell = line.lstrip("# "), ""
            shell = next((where for words, where in _ON.items() if line.startswith(words)), shell)
            prints = line == "It prints:" or (prints and not line)
        elif language == "bash":
            assert shell, f"whose shell? {code}"
            found.append(Typed(heading, shell, code, None))
        elif language == "text" and prints:
            last = found.pop()
            found.append(Typed(last.heading, last.shell, last.text, code))
    return found


def _lines(page: str) -> Iterator[tuple[str, str | None, str]]:
    """Lines outside of code, and each block of code as one."""
    fence, language, code = "", "", []
    for line in page.split("\n"):
        opened = re.fullmatch(r"(`{3,})(\w*)", line)
        if fence and line == fence:
            yield "", "\n".join(code), language
            fence = ""
        elif fence:
            code.append(line)
        elif opened:
            fence, language, code = opened[1], opened[2], []
        else:
            yield line, None, ""


@dataclass
class Shell:
    """A bash that stays open. What is typed is read as from a terminal, and what it says comes back."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._process = subprocess.Popen(
            list(self.command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env=dict(self.environment), cwd=self.folder,
        )  # fmt: skip

    def type(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def run(self, text: str) -> str:
        """Type ``text`` and wait until it is done. What was printed; standard error is among it."""
        assert self._process.stdout is not None
        mark = f"-- done {os.urandom(6).hex()} --"
        self.type(f"{text}\nprintf '%s\\n' '{mark}'")
        printed = ""
        while not printed.endswith(f"{mark}\n"):
            line = self._process.stdout.readline()
            assert line, f"the shell ended at: {text}\n{printed}"
            printed += line
        printed = printed.removesuffix(f"{mark}\n")
        self.said.append(f"$ {text}\n{printed}")
        return printed

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Hands:
    """Two shells on the admin machine; in the second one, the page's own ssh command opens the node."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        bash = ["/bin/bash", "--norc", "--noprofile"]
        self.known: dict[str, str] = {}
        """What the variables of a general procedure were set to: for what it says that a command prints."""
        self.shells = {"admin": Shell(bash, environment, folder), "node": Shell(bash, environment, folder)}

    def open_node(self, page: str) -> None:
        (opening,) = [one for one in blocks(page) if one.heading == "Open the shell on the node"]
        assert opening.shell == "admin"
        self.shells["node"].type(opening.text)

    def follow(self, page: str, *kinds: str, steps: Sequence[int] = range(1, 100)) -> None:
        """Type every block below headings of ``kinds`` (Before, Do, After, Undo), of each of ``steps`` in turn.

        Fails where one prints something else than the page says.
        """
        for step in steps:
            for one in blocks(page):
                if one.heading in {f"{kind} step {step}" for kind in kinds}:
                    self.do(one)

    def do(self, one: Typed) -> str:
        printed = self.shells[one.shell].run(one.text)
        if one.prints is not None:
            wanted = re.sub(r"\$([A-Z_]+)", lambda match: self.known[match[1]], one.prints)
            assert matches(printed, wanted), f"{one.heading}, {one.shell}: {one.text}\nprinted: {printed}\n{self}"
        return printed

    def close(self) -> None:
        for shell in self.shells.values():
            shell.close()

    def __str__(self) -> str:
        return "\n".join(f"--- {name}\n{''.join(shell.said)}" for name, shell in self.shells.items())


def matches(printed: str, wanted: str) -> bool:
    """Line by line; ``...`` at the end of a wanted line stands for anything."""
    lines, wants = printed.rstrip("\n").split("\n"), wanted.split("\n")
    return len(lines) == len(wants) and all(
        line.startswith(want.removesuffix("...")) if want.endswith("...") else line == want
        for line, want in zip(lines, wants, strict=True)
    )
