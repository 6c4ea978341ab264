"""How a walk ended: its exit status, and the words for it. Pure but for the words that name this session's commands."""

from __future__ import annotations

from collections.abc import Mapping

from gpufix.core.plan import target_of
from gpufix.core.render.words import word
from gpufix.core.runbook import Runbook
from gpufix.core.verdict import Health, Verdicts, VmHealth
from gpufix.core.workload import raw_workload
from gpufix.errors import ExitStatus
from gpufix.language import t
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
        told = [t("Not undone: {step}: {why}.", step=last.step, why=last.text.rstrip(".")), _way_on(session, walker)]
        begun = {result.step for result in walker.results}
        if last.outcome is Outcome.FAILED and any(step.id not in begun for step in book.steps):
            told.append(t("The others can be undone one by one: {command}.", command=f"gpufix undo {run} --step STEP"))
        return _STATUS_OF[last.outcome], _sentences(*told, stands)
    done = [result.step for result in walker.results if result.outcome in (Outcome.DONE, Outcome.NOOP)]
    skipped = [result.step for result in walker.results if result.outcome is Outcome.SKIPPED]
    health = t("{node} is {health} now.", node=session.node, health=word(verdicts.node.health))
    left = t("Not undone, and stays as it is: {steps}.", steps=", ".join(stays)) if stays else ""
    if skipped:
        but = t("Undone but for {steps}, as asked.", steps=", ".join(skipped))
        return ExitStatus.DECLINED, _sentences(but, left, health, stands)
    return ExitStatus.OK, _sentences(t("Undone: {steps}.", steps=", ".join(done)), left, health, stands)


def _sentences(*sentences: str) -> str:
    return " ".join(one for one in sentences if one)


def _what_stands(session: Session, walker: Walker) -> str:
    """Whether the node is dead, or dies at its next start, with what the undo left; empty where neither is so."""
    facts, node, way = walker.latest.facts, session.node, session.words("recover")
    unit = facts.unit.value
    swap = bool(facts.swaps.value) and facts.swap_allowed.value is not True
    if unit is None:
        return t("Whether the kubelet runs is not known: {why}.", why=facts.unit.unknown)
    words = {"node": node, "command": way}
    if unit.will_start_by_itself:
        again = t("The kubelet dies of swap again and again: {node} is dead until {command} mends it.", **words)
        return again if swap else ""
    if unit.running:
        next_time = t("Swap is on, so {node} is dead again from the kubelet's next start on, a reboot too.", node=node)
        return next_time if swap else ""
    if swap:
        return t("The kubelet is stopped and swap is on: {node} is dead until {command} mends it.", **words)
    return t("The kubelet is stopped: {node} is dead until {command} starts it in the right order.", **words)


def _way_on(session: Session, walker: Walker) -> str:
    if not walker.run_changed:
        return t("Nothing was changed.")
    if not session.lasts:
        return ""
    return t("{command} looks again and goes on from here.", command=session.words("undo"))


def ending(
    session: Session, walker: Walker, book: Runbook, last: StepResult, verdicts: Verdicts
) -> tuple[ExitStatus, str]:
    """The status of a recovery and the line that says how it ended."""
    if not last.outcome.goes_on:
        step = next((step for step in book.steps if step.id == last.step), None)
        hint = f"{step.if_late}." if step and step.if_late and last.outcome is Outcome.LATE else ""
        line = t("Not recovered: {step}: {why}.", step=last.step, why=last.text.rstrip("."))
        return _STATUS_OF[last.outcome], _sentences(line, hint, _held_note(session, walker))
    if verdicts.node.health is not Health.WELL:
        line = t("Not recovered: {node} is {health}.", node=session.node, health=word(verdicts.node.health))
        return ExitStatus.NOT_IN_TIME, line
    proof, vms = "", ""
    if not verdicts.node.reboot_proof:
        proof = t("Not shown to survive a reboot: {why}.", why=verdicts.node.reboot_text)
    if verdicts.vms.health is VmHealth.WAITING:
        vms = t("VMs: {text}.", text=verdicts.vms.text)
    return ExitStatus.OK, _sentences(t("Recovered: {node} is Ready and stays so.", node=session.node), vms, proof)


def summary(walker: Walker, book: Runbook) -> list[str]:
    """A line for each step that was meant to be walked."""
    style = walker.session.ui.style
    by_step = {result.step: result for result in walker.results}
    lines = []
    for step in book.steps:
        result = by_step.get(step.id)
        if result is None:
            lines.append(f"  {step.id:<18} " + t("not begun"))
        elif result.outcome is not Outcome.LEFT_OUT:
            lines += style.wrap(f"{step.id:<18} {word(result.outcome)} ({duration_s(result.seconds)})", 2)
    return lines


def _held_note(session: Session, walker: Walker) -> str:
    """After an early end the kubelet may be held: say so, since the node stays dead until someone goes on."""
    unit = walker.latest.facts.unit.value
    held = unit is not None and not unit.running and not unit.will_start_by_itself
    if held and walker.run_changed:
        if session.lasts:
            return t(
                "The kubelet is stopped and stays stopped until restart-kubelet has run: {command} goes on from here.",
                command=session.words("resume"),
            )
        return t("The kubelet is stopped and stays stopped until restart-kubelet has run.")
    if not walker.run_changed:
        return t("Nothing was changed.")
    if not session.lasts:
        return ""
    return t("{command} looks again and goes on from here.", command=session.words("resume"))


def reached(walker: Walker) -> str:
    """The workload that was chosen, once the node's label says it; before that, nothing is as announced."""
    node, target = walker.latest.facts.node.value, target_of(walker.answers)
    return target if node is not None and raw_workload(node) == target else ""
