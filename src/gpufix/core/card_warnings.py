"""What a person must mind of the card and of the jobs on it, whatever the cause is. Pure."""

from __future__ import annotations

from gpufix.core import workload
from gpufix.core.invariants import RULES, Action, Proposal, check
from gpufix.core.situation import DOWN, Situation
from gpufix.language import t

_MOST_JOBS = 4
_JOBS = ("cuda", "unknown")
_OF_THE_CARD = {"O1": RULES["O1"], "O5": RULES["O5"]}
_READ_FOR_IT = ("node", "containers", "cluster_policy")


def card_warnings(situation: Situation) -> list[str]:
    """A line each: what lives on the card and how it would be killed; what the kernel says was done to the card."""
    return [*_of_living_jobs(situation), *_of_what_was_done(situation)]


def _of_living_jobs(situation: Situation) -> list[str]:
    """The trap of a recovery by hand: whoever only turns swap off has the kubelet back, and the card is taken.

    What would take it is asked of the order rule that a step of gpufix that starts the kubelet has to pass.
    """
    found = [one for one in situation.facts.gpu_holders.value or () if one.kind in _JOBS]
    if situation.kubelet not in DOWN or not found:
        return []
    start = Proposal("", frozenset({Action.START_KUBELET}), workload.CONTAINER)
    against = check(start, situation.facts, _OF_THE_CARD, phase="preview")
    reasons = [one.reason for one in against if one.needs in _READ_FOR_IT]
    if not reasons:
        return []
    jobs = ", ".join(f"{one.command} (pid {one.pid})" for one in found[:_MOST_JOBS])
    if len(found) > _MOST_JOBS:
        jobs = t("{names} and {n} more", names=jobs, n=len(found) - _MOST_JOBS)
    return [
        t(
            "the card is in use by {jobs}; a kubelet that comes alive now, by hand or by itself, endangers that: {why}",
            jobs=jobs,
            why="; ".join(reasons),
        )
    ]


def _of_what_was_done(situation: Situation) -> list[str]:
    """What the kernel says has been done to the card since this boot."""
    log = situation.facts.kernel_log.value or ()
    hit = situation.signatures.match("kernel", log, log, frozenset(), "gpu-taken-in-use")
    return [f"{t(hit.signature.says)} ({hit.line.source}: {hit.line.excerpt.strip()})"] if hit else []
