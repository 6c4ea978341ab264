"""What must be on record before a step changes anything, so that it can be undone (rule O4), and what comes of it when
it is. Pure.

fstab itself is kept on the node, as a backup beside it with the same owner and mode: it may hold passwords.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpufix.core.actions import actions_of
from gpufix.core.invariants import Action, boot_sources
from gpufix.core.run_history import History, Line
from gpufix.core.runbook import ALWAYS, NEVER, UNDO, Condition, Group, Leaf, Runbook, RunbookStep
from gpufix.core.workload import CONTAINER, VFIO_MANAGER_LABEL, VM_PASSTHROUGH, WORKLOAD_LABEL
from gpufix.language import mark, t
from gpufix.model import Facts

ABSENT = "(absent)"
"""How the playbooks are told that a label is to be taken off; no label can have this value."""
_LABEL_VALUE = re.compile(r"[A-Za-z0-9._-]{0,63}")
"""apimachinery's validation of label values, without its rule on the ends: nothing in it can be a template."""


def capture_undo(actions: frozenset[Action], facts: Facts) -> dict[str, Any] | None:
    """The undo material of ``actions``; None when it cannot be captured, or when there is no way back."""
    undo: dict[str, Any] = {}
    if actions & {Action.START_KUBELET, Action.STOP_VFIO_MANAGER} or not actions:
        return None
    if Action.RELABEL in actions:
        if facts.node.value is None:
            return None
        labels = facts.node.value.labels
        undo["node_uid"] = facts.node.value.uid
        undo["labels"] = {key: labels.get(key) for key in (WORKLOAD_LABEL, VFIO_MANAGER_LABEL)}
    if actions & {Action.REMOVE_OBSTACLE, Action.RESTORE_SWAP}:
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
        undo["returns_at_boot"] = bool(boot_sources(facts).value)
    return undo


FROM_PREVIEW = ("units", "services", "devices", "fstab_sha256", "fstab_sha256_after", "backup")
"""What the dry run of disable-swap.yml returns and undoing it needs."""


@dataclass(frozen=True, slots=True)
class Part:
    """One step of a run, seen from its undoing. ``material`` is that of its first attempt, which began at the start.

    ``left``: why nothing of it is undone (it cannot be, or not safely); empty where it can be.
    """

    step: str
    playbook: str
    material: Mapping[str, Any]
    left: str = ""
    target: str = ""
    """Of labels: what the run set the workload label to; empty where that is not known."""


def parts_of(history: History, node_uid: str, label: str | None = None) -> tuple[Part, ...]:
    """The steps of a run that acted, the newest first. ``node_uid``: of the node as it is now, and ``label``: what its
    workload label says now, ``ABSENT`` where it has none; None where that was not read."""
    steps = [str(line.get("step")) for line in history.lines if line["event"] == "intent" or _is_by_hand(line)]
    target = _target(history)
    parts = []
    for name in reversed(dict.fromkeys(steps)):
        intents = _own_intents(history, name)
        parts.append(_part(intents, name, node_uid, target, label) if intents else Part(name, "", {}, t(BY_HAND)))
    return tuple(parts)


BY_HAND = mark("it was done by hand, and what is there is not gpufix's to take back")


def _is_by_hand(line: Line) -> bool:
    return line["event"] == "settled" and line.get("by_hand") is True


def _own_intents(history: History, name: str) -> list[Line]:
    """The attempts at step ``name`` whose effect is gpufix's own.

    What came before a person said that it is done by hand counts only where the step had been applied as a whole: of
    one that failed, or died half-way, the journal does not say which of the two did what.
    """
    own: list[Line] = []
    applied = False
    for line in history.lines:
        if line.get("step") != name:
            continue
        if line["event"] == "intent":
            own.append(line)
        elif line["event"] == "applied":
            applied = line.get("ok") is True
        elif _is_by_hand(line) and not applied:
            own.clear()
    return own


def _target(history: History) -> str:
    """What the run set the workload label to; empty where its journal does not say."""
    answers = history.start.get("answers")
    one = answers.get("target_workload") if isinstance(answers, Mapping) else None
    value = one.get("value") if isinstance(one, Mapping) else one
    return value if isinstance(value, str) else ""


def _part(intents: Sequence[Line], name: str, node_uid: str, target: str, label: str | None) -> Part:
    first = intents[0]
    playbook, material = str(first.get("playbook", "")), first.get("undo")
    actions = actions_of(playbook)
    if not isinstance(material, Mapping):
        return Part(name, playbook, {}, str(first.get("irreversible") or t("its journal holds no way back")))
    if actions == {Action.RELABEL}:
        why = _why_not_labels(material, node_uid) or _why_not_these_labels(material, target, label)
        return Part(name, playbook, material, why or _why_not_since(intents, target), target)
    if actions == {Action.REMOVE_OBSTACLE}:
        merged, why = _merge_swap([line.get("undo") for line in intents])
        return Part(name, playbook, merged, why)
    return Part(name, playbook, material, t("gpufix knows no way back from this playbook"))


def _why_not_labels(material: Mapping[str, Any], node_uid: str) -> str:
    if material.get("node_uid") != node_uid:
        return t("the node was deleted and made again since; its labels are not those that were changed")
    labels = material.get("labels")
    values = [labels.get(key) for key in (WORKLOAD_LABEL, VFIO_MANAGER_LABEL)] if isinstance(labels, Mapping) else [1]
    if not all(value is None or (isinstance(value, str) and _LABEL_VALUE.fullmatch(value)) for value in values):
        return t("its journal does not hold the labels as they were")
    return ""


def _why_not_these_labels(material: Mapping[str, Any], target: str, now: str | None) -> str:
    was = material["labels"].get(WORKLOAD_LABEL)
    if not target:
        return ""
    if was == target:
        return t(
            "{label} was {value} before; only {other} was taken off, and the GPU Operator puts that on by itself where "
            "it belongs",
            label=WORKLOAD_LABEL,
            value=target,
            other=VFIO_MANAGER_LABEL,
        )
    if now not in (None, target, ABSENT if was is None else was):
        return t(
            "{label} was left as {value} and is {now} by now: somebody changed it since",
            label=WORKLOAD_LABEL,
            value=target,
            now=t(ABSENT) if now == ABSENT else now,
        )
    return ""


def _why_not_since(intents: Sequence[Line], target: str) -> str:
    """Each attempt must have begun with the label that the first had found, or with the one that it was to set."""
    labels = [undo.get("labels") for line in intents if isinstance(undo := line.get("undo"), Mapping)]
    found = [one.get(WORKLOAD_LABEL) for one in labels if isinstance(one, Mapping)]
    if target and any(value not in (found[0], target) for value in found):
        return t("somebody changed {label} between two attempts at it: set it by hand", label=WORKLOAD_LABEL)
    return ""


def _why_not_swap(material: Mapping[str, Any]) -> str:
    """Of the shape only: restore-swap.yml looks at every value itself, before it changes anything."""
    devices = material.get("swapon")
    whole = isinstance(devices, list) and all(
        isinstance(one, Mapping) and isinstance(one.get("device"), str) and type(one.get("priority")) is int
        for one in devices
    )
    for name in ("units", "services"):
        entries = material.get(name)
        whole = whole and isinstance(entries, list) and all(isinstance(entry, Mapping) for entry in entries)
    whole = whole and isinstance(material.get("backup"), str)
    return "" if whole else t("its journal does not hold swap as it was")


def _merge_swap(materials: Sequence[Any]) -> tuple[Mapping[str, Any], str]:
    """The first attempt saw the start; the last knows what fstab was left as.

    Each attempt must have begun with a fstab that the one before had found or had left, or somebody else was there.
    """
    kept = [material for material in materials if isinstance(material, Mapping)]
    first = dict(kept[0])
    if "fstab_sha256_after" not in first:
        return first, t("its journal is of an older gpufix and does not say what fstab was left as")
    if why := next((why for material in kept if (why := _why_not_swap(material))), ""):
        return first, why
    known = {first.get("fstab_sha256"), first.get("fstab_sha256_after")}
    for later in kept[1:]:
        if later.get("fstab_sha256") not in known:
            return first, t("somebody edited /etc/fstab between two attempts at it: put it back by hand")
        known.add(later.get("fstab_sha256_after"))
        first["fstab_sha256_after"] = later.get("fstab_sha256_after")
        first["backup"] = first.get("backup") or later.get("backup")
        # what came up between two attempts was put off by the later one
        first["units"] = _with(first["units"], later["units"], "unit")
        first["services"] = _with(first["services"], later["services"], "service")
    return first, ""


def _with(first: Sequence[Mapping[str, Any]], later: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    names = [entry.get(name) for entry in first]
    return [*first, *(entry for entry in later if entry.get(name) not in names)]


# --- the plan of an undo ---------------------------------------------------------------------------------------------


def undo_id(step: str) -> str:
    return f"undo-{step}"


def undo_target(parts: Sequence[Part], effective: str) -> str:
    """Whom the GPU is handed to by the undoing: what the label said; ``effective`` where it will say nothing.

    With vfio-manager's deploy label put back, too, the card goes to the VMs whatever the other one says: where no
    operator takes it off again, a living kubelet runs vfio-manager.
    """
    for part in parts:
        if not part.left and actions_of(part.playbook) == {Action.RELABEL}:
            value = part.material["labels"].get(WORKLOAD_LABEL)
            target = effective if value is None else str(value)
            stands = part.material["labels"].get(VFIO_MANAGER_LABEL) is not None
            return VM_PASSTHROUGH if stands and target == CONTAINER else target
    return CONTAINER


def undo_book(run: str, node: str, parts: Sequence[Part]) -> Runbook:
    """The steps that undo ``parts``, as a runbook: planned, shown, gated and verified like any other."""
    steps = tuple(_undo_step(part) for part in parts if not part.left)
    told = json.dumps([[step.id, dict(step.variables)] for step in steps], sort_keys=True)
    return Runbook(
        id=UNDO,
        title=t("Undo what the run {run} changed on {node}", run=run, node=node),
        summary=t(
            "The newest step first, each back to what its journal says it was; what changed since is left alone."
        ),
        fits=NEVER,
        questions=(),
        steps=steps,
        digest=hashlib.sha256(told.encode()).hexdigest(),
    )


def _undo_step(part: Part) -> RunbookStep:
    if actions_of(part.playbook) == {Action.RELABEL}:
        return _undo_labels(part)
    return _undo_swap(part)


def _undo_labels(part: Part) -> RunbookStep:
    labels = part.material["labels"]
    was, deploy = labels.get(WORKLOAD_LABEL), labels.get(VFIO_MANAGER_LABEL)
    takes_card = was != CONTAINER
    why = t("any other label is somebody else's choice, made since the run")
    ours = [
        Leaf("observation", "node.workload_config", "is", value, why)
        for value in (part.target, "absent" if was is None else was)
    ]
    return RunbookStep(
        id=undo_id(part.step),
        title=t("Put the labels of the node back"),
        why=t(
            "{label} becomes {value} again. A kubelet that lives, or comes alive, runs what the label asks for.",
            label=WORKLOAD_LABEL,
            value=t("absent") if was is None else was,
        ),
        done_when=Leaf(
            "observation", "node.workload_config", "is", "absent" if was is None else was, t("as it was before the run")
        ),
        timeout=60,
        requires=Group("any", tuple(ours)) if part.target else Group("all", ()),
        playbook="restore-labels.yml",
        variables={
            "gpufix_workload_config": ABSENT if was is None else was,
            "gpufix_vfio_manager": ABSENT if deploy is None else deploy,
        },
        skippable=True,
        destructive=ALWAYS if takes_card else NEVER,
        risk=(
            t(
                "With this label the GPU Operator may take the card from its driver as soon as a kubelet lives here: "
                "every process that uses it dies."
            )
            if takes_card
            else t("The GPU Operator changes which of its pods belong on this node.")
        ),
        if_late=t("kubectl get node --show-labels shows what the labels are"),
    )


def _undo_swap(part: Part) -> RunbookStep:
    material = part.material
    devices = sorted(str(one["device"]) for one in material.get("swapon", ()))
    back = bool(material.get("returns_at_boot"))
    conditions: list[Condition] = [
        Leaf("observation", "swap.devices", "is", ", ".join(devices) or "none", t("the devices that were on before")),
        Leaf("observation", "swap.returns_at_boot", "is", back, t("as it was before the run")),
    ]
    return RunbookStep(
        id=undo_id(part.step),
        title=t("Put swap back as it was, now and at boot"),
        why=t(
            "fstab gets the very bytes back that it had, unless it was edited since; units and services are put back, "
            "and the devices are swap again. The kubelet is neither started nor stopped."
        ),
        done_when=Group("all", tuple(conditions)),
        timeout=60,
        playbook="restore-swap.yml",
        variables={"gpufix_restore": _packed(material)},
        skippable=True,
        destructive=ALWAYS,
        risk=t(
            "With swap on the kubelet refuses to start. One that runs goes on until its next start; after a restart or "
            "a reboot this node is dead again. One that is stopped stays stopped."
        ),
        if_late=t("cat /proc/swaps and systemctl list-units --type=swap on the node show what is on"),
    )


def _packed(material: Mapping[str, Any]) -> str:
    """As restore-swap.yml takes it: paths are the node's own words, and base64 cannot be a template."""
    fstab = None
    if material.get("backup"):
        fstab = {
            "backup": material["backup"],
            "sha256": material.get("fstab_sha256"),
            "sha256_after": material.get("fstab_sha256_after"),
        }
    data = {
        "fstab": fstab,
        "devices": [{"path": one["device"], "priority": one["priority"]} for one in material.get("swapon", ())],
        "units": list(material.get("units") or ()),
        "services": list(material.get("services") or ()),
    }
    return base64.b64encode(json.dumps(data, sort_keys=True).encode()).decode()
