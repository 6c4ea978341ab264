"""The GPU Operator's labels, and the DaemonSets that follow them. Pure; FACTS 1 (NVIDIA/gpu-operator v25.3.0)."""

from __future__ import annotations

from typing import NamedTuple

from gpufix.lab.store import Object

WORKLOAD = "nvidia.com/gpu.workload.config"
PRESENT = "nvidia.com/gpu.present"
DEPLOY = "nvidia.com/gpu.deploy."
NFD = tuple(f"feature.node.kubernetes.io/pci-{pci}.present" for pci in ("10de", "0302_10de", "0300_10de"))

CONTAINER = "container"
PASSTHROUGH = "vm-passthrough"
DEPLOYED = {
    CONTAINER: (
        "driver", "gpu-feature-discovery", "container-toolkit", "device-plugin", "dcgm", "dcgm-exporter",
        "node-status-exporter", "operator-validator",
    ),
    PASSTHROUGH: ("sandbox-device-plugin", "sandbox-validator", "vfio-manager", "kata-manager", "cc-manager"),
    "vm-vgpu": ("sandbox-device-plugin", "vgpu-manager", "vgpu-device-manager", "sandbox-validator", "cc-manager"),
}  # fmt: skip
"""Workload -> the deploy labels (without their prefix) that the operator sets to true."""


class Operand(NamedTuple):
    """A DaemonSet of the operator, and its ``app`` label.

    ``deploy`` is the deploy label (without its prefix) that selects its nodes; ``state`` is what the ClusterPolicy's
    condition calls it when it is not ready.
    """

    daemonset: str
    main_container: str
    deploy: str
    state: str


OPERANDS = {
    operand.daemonset: operand
    for operand in (
        Operand("gpu-feature-discovery", "gpu-feature-discovery", "gpu-feature-discovery", "gpu-feature-discovery"),
        Operand(
            "nvidia-container-toolkit-daemonset",
            "nvidia-container-toolkit-ctr",
            "container-toolkit",
            "state-container-toolkit",
        ),
        Operand("nvidia-dcgm-exporter", "nvidia-dcgm-exporter", "dcgm-exporter", "state-dcgm-exporter"),
        Operand("nvidia-device-plugin-daemonset", "nvidia-device-plugin", "device-plugin", "state-device-plugin"),
        Operand(
            "nvidia-operator-validator", "nvidia-operator-validator", "operator-validator", "state-operator-validation"
        ),
        Operand(
            "nvidia-sandbox-device-plugin-daemonset",
            "nvidia-sandbox-device-plugin-ctr",
            "sandbox-device-plugin",
            "state-sandbox-device-plugin",
        ),
        Operand(
            "nvidia-sandbox-validator", "nvidia-sandbox-validator", "sandbox-validator", "state-sandbox-validation"
        ),
        Operand("nvidia-vfio-manager", "nvidia-vfio-manager", "vfio-manager", "state-vfio-manager"),
        Operand(
            "nvidia-vgpu-device-manager",
            "nvidia-vgpu-device-manager",
            "vgpu-device-manager",
            "state-vgpu-device-manager",
        ),
    )
}
"""By DaemonSet. The other operands are off in this ClusterPolicy."""


def app_of(pod: Object) -> str:
    """The DaemonSet that a pod belongs to, from its ``app`` label; empty for another's."""
    app: str = pod["metadata"].get("labels", {}).get("app", "")
    return app


def main_container(pod: Object) -> str:
    app = app_of(pod)
    if app == "virt-launcher":
        return "compute"
    return OPERANDS[app].main_container if app in OPERANDS else app


def wanted_labels(labels: dict[str, str], sandbox: bool, default: str) -> dict[str, str | None]:
    """What the operator changes: nvidia.com/gpu.present and the deploy labels. Existing values are kept, whatever
    they are (a stale pause keeps an operand off); a label that is missing or no workload means ``default``."""
    if not any(labels.get(name) == "true" for name in NFD):
        if PRESENT not in labels:
            return {}
        gone: dict[str, str | None] = {name: None for name in labels if name.startswith(DEPLOY)}
        return {**gone, **({} if labels[PRESENT] == "false" else {PRESENT: "false"})}
    workload = labels.get(WORKLOAD, "")
    workload = workload if workload in DEPLOYED else default if default in DEPLOYED else CONTAINER
    wanted = {DEPLOY + name for name in DEPLOYED[workload if sandbox else CONTAINER]}
    others = {DEPLOY + name for names in DEPLOYED.values() for name in names} - wanted
    changes: dict[str, str | None] = {name: "true" for name in sorted(wanted) if name not in labels}
    changes.update({name: None for name in sorted(others) if name in labels})
    if labels.get(PRESENT) != "true":
        changes[PRESENT] = "true"
    return changes
