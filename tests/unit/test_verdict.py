"""The two verdicts: Ready alone is not well, frozen is not offered, unknown is not fine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import order_model as model
import pytest
from order_model import World

from gpufix.core.verdict import Health, VmHealth, judge_node, judge_vms
from gpufix.model import AffectedVm, Diagnosis, Facts, Finding, NodeFacts, Observation, Status, Taint, VmFacts

WELL = World("container", deploy_vfio=False, container=False, kubelet="active", swap=False, fstab=False)


def facts(world: World = WELL, node: dict[str, Any] | None = None, **other: Any) -> Facts:
    found = model.read(world)
    assert found.node.value is not None
    changed: NodeFacts = replace(found.node.value, **{"allocatable": {"nvidia.com/gpu": "1"}, **(node or {})})
    known = {name: Observation.of(value) for name, value in other.items()}
    return replace(found, node=Observation.of(changed), in_container=Observation.of(False), **known)


def test_a_well_node() -> None:
    verdict = judge_node(facts(), "container")
    assert verdict.health is Health.WELL
    assert verdict.reboot_proof is True
    assert all(
        check.evidence for check in verdict.checks if check.id in ("node-ready", "taint-gone", "gpu-allocatable")
    )


@pytest.mark.parametrize(
    ("changed", "open_check"),
    [
        ({"ready": "Unknown"}, "node-ready"),
        ({"ready": "False"}, "node-ready"),
        ({"taints": (Taint("node.kubernetes.io/unreachable", "NoExecute"),)}, "taint-gone"),
        ({"allocatable": {"nvidia.com/gpu": "0"}}, "gpu-allocatable"),
        ({"allocatable": {}}, "gpu-allocatable"),
        ({"allocatable": {"nvidia.com/GB202_GEFORCE_RTX_5090": "1"}}, "gpu-allocatable"),
    ],
)
def test_one_open_check_is_enough_to_be_sick(changed: dict[str, Any], open_check: str) -> None:
    verdict = judge_node(facts(node=changed), "container")
    assert verdict.health is Health.SICK
    assert open_check in [check.id for check in verdict.open_checks]


def test_a_frozen_allocatable_is_not_taken_for_health() -> None:
    verdict = judge_node(facts(World("container", deploy_vfio=False), {"ready": "Unknown"}), "container")
    gpu = next(check for check in verdict.checks if check.id == "gpu-allocatable")
    assert gpu.holds is False
    assert "frozen" in gpu.text


@pytest.mark.parametrize("name", ["unit", "swaps", "node"])
def test_what_was_not_read_keeps_it_from_being_well(name: str) -> None:
    verdict = judge_node(replace(facts(), **{name: Observation.missing("no answer")}), "container")
    assert verdict.health is not Health.WELL
    assert any("no answer" in check.text for check in verdict.open_checks)


def test_whether_it_survives_a_reboot() -> None:
    assert judge_node(facts(World("container", fstab=True)), "container").reboot_proof is False
    assert judge_node(replace(facts(), in_container=Observation.of(True)), "container").reboot_proof is None
    assert judge_node(replace(facts(), fstab_swap=Observation.missing("denied")), "container").reboot_proof is None
    disabled = replace(facts().unit.value, unit_file_state="disabled")  # type: ignore[type-var]
    assert judge_node(facts(unit=disabled), "container").reboot_proof is False


def diagnosis(*affected: AffectedVm) -> Diagnosis:
    return Diagnosis("omen2", None, Finding("healthy", Status.CONFIRMED, ""), (), affected=affected)


WAITING = AffectedVm("default", "gpu-fedora", "ErrorUnschedulable", {"nvidia.com/RTX": 1}, None, "Insufficient")


def test_waiting_vms_are_announced_only_by_a_choice() -> None:
    assert judge_vms(facts(), diagnosis(WAITING), "container").announced
    verdict = judge_vms(facts(), diagnosis(WAITING))
    assert (verdict.health, verdict.announced) == (VmHealth.WAITING, False)
    assert "vm-passthrough mode only" in verdict.text


def test_vms_that_could_not_be_read_are_unknown_and_no_vms_are_none() -> None:
    assert judge_vms(facts(), diagnosis()).health is VmHealth.UNKNOWN
    assert judge_vms(facts(vms=()), diagnosis()).health is VmHealth.NONE
    running = VmFacts("default", "gpu-fedora", "Running", {"nvidia.com/RTX": 1})
    assert judge_vms(facts(vms=(running,)), diagnosis()).health is VmHealth.RUNNING
