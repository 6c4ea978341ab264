"""A small world in which the steps of a recovery can go wrong: the oracle for the order rules.

It shares no code with ``gpufix.core``: what kills a job, what a kubelet refuses, and what an operator does by itself
are written down here once more, from what was measured on Kubernetes 1.20.2 and 1.34.4 and from
NVIDIA/gpu-operator v25.3.0. Where the real outcome depends on luck, the worse one is taken: a vfio-manager that
starts always binds (its init guard does not save the job), and a card taken from a job always kills it.

Moves are of three kinds. *Autonomous* ones happen by themselves at any moment: the operator, systemd, a living
kubelet, a reboot. *By hand*: somebody else works on the node. *Steps* are the tool's. A step is at fault when it does
harm itself, or when it turns a world that could do no harm by itself into one that can. What follows from somebody
else's hand is not the tool's fault; acting on top of it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from gpufix.model import (
    ClusterPolicyFacts,
    Facts,
    FstabLine,
    GpuHolder,
    HostContainer,
    JournalFacts,
    MemoryFacts,
    NodeFacts,
    Observation,
    PodFacts,
    SwapDevice,
    SwapUnit,
    UnitFacts,
)

NODE = "omen2"
POD = "nvidia-vfio-manager-4scww"
STEPS = ("relabel", "stop-vfio-manager", "disable-swap", "restart-kubelet")
TARGETS = ("container", "vm-passthrough")
HAND_LABELS = ("container", "vm-passthrough", "", "nonsense")


class World(NamedTuple):
    """The node, its GPU and what the cluster wants of it; by default the incident: dead by swap, a job on the card."""

    label: str = "vm-passthrough"
    deploy_vfio: bool = True
    doomed: bool = False
    """vfio-manager's pod carries a deletion mark that no kubelet has acted on yet."""
    operator: bool = True
    container: bool = True
    """vfio-manager's main container runs on the host."""
    kubelet: str = "auto-restart"  # active | auto-restart | inactive
    old_kubelet: bool = False
    swap: bool = True
    heavy: bool = False
    """More is swapped out than memory has room for."""
    fstab: bool = True
    jobs: frozenset[int] = frozenset({1})
    agreed: frozenset[int] = frozenset()
    """Jobs whose death the operator agreed to when a step was done."""
    promised: bool = False
    """The tool started the kubelet, and nobody else has touched swap since."""
    default: str = "container"
    sandbox: bool = True
    native_unit: bool = False
    """A native .swap unit brings swap back as well."""
    swap_allowed: bool = False

    @property
    def served(self) -> str:
        if not self.sandbox:
            return "container"
        return self.label if self.label in ("container", "vm-passthrough") else self.default


Outcome = tuple[World, str]
"""The world afterwards, and the harm that was done on the way; empty when none was."""


# --- what happens ----------------------------------------------------------------------------------------------------


def _card_taken(world: World, how: str) -> Outcome:
    killed = world.jobs - world.agreed
    return world._replace(jobs=frozenset()), f"{how} killed the job {min(killed)}" if killed else ""


def _kubelet_starts(world: World) -> Outcome:
    if world.swap and not world.swap_allowed:
        harm = "the kubelet was started into swap" if world.promised else ""
        return world._replace(kubelet="auto-restart"), harm
    alive = world._replace(kubelet="active")
    if world.container and (world.doomed or not world.deploy_vfio):
        gone = alive._replace(container=False, doomed=False)
        return _card_taken(gone, "preStop") if world.old_kubelet else (gone, "")
    return alive._replace(doomed=False), ""


def _kubelet_syncs(world: World) -> Outcome:
    if world.container and (world.doomed or not world.deploy_vfio):
        return _card_taken(world._replace(container=False, doomed=False), "preStop")
    if not world.container and world.deploy_vfio:
        return _card_taken(world._replace(container=True), "vfio-manager")
    return world, ""


def _deploy_label(world: World, stands: bool) -> World:
    """With the label gone the DaemonSet controller marks the pod; a label that returns does not unmark it."""
    return world._replace(deploy_vfio=stands, doomed=world.doomed or (not stands and world.container))


def _reboot(world: World) -> Outcome:
    """Jobs and containers end with the machine; an enabled kubelet starts, held or not; swap comes from its sources."""
    back = world.fstab or world.native_unit
    return _kubelet_starts(world._replace(jobs=frozenset(), container=False, doomed=False, swap=back, heavy=False))


@cache
def autonomous(world: World) -> tuple[Outcome, ...]:
    """What can happen next with nobody doing anything."""
    return tuple(_autonomous(world))


def _autonomous(world: World) -> Iterator[Outcome]:
    yield world._replace(operator=not world.operator), ""
    wanted = world.served == "vm-passthrough"
    if world.operator and world.deploy_vfio != wanted:
        yield _deploy_label(world, wanted), ""
    if world.kubelet == "auto-restart":
        yield _kubelet_starts(world)
    if world.kubelet == "active":
        yield _kubelet_syncs(world)
    yield _reboot(world)


@cache
def by_hand(world: World) -> tuple[tuple[str, World], ...]:
    """What somebody else may do on the node, whatever comes of it."""
    return tuple(_by_hand(world))


def _by_hand(world: World) -> Iterator[tuple[str, World]]:
    touched = world._replace(promised=False)
    yield "swapon", touched._replace(swap=True)
    yield "swapoff", touched._replace(swap=False, heavy=False)
    yield "fstab line added", touched._replace(fstab=True)
    for label in TARGETS:
        yield f"labelled {label}", world._replace(label=label)
    yield "job started", world._replace(jobs=world.jobs | {2})
    yield "kubelet started", _kubelet_starts(touched._replace(kubelet="inactive"))[0]
    yield "kubelet stopped", world._replace(kubelet="inactive")


# --- the tool's steps ------------------------------------------------------------------------------------------------


class Attempt(NamedTuple):
    """A step somebody wants to take. ``shown``: the processes its gate listed. ``blind``: what cannot be read."""

    step: str
    target: str = "container"
    agreed: bool = True
    undo: bool = True
    shown: frozenset[int] | None = None
    blind: frozenset[str] = frozenset()
    back: World | None = None
    """Of an undo: the world whose labels, or whose swap, it puts back."""


def outcomes(world: World, attempt: Attempt, *, holds_unit: bool = True) -> Iterator[Outcome]:
    """What the step leaves: all of it, and each way of failing half-way."""
    if not attempt.agreed or not attempt.undo:
        yield world, "a change without consent" if not attempt.agreed else "a change without an undo"
        return
    if attempt.shown:
        world = world._replace(agreed=world.agreed | attempt.shown)
    if attempt.step == "relabel":
        labelled = world._replace(label=attempt.target)
        yield labelled, ""
        if attempt.target == "container":
            yield _deploy_label(labelled, False), ""
    elif attempt.step == "stop-vfio-manager":
        yield world._replace(container=False), ""
    elif attempt.step == "disable-swap":
        held = world
        if holds_unit and world.kubelet != "active":
            held = world._replace(kubelet="inactive")
            yield held, ""
        off = held._replace(swap=False, heavy=False)
        yield off, "swapoff ran out of memory" if world.swap and world.heavy else ""
        yield off._replace(fstab=False), ""
        yield off._replace(fstab=False, native_unit=False), ""
    elif attempt.step == "undo-relabel":
        assert attempt.back is not None
        labelled = world._replace(label=attempt.back.label)
        changed = attempt.back.deploy_vfio != world.deploy_vfio
        yield _deploy_label(labelled, attempt.back.deploy_vfio) if changed else labelled, ""
    elif attempt.step == "undo-disable-swap":
        assert attempt.back is not None
        back = world._replace(native_unit=attempt.back.native_unit, promised=False)
        yield back, ""
        yield back._replace(fstab=attempt.back.fstab), ""
        yield back._replace(fstab=attempt.back.fstab, swap=attempt.back.swap), ""
    else:
        yield _kubelet_starts(world._replace(promised=True))


class Faults:
    """Tells whose fault harm is. Remembers which worlds can do harm by themselves."""

    def __init__(self) -> None:
        self._harmful: dict[World, bool] = {}

    def can_do_harm(self, world: World) -> bool:
        """Some run of autonomous moves from here does harm."""
        seen = {world}
        queue = [world]
        while queue and world not in self._harmful:
            here = queue.pop()
            for after, harm in autonomous(here):
                if harm or self._harmful.get(after):
                    self._harmful[here] = self._harmful[world] = True
                elif after not in seen and after not in self._harmful:
                    seen.add(after)
                    queue.append(after)
        if world not in self._harmful:
            self._harmful.update(dict.fromkeys(seen, False))
        return self._harmful[world]

    def of_step(self, before: World, outcome: Outcome) -> str:
        """Why the step that led from ``before`` to ``outcome`` is at fault; empty when it is not."""
        after, harm = outcome
        if harm:
            return harm
        if self.can_do_harm(after) and not self.can_do_harm(before):
            return "left a world that does harm by itself"
        return ""


# --- what can be read of it ------------------------------------------------------------------------------------------

SWAP = frozenset({"swap_allowed", "swaps", "memory", "overcommit", "fstab_swap", "swap_units", "swap_services"})
HOST = SWAP | {"unit", "journal", "containers", "gpu_holders"}
CLUSTER = frozenset({"node", "pods", "cluster_policy"})
READABLE = tuple(sorted(HOST | CLUSTER))


UNREAD: Observation[Any] = Observation.missing("could not be read")


def read(world: World, blind: frozenset[str] = frozenset()) -> Facts:
    """The world as a fresh read shows it, without what ``blind`` names."""
    never = ("nodes", "vms", "kubevirt", "gpus", "boot_id", "in_container")
    seen: dict[str, Any] = {**_observations(world), **dict.fromkeys((*blind, *never), UNREAD)}
    return Facts(NODE, None, **seen)


@cache
def _observations(world: World) -> dict[str, Observation[Any]]:
    labels = {"nvidia.com/gpu.present": "true"}
    if world.label:
        labels["nvidia.com/gpu.workload.config"] = world.label
    if world.deploy_vfio:
        labels["nvidia.com/gpu.deploy.vfio-manager"] = "true"
    alive = world.kubelet == "active"
    pod = PodFacts("gpu-operator", POD, node=NODE, deleting=world.doomed)
    states = {"active": ("active", "running"), "auto-restart": ("activating", "auto-restart")}
    active, sub = states.get(world.kubelet, ("inactive", "dead"))
    used, available = (3_000_000, 2_000_000) if world.heavy else (28, 20_000_000)
    seen: dict[str, Any] = {
        "node": NodeFacts(NODE, labels=labels, ready="True" if alive else "Unknown"),
        "pods": (pod,) if world.deploy_vfio or world.doomed else (),
        "cluster_policy": ClusterPolicyFacts(
            True,
            sandbox_enabled=world.sandbox,
            default_workload=world.default,
            namespace="gpu-operator",
            operator_pods=None,
        ),
        "unit": UnitFacts("kubelet", active, sub, restarts=0 if alive else 7, unit_file_state="enabled"),
        "journal": JournalFacts(()),
        "swap_allowed": world.swap_allowed,
        "swaps": (SwapDevice("/swapfile", "file", 8_000_000, used),) if world.swap else (),
        "memory": MemoryFacts(available),
        "overcommit": 0,
        "fstab_swap": (FstabLine(3, "/swapfile none swap sw 0 0"),) if world.fstab else (),
        "swap_units": (_native_unit(),) if world.native_unit else (),
        "swap_services": (),
        "containers": (HostContainer(POD, "nvidia-vfio-manager", "4668b40bfe68", world.container),),
        "gpu_holders": tuple(GpuHolder(pid, "python3", ("/dev/nvidia0",), "", "cuda") for pid in sorted(world.jobs)),
    }
    return {name: Observation.of(value) for name, value in seen.items()}


def _native_unit() -> SwapUnit:
    return SwapUnit("data.swap", "/data", "/etc/systemd/system/data.swap", "inactive", "enabled", "native")
