"""What state the kubelet is in, seen through unit and journal together. Pure.

``systemctl is-active`` alone deceives: in a crash loop it says ``activating``, and ``active`` for a moment after each
start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from gpufix.core.evidence import LIFECYCLE_TAINTS
from gpufix.core.parse.times import parse_time
from gpufix.core.signatures import Signatures
from gpufix.model import Evidence, Facts, NodeFacts, StartFacts, UnitFacts


class Kubelet(StrEnum):
    """``STARTING``: a start is under way, and has not yet outlived the ones that failed before it."""

    RUNNING = "running"
    STARTING = "starting"
    CRASH_LOOP = "crash-loop"
    FAILED = "failed"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


DOWN = frozenset({Kubelet.CRASH_LOOP, Kubelet.FAILED, Kubelet.STOPPED})


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts, with what follows from them before any cause is named."""

    facts: Facts
    signatures: Signatures
    kubelet: Kubelet
    node: NodeFacts | None
    worded: StartFacts | None
    """The start whose last words explain why the kubelet is down; None when no words were kept, or it is not down."""
    silent: int = 0
    """How many starts after ``worded`` failed without a word."""
    same_exit: bool = True
    """The silent ones ended with the same status as the one that spoke."""

    @property
    def unit(self) -> UnitFacts | None:
        return self.facts.unit.value

    @property
    def starts(self) -> tuple[StartFacts, ...]:
        return self.facts.journal.value.starts if self.facts.journal.value is not None else ()

    @property
    def lifecycle_taints(self) -> list[str]:
        taints = self.node.taints if self.node is not None else ()
        return [taint.key for taint in taints if taint.key in LIFECYCLE_TAINTS]

    @property
    def ready(self) -> bool:
        """The API server holds the node for Ready."""
        return self.node is not None and self.node.ready == "True"

    @property
    def stale(self) -> bool:
        """Ready=True, and older than a living kubelet lets it become."""
        if self.node is None or self.node.last_heartbeat is None or self.facts.as_of is None:
            return False
        if not self.ready or not self.facts.as_of_recorded:
            return False
        limit = timedelta(seconds=self.signatures.thresholds["node_stale_seconds"])
        return self.facts.as_of - self.node.last_heartbeat > limit

    @property
    def serves(self) -> bool:
        """Ready, with no taint of a node that is not, and a kubelet that is not known to be down."""
        return self.ready and not self.lifecycle_taints and self.kubelet not in DOWN

    @property
    def holds(self) -> frozenset[str]:
        """The conditions that signatures can ask for."""
        if self.node is None:
            return frozenset()
        found = {"not-ready"} if self.node.ready != "True" else set()
        found |= {"ready-unknown"} if self.node.ready == "Unknown" else set()
        found |= {"ready-false"} if self.node.ready == "False" else set()
        found |= {"disk-pressure"} if self.node.conditions.get("DiskPressure") == "True" else set()
        return frozenset(found)

    @property
    def recent_lines(self) -> list[Evidence]:
        """The lines of the present invocation that are not older than the threshold before its last line."""
        if not self.starts:
            return []
        return list(_recent(self.starts[-1].lines, self.signatures.thresholds["recent_seconds"]))


def assess(facts: Facts, signatures: Signatures) -> Situation:
    """The situation, from the facts."""
    node = facts.node.value
    starts = facts.journal.value.starts if facts.journal.value is not None else ()
    kubelet = _kubelet(facts, signatures, node, starts)
    worded, silent, same = None, 0, True
    if kubelet in DOWN or kubelet is Kubelet.STARTING:
        worded, silent, same = _last_words(starts, timedelta(seconds=signatures.thresholds["settled_seconds"]))
    return Situation(facts, signatures, kubelet, node, worded, silent, same)


def _kubelet(facts: Facts, signatures: Signatures, node: NodeFacts | None, starts: tuple[StartFacts, ...]) -> Kubelet:
    unit = facts.unit.value
    if unit is None:
        return _by_journal(facts, starts)
    if unit.load_state in ("not-found", "error", "bad-setting"):
        return Kubelet.UNKNOWN
    if unit.active_state == "activating" or unit.sub_state == "auto-restart":
        looping = unit.sub_state.startswith("auto-restart") or unit.restarts > 0 or _failed_before(starts)
        return Kubelet.CRASH_LOOP if looping else Kubelet.STARTING
    if unit.active_state in ("active", "reloading"):
        if unit.sub_state not in ("running", "reload", ""):
            return Kubelet.UNKNOWN
        return _active(facts, signatures, node, starts, unit)
    simple = {"inactive": Kubelet.STOPPED, "deactivating": Kubelet.STOPPED, "failed": Kubelet.FAILED}
    return simple.get(unit.active_state, Kubelet.UNKNOWN)


def _by_journal(facts: Facts, starts: tuple[StartFacts, ...]) -> Kubelet:
    """Without the unit, the journal can show that the kubelet is down; that it runs it cannot."""
    if not starts or facts.journal.value is None:
        return Kubelet.UNKNOWN
    if facts.journal.value.held:
        return Kubelet.STOPPED
    return Kubelet.FAILED if starts[-1].how == "failure" else Kubelet.UNKNOWN


def _failed_before(starts: tuple[StartFacts, ...]) -> bool:
    """The start before the one under way failed, or the last one did."""
    if not starts:
        return False
    last = starts[-1]
    return last.how == "failure" or (not last.ended and len(starts) > 1 and starts[-2].how == "failure")


def _active(
    facts: Facts, signatures: Signatures, node: NodeFacts | None, starts: tuple[StartFacts, ...], unit: UnitFacts
) -> Kubelet:
    last = starts[-1] if starts else None
    if last is not None and last.how == "failure":
        return Kubelet.CRASH_LOOP  # the journal was read after the unit, and the start has failed since
    begun = unit.active_since or (last.at if last is not None else None)
    if node is not None and node.ready == "True" and _at_or_after(node.last_heartbeat, begun):
        return Kubelet.RUNNING
    if last is None and unit.restarts == 0:
        return Kubelet.RUNNING
    if last is not None and not _failed_before(starts):
        return Kubelet.RUNNING
    settled = timedelta(seconds=signatures.thresholds["settled_seconds"])
    until = max((moment for moment in (_newest(last), facts.as_of) if moment is not None), default=None)
    if begun is not None and until is not None and until - begun >= settled:
        return Kubelet.RUNNING
    return Kubelet.STARTING


def _at_or_after(moment: datetime | None, begun: datetime | None) -> bool:
    return moment is not None and begun is not None and moment >= begun


def _newest(start: StartFacts | None) -> datetime | None:
    for line in reversed(start.lines if start is not None else ()):
        moment = parse_time(line.excerpt[:40])
        if moment is not None:
            return moment
    return None


def _last_words(starts: tuple[StartFacts, ...], settled: timedelta) -> tuple[StartFacts | None, int, bool]:
    """The newest start in the present row of failures that left words, and what came after it.

    A start that ended well, by a stop or a reboot, ends the row: what was said before it explains nothing now.
    """
    silent: list[StartFacts] = []
    for index, start in enumerate(reversed(starts)):
        if (index == 0 and not start.ended) or (start.how == "stop" and _brief(start, settled)):
            continue  # under way, or stopped by hand before it could show whether it lives
        if start.how != "failure":
            return None, len(silent), True
        if start.fatal is not None:
            statuses = {other.exit_status for other in silent} | {start.exit_status}
            return start, len(silent), len(statuses - {""}) <= 1
        silent.append(start)
    return None, len(silent), True


def _brief(start: StartFacts, settled: timedelta) -> bool:
    newest = _newest(start)
    return start.at is not None and newest is not None and newest - start.at < settled


def _recent(lines: Iterable[Evidence], seconds: int) -> Iterable[Evidence]:
    kept = list(lines)
    stamps = [parse_time(line.excerpt[:40]) for line in kept]
    newest = max((stamp for stamp in stamps if stamp is not None), default=None)
    for line, stamp in zip(kept, stamps, strict=True):
        if newest is None or stamp is None or newest - stamp <= timedelta(seconds=seconds):
            yield line
