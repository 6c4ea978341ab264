"""What a webhook is told of a run, as plain data. Pure.

Slack reads ``text``; other receivers read the fields beside it. The shape is versioned: fields are added, never
changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpufix.core.render.words import word
from gpufix.language import mark, t
from gpufix.text import redact, safe

VERSION = 1
MOST_CHANGES = 20
LONGEST_LINE = 300


class Moment(StrEnum):
    STARTED = "started"
    WAITING = "waiting"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Notice:
    """``status`` is one word for machines, ``line`` one sentence for people. ``verdicts``: what -> how it is, as in
    ``node`` -> ``well``. ``changes``: short lines of a diff."""

    event: Moment
    node: str
    runbook: str
    run: str
    status: str = ""
    line: str = ""
    verdicts: Mapping[str, str] = field(default_factory=dict)
    changes: Sequence[str] = ()


_VERDICTS = {"node": mark("node"), "vms": mark("vms")}
_HEADS = {
    Moment.STARTED: mark("{node}: recovery with {runbook} has started"),
    Moment.WAITING: mark("{node}: recovery with {runbook} waits for you"),
    Moment.FINISHED: mark("{node}: recovery with {runbook} has ended"),
}


def notice_as_data(notice: Notice) -> dict[str, Any]:
    """The body of the post. Text from the cluster is made safe; in ``text``, Slack's own marks are escaped too."""
    changes = [_line(change) for change in notice.changes[:MOST_CHANGES]]
    if (more := len(notice.changes) - len(changes)) > 0:
        changes.append(t("... and {n} more", n=more))
    verdicts = {_line(what): _line(how) for what, how in notice.verdicts.items()}
    node, runbook = _line(notice.node), _line(notice.runbook)
    lines = [
        t(_HEADS[notice.event], node=node, runbook=runbook or t("no runbook")),
        *([_line(notice.line)] if notice.line else []),
        *(f"{t(_VERDICTS[what]) if what in _VERDICTS else what}: {word(how)}" for what, how in verdicts.items()),
        *(f"  {change}" for change in changes),
    ]
    return {
        "text": escape_slack("\n".join(lines)),
        "v": VERSION,
        "event": str(notice.event),
        "node": node,
        "runbook": runbook,
        "run": _line(notice.run),
        "status": _line(notice.status),
        "verdicts": verdicts,
        "changes": changes,
    }


def escape_slack(text: str) -> str:
    """``text`` with no mark of Slack's left in it: no link, no mention, no ``<!channel>``."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _line(text: str) -> str:
    return safe(redact(text), limit=LONGEST_LINE)
