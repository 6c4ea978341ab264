"""Runbook + answers + facts -> Plan: what runs, what is a no-op and why, what is blocked and by which rule. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpufix.core.actions import actions_of, predict
from gpufix.core.conditions import Verdict, World, evaluate
from gpufix.core.invariants import Action, Consent, Phase, Proposal, Violation, check
from gpufix.core.runbook import ALWAYS, Group, Runbook, RunbookStep
from gpufix.core.workload import CONTAINER
from gpufix.language import t
from gpufix.model import Facts


class Decision(StrEnum):
    RUN = "run"
    NOOP = "no-op"
    BLOCKED = "blocked"
    OBSERVE = "observe"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step, decided. ``reason`` says why (a no-op's effect that already holds, a block's first cause).

    ``assumes`` names the earlier steps without which the decision would be another one.
    """

    step: RunbookStep
    decision: Decision
    reason: str
    violations: tuple[Violation, ...] = ()
    destructive: bool = False
    assumes: tuple[str, ...] = ()
    actions: frozenset[Action] = frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    node: str
    runbook: Runbook
    answers: Mapping[str, str]
    steps: tuple[PlannedStep, ...]


def target_of(answers: Mapping[str, str]) -> str:
    """The workload the GPU is recovered for; ``container``, which binds nothing, unless someone chose otherwise."""
    return answers.get("target_workload", CONTAINER)


def plan_step(
    step: RunbookStep,
    world: World,
    *,
    consent: Consent | None = None,
    undo_captured: bool = False,
    phase: Phase = "preview",
) -> PlannedStep:
    """The decision over ``step`` in ``world``. With ``phase="act"`` the rules on consent and undo count too."""
    actions = actions_of(step.playbook)
    destructive = evaluate(step.destructive, world).holds is not False or surely_destructive(step, world.answers)
    if evaluate(step.when, world).holds is False:
        return PlannedStep(step, Decision.LEFT_OUT, t("not for this choice"), actions=actions)
    if not step.playbook:
        return PlannedStep(step, Decision.OBSERVE, t("changes nothing"))
    done = evaluate(step.done_when, world)
    if done.holds:
        return PlannedStep(step, Decision.NOOP, _because(done), destructive=destructive, actions=actions)
    proposal = Proposal(
        step=step.id,
        actions=actions,
        target_workload=target_of(world.answers),
        consent=consent,
        undo_captured=undo_captured,
        irreversible_declared=bool(step.irreversible),
    )
    violations = tuple(check(proposal, world.facts, phase=phase))
    if violations:
        return PlannedStep(step, Decision.BLOCKED, violations[0].reason, violations, destructive, actions=actions)
    requires = evaluate(step.requires, world)
    if not requires.holds:
        return PlannedStep(step, Decision.BLOCKED, _open(requires), (), destructive, actions=actions)
    return PlannedStep(step, Decision.RUN, _open(done), destructive=destructive, actions=actions)


def surely_destructive(step: RunbookStep, answers: Mapping[str, str]) -> bool:
    """Whether ``step`` wants the node's name whatever is found: by its runbook, or by what its playbook does, since a
    runbook's word alone does not make the start of a kubelet harmless."""
    actions, passthrough = actions_of(step.playbook), target_of(answers) != CONTAINER
    starts_or_stops = bool(actions & {Action.START_KUBELET, Action.STOP_VFIO_MANAGER})
    return step.destructive == ALWAYS or starts_or_stops or (Action.RELABEL in actions and passthrough)


def _because(done: Verdict) -> str:
    held = "; ".join(leaf.text for leaf in done.leaves() if leaf.holds and leaf.kind == "observation")
    return t("already so: {held}", held=held)


def _open(verdict: Verdict) -> str:
    return "; ".join(leaf.text for leaf in verdict.open_parts())


def build_plan(runbook: Runbook, node: str, world: World) -> Plan:
    """Every step against the state that the earlier ones are predicted to leave."""
    planned: list[PlannedStep] = []
    for step in runbook.steps:
        here = _decide(step, world, planned, without="")
        assumes = tuple(
            earlier.step.id
            for earlier in planned
            if earlier.decision is Decision.RUN
            and _signature(_decide(step, world, planned, without=earlier.step.id)) != _signature(here)
        )
        if here.decision is Decision.OBSERVE:
            assumes = tuple(earlier.step.id for earlier in planned if earlier.decision is Decision.RUN)
        planned.append(
            PlannedStep(step, here.decision, here.reason, here.violations, here.destructive, assumes, here.actions)
        )
    return Plan(node, runbook, dict(world.answers), tuple(planned))


def _signature(planned: PlannedStep) -> tuple[Decision, tuple[str, ...]]:
    return planned.decision, tuple(violation.rule for violation in planned.violations)


def _decide(step: RunbookStep, world: World, planned: list[PlannedStep], without: str) -> PlannedStep:
    facts: Facts = world.facts
    for earlier in planned:
        if earlier.decision is Decision.RUN and earlier.step.id != without:
            facts = predict(facts, earlier.actions, target_of(world.answers), earlier.step.id)
    return plan_step(step, World(facts, world.answers, world.findings))


def may_skip(runbook: Runbook, planned: PlannedStep, world: World) -> bool:
    """Whether the gate may offer to skip ``planned``: the runbook allows it and some later step can still run."""
    if not planned.step.skippable:
        return False
    index = [step.id for step in runbook.steps].index(planned.step.id)
    rest = Runbook(runbook.id, runbook.title, runbook.summary, Group("all", ()), (), runbook.steps[index + 1 :])
    plan = build_plan(rest, "", world)
    return all(step.decision is not Decision.BLOCKED for step in plan.steps)
