"""The facts that a plan rests on, and which of them have moved since it was made. Pure.

A plan is refused when one of them is another one than it was, and also when one that was known cannot be read any more:
what is not known is never taken for unchanged (rule O5).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gpufix.core.workload import raw_workload, vfio_manager_label
from gpufix.language import t
from gpufix.model import Facts, GpuHolder, HostContainer, NodeFacts, Observation, Snapshot, SwapDevice, UnitFacts
from gpufix.text import redact

T = TypeVar("T")
KUBELET_CONFIG = ("host/kubelet_config", "host/kubelet_config_d", "host/kubelet_flags")


@dataclass(frozen=True, slots=True)
class Fact:
    """``name`` as the plan file has it; ``value`` as a person reads it, ``unknown`` why there is none.

    A value is compared with that of a plan that was made in any language: it is in English, always.
    """

    name: str
    value: str
    unknown: str = ""

    @property
    def shown(self) -> str:
        return t("unknown ({why})", why=self.unknown) if self.unknown else self.value or t("(none)")


@dataclass(frozen=True, slots=True)
class Moved:
    """A fact that is no longer what the plan was made for."""

    name: str
    was: str
    now: str

    def __str__(self) -> str:
        return t("{fact}: was {was}, is {now}", fact=self.name, was=_short(self.was), now=_short(self.now))


def basis_of(snapshot: Snapshot, facts: Facts, digests: Mapping[str, str]) -> tuple[Fact, ...]:
    """All that a plan depends on. ``digests``: name -> SHA-256 of the runbook and of each playbook it uses."""
    node = facts.node
    return (
        _fact("node_uid", node, lambda n: n.uid),
        _fact("boot_id", facts.boot_id, str),
        _fact("workload_label", node, lambda n: raw_workload(n) or ""),
        _fact("vfio_manager_label", node, lambda n: vfio_manager_label(n) or ""),
        _fact("swaps", facts.swaps, _swaps),
        _text("fstab", snapshot, "host/fstab"),
        _fact("kubelet_unit", facts.unit, lambda unit: _unit(unit, node)),
        _config(snapshot),
        _fact("gpu_holders", facts.gpu_holders, _holders),
        _fact("vfio_manager_containers", facts.containers, _containers),
        *(Fact(name, digest) for name, digest in digests.items()),
    )


def moved(planned: tuple[Fact, ...], now: tuple[Fact, ...]) -> tuple[Moved, ...]:
    """The facts that differ, in the plan's order. One that the plan did not know and that is still unknown has not."""
    current = {fact.name: fact for fact in now}
    found = []
    for fact in planned:
        other = current.get(fact.name)
        if other is None:
            found.append(Moved(fact.name, fact.shown, t("not there any more")))
        elif bool(fact.unknown) != bool(other.unknown) or (not fact.unknown and fact.value != other.value):
            found.append(Moved(fact.name, fact.shown, other.shown))
    known = {fact.name for fact in planned}
    found += [Moved(fact.name, t("not there"), fact.shown) for fact in now if fact.name not in known]
    return tuple(found)


def _short(value: str) -> str:
    """A digest as far as a person compares it."""
    return value[:19] if value.startswith("sha256:") else value


def _fact(name: str, seen: Observation[T], read: Callable[[T], str]) -> Fact:
    if not seen.known or seen.value is None:
        return Fact(name, "", seen.unknown or t("not read"))
    return Fact(name, redact(read(seen.value)))


def _text(name: str, snapshot: Snapshot, path: str) -> Fact:
    text = snapshot.files.get(path)
    return Fact(name, digest(text)) if text is not None else Fact(name, "", snapshot.why_unread(path))


def _config(snapshot: Snapshot) -> Fact:
    """One digest over file, drop-ins and flags. A part that the node does not have counts as empty, one unread not."""
    unread = [path for path in KUBELET_CONFIG if path in snapshot.unread]
    if unread:
        return Fact("kubelet_config", "", snapshot.unread[unread[0]])
    if "host" in snapshot.unread:
        return Fact("kubelet_config", "", snapshot.unread["host"])
    return Fact("kubelet_config", digest("\0".join(snapshot.files.get(path, "") for path in KUBELET_CONFIG)))


def digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _swaps(swaps: tuple[SwapDevice, ...]) -> str:
    return ", ".join(sorted(f"{swap.path} ({swap.kind}, {swap.size_kib} KiB)" for swap in swaps))


def _unit(unit: UnitFacts, node: Observation[NodeFacts]) -> str:
    """A crash loop is one state, whichever of its moments was seen: active counts only when the node is Ready too."""
    ready = node.value is not None and node.value.ready == "True"
    if unit.will_start_by_itself or (unit.active_state == "active" and not ready):
        state = "started by systemd, not up"
    else:
        state = unit.active_state
    return f"{unit.name}: {unit.load_state or 'load state not asked'}, {unit.unit_file_state or 'static'}, {state}"


def _holders(holders: tuple[GpuHolder, ...]) -> str:
    return ", ".join(f"{holder.command} (pid {holder.pid})" for holder in sorted(holders, key=lambda one: one.pid))


def _containers(containers: tuple[HostContainer, ...]) -> str:
    return ", ".join(sorted(one.id[:12] for one in containers if one.is_vfio_manager and one.running is not False))
