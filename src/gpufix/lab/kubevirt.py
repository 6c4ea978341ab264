"""Virtual machines: KubeVirt's objects, the scheduler's answer, and the process that holds the card. Pure.

FACTS 3 and 9: ErrorUnschedulable is copied from the launcher's PodScheduled condition; the scheduler's message says how
many nodes, never which. virt-handler is a container: its heartbeat goes on while the kubelet is dead.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from gpufix.lab.controllers import mark_for_deletion
from gpufix.lab.machine import Process
from gpufix.lab.store import Object
from gpufix.lab.world import World, condition, set_condition

HEARTBEAT = 60.0
"""Seconds between two heartbeats of virt-handler: 1 to 2.2 min (FACTS 3)."""
_KVM = {f"devices.kubevirt.io/{name}": "1" for name in ("kvm", "tun", "vhost-net")}


def heartbeat(world: World) -> None:
    """Start virt-handler's heartbeats. They end with the machine only."""
    for name in world.machines:
        node = world.node(name)
        if "kubevirt.io/schedulable" in node["metadata"]["labels"]:
            node["metadata"].setdefault("annotations", {})["kubevirt.io/heartbeat"] = world.stamp
            world.put("nodes", node)
    world.later(HEARTBEAT, "virt-handler", partial(heartbeat, world))


def machines(world: World) -> None:
    """Rule: a VM that is to run has an instance and a launcher pod; one that is not has neither."""
    for vm in world.store.all("virtualmachines"):
        name, namespace = vm["metadata"]["name"], vm["metadata"]["namespace"]
        launchers = [
            pod
            for pod in world.store.all("pods")
            if pod["metadata"].get("labels", {}).get("vm.kubevirt.io/name") == name
        ]
        if vm["spec"].get("runStrategy") == "Halted":
            for pod in launchers:
                mark_for_deletion(world, pod)
            world.store.remove("virtualmachineinstances", name, namespace)
        else:
            instance = world.store.get("virtualmachineinstances", name, namespace)
            if instance is None:
                instance = world.put("virtualmachineinstances", _instance(vm))
            if not launchers:  # an old one that is still going is waited for
                launchers = [world.put("pods", _launcher(world, vm, instance))]
            for pod in launchers:
                _schedule(world, pod)
        _tell(world, vm)


def _tell(world: World, vm: Object) -> None:
    """The statuses of instance and machine, from the launcher's."""
    name, namespace, now = vm["metadata"]["name"], vm["metadata"]["namespace"], world.stamp
    instance = world.store.get("virtualmachineinstances", name, namespace)
    status = vm.setdefault("status", {})
    if instance is None:
        status["printableStatus"] = "Stopped"
        set_condition(status, "Ready", "False", now, reason="VMINotExists", message="VMI does not exist")
        world.put("virtualmachines", vm)
        return
    pod = next(
        (
            pod
            for pod in world.store.all("pods")
            if pod["metadata"].get("labels", {}).get("vm.kubevirt.io/name") == name
        ),
        None,
    )
    scheduled = condition(pod, "PodScheduled") if pod else {}
    running = pod is not None and pod["status"].get("phase") == "Running"
    instance["status"]["phase"] = (
        "Running" if running else "Scheduled" if scheduled.get("status") == "True" else "Scheduling"
    )
    for one in (instance["status"], status):
        if scheduled.get("status") == "False":
            told = {"reason": "Unschedulable", "message": scheduled["message"]}
            set_condition(one, "PodScheduled", "False", now, **told)
        else:
            one["conditions"] = [old for old in one.get("conditions", []) if old["type"] != "PodScheduled"]
        why = {} if running else {"reason": "GuestNotRunning", "message": "Guest VM is not reported as running"}
        set_condition(one, "Ready", "True" if running else "False", now, **why)
    if running and pod is not None:
        instance["status"]["nodeName"] = pod["spec"]["nodeName"]
        told = {"reason": "HostDeviceNotLiveMigratable", "message": "VMI uses a PCI host devices"}
        set_condition(instance["status"], "LiveMigratable", "False", now, **told)
    status["created"], status["ready"], status["runStrategy"] = True, running, vm["spec"]["runStrategy"]
    unschedulable = scheduled.get("status") == "False"
    status["printableStatus"] = "Running" if running else "ErrorUnschedulable" if unschedulable else "Starting"
    world.put("virtualmachineinstances", instance)
    world.put("virtualmachines", vm)


def holds_card(world: World) -> None:
    """Rule: the qemu of a launcher that runs has the card's VFIO group open."""
    for pod in world.store.all("pods"):
        if (
            pod["metadata"].get("labels", {}).get("kubevirt.io") != "virt-launcher"
            or pod["status"].get("phase") != "Running"
        ):
            continue
        machine = world.machines[pod["spec"]["nodeName"]]
        uid = pod["metadata"]["uid"]
        started = any(one.uid == uid and one.running for one in machine.containers)
        if started and not any(one.pod == uid for one in machine.processes.values()):
            groups = tuple(f"/dev/vfio/{card.group}" for card in machine.gpus)
            pid = machine.new_pid()
            cgroup = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid.replace('-', '_')}.slice"
            machine.processes[pid] = Process(pid, "qemu-kvm", groups, cgroup, pod=uid)


# --- the scheduler ---------------------------------------------------------------------------------------------------


def _schedule(world: World, pod: Object) -> None:
    if pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
        return
    obstacles: Counter[str] = Counter()
    for name in sorted(world.machines):
        obstacle = _obstacle(world, world.node(name), pod)
        if not obstacle:
            pod["spec"]["nodeName"] = name
            set_condition(pod["status"], "PodScheduled", "True", world.stamp)
            world.put("pods", pod)
            return
        obstacles[obstacle] += 1
    total = len(world.machines)
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in obstacles.items()))
    message = (
        f"0/{total} nodes are available: {reasons}. no new claims to deallocate, preemption: 0/{total} nodes are "
        f"available: {total} Preemption is not helpful for scheduling."
    )
    old = condition(pod, "PodScheduled")
    set_condition(pod["status"], "PodScheduled", "False", world.stamp, reason="Unschedulable", message=message)
    if old.get("message") != message:
        world.event(pod, "FailedScheduling", message, "Warning", "default-scheduler")
    world.put("pods", pod)


def _obstacle(world: World, node: Object, pod: Object) -> str:
    """The first filter that a node fails at, in the scheduler's order and words; empty: it fits."""
    labels, name = node["metadata"].get("labels", {}), node["metadata"]["name"]
    if node["spec"].get("unschedulable"):
        return "node(s) were unschedulable"
    if any(taint["effect"] == "NoSchedule" for taint in node["spec"].get("taints", [])):
        return "node(s) had untolerated taint(s)"
    if any(labels.get(key) != value for key, value in pod["spec"].get("nodeSelector", {}).items()):
        return "node(s) didn't match Pod's node affinity/selector"
    taken: Counter[str] = Counter()
    for other in world.pods_on(name):
        taken.update(_asked(other))
    for resource, amount in _asked(pod).items():
        offered = int(str(node["status"]["allocatable"].get(resource, "0")).replace("k", "000"))
        if offered - taken[resource] < amount:
            return f"Insufficient {resource}"
    return ""


def _asked(pod: Object) -> dict[str, int]:
    asked: Counter[str] = Counter()
    for container in pod["spec"].get("containers", []):
        limits = container.get("resources", {}).get("limits", {})
        asked.update({name: int(amount) for name, amount in limits.items() if "/" in name})
    return dict(asked)


# --- objects ---------------------------------------------------------------------------------------------------------


def _owner(item: Object) -> dict[str, Any]:
    metadata = item["metadata"]
    return {
        "apiVersion": item["apiVersion"], "kind": item["kind"], "name": metadata["name"], "uid": metadata["uid"],
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip


def _instance(vm: Object) -> Object:
    metadata = vm["metadata"]
    return {
        "metadata": {
            "name": metadata["name"], "namespace": metadata["namespace"], "ownerReferences": [_owner(vm)],
            "labels": {"kubevirt.io/vm": metadata["name"]},
        },
        "spec": vm["spec"]["template"]["spec"],
        "status": {"phase": "Scheduling"},
    }  # fmt: skip


def _launcher(world: World, vm: Object, instance: Object) -> Object:
    name, devices = vm["metadata"]["name"], vm["spec"]["template"]["spec"]["domain"]["devices"]
    wanted = Counter(one["deviceName"] for kind in ("gpus", "hostDevices") for one in devices.get(kind, []))
    limits = {**_KVM, **{resource: str(count) for resource, count in wanted.items()}}
    return {
        "metadata": {
            "name": f"virt-launcher-{name}-{world.suffix()}", "namespace": vm["metadata"]["namespace"],
            "generateName": f"virt-launcher-{name}-", "ownerReferences": [_owner(instance)],
            "labels": {"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": name, "app": "virt-launcher",
                       "kubevirt.io/created-by": instance["metadata"]["uid"]},
        },
        "spec": {
            "containers": [{"name": "compute", "image": "registry.invalid/lab:v1", "resources": {"limits": limits}}],
            "nodeSelector": {"kubevirt.io/schedulable": "true"}, "terminationGracePeriodSeconds": 60,
            "restartPolicy": "Never",
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }  # fmt: skip
