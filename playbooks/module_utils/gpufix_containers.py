# Copyright the gpufix authors. SPDX-License-Identifier: Apache-2.0
"""The containers that Kubernetes runs on this host, asked of the runtime itself: crictl, else ctr.

The kubelet may be dead while they run. Standard library only; ``parse_*`` functions are pure.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, List, NamedTuple, Optional, Tuple

from ansible.module_utils.gpufix_host import Done, Host

CONTAINERD = "/run/containerd/containerd.sock"
K3S = "/run/k3s/containerd/containerd.sock"
MICROK8S = "/var/snap/microk8s/common/run/containerd.sock"
_SOCKETS = (K3S, MICROK8S, CONTAINERD, "/run/crio/crio.sock", "/run/cri-dockerd.sock")
_DOCKER = "/run/docker.sock"


class Container(NamedTuple):
    """One container; ``container`` is ``-`` for a pod's sandbox. ``tool`` and ``socket`` say who knows it."""

    pod: str
    container: str
    id: str
    state: str
    tool: str
    socket: str

    @property
    def runs(self) -> bool:
        return self.state not in ("EXITED", "STOPPED", "CREATED")

    def line(self) -> str:
        return "\t".join((self.pod, self.container, self.id, self.state))


def crictl(socket: str, *arguments: str) -> List[str]:
    return ["crictl"] + (["--runtime-endpoint", "unix://" + socket] if socket else []) + list(arguments)


NO_SANDBOX = 'labels."io.cri-containerd.kind"==container'
"""A filter of ``ctr containers list``: each one that it lists costs a call of its own to know more of it."""


def ctr(socket: str, *arguments: str) -> List[str]:
    return (
        ["ctr"] + (["--address", socket] if socket not in ("", CONTAINERD) else []) + ["-n", "k8s.io"] + list(arguments)
    )


def find_sockets(host: Host, unit: str, endpoint: str) -> List[str]:
    """The runtime sockets to ask: the kubelet's own, else each known one that exists, else the tool's default."""
    if endpoint:
        return [endpoint]
    if unit.startswith(("k3s", "rke2")):
        return [K3S]
    if unit.startswith("snap.microk8s"):
        return [MICROK8S]
    return [socket for socket in _SOCKETS if host.exists(socket)] or [""]


def read_containers(host: Host, unit: str = "", endpoint: str = "") -> Tuple[Optional[List[Container]], str]:
    """All containers and sandboxes of Kubernetes on this host, or None and why that is not known.

    With more than one runtime each must answer: what one of them does not say is unknown, not absent.
    """
    found: List[Container] = []
    for socket in find_sockets(host, unit, endpoint):
        containers, why = _ask(host, socket)
        if containers is None:
            return None, why
        found += containers
    if not found and not endpoint and host.exists(_DOCKER) and not unit.startswith(("k3s", "rke2", "snap.microk8s")):
        return None, "containerd knows no container of Kubernetes, but Docker runs here and was not asked"
    return sorted(found), ""


def _ask(host: Host, socket: str) -> Tuple[Optional[List[Container]], str]:
    with ThreadPoolExecutor(2) as pool:
        containers = pool.submit(host.run, crictl(socket, "ps", "-a", "-o", "json"))
        pods = pool.submit(host.run, crictl(socket, "pods", "-o", "json"))
        answers = (containers.result(), pods.result())
    why = answers[0].why or answers[1].why
    if not why:
        try:
            return parse_crictl(answers[0].out, answers[1].out, socket), ""
        except (ValueError, AttributeError, TypeError) as error:
            why = f"crictl: its answer is not understood: {error}"
    if "crio" in socket or "docker" in socket:
        return None, why
    result, ctr_why = _ask_ctr(host, socket)
    return (result, "") if result is not None else (None, f"{why}; {ctr_why}")


def _ask_ctr(host: Host, socket: str) -> Tuple[Optional[List[Container]], str]:
    with ThreadPoolExecutor(8) as pool:
        names_job = pool.submit(host.run, ctr(socket, "containers", "list", "-q", NO_SANDBOX))
        tasks_job = pool.submit(host.run, ctr(socket, "tasks", "list"))
        names, tasks = names_job.result(), tasks_job.result()
        if names.why or tasks.why:
            return None, names.why or tasks.why
        states = parse_tasks(tasks.out)
        # a container without a task does not run, and there may be hundreds of those: they are not asked about
        ids = [name for name in names.out.split() if name in states]
        infos: List[Done] = list(pool.map(lambda name: host.run(ctr(socket, "containers", "info", name)), ids))
    found = []
    for name, info in zip(ids, infos):
        if info.why:
            if "not found" in info.why:
                continue  # removed since it was listed
            return None, info.why
        try:
            pod, container = parse_info(info.out)
        except (ValueError, AttributeError, TypeError) as error:
            return None, f"ctr: its answer is not understood: {error}"
        found.append(Container(pod, container, name, states[name], "ctr", socket))
    return found, ""


def parse_crictl(containers: str, pods: str, socket: str = "") -> List[Container]:
    """Pure. ``crictl ps -a -o json`` and ``crictl pods -o json``. Raises ValueError on anything else."""
    found = []
    for pod in _items(pods, "items"):
        state = "RUNNING" if pod.get("state") == "SANDBOX_READY" else "EXITED"
        found.append(Container(pod.get("metadata", {}).get("name", "?"), "-", pod["id"], state, "crictl", socket))
    names = {pod.id: pod.pod for pod in found}
    for entry in _items(containers, "containers"):
        labels = entry.get("labels") or {}
        pod_name = labels.get("io.kubernetes.pod.name") or names.get(entry.get("podSandboxId", ""), "?")
        name = labels.get("io.kubernetes.container.name") or entry.get("metadata", {}).get("name", "?")
        state = str(entry.get("state", "UNKNOWN")).replace("CONTAINER_", "")
        found.append(Container(pod_name, name, entry["id"], state, "crictl", socket))
    return found


def _items(text: str, key: str) -> List[Any]:
    data = json.loads(text)
    if not isinstance(data, dict) or key not in data and data:
        raise ValueError(f"no {key}")
    items = data.get(key) or []
    for item in items:
        if not isinstance(item, dict) or "id" not in item:
            raise ValueError("an entry without an id")
    return list(items)


def parse_tasks(text: str) -> "dict[str, str]":
    """Pure. ``ctr tasks list``: id -> RUNNING, STOPPED, ..."""
    states = {}
    for line in text.split("\n"):
        words = line.split()
        if len(words) >= 3 and words[0] != "TASK":
            states[words[0]] = words[2]
    return states


def parse_info(text: str) -> Tuple[str, str]:
    """Pure. The pod and the container (``-`` for a sandbox) of ``ctr containers info``, from its labels."""
    labels = json.loads(text).get("Labels") or {}
    pod = labels.get("io.kubernetes.pod.name", "?")
    if labels.get("io.cri-containerd.kind") == "sandbox":
        return pod, "-"
    return pod, labels.get("io.kubernetes.container.name", "?" if pod == "?" else "-")
