"""Why VMs cannot have the GPU of a node that is well: names, labels, operands, or another VM. Pure.

Each judge answers only from what was read; the first that is sure wins, else the first suspicion.
"""

from __future__ import annotations

from collections.abc import Callable

from gpufix.core import hardware_causes, workload
from gpufix.core.evidence import (
    VMS,
    allocatable_of,
    containers_of,
    failure_of,
    instance_of,
    label_of,
    phase_of,
    pod_ready_of,
    vm_of,
)
from gpufix.core.findings import Candidate, candidate
from gpufix.core.gpu_case import Case, fails, on_node, waiting_evidence
from gpufix.core.gpu_stack import effective_mode, plugin_pods, pods_named
from gpufix.core.parse.jsonraw import cut_member
from gpufix.core.parse.pods import quantity
from gpufix.core.placement import holders
from gpufix.core.situation import Situation
from gpufix.core.vms import VmState
from gpufix.language import t, tn
from gpufix.model import AffectedVm, Evidence, Status, VmFacts


def gpu_cause(situation: Situation, vms: VmState) -> Candidate | None:
    """The cause that keeps the GPU from VMs or pods on a node that serves; None when none shows."""
    if situation.node is None:
        return None
    case = Case(situation, situation.node, vms, effective_mode(situation.facts))
    found = [answer for judge in _JUDGES if (answer := judge(case)) is not None]
    sure = [answer for answer in found if answer.finding.status is Status.CONFIRMED]
    return next(iter(sure or found), None)


def _not_permitted(case: Case) -> Candidate | None:
    """KubeVirt makes no instance for a device that it does not permit. Where it permits nothing, it checks nothing."""
    kubevirt = case.situation.facts.kubevirt
    if kubevirt.value is None or kubevirt.value.permitted is None:
        return None
    permitted = kubevirt.value.permitted
    waiting = {(vm.namespace, vm.name) for vm in case.vms.waiting}
    for demand in case.vms.demands:
        wrong = sorted(name for name in demand.resources if name not in permitted)
        if not wrong or demand.vm is None or demand.launcher is not None:
            continue
        if (demand.namespace, demand.name) not in waiting:
            continue
        said = [failure_of(demand.vm)] if demand.vm.failure else []
        said += [instance_of(demand.vm)] if demand.vm.vmi_message else []
        hit = case.situation.signatures.match("vm", said, (), frozenset(), "resource-name-mismatch")
        near = next((name for name in permitted if name.casefold() == wrong[0].casefold()), "")
        summary = t(
            "{vm} asks for {resource}, which KubeVirt does not permit; it permits {permitted}",
            vm=demand.name,
            resource=wrong[0],
            permitted=near or ", ".join(sorted(permitted)) or t("nothing"),
        )
        evidence = (*(hit.evidence if hit else ()), _devices_of(demand.vm), *kubevirt.evidence)
        return candidate("resource-name-mismatch", Status.CONFIRMED if hit else Status.SUSPECTED, summary, *evidence)
    return None


def _devices_of(vm: VmFacts) -> Evidence:
    """What the VM asks for, as it stands in its template."""
    for kind in ("gpus", "hostDevices"):
        found = cut_member(vm.raw, "spec", "template", "spec", "domain", "devices", kind)
        if found:
            return Evidence(f"{VMS} {vm.namespace}/{vm.name} {kind}", found)
    return vm_of(vm)


def _other_name(case: Case) -> Candidate | None:
    """The card is offered under another name than the VMs ask for. NVIDIA/kubevirt-gpu-device-plugin v1.3.0 does not
    know 2b85 and offers ``nvidia.com/2b85``; ``nvidia.com/gpu`` is what containers ask for."""
    if case.mode != workload.VM_PASSTHROUGH or not case.lacking:
        return None
    wanted = case.lacking[0]
    offered = workload.workload_resources(case.node.allocatable, workload.VM_PASSTHROUGH)
    for name, amount in offered.items():
        if not amount or wanted in case.node.allocatable or wanted in case.node.capacity:
            continue
        by_id = name.casefold() in {f"nvidia.com/{card.device}" for card in case.gpus}
        sure = by_id or name.casefold() == wanted.casefold() or wanted == "nvidia.com/gpu"
        summary = t("the node offers its GPU as {name}; the VMs ask for {wanted}", name=name, wanted=wanted)
        evidence = (allocatable_of(case.node, name), *waiting_evidence(case, wanted))
        return candidate("resource-name-mismatch", Status.CONFIRMED if sure else Status.SUSPECTED, summary, *evidence)
    return None


def _nfd_down(case: Case) -> Candidate | None:
    """No PCI label, so that the operator sees no GPU; and the worker that would set it does not run."""
    facts, labels = case.situation.facts, case.node.labels
    if any(labels.get(key) == "true" for key in workload.NFD_GPU_LABELS) or not case.lacking:
        return None
    policy = facts.cluster_policy.value
    if policy is None or not policy.present or not case.gpus or not facts.pods.known:
        return None
    absent, card = label_of(case.node, workload.NFD_GPU_LABELS[0]), case.gpus[0].evidence[:1]
    workers = [pod for pod in on_node(case) if "node-feature-discovery" in pod.name or "nfd-worker" in pod.name]
    failing = [pod for pod in workers if pod.ready != "True" and fails(pod.waiting)]
    if failing:
        summary = t(
            "{pod} fails ({reasons}), so the node has no GPU label and no operand",
            pod=failing[0].name,
            reasons=", ".join(failing[0].waiting),
        )
        return candidate("nfd-down", Status.CONFIRMED, summary, containers_of(failing[0]), absent, *card)
    if workers:
        return None
    summary = t("the node has no GPU label, and no worker of node feature discovery that would set it")
    return candidate("nfd-down", Status.SUSPECTED, summary, absent, *card)


def _workload_label(case: Case) -> Candidate | None:
    """The operator serves containers here, and VMs wait for what only passthrough offers."""
    facts = case.situation.facts
    policy = facts.cluster_policy.value
    wanted = case.lacking_passthrough
    waiting = [vm for vm in case.waiting_alone if any(name in vm.resources for name in wanted)]
    if case.mode not in (workload.CONTAINER, workload.VM_VGPU) or policy is None or not waiting:
        return None
    if not policy.present or not policy.sandbox_enabled or not _all_permitted(case, wanted):
        return None
    label = workload.raw_workload(case.node)
    evidence = (
        label_of(case.node, workload.WORKLOAD_LABEL),
        allocatable_of(case.node, wanted[0]),
        *waiting_evidence(case, wanted[0]),
        *facts.cluster_policy.evidence,
    )
    sure = _sure(waiting) if case.mode == workload.CONTAINER else Status.SUSPECTED
    names = ", ".join(vm.name for vm in waiting)
    if label:
        summary = tn(
            "the node is labelled {label}, and {vms} waits for {resource}, which only vm-passthrough offers",
            "the node is labelled {label}, and {vms} wait for {resource}, which only vm-passthrough offers",
            n=len(waiting),
            label=label,
            vms=names,
            resource=wanted[0],
        )
        return candidate("workload-label-wrong", sure, summary, *evidence)
    if case.node.labels.get(workload.PRESENT_LABEL) != "true":
        return None
    summary = tn(
        "the node has no {label}: the operator serves {mode}; {vms} waits for {resource}",
        "the node has no {label}: the operator serves {mode}; {vms} wait for {resource}",
        n=len(waiting),
        label=workload.WORKLOAD_LABEL,
        mode=case.mode,
        vms=names,
        resource=wanted[0],
    )
    return candidate("workload-label-missing", sure, summary, *evidence)


def _all_permitted(case: Case, names: tuple[str, ...]) -> bool:
    kubevirt = case.situation.facts.kubevirt.value
    if kubevirt is None or kubevirt.permitted is None:
        return True
    return all(name in kubevirt.permitted for name in names)


def _vfio_manager(case: Case) -> Candidate | None:
    """vfio-manager's own init container gives up, as its guards make it (NVIDIA/k8s-driver-manager@v0.8.0)."""
    if case.mode != workload.VM_PASSTHROUGH or not case.missing:
        return None
    failing = [pod for pod in pods_named(case.situation.facts, "nvidia-vfio-manager") if fails(pod.waiting)]
    if not failing:
        return None
    summary = t(
        "{pod} fails ({reasons}), so the GPU is not given to vfio-pci",
        pod=failing[0].name,
        reasons=", ".join(failing[0].waiting),
    )
    evidence = (containers_of(failing[0]), allocatable_of(case.node, case.missing[0]))
    return candidate("vfio-manager-failing", Status.CONFIRMED, summary, *evidence)


def _device_plugin(case: Case) -> Candidate | None:
    """The plugin itself crashes, or is kept away. Where only its init container waits, it waits for another."""
    mode = case.mode or workload.VM_PASSTHROUGH
    if not case.missing or (mode == workload.CONTAINER and case.lacking_passthrough):
        return None
    plugins = plugin_pods(case.situation.facts, mode)
    failing = [pod for pod in plugins if fails(pod.waiting, init=False)]
    offers_none = allocatable_of(case.node, case.missing[0])
    if failing:
        driver = "nvidia" if mode == workload.CONTAINER else "vfio-pci"
        lines = tuple(line for card in case.gpus if card.driver == driver for line in card.evidence)
        summary = t(
            "{pod} fails ({reasons}), so the node offers no {resource}",
            pod=failing[0].name,
            reasons=", ".join(failing[0].waiting),
            resource=case.missing[0],
        )
        status = Status.CONFIRMED if lines else Status.SUSPECTED
        return candidate("device-plugin-down", status, summary, containers_of(failing[0]), offers_none, *lines)
    if plugins or not case.mode or not case.situation.facts.pods.known:
        return None
    key = f"nvidia.com/gpu.deploy.{'device-plugin' if mode == workload.CONTAINER else 'sandbox-device-plugin'}"
    value = case.node.labels.get(key, "")
    if value in ("", "true"):
        summary = t(
            "no device plugin of {mode} mode is on the node, so it offers no {resource}",
            mode=mode,
            resource=case.missing[0],
        )
        return candidate("device-plugin-down", Status.SUSPECTED, summary, offers_none)
    summary = t("{label} keeps the device plugin off the node", label=f"{key}={value}")
    return candidate("device-plugin-down", Status.CONFIRMED, summary, label_of(case.node, key), offers_none)


def _not_registered(case: Case) -> Candidate | None:
    """The plugin's pod is Ready, and none of the resource it names is there: unhealthy to it, or not registered again
    after the kubelet's restart (NVIDIA/k8s-device-plugin#426)."""
    named = workload.workload_resources({**case.node.capacity, **case.node.allocatable}, case.mode) if case.mode else {}
    ready = [pod for pod in plugin_pods(case.situation.facts, case.mode) if pod.ready == "True"]
    if not ready or not named or any(quantity(case.node.allocatable.get(name, "0")) for name in named):
        return None
    name = next(iter(named))
    summary = t("{pod} runs, and the node offers 0 of {resource}", pod=ready[0].name, resource=name)
    return candidate(
        "device-plugin-down", Status.SUSPECTED, summary, pod_ready_of(ready[0]), allocatable_of(case.node, name)
    )


def _already_allocated(case: Case) -> Candidate | None:
    """All that the node offers is held by pods that run."""
    for vm in case.waiting_alone:
        for name, wanted in vm.resources.items():
            offered = quantity(case.node.allocatable.get(name, "0"))
            taking = [pod for pod in holders(case.situation.facts, case.node.name, name) if pod.phase == "Running"]
            taken = sum(pod.requests[name] for pod in taking)
            if offered and taking and offered - taken < wanted:
                names = ", ".join(pod.name for pod in taking)
                summary = t(
                    "{vm} waits for {resource}: all {n} are held by {pods}, which runs",
                    vm=vm.name,
                    resource=name,
                    n=offered,
                    pods=names,
                )
                evidence = (allocatable_of(case.node, name), *(phase_of(pod) for pod in taking), *vm.evidence)
                return candidate("gpu-already-allocated", _sure([vm]), summary, *evidence)
    return None


def _sure(waiting: list[AffectedVm]) -> Status:
    """Where another node might serve them, this node's state is perhaps not why they wait."""
    return Status.CONFIRMED if any(vm.servable_elsewhere is False for vm in waiting) else Status.SUSPECTED


_JUDGES: tuple[Callable[[Case], Candidate | None], ...] = (
    _not_permitted,
    _other_name,
    hardware_causes.fell_off_bus,
    hardware_causes.iommu_off,
    hardware_causes.group_shared,
    _nfd_down,
    _workload_label,
    hardware_causes.bound_to_nouveau,
    _vfio_manager,
    hardware_causes.not_bound_to_vfio,
    _device_plugin,
    _already_allocated,
    _not_registered,
)
"""In this order: what makes the later ones a mere consequence comes first."""
