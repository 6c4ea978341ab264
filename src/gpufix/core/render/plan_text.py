"""A plan's data as an operator reads it. Pure. Drawn from the data alone, so that an old file reads as it did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpufix.core.fold import PlayResult
from gpufix.core.parse.times import told
from gpufix.core.render.terminal import Style, diff_lines
from gpufix.text import redact, safe

_COLOUR = {"run": "cyan", "no-op": "green", "blocked": "red", "observe": "cyan", "left out": "dim"}
_MOST_CHANGES = 6
_DIGEST = "sha256:"
_PREVIEW = {
    "changed": ("changed", "cyan"),
    "undetermined": ("undetermined", "yellow"),
    "failed": ("its dry run failed", "red"),
    "predicted": ("predicted, not yet dry-run", "yellow"),
}


def plan_data_lines(data: Mapping[str, Any], style: Style) -> list[str]:
    """Everything that a person decides on, in the order in which it would happen."""
    cause = data["root_cause"]
    lines = [
        style.paint(f"Plan for {safe(data['node'])}: {safe(data['runbook']['title'])}", "bold"),
        *style.wrap(f"made {safe(told(data['made_at']))} for {safe(cause['id'])} ({safe(cause['status'])})", 2),
        *style.wrap(f"digest {safe(data['digest'])}", 2),
    ]
    for name, answer in data["answers"].items():
        lines += style.wrap(f"{safe(name)} = {safe(answer['value'])} (from {safe(answer['origin'])})", 2)
    for text in data["announced"]:
        lines += ["", *style.wrap(safe(text))]
    for step in data["steps"]:
        lines += _step(step, style)
    lines += ["", style.paint("What it rests on", "bold")]
    digests = [fact for fact in data["basis"] if str(fact.get("value", "")).startswith(_DIGEST)]
    for fact in data["basis"]:
        if fact not in digests:
            shown = f"unknown ({fact['unknown']})" if "unknown" in fact else fact["value"] or "(none)"
            lines += style.wrap(safe(f"{fact['name']}: {shown}"), 2, 4)
    if digests:
        names = ", ".join(fact["name"] for fact in digests)
        lines += style.wrap(safe(f"by their digests, which -o json shows: {names}"), 2, 4)
    lines += ["", *_facts(data, style)]
    for gap in data["consents_missing"] or ():
        lines += style.wrap(f"- no consent: {safe(gap)}", 2, 2)
    return lines


def _facts(data: Mapping[str, Any], style: Style) -> list[str]:
    """Complete, applyable and errored: three facts of their own."""
    words = [
        style.paint("complete" if data["complete"] else "not complete", "green" if data["complete"] else "yellow"),
        style.paint("applyable" if data["applyable"] else "not applyable", "green" if data["applyable"] else "red"),
        *([style.paint("errored", "red")] if data["errored"] else []),
    ]
    return [", ".join(words), *(line for why in data["because"] for line in style.wrap(f"- {safe(why)}", 2, 2))]


def _step(step: Mapping[str, Any], style: Style) -> list[str]:
    mark = style.paint(f"{step['decision']:<8}", _COLOUR.get(step["decision"], "dim"))
    assumes = f" (assumes {', '.join(map(safe, step['assumes']))})" if step["assumes"] else ""
    flag = " [destructive]" if step["destructive"] and step["decision"] == "run" else ""
    lines = ["", f"{step['number']}  {mark}  {style.paint(safe(step['id']), 'bold')}{flag}{assumes}"]
    if step["decision"] != "run":
        lines += style.wrap(safe(step["reason"]), 3)
    for one in step["violations"]:
        lines += style.wrap(f"{safe(one['rule'])}: {safe(one['reason'])} {safe(one['hint'])}", 3, 4)
    if step["decision"] != "run":
        return lines
    lines += style.wrap(safe(step["title"]), 3)
    if step["risk"]:
        lines += style.wrap(f"Risk: {safe(step['risk'])}", 3, 4)
    if step["irreversible"]:
        lines += style.wrap(f"No way back: {safe(step['irreversible'])}", 3, 4)
    lines += _preview(step["preview"], style)
    if step["preview"]["state"] == "predicted":
        lines += [line for one in step["awaited"] for line in style.wrap(f"- {safe(one['now'])}", 5, 2)]
    if not step["consent"]:
        return lines
    return [
        *lines,
        *style.wrap(f"Consent wanted unattended: consent.{safe(step['id'])}: {safe(step['consent'])}", 3, 4),
    ]


def _preview(preview: Mapping[str, Any], style: Style) -> list[str]:
    word, colour = _PREVIEW.get(preview["state"], (preview["state"], "dim"))
    why = f": {safe(preview['why'])}" if preview["why"] else ""
    lines = style.wrap(f"preview: {style.paint(safe(word), colour, 'bold')}{why}", 3, 4)
    for task in preview["tasks"]:
        if task["changed"]:
            lines += [f"   {safe(task['name'])}", *("  " + line for line in diff_lines(task["diffs"], style))]
        for warning in task["warnings"]:
            lines += style.wrap(f"! {safe(warning)}", 3, 4)
    if preview["kills"]:
        lines.append("   These processes use the GPU and die if the card is taken from its driver:")
        for one in preview["kills"]:
            where = f"pod {one['pod']}" if one["pod"] else "on the host, in no pod"
            lines += style.wrap(safe(f"pid {one['pid']}  {one['kind']}  {one['command']}  ({where})"), 5, 4)
    return lines


def change_lines(step: str, result: PlayResult) -> list[str]:
    """What an applied step changed, in at most a few short lines: for a message or a summary."""
    plain = Style(width=110)
    lines = [
        line.strip()
        for task in result.tasks
        if task.changed
        for line in diff_lines(task.diffs, plain)
        if line.strip() and not line.strip().startswith(("---", "+++", "@@", " "))
    ]
    kept = [line for line in lines if line[0] in "+-" or " -> " in line]
    more = [f"and {len(kept) - _MOST_CHANGES} more lines"] if len(kept) > _MOST_CHANGES else []
    return [f"{step}: {redact(line)}" for line in [*kept[:_MOST_CHANGES], *more]]
