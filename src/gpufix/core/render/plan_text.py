"""A plan's data as an operator reads it. Pure. Drawn from the data alone, so that an old file reads as it did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpufix.core.fold import PlayResult
from gpufix.core.marks import Mark
from gpufix.core.parse import times
from gpufix.core.plan import Decision
from gpufix.core.render.mark_text import mark_lines
from gpufix.core.render.terminal import (
    Style,
    answer_words,
    assumes_words,
    destructive_words,
    diff_lines,
    whereabouts,
)
from gpufix.core.render.words import widest, word
from gpufix.language import mark, t
from gpufix.model import Evidence
from gpufix.text import padded, redact, safe

_COLOUR = {"run": "cyan", "no-op": "green", "blocked": "red", "observe": "cyan", "left out": "dim"}
_MOST_CHANGES = 6
_DIGEST = "sha256:"
_PREVIEW = {
    "changed": (mark("changed"), "cyan"),
    "undetermined": (mark("undetermined"), "yellow"),
    "failed": (mark("its dry run failed"), "red"),
    "predicted": (mark("predicted, not yet dry-run"), "yellow"),
}


def plan_data_lines(data: Mapping[str, Any], style: Style) -> list[str]:
    """Everything that a person decides on, in the order in which it would happen."""
    cause = data["root_cause"]
    lines = [
        style.paint(
            t("Plan for {node}: {runbook}", node=safe(data["node"]), runbook=safe(data["runbook"]["title"])), "bold"
        ),
        *style.wrap(
            t(
                "made {moment} for {cause} ({status})",
                moment=safe(times.told(data["made_at"])),
                cause=safe(cause["id"]),
                status=safe(word(cause["status"])),
            ),
            2,
        ),
        *style.wrap(t("digest {digest}", digest=safe(data["digest"])), 2),
    ]
    for name, answer in data["answers"].items():
        lines += style.wrap(answer_words(safe(name), safe(answer["value"]), safe(answer["origin"])), 2)
    marks = [_mark(one) for one in data.get("marks", ())]  # a plan made before they were in it has none
    lines += ["", *mark_lines(marks, style)] if marks else []
    for text in data["announced"]:
        lines += ["", *style.wrap(safe(text))]
    given = data.get("consents_given", {})
    for step in data["steps"]:
        lines += _step(step, given.get(step["id"]), style)
    lines += ["", style.paint(t("What it rests on"), "bold")]
    digests = [fact for fact in data["basis"] if str(fact.get("value", "")).startswith(_DIGEST)]
    for fact in data["basis"]:
        if fact not in digests:
            value = fact["value"] or t("(none)") if "unknown" not in fact else ""
            shown = value or t("unknown ({why})", why=fact["unknown"])
            lines += style.wrap(safe(f"{fact['name']}: {shown}"), 2, 4)
    if digests:
        names = ", ".join(fact["name"] for fact in digests)
        lines += style.wrap(safe(t("by their digests, which -o json shows: {names}", names=names)), 2, 4)
    lines += ["", *_facts(data, style)]
    for one in marks if data["consents_missing"] is not None else ():
        if one.stops:
            lines += style.wrap(
                "- " + t("a run without a person does not begin: {why}", why=safe(redact(one.text))), 2, 2
            )
    for gap in data["consents_missing"] or ():
        lines += style.wrap("- " + t("no consent: {gap}", gap=safe(gap)), 2, 2)
    return lines


def _facts(data: Mapping[str, Any], style: Style) -> list[str]:
    """Complete, applyable and errored: three facts of their own."""
    words = [
        style.paint(t("complete"), "green") if data["complete"] else style.paint(t("not complete"), "yellow"),
        style.paint(t("applyable"), "green") if data["applyable"] else style.paint(t("not applyable"), "red"),
        *([style.paint(t("errored"), "red")] if data["errored"] else []),
    ]
    return [", ".join(words), *(line for why in data["because"] for line in style.wrap(f"- {safe(why)}", 2, 2))]


def _mark(data: Mapping[str, Any]) -> Mark:
    evidence = Evidence(data["evidence"]["source"], data["evidence"]["excerpt"])
    return Mark(data["who"], data["text"], evidence, data["stops"])


def _step(step: Mapping[str, Any], given: Mapping[str, str] | None, style: Style) -> list[str]:
    decision = padded(word(step["decision"]), widest(*Decision, least=8))
    state = style.paint(decision, _COLOUR.get(step["decision"], "dim"))
    assumes = assumes_words([safe(one) for one in step["assumes"]])
    flag = destructive_words(step["destructive"] and step["decision"] == "run")
    lines = [
        "",
        *style.wrap(f"{step['number']}  {state}  {style.paint(safe(step['id']), 'bold')}{flag}{assumes}", 0, 3),
    ]
    if step["decision"] != "run":
        lines += style.wrap(safe(step["reason"]), 3)
    for one in step["violations"]:
        lines += style.wrap(f"{safe(one['rule'])}: {safe(one['reason'])} {safe(one['hint'])}", 3, 4)
    if step["decision"] != "run":
        return lines
    lines += style.wrap(safe(step["title"]), 3)
    if step["risk"]:
        lines += style.wrap(t("Risk: {risk}", risk=safe(step["risk"])), 3, 4)
    if step["irreversible"]:
        lines += style.wrap(t("No way back: {why}", why=safe(step["irreversible"])), 3, 4)
    lines += _preview(step["preview"], style)
    if step["preview"]["state"] == "predicted":
        lines += [line for one in step["awaited"] for line in style.wrap(f"- {safe(one['now'])}", 5, 2)]
    if not step["consent"]:
        return lines
    return [*lines, *style.wrap(_consent(step, given), 3, 4)]


def _consent(step: Mapping[str, Any], given: Mapping[str, str] | None) -> str:
    name = f"consent.{safe(step['id'])}"
    if given is None:
        return t("Consent wanted unattended: {consent}", consent=f"{name}: {safe(step['consent'])}")
    if given["kind"] == "skip":
        return t("Skipped, by {consent} ({origin})", consent=f"{name}: skip", origin=safe(given["origin"]))
    return t("Consent given: {consent} ({origin})", consent=name, origin=safe(given["origin"]))


def _preview(preview: Mapping[str, Any], style: Style) -> list[str]:
    known = _PREVIEW.get(preview["state"])
    state = style.paint(t(known[0]), known[1], "bold") if known else style.paint(safe(preview["state"]), "dim", "bold")
    why = f": {safe(preview['why'])}" if preview["why"] else ""
    lines = style.wrap(t("preview: {state}", state=state) + why, 3, 4)
    for task in preview["tasks"]:
        if task["changed"]:
            lines += [f"   {safe(t(task['name']))}", *("  " + line for line in diff_lines(task["diffs"], style))]
        for warning in task["warnings"]:
            lines += style.wrap(f"! {safe(warning)}", 3, 4)
    if preview["kills"]:
        lines += style.wrap(t("These processes use the GPU and die if the card is taken from its driver:"), 3)
        for one in preview["kills"]:
            told = f"pid {one['pid']}  {one['kind']}  {one['command']}  ({whereabouts(one['pod'])})"
            lines += style.wrap(safe(told), 5, 4)
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
    left = len(kept) - _MOST_CHANGES
    more = [t("and {n} more lines", n=left)] if left > 0 else []
    return [f"{step}: {redact(line)}" for line in [*kept[:_MOST_CHANGES], *more]]
