"""The two verdicts, always both: the node, and the VMs. Pure.

The node is well when every check holds on one fresh read; a check that could not be made keeps it from being called
well. That a node is Ready is one check among several: Ready comes before the taint goes and before the GPU is back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpufix.core.invariants import boot_sources
from gpufix.core.observations import observe
from gpufix.core.workload import CONTAINER, NO_WORKLOAD, VM_PASSTHROUGH, effective_workload
from gpufix.language import mark, t, tn
from gpufix.model import AffectedVm, Diagnosis, Evidence, Facts, Observation


class Health(StrEnum):
    WELL = "well"
    SICK = "sick"
    UNKNOWN = "unknown"


class VmHealth(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"
    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that belongs to a well node. ``holds`` None: it could not be read."""

    id: str
    holds: bool | None
    text: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """``reboot_proof`` None: it could not be shown (``reboot_text`` says why)."""

    health: Health
    checks: tuple[Check, ...]
    reboot_proof: bool | None
    reboot_text: str

    @property
    def open_checks(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.holds)


@dataclass(frozen=True, slots=True)
class VmVerdict:
    """``announced``: the VMs wait because of a choice that said so beforehand, not because the recovery failed."""

    health: VmHealth
    text: str
    waiting: tuple[AffectedVm, ...] = ()
    announced: bool = False


@dataclass(frozen=True, slots=True)
class Verdicts:
    node: NodeVerdict
    vms: VmVerdict


def judge(facts: Facts, diagnosis: Diagnosis, target: str = "") -> Verdicts:
    """Both verdicts over ``facts``. ``target`` is the workload a recovery was for; empty: what the label asks for."""
    return Verdicts(judge_node(facts, target), judge_vms(facts, diagnosis, target))


def judge_node(facts: Facts, target: str = "") -> NodeVerdict:
    mode = target or _mode(facts)
    checks = [
        _check(
            facts, "kubelet-active", "kubelet.running", lambda v: v is True,
            mark("the kubelet's unit is active"), mark("the kubelet's unit is not running"),
            mark("whether the kubelet's unit is active: {why}"),
        ),
        _check(
            facts, "node-ready", "node.ready", lambda v: v == "True",
            mark("the node is Ready"), mark("the node is not Ready"), mark("whether the node is Ready: {why}"),
        ),
        _check(
            facts, "taint-gone", "node.unreachable_taint", lambda v: v is False,
            mark("no unreachable or not-ready taint"), mark("an unreachable or not-ready taint still stands"),
            mark("whether no unreachable or not-ready taint: {why}"),
        ),
        _swap_check(facts),
        *_gpu_checks(facts, mode),
    ]  # fmt: skip
    holds = [check.holds for check in checks]
    health = Health.SICK if False in holds else Health.UNKNOWN if None in holds else Health.WELL
    proof, text = _reboot(facts)
    return NodeVerdict(health, tuple(checks), proof, text)


def _mode(facts: Facts) -> str:
    if facts.node.value is None:
        return ""
    return effective_workload(facts.node.value, facts.cluster_policy).value or ""


def _check(
    facts: Facts, id: str, name: str, good: Callable[[object], bool], well: str, sick: str, whether: str
) -> Check:
    seen = observe(name, facts)
    if not seen.known:
        return Check(id, None, t(whether, why=_why(facts, seen.unknown)), seen.evidence)
    holds = good(seen.value)
    return Check(id, holds, t(well if holds else sick), seen.evidence)


def _why(facts: Facts, reason: str) -> str:
    """The reason; where a whole side was not read that is said once, among what was not read, and not at each check."""
    if facts.host_unread and facts.host_unread in reason:
        return t("the host could not be read")
    if facts.cluster_unread and facts.cluster_unread in reason:
        return t("the cluster could not be read")
    return reason


def _swap_check(facts: Facts) -> Check:
    if facts.swap_allowed.value is True:
        return Check("swap-off", True, t("the kubelet is set to allow swap"), facts.swap_allowed.evidence)
    return _check(
        facts,
        "swap-off",
        "swap.active",
        lambda v: v is False,
        mark("swap is off"),
        mark("swap is on and the kubelet does not allow it"),
        mark("whether swap is off: {why}"),
    )


def _gpu_checks(facts: Facts, mode: str) -> list[Check]:
    node = facts.node.value
    if node is not None and not any(key.startswith("nvidia.com/") for key in (*node.labels, *node.capacity)):
        return []
    if mode in ("", NO_WORKLOAD):
        return []
    name = "gpu.passthrough_allocatable" if mode == VM_PASSTHROUGH else "gpu.container_allocatable"
    if mode not in (CONTAINER, VM_PASSTHROUGH):
        return [Check("gpu-allocatable", None, t("the GPU in {mode} mode is not judged by this version", mode=mode))]
    seen = observe(name, facts)
    if not seen.known:
        why = _why(facts, seen.unknown)
        return [Check("gpu-allocatable", None, t("whether the GPU is allocatable: {why}", why=why))]
    if node is not None and node.ready != "True":
        text = t("allocatable is frozen while the node is not Ready, so it proves nothing")
        return [Check("gpu-allocatable", False, text, seen.evidence)]
    amount = seen.value if isinstance(seen.value, int) else 0
    text = t("no GPU is allocatable in {mode} mode", mode=mode)
    if amount:
        text = t("{n} GPU allocatable in {mode} mode", n=amount, mode=mode)
    return [Check("gpu-allocatable", amount >= 1, text, seen.evidence)]


def _reboot(facts: Facts) -> tuple[bool | None, str]:
    if facts.swap_allowed.value is True:
        return True, t("the kubelet is set to allow swap")
    sources: Observation[tuple[str, ...]] = boot_sources(facts)
    if sources.value:
        return False, t("swap comes back at boot: {sources}", sources="; ".join(sources.value))
    if not sources.known:
        return None, t("whether swap comes back at boot is not known: {why}", why=_why(facts, sources.unknown))
    unit = facts.unit.value
    if unit is not None and unit.unit_file_state in ("disabled", "masked"):
        return False, t("the kubelet's unit is {state}: it does not start at boot", state=unit.unit_file_state)
    if facts.in_container.value is True:
        return None, t(
            "nothing found would bring swap back, but this host is a container, where systemd's generators skip swap"
        )
    if not facts.in_container.known:
        return None, t("nothing found would bring swap back; whether this host is a container is not known")
    return True, t("nothing brings swap back at boot")


def judge_vms(facts: Facts, diagnosis: Diagnosis, target: str = "") -> VmVerdict:
    """The VMs that want a device of this node. Waiting is announced where the choice of container mode explains it."""
    waiting = diagnosis.affected
    if not facts.vms.known and not waiting:
        return VmVerdict(VmHealth.UNKNOWN, t("the VMs could not be read: {why}", why=_why(facts, facts.vms.unknown)))
    if not waiting:
        gpu_vms = [vm for vm in facts.vms.value or () if vm.devices and vm.wanted]
        if not gpu_vms:
            return VmVerdict(VmHealth.NONE, t("no VM asks for a GPU"))
        text = tn(
            "{n} VM with a GPU, none of them waiting for this node",
            "{n} VMs with a GPU, none of them waiting for this node",
            n=len(gpu_vms),
        )
        return VmVerdict(VmHealth.RUNNING, text)
    names = ", ".join(f"{vm.namespace}/{vm.name}" for vm in waiting)
    mode = target or _mode(facts)
    if mode == CONTAINER:
        wanted = ", ".join(sorted({name for vm in waiting for name in vm.resources}))
        text = tn(
            "{vms} stays unschedulable: {resources} is offered in vm-passthrough mode only",
            "{vms} stay unschedulable: {resources} is offered in vm-passthrough mode only",
            n=len(waiting),
            vms=names,
            resources=wanted,
        )
        return VmVerdict(VmHealth.WAITING, text, waiting, announced=bool(target))
    text = t("{vms} cannot run yet: {reason}", vms=names, reason=waiting[0].reason)
    return VmVerdict(VmHealth.WAITING, text, waiting)


def verdicts_as_data(verdicts: Verdicts) -> Mapping[str, object]:
    """``verdicts.node`` and ``verdicts.vms`` of the JSON output."""
    node, vms = verdicts.node, verdicts.vms
    return {
        "node": {
            "status": str(node.health),
            "checks": [
                {
                    "id": check.id,
                    "holds": check.holds,
                    "text": check.text,
                    "evidence": [{"source": e.source, "excerpt": e.excerpt} for e in check.evidence],
                }
                for check in node.checks
            ],
            "reboot_proof": node.reboot_proof,
            "reboot_text": node.reboot_text,
        },
        "vms": {
            "status": str(vms.health),
            "text": vms.text,
            "announced": vms.announced,
            "waiting": [f"{vm.namespace}/{vm.name}" for vm in vms.waiting],
        },
    }
