"""Virtual machines and their instances, joined. Pure.

Names and rules as in kubevirt/kubevirt@v1.7.0, staging/src/kubevirt.io/api/core/v1/types.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from gpufix.core.parse.cluster import condition, each, mapping, objects, text, texts
from gpufix.core.parse.jsonraw import Item, cut, cut_member, read_items
from gpufix.core.parse.source import Unreadable
from gpufix.model import Evidence, Observation, Snapshot, VmFacts

VMS = "cluster/virtualmachines.json"
INSTANCES = "cluster/virtualmachineinstances.json"


def parse_vms(snapshot: Snapshot) -> Observation[tuple[VmFacts, ...]]:
    """Every VirtualMachine, and every VirtualMachineInstance that has none.

    Unknown when either file is unread: a VM without its instance, or the other way round, is half a truth.
    """
    for path in (VMS, INSTANCES):
        if path not in snapshot.files:
            return Observation.missing(snapshot.why_unread(path))
    try:
        machines = read_items(VMS, snapshot.files[VMS])
        instances = {_key(item): item for item in read_items(INSTANCES, snapshot.files[INSTANCES])}
    except Unreadable as error:
        return Observation.missing(str(error))
    found = each(machines, lambda item: _vm(item, instances.get(_key(item))))
    owned = {_key(item) for item in machines}
    alone = each(tuple(item for key, item in instances.items() if key not in owned), _instance)
    return Observation.of(found + alone, *(_list_evidence(path, snapshot.files[path]) for path in (VMS, INSTANCES)))


def _list_evidence(path: str, content: str) -> Evidence:
    """An empty list as it stands; of one that is not empty, its kind or its beginning."""
    listed = cut(content, "items")
    return Evidence(path, listed if len(listed) < 40 else cut_member(content, "kind") or listed[:40])


def _key(item: Item) -> tuple[str, str]:
    metadata = mapping(item.value.get("metadata"))
    return text(metadata.get("namespace")), text(metadata.get("name"))


def _vm(item: Item, instance: Item | None) -> VmFacts | None:
    namespace, name = _key(item)
    if not name:
        return None
    spec, status = mapping(item.value.get("spec")), mapping(item.value.get("status"))
    template = mapping(mapping(spec.get("template")).get("spec"))
    vmi_spec = mapping(instance.value.get("spec")) if instance else {}
    vmi_status = mapping(instance.value.get("status")) if instance else {}
    failure = condition(status, "Failure")
    return VmFacts(
        namespace=namespace,
        name=name,
        status=text(status.get("printableStatus")),
        devices=_devices(template) or _devices(vmi_spec),
        node_selector=texts(template.get("nodeSelector")),
        node=text(vmi_status.get("nodeName")),
        vmi_phase=text(vmi_status.get("phase")),
        vmi_message=_vmi_message(vmi_status),
        wanted=_wanted(spec, status, instance is not None),
        failure=text(failure.get("message")) if text(failure.get("status")) == "True" else "",
        raw=item.raw,
        vmi_raw=instance.raw if instance else "",
    )


def _instance(item: Item) -> VmFacts | None:
    namespace, name = _key(item)
    if not name:
        return None
    spec, status = mapping(item.value.get("spec")), mapping(item.value.get("status"))
    phase = text(status.get("phase"))
    return VmFacts(
        namespace=namespace,
        name=name,
        status=phase,
        devices=_devices(spec),
        node_selector=texts(spec.get("nodeSelector")),
        node=text(status.get("nodeName")),
        vmi_phase=phase,
        vmi_message=_vmi_message(status),
        wanted=phase != "Succeeded",
        vmi_raw=item.raw,
    )


def _devices(spec: Mapping[str, Any]) -> dict[str, int]:
    """Resource name -> how many. Devices asked for by a claim (DRA) have no resource name and are not counted."""
    devices = mapping(mapping(spec.get("domain")).get("devices"))
    names = (text(entry.get("deviceName")) for kind in ("gpus", "hostDevices") for entry in objects(devices.get(kind)))
    return dict(Counter(name for name in names if name))


def _vmi_message(status: Mapping[str, Any]) -> str:
    for kind in ("PodScheduled", "Synchronized"):
        entry = condition(status, kind)
        if text(entry.get("status")) == "False" and text(entry.get("message")):
            return text(entry.get("message"))
    return ""


def _wanted(spec: Mapping[str, Any], status: Mapping[str, Any], has_instance: bool) -> bool:
    """False where the VM is meant to be off. Manual and Once run only while they have an instance or a start is due."""
    if any(text(entry.get("action")) == "Start" for entry in objects(status.get("stateChangeRequests"))):
        return True
    strategy = text(spec.get("runStrategy")) or text(status.get("runStrategy"))
    if not strategy:
        return spec.get("running") is True
    if strategy == "Halted":
        return False
    if strategy in ("Manual", "Once"):
        return has_instance
    if strategy == "RerunOnFailure":
        return has_instance or text(status.get("printableStatus")) != "Stopped"
    return True
