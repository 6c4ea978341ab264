"""What the GPU Operator makes of a node's labels. Pure.

The rules are those of NVIDIA/gpu-operator v25.3.0, ``controllers/state_manager.go``: ``getWorkloadConfig``,
``gpuStateLabels`` and ``updateGPUStateLabels``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpufix.language import mark, t
from gpufix.model import ClusterPolicyFacts, NodeFacts, Observation

WORKLOAD_LABEL = "nvidia.com/gpu.workload.config"
PRESENT_LABEL = "nvidia.com/gpu.present"
OPERANDS_LABEL = "nvidia.com/gpu.deploy.operands"
VFIO_MANAGER_LABEL = "nvidia.com/gpu.deploy.vfio-manager"
MIG_MANAGER_LABEL = "nvidia.com/gpu.deploy.mig-manager"
NFD_GPU_LABELS = tuple(f"feature.node.kubernetes.io/pci-{pci}.present" for pci in ("10de", "0302_10de", "0300_10de"))

CONTAINER = "container"
VM_PASSTHROUGH = "vm-passthrough"
VM_VGPU = "vm-vgpu"
NO_WORKLOAD = "none"
"""No ClusterPolicy and no label that one could act on later: nobody would touch the card."""


def _deploy(*operands: str) -> frozenset[str]:
    return frozenset(f"nvidia.com/gpu.deploy.{operand}" for operand in operands)


DEPLOY_LABELS: Mapping[str, frozenset[str]] = {
    CONTAINER: _deploy(
        "driver", "gpu-feature-discovery", "container-toolkit", "device-plugin", "dcgm", "dcgm-exporter",
        "node-status-exporter", "operator-validator",
    ),
    VM_PASSTHROUGH: _deploy("sandbox-device-plugin", "sandbox-validator", "vfio-manager", "kata-manager", "cc-manager"),
    VM_VGPU: _deploy("sandbox-device-plugin", "vgpu-manager", "vgpu-device-manager", "sandbox-validator", "cc-manager"),
}  # fmt: skip
"""Workload -> the deploy labels the operator sets to ``true`` (``gpuStateLabels``). The keys are the valid ones."""

ALL_DEPLOY_LABELS = frozenset().union(*DEPLOY_LABELS.values()) | {MIG_MANAGER_LABEL}


def raw_workload(node: NodeFacts) -> str:
    """The label as it stands, valid or not; empty when the node has none."""
    return node.labels.get(WORKLOAD_LABEL, "")


def vfio_manager_label(node: NodeFacts) -> str | None:
    """The value of ``nvidia.com/gpu.deploy.vfio-manager``; None when the label is gone.

    Any value counts as standing: the operator keeps an existing value (``addGPUStateLabels``), so that
    ``paused-for-driver-upgrade`` is one step from ``true``.
    """
    return node.labels.get(VFIO_MANAGER_LABEL)


def effective_workload(node: NodeFacts, policy: Observation[ClusterPolicyFacts]) -> Observation[str]:
    """The workload the operator would serve on this node: a key of ``DEPLOY_LABELS``, or ``NO_WORKLOAD``.

    Where no ClusterPolicy exists, or it was not read, a valid label is answered as it stands: an operator may come
    back and act on it. Unknown only when the answer hangs on a ClusterPolicy that was not read. A ``defaultWorkload``
    that was emptied again stays in force until the operator restarts (it is a package variable there); that cannot be
    seen from outside, so only an explicit label is sure.
    """
    label = raw_workload(node)
    valid = label in DEPLOY_LABELS
    if policy.value is None:
        if valid:
            return Observation.of(label)
        words = mark("{label} is not set, and the ClusterPolicy is unknown: {reason}")
        if label:
            words = mark("{label} is {value}, which is no workload, and the ClusterPolicy is unknown: {reason}")
        return Observation.missing(t(words, label=WORKLOAD_LABEL, value=repr(label), reason=policy.unknown))
    facts = policy.value
    if not facts.present:
        return Observation.of(label if valid else NO_WORKLOAD, *policy.evidence)
    if not facts.sandbox_enabled:
        return Observation.of(CONTAINER, *policy.evidence)
    if valid:
        return Observation.of(label, *policy.evidence)
    default = facts.default_workload
    return Observation.of(default if default in DEPLOY_LABELS else CONTAINER, *policy.evidence)


def reconciled_labels(node: NodeFacts, policy: ClusterPolicyFacts) -> dict[str, str]:
    """The node's labels once a running operator has acted on them (``labelGPUNodes``).

    ``mig-manager`` is added for products that can do MIG; the node's readiness is no input.
    """
    labels = dict(node.labels)
    if not policy.present:
        return labels
    found = any(labels.get(label) == "true" for label in NFD_GPU_LABELS)
    if found:
        labels[PRESENT_LABEL] = "true"
    elif labels.get(PRESENT_LABEL) == "true":
        labels[PRESENT_LABEL] = "false"
        return {key: value for key, value in labels.items() if key not in ALL_DEPLOY_LABELS}
    if labels.get(PRESENT_LABEL) != "true":
        return labels
    workload = effective_workload(node, Observation.of(policy)).value
    wanted = set() if labels.get(OPERANDS_LABEL) == "false" else set(DEPLOY_LABELS[workload or CONTAINER])
    if wanted and workload == CONTAINER and (_mig_capable(labels) or MIG_MANAGER_LABEL in labels):
        wanted.add(MIG_MANAGER_LABEL)
    kept = {key: value for key, value in labels.items() if key not in ALL_DEPLOY_LABELS or key in wanted}
    return {**dict.fromkeys(sorted(wanted), "true"), **kept}


def _mig_capable(labels: Mapping[str, str]) -> bool:
    if labels.get("nvidia.com/vgpu.host-driver-version"):
        return False
    if "nvidia.com/mig.capable" in labels:
        return labels["nvidia.com/mig.capable"] == "true"
    product = labels.get("nvidia.com/gpu.product", "").lower()
    return any(model in product for model in ("h100", "a100", "a30"))


def passthrough_resource(device_name: str) -> str:
    """The resource under which the sandbox device plugin offers a card, from its name in pci.ids.

    ``GB202 [GeForce RTX 5090]`` -> ``nvidia.com/GB202_GEFORCE_RTX_5090`` (NVIDIA/kubevirt-gpu-device-plugin v1.3.1,
    ``getDeviceName``). A plugin whose pci.ids does not know the card offers its device id instead.
    """
    name = re.sub(r"[/.]", "_", device_name.strip().upper())
    return "nvidia.com/" + re.sub(r"[^a-zA-Z0-9_.]", "", re.sub(r"\s+", "_", name))


def workload_resources(resources: Mapping[str, str], workload: str) -> dict[str, int]:
    """The GPU resources among ``resources`` (a node's allocatable or capacity) that ``workload`` offers.

    Container mode offers ``nvidia.com/gpu``, its shared form and MIG slices; the virtual machine modes offer the
    card under its own name. The card's audio function is not a GPU.
    """
    offered: dict[str, int] = {}
    for name, quantity in resources.items():
        domain, _, kind = name.partition("/")
        if domain != "nvidia.com" or not quantity.isdecimal() or kind.endswith("_AUDIO"):
            continue
        for_containers = kind in ("gpu", "gpu.shared") or kind.startswith("mig-")
        if for_containers == (workload == CONTAINER):
            offered[name] = int(quantity)
    return offered
