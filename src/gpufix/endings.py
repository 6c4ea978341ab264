"""How a walk ended: its exit status, and the words for it. Pure but for the words that name this session's commands."""

from __future__ import annotations

from collections.abc import Mapping

from gpufix.core.plan import target_of
from gpufix.core.runbook import Runbook
from gpufix.core.verdict import Health, Verdicts, VmHealth
from gpufix.core.workload import raw_workload
from gpufix.errors import ExitStatus
from gpufix.session import Session
from gpufix.text import duration_s
from gpufix.walk import Outcome, StepResult, Walker

_STATUS_OF = {
    Outcome.QUIT: ExitStatus.DECLINED,
    Outcome.BLOCKED: ExitStatus.BLOCKED,
    Outcome.FAILED: ExitStatus.STEP_FAILED,
    Outcome.UNREACHABLE: ExitStatus.UNREACHABLE,
    Outcome.LATE: ExitStatus.NOT_IN_TIME,
    Outcome.INTERRUPTED: ExitStatus.INTERRUPTED,
    Outcome.NO_CONSENT: ExitStatus.USAGE,
    Outcome.LOCKED: ExitStatus.LOCKED,
}


def ending_of_undo(
    session: Session,
    walker: Walker,
    book: Runbook,
    last: StepResult,
    verdicts: Verdicts,
    run: str,
    stays: Mapping[str, str],
) -> tuple[ExitStatus, str]:
    """The status of an undo and the line that says how it ended. ``stays``: what of ``run`` is not undone."""
    stands = _what_stands(session, walker)
    if not last.outcome.goes_on:
        told = [f"Not undone: {last.step}: {last.text.rstrip('.')}.", _way_on(session, walker)]
        begun = {result.step for result in walker.results}
        if last.outcome is Outcome.FAILED and any(step.id not in begun for step in book.steps):
            told.append(f"The others can be undone one by one: gpufix undo {run} --step STEP.")
        return _STATUS_OF[last.outcome], _sentences(*told, stands)
    done = [result.step for result in walker.results if result.outcome in (Outcome.DONE, Outcome.NOOP)]
    skipped = [result.step for result in walker.results if result.outcome is Outcome.SKIPPED]
    health = f"{session.node} is {verdicts.node.health} now."
    left = f"Not undone, and stays as it is: {', '.join(stays)}." if stays else ""
    if skipped:
        return ExitStatus.DECLINED, _sentences(f"Undone but for {', '.join(skipped)}, as asked.", left, health, stands)
    return ExitStatus.OK, _sentences(f"Undone: {', '.join(done)}.", left, health, stands)


def _sentences(*sentences: str) -> str:
    return " ".join(one for one in sentences if one)


def _what_stands(session: Session, walker: Walker) -> str:
    """Whether the node is dead, or dies at its next start, with what the undo left; empty where neither is so."""
    facts, node, way = walker.latest.facts, session.node, session.words("recover")
    unit = facts.unit.value
    swap = bool(facts.swaps.value) and facts.swap_allowed.value is not True
    if unit is None:
        return f"Whether the kubelet runs is not known: {facts.unit.unknown}."
    if unit.will_start_by_itself:
        return f"The kubelet dies of swap again and again: {node} is dead until {way} mends it." if swap else ""
    if unit.running:
        return f"Swap is on, so {node} is dead again from the kubelet's next start on, a reboot too." if swap else ""
    if swap:
        return f"The kubelet is stopped and swap is on: {node} is dead until {way} mends it."
    return f"The kubelet is stopped: {node} is dead until {way} starts it in the right order."


def _way_on(session: Session, walker: Walker) -> str:
    if not any(result.changed for result in walker.results):
        return "Nothing was changed."
    return f"{session.words('undo')} looks again and goes on from here." if session.lasts else ""


def ending(
    session: Session, walker: Walker, book: Runbook, last: StepResult, verdicts: Verdicts
) -> tuple[ExitStatus, str]:
    """The status of a recovery and the line that says how it ended."""
    if not last.outcome.goes_on:
        step = next((step for step in book.steps if step.id == last.step), None)
        hint = f" {step.if_late}." if step and step.if_late and last.outcome is Outcome.LATE else ""
        line = f"Not recovered: {last.step}: {last.text.rstrip('.')}.{hint}{_held_note(session, walker)}"
        return _STATUS_OF[last.outcome], line
    if verdicts.node.health is not Health.WELL:
        return ExitStatus.NOT_IN_TIME, f"Not recovered: {session.node} is {verdicts.node.health}."
    proof = "" if verdicts.node.reboot_proof else f" Not shown to survive a reboot: {verdicts.node.reboot_text}."
    vms = f" VMs: {verdicts.vms.text}." if verdicts.vms.health is VmHealth.WAITING else ""
    return ExitStatus.OK, f"Recovered: {session.node} is Ready and stays so.{vms}{proof}"


def summary(walker: Walker, book: Runbook) -> list[str]:
    """A line for each step that was meant to be walked."""
    style = walker.session.ui.style
    by_step = {result.step: result for result in walker.results}
    lines = []
    for step in book.steps:
        result = by_step.get(step.id)
        if result is None:
            lines.append(f"  {step.id:<18} not begun")
        elif result.outcome is not Outcome.LEFT_OUT:
            lines += style.wrap(f"{step.id:<18} {result.outcome} ({duration_s(result.seconds)})", 2)
    return lines


def _held_note(session: Session, walker: Walker) -> str:
    """After an early end the kubelet may be held: say so, since the node stays dead until someone goes on."""
    unit = walker.latest.facts.unit.value
    held = unit is not None and not unit.running and not unit.will_start_by_itself
    if held and any(result.changed for result in walker.results):
        note = " The kubelet is stopped and stays stopped until restart-kubelet has run."
        return f"{note} {session.words('resume')} goes on from here." if session.lasts else note
    if not any(result.changed for result in walker.results):
        return " Nothing was changed."
    return f" {session.words('resume')} looks again and goes on from here." if session.lasts else ""


def reached(walker: Walker) -> str:
    """The workload that was chosen, once the node's label says it; before that, nothing is as announced."""
    node, target = walker.latest.facts.node.value, target_of(walker.answers)
    return target if node is not None and raw_workload(node) == target else ""
