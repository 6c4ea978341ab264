"""Whether a node could run a pod: selector, taints, and what it offers and has given away already. Pure.

The rules are the scheduler's (kubernetes/kubernetes pkg/scheduler/framework/plugins: nodeaffinity, tainttoleration,
noderesources, nodeunschedulable). CPU, memory and affinity terms are not judged here, and said so.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpufix.core.parse.pods import quantity
from gpufix.model import Facts, NodeFacts, OtherNode, PodFacts, Taint, Toleration

HOSTNAME = "kubernetes.io/hostname"
_VOLATILE = ("kubevirt.io/schedulable",)
"""Labels that virt-controller takes away while a node is not well: their absence does not mean "another node"."""


def selects(selector: Mapping[str, str], node: NodeFacts, *, lenient: bool = False) -> bool:
    """Whether ``selector`` admits ``node``. ``lenient`` looks past labels that come and go with the node's health."""
    return not mismatches(selector, node, lenient=lenient)


def mismatches(selector: Mapping[str, str], node: NodeFacts, *, lenient: bool = False) -> list[str]:
    return [
        f"{key}={value}"
        for key, value in selector.items()
        if node.labels.get(key) != value
        and not (lenient and key in _VOLATILE)
        and not (key == HOSTNAME and key not in node.labels and value == node.name)
    ]


def offer(node: NodeFacts, resource: str) -> int | None:
    """What the node offers of ``resource`` now; None where it does not name it."""
    return quantity(node.allocatable[resource]) if resource in node.allocatable else None


def holders(facts: Facts, node: str, resource: str) -> list[PodFacts]:
    """The pods bound to ``node`` that hold ``resource``; pods that have ended hold nothing."""
    pods = facts.pods.value or ()
    return [
        pod
        for pod in pods
        if pod.node == node and pod.requests.get(resource) and pod.phase not in ("Succeeded", "Failed")
    ]


def elsewhere(
    resources: Mapping[str, int],
    selector: Mapping[str, str],
    pod: PodFacts | None,
    facts: Facts,
    *,
    trust_offer: bool,
) -> tuple[OtherNode, ...]:
    """For each other node: could it run this VM, and why not.

    ``trust_offer`` False: the scheduler has already refused the pod everywhere, so that a node with all that is judged
    here is None, not True.
    """
    others = [node for node in facts.nodes.value or () if node.name != facts.node_name]
    return tuple(_judge(node, resources, selector, pod, facts, trust_offer) for node in others)


def _judge(
    node: NodeFacts,
    resources: Mapping[str, int],
    selector: Mapping[str, str],
    pod: PodFacts | None,
    facts: Facts,
    trust_offer: bool,
) -> OtherNode:
    reason = _obstacle(node, resources, selector, facts)
    if reason:
        return OtherNode(node.name, False, reason)
    hard = [taint for taint in node.taints if taint.effect in ("NoSchedule", "NoExecute")]
    if hard and pod is None:
        return OtherNode(
            node.name, None, f"has the taint {hard[0].key}; the VM has no pod whose tolerations could be read"
        )
    for taint in hard:
        if not any(tolerates(toleration, taint) for toleration in (pod.tolerations if pod else ())):
            return OtherNode(node.name, False, f"the VM does not tolerate its taint {taint.key}:{taint.effect}")
    offered = ", ".join(f"{offer(node, name)} of {name}" for name in resources)
    if facts.pods.value is None:
        return OtherNode(node.name, None, f"offers {offered}; who holds it was not read ({facts.pods.unknown})")
    if not trust_offer:
        return OtherNode(node.name, None, f"offers {offered}, free as far as is known, yet the VM was not put there")
    return OtherNode(node.name, True, f"offers {offered}, and it is free (CPU, memory and affinity are not judged)")


def _obstacle(node: NodeFacts, resources: Mapping[str, int], selector: Mapping[str, str], facts: Facts) -> str:
    wrong = mismatches(selector, node)
    pinned = selector.get(HOSTNAME)
    if pinned is not None and any(entry.startswith(f"{HOSTNAME}=") for entry in wrong):
        return f"the VM is pinned to {pinned} by its nodeSelector"
    if wrong:
        return f"the VM's nodeSelector asks for {', '.join(wrong)}"
    for name, wanted in resources.items():
        offered = offer(node, name)
        if offered is None:
            return f"does not offer {name}"
        if offered < wanted:
            return f"offers {offered} of {name}"
    if node.ready != "True":
        return f"is not Ready ({node.ready or 'no Ready condition'})"
    if node.unschedulable:
        return "is cordoned"
    for name, wanted in resources.items():
        taking = holders(facts, node.name, name)
        taken = sum(pod.requests[name] for pod in taking)
        if (offer(node, name) or 0) - taken < wanted:
            return f"all {offer(node, name)} of {name} are taken by {', '.join(pod.name for pod in taking)}"
    return ""


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """kubernetes/kubernetes staging/src/k8s.io/api/core/v1/toleration.go, ToleratesTaint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.operator == "Equal" and toleration.value == taint.value
