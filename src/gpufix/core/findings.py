"""The shape in which one cause is answered, and the plain words for ids. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    "swap-on": "swap is on and stands in the kubelet's way",
    "kubelet-config-missing": "the kubelet's configuration file is missing",
    "kubelet-flag-removed": "the kubelet is given a flag it does not know",
    "cgroup-driver-mismatch": "kubelet and container runtime use different cgroup drivers",
    "cgroup-v1-unsupported": "this kubelet does not run on cgroup v1",
    "container-runtime-down": "the container runtime is down",
    "cri-v1-unsupported": "the container runtime does not speak CRI v1",
    "client-cert-expired": "the kubelet's client certificate has expired",
    "apiserver-unreachable": "the kubelet cannot reach the API server",
    "kubelet-port-in-use": "another process has the kubelet's port",
    "disk-full": "a file system of the kubelet is full",
    "kubelet-stopped": "the kubelet has been stopped",
    "node-cordoned": "the node is cordoned",
    "host-unreachable": "the host does not answer",
    "cni-not-ready": "the container network is not ready",
    "iommu-off": "the IOMMU is off",
    "gpu-bound-to-nouveau": "the GPU is bound to nouveau",
    "gpu-not-bound-to-vfio": "the GPU is not bound to vfio-pci",
    "iommu-group-shared": "the GPU shares its IOMMU group with a device of the host",
    "workload-label-wrong": "the node is labelled for another GPU workload than the VMs need",
    "workload-label-missing": "the node has no GPU workload label",
    "device-plugin-down": "the GPU's device plugin is down",
    "resource-name-mismatch": "the VM asks for the GPU by a name that nothing offers",
    "vfio-manager-failing": "vfio-manager fails",
    "gpu-fell-off-bus": "the GPU has fallen off the bus",
    "nfd-down": "node feature discovery is down",
    "gpu-already-allocated": "another VM has the GPU",
    "node-name-mismatch": "the kubelet calls itself by another name than its certificate",
    "healthy": "nothing stands in the node's way",
    "unknown": "the cause is not known",
}
"""Root cause id -> what the first link of the chain claims."""
