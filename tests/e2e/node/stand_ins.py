#!/usr/bin/env python3
"""Two small controllers that stand in for ones that cannot run without a card.

    stand_ins.py gpu-operator --server URL --pki DIR
    stand_ins.py kubevirt     --server URL --pki DIR

gpu-operator follows the GPU Operator's label rules (v25.3.0, controllers/state_manager.go): it turns
``nvidia.com/gpu.workload.config`` into ``nvidia.com/gpu.deploy.*`` labels and writes the
ClusterPolicy's status from its DaemonSets. kubevirt does what virt-controller does for the tests'
virtual machines (instance, launcher pod, status) and what virt-handler does for the node (heartbeat,
``kubevirt.io/schedulable``). Both run on the host beside the control plane, as an operator on another
node would: nothing in the cluster pretends that they are pods. What they write is really stored, and
what follows from it (DaemonSets, scheduling, kubelet) is the real thing.

Standard library only. Both watch, react within a second, and outlive an API server that goes away.
"""

from __future__ import annotations

import argparse
import http.client
import json
import ssl
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Object = dict[str, Any]

WORKLOAD_CONFIG = "nvidia.com/gpu.workload.config"
PRESENT = "nvidia.com/gpu.present"
OPERANDS = "nvidia.com/gpu.deploy.operands"
DEPLOY = "nvidia.com/gpu.deploy."
FEATURES = tuple(f"feature.node.kubernetes.io/pci-{pci}.present" for pci in ("10de", "0302_10de", "0300_10de"))
DEPLOY_LABELS: dict[str, tuple[str, ...]] = {
    "container": (
        "driver",
        "gpu-feature-discovery",
        "container-toolkit",
        "device-plugin",
        "dcgm",
        "dcgm-exporter",
        "node-status-exporter",
        "operator-validator",
    ),
    "vm-passthrough": ("sandbox-device-plugin", "sandbox-validator", "vfio-manager", "kata-manager", "cc-manager"),
    "vm-vgpu": ("sandbox-device-plugin", "vgpu-manager", "vgpu-device-manager", "sandbox-validator", "cc-manager"),
}
ALL_DEPLOY_LABELS = {DEPLOY + name for names in DEPLOY_LABELS.values() for name in names}
OPERAND_NAMESPACE = "gpu-operator"
STATES = {
    "nvidia-device-plugin-daemonset": "state-device-plugin",
    "nvidia-sandbox-device-plugin-daemonset": "state-sandbox-device-plugin",
    "nvidia-vfio-manager": "state-vfio-manager",
}
IMAGE = "registry.invalid/gpufix/standin:v1"
KUBEVIRT = "/apis/kubevirt.io/v1"
POLICIES = "/apis/nvidia.com/v1/clusterpolicies"
LAUNCHERS = "/api/v1/pods?labelSelector=kubevirt.io%3Dvirt-launcher"


def node_labels(labels: dict[str, str], sandbox: bool, default_workload: str) -> dict[str, str]:
    """Give the labels that the GPU Operator would leave on a node that has ``labels``. Pure."""
    wanted = dict(labels)
    has_feature = any(labels.get(feature) == "true" for feature in FEATURES)
    if has_feature:
        wanted[PRESENT] = "true"
    elif labels.get(PRESENT) == "true":
        wanted[PRESENT] = "false"
    if wanted.get(PRESENT) != "true" or labels.get(OPERANDS) == "false":
        return {name: value for name, value in wanted.items() if name not in ALL_DEPLOY_LABELS}
    config = labels.get(WORKLOAD_CONFIG, "") if sandbox else "container"
    if config not in DEPLOY_LABELS:
        config = default_workload if default_workload in DEPLOY_LABELS else "container"
    keep = {DEPLOY + name for name in DEPLOY_LABELS[config]}
    wanted = {name: value for name, value in wanted.items() if name not in ALL_DEPLOY_LABELS - keep}
    for name in keep:
        wanted.setdefault(name, "true")  # a value that is there stays, "paused-for-driver-upgrade" too
    return wanted


class ApiError(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message[:300]}")
        self.status = status


class Api:
    """The few requests that the stand-ins need. A connection per request: they are few, and local."""

    def __init__(self, server: str, pki: Path) -> None:
        url = urllib.parse.urlsplit(server)
        self.host, self.port = url.hostname or "", url.port or 443
        self.tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self.tls.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))

    def _open(
        self, method: str, path: str, body: object, content_type: str, timeout: float
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPSConnection(self.host, self.port, context=self.tls, timeout=timeout)
        payload = None if body is None else json.dumps(body)
        connection.request(method, path, payload, {"Content-Type": content_type, "Connection": "close"})
        response = connection.getresponse()
        if response.status >= 400:
            raise ApiError(response.status, response.read().decode(errors="replace"))
        return response

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Object:
        with self._open(method, path, body, content_type, timeout=10) as response:
            answer: Object = json.loads(response.read())
            return answer

    def list(self, path: str) -> list[Object]:
        items: list[Object] = self.request("GET", path)["items"]
        return items

    def merge(self, path: str, patch: Object) -> Object:
        return self.request("PATCH", path, patch, "application/merge-patch+json")

    def write_status(self, path: str, status: Object) -> Object:
        """Put the whole status in place: a merge would keep the keys that are gone."""
        patch = [{"op": "add", "path": "/status", "value": status}]
        return self.request("PATCH", path + "/status", patch, "application/json-patch+json")

    def delete(self, path: str) -> None:
        try:
            self.request("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise

    def watch(self, path: str) -> Iterator[Object]:
        """Yield what is there, then every change, until the server ends it."""
        query = "&" if "?" in path else "?"
        with self._open("GET", f"{path}{query}watch=1&timeoutSeconds=240", None, "application/json", 300) as response:
            for line in response:
                yield json.loads(line)


class Controller:
    """Runs ``reconcile`` after every change of what is watched, and every few seconds without one."""

    watched: tuple[str, ...] = ()
    resync = 10.0

    def __init__(self, api: Api) -> None:
        self.api = api
        self.changed = threading.Event()

    def reconcile(self) -> None:
        raise NotImplementedError

    def _follow(self, path: str) -> None:
        while True:
            try:
                for _ in self.api.watch(path):
                    self.changed.set()
            except (ApiError, OSError, ValueError, http.client.HTTPException):
                pass  # away, or restarting: the next watch begins with all that is there
            time.sleep(0.3)

    def run(self) -> None:
        for path in self.watched:
            threading.Thread(target=self._follow, args=(path,), daemon=True).start()
        last_error = ""
        while True:
            self.changed.wait(self.resync)
            self.changed.clear()
            try:
                self.reconcile()
                last_error = ""
            except (ApiError, OSError, ValueError, http.client.HTTPException) as error:
                if str(error) != last_error:
                    say(f"will try again: {error}")
                last_error = str(error)
                time.sleep(0.2)
                self.changed.set()


class GpuOperator(Controller):
    watched = ("/api/v1/nodes", POLICIES, f"/apis/apps/v1/namespaces/{OPERAND_NAMESPACE}/daemonsets")

    def reconcile(self) -> None:
        for policy in self.api.list(POLICIES):
            sandbox = policy["spec"].get("sandboxWorkloads", {})
            for node in self.api.list("/api/v1/nodes"):
                self._label(node, bool(sandbox.get("enabled")), sandbox.get("defaultWorkload", ""))
            self._judge(policy)

    def _label(self, node: Object, sandbox: bool, default_workload: str) -> None:
        metadata = node["metadata"]
        labels: dict[str, str] = metadata.get("labels", {})
        wanted = node_labels(labels, sandbox, default_workload)
        patch = {
            name: wanted.get(name) for name in labels.keys() | wanted.keys() if labels.get(name) != wanted.get(name)
        }
        if patch:
            version = metadata["resourceVersion"]  # a label changed meanwhile must be judged anew
            self.api.merge(
                f"/api/v1/nodes/{metadata['name']}", {"metadata": {"resourceVersion": version, "labels": patch}}
            )
            say(f"node {metadata['name']}: {json.dumps(patch, sort_keys=True)}")

    def _judge(self, policy: Object) -> None:
        """A DaemonSet that no node wants counts as ready, as in the original."""
        not_ready = [
            STATES.get(daemonset["metadata"]["name"], daemonset["metadata"]["name"])
            for daemonset in self.api.list(self.watched[2])
            if daemonset.get("status", {}).get("numberUnavailable", 0)
            or daemonset.get("status", {}).get("observedGeneration", 0) < daemonset["metadata"]["generation"]
        ]
        if not_ready:
            message = f"ClusterPolicy is not ready, states not ready: [{' '.join(sorted(not_ready))}]"
            ready, error = ("False", "Error", ""), ("True", "OperandNotReady", message)
        else:
            message = "ClusterPolicy is ready as all resources have been successfully reconciled"
            ready, error = ("True", "Reconciled", message), ("False", "Ready", "")
        old = policy.get("status", {})
        status = {
            "state": "notReady" if not_ready else "ready",
            "namespace": OPERAND_NAMESPACE,
            "conditions": [condition(old, "Ready", *ready), condition(old, "Error", *error)],
        }
        if old != status:
            self.api.write_status(f"{POLICIES}/{policy['metadata']['name']}", status)


class KubeVirt(Controller):
    """Makes instances and launcher pods, and copies the scheduler's verdict as virt-controller does."""

    watched = (f"{KUBEVIRT}/virtualmachines", f"{KUBEVIRT}/virtualmachineinstances", LAUNCHERS)
    retry_after = 5.0
    """Seconds between two instances of one machine: the original backs off too."""
    heartbeat_every = 60.0

    def __init__(self, api: Api) -> None:
        super().__init__(api)
        self.started: dict[str, float] = {}
        self.beaten: dict[str, float] = {}

    def reconcile(self) -> None:
        for node in self.api.list("/api/v1/nodes"):
            self._beat(node["metadata"])
        instances = {key(instance): instance for instance in self.api.list(f"{KUBEVIRT}/virtualmachineinstances")}
        launchers = self.api.list(LAUNCHERS)
        for machine in self.api.list(f"{KUBEVIRT}/virtualmachines"):
            instance = instances.pop(key(machine), None)
            own = [pod for pod in launchers if instance and created_by(pod) == instance["metadata"]["uid"]]
            self._machine(machine, instance, own)
        uids = {instance["metadata"]["uid"] for instance in self.api.list(f"{KUBEVIRT}/virtualmachineinstances")}
        for pod in launchers:
            if created_by(pod) not in uids and "deletionTimestamp" not in pod["metadata"]:
                self.api.delete(path_of(pod))

    def _beat(self, node: Object) -> None:
        schedulable = node.get("labels", {}).get("kubevirt.io/schedulable") == "true"
        if schedulable and time.monotonic() < self.beaten.get(node["name"], 0.0) + self.heartbeat_every:
            return
        label, annotation = {"kubevirt.io/schedulable": "true"}, {"kubevirt.io/heartbeat": now()}
        self.api.merge(f"/api/v1/nodes/{node['name']}", {"metadata": {"labels": label, "annotations": annotation}})
        self.beaten[node["name"]] = time.monotonic()

    def _machine(self, machine: Object, instance: Object | None, launchers: list[Object]) -> None:
        wanted = machine["spec"].get("runStrategy") in ("Always", "RerunOnFailure")
        over = any(pod["status"].get("phase") in ("Failed", "Succeeded") for pod in launchers)
        if instance and (not wanted or over):
            self.api.delete(path_of(instance))
            for pod in launchers:
                self.api.delete(path_of(pod))
            instance = None
            launchers = []
        if not wanted:
            self.started.pop(key(machine), None)
            self._status(machine, machine_status(machine, "Stopped", "VMINotExists", "VMI does not exist"))
            return
        if instance is None:
            wait = self.started.get(key(machine), -self.retry_after) + self.retry_after - time.monotonic()
            if wait > 0:
                threading.Timer(wait, self.changed.set).start()
            else:
                self.started[key(machine)] = time.monotonic()
                self.api.request("POST", collection_of(machine, "virtualmachineinstances"), instance_for(machine))
            self._status(machine, machine_status(machine, "Starting", "VMINotExists", "VMI does not exist"))
            return
        alive = [pod for pod in launchers if "deletionTimestamp" not in pod["metadata"]]
        if not launchers:
            self.api.request(
                "POST", f"/api/v1/namespaces/{instance['metadata']['namespace']}/pods", launcher_for(instance)
            )
        judged: Object | None = next(iter(alive or launchers), None)
        self._status(instance, instance_status(instance, judged))
        self._status(machine, machine_status_from(machine, judged))

    def _status(self, thing: Object, status: Object) -> None:
        if thing.get("status") != status:
            self.api.write_status(path_of(thing), status)


def instance_for(machine: Object) -> Object:
    metadata = machine["metadata"]
    template = machine["spec"]["template"]
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": template.get("metadata", {}).get("labels", {}),
            "ownerReferences": [owner(machine)],
        },
        "spec": template["spec"],
    }


def launcher_for(instance: Object) -> Object:
    """A launcher with the card's resource and KubeVirt's own selectors; kvm, tun and vhost-net are left out."""
    metadata, spec = instance["metadata"], instance["spec"]
    devices = spec["domain"].get("devices", {})
    resources = {device["deviceName"]: "1" for device in [*devices.get("gpus", []), *devices.get("hostDevices", [])]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"virt-launcher-{metadata['name']}-",
            "namespace": metadata["namespace"],
            "labels": {
                **metadata.get("labels", {}),
                "kubevirt.io": "virt-launcher",
                "kubevirt.io/created-by": metadata["uid"],
                "vm.kubevirt.io/name": metadata["name"],
            },
            "annotations": {"kubevirt.io/domain": metadata["name"]},
            "ownerReferences": [owner(instance)],
        },
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "hostname": metadata["name"],
            "nodeSelector": {**spec.get("nodeSelector", {}), "kubevirt.io/schedulable": "true"},
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 60,
            "containers": [
                {
                    "name": "compute",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "command": ["/pause"],
                    "resources": {
                        "limits": resources,
                        "requests": {"cpu": "100m", "memory": "64Mi", **resources},
                    },
                }
            ],
        },
    }


def instance_status(instance: Object, pod: Object | None) -> Object:
    old = instance.get("status", {})
    if pod is None:
        return {"phase": "Pending"}
    status: Object = {"activePods": {pod["metadata"]["uid"]: pod["spec"].get("nodeName", "")}}
    if is_ready(pod):
        status |= {
            "phase": "Running",
            "nodeName": pod["spec"]["nodeName"],
            "conditions": [condition(old, "Ready", "True")],
        }
        return status
    status["phase"] = "Scheduled" if pod["spec"].get("nodeName") else "Scheduling"
    status["conditions"] = [condition(old, "Ready", "False", "GuestNotRunning", "Guest VM is not reported as running")]
    refusal = unschedulable(pod)
    if refusal is not None:
        status["conditions"].append(condition(old, "PodScheduled", "False", "Unschedulable", refusal))
    return status


def machine_status_from(machine: Object, pod: Object | None) -> Object:
    if pod is not None and is_ready(pod):
        return machine_status(machine, "Running")
    refused = pod is not None and unschedulable(pod) is not None
    status = machine_status(
        machine,
        "ErrorUnschedulable" if refused else "Starting",
        "GuestNotRunning",
        "Guest VM is not reported as running",
    )
    if refused and pod is not None:
        old = machine.get("status", {})
        status["conditions"].append(condition(old, "PodScheduled", "False", "Unschedulable", unschedulable(pod) or ""))
    return status


def machine_status(machine: Object, printable: str, reason: str = "", message: str = "") -> Object:
    old = machine.get("status", {})
    ready = condition(old, "Ready", "True" if printable == "Running" else "False", reason, message)
    status: Object = {
        "printableStatus": printable,
        "runStrategy": machine["spec"].get("runStrategy"),
        "created": printable not in ("Stopped",) and reason != "VMINotExists",
        "ready": printable == "Running",
        "conditions": [ready],
    }
    return status


def condition(old_status: Object, kind: str, status: str, reason: str = "", message: str = "") -> Object:
    """A condition that keeps its time of transition while its status stays the same."""
    since = now()
    for old in old_status.get("conditions", []):
        if old.get("type") == kind and old.get("status") == status:
            since = old.get("lastTransitionTime", since)
    new: Object = {"type": kind, "status": status, "lastTransitionTime": since}
    if reason:
        new["reason"] = reason
    if message:
        new["message"] = message
    return new


def unschedulable(pod: Object) -> str | None:
    for it in pod["status"].get("conditions", []):
        if it["type"] == "PodScheduled" and it["status"] == "False" and it.get("reason") == "Unschedulable":
            return str(it.get("message", ""))
    return None


def is_ready(pod: Object) -> bool:
    return pod["status"].get("phase") == "Running" and any(
        it["type"] == "ContainersReady" and it["status"] == "True" for it in pod["status"].get("conditions", [])
    )


def created_by(pod: Object) -> str:
    return str(pod["metadata"].get("labels", {}).get("kubevirt.io/created-by", ""))


def owner(thing: Object) -> Object:
    return {
        "apiVersion": thing["apiVersion"],
        "kind": thing["kind"],
        "name": thing["metadata"]["name"],
        "uid": thing["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def key(thing: Object) -> str:
    return f"{thing['metadata']['namespace']}/{thing['metadata']['name']}"


def collection_of(thing: Object, plural: str) -> str:
    return f"{KUBEVIRT}/namespaces/{thing['metadata']['namespace']}/{plural}"


def path_of(thing: Object) -> str:
    metadata = thing["metadata"]
    if thing.get("kind") in ("VirtualMachine", "VirtualMachineInstance"):
        return f"{collection_of(thing, thing['kind'].lower() + 's')}/{metadata['name']}"
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def say(message: str) -> None:
    print(f"{now()} {message}", flush=True)


def main(arguments: list[str]) -> None:
    controllers: dict[str, Callable[[Api], Controller]] = {"gpu-operator": GpuOperator, "kubevirt": KubeVirt}
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("controller", choices=sorted(controllers))
    parser.add_argument("--server", required=True, help="URL of the API server")
    parser.add_argument("--pki", required=True, type=Path, help="folder with ca.crt, admin.crt and admin.key")
    options = parser.parse_args(arguments)
    controllers[options.controller](Api(options.server, options.pki)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
