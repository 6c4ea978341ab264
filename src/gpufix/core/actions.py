"""What each playbook does to the world, and what the world will be like after it. Pure.

The order rules hang on these actions, not on what a runbook says about itself. A playbook that is not listed here
counts as doing everything, so that every rule applies to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpufix.core.invariants import Action
from gpufix.core.observations import VFIO_MANAGER_LABEL, WORKLOAD_LABEL
from gpufix.language import t
from gpufix.model import Evidence, Facts, Observation

_BY_PLAYBOOK: Mapping[str, frozenset[Action]] = {
    "read-node.yml": frozenset(),
    "relabel-node.yml": frozenset({Action.RELABEL}),
    "stop-vfio-manager.yml": frozenset({Action.STOP_VFIO_MANAGER}),
    "disable-swap.yml": frozenset({Action.REMOVE_OBSTACLE}),
    "restart-kubelet.yml": frozenset({Action.START_KUBELET}),
    "restore-labels.yml": frozenset({Action.RELABEL}),
    "restore-swap.yml": frozenset({Action.RESTORE_SWAP}),
}


def actions_of(playbook: str) -> frozenset[Action]:
    """The actions of ``playbook``; none for an empty name (a step that only observes)."""
    if not playbook:
        return frozenset()
    return _BY_PLAYBOOK.get(playbook, frozenset(Action))


def predict(facts: Facts, actions: frozenset[Action], target_workload: str, step: str) -> Facts:
    """``facts`` as they will read once ``actions`` have had their effect: what later steps are planned against."""
    evidence = Evidence(t("assumes step {step}", step=step), t("predicted, not read"))
    if Action.RELABEL in actions and facts.node.value is not None:
        node = facts.node.value
        labels = {**node.labels, WORKLOAD_LABEL: target_workload}
        if target_workload == "container":
            labels.pop(VFIO_MANAGER_LABEL, None)
        facts = replace(facts, node=Observation.of(replace(node, labels=labels), evidence))
    if Action.STOP_VFIO_MANAGER in actions and facts.containers.value is not None:
        containers = tuple(
            replace(container, running=False) if container.is_vfio_manager else container
            for container in facts.containers.value
        )
        facts = replace(facts, containers=Observation.of(containers, evidence))
    if Action.REMOVE_OBSTACLE in actions:
        facts = _without_swap(facts, evidence)
    if Action.START_KUBELET in actions:
        facts = _with_kubelet(facts, evidence)
    return facts


def _without_swap(facts: Facts, evidence: Evidence) -> Facts:
    unit = facts.unit
    if unit.value is not None and not unit.value.running:
        unit = Observation.of(replace(unit.value, active_state="inactive", sub_state="dead"), evidence)
    units = facts.swap_units
    if units.value is not None:
        masked = tuple(
            replace(u, origin="masked", active_state="inactive", unit_file_state="masked")
            if u.returns_at_boot is not False
            else u
            for u in units.value
        )
        units = Observation.of(masked, evidence)
    return replace(
        facts,
        unit=unit,
        swaps=Observation.of((), evidence) if facts.swaps.known else facts.swaps,
        fstab_swap=Observation.of((), evidence) if facts.fstab_swap.known else facts.fstab_swap,
        swap_units=units,
        swap_services=Observation.of((), evidence) if facts.swap_services.known else facts.swap_services,
    )


def _with_kubelet(facts: Facts, evidence: Evidence) -> Facts:
    if facts.unit.value is not None:
        unit = replace(facts.unit.value, active_state="active", sub_state="running")
        facts = replace(facts, unit=Observation.of(unit, evidence))
    if facts.node.value is not None:
        node = replace(facts.node.value, ready="True", taints=())
        facts = replace(facts, node=Observation.of(node, evidence))
    return facts
