"""Snapshots for tests: the case folders, and small ones made of text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpufix.core.diagnose import Signatures, diagnose, load_signatures
from gpufix.core.parse import parse_snapshot
from gpufix.model import Diagnosis, Facts, Link, Snapshot
from gpufix.resources import read_text
from gpufix.world.snapshots import read_snapshot_folder

CASES = Path(__file__).resolve().parent.parent / "cases"
NODE = "omen2"
AT = "2026-03-02T10:00:00Z"

REFUSAL = (
    'E0302 09:59:50.000001    4242 run.go:72] "command failed" err="failed to run Kubelet: running with swap on is not '
    'supported, please disable swap or set --fail-swap-on flag to false"'
)
HEADER = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
SWAP_ON = HEADER + "/swapfile                               file\t\t2097148\t\t0\t\t-2\n"
CRASH_LOOP = "ActiveState=activating\nSubState=auto-restart\nResult=exit-code\nNRestarts=7\nUnitFileState=enabled\n"
RUNNING = "ActiveState=active\nSubState=running\nResult=success\nNRestarts=0\nUnitFileState=enabled\n"
STOPPED = "ActiveState=inactive\nSubState=dead\nResult=success\nUnitFileState=enabled\n"


@cache
def signatures() -> Signatures:
    return load_signatures(read_text("signatures.yml"))


@cache
def case(name: str) -> Snapshot:
    """The case folder ``name``."""
    return read_snapshot_folder(CASES / name, NODE)


def case_names() -> list[str]:
    return sorted(path.parent.name for path in CASES.glob("*/case.yml"))


def expectation(name: str) -> dict[str, Any]:
    expected: dict[str, Any] = yaml.safe_load((CASES / name / "case.yml").read_text(encoding="utf-8"))["expect"]
    return expected


def diagnosis(snapshot: Snapshot) -> Diagnosis:
    return diagnose(parse_snapshot(snapshot), signatures())


def changed(snapshot: Snapshot, files: Mapping[str, str | None]) -> Snapshot:
    """``snapshot`` with files replaced, added, or (None) taken away."""
    merged = {**snapshot.files, **files}
    return replace(snapshot, files={path: text for path, text in merged.items() if text is not None})


def snapshot(captured_at: str = AT, unread: Mapping[str, str] | None = None, **files: str) -> Snapshot:
    """A snapshot of ``host_proc_swaps="..."`` and the like; the first underscore of a name is the slash."""
    named = {key.replace("_", "/", 1): text for key, text in files.items()}
    named = {path if path.startswith("host/") else f"{path}.json": text for path, text in named.items()}
    named = {path.replace("kubelet_journal", "kubelet.journal"): text for path, text in named.items()}
    named = {path.replace("kubelet_show", "kubelet.show"): text for path, text in named.items()}
    return Snapshot(NODE, named, unread or {}, captured_at)


def facts(**files: str) -> Facts:
    return parse_snapshot(snapshot(**files))


def link(found: Diagnosis, id: str) -> Link:
    return next(entry for entry in found.chain if entry.id == id)


# --- journals --------------------------------------------------------------------------------------------------------


def said(at: str, text: str, who: str = "kubelet[4242]") -> str:
    return f"2026-03-02T{at}+0000 omen2 {who}: {text}"


def started(at: str) -> str:
    return said(at, "Started kubelet.service - kubelet: The Kubernetes Node Agent.", "systemd[1]")


def failed(at: str, status: str = "1/FAILURE") -> str:
    lines = [
        f"kubelet.service: Main process exited, code=exited, status={status}",
        "kubelet.service: Failed with result 'exit-code'.",
    ]
    return "\n".join(said(at, line, "systemd[1]") for line in lines)


def rescheduled(at: str) -> str:
    return said(at, "kubelet.service: Scheduled restart job, restart counter is at 7.", "systemd[1]")


def stopped(at: str) -> str:
    return said(at, "Stopped kubelet.service - kubelet: The Kubernetes Node Agent.", "systemd[1]")


def journal(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def refused_once(start: str = "09:59:49", end: str = "09:59:50") -> str:
    """One start that swap ended, and the restart that systemd has scheduled."""
    return journal(started(start), said(end, REFUSAL), failed(end), rescheduled("09:59:59")).rstrip("\n")


def ended_by(line: str) -> str:
    """The journal of a crash loop whose starts all end with ``line``."""
    one = [started("09:59:40"), said("09:59:41", line), failed("09:59:41"), rescheduled("09:59:50")]
    two = [started("09:59:50"), said("09:59:51", line, "kubelet[4243]"), failed("09:59:51"), rescheduled("09:59:59")]
    return journal(*one, *two)


# --- the cluster -----------------------------------------------------------------------------------------------------


def listed(*objects: Mapping[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}, indent=1)


def node(
    name: str = NODE,
    *,
    ready: str = "Unknown",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    allocatable: Mapping[str, str] | None = None,
    capacity: Mapping[str, str] | None = None,
    taints: list[Mapping[str, str]] | None = None,
    since: str = "2026-03-02T09:00:00Z",
    heartbeat: str = "2026-03-02T09:59:00Z",
    message: str = "Kubelet stopped posting node status.",
    conditions: Mapping[str, str] | None = None,
    unschedulable: bool = False,
    boot_id: str = "",
) -> dict[str, Any]:
    """A Node. Ready=Unknown brings the taints that the node controller sets."""
    key = {"Unknown": "unreachable", "False": "not-ready"}.get(ready)
    if taints is None:
        effects = ("NoSchedule", "NoExecute") if key else ()
        taints = [{"key": f"node.kubernetes.io/{key}", "effect": effect} for effect in effects]
    other = "Unknown" if ready == "Unknown" else "False"
    states = {
        "MemoryPressure": other,
        "DiskPressure": other,
        "PIDPressure": other,
        **(conditions or {}),
        "Ready": ready,
    }
    return {
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
            "annotations": dict(annotations or {}),
        },
        "spec": {"taints": taints, **({"unschedulable": True} if unschedulable else {})},
        "status": {
            "allocatable": dict(allocatable or {}),
            "capacity": dict(capacity or allocatable or {}),
            "conditions": [
                {
                    "type": kind,
                    "status": status,
                    "message": message if kind == "Ready" else "",
                    "lastHeartbeatTime": heartbeat,
                    "lastTransitionTime": since,
                }
                for kind, status in states.items()
            ],
            "nodeInfo": {"bootID": boot_id, "kubeletVersion": "v1.34.4"},
        },
    }


def pod(
    name: str,
    *,
    node_name: str = "",
    phase: str = "Pending",
    requests: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    ready: str = "",
    message: str = "",
    waiting: str = "",
    init_waiting: str = "",
    selector: Mapping[str, str] | None = None,
    tolerations: list[Mapping[str, str]] | None = None,
    namespace: str = "vms",
) -> dict[str, Any]:
    """A Pod, bound to ``node_name`` or unschedulable for ``message``."""
    scheduled = {
        "type": "PodScheduled",
        "status": "True" if node_name else "False",
        "message": message,
        "lastTransitionTime": "2026-03-02T09:30:00Z",
    }
    conditions = [scheduled] + ([{"type": "Ready", "status": ready}] if ready else [])
    statuses = (
        [{"name": "main", "state": {"waiting": {"reason": waiting}} if waiting else {"running": {}}}]
        if node_name
        else []
    )
    init = [{"name": "init", "state": {"waiting": {"reason": init_waiting}}}] if init_waiting else []
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels or {}),
            "creationTimestamp": "2026-03-02T08:00:00Z",
        },
        "spec": {
            "containers": [
                {"name": "main", "resources": {"limits": dict(requests or {}), "requests": dict(requests or {})}}
            ],
            "nodeSelector": dict(selector or {}),
            "tolerations": tolerations or [],
            **({"nodeName": node_name} if node_name else {}),
        },
        "status": {
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": statuses,
            "initContainerStatuses": init,
        },
    }


def launcher(vm_name: str, resource: str, **more: Any) -> dict[str, Any]:
    """The virt-launcher pod of a VM."""
    labels = {"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": vm_name}
    asked = {resource: "1", "devices.kubevirt.io/kvm": "1"}
    return pod(f"virt-launcher-{vm_name}-abcde", labels=labels, requests=asked, **more)


def vm(
    name: str,
    resource: str,
    *,
    status: str = "ErrorUnschedulable",
    strategy: str = "Always",
    selector: Mapping[str, str] | None = None,
    conditions: list[Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """A VirtualMachine with one GPU."""
    template = {
        "domain": {"devices": {"gpus": [{"name": "gpu1", "deviceName": resource}]}},
        "nodeSelector": dict(selector or {}),
    }
    return {
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "vms"},
        "spec": {"runStrategy": strategy, "template": {"spec": template}},
        "status": {"printableStatus": status, "conditions": conditions or []},
    }


def vmi(
    name: str,
    resource: str,
    *,
    phase: str = "Running",
    node_name: str = "",
    conditions: list[Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """A VirtualMachineInstance with one GPU."""
    return {
        "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "namespace": "vms"},
        "spec": {"domain": {"devices": {"gpus": [{"name": "gpu1", "deviceName": resource}]}}},
        "status": {"phase": phase, "conditions": conditions or [], **({"nodeName": node_name} if node_name else {})},
    }


def policy(*, enabled: bool = True, default: str = "container") -> dict[str, Any]:
    return {
        "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy"},
        "spec": {"sandboxWorkloads": {"enabled": enabled, "defaultWorkload": default}},
        "status": {"state": "ready", "namespace": "gpu-operator"},
    }
