"""A run's journal as an operator reads it, and as plain data; and what stands on a node where one stopped. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpufix.core.invariants import boot_sources
from gpufix.core.parse import times
from gpufix.core.render.terminal import Style, origin_words
from gpufix.core.render.words import word
from gpufix.core.run_history import History, steps_of, unsettled
from gpufix.language import mark, t
from gpufix.model import Facts
from gpufix.text import clipped, columns, padded, redact_all, safe

_COLOUR = {
    "finished": "green",
    "running": "cyan",
    "unfinished": "yellow",
    "stopped": "yellow",
    "undone": "green",
    "unreadable": "red",
}
_FACTS = {
    "node": mark("node"),
    "host": mark("host"),
    "who": mark("who"),
    "runbook": mark("runbook"),
    "root_cause": mark("root_cause"),
}
_HEAD = (mark("RUN"), mark("NODE"), mark("STATE"), mark("STATUS"), mark("RUNBOOK"), mark("WHO"))
VERSION = 1


def run_row(id: str, state: str, history: History) -> list[str]:
    """id, node, state, exit status, runbook, when: the columns of the list."""
    end = history.end or {}
    status = str(end.get("exit_status", "")) if end else ""
    start = history.start
    node, runbook, who = (str(start.get(name, none)) for name, none in (("node", "?"), ("runbook", "?"), ("who", "")))
    return [id, node, word(_state(state, history)), status, runbook, who]


def _state(state: str, history: History) -> str:
    """A run that was closed has no end of its own, though nothing more comes of it."""
    return "closed" if state == "finished" and (history.end or {}).get("closed") is True else state


def table_lines(rows: Sequence[Sequence[str]], style: Style) -> list[str]:
    """Columns of text, each as wide as its widest cell."""
    head = [t(name) for name in _HEAD]
    clean = [head, *([clipped(safe(cell), 80) for cell in row] for row in rows)]
    widths = [max(columns(row[column]) for row in clean) for column in range(len(head))]
    lines = ["  ".join(map(padded, row, widths)).rstrip() for row in clean]
    return [style.paint(lines[0], "bold"), *lines[1:]]


def run_lines(
    id: str, folder: str, state: str, history: History, style: Style, resume: str = "gpufix resume"
) -> list[str]:
    """All that the journal says of one run, in short. ``resume``: the command that goes on with it."""
    start, end = history.start, history.end or {}
    shown = style.paint(word(_state(state, history)), _COLOUR[state], "bold")
    lines = [t("Run {run}: {state}", run=style.paint(safe(id), "bold"), state=shown)]
    for name, label in _FACTS.items():
        if start.get(name):
            lines += style.wrap(f"{padded(t(label), 12)}{safe(str(start[name]))}", 2, 14)
    for label, line in ((t("began"), start), (t("ended"), end)):
        if line.get("at"):
            lines += style.wrap(f"{padded(label, 12)}{safe(times.told(line['at']))}", 2, 14)
    answers = start.get("answers")
    for question, answer in answers.items() if isinstance(answers, dict) else ():
        value, origin = (answer.get("value"), answer.get("origin")) if isinstance(answer, dict) else (answer, "")
        where = f" ({safe(origin_words(str(origin)))})" if origin else ""
        lines += style.wrap(f"{safe(str(question))} = {safe(str(value))}{where}", 2)
    steps = steps_of(history)
    lines += ["", style.paint(t("Steps"), "bold")] if steps else []
    for step in steps:
        consent = ", " + t("consent {by}", by=safe(origin_words(step.by))) if step.by else ""
        lines += style.wrap(f"{safe(step.step):<18} {style.paint(safe(word(step.outcome)), 'bold')}{consent}", 2, 4)
        lines += style.wrap(safe(step.text), 4, 2) if step.text else []
    if end:
        told = t(
            "Ended with status {status}: {line}", status=end.get("exit_status"), line=safe(str(end.get("line", "")))
        )
        lines += ["", *style.wrap(told, 0, 2)]
    if history.torn:
        lines += style.wrap(t("The last line of its journal was cut off; it is left out."), 0, 2)
    if history.broken:
        lines += style.wrap(
            t("Lines of its journal that cannot be read: {lines}.", lines=", ".join(map(str, history.broken))), 0, 2
        )
    if state == "unfinished":
        names = unsettled(steps)
        told = t("{steps} was begun and its end is not on record.", steps=", ".join(names)) + " " if names else ""
        command = f"{resume} {safe(id)}"
        told += t("{command} looks at the node and goes on from what it finds.", command=command)
        lines += ["", *style.wrap(told, 0, 2)]
    return [*lines, t("Folder: {folder}", folder=safe(folder))]


def run_as_data(id: str, folder: str, state: str, history: History) -> dict[str, Any]:
    """The same for ``-o json``. Fields are added, never changed."""
    end = history.end or {}
    data: dict[str, Any] = redact_all(
        {
            "version": VERSION,
            "kind": "gpufix-run",
            "run": id,
            "folder": folder,
            "state": state,
            "node": history.start.get("node"),
            "host": history.start.get("host"),
            "who": history.start.get("who"),
            "runbook": history.start.get("runbook"),
            "began_at": history.start.get("at"),
            "ended_at": end.get("at"),
            "exit_status": end.get("exit_status"),
            "line": end.get("line"),
            "answers": history.start.get("answers"),
            "steps": [
                {"step": s.step, "outcome": s.outcome, "text": s.text, "consent": s.by, "began_at": s.at}
                for s in steps_of(history)
            ],
            "torn": history.torn,
            "broken_lines": list(history.broken),
        }
    )
    return data


def about_lines(id: str, state: str, history: History, newer: Sequence[tuple[str, str]], style: Style) -> list[str]:
    """Which run a command is about, before it does anything. ``newer``: id and state of later ones on its node."""
    start = history.start
    node, book = safe(str(start.get("node") or "?")), safe(str(start.get("runbook") or "?"))
    about = t(
        "Run {run} on {node}: {runbook}, begun {moment} by {who}; {state}.",
        run=style.paint(safe(id), "bold"),
        node=node,
        runbook=book,
        moment=safe(times.told(start.get("at"))),
        who=safe(str(start.get("who") or t("somebody"))),
        state=word(state),
    )
    lines = style.wrap(about, 0, 2)
    acted = ", ".join(dict.fromkeys(safe(str(line.get("step"))) for line in history.all("intent")))
    lines += style.wrap(t("It acted in: {steps}.", steps=acted) if acted else t("It changed nothing."), 2, 2)
    if newer:
        others = ", ".join(f"{safe(other)} ({word(its)})" for other, its in newer)
        told = t("It is not the newest run on {node}. After it came: {runs}.", node=node, runs=others)
        lines += style.wrap(style.paint("!", "yellow", "bold") + " " + told, 2, 2)
    return [*lines, ""]


def stopped_lines(id: str, history: History, settled: Sequence[tuple[str, str, str]], style: Style) -> list[str]:
    """Where a run stands that is to be gone on with. ``settled``: step, outcome and text of what a look has shown."""
    start, end = history.start, history.end
    about = {
        "run": safe(id),
        "who": safe(str(start.get("who") or t("somebody"))),
        "moment": safe(times.told(start.get("at"))),
        "status": safe(str(end.get("exit_status"))) if end else "",
    }
    if end:
        what = t("the run {run} of {who}, begun {moment}; it stopped with status {status}.", **about)
    else:
        what = t("the run {run} of {who}, begun {moment}; its process died.", **about)
    lines = style.wrap(style.paint(t("Unfinished:"), "yellow", "bold") + " " + what, 0, 2)
    found = {step: (outcome, text) for step, outcome, text in settled}
    for step in steps_of(history):
        outcome, text = found.get(step.step, (step.outcome, step.text))
        lines += style.wrap(f"{safe(step.step):<18} {style.paint(safe(word(outcome)), 'bold')}: {safe(text)}", 2, 4)
    return lines


def standing_lines(facts: Facts, style: Style) -> list[str]:
    """What the node is left as, whatever the journal says: its kubelet, and swap now and at the next boot."""
    lines = [style.paint(t("What stands there now"), "bold")]
    for sentence in (_kubelet_sentence(facts), _swap_sentence(facts), _boot_sentence(facts)):
        lines += style.wrap(safe(sentence), 2, 4)
    return lines


def _kubelet_sentence(facts: Facts) -> str:
    unit = facts.unit.value
    if unit is None:
        return t("Whether the kubelet runs is not known: {why}.", why=facts.unit.unknown)
    if unit.running:
        return t("The kubelet runs ({unit}).", unit=unit.name)
    if unit.will_start_by_itself:
        return t("The kubelet is down, and systemd starts it again and again ({unit}).", unit=unit.name)
    if unit.load_state == "masked":
        return t(
            "The kubelet is stopped and masked ({unit}): the node stays dead until it is unmasked and started.",
            unit=unit.name,
        )
    return t("The kubelet is held: stopped ({unit}), and the node stays dead until it is started.", unit=unit.name)


def _swap_sentence(facts: Facts) -> str:
    if facts.swaps.value is None:
        return t("Whether swap is on is not known: {why}.", why=facts.swaps.unknown)
    devices = ", ".join(device.path for device in facts.swaps.value)
    if not devices:
        return t("Swap is off.")
    if facts.swap_allowed.value is True:
        return t("Swap is on ({devices}), which this kubelet allows.", devices=devices)
    return t("Swap is on ({devices}): a kubelet that is started now dies of it.", devices=devices)


def _boot_sentence(facts: Facts) -> str:
    sources = boot_sources(facts)
    if sources.value:
        return t("Swap comes back at boot: {sources}.", sources="; ".join(sources.value))
    if not sources.known:
        return t("Whether swap comes back at boot is not known: {why}.", why=sources.unknown)
    return t("Swap does not come back at boot: no line of /etc/fstab, no unit and no service turns it on.")
