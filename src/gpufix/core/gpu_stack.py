"""Whether the node's GPU can be had: what the node offers, and the operands that make it offer. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpufix.core import workload
from gpufix.core.evidence import allocatable_of, pod_ready_of, ready_of
from gpufix.core.parse.pods import quantity
from gpufix.language import t
from gpufix.model import Evidence, Facts, NodeFacts, PodFacts, Status

_PLUGINS = {
    workload.CONTAINER: ("nvidia-device-plugin-daemonset",),
    workload.VM_PASSTHROUGH: ("nvidia-sandbox-device-plugin-daemonset", "nvidia-kubevirt-gpu-dp-daemonset"),
    workload.VM_VGPU: ("nvidia-sandbox-device-plugin-daemonset", "nvidia-kubevirt-gpu-dp-daemonset"),
}
"""NVIDIA/gpu-operator@v25.3.0 assets/; the last is the plugin installed without the operator."""


@dataclass(frozen=True, slots=True)
class StackState:
    """The link "the GPU cannot be had": CONFIRMED when it is gone, REFUTED when it is there, UNKNOWN otherwise."""

    status: Status
    detail: str
    evidence: tuple[Evidence, ...] = ()


def effective_mode(facts: Facts) -> str:
    """The workload that the GPU Operator would serve on the node; empty where that is not known or nobody would."""
    node = facts.node.value
    if node is None:
        return ""
    found = workload.effective_workload(node, facts.cluster_policy).value
    return found if found is not None and found in workload.DEPLOY_LABELS else ""


def shows_gpu(facts: Facts, node: NodeFacts) -> bool:
    """Whether anything shows that the node has, or had, a GPU. No is no proof: a NotReady node can have lost its
    labels."""
    if gpu_resources(node) or any(key.startswith("nvidia.com/gpu") for key in node.labels):
        return True
    if any(node.labels.get(key) == "true" for key in workload.NFD_GPU_LABELS):
        return True
    return node.name == facts.node_name and any(function.is_nvidia_gpu for function in facts.pci.value or ())


def gpu_resources(node: NodeFacts) -> list[str]:
    """The nvidia.com resources that the node names, whatever their amount; audio functions do not count."""
    names = {**node.capacity, **node.allocatable}
    return sorted(name for name in names if name.startswith("nvidia.com/") and not name.endswith("_AUDIO"))


def plugin_pods(facts: Facts, mode: str) -> list[PodFacts]:
    """The device plugin's pods of ``mode`` on this node."""
    return pods_named(facts, *_PLUGINS.get(mode, ()))


def pods_named(facts: Facts, *prefixes: str) -> list[PodFacts]:
    """Pods on this node whose name begins with one of ``prefixes``; those being deleted do not count."""
    pods = facts.pods.value or ()
    return [pod for pod in pods if pod.node == facts.node_name and pod.name.startswith(prefixes) and not pod.deleting]


def judge_stack(facts: Facts, *, serves: bool, wanted: tuple[str, ...]) -> StackState:
    """StackState. ``serves``: the node is Ready; ``wanted``: what VMs wait for, which is judged first."""
    node = facts.node.value
    if node is None:
        return StackState(Status.UNKNOWN, t("the node was not read: {reason}", reason=facts.node.unknown))
    if node.ready != "True":
        return _on_a_dead_node(facts, node)
    if not serves:
        says = t("what the node offers is not judged before its kubelet is back for good")
        return StackState(Status.UNKNOWN, says, (ready_of(node),))
    mode = effective_mode(facts)
    lacking = [name for name in wanted if not quantity(node.allocatable.get(name, "0"))]
    if lacking:
        says = t("the node offers no {resource}", resource=lacking[0])
        if mode:
            says = t("in {mode} mode the node offers no {resource}", mode=mode, resource=lacking[0])
        return StackState(Status.CONFIRMED, says, tuple(allocatable_of(node, name) for name in lacking))
    offered = [name for name in _of_mode(node, mode) if quantity(node.allocatable.get(name, "0"))]
    if offered:
        amounts = ", ".join(t("{n} of {resource}", n=node.allocatable[name], resource=name) for name in offered)
        says = t("the node offers {amounts}", amounts=amounts)
        return StackState(Status.REFUTED, says, tuple(allocatable_of(node, name) for name in offered))
    if not shows_gpu(facts, node):
        return StackState(Status.UNKNOWN, t("nothing shows that this node has a GPU"))
    return _nothing_offered(facts, node, mode)


def _of_mode(node: NodeFacts, mode: str) -> list[str]:
    names = gpu_resources(node)
    if not mode:
        return names
    return [name for name in names if name in workload.workload_resources({**node.capacity, **node.allocatable}, mode)]


def _nothing_offered(facts: Facts, node: NodeFacts, mode: str) -> StackState:
    resource = "nvidia.com/gpu" if mode in ("", workload.CONTAINER) else t("GPU under its own name")
    names = _of_mode(node, mode)
    evidence = tuple(allocatable_of(node, name) for name in names) or (allocatable_of(node, "nvidia.com/gpu"),)
    plugins = plugin_pods(facts, mode)
    ready = [pod for pod in plugins if pod.ready == "True"]
    if ready:
        says = t(
            "no {resource} is offered, though the device plugin {pod} runs: not registered (yet)",
            resource=resource,
            pod=ready[0].name,
        )
        return StackState(Status.UNKNOWN, says, (*evidence, pod_ready_of(ready[0])))
    if facts.pods.value is None:
        why = facts.pods.unknown
        says = t("no {resource} is offered; pods were not read ({reason})", resource=resource, reason=why)
        return StackState(Status.UNKNOWN, says, evidence)
    says = t("no {resource} is offered, and no device plugin of any mode is Ready here", resource=resource)
    if mode:
        says = t(
            "no {resource} is offered, and no device plugin of {mode} mode is Ready here", resource=resource, mode=mode
        )
    return StackState(Status.CONFIRMED, says, (*evidence, *(pod_ready_of(pod) for pod in plugins)))


def _on_a_dead_node(facts: Facts, node: NodeFacts) -> StackState:
    """Nothing is placed on a node that is not Ready; its allocatable is frozen and its pods' "Running" is old."""
    frozen = [name for name in gpu_resources(node) if quantity(node.allocatable.get(name, "0"))]
    if not shows_gpu(facts, node):
        says = t("nothing shows that this node has a GPU (a node that is not Ready can have lost its labels)")
        return StackState(Status.UNKNOWN, says)
    parts = [t("nothing can be placed on a node that is not Ready")]
    if frozen:
        amounts = ", ".join(f"{name}: {node.allocatable[name]}" for name in frozen)
        parts.append(t("allocatable {amounts} is what it last reported, and stale", amounts=amounts))
    operands = [pod for pod in facts.pods.value or () if pod.node == node.name and pod.name.startswith("nvidia-")]
    dead = [pod for pod in operands if pod.phase == "Running" and pod.ready == "False"]
    if dead:
        parts.append(t("{n} operand pods still say Running, with Ready=False", n=len(dead)))
    evidence = (ready_of(node), *(allocatable_of(node, name) for name in frozen), *(pod_ready_of(pod) for pod in dead))
    return StackState(Status.CONFIRMED, "; ".join(parts), evidence)
