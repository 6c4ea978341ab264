"""The order rules O1 to O5, as predicates over what was just read. Pure.

Each rule looks at one proposed step and at fresh facts, and says what stands against it. A rule judges what is known;
what is not known, and is needed, is O5's alone. All are checked before the gate (``preview``) and once more right
before the step acts (``act``), where the recorded consent counts too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from gpufix.core import workload
from gpufix.language import mark, t
from gpufix.model import Evidence, Facts, HostContainer, Observation

Phase = Literal["preview", "act"]
SWAPOFF_SHARE = 0.9
"""Of MemAvailable: the most that swapped-out memory may take when it comes back."""


class Action(StrEnum):
    """What a step does that an order rule cares about."""

    RELABEL = "relabel"
    STOP_VFIO_MANAGER = "stop-vfio-manager"
    REMOVE_OBSTACLE = "remove-obstacle"
    """Holds the kubelet's unit, turns swap off, edits fstab: after it a crash-looping kubelet can live."""
    START_KUBELET = "start-kubelet"
    RESTORE_SWAP = "restore-swap"
    """Puts swap back, now and at boot. Touches neither the kubelet nor the card."""


@dataclass(frozen=True, slots=True)
class Consent:
    """What the operator agreed to. ``gpu_holders``: the process ids the gate showed; None when it showed no list."""

    step: str
    target_workload: str
    gpu_holders: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A step about to be previewed or done."""

    step: str
    actions: frozenset[Action]
    target_workload: str
    consent: Consent | None = None
    undo_captured: bool = False
    irreversible_declared: bool = False


@dataclass(frozen=True, slots=True)
class Violation:
    """What stands against a step: one line, what to do about it, and the observation it hangs on."""

    rule: str
    reason: str
    hint: str
    needs: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule in words, for people: ``forbids`` what, ``why``, and the actions that it is about."""

    id: str
    forbids: str
    why: str
    actions: frozenset[Action] = frozenset(Action)


RULE_TEXTS: tuple[RuleText, ...] = (
    RuleText(
        "O1",
        mark(
            "starting the kubelet, or taking away what stops it, while its node's labels or a running vfio-manager "
            "container would take the GPU from its driver"
        ),
        mark("the CUDA jobs on the card die"),
        frozenset({Action.RELABEL, Action.STOP_VFIO_MANAGER, Action.REMOVE_OBSTACLE, Action.START_KUBELET}),
    ),
    RuleText(
        "O2",
        mark(
            "starting the kubelet while swap is on or would come back at boot, unless the kubelet is set to allow swap"
        ),
        mark("it would be refused, now or at the next boot"),
        frozenset({Action.START_KUBELET}),
    ),
    RuleText(
        "O3",
        mark(
            "swapoff when what is swapped out does not fit into 90 % of the available memory (with "
            "vm.overcommit_memory=2: when the commit limit would be passed)"
        ),
        mark("the machine runs out of memory"),
        frozenset({Action.REMOVE_OBSTACLE}),
    ),
    RuleText(
        "O4",
        mark("any change without a recorded consent, or without its undo captured or its lack declared at the gate"),
        mark("nobody agreed, or there is no way back"),
    ),
    RuleText("O5", mark("any step that needs something which could not be read"), mark("unknown is not safe")),
)
"""In the order of ``RULES``, in English. docs/order-rules.md and the printed runbook say these words."""

Rule = Callable[[Proposal, Facts, Phase], list[Violation]]
_Judge = Callable[[Proposal, Facts, Phase], Iterator[Violation]]

_NEEDED: Mapping[Action, tuple[str, ...]] = {
    Action.RELABEL: ("node",),
    Action.STOP_VFIO_MANAGER: ("node", "containers"),
    Action.REMOVE_OBSTACLE: ("node", "unit", "containers", "swaps", "fstab_swap"),
    Action.START_KUBELET: ("node", "unit", "containers"),
    Action.RESTORE_SWAP: ("node", "unit", "swaps", "fstab_swap"),
}
"""Observations without which the action is blocked in any case. The rules ask for more where it depends."""

_REVIVES = frozenset({Action.START_KUBELET, Action.REMOVE_OBSTACLE})
_READ_AGAIN = mark("Make it readable and run again; what is unknown is never taken for safe.")
_SWAP_REFUSED = re.compile(r"(?i)running with swap on is not supported")
"""kubernetes/kubernetes, pkg/kubelet/cm/container_manager_linux.go; the words around it differ by version."""


def check(
    proposal: Proposal, facts: Facts, rules: Mapping[str, Rule] | None = None, *, phase: Phase = "act"
) -> tuple[Violation, ...]:
    """Everything that stands against ``proposal``, in the order of the rules; empty when it may go on."""
    found: dict[Violation, None] = {}
    for rule in (RULES if rules is None else rules).values():
        found.update(dict.fromkeys(rule(proposal, facts, phase)))
    return tuple(found)


# --- helpers that previews and verdicts share ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SwapoffArithmetic:
    """Whether what is swapped out fits back into memory; sizes in KiB, ``text`` is the sum on one line."""

    used_kib: int
    available_kib: int | None
    fits: bool
    text: str


def memory_arithmetic(facts: Facts) -> Observation[SwapoffArithmetic]:
    """``sum(Used) <= 90 % of MemAvailable``; with overcommit_memory=2 also ``CommitLimit - SwapTotal >= Committed_AS``.

    In that mode the kernel counts the whole area against the commit limit, not what is used of it: mm/swapfile.c,
    ``swapoff`` and ``__vm_enough_memory``.
    """
    if facts.swaps.value is None:
        return Observation.missing(f"swaps: {facts.swaps.unknown}")
    used = sum(device.used_kib for device in facts.swaps.value)
    if not facts.swaps.value:
        return Observation.of(SwapoffArithmetic(0, None, True, t("no swap device is active")), *facts.swaps.evidence)
    if facts.memory.value is None:
        return Observation.missing(f"memory: {facts.memory.unknown}")
    if facts.overcommit.value is None:
        return Observation.missing(f"overcommit: {facts.overcommit.unknown}")
    memory = facts.memory.value
    if memory.available_kib is None:
        return Observation.missing("memory: " + t("/proc/meminfo has no MemAvailable"))
    fits = used <= SWAPOFF_SHARE * memory.available_kib
    text = t(
        "used {used} {sign} {share} % of {available} available",
        used=_size(used),
        sign="<=" if fits else ">",
        share=f"{SWAPOFF_SHARE * 100:.0f}",
        available=_size(memory.available_kib),
    )
    if facts.overcommit.value == 2:
        if memory.commit_limit_kib is None or memory.swap_total_kib is None or memory.committed_kib is None:
            return Observation.missing("memory: " + t("/proc/meminfo lacks CommitLimit, SwapTotal or Committed_AS"))
        left = memory.commit_limit_kib - memory.swap_total_kib
        sign = ">=" if left >= memory.committed_kib else "<"
        text = t(
            "{sum}; commit limit without swap {left} {sign} {committed} committed",
            sum=text,
            left=_size(left),
            sign=sign,
            committed=_size(memory.committed_kib),
        )
        fits = fits and left >= memory.committed_kib
    evidence = facts.swaps.evidence + facts.memory.evidence + facts.overcommit.evidence
    return Observation.of(SwapoffArithmetic(used, memory.available_kib, fits, text), *evidence)


def boot_sources(facts: Facts) -> Observation[tuple[str, ...]]:
    """Plain names of what would bring swap back at boot.

    Unknown when one place could not be read or judged; ``value`` then still names the sources that were found.
    A ``noauto`` line of fstab is no source (systemd.swap(5)).
    """
    sources: list[str] = []
    unknown = [f"{name}: {reason}" for name, reason in _unjudged_sources(facts)]
    for line in facts.fstab_swap.value or ():
        fields = line.text.split()
        if len(fields) > 3 and "noauto" in fields[3].split(","):
            continue
        sources.append(f"fstab:{line.number} {' '.join(fields)}")
    for unit in facts.swap_units.value or ():
        if unit.returns_at_boot:
            state = unit.unit_file_state or t("no unit file")
            sources.append(t("{unit} ({origin} unit, {state})", unit=unit.name, origin=unit.origin, state=state))
    sources += [t("{service} (enabled service)", service=service) for service in facts.swap_services.value or ()]
    evidence = facts.fstab_swap.evidence + facts.swap_units.evidence + facts.swap_services.evidence
    return Observation(tuple(sources), evidence, "; ".join(unknown))


def _unjudged_sources(facts: Facts) -> Iterator[tuple[str, str]]:
    for name in ("fstab_swap", "swap_units", "swap_services"):
        place: Observation[Any] = getattr(facts, name)
        if not place.known:
            yield name, place.unknown
    for unit in facts.swap_units.value or ():
        if unit.returns_at_boot is None:
            what = unit.what or t("no device named")
            yield "swap_units", t("cannot tell whether {unit} ({what}) returns at boot", unit=unit.name, what=what)


def _size(kib: int) -> str:
    for unit, factor in (("GiB", 1024 * 1024), ("MiB", 1024)):
        if abs(kib) >= factor:
            return f"{kib / factor:.1f} {unit}"
    return f"{kib} KiB"


# --- O1: the card ----------------------------------------------------------------------------------------------------


def _judge_card(proposal: Proposal, facts: Facts, phase: Phase) -> Iterator[Violation]:
    actions = proposal.actions
    towards_container = proposal.target_workload == workload.CONTAINER
    if towards_container and actions & (_REVIVES | {Action.STOP_VFIO_MANAGER}):
        yield from _no_bind_ahead(facts)
    if actions - {Action.RESTORE_SWAP} and not towards_container:
        why = t("{workload} takes the card from its users", workload=proposal.target_workload)
        yield from _holders_agreed(proposal, facts, phase, why)
    if actions & _REVIVES:
        yield from _no_unbind_at_start(proposal, facts)
    if Action.RELABEL in actions and towards_container:
        yield from _no_unbind_by_relabel(facts)


def _no_bind_ahead(facts: Facts) -> Iterator[Violation]:
    """Nothing makes vfio-manager start, now or when an operator comes back, once a kubelet lives here."""
    node = facts.node.value
    if node is None:
        return
    relabel = t("Do the step relabel first: {label}.", label=f"{workload.WORKLOAD_LABEL}={workload.CONTAINER}")
    effective = workload.effective_workload(node, facts.cluster_policy)
    if workload.raw_workload(node) == workload.VM_PASSTHROUGH:
        reason = t(
            "the label {label} still says {workload}: the GPU would be bound to vfio-pci and host GPU jobs would die",
            label=workload.WORKLOAD_LABEL,
            workload=workload.VM_PASSTHROUGH,
        )
        yield Violation("O1", reason, relabel, "node", facts.node.evidence)
    elif effective.value is None:
        yield _unknown("cluster_policy", effective.unknown, relabel)
    elif effective.value not in (workload.CONTAINER, workload.NO_WORKLOAD):
        asked = workload.raw_workload(node) == effective.value
        words = mark("the GPU Operator defaults to {workload} on this node, which takes the GPU from host jobs")
        if asked:
            words = mark("the label asks for {workload} on this node, which takes the GPU from host jobs")
        reason = t(words, workload=effective.value)
        yield Violation("O1", reason, relabel, "node", facts.node.evidence + effective.evidence)
    standing = workload.vfio_manager_label(node)
    if standing is not None:
        label = f"{workload.VFIO_MANAGER_LABEL}={standing}"
        reason = t("the label {label} stands: a living kubelet would run vfio-manager", label=label)
        command = f"kubectl label node {node.name} {workload.VFIO_MANAGER_LABEL}-"
        hint = t("Wait until the GPU Operator takes it off; where none runs: {command}", command=command)
        yield Violation("O1", reason, hint, "node", facts.node.evidence)


def _no_unbind_at_start(proposal: Proposal, facts: Facts) -> Iterator[Violation]:
    """No vfio-manager container that a starting kubelet would stop, and so run its preStop ``unbind --all``.

    Measured with the label taken off before the start: kubelet 1.20.2 runs the preStop, 1.34.4 does not. A start with
    vm-passthrough kept leaves the container alone.
    """
    running, unsure = _vfio_managers(facts)
    if unsure is not None:
        yield unsure
    if not running:
        return
    reason = t(
        "a vfio-manager container still runs here: a starting kubelet may run its preStop, which unbinds the GPU"
    )
    node = facts.node.value
    if proposal.target_workload == workload.VM_PASSTHROUGH and node is not None:
        stays = workload.effective_workload(node, facts.cluster_policy).value == workload.VM_PASSTHROUGH
        if stays and workload.vfio_manager_label(node) == "true":
            if facts.pods.value is None:
                yield _unknown("pods", facts.pods.unknown)
                return
            kept = {pod.name for pod in facts.pods.value if pod.node == node.name and not pod.deleting}
            if all(container.pod in kept for container in running):
                return
            reason = t("a vfio-manager container runs whose pod is deleted: a starting kubelet runs its preStop")
    hint = t("Do the step stop-vfio-manager first.")
    yield Violation("O1", reason, hint, "containers", facts.containers.evidence)


def _no_unbind_by_relabel(facts: Facts) -> Iterator[Violation]:
    """A living kubelet stops vfio-manager as soon as its label goes, and runs the preStop (measured: always)."""
    if facts.node.value is None or workload.vfio_manager_label(facts.node.value) is None:
        return
    running, unsure = _vfio_managers(facts)
    if not facts.containers.known:
        yield _unknown("containers", facts.containers.unknown)
    if unsure is not None:
        yield unsure
    if not running:
        return
    if not facts.unit.known:
        yield _unknown("unit", facts.unit.unknown)
    elif _kubelet_may_act(facts):
        holders = facts.gpu_holders
        if holders.value is None:
            yield _unknown("gpu_holders", holders.unknown)
        elif holders.value:
            names = ", ".join(f"{holder.pid} ({holder.command})" for holder in holders.value)
            reason = t(
                "the kubelet lives, or may any moment: it would run vfio-manager's preStop, which unbinds the GPU "
                "from {processes}",
                processes=names,
            )
            hint = t("Hold the kubelet first (systemctl stop kubelet on the node), then run this again.")
            yield Violation("O1", reason, hint, "gpu_holders", holders.evidence)


def _vfio_managers(facts: Facts) -> tuple[tuple[HostContainer, ...], Violation | None]:
    """Those that run, and what keeps us from being sure that there are no more."""
    found = [container for container in facts.containers.value or () if container.is_vfio_manager]
    unsure = next((container for container in found if container.running is None), None)
    running = tuple(container for container in found if container.running)
    if unsure is None:
        return running, None
    words = mark("cannot tell whether {container} of {pod} runs")
    return running, _unknown("containers", t(words, container=unsure.container, pod=unsure.pod))


def _kubelet_may_act(facts: Facts) -> bool:
    """False only when the kubelet surely stays dead: its unit is down, or swap stands in the way of every start.

    A crash-looping unit reads ``active`` for a moment after each start, so the node's Ready=Unknown and the restart
    count tell it from a kubelet that was alive before swap came on.
    """
    unit = facts.unit.value
    if unit is None:
        return True
    if unit.active_state in ("inactive", "failed"):
        return False
    starts = facts.journal.value.starts if facts.journal.value else ()
    last = next((start.fatal for start in reversed(starts) if start.fatal is not None), None)
    refuses = facts.swap_allowed.value is False or (last is not None and bool(_SWAP_REFUSED.search(last.excerpt)))
    if not facts.swaps.value or not refuses or facts.swap_allowed.value is True:
        return True
    if unit.will_start_by_itself:
        return False
    return facts.node.value is None or facts.node.value.ready != "Unknown" or unit.restarts == 0


def _holders_agreed(proposal: Proposal, facts: Facts, phase: Phase, why: str) -> Iterator[Violation]:
    """Every process on the card is known, and the operator agreed that it dies. The list may shrink, never grow."""
    holders = facts.gpu_holders
    if holders.value is None:
        reason = t("{why}, and who they are is not known: {reason}", why=why, reason=holders.unknown)
        yield _unknown("gpu_holders", reason)
        return
    for holder in holders.value:
        if holder.kind not in ("cuda", "display", "daemon", "vm"):
            process = f"{holder.pid} ({holder.command})"
            yield _unknown("gpu_holders", t("cannot tell why {process} uses the GPU", process=process))
    if phase == "preview":
        return
    consent = proposal.consent
    agreed = consent.gpu_holders if consent is not None and _matches(consent, proposal) else None
    extra = [holder for holder in holders.value if holder.pid not in (agreed or ())]
    if agreed is None or extra:
        names = ", ".join(f"{holder.pid} ({holder.command})" for holder in extra) or t("none at the moment")
        words = mark("{why}; GPU processes nobody agreed to: {processes}")
        if agreed is None:
            words = mark("{why}; nobody agreed to the list of GPU processes: {processes}")
        hint = t("Go through the gate again: it shows who uses the GPU now.")
        yield Violation("O1", t(words, why=why, processes=names), hint, "gpu_holders", holders.evidence)


# --- O2, O3: swap ----------------------------------------------------------------------------------------------------


def _judge_start(proposal: Proposal, facts: Facts, phase: Phase) -> Iterator[Violation]:
    if Action.START_KUBELET not in proposal.actions or facts.swap_allowed.value is True:
        return
    disable = t("Do the step disable-swap first.")
    if facts.swaps.value is None:
        yield _unknown("swaps", facts.swaps.unknown)
    elif facts.swaps.value:
        paths = ", ".join(device.path for device in facts.swaps.value)
        words = mark("swap is on ({devices}): the kubelet would refuse to start")
        if not facts.swap_allowed.known:
            words = mark(
                "swap is on ({devices}): the kubelet would refuse to start "
                "(whether it is set to allow swap is unknown: {reason})"
            )
        reason = t(words, devices=paths, reason=facts.swap_allowed.unknown)
        yield Violation("O2", reason, disable, "swaps", facts.swaps.evidence)
    sources = boot_sources(facts)
    if sources.value:
        listed = "; ".join(sources.value)
        reason = t("swap would come back at boot, and the kubelet die again: {sources}", sources=listed)
        needs = "fstab_swap" if sources.value[0].startswith("fstab:") else "swap_units"
        yield Violation("O2", reason, disable, needs, sources.evidence)
    for name, reason in _unjudged_sources(facts):
        yield _unknown(name, reason)


def _judge_swapoff(proposal: Proposal, facts: Facts, phase: Phase) -> Iterator[Violation]:
    if Action.REMOVE_OBSTACLE not in proposal.actions or not facts.swaps.value:
        return
    sums = memory_arithmetic(facts)
    if sums.value is None:
        name, _, reason = sums.unknown.partition(": ")
        yield _unknown(name, t("{reason}; swapped-out memory may not fit back into RAM", reason=reason))
    elif not sums.value.fits:
        hint = t("Free memory on the node first (stop what uses most of it), then run again.")
        reason = t("swap cannot be turned off safely: {sum}", sum=sums.value.text)
        yield Violation("O3", reason, hint, "memory", sums.evidence)


# --- O4: consent and undo --------------------------------------------------------------------------------------------


def _matches(consent: Consent, proposal: Proposal) -> bool:
    return consent.step == proposal.step and consent.target_workload == proposal.target_workload


def _judge_consent(proposal: Proposal, facts: Facts, phase: Phase) -> Iterator[Violation]:
    if phase == "preview":
        return
    gate = t("Go through the gate of this step.")
    consent = proposal.consent
    if consent is None:
        yield Violation("O4", t("nobody has agreed to the step {step}", step=proposal.step), gate, "consent")
    elif not _matches(consent, proposal):
        reason = t(
            "the recorded consent is for {given} towards {given_for}, not for {step} towards {wanted_for}",
            given=consent.step,
            given_for=consent.target_workload,
            step=proposal.step,
            wanted_for=proposal.target_workload,
        )
        yield Violation("O4", reason, gate, "consent")
    if not proposal.undo_captured and not proposal.irreversible_declared:
        reason = t(
            "the step {step} has no undo captured, and its gate did not say that it cannot be undone",
            step=proposal.step,
        )
        yield Violation("O4", reason, t("Capture the undo before the step, or declare it irreversible."), "undo")


# --- O5: the unknown -------------------------------------------------------------------------------------------------


def _unknown(name: str, reason: str, hint: str = "") -> Violation:
    return Violation("O5", t("{name} is unknown: {reason}", name=name, reason=reason), hint or t(_READ_AGAIN), name)


def _judge_needed(proposal: Proposal, facts: Facts, phase: Phase) -> Iterator[Violation]:
    names = dict.fromkeys(name for action in sorted(proposal.actions) for name in _NEEDED[action])
    for name in names:
        observation: Observation[Any] = getattr(facts, name)
        if not observation.known:
            yield _unknown(name, observation.unknown)


def _rule(name: str, *judges: _Judge) -> Rule:
    def rule(proposal: Proposal, facts: Facts, phase: Phase = "act") -> list[Violation]:
        return [found for judge in judges for found in judge(proposal, facts, phase) if found.rule == name]

    return rule


RULES: Mapping[str, Rule] = {
    "O1": _rule("O1", _judge_card),
    "O2": _rule("O2", _judge_start),
    "O3": _rule("O3", _judge_swapoff),
    "O4": _rule("O4", _judge_consent),
    "O5": _rule("O5", _judge_needed, _judge_card, _judge_start, _judge_swapoff),
}
