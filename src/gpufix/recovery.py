"""recover: diagnose, answer, plan, walk and judge, with a person at the prompt or without one. Sequencing only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpufix import planning
from gpufix.consents import AnswersApprover, Remembering, Request, consent_gaps, require_consents
from gpufix.core.announce import announcements
from gpufix.core.answers import ASKED, DEFAULT, StepConsent
from gpufix.core.basis import moved
from gpufix.core.conditions import World, evaluate, findings_of
from gpufix.core.plan import Decision, Plan, target_of
from gpufix.core.plan_data import Given, basis_from
from gpufix.core.render.plan_text import plan_data_lines
from gpufix.core.render.terminal import diagnosis_lines, plan_lines, stops_lines, verdict_lines
from gpufix.core.runbook import Question, Runbook
from gpufix.core.verdict import Health, Verdicts, VmHealth, judge
from gpufix.core.workload import raw_workload
from gpufix.errors import ExitStatus, GpufixError
from gpufix.gate import Approver, PromptApprover
from gpufix.model import Diagnosis, Status
from gpufix.record import Listener, Record
from gpufix.session import Reading, Session, require_both
from gpufix.text import duration_s, safe
from gpufix.walk import Outcome, StepResult, Walker
from gpufix.world.events import EventName
from gpufix.world.interrupts import Interrupts
from gpufix.world.journal import Journal, process_began
from gpufix.world.prompts import Interrupted, Option
from gpufix.world.snapshots import write_snapshot


def fitting(runbooks: Sequence[Runbook], reading: Reading) -> Runbook | None:
    """The first runbook whose ``fits`` surely holds. Unknown does not fit."""
    world = World(reading.facts, {}, findings_of(reading.diagnosis))
    return next((book for book in runbooks if evaluate(book.fits, world).holds), None)


@dataclass(frozen=True, slots=True)
class Result:
    """How it ended. ``lines``: the answer, for people. ``made``: the plan's data, where one was made."""

    node: str
    status: ExitStatus
    line: str
    lines: tuple[str, ...] = ()
    runbook: str = ""
    answers: Mapping[str, Given] = field(default_factory=dict)
    steps: tuple[StepResult, ...] = ()
    consents: Mapping[str, bool | str | StepConsent] = field(default_factory=dict)
    """What was agreed to at the gates, as an answers file has it."""
    failed_since: datetime | None = None
    """When the failure began that this is about."""
    verdicts: Verdicts | None = None
    diagnosis: Diagnosis | None = None
    made: Mapping[str, Any] | None = None
    changes: tuple[str, ...] = ()
    """What was changed, as short lines."""
    run: str = ""
    """The folder of the run's journal."""

    @property
    def changed(self) -> bool:
        return any(step.changed for step in self.steps)


def recover(session: Session, request: Request, listeners: Sequence[Listener] = ()) -> Result:
    """Raises GpufixError for what stops it before the first change."""
    ui = session.ui
    reading = _look(session)
    if request.plan is not None:
        _require_unmoved(request, session, reading)
    book = fitting(request.books, reading)
    verdicts = judge(reading.facts, reading.diagnosis)
    ui.say(diagnosis_lines(reading.diagnosis, verdicts, book.id if book else None, ui.style, offer=book is None))
    _tell(
        listeners, "diagnosis", node=session.node, root_cause=reading.diagnosis.root_cause.id,
        status=str(reading.diagnosis.root_cause.status), runbook=book.id if book else None,
    )  # fmt: skip
    if book is None:
        return _nothing_to_walk(session, reading, verdicts)
    _require_same_runbook(request, book, session.node)
    ui.say(["", ui.style.paint(book.title, "bold"), *ui.style.wrap(book.summary, 2)])
    try:
        given = _answers(session, request, book)
    except Interrupted:
        return _simply(session, reading, ExitStatus.INTERRUPTED, "Interrupted. Nothing was changed.")
    values = {name: one.value for name, one in given.items()}
    told = announcements(reading.facts, values)
    ui.say(["", *(line for text in told for line in ui.style.wrap(safe(text)))] if told else [])
    plan = planning.decide(book, session.node, reading, values)
    _require_as_planned(request, plan)
    if request.check:
        checked = _checked(session, request, plan, reading, verdicts, given)
        _tell(listeners, "plan", node=session.node, answers=values, plan=checked.made)
        return checked
    ui.say(["", *plan_lines(plan, {name: one.origin for name, one in given.items()}, ui.style)])
    ui.say(stops_lines(plan, ui.style) if request.attended else [])
    _tell(listeners, "plan", node=session.node, answers=values, steps=_decisions(plan))
    if not request.attended:
        require_consents(request, plan, reading)
    notice = "Stopping after this step, as asked. Once more kills it, and its state will not be known."
    since = reading.diagnosis.down_since
    with Interrupts(lambda: ui.say(["", notice])) as interrupts:  # from the first gate on; before it, Ctrl-C just ends
        session.runner.kill = lambda: interrupts.kill
        return _Run(session, request, interrupts, book, plan, given, tuple(listeners), since).walk(reading)


def plan(session: Session, request: Request) -> Result:
    """The plan of a recovery, with the dry runs that can be made. Nothing is changed and nobody is asked."""
    reading = _look(session)
    book = fitting(request.books, reading)
    verdicts = judge(reading.facts, reading.diagnosis)
    if book is None:
        return _nothing_to_walk(session, reading, verdicts)
    _require_same_runbook(request, book, session.node)
    given = _assumed(book.questions, request.given)
    decided = planning.decide(book, session.node, reading, {name: one.value for name, one in given.items()})
    return _checked(session, request, decided, reading, verdicts, given)


def _look(session: Session) -> Reading:
    session.connect()
    session.ui.progress(f"reading {session.node}: the cluster and the host")
    reading = session.read()
    require_both(reading)
    session.ui.progress("")
    return reading


def _tell(listeners: Sequence[Listener], event: EventName, **fields: Any) -> None:
    for listener in listeners:
        listener.event(event, fields)


def _decisions(plan: Plan) -> list[dict[str, str]]:
    return [
        {"step": planned.step.id, "decision": str(planned.decision), "reason": planned.reason} for planned in plan.steps
    ]


# --- where it ends before it begins ----------------------------------------------------------------------------------


def _simply(session: Session, reading: Reading, status: ExitStatus, line: str) -> Result:
    style = session.ui.style
    return Result(
        session.node, status, line, ("", *style.wrap(safe(line))), diagnosis=reading.diagnosis,
        verdicts=judge(reading.facts, reading.diagnosis),
    )  # fmt: skip


def _nothing_to_walk(session: Session, reading: Reading, verdicts: Verdicts) -> Result:
    cause, node = reading.diagnosis.root_cause, session.node
    if verdicts.node.health is Health.WELL and verdicts.node.reboot_proof is False:
        line = f"{node} is well now and does not survive a reboot: {verdicts.node.reboot_text}. "
        return _simply(session, reading, ExitStatus.DECLINED, line + "No runbook changes that; nothing was changed.")
    if verdicts.node.health is Health.WELL and cause.id == "healthy" and cause.status is Status.CONFIRMED:
        return _simply(session, reading, ExitStatus.OK, f"{node} is well: nothing to do, nothing was changed.")
    if verdicts.node.health is Health.WELL:
        status = ExitStatus.OK if verdicts.vms.health is not VmHealth.WAITING else ExitStatus.DECLINED
        line = f"{node} itself is well; no runbook changes what is left. Nothing was changed."
        return _simply(session, reading, status, line)
    return _simply(session, reading, ExitStatus.DECLINED, f"No runbook fits {cause.id} on {node}. Nothing was changed.")


def _require_unmoved(request: Request, session: Session, reading: Reading) -> None:
    """Raises GpufixError (status 4) naming every fact of the plan that is another one now."""
    assert request.plan is not None
    named = request.plan["runbook"]["id"]
    book = next((book for book in request.books if book.id == named), None)
    if book is None:
        raise GpufixError(f"the plan is of the runbook {named!r}, which is not here", "give its folder with --runbooks")
    if found := moved(basis_from(request.plan), planning.basis(reading, book)):
        raise GpufixError(
            "the plan is stale, nothing was changed: " + "; ".join(map(str, found)),
            f"look at it, then make a new plan: gpufix plan {session.node} --out FILE",
            ExitStatus.BLOCKED,
        )


def _require_same_runbook(request: Request, book: Runbook, node: str) -> None:
    """Raises GpufixError: status 4 for a plan of another runbook, 2 for answers to questions that ``book`` has not."""
    if request.plan is not None and request.plan["runbook"]["id"] != book.id:
        raise GpufixError(
            f"the plan is of the runbook {request.plan['runbook']['id']}, but what fits {node} now is {book.id}",
            f"make a new plan: gpufix plan {node} --out FILE",
            ExitStatus.BLOCKED,
        )
    strange = sorted(set(request.given) - {question.id for question in book.questions})
    if strange and request.answers is None:
        origin = request.given[strange[0]].origin
        raise GpufixError(f"{origin}: {book.id}, which fits {node}, has no question {strange[0]!r}", "leave it out")
    if request.answers is not None and request.answers.runbook_id != book.id:
        raise GpufixError(
            f"{request.answers.file} answers the runbook {request.answers.runbook_id}, "
            f"but what fits {node} now is {book.id}",
            f"gpufix answers {book.id} --node {node} writes a sample for it",
        )


def _require_as_planned(request: Request, plan: Plan) -> None:
    """Raises GpufixError (status 4) where a step is decided otherwise than the plan's reader saw it."""
    if request.plan is None:
        return
    for planned, step in zip(plan.steps, request.plan["steps"], strict=True):  # the runbook's digest is the same
        was = _decided(step["decision"], step["destructive"])
        now = _decided(str(planned.decision), planned.destructive)
        if was != now:
            raise GpufixError(
                f"the plan is stale, nothing was changed: {planned.step.id}: was {was}, is {now} ({planned.reason})",
                f"look at it, then make a new plan: gpufix plan {plan.node} --out FILE",
                ExitStatus.BLOCKED,
            )


def _decided(decision: str, destructive: bool) -> str:
    return f"{decision} [destructive]" if destructive else decision


# --- answers and consents --------------------------------------------------------------------------------------------


def _assumed(questions: Sequence[Question], given: Mapping[str, Given]) -> dict[str, Given]:
    """Every question answered, with the runbook's default where nobody did."""
    return {
        question.id: given.get(question.id) or Given(question.default, str(DEFAULT), assumed=True)
        for question in questions
    }


def _answers(session: Session, request: Request, book: Runbook) -> dict[str, Given]:
    """The answers of a run: those known beforehand, and for the rest a person is asked. Raises Interrupted."""
    if request.check or not request.attended:
        return _assumed(book.questions, request.given)
    answers: dict[str, Given] = {}
    for question in book.questions:
        known = request.given.get(question.id)
        answers[question.id] = known or Given(_ask(session, question), str(ASKED))
    return answers


def _ask(session: Session, question: Question) -> str:
    ui = session.ui
    lines = ["", ui.style.paint(question.ask, "bold")]
    for choice in question.choices:
        lines += ui.style.wrap(f"{choice.value}: {choice.consequence}", 2, 4)
    ui.say(lines)
    options = [
        Option(
            choice.value, f"{choice.value}: {choice.label}" + (" (default)" if choice.value == question.default else "")
        )
        for choice in question.choices
    ]
    return ui.ask_choice(question.ask, options, question.default)


# --- plan only -------------------------------------------------------------------------------------------------------


def _checked(
    session: Session, request: Request, plan: Plan, reading: Reading, verdicts: Verdicts, given: Mapping[str, Given]
) -> Result:
    """The plan with its dry runs, and the status it deserves. With an answers file, the gates that would not open."""
    gaps = consent_gaps(request, plan, reading)
    shut = [*gaps.declined, *gaps.missing]
    made = planning.make_plan(session, plan, reading, verdicts, given, shut if request.answers is not None else None)
    blocked = [step["id"] for step in made["steps"] if step["decision"] == Decision.BLOCKED]
    if made["errored"]:
        status, line = ExitStatus.STEP_FAILED, "The plan has a dry run that failed."
    elif blocked:
        status, line = ExitStatus.BLOCKED, f"The plan cannot be applied: {', '.join(blocked)} blocked."
    elif not made["complete"]:
        status, line = ExitStatus.OK, "A plan, not complete: " + "; ".join(made["because"]) + "."
    else:
        status, line = ExitStatus.OK, "The plan can be applied."
    if shut and status is ExitStatus.OK:
        line = f"Without a person it stops before its first change: {'; '.join(shut)}."
        status = gaps.status if request.check else status  # --check ends as the run itself would
    return Result(
        session.node, status, f"{line} Nothing was changed.", tuple(plan_data_lines(made, session.ui.style)),
        runbook=plan.runbook.id, answers=given, verdicts=verdicts, diagnosis=reading.diagnosis, made=made,
    )  # fmt: skip


# --- the walk --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    session: Session
    request: Request
    interrupts: Interrupts
    book: Runbook
    plan: Plan
    given: Mapping[str, Given]
    listeners: tuple[Listener, ...]
    failed_since: datetime | None

    def walk(self, reading: Reading) -> Result:
        session, book = self.session, self.book
        journal = Journal.start(session.node)
        record = Record(journal, *self.listeners)
        values = {name: one.value for name, one in self.given.items()}
        if self.request.attended:
            asker: Approver = PromptApprover(
                self.request.who, lambda step: record.tell("waiting", step=step, on="gate")
            )
        else:
            asker = AnswersApprover(self.request, session.ui.say)
        approver = Remembering(asker, values)
        try:
            self._record_start(journal, record, reading)
            findings = findings_of(reading.diagnosis)
            walker = Walker(session, book, values, findings, record, self.interrupts, reading, approver)
            last = self._steps(walker)
            with suppress(GpufixError):  # then the last reading is what there is, and it says what was unread
                walker.refresh()
            result = self._judge(walker, last, approver, str(journal.folder))
            record.write(
                "run-end", exit_status=int(result.status), line=result.line,
                verdicts=_verdict_words(result.verdicts), changes=walker.changes,
            )  # fmt: skip
            _keep_snapshot(journal, "after", walker.latest)
            return result
        except BaseException:
            session.ui.say(["", f"The run broke off. What it had done by then is in {journal.folder / 'run.jsonl'}."])
            raise
        finally:
            journal.close()

    def _steps(self, walker: Walker) -> StepResult:
        for step in self.book.steps:
            result = walker.walk(step)
            if not result.outcome.goes_on:
                break
            if self.interrupts.stop and step is not self.book.steps[-1]:
                return StepResult(step.id, Outcome.INTERRUPTED, f"stopped after {step.id}, as asked")
        return result

    def _record_start(self, journal: Journal, record: Record, reading: Reading) -> None:
        session, book = self.session, self.book
        node, boot = reading.facts.node.value, reading.facts.boot_id.value
        record.write(
            "run-start",
            run=journal.folder.name,
            node=session.node,
            node_uid=node.uid if node else None,
            boot_id=boot,
            host=session.host,
            who=self.request.who,
            pid=os.getpid(),
            pid_began=process_began(os.getpid()),
            attended=self.request.attended,
            runbook=book.id,
            runbook_digest=book.digest,
            plan_digest=self.request.plan["digest"] if self.request.plan is not None else None,
            root_cause=reading.diagnosis.root_cause.id,
            answers={name: {"value": one.value, "origin": one.origin} for name, one in self.given.items()},
            plan=_decisions(self.plan),
        )
        _keep_snapshot(journal, "before", reading)

    def _judge(self, walker: Walker, last: StepResult, approver: Remembering, run: str) -> Result:
        session, style = self.session, self.session.ui.style
        verdicts = judge(walker.latest.facts, walker.latest.diagnosis, _reached(walker))
        status, line = _ending(session, walker, self.book, last, verdicts)
        lines = ["", style.paint("What was done", "bold"), *_summary(walker, self.book)]
        lines += ["", *verdict_lines(verdicts, style)]
        colour = "green" if status is ExitStatus.OK else "red"
        lines += ["", *(style.paint(one, colour, "bold") for one in style.wrap(safe(line))), f"Journal: {run}"]
        return Result(
            session.node, status, line, tuple(lines), runbook=self.book.id, answers=self.given,
            steps=tuple(walker.results), consents=approver.as_consents(session.node), verdicts=verdicts,
            failed_since=self.failed_since,
            diagnosis=walker.latest.diagnosis, changes=tuple(walker.changes), run=run,
        )  # fmt: skip


def _reached(walker: Walker) -> str:
    """The workload that was chosen, once the node's label says it; before that, nothing is as announced."""
    node, target = walker.latest.facts.node.value, target_of(walker.answers)
    return target if node is not None and raw_workload(node) == target else ""


def _keep_snapshot(journal: Journal, name: str, reading: Reading) -> None:
    write_snapshot(reading.snapshot, journal.folder / name)


def _verdict_words(verdicts: Verdicts | None) -> dict[str, str]:
    return {"node": str(verdicts.node.health), "vms": str(verdicts.vms.health)} if verdicts is not None else {}


_STATUS_OF = {
    Outcome.QUIT: ExitStatus.DECLINED,
    Outcome.BLOCKED: ExitStatus.BLOCKED,
    Outcome.FAILED: ExitStatus.STEP_FAILED,
    Outcome.UNREACHABLE: ExitStatus.UNREACHABLE,
    Outcome.LATE: ExitStatus.NOT_IN_TIME,
    Outcome.INTERRUPTED: ExitStatus.INTERRUPTED,
    Outcome.NO_CONSENT: ExitStatus.USAGE,
}


def _ending(
    session: Session, walker: Walker, book: Runbook, last: StepResult, verdicts: Verdicts
) -> tuple[ExitStatus, str]:
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


def _summary(walker: Walker, book: Runbook) -> list[str]:
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
        return (
            " The kubelet is stopped and stays stopped until restart-kubelet has run: "
            f"{session.again} goes on from here."
        )
    if not any(result.changed for result in walker.results):
        return " Nothing was changed."
    return f" {session.again} looks again and goes on from here."
