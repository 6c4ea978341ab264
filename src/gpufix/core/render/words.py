"""The words for states, as a person reads them. Pure. Ids, JSON and the journal keep the English ones."""

from __future__ import annotations

from gpufix.language import mark, t
from gpufix.text import columns

WORDS = frozenset(
    {
        mark("confirmed"), mark("refuted"), mark("suspected"), mark("unknown"),
        mark("well"), mark("sick"), mark("running"), mark("waiting"), mark("none"),
        mark("run"), mark("no-op"), mark("blocked"), mark("observe"), mark("left out"),
        mark("done"), mark("not done"), mark("skipped"), mark("quit"), mark("failed"), mark("unreachable"),
        mark("not reached in time"), mark("no consent"), mark("locked"), mark("interrupted"),
        mark("finished"), mark("unfinished"), mark("stopped"), mark("undone"), mark("unreadable"), mark("closed"),
        mark("changed"), mark("undetermined"), mark("predicted"),
    }
)  # fmt: skip
"""Of statuses, verdicts, decisions, outcomes, previews and runs."""


def word(state: str) -> str:
    """``state`` in words; one that is not known, as it stands: it may come from a file."""
    return t(str(state)) if state in WORDS else str(state)


def widest(*states: str, least: int = 0) -> int:
    """The columns that the words for ``states`` take, at least ``least``."""
    return max(least, *(columns(word(state)) for state in states))
