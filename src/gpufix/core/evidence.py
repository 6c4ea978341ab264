"""Evidence cut out of what was read: the exact text of a condition, a taint, a label, a unit's property. Pure."""

from __future__ import annotations

from gpufix.core.parse.jsonraw import cut, cut_member
from gpufix.model import Evidence, Facts, NodeFacts, PodFacts, VmFacts

NODES, PODS = "cluster/nodes.json", "cluster/pods.json"
VMS, INSTANCES = "cluster/virtualmachines.json", "cluster/virtualmachineinstances.json"

LIFECYCLE_TAINTS = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")


def ready_of(node: NodeFacts) -> Evidence:
    """The node's Ready condition."""
    raw = cut(node.raw, "status", "conditions", ("type", "Ready"))
    return Evidence(f"{NODES} {node.name} Ready", raw or f"Ready={node.ready or 'absent'} {node.ready_message}".strip())


def condition_of(node: NodeFacts, kind: str) -> Evidence:
    """Any other condition of the node."""
    raw = cut(node.raw, "status", "conditions", ("type", kind))
    return Evidence(f"{NODES} {node.name} {kind}", raw or f"{kind}={node.conditions.get(kind, 'absent')}")


def taints_of(node: NodeFacts, *keys: str) -> tuple[Evidence, ...]:
    """The node's taints with one of ``keys``; with none given, the whole list."""
    if not keys:
        return (Evidence(f"{NODES} {node.name} taints", cut(node.raw, "spec", "taints") or "no taints"),)
    found: list[Evidence] = []
    for index, taint in enumerate(node.taints):
        if taint.key in keys:
            raw = cut(node.raw, "spec", "taints", index)
            found.append(Evidence(f"{NODES} {node.name} taint {taint.key}", raw or f"{taint.key}:{taint.effect}"))
    return tuple(found)


def label_of(node: NodeFacts, key: str) -> Evidence:
    """A label of the node; where it has none, all its labels say so."""
    raw = cut_member(node.raw, "metadata", "labels", key)
    if raw or key in node.labels:
        return Evidence(f"{NODES} {node.name} label {key}", raw or f"{key}={node.labels[key]}")
    labels = cut(node.raw, "metadata", "labels")
    return Evidence(f"{NODES} {node.name} labels, no {key}", labels or f"no label {key}")


def annotation_of(node: NodeFacts, key: str) -> Evidence:
    """An annotation that the node has."""
    raw = cut_member(node.raw, "metadata", "annotations", key)
    return Evidence(f"{NODES} {node.name} annotation {key}", raw or f"{key}={node.annotations.get(key, '')}")


def allocatable_of(node: NodeFacts, resource: str) -> Evidence:
    """What the node offers of ``resource``; where it names none, its whole list says so."""
    raw = cut_member(node.raw, "status", "allocatable", resource)
    if raw or resource in node.allocatable:
        text = raw or f"{resource}: {node.allocatable[resource]}"
        return Evidence(f"{NODES} {node.name} allocatable", text)
    text = cut(node.raw, "status", "allocatable") or f"no {resource} among the allocatable resources"
    return Evidence(f"{NODES} {node.name} allocatable, no {resource}", text)


def cordon_of(node: NodeFacts) -> Evidence:
    """spec.unschedulable."""
    raw = cut_member(node.raw, "spec", "unschedulable")
    return Evidence(f"{NODES} {node.name} spec", raw or f"unschedulable: {node.unschedulable}")


def scheduled_of(pod: PodFacts) -> Evidence:
    """The pod's PodScheduled condition, or its phase where it has none."""
    raw = cut(pod.raw, "status", "conditions", ("type", "PodScheduled"))
    name = f"{PODS} {pod.namespace}/{pod.name}"
    return Evidence(f"{name} PodScheduled", raw) if raw else phase_of(pod)


def pod_ready_of(pod: PodFacts) -> Evidence:
    """The pod's Ready condition, or its phase where it has none."""
    raw = cut(pod.raw, "status", "conditions", ("type", "Ready"))
    return Evidence(f"{PODS} {pod.namespace}/{pod.name} Ready", raw) if raw else phase_of(pod)


def phase_of(pod: PodFacts) -> Evidence:
    raw = cut_member(pod.raw, "status", "phase")
    return Evidence(f"{PODS} {pod.namespace}/{pod.name}", raw or f"phase: {pod.phase}")


def containers_of(pod: PodFacts) -> Evidence:
    """The statuses of the pod's containers, its init containers first where one of those waits."""
    init = any(reason.startswith("Init:") for reason in pod.waiting)
    raw = cut(pod.raw, "status", "initContainerStatuses" if init else "containerStatuses")
    return Evidence(f"{PODS} {pod.namespace}/{pod.name} containers", raw or ", ".join(pod.waiting) or pod.phase)


def vm_of(vm: VmFacts) -> Evidence:
    """The VM's printableStatus, or its instance's phase."""
    raw = cut_member(vm.raw, "status", "printableStatus")
    if raw or not vm.vmi_raw:
        return Evidence(f"{VMS} {vm.namespace}/{vm.name}", raw or f"printableStatus: {vm.status}")
    raw = cut_member(vm.vmi_raw, "status", "phase")
    return Evidence(f"{INSTANCES} {vm.namespace}/{vm.name}", raw or f"phase: {vm.vmi_phase}")


def failure_of(vm: VmFacts) -> Evidence:
    """The VM's Failure condition."""
    raw = cut(vm.raw, "status", "conditions", ("type", "Failure"))
    return Evidence(f"{VMS} {vm.namespace}/{vm.name} Failure", raw or vm.failure)


def instance_of(vm: VmFacts) -> Evidence:
    """The conditions of the VM's instance."""
    raw = cut(vm.vmi_raw, "status", "conditions")
    return Evidence(f"{INSTANCES} {vm.namespace}/{vm.name} conditions", raw or vm.vmi_message or vm.vmi_phase)


def unit_lines(facts: Facts, *keys: str) -> tuple[Evidence, ...]:
    """The lines of ``systemctl show`` with these properties; by default the unit's state."""
    wanted = [f"{key}=" for key in keys or ("ActiveState", "SubState")]
    return tuple(line for start in wanted for line in facts.unit.evidence if line.excerpt.startswith(start))
