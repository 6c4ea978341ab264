"""What acts in the cluster besides the kubelets: node controller, GPU Operator, DaemonSet controller. Pure."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpufix.lab.operands import DEPLOY, OPERANDS, app_of, wanted_labels
from gpufix.lab.store import Object
from gpufix.lab.world import World, condition, set_condition, stamp

GRACE = 50.0
"""node-monitor-grace-period since 1.32; 40 s before (FACTS 5)."""
TAINT_STAYS = 4.0
"""Seconds that the NoExecute taint outlives the first Ready=True (FACTS 9: Ready comes seconds before)."""
UNREACHABLE = "node.kubernetes.io/unreachable"
NAMESPACE = "gpu-operator"
TERMINATION = 30
OPERATOR_DELAY = 0.2
"""FACTS 9: all deploy labels changed within 0.2 s."""


# --- the node controller ---------------------------------------------------------------------------------------------


def node_lifecycle(world: World) -> None:
    """Rule: a node whose kubelet is silent for the grace period is given up; one that speaks again is taken back."""
    for name, machine in world.machines.items():
        node = world.node(name)
        ready = condition(node, "Ready")["status"]
        if not machine.alive and ready == "True":
            world.later(GRACE if machine.minor >= 32 else 40.0, f"dead/{name}", partial(_give_up, world, name))
        if ready == "True" and any(taint["key"] == UNREACHABLE for taint in node["spec"].get("taints", [])):
            keep = [
                taint
                for taint in node["spec"]["taints"]
                if taint["key"] != UNREACHABLE or taint["effect"] == "NoExecute"
            ]
            _set_taints(world, node, keep)
            world.later(TAINT_STAYS, f"untaint/{name}", partial(_untaint, world, name))


def _give_up(world: World, name: str) -> None:
    """Ready=Unknown and both taints; pods there are not Ready, and stay Running (FACTS 9). Allocatable is frozen."""
    node, now = world.node(name), world.stamp
    for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready"):
        beat = condition(node, kind)["lastHeartbeatTime"]
        message = "Kubelet stopped posting node status."
        set_condition(
            node["status"], kind, "Unknown", now, reason="NodeStatusUnknown", message=message, lastHeartbeatTime=beat
        )
    taints = [{"key": UNREACHABLE, "effect": effect, "timeAdded": now} for effect in ("NoSchedule", "NoExecute")]
    _set_taints(world, node, [*node["spec"].get("taints", []), *taints])
    world.cancel(f"untaint/{name}")
    for pod in world.pods_on(name):
        if condition(pod, "Ready").get("status") == "True":
            set_condition(pod["status"], "Ready", "False", now)
            world.put("pods", pod)
    world.event(node, "NodeNotReady", f"Node {name} status is now: NodeNotReady", component="node-controller")


def _untaint(world: World, name: str) -> None:
    node = world.node(name)
    if condition(node, "Ready")["status"] == "True":
        _set_taints(world, node, [taint for taint in node["spec"].get("taints", []) if taint["key"] != UNREACHABLE])


def _set_taints(world: World, node: Object, taints: list[dict[str, Any]]) -> None:
    node["spec"]["taints"] = taints
    if not taints:
        del node["spec"]["taints"]
    world.put("nodes", node)


# --- the GPU Operator ------------------------------------------------------------------------------------------------


def gpu_operator(world: World) -> None:
    """Rule: while it runs, the operator brings the deploy labels in line with the workload label (FACTS 1, 0.5)."""
    if not world.operator:
        return
    for name in world.machines:
        if _label_changes(world, name):
            world.later(OPERATOR_DELAY, f"operator/{name}", partial(_relabel, world, name))
    _judge_policy(world)


def _label_changes(world: World, name: str) -> dict[str, str | None]:
    policy = world.store.get("clusterpolicies", "cluster-policy")
    sandbox = (policy or {"spec": {}})["spec"].get("sandboxWorkloads", {})
    return wanted_labels(world.labels(name), sandbox.get("enabled") is True, sandbox.get("defaultWorkload", ""))


def _relabel(world: World, name: str) -> None:
    if world.operator:
        world.set_labels(name, _label_changes(world, name))


def _judge_policy(world: World) -> None:
    """``ready`` where no DaemonSet lacks a pod that it wants now: with none desired all is well (FACTS 1)."""
    policy = world.store.get("clusterpolicies", "cluster-policy")
    if policy is None:
        return
    waiting = [
        OPERANDS[one["metadata"]["name"]].state
        for one in world.store.all("daemonsets")
        if one["metadata"]["name"] in OPERANDS
        and one["status"]["numberReady"] < one["status"]["desiredNumberScheduled"]
    ]
    now, status = world.stamp, policy["status"]
    status["state"] = "notReady" if waiting else "ready"
    if waiting:
        told = f"ClusterPolicy is not ready, states not ready: [{' '.join(waiting)}]"
        set_condition(status, "Ready", "False", now, reason="Error", message="")
        set_condition(status, "Error", "True", now, reason="OperandNotReady", message=told)
    else:
        told = "ClusterPolicy is ready as all resources have been successfully reconciled"
        set_condition(status, "Ready", "True", now, reason="Reconciled", message=told)
        set_condition(status, "Error", "False", now, reason="Ready", message="")
    world.put("clusterpolicies", policy)


# --- the DaemonSet controller ----------------------------------------------------------------------------------------


def daemonsets(world: World) -> None:
    """Rule: a pod on every node that the selector names, none elsewhere.

    DaemonSet pods tolerate the NoExecute taints of a dead node for ever, and not its NoSchedule one: old ones stay,
    new ones wait. An unwanted pod gets a deletion mark, and stays until a kubelet acts on it (FACTS 5, 9).
    """
    pods, nodes = world.pods_by_node(), list(world.store.all("nodes"))
    for daemonset in world.store.all("daemonsets"):
        selector = daemonset["spec"]["template"]["spec"]["nodeSelector"]
        counts = {"desiredNumberScheduled": 0, "currentNumberScheduled": 0, "numberReady": 0, "numberMisscheduled": 0}
        for node in nodes:
            name, labels = node["metadata"]["name"], node["metadata"].get("labels", {})
            here = [pod for pod in pods.get(name, []) if app_of(pod) == daemonset["metadata"]["name"]]
            kept = [pod for pod in here if "deletionTimestamp" not in pod["metadata"]]
            fits = all(labels.get(key) == value for key, value in selector.items())
            open_ = not any(
                taint["effect"] == "NoSchedule" and taint["key"] == UNREACHABLE
                for taint in node["spec"].get("taints", [])
            )
            if not fits:
                for pod in kept:
                    mark_for_deletion(world, pod)
            elif open_ and not here:
                world.put("pods", _pod_of(world, daemonset, name))
            counts["desiredNumberScheduled"] += fits and open_
            counts["currentNumberScheduled"] += fits and open_ and bool(here)
            counts["numberMisscheduled"] += bool(here) and not (fits and open_)
            counts["numberReady"] += (
                fits and open_ and any(condition(pod, "Ready").get("status") == "True" for pod in kept)
            )
        daemonset["status"] = {
            **counts,
            "updatedNumberScheduled": counts["currentNumberScheduled"],
            "numberAvailable": counts["numberReady"],
        }
        world.put("daemonsets", daemonset)


def mark_for_deletion(world: World, pod: Object) -> None:
    """A graceful deletion: the mark stands until the kubelet has done its part. A pod that no node has goes at once."""
    if not pod["spec"].get("nodeName"):
        world.store.remove("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])
        return
    seconds = pod["spec"].get("terminationGracePeriodSeconds", TERMINATION)
    pod["metadata"].setdefault("deletionTimestamp", stamp(world.now + seconds))
    pod["metadata"].setdefault("deletionGracePeriodSeconds", seconds)
    world.put("pods", pod)


def _pod_of(world: World, daemonset: Object, node: str) -> Object:
    app = daemonset["metadata"]["name"]
    template = daemonset["spec"]["template"]
    forever = [
        {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute"}
        for name in ("not-ready", "unreachable")
    ]
    pressures = [
        {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoSchedule"}
        for name in ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
    ]
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    status: dict[str, Any] = {"phase": "Pending", "qosClass": "BestEffort"}
    set_condition(status, "PodScheduled", "True", world.stamp)
    status["initContainerStatuses"] = [_waiting(one["name"]) for one in template["spec"].get("initContainers", [])]
    status["containerStatuses"] = [_waiting(OPERANDS[app].main_container)]
    return {
        "metadata": {
            "name": f"{app}-{world.suffix()}", "generateName": f"{app}-", "namespace": NAMESPACE,
            "labels": dict(template["metadata"]["labels"]),
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": app, "uid": daemonset["metadata"]["uid"],
                 "controller": True},
            ],
        },
        "spec": {
            **template["spec"], "nodeName": node, "terminationGracePeriodSeconds": TERMINATION,
            "tolerations": [gpu, *forever, *pressures],
        },
        "status": status,
    }  # fmt: skip


def _waiting(name: str) -> dict[str, Any]:
    return {
        "name": name, "ready": False, "restartCount": 0, "image": "registry.invalid/lab:v1", "imageID": "",
        "state": {"waiting": {"reason": "PodInitializing"}}, "lastState": {},
    }  # fmt: skip


def deploy_label(app: str) -> str:
    return DEPLOY + OPERANDS[app].deploy
