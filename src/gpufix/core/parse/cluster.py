"""Nodes, ClusterPolicy, KubeVirt and events, from what the API server answered. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gpufix.core.parse.jsonraw import Item, cut, read_items
from gpufix.core.parse.times import parse_time
from gpufix.language import t
from gpufix.model import (
    ClusterPolicyFacts,
    EventFacts,
    Evidence,
    KubeVirtFacts,
    NodeFacts,
    Observation,
    Taint,
)

T = TypeVar("T")


def mapping(value: Any) -> Mapping[str, Any]:
    """``value`` if it is a JSON object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def objects(value: Any) -> list[Mapping[str, Any]]:
    """The JSON objects of a list; none when it is no list."""
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def text(value: Any) -> str:
    """A JSON scalar as text; empty for null, objects and lists."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else ""


def texts(value: Any) -> dict[str, str]:
    """A JSON object of scalars, as text."""
    return {str(key): text(entry) for key, entry in mapping(value).items()}


def condition(status: Any, kind: str) -> Mapping[str, Any]:
    """The condition of that type, of an object's status; empty when there is none."""
    for entry in objects(mapping(status).get("conditions")):
        if entry.get("type") == kind:
            return entry
    return {}


def each(items: tuple[Item, ...], parse: Callable[[Item], T | None]) -> tuple[T, ...]:
    """``parse`` of every item. One that is broken is left out and does not lose the others."""
    found: list[T] = []
    for item in items:
        try:
            parsed = parse(item)
        except (ValueError, TypeError, AttributeError, LookupError):
            continue
        if parsed is not None:
            found.append(parsed)
    return tuple(found)


def parse_nodes(path: str, content: str) -> Observation[tuple[NodeFacts, ...]]:
    """Every Node of ``kubectl get nodes -o json``."""
    return Observation.of(each(read_items(path, content), _node))


def find_node(path: str, nodes: Observation[tuple[NodeFacts, ...]], name: str) -> Observation[NodeFacts]:
    """The node called ``name``, with its Ready condition as evidence."""
    if nodes.value is None:
        return Observation.missing(nodes.unknown)
    for node in nodes.value:
        if node.name == name:
            ready = cut(node.raw, "status", "conditions", ("type", "Ready"))
            return Observation.of(node, *([Evidence(f"{path} {name} Ready", ready)] if ready else []))
    return Observation.missing(t("{path}: no node {name} among {n}", path=path, name=repr(name), n=len(nodes.value)))


def _node(item: Item) -> NodeFacts | None:
    metadata, spec, status = (mapping(item.value.get(part)) for part in ("metadata", "spec", "status"))
    name = text(metadata.get("name"))
    if not name:
        return None
    ready = condition(status, "Ready")
    info = mapping(status.get("nodeInfo"))
    annotations = texts(metadata.get("annotations"))
    conditions = {text(entry.get("type")): text(entry.get("status")) for entry in objects(status.get("conditions"))}
    return NodeFacts(
        name=name,
        uid=text(metadata.get("uid")),
        labels=texts(metadata.get("labels")),
        annotations=annotations,
        taints=tuple(_taint(entry) for entry in objects(spec.get("taints"))),
        unschedulable=spec.get("unschedulable") is True,
        ready=text(ready.get("status")),
        ready_since=parse_time(ready.get("lastTransitionTime")),
        ready_reason=text(ready.get("reason")),
        ready_message=text(ready.get("message")),
        conditions=conditions,
        allocatable=texts(status.get("allocatable")),
        capacity=texts(status.get("capacity")),
        boot_id=text(info.get("bootID")),
        kubelet_version=text(info.get("kubeletVersion")),
        last_heartbeat=parse_time(ready.get("lastHeartbeatTime")),
        kubevirt_heartbeat=parse_time(annotations.get("kubevirt.io/heartbeat")),
        raw=item.raw,
    )


def _taint(entry: Mapping[str, Any]) -> Taint:
    since = parse_time(entry.get("timeAdded"))
    return Taint(text(entry.get("key")), text(entry.get("effect")), since, text(entry.get("value")))


def parse_cluster_policy(path: str, content: str) -> Observation[ClusterPolicyFacts]:
    """The ClusterPolicy; ``present=False`` when the list is empty. The oldest wins where there are several, as in the
    operator (NVIDIA/gpu-operator@v25.3.0 controllers/clusterpolicy_controller.go: the others are ``ignored``)."""
    items = [item for item in read_items(path, content) if _is_kind(item, "ClusterPolicy")]
    items = [item for item in items if mapping(item.value.get("status")).get("state") != "ignored"] or items
    if not items:
        return Observation.of(ClusterPolicyFacts(present=False), Evidence(path, cut(content, "items")))
    item = min(items, key=lambda one: text(mapping(one.value.get("metadata")).get("creationTimestamp")) or "~")
    spec, status = mapping(item.value.get("spec")), mapping(item.value.get("status"))
    sandbox = mapping(spec.get("sandboxWorkloads"))
    facts = ClusterPolicyFacts(
        present=True,
        sandbox_enabled=sandbox.get("enabled") is True,
        default_workload=text(sandbox.get("defaultWorkload")),
        state=text(status.get("state")),
        namespace=text(status.get("namespace")),
        raw=item.raw,
    )
    return Observation.of(facts, Evidence(f"{path} sandboxWorkloads", cut(item.raw, "spec", "sandboxWorkloads")))


def parse_kubevirt(path: str, content: str) -> Observation[KubeVirtFacts]:
    """permittedHostDevices of the KubeVirt CR: PCI, mediated and USB devices by resource name."""
    items = [item for item in read_items(path, content) if _is_kind(item, "KubeVirt")]
    if not items:
        return Observation.of(KubeVirtFacts(present=False), Evidence(path, cut(content, "items")))
    item = items[0]
    configuration = mapping(mapping(item.value.get("spec")).get("configuration"))
    devices = configuration.get("permittedHostDevices")
    if not isinstance(devices, Mapping):
        return Observation.of(KubeVirtFacts(present=True, raw=item.raw))
    permitted: dict[str, bool] = {}
    for kind in ("pciHostDevices", "mediatedDevices", "usb"):
        for entry in objects(devices.get(kind)):
            name = text(entry.get("resourceName"))
            if name:
                permitted[name] = entry.get("externalResourceProvider") is True
    raw = cut(item.raw, "spec", "configuration", "permittedHostDevices")
    return Observation.of(KubeVirtFacts(True, permitted, item.raw), Evidence(f"{path} permittedHostDevices", raw))


def _is_kind(item: Item, kind: str) -> bool:
    """An item of another kind in the file is no answer; one that does not say its kind is taken at its word."""
    return item.value.get("kind", kind) == kind and "spec" in item.value


def parse_events(path: str, content: str) -> Observation[tuple[EventFacts, ...]]:
    """Events, in the file's order."""
    return Observation.of(each(read_items(path, content), _event))


def _event(item: Item) -> EventFacts:
    about = mapping(item.value.get("involvedObject")) or mapping(item.value.get("regarding"))
    source = mapping(item.value.get("source")) or mapping(item.value.get("deprecatedSource"))
    stamps = (
        mapping(item.value.get("series")).get("lastObservedTime"),
        *(item.value.get(key) for key in ("lastTimestamp", "eventTime", "firstTimestamp")),
        mapping(item.value.get("metadata")).get("creationTimestamp"),
    )
    return EventFacts(
        kind=text(about.get("kind")),
        namespace=text(about.get("namespace")),
        name=text(about.get("name")),
        reason=text(item.value.get("reason")),
        message=text(item.value.get("message")) or text(item.value.get("note")),
        at=next((parse_time(stamp) for stamp in stamps if stamp), None),
        host=text(source.get("host")),
        raw=item.raw,
    )
