"""What an operator reads in a terminal, as lines of text. Pure: widths and colour are arguments.

Everything that came from the cluster or the node goes through ``text.safe``. State is always a word; colour only
repeats it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpufix.core.plan import Decision, Plan, PlannedStep
from gpufix.core.verdict import Health, Verdicts, VmHealth
from gpufix.model import AffectedVm, Diagnosis, Evidence, GpuHolder, Status
from gpufix.text import ago, redact, safe, wrapped

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1", "dim": "2"}


@dataclass(frozen=True, slots=True)
class Style:
    """How to write for one terminal: ``width`` in columns, and whether colour may be used."""

    width: int = 100
    colour: bool = False

    def paint(self, text: str, *names: str) -> str:
        if not self.colour or not names:
            return text
        return f"\x1b[{';'.join(_COLOURS[name] for name in names)}m{text}\x1b[0m"

    def wrap(self, text: str, indent: int = 0, hanging: int = 0) -> list[str]:
        first, rest = " " * indent, " " * (indent + hanging)
        return wrapped(text, max(20, self.width), first, rest) or [first]

    def clip(self, text: str, indent: int) -> str:
        """One line of raw evidence, cut to the width."""
        return " " * indent + safe(text, limit=max(20, self.width - indent))


_STATUS_COLOUR = {
    Status.CONFIRMED: "red",
    Status.REFUTED: "green",
    Status.UNKNOWN: "yellow",
    Status.SUSPECTED: "yellow",
}


def diagnosis_lines(
    diagnosis: Diagnosis, verdicts: Verdicts, runbook: str | None, style: Style, *, offer: bool = True
) -> list[str]:
    """The whole diagnosis: root cause, chain with evidence, alternatives, VMs, both verdicts, what was not read.

    With ``offer`` the last line names the runbook that fits, or says that none does.
    """
    cause = diagnosis.root_cause
    as_of = f", as of {diagnosis.as_of:%Y-%m-%d %H:%M:%S} UTC" if diagnosis.as_of else ""
    colour = "green" if cause.id == "healthy" and cause.status is Status.CONFIRMED else _STATUS_COLOUR[cause.status]
    head = cause.id if cause.id == "unknown" else f"{cause.id} ({cause.status})"
    lines = [
        style.paint(f"Node {safe(diagnosis.node)}{as_of}", "bold"),
        f"Root cause: {style.paint(head, colour, 'bold')}",
    ]
    lines += style.wrap(safe(cause.summary), 2)
    if diagnosis.down_since is not None:
        lines += style.wrap(f"Not Ready {ago(diagnosis.down_since, diagnosis.as_of)}.", 2)
    lines += ["", style.paint("Chain of causes", "bold")]
    for number, link in enumerate(diagnosis.chain, 1):
        mark = style.paint(f"{link.status!s:<9}", _STATUS_COLOUR[link.status])
        lines.append(f"  {number}  {mark}  {safe(link.title)}")
        if link.detail:
            lines += style.wrap(safe(link.detail), 16)
        lines += _evidence_lines(link.evidence, style, 16)
    if diagnosis.alternatives:
        lines += ["", style.paint("Considered and put aside", "bold")]
        for other in diagnosis.alternatives:
            lines += style.wrap(f"{other.id}: {other.status}: {safe(other.by)}", 2, 4)
    if diagnosis.affected:
        lines += ["", style.paint("VMs that cannot run", "bold")]
        for vm in diagnosis.affected:
            lines += _vm_lines(vm, diagnosis, style)
    lines += ["", *verdict_lines(verdicts, style)]
    if diagnosis.warnings:
        lines += ["", style.paint("Mind", "bold")]
        for warning in diagnosis.warnings:
            lines += style.wrap(f"- {safe(warning)}", 2, 2)
    if diagnosis.unread:
        lines += ["", style.paint("Not read (unknown, not fine)", "bold")]
        for what, why in sorted(diagnosis.unread.items()):
            lines.append(style.clip(f"{what}: {why}", 2))
    if not offer:
        return lines
    lines += [""]
    if runbook is not None:
        lines += style.wrap(f"Runbook: {runbook}. Run: gpufix recover {safe(diagnosis.node)}")
    elif cause.id == "healthy" and cause.status is Status.CONFIRMED and verdicts.node.reboot_proof is not False:
        lines.append("Runbook: none is needed.")
    else:
        lines.append("Runbook: none fits; gpufix offers no change.")
    return lines


def _evidence_lines(evidence: Sequence[Evidence], style: Style, indent: int, most: int = 2) -> list[str]:
    """Source and raw words of the first ``most``; the rest, and every full object, are in the JSON output."""
    lines: list[str] = []
    for item in evidence[:most]:
        room = max(30, style.width - indent)
        words = safe(f"{item.source} | {compact(item.excerpt)}")
        parts = wrapped(words, room, "", "  ", break_long_words=True)
        if len(parts) > _EXCERPT_LINES:
            parts = [*parts[: _EXCERPT_LINES - 1], parts[_EXCERPT_LINES - 1][: room - 1] + "…"]
        lines += [style.paint(" " * indent + part, "dim") for part in parts]
    if len(evidence) > most:
        lines.append(" " * indent + f"({len(evidence) - most} more in diagnose -o json)")
    return lines


_EXCERPT_LINES = 4
_TELLING = ("type", "key", "status", "effect", "reason", "message", "lastTransitionTime", "timeAdded")


def compact(excerpt: str) -> str:
    """An excerpt on one line: white space folded, and of a JSON object (a condition, a taint) only what tells."""
    try:
        data = json.loads(excerpt)
    except ValueError:
        data = None
    if isinstance(data, dict) and (told := [key for key in _TELLING if data.get(key)]):
        return ", ".join(f"{key}: {data[key]}" for key in told)
    return " ".join(excerpt.split())


def _vm_lines(vm: AffectedVm, diagnosis: Diagnosis, style: Style) -> list[str]:
    wanted = ", ".join(f"{name} x{count}" for name, count in sorted(vm.resources.items()))
    head = f"{vm.namespace}/{vm.name}" + (f" ({vm.status})" if vm.status else "")
    lines = style.wrap(
        safe(
            f"{head} wants {wanted or 'no device'}; waiting {ago(vm.since, diagnosis.as_of) or 'since an unknown time'}"
        ),
        2,
        4,
    )
    lines += style.wrap(safe(vm.reason), 6)
    if vm.other_nodes:
        verdict = {
            True: "another node could serve it",
            False: "no other node can serve it",
            None: "it is not known whether another node could serve it",
        }
        alike: dict[str, list[str]] = {}
        for other in vm.other_nodes:
            alike.setdefault(other.reason, []).append(other.name)
        groups = [f"{_names(names)}: {reason}" for reason, names in alike.items()]
        others = "; ".join(groups[:8])
        more = f"; and {len(groups) - 8} more reasons" if len(groups) > 8 else ""
        lines += style.wrap(safe(f"{verdict[vm.servable_elsewhere]}: {others}{more}"), 6)
    else:
        lines += style.wrap("there is no other node in this cluster", 6)
    return lines


def _names(names: list[str], most: int = 7) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def verdict_lines(verdicts: Verdicts, style: Style) -> list[str]:
    """Both verdicts, each in a word and with what stands against it."""
    node, vms = verdicts.node, verdicts.vms
    colour = {Health.WELL: "green", Health.SICK: "red", Health.UNKNOWN: "yellow"}[node.health]
    lines = [style.paint("Verdicts", "bold"), f"  node  {style.paint(str(node.health), colour, 'bold')}"]
    for check in node.open_checks:
        lines += style.wrap(f"{'not known' if check.holds is None else 'open'}: {safe(check.text)}", 8, 2)
    if node.health is Health.WELL:
        lines += style.wrap(safe("; ".join(check.text for check in node.checks)), 8)
    word = {True: "survives a reboot", False: "does not survive a reboot", None: "reboot not shown"}[node.reboot_proof]
    lines += style.wrap(f"{word}: {safe(node.reboot_text)}", 8, 2)
    colour = {
        VmHealth.RUNNING: "green",
        VmHealth.NONE: "green",
        VmHealth.WAITING: "yellow",
        VmHealth.UNKNOWN: "yellow",
    }[vms.health]
    lines.append(f"  VMs   {style.paint(str(vms.health), colour, 'bold')}")
    lines += style.wrap(safe(vms.text) + (" (as announced)" if vms.announced else ""), 8)
    return lines


def plan_lines(plan: Plan, origins: Mapping[str, str], style: Style) -> list[str]:
    """The steps ahead, one line each and the reason below. ``origins`` says where each answer came from."""
    lines = [style.paint(f"Plan: {plan.runbook.title}", "bold")]
    for question, answer in plan.answers.items():
        origin = origins.get(question, "")
        lines.append(f"  {question} = {safe(answer)}" + (f" (from {safe(origin)})" if origin else ""))
    colour = {
        Decision.RUN: "cyan",
        Decision.NOOP: "green",
        Decision.BLOCKED: "red",
        Decision.OBSERVE: "cyan",
        Decision.LEFT_OUT: "dim",
    }
    for number, planned in enumerate(plan.steps, 1):
        mark = style.paint(f"{planned.decision!s:<8}", colour[planned.decision])
        assumes = f" (assumes {', '.join(planned.assumes)})" if planned.assumes else ""
        flag = " [destructive]" if planned.destructive and planned.decision is Decision.RUN else ""
        lines.append(f"  {number}  {mark}  {planned.step.id}{flag}{assumes}")
        lines += style.wrap(safe(_plan_reason(planned)), 15)
    return lines


def stops_lines(plan: Plan, style: Style) -> list[str]:
    """Before the first gate: where the walk will stop, as far as can be seen now."""
    blocked = next((planned for planned in plan.steps if planned.decision is Decision.BLOCKED), None)
    if blocked is None:
        return []
    hint = f" {blocked.violations[0].hint}" if blocked.violations else ""
    told = f"As it looks now this walk stops at {blocked.step.id}: {_plan_reason(blocked)}.{hint}"
    return ["", *(style.paint(line, "yellow", "bold") for line in style.wrap(safe(told)))]


def _plan_reason(planned: PlannedStep) -> str:
    if planned.decision is Decision.RUN:
        return planned.step.title
    if planned.violations:
        return f"{planned.violations[0].rule}: {planned.reason}"
    return planned.reason


def violation_lines(planned: PlannedStep, style: Style) -> list[str]:
    """Every rule that stands against a step, with what to do about it."""
    lines = []
    for violation in planned.violations:
        lines += style.wrap(f"{style.paint(violation.rule, 'red', 'bold')} {safe(violation.reason)}", 2, 4)
        lines += style.wrap(safe(violation.hint), 6)
        lines += _evidence_lines(violation.evidence, style, 6, most=2)
    return lines or style.wrap(safe(planned.reason), 2, 4)


def diff_lines(diffs: Iterable[Mapping[str, Any]], style: Style) -> list[str]:
    """Ansible's before/after records as diff lines: ``prepared`` as it is, the rest as a unified diff."""
    lines: list[str] = []
    for record in diffs:
        if isinstance(record.get("prepared"), str):
            raw = str(record["prepared"]).splitlines()
        else:
            before, after = _text(record.get("before")), _text(record.get("after"))
            if (line := _one_line(before, after)) is not None:
                lines += style.wrap(style.paint(safe(redact(line)), "cyan"), 4, 4)
                continue
            raw = list(
                difflib.unified_diff(
                    before.splitlines(), after.splitlines(),
                    str(record.get("before_header") or "before"),
                    str(record.get("after_header") or "after"),
                    lineterm="",
                    n=2,
                )
            )  # fmt: skip
        for line in raw:
            shown = safe(redact(line.rstrip("\n")), limit=max(20, style.width - 2))
            name = (
                "green"
                if line.startswith("+")
                else "red"
                if line.startswith("-")
                else "dim"
                if line.startswith("@")
                else ""
            )
            lines.append("  " + (style.paint(shown, name) if name else shown))
    return lines


def _one_line(before: str, after: str) -> str | None:
    """``key: old -> new`` where that is all of the change; None where it is more than one line."""
    old, _, was = before.strip().partition(": ")
    new, _, now = after.strip().partition(": ")
    if ": " not in before + after:  # a thing that is there or not, and no key with its value
        return None
    if "\n" in before.strip() or "\n" in after.strip() or (old and new and old != new) or not (old or new):
        return None
    return f"{old or new}: {was or '(absent)'} -> {now or '(absent)'}"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "".join(f"{key}: {part}\n" for key, part in sorted(value.items()))
    return "" if value is None else str(value)


def holder_lines(holders: Sequence[GpuHolder], style: Style) -> list[str]:
    """Who dies if the card is taken from its driver."""
    if not holders:
        return ["  no process holds the GPU right now"]
    lines = []
    for holder in holders:
        where = f"pod {holder.pod}" if holder.pod else "on the host, in no pod"
        lines += style.wrap(
            safe(f"pid {holder.pid}  {holder.kind:<8} {holder.command}  ({where}; {', '.join(holder.devices)})"), 2, 4
        )
    return lines
