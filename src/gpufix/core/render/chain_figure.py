"""The chain of causes as a figure: boxes from cause to effect, with their places. Pure.

A state is told by the shape of its box and by its word; colour only repeats it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import wcwidth

WIDTH = 400
"""Of the figure, in its own units: as wide as a phone, so that its letters stay readable there."""
_COLUMNS = range(46, 37, -1)
_ROOM, _NARROW, _WIDE = 330, 8.6, 14
"""For a line, and for a letter: a Hangul syllable is as wide as two columns, and less wide than two Latin letters."""
_LINE = 20
_GAP = 34
_SHAPES = {"confirmed": "rectangle", "refuted": "dashed", "unknown": "rounded", "suspected": "hexagon"}


@dataclass(frozen=True, slots=True)
class Text:
    y: int
    words: str


@dataclass(frozen=True, slots=True)
class Box:
    """``shape`` is rectangle | dashed | rounded | hexagon. ``points`` outline the hexagon."""

    number: int
    status: str
    shape: str
    y: int
    height: int
    lines: tuple[Text, ...]
    points: str
    arrow: bool
    """One leads down from it to the next."""


@dataclass(frozen=True, slots=True)
class Figure:
    width: int
    height: int
    boxes: tuple[Box, ...]


def chain_figure(links: Sequence[tuple[str, str]]) -> Figure:
    """``links``: title and status of each, the cause first."""
    boxes: list[Box] = []
    y = 4
    for number, (title, status) in enumerate(links, 1):
        words = _lines(f"{number}. {title}")
        height = _LINE * (len(words) + 1) + 16
        lines = tuple(Text(y + 22 + _LINE * index, line) for index, line in enumerate(words, 1))
        left, right, middle = 4, WIDTH - 4, y + height // 2
        points = f"{left},{middle} {left + 16},{y} {right - 16},{y} {right},{middle} "
        points += f"{right - 16},{y + height} {left + 16},{y + height}"
        shape = _SHAPES.get(status, "rounded")
        boxes.append(Box(number, status, shape, y, height, lines, points, number < len(links)))
        y += height + _GAP
    return Figure(WIDTH, y - _GAP + 4 if boxes else 8, tuple(boxes))


def _lines(text: str) -> list[str]:
    """``text`` in lines that fit into a box, four at most: in as many columns as there is room for."""
    lines: list[str] = []
    for columns in _COLUMNS:
        lines = wcwidth.wrap(text, columns, max_lines=4, placeholder=" …")
        if all(_width(line) <= _ROOM for line in lines):
            break
    return lines


def _width(line: str) -> float:
    """About, in the figure's units."""
    return sum(_WIDE if wcwidth.wcwidth(char) == 2 else _NARROW for char in line)
