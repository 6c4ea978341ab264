"""What ``kubectl get`` shows: meta.k8s.io/v1 Tables with the columns of the real API server. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple

from gpufix.lab.store import Object

NONE = "<none>"
UNKNOWN = "<unknown>"

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400


class Column(NamedTuple):
    """``read`` takes the object and the time now. Priority 1 is shown with ``-o wide`` only."""

    name: str
    read: Callable[[Object, str], object]
    type: str = "string"
    priority: int = 0


def table(plural: str, items: Iterable[Object], now: str, version: str, include: str = "Metadata") -> Object:
    """A Table of objects. ``now`` is RFC 3339; ``include`` (includeObject) is None | Metadata | Object."""
    columns = COLUMNS.get(plural, DEFAULT)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": [_definition(column) for column in columns],
        "rows": [
            {"cells": [column.read(item, now) for column in columns], **_row_object(item, include)} for item in items
        ],
    }


def _definition(column: Column) -> Object:
    return {
        "name": column.name,
        "type": column.type,
        "format": "name" if column.name == "Name" else "",
        "description": column.name,
        "priority": column.priority,
    }


def _row_object(item: Object, include: str) -> Object:
    if include == "None":
        return {}
    if include == "Object":
        return {"object": item}
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item["metadata"]}
    return {"object": partial}


def human(seconds: float) -> str:
    """A duration as kubectl writes ages: "90s", "5m3s", "3h", "2d4h", "41d"."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 2 * _MINUTE:
        return f"{max(whole, 0)}s"
    if whole < 10 * _MINUTE:
        return _two(whole, _MINUTE, "m", 1, "s")
    if whole < 3 * _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < 8 * _HOUR:
        return _two(whole, _HOUR, "h", _MINUTE, "m")
    if whole < 2 * _DAY:
        return f"{whole // _HOUR}h"
    if whole < 8 * _DAY:
        return _two(whole, _DAY, "d", _HOUR, "h")
    if whole < 2 * _YEAR:
        return f"{whole // _DAY}d"
    if whole < 8 * _YEAR:
        return _two(whole, _YEAR, "y", _DAY, "d")
    return f"{whole // _YEAR}y"


def _two(seconds: int, large: int, large_unit: str, small: int, small_unit: str) -> str:
    rest = seconds % large // small
    return f"{seconds // large}{large_unit}" + (f"{rest}{small_unit}" if rest else "")


def age(stamp: str | None, now: str) -> str:
    """How long ago an RFC 3339 stamp was, as kubectl writes it."""
    if not stamp:
        return UNKNOWN
    return human((datetime.fromisoformat(now) - datetime.fromisoformat(stamp)).total_seconds())


# --- cells ---


def _dig(item: Any, *path: str) -> Any:
    for name in path:
        item = item.get(name) if isinstance(item, dict) else None
    return item


def _at(*path: str, missing: object = "") -> Callable[[Object, str], object]:
    def read(item: Object, now: str) -> object:
        value = _dig(item, *path)
        return missing if value is None else value

    return read


def _age_at(*path: str) -> Callable[[Object, str], object]:
    return lambda item, now: age(_dig(item, *path), now)


def _condition(type: str) -> Callable[[Object, str], object]:
    def read(item: Object, now: str) -> object:
        return condition_status(item, type) or ""

    return read


def condition_status(item: Object, type: str) -> str | None:
    for condition in _dig(item, "status", "conditions") or ():
        if condition.get("type") == type:
            return str(condition.get("status"))
    return None


def _node_status(node: Object, now: str) -> str:
    ready = condition_status(node, "Ready")
    status = "Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"
    return status + (",SchedulingDisabled" if _dig(node, "spec", "unschedulable") else "")


def _roles(node: Object, now: str) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    roles = {key.removeprefix(prefix) for key in labels if key.startswith(prefix) and key != prefix}
    if labels.get("kubernetes.io/role"):
        roles.add(labels["kubernetes.io/role"])
    return ",".join(sorted(roles)) or NONE


def _address(type: str) -> Callable[[Object, str], object]:
    def read(node: Object, now: str) -> object:
        addresses = _dig(node, "status", "addresses") or ()
        return next((entry["address"] for entry in addresses if entry.get("type") == type), NONE)

    return read


def _containers(pod: Object) -> list[Object]:
    found: list[Object] = _dig(pod, "status", "containerStatuses") or []
    return found


def _pod_ready(pod: Object, now: str) -> str:
    ready = sum(
        1 for status in _containers(pod) if status.get("ready") and _dig(status, "state", "running") is not None
    )
    return f"{ready}/{len(_dig(pod, 'spec', 'containers') or ())}"


def _pod_status(pod: Object, now: str) -> str:
    """The printer's word for a pod: the phase, unless a reason or a container has more to say."""
    status = pod.get("status", {})
    word = str(status.get("reason") or status.get("phase") or "")
    if any(
        condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated"
        for condition in status.get("conditions") or ()
    ):
        word = "SchedulingGated"
    initializing = _init_word(pod)
    word = initializing or _container_word(pod, word)
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in ("Succeeded", "Failed"):
            return "Terminating"
    return word


def _init_word(pod: Object) -> str:
    """ "Init:..." for the first init container that is not through; empty when all are."""
    statuses = _dig(pod, "status", "initContainerStatuses") or []
    specs = _dig(pod, "spec", "initContainers") or []
    sidecars = {spec["name"] for spec in specs if spec.get("restartPolicy") == "Always"}
    for place, status in enumerate(statuses):
        state = status.get("state") or {}
        terminated = state.get("terminated")
        if terminated is not None and terminated.get("exitCode") == 0:
            continue
        if status.get("name") in sidecars and status.get("started"):
            continue
        if terminated is not None:
            return f"Init:{_ended(terminated)}"
        waiting = _dig(state, "waiting", "reason")
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
        return f"Init:{place}/{len(specs)}"
    return ""


def _container_word(pod: Object, word: str) -> str:
    running = False
    for status in reversed(_containers(pod)):
        state = status.get("state") or {}
        if reason := _dig(state, "waiting", "reason"):
            word = reason
        elif state.get("terminated") is not None:
            word = _ended(state["terminated"])
        elif status.get("ready") and state.get("running") is not None:
            running = True
    if word == "Completed" and running:
        return "Running" if condition_status(pod, "Ready") == "True" else "NotReady"
    return word


def _ended(terminated: Object) -> str:
    if reason := terminated.get("reason"):
        return str(reason)
    if signal := terminated.get("signal"):
        return f"Signal:{signal}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _restarts(pod: Object, now: str) -> str:
    statuses = _containers(pod)
    count = sum(status.get("restartCount", 0) for status in statuses)
    ends = [_dig(status, "lastState", "terminated", "finishedAt") for status in statuses]
    last = max((end for end in ends if end), default=None)
    return f"{count} ({age(last, now)} ago)" if count and last else str(count)


def _pod_ip(pod: Object, now: str) -> str:
    return str(_dig(pod, "status", "podIP") or NONE)


def _gates(pod: Object, now: str) -> str:
    gates = _dig(pod, "spec", "readinessGates") or ()
    met = sum(1 for gate in gates if condition_status(pod, gate["conditionType"]) == "True")
    return f"{met}/{len(gates)}" if gates else NONE


def _pairs(*path: str) -> Callable[[Object, str], object]:
    def read(item: Object, now: str) -> object:
        return ",".join(f"{key}={value}" for key, value in sorted((_dig(item, *path) or {}).items())) or NONE

    return read


def _template(field: str) -> Callable[[Object, str], object]:
    def read(item: Object, now: str) -> object:
        return ",".join(entry[field] for entry in _dig(item, "spec", "template", "spec", "containers") or ())

    return read


def _last_seen(event: Object, now: str) -> str:
    series = event.get("series") or {}
    first = event.get("firstTimestamp") or event.get("eventTime")
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or first
    count = series.get("count") or event.get("count") or 1
    return f"{age(last, now)} (x{count} over {age(first, now)})" if count > 1 else age(last, now)


def _first_seen(event: Object, now: str) -> str:
    return age(event.get("firstTimestamp") or event.get("eventTime"), now)


def _event_object(event: Object, now: str) -> str:
    involved = event.get("involvedObject") or {}
    return f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"


def _event_source(event: Object, now: str) -> str:
    source = event.get("source") or {}
    parts = (source.get("component") or event.get("reportingComponent"), source.get("host"))
    return ", ".join(part for part in parts if part)


def _vmi_ip(vmi: Object, now: str) -> str:
    interfaces = _dig(vmi, "status", "interfaces") or ()
    return str(interfaces[0].get("ipAddress", "")) if interfaces else ""


_NAME = Column("Name", _at("metadata", "name"))
_AGE = Column("Age", _age_at("metadata", "creationTimestamp"))

DEFAULT = (_NAME, _AGE)
COLUMNS = {
    "namespaces": (_NAME, Column("Status", _at("status", "phase")), _AGE),
    "nodes": (
        _NAME,
        Column("Status", _node_status),
        Column("Roles", _roles),
        _AGE,
        Column("Version", _at("status", "nodeInfo", "kubeletVersion")),
        Column("Internal-IP", _address("InternalIP"), priority=1),
        Column("External-IP", _address("ExternalIP"), priority=1),
        Column("OS-Image", _at("status", "nodeInfo", "osImage", missing=UNKNOWN), priority=1),
        Column("Kernel-Version", _at("status", "nodeInfo", "kernelVersion", missing=UNKNOWN), priority=1),
        Column("Container-Runtime", _at("status", "nodeInfo", "containerRuntimeVersion", missing=UNKNOWN), priority=1),
    ),
    "pods": (
        _NAME,
        Column("Ready", _pod_ready),
        Column("Status", _pod_status),
        Column("Restarts", _restarts),
        _AGE,
        Column("IP", _pod_ip, priority=1),
        Column("Node", _at("spec", "nodeName", missing=NONE), priority=1),
        Column("Nominated Node", _at("status", "nominatedNodeName", missing=NONE), priority=1),
        Column("Readiness Gates", _gates, priority=1),
    ),
    "daemonsets": (
        _NAME,
        *(
            Column(name, _at("status", field, missing=0), "integer")
            for name, field in (
                ("Desired", "desiredNumberScheduled"),
                ("Current", "currentNumberScheduled"),
                ("Ready", "numberReady"),
                ("Up-to-date", "updatedNumberScheduled"),
                ("Available", "numberAvailable"),
            )
        ),
        Column("Node Selector", _pairs("spec", "template", "spec", "nodeSelector")),
        _AGE,
        Column("Containers", _template("name"), priority=1),
        Column("Images", _template("image"), priority=1),
        Column("Selector", _pairs("spec", "selector", "matchLabels"), priority=1),
    ),
    "events": (
        Column("Last Seen", _last_seen),
        Column("Type", _at("type")),
        Column("Reason", _at("reason")),
        Column("Object", _event_object),
        Column("Subobject", _at("involvedObject", "fieldPath"), priority=1),
        Column("Source", _event_source, priority=1),
        Column("Message", _at("message")),
        Column("First Seen", _first_seen, priority=1),
        Column("Count", _at("count", missing=1), "integer", priority=1),
        Column("Name", _at("metadata", "name"), priority=1),
    ),
    "leases": (_NAME, Column("Holder", _at("spec", "holderIdentity")), _AGE),
    "virtualmachines": (
        _NAME,
        _AGE,
        Column("Status", _at("status", "printableStatus")),
        Column("Ready", _condition("Ready")),
    ),
    "virtualmachineinstances": (
        _NAME,
        _AGE,
        Column("Phase", _at("status", "phase")),
        Column("IP", _vmi_ip),
        Column("NodeName", _at("status", "nodeName")),
        Column("Ready", _condition("Ready")),
        Column("Live-Migratable", _condition("LiveMigratable"), priority=1),
        Column("Paused", _condition("Paused"), priority=1),
    ),
    "kubevirts": (_NAME, _AGE, Column("Phase", _at("status", "phase"))),
    "clusterpolicies": (_NAME, Column("Status", _at("status", "state")), _AGE),
}
"""By plural; the columns of what is not here are DEFAULT."""
