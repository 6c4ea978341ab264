"""A real one-node cluster for the end-to-end tests.

What is real: etcd, kube-apiserver, kube-controller-manager and kube-scheduler on this host, and the node
``omen2``, booted by systemd-nspawn with its own systemd, sshd, journald, containerd and kubelet. Its swap is
real too, and so is this whole machine's: ``up`` refuses where swap is on, ``down`` turns it off from outside.

What stands in: the card and all that needs one. The device plugins speak the kubelet's real protocol about
devices that are not there (deviceplugin/main.go); GPU Operator, KubeVirt and NFD are the few rules of theirs
that decide about a node (stand_ins.py, manifests/, and a label that is set by hand); every image is one that
is made here, since nothing can be pulled.

    from node import RealNode        # tests/e2e is on sys.path for the tests beside it
    node = RealNode()
    node.up(); node.incident(); ...; node.reset("container"); node.down()

By hand: ``realnode.sh`` beside this file. Root only; Debian with apt, or the commands of HOST_PACKAGES in
furnish.py already there. One node at a time on a machine.
"""

from .machine import RealNodeError, swap_devices
from .names import (
    ADDRESS,
    CALLS,
    CONTAINER,
    FSTAB_FIXED,
    FSTAB_HEALTHY,
    FSTAB_INCIDENT,
    GPU,
    NODE,
    PASSTHROUGH,
    RTX_5090,
    SUDO_PASSWORD,
    VMS,
    WORKLOAD_CONFIG,
    Mode,
)
from .realnode import RealNode

__all__ = [
    "ADDRESS",
    "CALLS",
    "CONTAINER",
    "FSTAB_FIXED",
    "FSTAB_HEALTHY",
    "FSTAB_INCIDENT",
    "GPU",
    "NODE",
    "PASSTHROUGH",
    "RTX_5090",
    "SUDO_PASSWORD",
    "VMS",
    "WORKLOAD_CONFIG",
    "Mode",
    "RealNode",
    "RealNodeError",
    "swap_devices",
]
