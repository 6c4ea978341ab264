"""Whether a node could run a pod: selector, taints, and what it offers and has given away already. Pure.

The rules are the scheduler's (kubernetes/kubernetes pkg/scheduler/framework/plugins: nodeaffinity, tainttoleration,
noderesources, nodeunschedulable). CPU, memory and affinity terms are not judged here, and said so.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpufix.core.parse.pods import quantity
from gpufix.language import mark, t
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
    return [pod for pod in pods if pod.node == node and pod.requests.get(resource) and _holds(pod)]


def _holds(pod: PodFacts) -> bool:
    return bool(pod.node) and pod.phase not in ("Succeeded", "Failed")


class Elsewhere:
    """The other nodes of the cluster, asked for one VM after another; VMs that ask alike are answered once."""

    def __init__(self, facts: Facts) -> None:
        self.others = [node for node in facts.nodes.value or () if node.name != facts.node_name]
        self.pods = facts.pods
        self.bound: dict[tuple[str, str], list[PodFacts]] = {}
        for pod in facts.pods.value or ():
            for name in pod.requests if _holds(pod) else ():
                self.bound.setdefault((pod.node, name), []).append(pod)
        self.answered: dict[object, tuple[OtherNode, ...]] = {}

    def serving(
        self, resources: Mapping[str, int], selector: Mapping[str, str], pod: PodFacts | None, *, trust_offer: bool
    ) -> tuple[OtherNode, ...]:
        """For each other node: could it run this VM, and why not.

        ``trust_offer`` False: the scheduler has already refused the pod everywhere, so that a node with all that is
        judged here is None, not True.
        """
        tolerations = pod.tolerations if pod is not None else None
        key = (tuple(sorted(resources.items())), tuple(sorted(selector.items())), tolerations, trust_offer)
        if key not in self.answered:
            answers = (self._judge(node, resources, selector, tolerations, trust_offer) for node in self.others)
            self.answered[key] = tuple(answers)
        return self.answered[key]

    def _judge(
        self,
        node: NodeFacts,
        resources: Mapping[str, int],
        selector: Mapping[str, str],
        tolerations: tuple[Toleration, ...] | None,
        trust_offer: bool,
    ) -> OtherNode:
        reason = _obstacle(node, resources, selector) or self._taken(node, resources)
        if reason:
            return OtherNode(node.name, False, reason)
        hard = [taint for taint in node.taints if taint.effect in ("NoSchedule", "NoExecute")]
        if hard and tolerations is None:
            reason = t("has the taint {taint}; the VM has no pod whose tolerations could be read", taint=hard[0].key)
            return OtherNode(node.name, None, reason)
        for taint in hard:
            if not any(tolerates(toleration, taint) for toleration in tolerations or ()):
                reason = t("the VM does not tolerate its taint {taint}", taint=f"{taint.key}:{taint.effect}")
                return OtherNode(node.name, False, reason)
        offered = ", ".join(t("{n} of {resource}", n=offer(node, name), resource=name) for name in resources)
        if not self.pods.known:
            why = self.pods.unknown
            reason = t("offers {amounts}; who holds it was not read ({reason})", amounts=offered, reason=why)
            return OtherNode(node.name, None, reason)
        if not trust_offer:
            words = mark("offers {amounts}, free as far as is known, yet the VM was not put there")
            return OtherNode(node.name, None, t(words, amounts=offered))
        words = mark("offers {amounts}, and it is free (CPU, memory and affinity are not judged)")
        return OtherNode(node.name, True, t(words, amounts=offered))

    def _taken(self, node: NodeFacts, resources: Mapping[str, int]) -> str:
        for name, wanted in resources.items():
            taking = self.bound.get((node.name, name), [])
            if (offer(node, name) or 0) - sum(pod.requests[name] for pod in taking) < wanted:
                return t(
                    "all {n} of {resource} are taken by {pods}",
                    n=offer(node, name),
                    resource=name,
                    pods=", ".join(pod.name for pod in taking),
                )
        return ""


def _obstacle(node: NodeFacts, resources: Mapping[str, int], selector: Mapping[str, str]) -> str:
    wrong = mismatches(selector, node)
    pinned = selector.get(HOSTNAME)
    if pinned is not None and any(entry.startswith(f"{HOSTNAME}=") for entry in wrong):
        return t("the VM is pinned to {node} by its nodeSelector", node=pinned)
    if wrong:
        return t("the VM's nodeSelector asks for {labels}", labels=", ".join(wrong))
    for name, wanted in resources.items():
        offered = offer(node, name)
        if offered is None:
            return t("does not offer {resource}", resource=name)
        if offered < wanted:
            return t("offers {n} of {resource}", n=offered, resource=name)
    if node.ready != "True":
        return t("is not Ready ({state})", state=node.ready or t("no Ready condition"))
    return t("is cordoned") if node.unschedulable else ""


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """kubernetes/kubernetes staging/src/k8s.io/api/core/v1/toleration.go, ToleratesTaint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.operator == "Equal" and toleration.value == taint.value
