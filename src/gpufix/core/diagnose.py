"""Facts -> Diagnosis: the root cause, the chain of links with their evidence, and whom it hits. Pure.

The truth first: what was not read is unknown, never fine, and nothing is confirmed without the lines that show it.
"""

from __future__ import annotations

from gpufix.core.card_warnings import card_warnings
from gpufix.core.chain import build_chain, judge_swap, put_aside
from gpufix.core.evidence import condition_of, cordon_of, ready_of, taints_of, unit_lines
from gpufix.core.findings import Candidate, candidate, unknown
from gpufix.core.gpu_causes import gpu_cause
from gpufix.core.gpu_stack import StackState, effective_mode, judge_stack, plugin_pods
from gpufix.core.host_causes import why_unread
from gpufix.core.kubelet_causes import swap_warnings, unit_warnings, why_down, why_not_ready
from gpufix.core.placement import holders, offer
from gpufix.core.signatures import Signatures, load_signatures
from gpufix.core.situation import Kubelet, Situation, assess
from gpufix.core.vms import VmState, judge_vms
from gpufix.language import t
from gpufix.model import AffectedVm, Diagnosis, Facts, NodeFacts, Status

__all__ = ["Signatures", "diagnose", "load_signatures"]

_GPU_OF_VMS = frozenset({"iommu-group-shared", "gpu-fell-off-bus", "resource-name-mismatch"})
"""Causes that also hit VMs whose pod is already on the node."""

_FILES = {
    "node": "cluster/nodes.json",
    "pods": "cluster/pods.json",
    "vms": "cluster/virtualmachines.json",
    "cluster_policy": "cluster/clusterpolicy.json",
    "kubevirt": "cluster/kubevirt.json",
    "unit": "host/kubelet.show",
    "journal": "host/kubelet.journal",
    "swap_allowed": "host/kubelet_config",
    "swaps": "host/proc_swaps",
    "containers": "host/containers",
    "gpus": "host/pci_drivers",
    "gpu_holders": "host/gpu_holders",
}


def diagnose(facts: Facts, signatures: Signatures) -> Diagnosis:
    """The diagnosis of the node that ``facts`` are about."""
    situation = assess(facts, signatures)
    vms = judge_vms(facts, node_serves=situation.serves)
    stack = judge_stack(facts, serves=situation.serves, wanted=vms.wanted_resources)
    found = _root_cause(situation, vms, stack)
    root = found.finding
    affected = _affected(situation, vms, root.id)
    node = facts.node.value
    return Diagnosis(
        node=facts.node_name,
        as_of=facts.as_of,
        root_cause=root,
        chain=build_chain(situation, root, stack, vms, affected),
        alternatives=put_aside(situation, root),
        affected=affected,
        down_since=node.ready_since if node is not None and node.ready != "True" else None,
        unread=_unread(facts),
        warnings=tuple(dict.fromkeys([*found.warnings, *_warnings(situation, vms, affected, root.id)])),
    )


def _root_cause(situation: Situation, vms: VmState, stack: StackState) -> Candidate:
    found = why_down(situation) or why_unread(situation) or why_not_ready(situation)
    if found is not None:
        return found
    node = situation.node
    if node is None:
        why = t("the node was not read: {reason}", reason=situation.facts.node.unknown)
        return unknown(why, *unit_lines(situation.facts))
    ready = ready_of(node)
    if not situation.ready:
        state = node.ready or t("no condition")
        why = t("the node is not Ready ({state}), and the kubelet's state was not read", state=state)
        return unknown(why, ready)
    if situation.lifecycle_taints:
        taints = taints_of(node, *situation.lifecycle_taints)
        summary = t("the node is coming back: Ready, while a taint of its absence still stands; not settled yet")
        return candidate("healthy", Status.SUSPECTED, summary, ready, *taints, *unit_lines(situation.facts))
    return _of_a_node_that_serves(situation, node, vms, stack)


def _of_a_node_that_serves(situation: Situation, node: NodeFacts, vms: VmState, stack: StackState) -> Candidate:
    gpu = gpu_cause(situation, vms)
    if gpu is not None and gpu.finding.status is Status.CONFIRMED:
        return gpu
    if node.conditions.get("DiskPressure") == "True":
        pressure = condition_of(node, "DiskPressure")
        return candidate("disk-full", Status.SUSPECTED, t("the node is Ready and under disk pressure"), pressure)
    if node.unschedulable:
        return candidate(
            "node-cordoned", Status.CONFIRMED, t("the node is Ready, and cordoned"), cordon_of(node), ready_of(node)
        )
    if gpu is not None:
        return gpu
    if situation.kubelet is Kubelet.STARTING:
        why = t("the node says Ready, but the kubelet has just been started again")
        return unknown(why, *unit_lines(situation.facts))
    held = _waits_for_pending(situation, node, vms)
    unexplained = [vm for vm in vms.waiting if vm.name not in held]
    if unexplained:
        vm = unexplained[0]
        summary = t("the node is Ready, and why {vm} waits is not known: {reason}", vm=vm.name, reason=vm.reason)
        return unknown(summary, ready_of(node), *vm.evidence)
    if stack.status is Status.CONFIRMED:
        why = t("the node is Ready, but {detail}; why is not known", detail=stack.detail)
        return unknown(why, ready_of(node), *stack.evidence)
    return _healthy(situation, node, vms, stack, held)


def _waits_for_pending(situation: Situation, node: NodeFacts, vms: VmState) -> dict[str, str]:
    """Waiting VM -> the pod that is bound to the node and will take what it waits for, though it does not run yet."""
    found: dict[str, str] = {}
    for vm in vms.waiting:
        for name, wanted in vm.resources.items():
            bound = holders(situation.facts, node.name, name)
            free = (offer(node, name) or 0) - sum(pod.requests[name] for pod in bound)
            if bound and free < wanted:
                found[vm.name] = t(
                    "{pod} ({phase}) is bound to the node and holds {resource}",
                    pod=bound[0].name,
                    phase=bound[0].phase,
                    resource=name,
                )
    return found


def _healthy(situation: Situation, node: NodeFacts, vms: VmState, stack: StackState, held: dict[str, str]) -> Candidate:
    """Healthy, and confirmed only where all of the node's own health was read: unit, Ready, swap, the GPU it offers.

    What is amiss with a single VM or operand pod, while the node offers its GPU, is said beside it and changes nothing.
    """
    facts = situation.facts
    swap, _, swap_evidence = judge_swap(situation)
    doubts: list[str] = []
    if situation.kubelet is not Kubelet.RUNNING or not facts.unit.known:
        why = facts.unit.unknown or t("its state is unclear")
        doubts.append(t("the kubelet's unit was not seen running ({reason})", reason=why))
    if swap is not Status.REFUTED:
        doubts.append(t("swap is not ruled out"))
    if stack.status is not Status.REFUTED:
        doubts.append(stack.detail)
    if situation.stale:
        doubts.append(t("the node's last report is older than a living kubelet lets it become"))
    if not vms.known:
        doubts.append(t("VMs were not all read ({reason})", reason=vms.unknown))
    plugins = plugin_pods(facts, effective_mode(facts))
    beside = [t("{vm} waits: {reason}", vm=vm, reason=why) for vm, why in held.items()]
    for vm in vms.stuck:
        says = t("{vm} does not run: {reason}", vm=vm.name, reason=vm.reason)
        (beside if _not_begun(vm, vms) else doubts).append(says)
    beside += [t("{pod} is not Ready", pod=pod.name) for pod in plugins if pod.ready != "True"]
    if _other_boot(situation):
        doubts.append(t("the host's boot id is not the node's"))
    evidence = (ready_of(node), *unit_lines(facts), *swap_evidence, *stack.evidence)
    if doubts:
        summary = t("the node is well as far as can be told; {doubts}", doubts="; ".join(doubts + beside))
        return candidate("healthy", Status.SUSPECTED, summary, *evidence)
    summary = t("kubelet and node are well, {detail}, and no VM waits", detail=stack.detail)
    if beside:
        summary = t("kubelet and node are well, {detail}; {beside}", detail=stack.detail, beside="; ".join(beside))
    return candidate("healthy", Status.CONFIRMED, summary, *evidence)


def _not_begun(vm: AffectedVm, vms: VmState) -> bool:
    """The VM's pod is on the node and its containers have not started: nothing has touched the card for it yet."""
    return any(
        demand.launcher is not None and demand.launcher.phase == "Pending"
        for demand in vms.demands
        if (demand.namespace, demand.name) == (vm.namespace, vm.name)
    )


def _other_boot(situation: Situation) -> bool:
    node, boot = situation.node, situation.facts.boot_id.value
    return bool(boot and node is not None and node.boot_id and node.boot_id.lower() != boot)


def _affected(situation: Situation, vms: VmState, root: str) -> tuple[AffectedVm, ...]:
    """The VMs that cannot run because of this node: those that wait, and those on it where it or its card is why."""
    if situation.serves and root not in _GPU_OF_VMS:
        return vms.waiting
    return (*vms.waiting, *vms.stuck)


def _unread(facts: Facts) -> dict[str, str]:
    """What the diagnosis would have looked at and could not: the file, and why."""
    found: dict[str, str] = {}
    if facts.host_unread:
        found["host"] = facts.host_unread
    if facts.cluster_unread:
        found["cluster"] = facts.cluster_unread
    for name, path in _FILES.items():
        observation = getattr(facts, name)
        if not observation.known and path.split("/")[0] not in found:
            found[path] = observation.unknown
    return found


def _warnings(situation: Situation, vms: VmState, affected: tuple[AffectedVm, ...], root: str) -> list[str]:
    node = situation.node
    found = [*card_warnings(situation), *swap_warnings(situation, root), *unit_warnings(situation)]
    if node is None:
        return found
    if node.unschedulable and root != "node-cordoned":
        found.append(t("the node is cordoned too: nothing new is placed on it until it is uncordoned"))
    if situation.ready and _other_boot(situation):
        found.append(t("the host's boot id is not the one the node reports: is it the same machine?"))
    elif _other_boot(situation):
        found.append(t("the host has been rebooted since the node last reported"))
    paused = [f"{key}={value}" for key, value in node.labels.items() if value.startswith("paused-for-")]
    if paused:
        found.append(t("{label} keeps that operand off until the label is mended", label=paused[0]))
    stuck = [vm for vm in vms.stuck if vm not in affected]
    found += [t("{vm} does not run: {reason}", vm=vm.name, reason=vm.reason) for vm in stuck]
    return found
