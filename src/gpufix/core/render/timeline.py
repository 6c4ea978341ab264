"""A run told in the order in which it happened. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpufix.core.render.recorded import is_by_hand, moment, time_of, word
from gpufix.core.render.report_parts import Moment, Saying, Told
from gpufix.core.run_history import Line


def timeline_of(told: Told) -> Iterator[Moment]:
    """The lines of the journal that tell something, and what the looks beside it add, in the journal's order."""
    before, last = told.before, told.last
    if before is not None and before.diagnosis.down_since is not None:
        yield Moment(moment(before.diagnosis.down_since), Saying("t-down"))
    node = last.facts.node.value if last is not None else None
    ready = node.ready_since if node is not None and node.ready == "True" else None
    began = time_of(told.history.start)
    if ready is None or began is None or ready < began:
        ready = None
    deaths = deaths_of(told)
    for number, line in enumerate(told.history.lines):
        saying = _told_of(line)
        at = time_of(line)
        if saying is not None:
            if ready is not None and at is not None and ready <= at:
                yield Moment(moment(ready), Saying("t-ready"))
                ready = None
            yield Moment(moment(at), saying)
        if number in deaths:
            yield Moment(moment(at), Saying("t-died"))
    if ready is not None:
        yield Moment(moment(ready), Saying("t-ready"))


def deaths_of(told: Told) -> tuple[int, ...]:
    """After which lines (by their place) a process of this run ended without a word; the one that may still live
    is not counted. That a step was done by hand is written by whoever goes on, before his own beginning."""
    died, going = [], False
    for number, line in enumerate(told.history.lines):
        begins = line["event"] in ("run-start", "resume")
        if going and (begins or is_by_hand(line)):
            died.append(number - 1)
        going = begins or (going and line["event"] != "run-end" and not is_by_hand(line))
    if going and told.state != "running":
        died.append(len(told.history.lines) - 1)
    return tuple(died)


def _told_of(line: Line) -> Saying | None:
    """None for a line that tells nothing to a reader of the timeline."""
    event = line["event"]
    values = {name: word(line.get(name)) or "?" for name in ("step", "who", "by", "outcome", "text")}
    if is_by_hand(line):
        return Saying("t-by-hand" if line.get("who") else "t-by-hand-told", values)
    if event in ("run-start", "resume", "settled", "intent"):
        return Saying(f"t-{event}", values)
    if event == "preview":
        return Saying("t-preview", values)
    if event == "consent":
        return Saying("t-consent-destructive" if line.get("destructive") is True else "t-consent", values)
    if event == "applied":
        return Saying(
            "t-applied" if line.get("ok") is True else "t-broke", {**values, "text": word(line.get("message"))}
        )
    if event == "step-result":
        return Saying("t-result", {**values, "text": word(line.get("text"))})
    if event == "run-end":
        return Saying("t-end", {"status": word(line.get("exit_status")) or "?", "text": word(line.get("line"))})
    return None
