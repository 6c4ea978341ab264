"""The order rules hold on every path: exhaustively over a bounded world, and at random over a larger one.

And each rule earns its place: with any one of them taken out, the same exploration finds harm done.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import order_model as model
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from order_model import Attempt, Faults, World

from gpufix.core.invariants import RULES, Action, Consent, Phase, Proposal, Rule, Violation, check
from gpufix.model import Facts

ACTIONS = {
    "relabel": Action.RELABEL,
    "stop-vfio-manager": Action.STOP_VFIO_MANAGER,
    "disable-swap": Action.REMOVE_OBSTACLE,
    "restart-kubelet": Action.START_KUBELET,
}
EVERYTHING_SEEN: frozenset[str] = frozenset()
BLINDNESS = (frozenset(model.HOST), frozenset(model.CLUSTER), *(frozenset({name}) for name in model.READABLE))


def proposal_of(attempt: Attempt) -> Proposal:
    consent = Consent(attempt.step, attempt.target, attempt.shown) if attempt.agreed else None
    return Proposal(attempt.step, frozenset({ACTIONS[attempt.step]}), attempt.target, consent, attempt.undo)


def attempts() -> list[Attempt]:
    """Every step towards every target: with all in order, with each thing missing, and blind to each observation."""
    found = []
    for step in model.STEPS:
        found += [Attempt(step), Attempt(step, agreed=False), Attempt(step, undo=False)]
        found += [Attempt(step, blind=blind) for blind in BLINDNESS]
        found += [Attempt(step, shown=frozenset({1}))]
        for shown in (None, frozenset({1}), frozenset({1, 2})):
            found.append(Attempt(step, "vm-passthrough", shown=shown))
        found += [
            Attempt(step, "vm-passthrough", shown=frozenset({1}), blind=blind)
            for blind in BLINDNESS
            if len(blind) > 1 or not blind <= model.SWAP  # what is known of swap is judged alike for both targets
        ]
    return found


PROPOSALS = {attempt: proposal_of(attempt) for attempt in attempts()}
HEALTHY = World("container", deploy_vfio=False, container=False, kubelet="active", swap=False, fstab=False)
INCIDENTS = [World(container=c, old_kubelet=o) for c, o in itertools.product((True, False), repeat=2)]
STARTS = (*INCIDENTS, World(heavy=True), World(kubelet="active", swap=False), HEALTHY)
"""The incident as it was, after a reboot, with an older kubelet, under memory pressure; and two nodes that live."""


@dataclass
class Exploration:
    worlds: dict[World, tuple[World, str] | None]
    moves: int = 0
    steps_taken: int = 0
    steps_blocked: int = 0
    fault: str = ""
    path: tuple[str, ...] = ()


@cache
def readings(visible: World) -> Mapping[frozenset[str], Facts]:
    return {blind: model.read(visible, blind) for blind in (EVERYTHING_SEEN, *BLINDNESS)}


@cache
def objections(visible: World) -> Mapping[Attempt, frozenset[str]]:
    """Attempt -> the rules against it, in any world that reads like ``visible``."""
    reads = readings(visible)
    return {a: frozenset(v.rule for v in check(p, reads[a.blind])) for a, p in PROPOSALS.items()}


def is_allowed(attempt: Attempt, visible: World, rules: Mapping[str, Rule]) -> bool:
    """Like an empty ``check(..., rules)``, with the answers of the project's own rules remembered."""
    own = {name for name, predicate in rules.items() if RULES.get(name) is predicate}
    if objections(visible)[attempt] & own:
        return False
    others = {name: predicate for name, predicate in rules.items() if name not in own}
    return not others or not check(PROPOSALS[attempt], readings(visible)[attempt.blind], others)


def allowed_in(visible: World, rules: Mapping[str, Rule]) -> tuple[tuple[Attempt, ...], int]:
    """The attempts no rule blocks, and how many there are when each blindness counts; the deed is the same for all."""
    allowed = [attempt for attempt in PROPOSALS if is_allowed(attempt, visible, rules)]
    return tuple(dict.fromkeys(a._replace(blind=EVERYTHING_SEEN) for a in allowed)), len(allowed)


def explore(rules: Mapping[str, Rule] = RULES, *, holds_unit: bool = True) -> Exploration:
    """Breadth first through every order of steps, failures, autonomous moves and other hands, up to the first fault."""
    exploration = Exploration(dict.fromkeys(STARTS))
    faults = Faults()
    queue = deque(STARTS)
    answers: dict[World, tuple[tuple[Attempt, ...], int]] = {}

    def reach(world: World, before: World, how: str) -> None:
        exploration.moves += 1
        if world not in exploration.worlds:
            exploration.worlds[world] = (before, how)
            queue.append(world)

    while queue:
        world = queue.popleft()
        visible = world._replace(operator=True, old_kubelet=False, agreed=frozenset(), promised=False)
        if visible not in answers:
            answers[visible] = allowed_in(visible, rules)
        allowed, count = answers[visible]
        exploration.steps_taken += count
        exploration.steps_blocked += len(PROPOSALS) - count
        for attempt in allowed:
            for outcome in model.outcomes(world, attempt, holds_unit=holds_unit):
                exploration.fault = faults.of_step(world, outcome)
                if exploration.fault:
                    exploration.path = (*path_to(world, exploration), f"{attempt}: {exploration.fault}")
                    return exploration
                reach(outcome[0], world, attempt.step)
        for after, harm in model.autonomous(world):
            reach(after, world, f"by itself{': ' + harm if harm else ''}")
        for how, after in model.by_hand(world):
            reach(after, world, f"by hand: {how}")
    return exploration


def path_to(world: World, exploration: Exploration) -> tuple[str, ...]:
    before = exploration.worlds[world]
    return (str(world),) if before is None else (*path_to(before[0], exploration), before[1])


@pytest.fixture(scope="module")
def explored() -> Exploration:
    return explore()


def test_no_path_lets_the_tool_do_harm(explored: Exploration) -> None:
    assert not explored.fault, "\n".join(explored.path)


def test_the_exploration_is_not_empty(explored: Exploration) -> None:
    """A model that blocks everything, or reaches nothing, would pass the property for nothing."""
    assert len(explored.worlds) > 2000
    assert explored.steps_taken > 10_000
    assert explored.steps_blocked > 10_000


@pytest.mark.parametrize("name", sorted(RULES))
def test_without_this_rule_harm_is_done(name: str) -> None:
    weakened = explore({other: predicate for other, predicate in RULES.items() if other != name})
    assert weakened.fault, f"nothing goes wrong without {name}: the rule is not needed, or the model cannot see it"


def without_o1_at(action: Action) -> Mapping[str, Rule]:
    def blinkered(proposal: Proposal, facts: Facts, phase: Phase) -> list[Violation]:
        return [] if action in proposal.actions else RULES["O1"](proposal, facts, phase)

    return {**RULES, "O1": blinkered}


@pytest.mark.parametrize("action", [Action.RELABEL, Action.STOP_VFIO_MANAGER, Action.START_KUBELET])
def test_o1_is_needed_at(action: Action) -> None:
    assert explore(without_o1_at(action)).fault


def test_o1_is_needed_where_the_obstacle_goes() -> None:
    """A step that turns swap off without holding the unit hands the start to systemd."""
    assert not explore(holds_unit=False).fault
    assert explore(without_o1_at(Action.REMOVE_OBSTACLE), holds_unit=False).fault


# --- liveness --------------------------------------------------------------------------------------------------------


def settle(world: World) -> World:
    """The operator does its part, and nothing else happens."""
    if world.operator and world.deploy_vfio != (world.served == "vm-passthrough"):
        world, _ = next(outcome for outcome in model.autonomous(world) if outcome[0].deploy_vfio != world.deploy_vfio)
    return world


def needed(world: World, target: str) -> dict[str, bool]:
    return {
        "relabel": world.label != target or (target == "container" and world.deploy_vfio),
        "stop-vfio-manager": world.container and not world.deploy_vfio,
        "disable-swap": world.swap or world.fstab or world.native_unit,
        "restart-kubelet": world.kubelet != "active",
    }


def walk(world: World, target: str) -> tuple[World, str]:
    """The canonical order with nothing in its way. The second part names the step that was blocked, and by what."""
    for step in model.STEPS:
        if not needed(world, target)[step]:
            continue
        attempt = Attempt(step, target, shown=world.jobs if target == "vm-passthrough" else None)
        against = check(proposal_of(attempt), model.read(world))
        if against:
            return world, f"{step}: {against[0].rule} {against[0].reason}"
        *_, (world, harm) = model.outcomes(world, attempt)
        assert not harm
        world = settle(world)
    return world, ""


@pytest.mark.parametrize("old_kubelet", [False, True])
@pytest.mark.parametrize("container", [False, True])
@pytest.mark.parametrize("operator", [False, True])
def test_the_canonical_order_recovers_the_incident(old_kubelet: bool, container: bool, operator: bool) -> None:
    incident = World(old_kubelet=old_kubelet, container=container, operator=operator)
    after, blocked = walk(incident, "container")
    assert not blocked
    assert (after.kubelet, after.swap, after.fstab, after.label, after.deploy_vfio) == (
        "active", False, False, "container", False,
    )  # fmt: skip
    assert after.jobs == incident.jobs, "the job must live"
    assert not Faults().can_do_harm(after)


def test_the_canonical_order_recovers_towards_passthrough_with_consent() -> None:
    after, blocked = walk(World(), "vm-passthrough")
    assert not blocked
    assert (after.kubelet, after.label, after.container, after.swap) == ("active", "vm-passthrough", True, False)


def test_no_dead_end(explored: Exploration) -> None:
    """From wherever a dead node got to, trying again in the canonical order recovers it.

    Two kinds of world need a person first: no room for what is swapped out, and a unit that systemd may revive any
    moment (nothing stands in its way) while vfio-manager is in place.
    """
    tried = 0
    for world in explored.worlds:
        if world.kubelet == "active" or world.heavy or (world.kubelet == "auto-restart" and not world.swap):
            continue
        tried += 1
        after, blocked = walk(world, "container")
        assert not blocked, (world, blocked)
        assert after.kubelet == "active"
        assert after.jobs == world.jobs
    assert tried > 500


# --- at random, over the larger world --------------------------------------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """More labels, more sources of swap, a kubelet that may allow swap, any set of observations unknown at once."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.faults = Faults()

    @initialize(
        old_kubelet=st.booleans(),
        heavy=st.booleans(),
        native_unit=st.booleans(),
        default=st.sampled_from(model.TARGETS),
        sandbox=st.booleans(),
        swap_allowed=st.booleans(),
        label=st.sampled_from(model.HAND_LABELS),
    )
    def begin(self, **changes: object) -> None:
        self.world = self.world._replace(**changes)  # type: ignore[arg-type]

    @rule(pick=st.integers(0, 4))
    def something_happens(self, pick: int) -> None:
        happenings = list(model.autonomous(self.world))
        self.world = happenings[pick % len(happenings)][0]

    @rule(pick=st.integers(0, 7))
    def somebody_else_acts(self, pick: int) -> None:
        acts = list(model.by_hand(self.world))
        self.world = acts[pick % len(acts)][1]

    @rule(label=st.sampled_from(model.HAND_LABELS))
    def somebody_relabels(self, label: str) -> None:
        self.world = self.world._replace(label=label)

    @rule(
        step=st.sampled_from(model.STEPS),
        towards=st.sampled_from(model.TARGETS),
        agreed=st.sampled_from((True, True, True, False)),
        undo=st.sampled_from((True, True, True, False)),
        shown=st.sampled_from((None, frozenset[int](), frozenset({1}), frozenset({1, 2}))),
        blind=st.one_of(st.just(frozenset[str]()), st.frozensets(st.sampled_from(model.READABLE), max_size=3)),
        fails_after=st.integers(0, 3),
    )
    def step_is_tried(self, fails_after: int, towards: str, **what: object) -> None:
        attempt = Attempt(target=towards, **what)  # type: ignore[arg-type]
        if check(proposal_of(attempt), model.read(self.world, attempt.blind)):
            return
        outcomes = list(model.outcomes(self.world, attempt))
        outcome = outcomes[min(fails_after, len(outcomes) - 1)]
        fault = self.faults.of_step(self.world, outcome)
        assert not fault, (self.world, attempt, fault)
        self.world = outcome[0]


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    derandomize=True, max_examples=int(os.environ.get("GPUFIX_ORDER_EXAMPLES", "80")), stateful_step_count=40,
    deadline=None,
)  # fmt: skip
