"""The shape in which one cause is answered, and the plain words for ids. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpufix.language import mark
from gpufix.model import Evidence, Finding, Status


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate for the root cause: the finding, and what to warn of beside it."""

    finding: Finding
    warnings: tuple[str, ...] = ()


def candidate(id: str, status: Status, summary: str, *evidence: Evidence, warnings: tuple[str, ...] = ()) -> Candidate:
    """A Candidate; without evidence nothing is confirmed."""
    if status is Status.CONFIRMED and not evidence:
        status = Status.SUSPECTED
    return Candidate(Finding(id, status, summary, tuple(dict.fromkeys(evidence))), warnings)


def unknown(summary: str, *evidence: Evidence, warnings: tuple[str, ...] = ()) -> Candidate:
    return candidate("unknown", Status.UNKNOWN, summary, *evidence, warnings=warnings)


TITLES: Mapping[str, str] = {
    "swap-on": mark("swap is on and stands in the kubelet's way"),
    "kubelet-config-missing": mark("the kubelet's configuration file is missing"),
    "kubelet-flag-removed": mark("the kubelet is given a flag it does not know"),
    "cgroup-driver-mismatch": mark("kubelet and container runtime use different cgroup drivers"),
    "cgroup-v1-unsupported": mark("this kubelet does not run on cgroup v1"),
    "container-runtime-down": mark("the container runtime is down"),
    "cri-v1-unsupported": mark("the container runtime does not speak CRI v1"),
    "client-cert-expired": mark("the kubelet's client certificate has expired"),
    "apiserver-unreachable": mark("the kubelet cannot reach the API server"),
    "kubelet-port-in-use": mark("another process has the kubelet's port"),
    "disk-full": mark("a file system of the kubelet is full"),
    "kubelet-stopped": mark("the kubelet has been stopped"),
    "node-cordoned": mark("the node is cordoned"),
    "host-unreachable": mark("the host does not answer"),
    "cni-not-ready": mark("the container network is not ready"),
    "iommu-off": mark("the IOMMU is off"),
    "gpu-bound-to-nouveau": mark("the GPU is bound to nouveau"),
    "gpu-not-bound-to-vfio": mark("the GPU is not bound to vfio-pci"),
    "iommu-group-shared": mark("the GPU shares its IOMMU group with a device of the host"),
    "workload-label-wrong": mark("the node is labelled for another GPU workload than the VMs need"),
    "workload-label-missing": mark("the node has no GPU workload label"),
    "device-plugin-down": mark("the GPU's device plugin is down"),
    "resource-name-mismatch": mark("the VM asks for the GPU by a name that nothing offers"),
    "vfio-manager-failing": mark("vfio-manager fails"),
    "gpu-fell-off-bus": mark("the GPU has fallen off the bus"),
    "nfd-down": mark("node feature discovery is down"),
    "gpu-already-allocated": mark("another VM has the GPU"),
    "node-name-mismatch": mark("the kubelet calls itself by another name than its certificate"),
    "healthy": mark("nothing stands in the node's way"),
    "unknown": mark("the cause is not known"),
}
"""Root cause id -> what the first link of the chain claims."""
