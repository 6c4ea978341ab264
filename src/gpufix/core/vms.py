"""Which virtual machines cannot run for want of this node, and whether another node could serve them. Pure.

A VM is judged by its virt-launcher pod's PodScheduled condition: the copy that KubeVirt keeps in the VM and in its
instance can be older (kubevirt/kubevirt@v1.7.0 pkg/virt-controller/watch/vmi copies it when it changes).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gpufix.core.evidence import failure_of, pod_ready_of, scheduled_of, vm_of
from gpufix.core.gpu_stack import shows_gpu
from gpufix.core.placement import HOSTNAME, Elsewhere, selects
from gpufix.language import t
from gpufix.model import AffectedVm, Evidence, Facts, NodeFacts, PodFacts, VmFacts

_NOT_OURS = frozenset(
    {
        "DataVolumeError",
        "ErrImagePull",
        "ErrorPvcNotFound",
        "ImagePullBackOff",
        "Migrating",
        "Paused",
        "Provisioning",
        "Stopping",
        "Terminating",
        "WaitingForReceiver",
        "WaitingForVolumeBinding",
    }
)
"""printableStatus values whose reason is not a node that lacks a device (kubevirt/kubevirt@v1.7.0 core/v1/types.go)."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A VM that wants devices, with its virt-launcher pod, where it has one. ``vm`` None: only the pod is known."""

    namespace: str
    name: str
    resources: Mapping[str, int]
    vm: VmFacts | None
    launcher: PodFacts | None

    @property
    def selector(self) -> dict[str, str]:
        own = dict(self.vm.node_selector) if self.vm else {}
        return {**own, **(self.launcher.node_selector if self.launcher else {})}

    @property
    def runs(self) -> bool:
        if self.vm is not None:
            return self.vm.vmi_phase == "Running" if self.vm.vmi_phase else self.vm.status == "Running"
        return self.launcher is not None and self.launcher.phase == "Running" and self.launcher.ready == "True"

    @property
    def status(self) -> str:
        if self.vm is not None:
            return self.vm.status or self.vm.vmi_phase or "Unknown"
        return self.launcher.phase if self.launcher is not None else "Unknown"


def demands(facts: Facts) -> tuple[Demand, ...]:
    """Every VM that is meant to run and asks for devices, and every virt-launcher pod whose VM is not known."""
    launchers = [pod for pod in facts.pods.value or () if is_launcher(pod) and pod.phase not in ("Succeeded", "Failed")]
    owned: dict[tuple[str, str], list[PodFacts]] = {}
    for pod in launchers:
        owned.setdefault((pod.namespace, vm_name(pod)), []).append(pod)
    found: list[Demand] = []
    seen: set[tuple[str, str]] = set()
    for vm in facts.vms.value or ():
        seen.add((vm.namespace, vm.name))
        if vm.devices and vm.wanted:
            own = owned.get((vm.namespace, vm.name), [])
            found.append(Demand(vm.namespace, vm.name, vm.devices, vm, _launcher(own)))
    for pod in launchers:
        owner = (pod.namespace, vm_name(pod))
        resources = {name: count for name, count in pod.requests.items() if is_device(name)}
        if resources and owner not in seen and not pod.deleting:
            seen.add(owner)
            found.append(Demand(*owner, resources, None, pod))
    return tuple(found)


def is_device(resource: str) -> bool:
    """A resource that stands for a card or function; KubeVirt's own kvm, tun and vhost-net do not count."""
    return "/" in resource and not resource.startswith(("devices.kubevirt.io/", "kubernetes.io/"))


def is_launcher(pod: PodFacts) -> bool:
    return pod.labels.get("kubevirt.io") == "virt-launcher" or pod.name.startswith("virt-launcher-")


def vm_name(pod: PodFacts) -> str:
    """The VM of a virt-launcher pod: by its labels, else by its own name without the random end."""
    named = pod.labels.get("vm.kubevirt.io/name") or pod.labels.get("kubevirt.io/vm")
    return named or pod.name.removeprefix("virt-launcher-").rpartition("-")[0] or pod.name


def _launcher(own: list[PodFacts]) -> PodFacts | None:
    """The VM's pod. Of several (a migration, a restart) the one that runs, else the newest that is not deleted."""
    age = {pod.name: pod.created.timestamp() if pod.created else 0.0 for pod in own}
    return max(own, key=lambda pod: (not pod.deleting, pod.phase == "Running", age[pod.name]), default=None)


@dataclass(frozen=True, slots=True)
class VmState:
    """The VMs that this node matters to. ``known`` False: not all that is needed was read, so "none" is no answer."""

    known: bool
    unknown: str
    demands: tuple[Demand, ...]
    waiting: tuple[AffectedVm, ...]
    """No pod of theirs is on a node."""
    stuck: tuple[AffectedVm, ...]
    """Their pod is on this node, and they do not run; on a node that is not Ready this cannot be told from running."""
    sources: tuple[Evidence, ...] = ()
    """What shows that no VM at all asks for a device, where that is so."""

    @property
    def wanted_resources(self) -> tuple[str, ...]:
        names = {name for vm in self.waiting for name in vm.resources}
        return tuple(sorted(names))


def judge_vms(facts: Facts, *, node_serves: bool) -> VmState:
    """VmState. ``node_serves``: the node is Ready and carries no lifecycle taint."""
    node = facts.node.value
    unknown = "; ".join(source.unknown for source in (facts.pods, facts.vms, facts.node) if source.unknown)
    all_demands = demands(facts)
    if node is None:
        return VmState(False, unknown, all_demands, (), ())
    offered = {name for other in facts.nodes.value or () for name in (*other.allocatable, *other.capacity)}
    others = Elsewhere(facts)
    waiting: list[AffectedVm] = []
    stuck: list[AffectedVm] = []
    for demand in all_demands:
        if not _concerns(demand, node, facts, offered):
            continue
        pod = demand.launcher
        if pod is not None and pod.node:
            if pod.node == node.name and not (node_serves and demand.runs):
                stuck.append(_stuck(demand, pod, node, others, node_serves))
        elif pod is not None:
            waiting.append(_affected(demand, others, _waits(pod), scheduled_of(pod)))
        elif not demand.runs:
            waiting.extend(_without_pod(demand, others))
    sources = facts.vms.evidence if not all_demands else ()
    return VmState(not unknown, unknown, all_demands, tuple(waiting), tuple(stuck), sources)


def _concerns(demand: Demand, node: NodeFacts, facts: Facts, offered: set[str]) -> bool:
    """Whether this node is one that could run the VM: its selector admits it, and it has, or had, what the VM asks
    for; a resource that no node names (``offered``) could have been any node's with a card."""
    if demand.launcher is not None and demand.launcher.node:
        return demand.launcher.node == node.name
    if demand.vm is not None and demand.vm.node == node.name:
        return True
    if not selects(demand.selector, node, lenient=True):
        return False
    if any(name in node.allocatable or name in node.capacity for name in demand.resources):
        return True
    if any(name in offered for name in demand.resources):
        return False
    return HOSTNAME in demand.selector or node.ready != "True" or shows_gpu(facts, node)


def _waits(pod: PodFacts) -> str:
    if pod.scheduled == "False" and pod.scheduled_message:
        return t("the scheduler: {message}", message=pod.scheduled_message)
    return t("its pod {pod} is on no node yet, and the scheduler has not said why", pod=pod.name)


def _stuck(demand: Demand, pod: PodFacts, node: NodeFacts, others: Elsewhere, node_serves: bool) -> AffectedVm:
    where = {"pod": pod.name, "node": pod.node}
    if node_serves:
        why = ", ".join(pod.waiting) or (demand.vm.vmi_message if demand.vm else "")
        why = why or t("phase {phase}", phase=pod.phase)
        reason = t("its pod {pod} is on {node} and the VM does not run: {reason}", **where, reason=why)
        return _affected(demand, others, reason, pod_ready_of(pod))
    if node.ready == "True":
        reason = t("its pod {pod} is on {node}, which is only coming back", **where)
        found = _affected(demand, others, reason, pod_ready_of(pod))
    else:
        reason = t("its pod {pod} is on {node}, which is not Ready: it may still run, and nobody can tell", **where)
        found = _affected(demand, others, reason, pod_ready_of(pod), free_to_move=True)
    return replace(found, since=node.ready_since)


def _without_pod(demand: Demand, others: Elsewhere) -> Iterator[AffectedVm]:
    vm = demand.vm
    if vm is None or vm.status in _NOT_OURS:
        return
    if not others.pods.known:
        said = vm.vmi_message or vm.failure or t("status {status}; its pod was not read", status=vm.status)
        yield _affected(demand, others, t("{said} (KubeVirt's copy, which may be old)", said=said), vm_of(vm))
    elif vm.failure:
        yield _affected(demand, others, vm.failure, failure_of(vm))
    else:
        reason = t("it has no virt-launcher pod; KubeVirt says {status}", status=vm.status or t("nothing"))
        yield _affected(demand, others, reason, vm_of(vm))


def _affected(
    demand: Demand, others: Elsewhere, reason: str, evidence: Evidence, *, free_to_move: bool = False
) -> AffectedVm:
    return AffectedVm(
        namespace=demand.namespace,
        name=demand.name,
        status=demand.status,
        resources=dict(demand.resources),
        since=demand.launcher.scheduled_since if demand.launcher is not None else None,
        reason=reason,
        evidence=(evidence,),
        other_nodes=others.serving(demand.resources, demand.selector, demand.launcher, trust_offer=free_to_move),
    )
