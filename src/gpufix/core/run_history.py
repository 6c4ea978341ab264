"""What a run's journal says: its steps, how far it came, whether it ended. Pure; the text of run.jsonl goes in.

A line that was cut off when the machine or the process died is the last one, and is left out; a broken line anywhere
else is named. The journal says what was meant and what was done, never what is: only a fresh look says that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpufix.language import t

VERSION = 1
"""Of the journal's lines. A line of a later version is kept and not read."""

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class History:
    """The lines of one run. ``torn``: the last line was cut off. ``broken``: the numbers of other unreadable lines.

    ``newer``: some of those are of a later version.
    """

    lines: tuple[Line, ...]
    torn: bool = False
    broken: tuple[int, ...] = ()
    newer: bool = False

    def last(self, event: str, step: str = "") -> Line | None:
        """The last line of ``event`` (of ``step``, where one is given)."""
        found = self.all(event, step)
        return found[-1] if found else None

    def all(self, event: str, step: str = "") -> list[Line]:
        return [line for line in self.lines if line["event"] == event and (not step or line.get("step") == step)]

    @property
    def start(self) -> Line:
        """The first line, empty when the run died before it was written whole."""
        return next((line for line in self.lines if line["event"] == "run-start"), {})

    @property
    def kind(self) -> str:
        """recover | undo."""
        return str(self.start.get("kind") or "recover")

    @property
    def process(self) -> Line:
        """The line of the process that wrote last: it began the run, or went on with it."""
        return next((line for line in reversed(self.lines) if line["event"] in _BEGINS), {})

    @property
    def end(self) -> Line | None:
        """How it ended; None while nothing after its last beginning says so."""
        for line in reversed(self.lines):
            if line["event"] == "run-end":
                return line
            if line["event"] in _BEGINS:
                return None
        return None

    @property
    def ended(self) -> bool:
        return self.end is not None

    @property
    def changed(self) -> bool:
        """A step began to act, whatever came of it."""
        return any(line["event"] == "intent" for line in self.lines)

    @property
    def damage(self) -> str:
        """Why it cannot be relied on that all of the run is here; empty where nothing speaks against it.

        What a lost line said of the start, or of a step that acted, would be missing in the undoing.
        """
        if self.newer:
            return t("its journal was written by a newer gpufix")
        if self.broken:
            lines = ", ".join(map(str, self.broken[:5]))
            return t("its journal is damaged: line {lines} cannot be read", lines=lines)
        numbers = [line.get("seq") for line in self.lines]
        if numbers != list(range(1, len(numbers) + 1)):
            return t("its journal is damaged: lines of it are missing, doubled or out of their order")
        return ""

    @property
    def seq(self) -> int:
        """The highest number of a line."""
        return max((count(line.get("seq")) for line in self.lines), default=0)


def count(value: Any) -> int:
    """``value`` where it counts lines or runs, else 0: another number may be too long to be written again."""
    return value if type(value) is int and 0 < value < 1 << 53 else 0


_BEGINS = ("run-start", "resume")
_RESULTS = ("step-result", "settled")


@dataclass(frozen=True, slots=True)
class StepHistory:
    """``outcome`` is that of the step's last result, or ``unknown`` where it was begun and none was written since."""

    step: str
    outcome: str
    text: str
    by: str
    """Where its consent was given; empty where none was."""
    at: str
    """When it last began to act, RFC 3339; empty where it did not."""
    undo: Mapping[str, Any] | None
    irreversible: str


def read_history(text: str) -> History:
    """The journal in ``text``. Never raises: whatever cannot be read is counted.

    A line that was cut off, and that whoever went on with the run ended before his own first line, is no broken one;
    nor is that first line, where he died in the middle of it and the next one ended it in turn.
    """
    lines: list[Line] = []
    broken: list[int] = []
    newer = False
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
            before = number - 1
            while data["event"] == "resume" and broken and broken[-1] == before:
                broken.pop()  # whoever went on may have been cut off in his first line too
                before -= 1
            lines.append(data)
        elif number < len(raw) or not torn:
            newer = newer or _is_newer(data)
            broken.append(number)
    last = len(raw) - 1
    while torn and not newer and broken and broken[-1] == last:
        broken.pop()  # ended by somebody who then died in his own first line: that is what is torn now
        last -= 1
    return History(tuple(lines), torn, tuple(broken), newer)


def _is_newer(data: Any) -> bool:
    version = data.get("v") if isinstance(data, dict) else None
    return type(version) is int and version > VERSION


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
    result = _result(history, name)
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


def _result(history: History, name: str) -> Line | None:
    """The last word on a step since it last began to act. That it was nothing to do any more says less than "done"."""
    told: Line | None = None
    for line in history.lines:
        if line.get("step") != name:
            continue
        if line["event"] == "intent":
            told = None
        elif line["event"] in _RESULTS:
            done_before = told is not None and told.get("outcome") == "done" and line.get("outcome") == "no-op"
            told = told if done_before else line
    return told


def _unsettled(intent: Line) -> str:
    return t("it was begun, and no result was written: only a look at the node says what it did") if intent else ""


def unsettled(steps: Sequence[StepHistory]) -> tuple[str, ...]:
    """The steps that were begun and of which the journal does not say how they ended."""
    return tuple(step.step for step in steps if step.outcome == "unknown")


def stopped_at(history: History) -> StepHistory | None:
    """The step at which the run stopped: the first that was come to and is neither done nor needless; None at none."""
    over = ("done", "no-op", "left out", "skipped")
    return next((step for step in steps_of(history) if step.outcome not in over), None)
