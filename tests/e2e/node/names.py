"""What the node and its cluster are called, and the texts that tests compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

HERE = Path(__file__).resolve().parent

NODE = "omen2"
ADDRESS = "10.99.0.10"
GATEWAY = "10.99.0.1"
SERVER = f"https://{GATEWAY}:6443"
ETCD = "http://127.0.0.1:12379"

Mode = Literal["container", "vm-passthrough"]
CONTAINER: Mode = "container"
PASSTHROUGH: Mode = "vm-passthrough"
WORKLOAD_CONFIG = "nvidia.com/gpu.workload.config"
DEPLOY = "nvidia.com/gpu.deploy."
FEATURE = "feature.node.kubernetes.io/pci-10de.present"
GPU = "nvidia.com/gpu"
RTX_5090 = "nvidia.com/GB202_GEFORCE_RTX_5090"
RESOURCE: dict[Mode, str] = {CONTAINER: GPU, PASSTHROUGH: RTX_5090}
"""What the card is advertised as in each mode."""
OPERANDS: dict[Mode, frozenset[str]] = {
    CONTAINER: frozenset({"nvidia-device-plugin-daemonset"}),
    PASSTHROUGH: frozenset({"nvidia-sandbox-device-plugin-daemonset", "nvidia-vfio-manager"}),
}
"""The DaemonSets, by their label "app", that have a pod on the node in each mode."""
DEPLOYED_BY: dict[Mode, str] = {CONTAINER: DEPLOY + "device-plugin", PASSTHROUGH: DEPLOY + "vfio-manager"}
"""A deploy label that stands in one mode only."""
VMS = ("gpu-fedora", "rhel9-gpu-vm")

CALLS = "/var/log/gpufix-calls"
"""On the node: one line for each call of vfio-manage.sh, with its time and its pod."""
USERS = ("root", "operator", "ops")
"""Whom sshd lets in with the key; operator may sudo with SUDO_PASSWORD, ops without one."""
SUDO_PASSWORD = "practice"
"""Of a node that is thrown away, and that only this host can reach."""
IMAGE = "registry.invalid/gpufix/standin:v1"
PAUSE_IMAGE = "registry.invalid/gpufix/pause:v1"

FSTAB_HEALTHY = """\
# /etc/fstab: static file system information.
UUID=11111111-2222-3333-4444-555555555555 /data/swap-archive ext4 noauto,nofail 0 0
#/old.swap none swap sw 0 0
"""
FSTAB_INCIDENT = """\
# /etc/fstab: static file system information.
UUID=11111111-2222-3333-4444-555555555555 /data/swap-archive ext4 noauto,nofail 0 0
/swapfile none swap sw 0 0
#/old.swap none swap sw 0 0
"""
FSTAB_FIXED = """\
# /etc/fstab: static file system information.
UUID=11111111-2222-3333-4444-555555555555 /data/swap-archive ext4 noauto,nofail 0 0
#/swapfile none swap sw 0 0
#/old.swap none swap sw 0 0
"""
"""What FSTAB_INCIDENT must become, byte for byte: a data mount and a comment that say "swap" are left alone."""
