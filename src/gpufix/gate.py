"""The gate before a step: shows what its dry run would change, and asks a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpufix.core.conditions import World, evaluate
from gpufix.core.fold import PlayResult
from gpufix.core.invariants import Action
from gpufix.core.plan import PlannedStep, target_of
from gpufix.core.render.terminal import diff_lines, holder_lines
from gpufix.core.undo import capture_undo
from gpufix.core.workload import CONTAINER
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
        return Approval(gate.ask(by_hand), "at its gate", self._who)


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
            lines = [f"  preview: {style.paint('changed', 'cyan', 'bold')}"]
        else:
            word = style.paint("undetermined", "yellow", "bold")
            lines = [f"  preview: {word} (the dry run shows no change, and the effect is not there yet)"]
        for task in preview.tasks:
            if task.changed:
                lines += [f"  {safe(task.name)}", *diff_lines(task.diffs, style)]
            warnings = task.result.get("warnings")
            for warning in warnings if isinstance(warnings, list) else []:
                lines += style.wrap(f"! {safe(str(warning))}", 2, 4)
        takes_card = bool(self.planned.actions - {Action.RESTORE_SWAP})
        shown = takes_card and target_of(self.world.answers) != CONTAINER and self._holders is not None
        if shown:
            lines += ["  These processes use the GPU and die if the card is taken from its driver:"]
            lines += holder_lines(self._holders or (), style)
        self.session.ui.say(lines)
        return shown

    def ask(self, by_hand: str) -> str:
        """apply | skip | quit, from a person. A destructive step wants the node's name typed. Raises Interrupted."""
        ui, style, step = self.session.ui, self.session.ui.style, self.planned.step
        if step.risk:
            ui.say(style.wrap(f"Risk: {step.risk}", 2, 4))
        if step.irreversible:
            ui.say(style.wrap(f"No way back: {step.irreversible}", 2, 4))
        if self.planned.destructive:
            ui.say(style.wrap(style.paint("Destructive: applying asks for the node's name.", "yellow"), 2))
        options = [Option("apply", f"apply {step.id}"), Option("details", "details")]
        if self.may_skip:
            options.append(Option("skip", "skip this step"))
        options.append(Option("quit", "quit, leaving the rest undone"))
        while True:
            choice = ui.ask_choice(f"{step.id}:", options, "apply")
            if choice == "details":
                ui.say(self._details(by_hand))
                continue
            if choice != "apply" or not self.planned.destructive:
                return choice
            typed = ui.ask_text(f"Type the node's name to apply {step.id} (empty to go back):")
            if typed == self.session.node:
                return "apply"
            if typed:
                ui.say([f"  {safe(typed)!r} is not {self.session.node!r}; nothing was done"])

    def _details(self, by_hand: str) -> list[str]:
        style, step = self.session.ui.style, self.planned.step
        lines = ["", *style.wrap(f"Awaited afterwards, within {step.timeout} s:", 2)]
        for leaf in evaluate(step.done_when, self.world).leaves():
            if leaf.kind == "observation":
                why = f" ({leaf.because})" if leaf.because else ""
                lines += style.wrap(f"- {safe(leaf.text)}{why}", 2, 2)
        undo = capture_undo(self.planned.actions, self.world.facts)
        if undo and not step.irreversible:
            lines.append("  Recorded for undoing it:")
            for key, value in undo.items():
                lines += style.wrap(f"- {key}: {safe(_words(value)) or 'none'}", 2, 4)
        lines += style.wrap("Tasks of the dry run:", 2)
        for task in self.preview.tasks:
            state = "skipped" if task.skipped else "would change" if task.changed else "ok"
            said = f": {safe(task.message)}" if task.message else ""
            lines += style.wrap(f"- {safe(task.name)}: {state}{said}", 2, 2)
        # in one line, however long: it is there to be copied
        return [*lines, "  The same dry run by hand:", f"    {safe(by_hand)}"]


def _words(value: Any) -> str:
    """Undo material for a person: ``key=value, ...`` and no brackets."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={'(absent)' if part is None else part}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return "; ".join(_words(part) for part in value)
    return str(value)
