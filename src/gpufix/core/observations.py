"""The named observations that runbook conditions may use. Pure.

Each reads one scalar out of Facts, or says why it cannot. A name is added here once and is then known to the loader
(which checks runbooks against it), to the planner and to the verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from gpufix.core.invariants import boot_sources
from gpufix.core.runbook import Scalar
from gpufix.language import t
from gpufix.model import Evidence, Facts, NodeFacts, Observation

WORKLOAD_LABEL = "nvidia.com/gpu.workload.config"
VFIO_MANAGER_LABEL = "nvidia.com/gpu.deploy.vfio-manager"
NOT_SERVING_TAINTS = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")

SWAP_REFUSAL = re.compile(r"(?i)running with swap on is not supported")
"""The kubelet's refusal in every version's wording (kubernetes/kubernetes cmd/kubelet, pkg/kubelet/cm)."""


def observe(name: str, facts: Facts) -> Observation[Scalar]:
    """The observation called ``name``. KeyError for a name that is not in OBSERVATIONS."""
    return OBSERVATIONS[name](facts)


def _node(facts: Facts, read: Callable[[NodeFacts], tuple[Scalar, str]]) -> Observation[Scalar]:
    if not facts.node.known or facts.node.value is None:
        return Observation.missing(facts.node.unknown)
    value, excerpt = read(facts.node.value)
    return Observation.of(value, Evidence(f"cluster/nodes.json {facts.node_name}", excerpt))


def _ready(facts: Facts) -> Observation[Scalar]:
    def read(node: NodeFacts) -> tuple[Scalar, str]:
        status = node.ready or "absent"
        return status, f"Ready={status} {node.ready_reason}".strip()

    return _node(facts, read)


def _not_serving_taint(facts: Facts) -> Observation[Scalar]:
    def read(node: NodeFacts) -> tuple[Scalar, str]:
        standing = [f"{taint.key}:{taint.effect}" for taint in node.taints if taint.key in NOT_SERVING_TAINTS]
        return bool(standing), ", ".join(standing) or "no unreachable or not-ready taint"

    return _node(facts, read)


def _label(key: str) -> Callable[[Facts], Observation[Scalar]]:
    def read(node: NodeFacts) -> tuple[Scalar, str]:
        value = node.labels.get(key)
        return ("absent" if value is None else value), (f"no label {key}" if value is None else f"{key}={value}")

    return lambda facts: _node(facts, read)


def _kubelet_running(facts: Facts) -> Observation[Scalar]:
    unit = facts.unit
    if not unit.known or unit.value is None:
        return Observation.missing(unit.unknown)
    return Observation(unit.value.running, unit.evidence)


def _starts_by_itself(facts: Facts) -> Observation[Scalar]:
    unit = facts.unit
    if not unit.known or unit.value is None:
        return Observation.missing(unit.unknown)
    return Observation(unit.value.will_start_by_itself, unit.evidence)


def _last_start_refused_swap(facts: Facts) -> Observation[Scalar]:
    journal = facts.journal
    if not journal.known or journal.value is None:
        return Observation.missing(journal.unknown)
    for start in reversed(journal.value.starts):
        if start.fatal is not None:
            return Observation.of(bool(SWAP_REFUSAL.search(start.fatal.excerpt)), start.fatal)
    return Observation.of(False)


def _swap_active(facts: Facts) -> Observation[Scalar]:
    if not facts.swaps.known or facts.swaps.value is None:
        return Observation.missing(facts.swaps.unknown)
    return Observation(bool(facts.swaps.value), facts.swaps.evidence)


def _swap_devices(facts: Facts) -> Observation[Scalar]:
    if not facts.swaps.known or facts.swaps.value is None:
        return Observation.missing(facts.swaps.unknown)
    paths = sorted(device.path for device in facts.swaps.value)
    return Observation(", ".join(paths) or "none", facts.swaps.evidence)


def _swap_returns(facts: Facts) -> Observation[Scalar]:
    sources = boot_sources(facts)
    if not sources.known or sources.value is None:
        return Observation.missing(sources.unknown)
    return Observation(bool(sources.value), sources.evidence)


def _swap_allowed(facts: Facts) -> Observation[Scalar]:
    if not facts.swap_allowed.known or facts.swap_allowed.value is None:
        return Observation.missing(facts.swap_allowed.unknown)
    return Observation(facts.swap_allowed.value, facts.swap_allowed.evidence)


def _vfio_manager_running(facts: Facts) -> Observation[Scalar]:
    if not facts.containers.known or facts.containers.value is None:
        return Observation.missing(facts.containers.unknown)
    managers = [container for container in facts.containers.value if container.is_vfio_manager]
    if any(container.running is None for container in managers):
        return Observation.missing(t("the runtime lists a vfio-manager container but not whether it runs"))
    return Observation(any(container.running for container in managers), facts.containers.evidence)


def container_resource(name: str) -> bool:
    """What the device plugin offers in container mode: nvidia.com/gpu, or MIG slices under the mixed strategy."""
    return name in ("nvidia.com/gpu", "nvidia.com/gpu.shared") or name.startswith("nvidia.com/mig-")


def passthrough_resources(facts: Facts) -> set[str]:
    """Names that only passthrough mode offers: what the VMs ask for, and what KubeVirt permits."""
    wanted = {name for vm in facts.vms.value or () for name in vm.devices}
    permitted = (facts.kubevirt.value.permitted or {}) if facts.kubevirt.value is not None else {}
    return {name for name in {*wanted, *permitted} if not container_resource(name)}


def _allocatable(wanted: Callable[[Facts, str], bool]) -> Callable[[Facts], Observation[Scalar]]:
    def observation(facts: Facts) -> Observation[Scalar]:
        def read(node: NodeFacts) -> tuple[Scalar, str]:
            amounts = {name: _amount(text) for name, text in node.allocatable.items() if wanted(facts, name)}
            shown = ", ".join(f"{name}: {amount}" for name, amount in sorted(amounts.items()))
            return max(
                amounts.values(), default=0
            ), f"allocatable {shown}" if shown else "allocatable names no such resource"

        return _node(facts, read)

    return observation


def _amount(text: str) -> int:
    return int(text) if text.isdigit() else 0


OBSERVATIONS: Mapping[str, Callable[[Facts], Observation[Scalar]]] = {
    "node.ready": _ready,
    "node.unreachable_taint": _not_serving_taint,
    "node.workload_config": _label(WORKLOAD_LABEL),
    "node.vfio_manager_label": _label(VFIO_MANAGER_LABEL),
    "kubelet.running": _kubelet_running,
    "kubelet.starts_by_itself": _starts_by_itself,
    "kubelet.last_start_refused_swap": _last_start_refused_swap,
    "kubelet.swap_allowed": _swap_allowed,
    "swap.active": _swap_active,
    "swap.devices": _swap_devices,
    "swap.returns_at_boot": _swap_returns,
    "vfio_manager.running": _vfio_manager_running,
    "gpu.container_allocatable": _allocatable(lambda facts, name: container_resource(name)),
    "gpu.passthrough_allocatable": _allocatable(lambda facts, name: name in passthrough_resources(facts)),
}
