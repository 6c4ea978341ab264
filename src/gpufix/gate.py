"""The gate before a step: shows what its dry run would change, and asks a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpufix.core.answers import AT_ITS_GATE
from gpufix.core.conditions import World, evaluate
from gpufix.core.fold import PlayResult
from gpufix.core.invariants import Action
from gpufix.core.plan import PlannedStep, target_of
from gpufix.core.render.terminal import diff_lines, holder_lines
from gpufix.core.undo import capture_undo
from gpufix.core.workload import CONTAINER
from gpufix.language import t
from gpufix.model import GpuHolder
from gpufix.session import Session
from gpufix.text import safe
from gpufix.world.prompts import Option


@dataclass(frozen=True, slots=True)
class Approval:
    """What was decided at a gate. ``choice``: apply | skip | quit | refuse (no consent: ``by`` says what is missing).

    ``by`` is where it was decided, in words, ``who`` the person (user@host). ``kills``: the processes on the GPU that
    may die; None means those that the gate showed.
    """

    choice: str
    by: str
    who: str = ""
    kills: frozenset[int] | None = None


class Approver(Protocol):
    """Decides at a gate, once its dry run was shown. Raises Interrupted."""

    def decide(self, gate: Gate, by_hand: str) -> Approval: ...


class PromptApprover:
    """A person at the terminal. ``waiting`` is told the step for which the gate now stands open."""

    def __init__(self, who: str, waiting: Callable[[str], None] = lambda step: None) -> None:
        self._who = who
        self._waiting = waiting

    def decide(self, gate: Gate, by_hand: str) -> Approval:
        self._waiting(gate.planned.step.id)
        return Approval(gate.ask(by_hand), AT_ITS_GATE, self._who)


@dataclass(frozen=True, slots=True)
class Gate:
    """``world`` is what the dry run was made in; consent counts for what is shown of it and for nothing else."""

    session: Session
    planned: PlannedStep
    preview: PlayResult
    world: World
    may_skip: bool

    @property
    def _holders(self) -> tuple[GpuHolder, ...] | None:
        return self.world.facts.gpu_holders.value

    @property
    def holder_pids(self) -> frozenset[int]:
        """The processes on the GPU in ``world``."""
        return frozenset(holder.pid for holder in self._holders or ())

    def show_preview(self) -> bool:
        """Show what would change. True when the GPU processes, who may die towards passthrough, were listed."""
        style, preview = self.session.ui.style, self.preview
        if preview.changed:
            lines = ["  " + t("preview: {state}", state=style.paint(t("changed"), "cyan", "bold"))]
        else:
            state = style.paint(t("undetermined"), "yellow", "bold")
            told = t("preview: {state} (the dry run shows no change, and the effect is not there yet)", state=state)
            lines = style.wrap(told, 2, 4)
        for task in preview.tasks:
            if task.changed:
                lines += [f"  {safe(t(task.name))}", *diff_lines(task.diffs, style)]
            warnings = task.result.get("warnings")
            for warning in warnings if isinstance(warnings, list) else []:
                lines += style.wrap(f"! {safe(str(warning))}", 2, 4)
        takes_card = bool(self.planned.actions - {Action.RESTORE_SWAP})
        shown = takes_card and target_of(self.world.answers) != CONTAINER and self._holders is not None
        if shown:
            lines += style.wrap(t("These processes use the GPU and die if the card is taken from its driver:"), 2)
            lines += holder_lines(self._holders or (), style)
        self.session.ui.say(lines)
        return shown

    def ask(self, by_hand: str) -> str:
        """apply | skip | quit, from a person. A destructive step wants the node's name typed. Raises Interrupted."""
        ui, style, step = self.session.ui, self.session.ui.style, self.planned.step
        if step.risk:
            ui.say(style.wrap(t("Risk: {risk}", risk=step.risk), 2, 4))
        if step.irreversible:
            ui.say(style.wrap(t("No way back: {why}", why=step.irreversible), 2, 4))
        if self.planned.destructive:
            ui.say(style.wrap(style.paint(t("Destructive: applying asks for the node's name."), "yellow"), 2))
        options = [Option("apply", t("apply {step}", step=step.id)), Option("details", t("details"))]
        if self.may_skip:
            options.append(Option("skip", t("skip this step")))
        options.append(Option("quit", t("quit, leaving the rest undone")))
        while True:
            choice = ui.ask_choice(f"{step.id}:", options, "apply")
            if choice == "details":
                ui.say(self._details(by_hand))
                continue
            if choice != "apply" or not self.planned.destructive:
                return choice
            typed = ui.ask_text(t("Type the node's name to apply {step} (empty to go back):", step=step.id))
            if typed == self.session.node:
                return "apply"
            if typed:
                told = t(
                    "{typed} is not {node}; nothing was done", typed=repr(safe(typed)), node=repr(self.session.node)
                )
                ui.say(ui.style.wrap(told, 2))

    def _details(self, by_hand: str) -> list[str]:
        style, step = self.session.ui.style, self.planned.step
        lines = ["", *style.wrap(t("Awaited afterwards, within {n} s:", n=step.timeout), 2)]
        for leaf in evaluate(step.done_when, self.world).leaves():
            if leaf.kind == "observation":
                why = f" ({leaf.because})" if leaf.because else ""
                lines += style.wrap(f"- {safe(leaf.text)}{why}", 2, 2)
        undo = capture_undo(self.planned.actions, self.world.facts)
        if undo and not step.irreversible:
            none = t("none")
            lines.append("  " + t("Recorded for undoing it:"))
            for key, value in undo.items():
                lines += style.wrap(f"- {key}: {safe(_words(value)) or none}", 2, 4)
        lines += style.wrap(t("Tasks of the dry run:"), 2)
        for task in self.preview.tasks:
            state = t("skipped") if task.skipped else t("would change") if task.changed else t("ok")
            said = f": {safe(task.message)}" if task.message else ""
            lines += style.wrap(f"- {safe(t(task.name))}: {state}{said}", 2, 2)
        # in one line, however long: it is there to be copied
        return [*lines, "  " + t("The same dry run by hand:"), f"    {safe(by_hand)}"]


def _words(value: Any) -> str:
    """Undo material for a person: ``key=value, ...`` and no brackets."""
    if isinstance(value, Mapping):
        absent = t("(absent)")
        return ", ".join(f"{key}={absent if part is None else part}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return "; ".join(_words(part) for part in value)
    return str(value)
