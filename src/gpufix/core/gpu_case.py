"""What the judges of GPU causes look at. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpufix.core import workload
from gpufix.core.parse.pods import quantity
from gpufix.core.situation import Situation
from gpufix.core.vms import VmState
from gpufix.model import AffectedVm, Evidence, NodeFacts, PciFunction, PodFacts

_FAILING = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerError",
        "ErrImagePull",
        "Error",
        "ImagePullBackOff",
        "RunContainerError",
        "StartError",
    }
)


@dataclass(frozen=True, slots=True)
class Case:
    """A node that is Ready, with a kubelet that is not in the way, and the VMs that it matters to."""

    situation: Situation
    node: NodeFacts
    vms: VmState
    mode: str
    """The effective workload; empty where it is not known, or nobody would serve it."""

    @property
    def lacking(self) -> tuple[str, ...]:
        """What VMs wait for and the node does not offer."""
        return tuple(name for name in self.vms.wanted_resources if not quantity(self.node.allocatable.get(name, "0")))

    @property
    def lacking_passthrough(self) -> tuple[str, ...]:
        """Of those, what only a virtual machine mode offers."""
        return tuple(name for name in self.lacking if not workload.workload_resources({name: "1"}, workload.CONTAINER))

    @property
    def missing(self) -> tuple[str, ...]:
        """What the node should offer and does not: what VMs wait for, else all that its workload stands for."""
        if self.lacking_passthrough:
            return self.lacking_passthrough
        offered = workload.workload_resources({**self.node.capacity, **self.node.allocatable}, self.mode or "none")
        if not self.mode or any(quantity(self.node.allocatable.get(name, "0")) for name in offered):
            return ()
        if self.mode == workload.CONTAINER:
            return tuple(offered) or ("nvidia.com/gpu",)
        kubevirt = self.situation.facts.kubevirt.value
        permitted = (kubevirt.permitted or {}) if kubevirt is not None else {}
        return tuple(offered) or tuple(workload.workload_resources(dict.fromkeys(permitted, "1"), self.mode))

    @property
    def waiting_alone(self) -> list[AffectedVm]:
        """The waiting VMs that no other node is known to be able to serve."""
        return [vm for vm in self.vms.waiting if vm.servable_elsewhere is not True]

    @property
    def gpus(self) -> list[PciFunction]:
        return [function for function in self.situation.facts.pci.value or () if function.is_nvidia_gpu]


def on_node(case: Case) -> list[PodFacts]:
    """The pods on the node that are not being deleted."""
    return [pod for pod in case.situation.facts.pods.value or () if pod.node == case.node.name and not pod.deleting]


def fails(waiting: tuple[str, ...], *, init: bool = True) -> bool:
    """Whether a container fails, not merely waits. ``init`` False: those of the pod itself, not its init containers."""
    reasons = (reason.removeprefix("Init:") if init else reason for reason in waiting)
    return any(reason in _FAILING for reason in reasons)


def waiting_evidence(case: Case, resource: str) -> tuple[Evidence, ...]:
    """What says that VMs wait for ``resource``."""
    return tuple(line for vm in case.vms.waiting if resource in vm.resources for line in vm.evidence)
