"""What a run's journal says: its steps, how far it came, whether it ended. Pure; the text of run.jsonl goes in.

A line that was cut off when the machine or the process died is the last one, and is left out; a broken line anywhere
else is named. The journal says what was meant and what was done, never what is: only a fresh look says that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VERSION = 1
"""Of the journal's lines. A line of a later version is kept and not read."""

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class History:
    """The lines of one run. ``torn``: the last line was cut off. ``broken``: the numbers of other unreadable lines."""

    lines: tuple[Line, ...]
    torn: bool = False
    broken: tuple[int, ...] = ()

    def last(self, event: str, step: str = "") -> Line | None:
        """The last line of ``event`` (of ``step``, where one is given)."""
        for line in reversed(self.lines):
            if line["event"] == event and (not step or line.get("step") == step):
                return line
        return None

    @property
    def start(self) -> Line:
        """The first line, empty when the run died before it was written whole."""
        found = self.last("run-start")
        return found if found is not None else {}

    @property
    def ended(self) -> bool:
        return self.last("run-end") is not None


@dataclass(frozen=True, slots=True)
class StepHistory:
    """``outcome`` is that of the step's result, or ``unknown`` where it was begun and no result was written."""

    step: str
    outcome: str
    text: str
    by: str
    """Where its consent was given; empty where none was."""
    at: str
    """When it began to act, RFC 3339; empty where it did not."""
    undo: Mapping[str, Any] | None
    irreversible: str


def read_history(text: str) -> History:
    """The journal in ``text``. Never raises: whatever cannot be read is counted."""
    lines: list[Line] = []
    broken: list[int] = []
    raw = text.split("\n")
    torn = raw[-1] != ""
    for number, one in enumerate(raw, 1):
        if not one:
            continue
        try:
            data = json.loads(one)
        except (ValueError, RecursionError):
            data = None
        if isinstance(data, dict) and isinstance(data.get("event"), str) and data.get("v") == VERSION:
            lines.append(data)
        elif number < len(raw) or not torn:
            broken.append(number)
    return History(tuple(lines), torn, tuple(broken))


def steps_of(history: History) -> tuple[StepHistory, ...]:
    """The steps that the run came to, in order."""
    names: list[str] = []
    for line in history.lines:
        name = line.get("step")
        if isinstance(name, str) and line["event"] in ("consent", "intent", "step-result") and name not in names:
            names.append(name)
    return tuple(_step(history, name) for name in names)


def _step(history: History, name: str) -> StepHistory:
    consent, intent = history.last("consent", name) or {}, history.last("intent", name) or {}
    result = history.last("step-result", name)
    undo = intent.get("undo")
    return StepHistory(
        step=name,
        outcome=str(result.get("outcome", "unknown")) if result is not None else "unknown" if intent else "not done",
        text=str(result.get("text", "")) if result is not None else _unsettled(intent),
        by=str(consent.get("by", "")),
        at=str(intent.get("at", "")),
        undo=undo if isinstance(undo, Mapping) else None,
        irreversible=str(intent.get("irreversible", "")),
    )


def _unsettled(intent: Line) -> str:
    return "it was begun, and no result was written: only a look at the node says what it did" if intent else ""


def unsettled(steps: Sequence[StepHistory]) -> tuple[str, ...]:
    """The steps that were begun and of which the journal does not say how they ended."""
    return tuple(step.step for step in steps if step.outcome == "unknown")
