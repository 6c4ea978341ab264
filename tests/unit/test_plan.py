"""Conditions and plans over the model world: three-valued, predicted, and honest about what they assume."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import order_model as model
import pytest
from hypothesis import given
from hypothesis import strategies as st
from order_model import World

from gpufix.core.actions import actions_of, predict
from gpufix.core.conditions import World as Seen
from gpufix.core.conditions import evaluate
from gpufix.core.invariants import Action
from gpufix.core.observations import OBSERVATIONS, observe
from gpufix.core.plan import Decision, build_plan, may_skip, plan_step
from gpufix.core.runbook import Group, Leaf
from gpufix.model import Observation
from gpufix.session import read_runbooks

(BOOK,) = read_runbooks()
STEPS = {step.id: step for step in BOOK.steps}


def seen(world: World, target: str = "container", blind: frozenset[str] = frozenset()) -> Seen:
    return Seen(model.read(world, blind), {"target_workload": target}, {"swap-on": "confirmed"})


def decisions(world: World, target: str = "container") -> dict[str, tuple[Decision, tuple[str, ...]]]:
    plan = build_plan(BOOK, "omen2", seen(world, target))
    return {planned.step.id: (planned.decision, planned.assumes) for planned in plan.steps}


def test_the_incident_is_planned_whole_and_each_step_says_what_it_assumes() -> None:
    plan = decisions(World())
    assert [decision for decision, _ in plan.values()] == [Decision.RUN] * 4 + [Decision.OBSERVE]
    assert plan["relabel"][1] == ()
    assert plan["stop-vfio-manager"][1] == ("relabel",)
    assert plan["disable-swap"][1] == ("relabel", "stop-vfio-manager")
    assert plan["restart-kubelet"][1] == ("relabel", "stop-vfio-manager", "disable-swap")


def test_the_label_already_set_is_a_no_op_with_its_reason() -> None:
    plan = build_plan(BOOK, "omen2", seen(World("container", deploy_vfio=False, container=False)))
    assert plan.steps[0].decision is Decision.NOOP
    assert "node.workload_config is container" in plan.steps[0].reason
    assert plan.steps[1].decision is Decision.NOOP
    assert "vfio_manager.running is false" in plan.steps[1].reason


def test_passthrough_keeps_the_label_leaves_the_container_and_makes_the_restart_destructive() -> None:
    plan = build_plan(BOOK, "omen2", seen(World(), "vm-passthrough"))
    by_id = {planned.step.id: planned for planned in plan.steps}
    assert by_id["relabel"].decision is Decision.NOOP
    assert by_id["stop-vfio-manager"].decision is Decision.LEFT_OUT
    assert by_id["restart-kubelet"].destructive


def test_memory_that_is_too_small_blocks_the_step_and_what_hangs_on_it() -> None:
    plan = build_plan(BOOK, "omen2", seen(World(heavy=True)))
    by_id = {planned.step.id: planned for planned in plan.steps}
    assert by_id["disable-swap"].decision is Decision.BLOCKED
    assert by_id["disable-swap"].violations[0].rule == "O3"
    assert by_id["restart-kubelet"].decision is Decision.BLOCKED


@pytest.mark.parametrize("name", model.READABLE)
def test_what_could_not_be_read_never_plans_more_than_before(name: str) -> None:
    whole = {planned.step.id: planned.decision for planned in build_plan(BOOK, "omen2", seen(World())).steps}
    blind = {
        planned.step.id: planned.decision
        for planned in build_plan(BOOK, "omen2", seen(World(), blind=frozenset({name}))).steps
    }
    for step, decision in blind.items():
        assert decision in (whole[step], Decision.BLOCKED), f"{step} became {decision} by not reading {name}"


def test_skipping_is_offered_only_where_the_rest_can_still_run() -> None:
    for step in ("relabel", "stop-vfio-manager", "disable-swap"):
        planned = plan_step(STEPS[step], seen(World("container", deploy_vfio=False) if step != "relabel" else World()))
        assert not may_skip(BOOK, planned, seen(World())), step
    allowed = seen(World("container", deploy_vfio=False, container=False, swap_allowed=True))
    assert may_skip(BOOK, plan_step(STEPS["disable-swap"], allowed), allowed)
    assert not may_skip(BOOK, plan_step(STEPS["restart-kubelet"], allowed), allowed), (
        "never the start: that is quitting"
    )


def test_a_playbook_nobody_knows_counts_as_doing_everything() -> None:
    assert actions_of("something-new.yml") == frozenset(Action)
    assert actions_of("") == frozenset()
    for step in BOOK.steps:
        if step.playbook:
            assert len(actions_of(step.playbook)) == 1


VALUES = st.sampled_from([True, False, None])


@given(st.lists(VALUES, min_size=1, max_size=4), st.sampled_from(["all", "any"]))
def test_conditions_are_three_valued(values: list[bool | None], op: str) -> None:
    world = World(swap=True)
    leaves = {
        True: Leaf("observation", "swap.active", "is", True),
        False: Leaf("observation", "swap.active", "is", False),
        None: Leaf("observation", "vfio_manager.running", "is", True),
    }
    facts = seen(world, blind=frozenset({"containers"}))
    held = evaluate(Group(op, tuple(leaves[value] for value in values)), facts).holds
    if op == "all":
        assert held is (False if False in values else None if None in values else True)
    else:
        assert held is (True if True in values else None if None in values else False)
    (first, *_) = values
    turned = evaluate(Group("not", (leaves[first],)), facts).holds
    assert turned is (None if first is None else not first)


@given(st.sampled_from(sorted(OBSERVATIONS)), st.frozensets(st.sampled_from(model.READABLE)))
def test_an_observation_is_known_with_a_value_or_unknown_with_a_reason(name: str, blind: frozenset[str]) -> None:
    found = observe(name, model.read(World(), blind))
    assert (found.value is not None) is found.known
    if not found.known:
        assert found.unknown


def test_a_bool_is_no_number_and_a_number_no_bool() -> None:
    facts = model.read(World())
    assert facts.node.value is not None
    node = replace(facts.node.value, allocatable={"nvidia.com/gpu": "1"})
    world = Seen(replace(facts, node=Observation.of(node)), {}, {})
    assert evaluate(Leaf("observation", "gpu.container_allocatable", "is", True), world).holds is False
    assert evaluate(Leaf("observation", "gpu.container_allocatable", "at_least", 1), world).holds is True
    assert evaluate(Leaf("observation", "gpu.container_allocatable", "at_least", 2), world).holds is False


def test_prediction_reaches_the_end_of_the_plan() -> None:
    facts: Any = model.read(World())
    for step in BOOK.steps:
        facts = predict(facts, actions_of(step.playbook), "container", step.id)
    assert observe("node.ready", facts).value == "True"
    assert observe("swap.active", facts).value is False
    assert observe("swap.returns_at_boot", facts).value is False
    assert observe("node.vfio_manager_label", facts).value == "absent"
    assert observe("vfio_manager.running", facts).value is False
