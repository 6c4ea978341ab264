"""What a person must mind of the card and of the jobs on it, whatever the cause is. Pure."""

from __future__ import annotations

from gpufix.core import workload
from gpufix.core.situation import DOWN, Situation
from gpufix.language import mark, t

_MOST_JOBS = 4
_JOBS = ("cuda", "unknown")


def card_warnings(situation: Situation) -> list[str]:
    """A line each: what lives on the card and how it would be killed; what the kernel says was done to the card."""
    return [*_of_living_jobs(situation), *_of_what_was_done(situation)]


def _of_living_jobs(situation: Situation) -> list[str]:
    """The trap of a recovery by hand: whoever only turns swap off has the kubelet back, and the card is taken.

    Nothing where the mode is one in which the operator leaves the card alone.
    """
    if situation.kubelet not in DOWN:
        return []
    found = [one for one in situation.facts.gpu_holders.value or () if one.kind in _JOBS]
    if not found:
        return []
    jobs = ", ".join(f"{one.command} (pid {one.pid})" for one in found[:_MOST_JOBS])
    if len(found) > _MOST_JOBS:
        jobs = t("{names} and {n} more", names=jobs, n=len(found) - _MOST_JOBS)
    mode, why = _mode(situation)
    if mode is None:
        told = mark(
            "the card is in use by {jobs}, and which mode the node is in is not known ({why}): a kubelet that comes "
            "alive, by hand or by itself, may let the GPU Operator take it away"
        )
        return [t(told, jobs=jobs, why=why)]
    if mode != workload.VM_PASSTHROUGH:
        return []
    told = mark(
        "the card is in use by {jobs}, and the node is in vm-passthrough mode ({label}): a kubelet that comes alive "
        "lets the GPU Operator take it away. A crash-looping one comes alive by itself as soon as what stops it is "
        "gone. Relabel to container first, as gpufix recover does"
    )
    return [t(told, jobs=jobs, label=workload.WORKLOAD_LABEL)]


def _mode(situation: Situation) -> tuple[str | None, str]:
    """The workload that the operator would serve on the node; None, and why, where that cannot be told."""
    if situation.node is None:
        return None, situation.facts.node.unknown
    found = workload.effective_workload(situation.node, situation.facts.cluster_policy)
    return found.value, found.unknown


def _of_what_was_done(situation: Situation) -> list[str]:
    """What the kernel says has been done to the card since this boot."""
    log = situation.facts.kernel_log.value or ()
    hit = situation.signatures.match("kernel", log, log, frozenset(), "gpu-taken-in-use")
    return [f"{t(hit.signature.says)} ({hit.line.source}: {hit.line.excerpt.strip()})"] if hit else []
