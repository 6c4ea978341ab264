"""What must be on record before a step changes anything, so that it can be undone (rule O4). Pure."""

from __future__ import annotations

from typing import Any

from gpufix.core.invariants import Action
from gpufix.core.workload import VFIO_MANAGER_LABEL, WORKLOAD_LABEL
from gpufix.model import Facts


def capture_undo(actions: frozenset[Action], facts: Facts) -> dict[str, Any] | None:
    """The undo material of ``actions``; None when it cannot be captured, or when there is no way back.

    fstab itself is kept on the node, as a backup beside it with the same owner and mode: it may hold passwords.
    """
    undo: dict[str, Any] = {}
    if actions & {Action.START_KUBELET, Action.STOP_VFIO_MANAGER} or not actions:
        return None
    if Action.RELABEL in actions:
        if facts.node.value is None:
            return None
        labels = facts.node.value.labels
        undo["node_uid"] = facts.node.value.uid
        undo["labels"] = {key: labels.get(key) for key in (WORKLOAD_LABEL, VFIO_MANAGER_LABEL)}
    if Action.REMOVE_OBSTACLE in actions:
        if facts.swaps.value is None or facts.fstab_swap.value is None or facts.unit.value is None:
            return None
        undo["kubelet_unit"] = {
            "name": facts.unit.value.name,
            "was": f"{facts.unit.value.active_state}/{facts.unit.value.sub_state}",
        }
        undo["swapon"] = [{"device": device.path, "priority": device.priority} for device in facts.swaps.value]
        undo["fstab_lines"] = [{"line": line.number, "text": line.text} for line in facts.fstab_swap.value]
        undo["unmask"] = [unit.name for unit in facts.swap_units.value or () if unit.returns_at_boot]
        undo["enable"] = list(facts.swap_services.value or ())
    return undo
