"""Draws docs/wizard.svg: the wizard on the practice lab, at the gate of disable-swap, as a terminal shows it.

    python docs/make_picture.py

Runs ``gpufix lab recover`` in a terminal of its own and presses the keys. Needs the dev extra (pyte) and half a minute.
"""

from __future__ import annotations

import os
import sys
import tempfile
from html import escape
from pathlib import Path

import pexpect
import pyte

COLUMNS, LINES = 110, 46
CELL, ROW = 7.8, 17.0
COLOURS = {
    "default": "#d5d9e0", "black": "#5c6370", "red": "#f07178", "green": "#98c379", "brown": "#e5c07b",
    "blue": "#61afef", "magenta": "#c678dd", "cyan": "#56b6c2", "white": "#ffffff",
}  # fmt: skip
STEPS = (("Who owns", ""), ("relabel", ""), ("stop-vfio-manager", "omen2"))
"""What is answered before the picture is taken: a word of the question, and the name to type where it is asked for."""
TAKEN_AT = "disable-swap"


def walk(screen: pyte.Screen, state: str) -> None:
    """Bring the wizard to the gate of TAKEN_AT, with all it printed fed to ``screen``."""
    environment = {**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": state, "PROMPT_TOOLKIT_NO_CPR": "1"}
    environment.pop("NO_COLOR", None)
    child = pexpect.spawn(
        sys.executable, ["-m", "gpufix", "lab", "recover"], env=environment, encoding="utf-8", timeout=120,
        dimensions=(LINES, COLUMNS),
    )  # fmt: skip
    stream = pyte.Stream(screen)
    child.logfile_read = type("Feed", (), {"write": staticmethod(stream.feed), "flush": staticmethod(lambda: None)})()
    for word, name in STEPS:
        child.expect(word + r"[^\n]*\(arrow keys, Enter\)")
        child.send("\r")
        if name:
            child.expect("Type the node's name")
            child.send(name + "\r")
    child.expect(TAKEN_AT + r"[^\n]*\(arrow keys, Enter\)")
    child.expect("quit, leaving the rest undone")
    child.close(force=True)


def svg(screen: pyte.Screen) -> str:
    rows = [row for row in range(LINES) if any(screen.buffer[row][column].data.strip() for column in range(COLUMNS))]
    last = rows[-1] if rows else 0
    width, height = COLUMNS * CELL + 24, (last + 1) * ROW + 24
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-size="13" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" role="img" '
        f'aria-label="gpufix at the gate of {TAKEN_AT}: the dry run as a diff, the risk, and the choices">'
    )
    parts = [
        head,
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="#1e2127"/>',
    ]
    for row in range(last + 1):
        parts += _row(screen, row)
    return "\n".join([*parts, "</svg>", ""])


def _row(screen: pyte.Screen, row: int) -> list[str]:
    """One text element for each run of cells that look alike."""
    found, column = [], 0
    while column < COLUMNS:
        cell, end, text = screen.buffer[row][column], column, ""
        while end < COLUMNS and screen.buffer[row][end][1:4] == cell[1:4]:
            text += screen.buffer[row][end].data
            end += 1
        if text.strip():
            fill = COLOURS.get(cell.fg, f"#{cell.fg}" if len(cell.fg) == 6 else COLOURS["default"])
            weight = ' font-weight="bold"' if cell.bold else ""
            x, y = 12 + column * CELL, 12 + (row + 0.8) * ROW
            shown = escape(text.rstrip())
            length = f' textLength="{len(text.rstrip()) * CELL:.1f}" lengthAdjust="spacingAndGlyphs"'
            found.append(
                f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}"{weight}{length} xml:space="preserve">{shown}</text>'
            )
        column = end
    return found


def main() -> int:
    screen = pyte.Screen(COLUMNS, LINES)
    with tempfile.TemporaryDirectory() as state:
        walk(screen, state)
    (Path(__file__).parent / "wizard.svg").write_text(svg(screen), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
