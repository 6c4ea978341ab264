"""What was done in a run: its attempts at steps, read from its journal. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpufix.core.render.recorded import at_of, between, diff_of, is_by_hand, time_of, word
from gpufix.core.render.report_parts import Act
from gpufix.core.run_history import History, Line


@dataclass(frozen=True, slots=True)
class _Attempt:
    """``process``: the line with which that began which began the attempt; ``ended_here``: it wrote the end too."""

    process: Line
    parts: dict[str, Line]
    ended_here: bool = False


def acts_of(history: History) -> Iterator[Act]:
    """An attempt begins with its preview (or, in a broken journal, with what there is) and ends with its result.

    A look of a later process that has nothing to add is none: ``found_again`` tells of those.
    """
    open_: dict[str, _Attempt] = {}
    for process, line in _by_process(history):
        event = line["event"]
        if event not in ("preview", "consent", "intent", "applied", "step-result", "settled"):
            continue
        step = word(line.get("step")) or "?"
        attempt = open_.get(step)
        if attempt is not None and (event in attempt.parts or is_by_hand(line)):
            yield _act(step, open_.pop(step))
            attempt = None
        if is_by_hand(line):
            yield _act(step, _Attempt(process, {event: line}))
            continue
        if attempt is None:
            if event == "settled" or _adds_nothing(history, process, line):
                continue  # the timeline tells it
            attempt = open_.setdefault(step, _Attempt(process, {}))
        attempt.parts[event] = line
        if event in ("step-result", "settled"):
            ended_here = event == "step-result" and attempt.process == process
            yield _act(step, replace(open_.pop(step), ended_here=ended_here))
    for step, attempt in open_.items():
        yield _act(step, attempt)


def _by_process(history: History) -> Iterator[tuple[Line, Line]]:
    """Each line with that by which its process began."""
    process = history.start
    for line in history.lines:
        if line["event"] in ("run-start", "resume"):
            process = line
        yield process, line


def _adds_nothing(history: History, process: Line, line: Line) -> bool:
    """Found done by whoever went on, in a step that the journal has as done already."""
    if process.get("event") != "resume" or line["event"] != "step-result" or line.get("outcome") != "no-op":
        return False
    earlier = itertools.takewhile(lambda one: one is not process, history.lines)
    return any(one.get("step") == line.get("step") and one.get("outcome") in ("done", "no-op") for one in earlier)


def found_again(history: History) -> Iterator[str]:
    """The steps that whoever went on found done, and that ``acts_of`` has already."""
    for process, line in _by_process(history):
        if _adds_nothing(history, process, line):
            yield word(line.get("step"))


def _act(step: str, attempt: _Attempt) -> Act:
    parts, attended = attempt.parts, attempt.process.get("attended")
    consent, intent, applied = (parts.get(name) or {} for name in ("consent", "intent", "applied"))
    result = parts.get("step-result") or parts.get("settled") or {}
    previewed = diff_of((parts.get("preview") or {}).get("tasks"))
    done = diff_of(applied.get("tasks"))
    by_hand = is_by_hand(result) if result else False
    lost = "" if result else "unknown" if intent else "not done"
    kills = consent.get("kills")
    return Act(
        step=step,
        outcome="by hand" if by_hand else lost or word(result.get("outcome")) or "unknown",
        by_hand=by_hand,
        text=word(result.get("text")),
        lasted=between(time_of(intent), time_of(result)) if intent and attempt.ended_here else "",
        end_known=not intent or attempt.ended_here,
        began=at_of(intent),
        consent=word(consent.get("by")),
        who=word((result if by_hand else consent).get("who")),
        destructive=consent.get("destructive") is True,
        attended=attended if isinstance(attended, bool) else None,
        kills=", ".join(map(word, kills)) if isinstance(kills, list) else "",
        diff=previewed,
        applied_diff=done if done != previewed else "",
        applied=applied.get("ok") is True if applied else None,
        message=word(applied.get("message")),
        backup=word(applied.get("backup")),
        irreversible=word(intent.get("irreversible")),
    )  # fmt: skip
