"""The practice cluster before anything happens: eight nodes, two cards, two VMs, the GPU Operator's objects. Pure."""

from __future__ import annotations

import uuid
from typing import Any

from gpufix.lab import controllers, kubelet, kubevirt
from gpufix.lab.machine import CONFIG, FLAGS, FSTAB, KUBELET, UNITS, Card, Machine
from gpufix.lab.operands import CONTAINER, OPERANDS, PASSTHROUGH, WORKLOAD
from gpufix.lab.store import Object
from gpufix.lab.world import World, set_condition

RULES = (
    controllers.node_lifecycle,
    controllers.gpu_operator,
    controllers.daemonsets,
    kubelet.sync,
    kubevirt.machines,
    kubevirt.holds_card,
)
TARGET = "omen2"
RTX_5090 = "nvidia.com/GB202_GEFORCE_RTX_5090"
AUDIO = "nvidia.com/GB202_AUDIO"
_NODES = {
    "cp1": "control-plane",
    "cp2": "control-plane",
    "cp3": "control-plane",
    "omen1": "",
    TARGET: "",
    "nuc1": "",
    "nuc2": "",
    "nuc3": "",
}
_CARDS = {
    TARGET: (
        Card("0000:01:00.0", "2b85", "030000", "", "14", "GB202 [GeForce RTX 5090]"),
        Card("0000:01:00.1", "22e8", "040300", "", "14", "GB202 Audio"),
    ),
    "omen1": (
        Card("0000:0a:00.0", "2204", "030000", "nvidia", "19", "GA102 [GeForce RTX 3090]"),
        Card("0000:0a:00.1", "1aef", "040300", "snd_hda_intel", "19", "GA102 Audio"),
    ),
}
_FSTAB = """\
# /etc/fstab: static file system information.
UUID=5b1f3c1e-8f0f-4d39-9f34-0c2c4b6c9a11 / ext4 errors=remount-ro 0 1
UUID=8C1A-55E2 /boot/efi vfat umask=0077 0 1
/dev/vg0/models /data/swap-models ext4 defaults,nofail 0 2
"""
_CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
failSwapOn: true
staticPodPath: /etc/kubernetes/manifests
"""
_UNIT = """\
[Unit]
Description=kubelet: The Kubernetes Node Agent

[Service]
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml --kubeconfig=/etc/kubernetes/kubelet.conf \\
    $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
"""


def build(now: float, pace: float = 1.0, kubelet_version: str = "v1.34.4") -> World:
    """The cluster at ``now``, its kubelets just started, nothing running yet; ``advance`` brings it to life."""
    world = World(now, pace)
    for name in ("default", "kube-system", "kube-node-lease", controllers.NAMESPACE, "kubevirt"):
        world.put("namespaces", {"metadata": {"name": name}, "status": {"phase": "Active"}})
    _policy(world)
    for app in OPERANDS:
        world.put("daemonsets", _daemonset(app))
    for number, (name, role) in enumerate(_NODES.items(), start=10):
        world.machines[name] = _machine(world, name, kubelet_version)
        world.put("nodes", _node(world, name, role, f"192.0.2.{number}", kubelet_version))
    _kubevirt(world)
    world.put("pods", _operator_pod())
    world.rules = RULES
    for machine in world.machines.values():
        kubelet.start(world, machine)
    kubevirt.heartbeat(world)
    return world


def _machine(world: World, name: str, version: str) -> Machine:
    machine = Machine(name, _id(f"boot/{name}/0"), world.now, version)
    machine.units[KUBELET] = kubelet.new_unit()
    machine.disk = {
        FSTAB: _FSTAB,
        CONFIG: _CONFIG,
        FLAGS: f'KUBELET_KUBEADM_ARGS="--hostname-override={name} --v=2"\n',
        f"{UNITS}/{KUBELET}": _UNIT,
    }
    machine.cards = [Card(c.address, c.device, c.pci_class, c.driver, c.group, c.text) for c in _CARDS.get(name, ())]
    machine.reload_units()
    return machine


def boot(world: World, machine: Machine) -> None:
    """A reboot: processes and containers end, swap comes from what brings it back, an enabled kubelet starts.

    The card comes up on the host's own driver, unless it lies with vfio-pci already (an operator that wants VMs keeps
    its ids there); held units are held no more (FACTS 0.3, 6).
    """
    kubelet.stop(world, machine)
    machine.boot_id, machine.booted = _id(f"boot/{machine.name}/{world.now}"), world.now
    machine.processes.clear()
    machine.kernel.clear()
    machine.containers.clear()
    for unit in machine.units.values():
        unit.active, unit.sub, unit.result, unit.pid, unit.restarts = "inactive", "dead", "success", 0, 0
    machine.available += sum(swap.used for swap in machine.swaps)
    machine.swaps.clear()
    machine.reload_units()
    for path in machine.comes_back():
        machine.swap_on(path)
    for card in machine.gpus:
        card.driver = card.driver or "nvidia"
    if machine.kubelet.enabled and not machine.masked(KUBELET):
        kubelet.start(world, machine)


def _node(world: World, name: str, role: str, address: str, version: str) -> Object:
    labels = {
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        "kubevirt.io/schedulable": "true",
    }  # fmt: skip
    if role:
        labels[f"node-role.kubernetes.io/{role}"] = ""
    if name in _CARDS:
        labels["feature.node.kubernetes.io/pci-10de.present"] = "true"
        labels[WORKLOAD] = PASSTHROUGH if name == TARGET else CONTAINER
    amounts = {"cpu": "16", "memory": "65536000Ki", "pods": "110", "ephemeral-storage": "943718400Ki"}
    amounts.update({f"devices.kubevirt.io/{device}": "1k" for device in ("kvm", "tun", "vhost-net")})
    status: dict[str, Any] = {
        "allocatable": dict(amounts), "capacity": dict(amounts),
        "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
        "nodeInfo": {
            "bootID": world.machines[name].boot_id, "kubeletVersion": version, "architecture": "amd64",
            "operatingSystem": "linux", "osImage": "Debian GNU/Linux 12 (bookworm)", "kernelVersion": "6.12.0",
            "containerRuntimeVersion": "containerd://1.7.24", "kubeProxyVersion": "",
            "machineID": _id(f"machine/{name}").replace("-", ""), "systemUUID": _id(f"system/{name}"),
        },
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    }  # fmt: skip
    for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready"):
        set_condition(
            status, kind, "Unknown", world.stamp, reason="NodeStatusNeverUpdated", lastHeartbeatTime=world.stamp
        )
    spec: dict[str, Any] = {}
    if role:
        spec["taints"] = [{"key": f"node-role.kubernetes.io/{role}", "effect": "NoSchedule"}]
    # another one in each lab: what a journal says of the node of an earlier lab is not of this one
    metadata = {"name": name, "uid": _id(f"node/{name}/{world.now}"), "labels": labels, "annotations": {}}
    return {"metadata": metadata, "spec": spec, "status": status}


def _daemonset(app: str) -> Object:
    labels = {"app": app}
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "nodeSelector": {controllers.deploy_label(app): "true"},
            "initContainers": [
                {
                    "name": "k8s-driver-manager" if app == "nvidia-vfio-manager" else "validation",
                    "image": "registry.invalid/lab:v1",
                }
            ],
            "containers": [{"name": OPERANDS[app].main_container, "image": "registry.invalid/lab:v1"}],
        },
    }
    counts = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "numberMisscheduled")
    return {
        "metadata": {"name": app, "namespace": controllers.NAMESPACE, "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
        "status": dict.fromkeys(counts, 0),
    }


def _policy(world: World) -> None:
    enabled = {"driver": False, "toolkit": True, "devicePlugin": True, "dcgm": False, "dcgmExporter": True, "gfd": True}
    spec: dict[str, Any] = {name: {"enabled": on} for name, on in enabled.items()}
    spec["vfioManager"] = spec["sandboxDevicePlugin"] = {"enabled": True}
    spec["sandboxWorkloads"] = {"enabled": True, "defaultWorkload": CONTAINER}
    status = {"state": "ready", "namespace": controllers.NAMESPACE}
    world.put("clusterpolicies", {"metadata": {"name": "cluster-policy"}, "spec": spec, "status": status})


def _operator_pod() -> Object:
    """The operator's own pod, on a node that nothing happens to. ``world.operator`` says whether it runs."""
    return {
        "metadata": {
            "name": "gpu-operator-6d7f8c9b5-x2x4k", "namespace": controllers.NAMESPACE,
            "labels": {"app": "gpu-operator", "app.kubernetes.io/component": "gpu-operator"},
        },
        "spec": {"nodeName": "cp1", "containers": [{"name": "gpu-operator", "image": "registry.invalid/lab:v25.3.0"}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "gpu-operator", "ready": True, "restartCount": 0}],
        },
    }  # fmt: skip


def _kubevirt(world: World) -> None:
    devices = [
        {"pciVendorSelector": "10DE:2B85", "resourceName": RTX_5090, "externalResourceProvider": True},
        {"pciVendorSelector": "10DE:22E8", "resourceName": AUDIO, "externalResourceProvider": True},
    ]
    gates = {"featureGates": ["GPU", "HostDevices"]}
    configuration = {"developerConfiguration": gates, "permittedHostDevices": {"pciHostDevices": devices}}
    world.put(
        "kubevirts",
        {
            "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
            "spec": {"configuration": configuration},
            "status": {"phase": "Deployed", "observedKubeVirtVersion": "v1.7.0"},
        },
    )
    for name, audio in (("gpu-fedora", True), ("rhel9-gpu-vm", False)):
        wanted: dict[str, Any] = {"gpus": [{"name": "gpu1", "deviceName": RTX_5090}]}
        if audio:
            wanted["hostDevices"] = [{"name": "audio", "deviceName": AUDIO}]
        template = {"spec": {"domain": {"devices": wanted, "memory": {"guest": "16Gi"}}}}
        vm = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"runStrategy": "Halted", "template": template},
            "status": {},
        }
        world.put("virtualmachines", vm)


def set_run_strategy(world: World, vm: str, strategy: str) -> None:
    found = world.store.get("virtualmachines", vm, "default")
    if found is None:
        raise KeyError(f"the practice cluster has no VM {vm}")
    found["spec"]["runStrategy"] = strategy
    world.put("virtualmachines", found)


def _id(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"gpufix.lab/{name}"))
