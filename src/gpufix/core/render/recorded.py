"""What a journal says, in words and times that are safe to show. Pure.

A journal is text that somebody may have written: any field may be missing or of any shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gpufix.core.parse.times import parse_time
from gpufix.core.render.document import shown, shown_lines
from gpufix.core.render.terminal import Style, diff_lines
from gpufix.core.run_history import History, Line, steps_of
from gpufix.core.undo import undo_id
from gpufix.text import duration, safe

_WIDE = Style(width=400)
_LONGEST = 1000
"""Characters of one text of the journal."""


def acted(history: History) -> list[str]:
    """The steps that a run took, the newest first: by its playbooks, or by a person's hand."""
    steps = [line.get("step") for line in history.lines if line["event"] == "intent" or is_by_hand(line)]
    return list(reversed(dict.fromkeys(str(step) for step in steps)))


def is_by_hand(line: Line) -> bool:
    """A person said that he did the step, and its effect holds."""
    return line["event"] == "settled" and line.get("by_hand") is True


def put_back(undo: History) -> set[str]:
    """The steps of the run that ``undo`` undid, or found undone."""
    over = {step.step for step in steps_of(undo) if step.outcome in ("done", "no-op")}
    return {step.removeprefix(undo_id("")) for step in over}


def diff_of(tasks: object) -> str:
    """What the tasks changed, as lines of a diff; empty where they tell of none."""
    lines: list[str] = []
    for task in tasks if isinstance(tasks, list) else ():
        records = mapping(task).get("diffs")
        for record in records if isinstance(records, list) else ():
            if isinstance(record, Mapping):
                lines += [line.strip("\n") for line in diff_lines([record], _WIDE)]
    return shown_lines("\n".join(line.removeprefix("    ").removeprefix("  ") for line in lines))


def mapping(value: object) -> Mapping[str, Any]:
    """Empty for what is none."""
    return value if isinstance(value, Mapping) else {}


def word(value: object) -> str:
    """A field of the journal as one line of text; empty for None."""
    if value is None:
        return ""
    return safe(shown(value if isinstance(value, str) else str(value)), limit=_LONGEST)


def time_of(line: Line) -> datetime | None:
    """None where it has no time that can be read."""
    return parse_time(line.get("at"))


def at_of(line: Line) -> str:
    """When it was written, as it is shown; empty where it has no time that can be read."""
    return moment(time_of(line))


def moment(at: datetime | None) -> str:
    """A time in UTC, to the second; empty for None."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC" if at is not None else ""


def between(since: datetime | None, until: datetime | None) -> str:
    """Empty where it is not known, or where a clock went back."""
    return duration(until - since) if since is not None and until is not None and until >= since else ""
