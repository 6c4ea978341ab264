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

from gpufix.core.answers import ASKED, AT_ITS_GATE, DEFAULT
from gpufix.core.plan import Decision, Plan, PlannedStep
from gpufix.core.render.words import widest, word
from gpufix.core.verdict import Health, Verdicts, VmHealth
from gpufix.language import t
from gpufix.model import AffectedVm, Diagnosis, Evidence, GpuHolder, Status
from gpufix.text import ago, clipped, columns, padded, redact, safe, wrapped

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
        return " " * indent + clipped(safe(text), max(20, self.width - indent))


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
    node, as_of = safe(diagnosis.node), diagnosis.as_of
    title = t("Node {node}", node=node)
    if as_of is not None:
        title = t("Node {node}, as of {moment} UTC", node=node, moment=f"{as_of:%Y-%m-%d %H:%M:%S}")
    colour = "green" if cause.id == "healthy" and cause.status is Status.CONFIRMED else _STATUS_COLOUR[cause.status]
    head = word(cause.id) if cause.id == "unknown" else f"{cause.id} ({word(cause.status)})"
    lines = [style.paint(title, "bold"), t("Root cause: {cause}", cause=style.paint(head, colour, "bold"))]
    lines += style.wrap(safe(cause.summary), 2)
    if diagnosis.down_since is not None:
        lines += style.wrap(t("Not Ready {since}.", since=ago(diagnosis.down_since, as_of)), 2)
    lines += ["", style.paint(t("Chain of causes"), "bold")]
    width = widest(*Status, least=9)
    for number, link in enumerate(diagnosis.chain, 1):
        state = style.paint(padded(word(link.status), width), _STATUS_COLOUR[link.status])
        lines += style.wrap(f"{number}  {state}  {safe(link.title)}", 2, width + 5)
        if link.detail:
            lines += style.wrap(safe(link.detail), width + 7)
        lines += _evidence_lines(link.evidence, style, width + 7)
    if diagnosis.alternatives:
        lines += ["", style.paint(t("Considered and put aside"), "bold")]
        for other in diagnosis.alternatives:
            lines += style.wrap(f"{other.id}: {word(other.status)}: {safe(other.by)}", 2, 4)
    if diagnosis.affected:
        lines += ["", style.paint(t("VMs that cannot run"), "bold")]
        for vm in diagnosis.affected:
            lines += _vm_lines(vm, diagnosis, style)
    lines += ["", *verdict_lines(verdicts, style)]
    if diagnosis.warnings:
        lines += ["", style.paint(t("Mind"), "bold")]
        for warning in diagnosis.warnings:
            lines += style.wrap(f"- {safe(warning)}", 2, 2)
    if diagnosis.unread:
        lines += ["", style.paint(t("Not read (unknown, not fine)"), "bold")]
        for what, why in sorted(diagnosis.unread.items()):
            lines.append(style.clip(f"{what}: {why}", 2))
    if not offer:
        return lines
    lines += [""]
    if runbook is not None:
        command = f"gpufix recover {node}"
        lines += style.wrap(t("Runbook: {runbook}. Run: {command}", runbook=runbook, command=command))
    elif cause.id == "healthy" and cause.status is Status.CONFIRMED and verdicts.node.reboot_proof is not False:
        lines.append(t("Runbook: none is needed."))
    else:
        lines.append(t("Runbook: none fits; gpufix offers no change."))
    return lines


def _evidence_lines(evidence: Sequence[Evidence], style: Style, indent: int, most: int = 2) -> list[str]:
    """Source and raw words of the first ``most``; the rest, and every full object, are in the JSON output."""
    lines: list[str] = []
    for item in evidence[:most]:
        room = max(30, style.width - indent)
        words = safe(f"{item.source} | {compact(item.excerpt)}")
        parts = wrapped(words, room, "", "  ", break_long_words=True)
        if len(parts) > _EXCERPT_LINES:
            last = parts[_EXCERPT_LINES - 1]
            parts = [*parts[: _EXCERPT_LINES - 1], clipped(last + "…", room)]
        lines += [style.paint(" " * indent + part, "dim") for part in parts]
    if len(evidence) > most:
        lines.append(" " * indent + t("({n} more in diagnose -o json)", n=len(evidence) - most))
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
    wanted = ", ".join(f"{name} x{count}" for name, count in sorted(vm.resources.items())) or t("no device")
    head = f"{vm.namespace}/{vm.name}" + (f" ({vm.status})" if vm.status else "")
    since = ago(vm.since, diagnosis.as_of) or t("since an unknown time")
    told = t("{vm} wants {devices}; waiting {since}", vm=head, devices=wanted, since=since)
    lines = style.wrap(safe(told), 2, 4)
    lines += style.wrap(safe(vm.reason), 6)
    if vm.other_nodes:
        verdict = {
            True: t("another node could serve it"),
            False: t("no other node can serve it"),
            None: t("it is not known whether another node could serve it"),
        }
        alike: dict[str, list[str]] = {}
        for other in vm.other_nodes:
            alike.setdefault(other.reason, []).append(other.name)
        groups = [f"{_names(names)}: {reason}" for reason, names in alike.items()]
        more = t("and {n} more reasons", n=len(groups) - 8) if len(groups) > 8 else ""
        others = "; ".join([*groups[:8], *([more] if more else [])])
        lines += style.wrap(safe(f"{verdict[vm.servable_elsewhere]}: {others}"), 6)
    else:
        lines += style.wrap(t("there is no other node in this cluster"), 6)
    return lines


def _names(names: list[str], most: int = 7) -> str:
    shown = ", ".join(names[:most])
    return t("{names} and {n} more", names=shown, n=len(names) - most) if len(names) > most else shown


def verdict_lines(verdicts: Verdicts, style: Style) -> list[str]:
    """Both verdicts, each in a word and with what stands against it."""
    node, vms = verdicts.node, verdicts.vms
    colour = {Health.WELL: "green", Health.SICK: "red", Health.UNKNOWN: "yellow"}[node.health]
    of_node, of_vms = t("node"), t("VMs")
    width = max(columns(of_node), columns(of_vms))
    head = f"  {padded(of_node, width)}  {style.paint(word(node.health), colour, 'bold')}"
    lines = [style.paint(t("Verdicts"), "bold"), head]
    for check in node.open_checks:
        state = t("not known") if check.holds is None else t("open")
        lines += style.wrap(f"{state}: {safe(check.text)}", width + 4, 2)
    if node.health is Health.WELL:
        lines += style.wrap(safe("; ".join(check.text for check in node.checks)), width + 4)
    proof = {True: t("survives a reboot"), False: t("does not survive a reboot"), None: t("reboot not shown")}
    lines += style.wrap(f"{proof[node.reboot_proof]}: {safe(node.reboot_text)}", width + 4, 2)
    colour = {
        VmHealth.RUNNING: "green",
        VmHealth.NONE: "green",
        VmHealth.WAITING: "yellow",
        VmHealth.UNKNOWN: "yellow",
    }[vms.health]
    lines.append(f"  {padded(of_vms, width)}  {style.paint(word(vms.health), colour, 'bold')}")
    told = safe(vms.text)
    lines += style.wrap(t("{text} (as announced)", text=told) if vms.announced else told, width + 4)
    return lines


def plan_lines(plan: Plan, origins: Mapping[str, str], style: Style) -> list[str]:
    """The steps ahead, one line each and the reason below. ``origins`` says where each answer came from."""
    lines = [style.paint(t("Plan: {runbook}", runbook=plan.runbook.title), "bold")]
    for question, answer in plan.answers.items():
        origin = origins.get(question, "")
        lines.append(f"  {answer_words(question, safe(answer), safe(origin))}")
    colour = {
        Decision.RUN: "cyan",
        Decision.NOOP: "green",
        Decision.BLOCKED: "red",
        Decision.OBSERVE: "cyan",
        Decision.LEFT_OUT: "dim",
    }
    width = widest(*Decision, least=8)
    for number, planned in enumerate(plan.steps, 1):
        state = style.paint(padded(word(planned.decision), width), colour[planned.decision])
        assumes = assumes_words(planned.assumes)
        flag = destructive_words(planned.destructive and planned.decision is Decision.RUN)
        lines += style.wrap(f"{number}  {state}  {planned.step.id}{flag}{assumes}", 2, width + 5)
        lines += style.wrap(safe(_plan_reason(planned)), width + 7)
    return lines


def answer_words(question: str, answer: str, origin: str) -> str:
    """An answer, and where it came from, where that is known."""
    return f"{question} = {answer}" + (" " + t("(from {origin})", origin=origin_words(origin)) if origin else "")


def origin_words(origin: str) -> str:
    """Where an answer or a consent came from: gpufix's own words for it, or a place in a file."""
    return t(origin) if origin in (str(ASKED), str(DEFAULT), AT_ITS_GATE) else origin


def assumes_words(steps: Sequence[str]) -> str:
    """After a step's name: the earlier ones that it rests on."""
    return " " + t("(assumes {steps})", steps=", ".join(steps)) if steps else ""


def destructive_words(destructive: bool) -> str:
    """After a step's name."""
    return " " + t("[destructive]") if destructive else ""


def stops_lines(plan: Plan, style: Style) -> list[str]:
    """Before the first gate: where the walk will stop, as far as can be seen now."""
    blocked = next((planned for planned in plan.steps if planned.decision is Decision.BLOCKED), None)
    if blocked is None:
        return []
    told = t("As it looks now this walk stops at {step}: {reason}.", step=blocked.step.id, reason=_plan_reason(blocked))
    told += f" {blocked.violations[0].hint}" if blocked.violations else ""
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
            shown = clipped(safe(redact(line.rstrip("\n"))), max(20, style.width - 2))
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
    absent = t("(absent)")
    return f"{old or new}: {was or absent} -> {now or absent}"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "".join(f"{key}: {part}\n" for key, part in sorted(value.items()))
    return "" if value is None else str(value)


def holder_lines(holders: Sequence[GpuHolder], style: Style) -> list[str]:
    """Who dies if the card is taken from its driver."""
    if not holders:
        return ["  " + t("no process holds the GPU right now")]
    lines = []
    for holder in holders:
        where = whereabouts(holder.pod)
        lines += style.wrap(
            safe(f"pid {holder.pid}  {holder.kind:<8} {holder.command}  ({where}; {', '.join(holder.devices)})"), 2, 4
        )
    return lines


def whereabouts(pod: str) -> str:
    """Where a process on the GPU runs; ``pod`` empty: in none."""
    return t("pod {pod}", pod=pod) if pod else t("on the host, in no pod")
