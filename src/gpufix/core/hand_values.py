"""What is known of one node, as the values that a printed runbook's commands name (``core.placeholders``). Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from gpufix.core.placeholders import Known
from gpufix.core.workload import VFIO_MANAGER_LABEL, WORKLOAD_LABEL
from gpufix.model import Facts, NodeFacts

ChooseVerb = Callable[[str, str], str]
"""A swap unit's file and UnitFileState -> mask | disable | set-aside, as the playbook does it."""

_ENDPOINT = re.compile(
    r"""^(?:--container-runtime-endpoint[= ]|["']?containerRuntimeEndpoint["']?\s*:)\s*["']?(\S+?)["']?,?$""", re.M
)
_SOCKETS = (
    (("k3s", "rke2"), "/run/k3s/containerd/containerd.sock"),
    (("snap.microk8s",), "/var/snap/microk8s/common/run/containerd.sock"),
)
_DEFAULT_SOCKET = "/run/containerd/containerd.sock"


def values_of(
    facts: Facts, host: str, answers: Mapping[str, str], files: Mapping[str, str], choose_verb: ChooseVerb
) -> Known:
    """Every value that ``facts`` tell; one that they do not is left out. ``files`` are the snapshot's."""
    known: dict[str, str | tuple[str, ...]] = {"node": facts.node_name, "host": host, **answers}
    if facts.unit.value is not None:
        known["unit"] = facts.unit.value.name
        known["runtime_socket"] = _socket(facts.unit.value.name, files)
    if facts.cluster_policy.value is not None:
        known["operator_namespace"] = facts.cluster_policy.value.namespace or "gpu-operator"
    if facts.node.value is not None:
        known["old_workload_label"] = _label(facts.node.value, WORKLOAD_LABEL)
        known["old_vfio_manager_label"] = _label(facts.node.value, VFIO_MANAGER_LABEL)
    at = f"{facts.as_of:%Y%m%dT%H%M%SZ}" if facts.as_of is not None else "gpufix"
    known["fstab_backup"] = f"/etc/fstab.before-{at}"
    if facts.swaps.value is not None:
        known["swap_device"] = tuple(device.path for device in facts.swaps.value)
    if facts.swap_services.value is not None:
        known["swap_service"] = facts.swap_services.value
    if facts.containers.value is not None:
        found = [one for one in facts.containers.value if one.is_vfio_manager]
        if all(one.running is not None for one in found):
            known["vfio_container"] = tuple(one.id for one in found if one.running)
    known.update(_units(facts, choose_verb))
    return known


def _label(node: NodeFacts, name: str) -> str:
    """The word of kubectl label that puts it back: its name alone with a - takes it off."""
    value = node.labels.get(name)
    return f"{name}-" if value is None else f"{name}={value}"


def _socket(unit: str, files: Mapping[str, str]) -> str:
    for name in ("host/kubelet_flags", "host/kubelet_config"):  # a flag wins over the file
        if found := _ENDPOINT.findall(files.get(name, "")):
            return str(found[-1]).removeprefix("unix://")
    return next((socket for families, socket in _SOCKETS if unit.startswith(families)), _DEFAULT_SOCKET)


def _units(facts: Facts, choose_verb: ChooseVerb) -> dict[str, tuple[str, ...]]:
    units = facts.swap_units.value
    if units is None or any(unit.returns_at_boot is None for unit in units):
        return {}
    chosen = [(choose_verb(unit.fragment, unit.unit_file_state), unit) for unit in units if unit.returns_at_boot]
    return {
        "swap_unit_to_disable": tuple(unit.name for verb, unit in chosen if verb == "disable"),
        "swap_unit_file_to_set_aside": tuple(unit.fragment for verb, unit in chosen if verb == "set-aside"),
        "swap_unit_to_mask": tuple(unit.name for verb, unit in chosen if verb != "disable"),
    }
