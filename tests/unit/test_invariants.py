"""The order rules one by one: what each blocks, what it lets pass, and in which words."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import order_model as model
import pytest
from order_model import World

from gpufix.core import workload
from gpufix.core.invariants import (
    RULES,
    Action,
    Consent,
    Phase,
    Proposal,
    Violation,
    boot_sources,
    check,
    memory_arithmetic,
)
from gpufix.model import (
    ClusterPolicyFacts,
    Evidence,
    Facts,
    FstabLine,
    GpuHolder,
    HostContainer,
    JournalFacts,
    MemoryFacts,
    Observation,
    StartFacts,
    SwapDevice,
    SwapUnit,
    UnitFacts,
)

READY_TO_START = World("container", deploy_vfio=False, container=False, kubelet="inactive", swap=False, fstab=False)
STEP_OF = {
    Action.RELABEL: "relabel",
    Action.STOP_VFIO_MANAGER: "stop-vfio-manager",
    Action.REMOVE_OBSTACLE: "disable-swap",
    Action.START_KUBELET: "restart-kubelet",
    Action.RESTORE_SWAP: "restore-swap",
}


def with_facts(world: World, **values: Any) -> Facts:
    """A fresh read of ``world`` with some observations put in its place; a str is the reason that one is unknown."""
    observed: dict[str, Any] = {
        name: Observation.missing(value) if isinstance(value, str) else Observation.of(value)
        for name, value in values.items()
    }
    return replace(model.read(world), **observed)


def against(
    action: Action,
    seen: World | Facts,
    target: str = "container",
    *,
    shown: frozenset[int] | None = None,
    phase: Phase = "act",
) -> tuple[Violation, ...]:
    step = STEP_OF[action]
    proposal = Proposal(step, frozenset({action}), target, Consent(step, target, shown), undo_captured=True)
    return check(proposal, model.read(seen) if isinstance(seen, World) else seen, phase=phase)


def rules_of(violations: tuple[Violation, ...]) -> list[tuple[str, str]]:
    return [(violation.rule, violation.needs) for violation in violations]


# --- O1 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [Action.START_KUBELET, Action.REMOVE_OBSTACLE])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": "vm-passthrough"}, "still says vm-passthrough"),
        ({"label": "vm-passthrough", "sandbox": False}, "still says vm-passthrough"),
        ({"label": "", "default": "vm-passthrough"}, "the GPU Operator defaults to vm-passthrough"),
        ({"label": "nonsense", "default": "vm-passthrough"}, "the GPU Operator defaults to vm-passthrough"),
        ({"label": "vm-vgpu"}, "the label asks for vm-vgpu"),
        ({"deploy_vfio": True}, "nvidia.com/gpu.deploy.vfio-manager=true stands"),
        ({"container": True}, "a vfio-manager container still runs"),
    ],
)
def test_nothing_revives_the_kubelet_while_the_card_would_be_taken(
    action: Action, change: dict[str, Any], words: str
) -> None:
    (violation,) = against(action, READY_TO_START._replace(**change))
    assert violation.rule == "O1"
    assert words in violation.reason
    assert violation.hint


@pytest.mark.parametrize("action", list(Action))
def test_everything_in_order_is_let_pass(action: Action) -> None:
    assert against(action, READY_TO_START) == ()
    assert against(action, READY_TO_START, phase="preview") == ()


def test_the_deploy_label_stands_whatever_its_value() -> None:
    node = model.read(READY_TO_START).node.value
    assert node is not None
    labels = {**node.labels, workload.VFIO_MANAGER_LABEL: "paused-for-driver-upgrade"}
    facts = with_facts(READY_TO_START, node=replace(node, labels=labels))
    assert rules_of(against(Action.START_KUBELET, facts)) == [("O1", "node")]


def test_the_raw_label_binds_where_no_operator_is() -> None:
    passthrough = READY_TO_START._replace(label="vm-passthrough")
    facts = with_facts(passthrough, cluster_policy=ClusterPolicyFacts(False))
    assert rules_of(against(Action.START_KUBELET, facts)) == [("O1", "node")]
    assert against(Action.START_KUBELET, with_facts(READY_TO_START, cluster_policy=ClusterPolicyFacts(False))) == ()


def test_an_unread_policy_matters_only_when_the_answer_hangs_on_it() -> None:
    assert against(Action.START_KUBELET, with_facts(READY_TO_START, cluster_policy="forbidden")) == ()
    (violation,) = against(
        Action.START_KUBELET, with_facts(READY_TO_START._replace(label=""), cluster_policy="forbidden")
    )
    assert (violation.rule, violation.needs) == ("O5", "cluster_policy")
    assert "forbidden" in violation.reason


def test_stopping_vfio_manager_before_the_relabel_would_start_it_anew() -> None:
    assert ("O1", "node") in rules_of(against(Action.STOP_VFIO_MANAGER, World()))


def test_an_init_container_and_a_stopped_one_are_no_danger() -> None:
    containers = (
        HostContainer(model.POD, "", "3783ca8aab31", True),
        HostContainer(model.POD, "nvidia-vfio-manager", "4668b40bfe68", False),
        HostContainer("virt-launcher-rhel9-gpu-vm-z592z", "compute", "aa9c402464eb", True),
    )
    assert against(Action.START_KUBELET, with_facts(READY_TO_START, containers=containers)) == ()


def test_a_container_of_unknown_state_blocks() -> None:
    containers = (HostContainer(model.POD, "nvidia-vfio-manager", "4668b40bfe68", None),)
    (violation,) = against(Action.START_KUBELET, with_facts(READY_TO_START, containers=containers))
    assert (violation.rule, violation.needs) == ("O5", "containers")


KEPT = World(kubelet="inactive", swap=False, fstab=False)
"""vm-passthrough kept as it was, swap gone: the kubelet alone is to be started."""


def test_passthrough_starts_only_over_a_consented_list() -> None:
    assert against(Action.START_KUBELET, KEPT, "vm-passthrough", shown=frozenset({1})) == ()
    assert against(Action.START_KUBELET, KEPT, "vm-passthrough", shown=frozenset({1, 99})) == ()
    (grown,) = against(
        Action.START_KUBELET, KEPT._replace(jobs=frozenset({1, 2})), "vm-passthrough", shown=frozenset({1})
    )
    assert (grown.rule, grown.needs) == ("O1", "gpu_holders")
    assert "2 (python3)" in grown.reason
    assert "1 (python3)" not in grown.reason


def test_passthrough_without_a_shown_list_is_blocked_even_when_nobody_uses_the_card() -> None:
    free = KEPT._replace(jobs=frozenset())
    assert rules_of(against(Action.START_KUBELET, free, "vm-passthrough")) == [("O1", "gpu_holders")]
    assert against(Action.START_KUBELET, free, "vm-passthrough", shown=frozenset()) == ()


@pytest.mark.parametrize("action", [action for action in Action if action is not Action.RESTORE_SWAP])
def test_passthrough_preview_asks_no_consent_but_needs_to_know_who_dies(action: Action) -> None:
    assert against(action, KEPT, "vm-passthrough", phase="preview") == ()
    unread = with_facts(KEPT, gpu_holders="/proc/4711/fd: permission denied")
    assert ("O5", "gpu_holders") in rules_of(against(action, unread, "vm-passthrough", phase="preview"))
    strange = with_facts(KEPT, gpu_holders=(GpuHolder(4711, "a.out", ("/dev/nvidia0",), "", "unknown"),))
    for phase in ("preview", "act"):
        found = against(action, strange, "vm-passthrough", shown=frozenset({4711}), phase=phase)
        assert rules_of(found) == [("O5", "gpu_holders")]


def test_consent_to_another_step_shows_no_list() -> None:
    consent = Consent("disable-swap", "vm-passthrough", frozenset({1}))
    proposal = Proposal("restart-kubelet", frozenset({Action.START_KUBELET}), "vm-passthrough", consent, True)
    assert {"O1", "O4"} == {violation.rule for violation in check(proposal, model.read(KEPT))}


def test_passthrough_starts_beside_a_running_container_only_while_its_pod_is_wanted() -> None:
    def start(seen: World | Facts) -> list[tuple[str, str]]:
        return rules_of(against(Action.START_KUBELET, seen, "vm-passthrough", shown=frozenset({1})))

    assert start(KEPT) == []
    assert start(KEPT._replace(doomed=True)) == [("O1", "containers")]
    assert start(KEPT._replace(deploy_vfio=False)) == [("O1", "containers")]
    assert start(KEPT._replace(label="container")) == [("O1", "containers")]
    assert start(with_facts(KEPT, pods=())) == [("O1", "containers")]
    assert start(with_facts(KEPT, pods="timed out")) == [("O5", "pods")]


def test_relabelling_a_dead_node_is_free_and_under_a_living_kubelet_it_needs_an_idle_card() -> None:
    assert against(Action.RELABEL, World()) == ()
    living = World(kubelet="active", swap=False)
    (violation,) = against(Action.RELABEL, living)
    assert (violation.rule, violation.needs) == ("O1", "gpu_holders")
    assert "preStop" in violation.reason
    assert "systemctl stop kubelet" in violation.hint
    assert against(Action.RELABEL, living, shown=frozenset({1})) == (violation,), "no consent buys that"
    assert against(Action.RELABEL, living._replace(jobs=frozenset())) == (), "nothing to lose"
    assert against(Action.RELABEL, living._replace(container=False)) == ()
    assert rules_of(against(Action.RELABEL, with_facts(World(), containers="no crictl"))) == [("O5", "containers")]
    assert rules_of(against(Action.RELABEL, with_facts(World(), unit="ssh failed"))) == [("O5", "unit")]
    assert against(Action.RELABEL, World(kubelet="inactive", swap=False)) == (), "a held unit stays down"
    unsure = (HostContainer(model.POD, "nvidia-vfio-manager", "4668b40bfe68", None),)
    assert rules_of(against(Action.RELABEL, with_facts(World(), containers=unsure))) == [("O5", "containers")]


def test_a_crash_looping_kubelet_that_reads_active_for_a_moment_is_still_dead() -> None:
    def relabel(restarts: int, ready: str, **values: Any) -> tuple[Violation, ...]:
        node = model.read(World()).node.value
        assert node is not None
        unit = UnitFacts("kubelet", "active", "running", restarts=restarts)
        return against(Action.RELABEL, with_facts(World(), unit=unit, node=replace(node, ready=ready), **values))

    refusal = Evidence("host/kubelet.journal:35", "F1202 server.go:274] Running with swap on is not supported!")
    journal = JournalFacts((StartFacts(None, refusal, True), StartFacts(None, None, False)))
    assert relabel(7, "Unknown") == ()
    assert relabel(7, "Unknown", swap_allowed="no config", journal=journal) == ()
    assert relabel(7, "Unknown", swap_allowed="no config") != ()
    assert relabel(7, "Unknown", swap_allowed=True, journal=journal) != ()
    assert relabel(0, "Unknown") != (), "it may have been alive since before swap came on"
    assert relabel(7, "True") != ()
    assert relabel(7, "Unknown", swaps=()) != (), "nothing stands in the way of its next start"


# --- O2, O3 ----------------------------------------------------------------------------------------------------------

NATIVE = SwapUnit("data.swap", "/data", "/etc/systemd/system/data.swap", "inactive", "enabled", "native")
ZRAM = SwapUnit("dev-zram0.swap", "/dev/zram0", "/run/systemd/generator/dev-zram0.swap", "active", "", "zram")
STRANGE = SwapUnit("data.swap", "/data", "", "active", "", "unknown")


def test_swap_on_blocks_the_start() -> None:
    (violation,) = against(Action.START_KUBELET, READY_TO_START._replace(swap=True))
    assert (violation.rule, violation.needs) == ("O2", "swaps")
    assert "/swapfile" in violation.reason
    assert "disable-swap" in violation.hint
    assert "unknown" not in violation.reason
    unsure = with_facts(READY_TO_START._replace(swap=True), swap_allowed="no config")
    (violation,) = against(Action.START_KUBELET, unsure)
    assert violation.rule == "O2"
    assert "unknown: no config" in violation.reason


@pytest.mark.parametrize(
    ("values", "source"),
    [
        ({"fstab_swap": (FstabLine(3, "/swapfile\tnone  swap sw 0 0"),)}, "fstab:3 /swapfile none swap sw 0 0"),
        ({"swap_units": (NATIVE,)}, "data.swap (native unit, enabled)"),
        ({"swap_units": (ZRAM,)}, "dev-zram0.swap (zram unit, no unit file)"),
        ({"swap_services": ("zramswap.service",)}, "zramswap.service (enabled service)"),
    ],
)
def test_a_source_that_returns_at_boot_blocks_the_start(values: dict[str, Any], source: str) -> None:
    facts = with_facts(READY_TO_START, **values)
    assert boot_sources(facts).value == (source,)
    (violation,) = against(Action.START_KUBELET, facts)
    assert violation.rule == "O2"
    assert source in violation.reason
    assert against(Action.START_KUBELET, replace(facts, swap_allowed=Observation.of(True))) == ()
    unsure = replace(facts, swap_allowed=Observation.missing("no config"))
    assert [violation.rule for violation in against(Action.START_KUBELET, unsure)] == ["O2"]


def test_a_noauto_line_is_no_source() -> None:
    facts = with_facts(READY_TO_START, fstab_swap=(FstabLine(9, "/dev/sdb2 none swap defaults,noauto 0 0"),))
    assert boot_sources(facts).value == ()
    assert against(Action.START_KUBELET, facts) == ()


@pytest.mark.parametrize("name", ["swaps", "fstab_swap", "swap_units", "swap_services"])
def test_a_start_needs_to_know_every_source(name: str) -> None:
    facts = with_facts(READY_TO_START, **{name: "ssh failed"})
    assert rules_of(against(Action.START_KUBELET, facts)) == [("O5", name)]


def test_boot_sources_name_what_was_found_though_something_is_unknown() -> None:
    found = boot_sources(with_facts(World(), swap_units=(STRANGE,)))
    assert not found.known
    assert "data.swap" in found.unknown
    assert found.value == ("fstab:3 /swapfile none swap sw 0 0",)
    facts = with_facts(READY_TO_START, swap_units=(STRANGE,))
    assert rules_of(against(Action.START_KUBELET, facts)) == [("O5", "swap_units")]


def sums(used: int, memory: MemoryFacts, overcommit: int = 0) -> tuple[bool, str]:
    swaps = (
        SwapDevice("/swapfile", "file", used, used - used // 2),
        SwapDevice("/dev/zram0", "partition", used, used // 2),
    )
    facts = with_facts(World(), swaps=swaps, memory=memory, overcommit=overcommit)
    found = memory_arithmetic(facts).value
    assert found is not None
    assert found.used_kib == used
    return found.fits, found.text


def test_the_arithmetic_of_swapoff() -> None:
    gib = 1024 * 1024
    assert sums(28, MemoryFacts(int(22.3 * gib))) == (True, "used 28 KiB <= 90 % of 22.3 GiB available")
    assert sums(900, MemoryFacts(1000))[0]
    assert not sums(901, MemoryFacts(1000))[0]
    assert sums(3 * gib, MemoryFacts(2 * gib)) == (False, "used 3.0 GiB > 90 % of 2.0 GiB available")
    strict = MemoryFacts(8 * gib, swap_total_kib=4 * gib, commit_limit_kib=8 * gib, committed_kib=5 * gib)
    assert sums(0, strict, overcommit=1)[0]
    fits, text = sums(0, strict, overcommit=2)
    assert not fits
    assert text.endswith("commit limit without swap 4.0 GiB < 5.0 GiB committed")
    assert sums(0, replace(strict, committed_kib=4 * gib), overcommit=2)[0]


def test_swap_that_does_not_fit_is_not_turned_off() -> None:
    ready = READY_TO_START._replace(swap=True, fstab=True)
    assert against(Action.REMOVE_OBSTACLE, ready) == ()
    (violation,) = against(Action.REMOVE_OBSTACLE, ready._replace(heavy=True))
    assert (violation.rule, violation.needs) == ("O3", "memory")
    assert "90 %" in violation.reason
    assert against(Action.REMOVE_OBSTACLE, with_facts(READY_TO_START, memory="unread")) == (), "no swap, no sums"


@pytest.mark.parametrize(
    ("values", "needs"),
    [
        ({"memory": "unread"}, "memory"),
        ({"overcommit": "unread"}, "overcommit"),
        ({"memory": MemoryFacts(None)}, "memory"),
        ({"memory": MemoryFacts(1000), "overcommit": 2}, "memory"),
        ({"memory": MemoryFacts(1000, 500, 900, None), "overcommit": 2}, "memory"),
        ({"swaps": "unread"}, "swaps"),
        ({"fstab_swap": "unread"}, "fstab_swap"),
    ],
)
def test_swapoff_needs_its_sums(values: dict[str, Any], needs: str) -> None:
    facts = with_facts(READY_TO_START._replace(swap=True), **values)
    assert rules_of(against(Action.REMOVE_OBSTACLE, facts)) == [("O5", needs)]


# --- O4, O5 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [*Action, None])
def test_no_change_without_consent_and_undo(action: Action | None) -> None:
    actions = frozenset({action} if action else ())
    step, facts = "some-step", model.read(READY_TO_START)
    bare = Proposal(step, actions, "container")
    assert [(v.rule, v.needs) for v in check(bare, facts)] == [("O4", "consent"), ("O4", "undo")]
    assert check(bare, facts, phase="preview") == ()
    agreed = replace(bare, consent=Consent(step, "container"))
    assert [v.needs for v in check(agreed, facts)] == ["undo"]
    assert check(replace(agreed, undo_captured=True), facts) == ()
    assert check(replace(agreed, irreversible_declared=True), facts) == ()
    for other in (Consent("another", "container"), Consent(step, "vm-passthrough")):
        assert [v.needs for v in check(replace(bare, consent=other, undo_captured=True), facts)] == ["consent"]


@pytest.mark.parametrize(
    ("action", "names"),
    [
        (Action.RELABEL, {"node"}),
        (Action.STOP_VFIO_MANAGER, {"node", "containers"}),
        (Action.REMOVE_OBSTACLE, {"node", "unit", "containers", "swaps", "fstab_swap"}),
        (Action.START_KUBELET, {"node", "unit", "containers", "swaps", "fstab_swap", "swap_units", "swap_services"}),
        (Action.RESTORE_SWAP, {"node", "unit", "swaps", "fstab_swap"}),
    ],
)
def test_what_each_action_needs(action: Action, names: set[str]) -> None:
    blocked = set()
    for name in model.READABLE:
        found = against(action, model.read(READY_TO_START, frozenset({name})))
        assert all(violation.rule == "O5" and violation.needs == name for violation in found)
        assert len(found) <= 1, "the same unknown is named once"
        if found:
            blocked.add(name)
            assert "could not be read" in found[0].reason
    assert blocked == names


def test_every_rule_names_itself_and_speaks_in_one_line() -> None:
    worst = World(heavy=True, native_unit=True, kubelet="active")
    everything = Proposal("all", frozenset(Action), "container")
    for blind in (frozenset[str](), model.HOST, model.CLUSTER):
        for name, rule in RULES.items():
            for violation in rule(everything, model.read(worst, blind), "act"):
                assert violation.rule == name
                assert violation.hint
                assert violation.needs
                assert "\n" not in violation.reason + violation.hint
                assert not re.search(r"[.]$", violation.reason)
    assert {violation.rule for violation in check(everything, model.read(worst))} == {"O1", "O2", "O3", "O4"}
