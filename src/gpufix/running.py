"""One walk through a runbook's steps on one node: its journal, its gates, how it ended. Sequencing only.

Shared by a recovery, by going on with one, and by undoing one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpufix import planning
from gpufix.consents import AnswersApprover, Remembering, Request, consent_gaps, require_consents
from gpufix.core.answers import StepConsent
from gpufix.core.conditions import Verdict
from gpufix.core.plan import Decision, Plan
from gpufix.core.plan_data import Given
from gpufix.core.render.mark_text import mark_lines
from gpufix.core.render.plan_text import plan_data_lines
from gpufix.core.render.terminal import plan_lines, stops_lines, verdict_lines
from gpufix.core.runbook import Runbook
from gpufix.core.verdict import Verdicts, judge
from gpufix.endings import ending, ending_of_undo, reached, summary
from gpufix.errors import ExitStatus, GpufixError
from gpufix.gate import Approver, PromptApprover
from gpufix.language import t
from gpufix.model import Diagnosis
from gpufix.record import Listener, Record
from gpufix.runs import Run, next_number
from gpufix.session import Hold, Reading, Session, require_both
from gpufix.text import duration_s, safe
from gpufix.walk import FRESH_SECONDS, Outcome, StepResult, Walker
from gpufix.world.events import EventName
from gpufix.world.interrupts import Interrupts
from gpufix.world.journal import Journal, process_began
from gpufix.world.snapshots import write_snapshot

POLL_SECONDS = 2.0
BUSY_SECONDS = 1800.0
"""How long a step that still runs on the host is waited for: as long as disable-swap.yml waits for swapoff."""


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
    """By the last look: after a walk that is not what was wrong before it."""
    cause_before: str = ""
    """The id of the root cause that the run began with; empty where nothing was walked."""
    made: Mapping[str, Any] | None = None
    changes: tuple[str, ...] = ()
    """What was changed, as short lines."""
    run: str = ""
    """The folder of the run's journal."""

    @property
    def changed(self) -> bool:
        return any(step.changed for step in self.steps)


@dataclass(frozen=True, slots=True)
class Settled:
    """What a look says of a step that was begun and whose end is not on record, or that a person marked done.

    ``outcome``: done | not done | unknown.
    """

    step: str
    outcome: str
    text: str


@dataclass(frozen=True, slots=True)
class Course:
    """What is to be walked, and as which run.

    ``goes_on``: the run whose journal is written on; None for a new one. ``undoes``: the run that is undone, and
    ``only`` the one step of it.
    """

    book: Runbook
    plan: Plan
    given: Mapping[str, Given]
    findings: Mapping[str, str]
    failed_since: datetime | None = None
    goes_on: Run | None = None
    undoes: str = ""
    only: str = ""
    settled: tuple[Settled, ...] = ()
    stays: Mapping[str, str] = field(default_factory=dict)
    """Of an undo: each step of the run that is not undone, and why."""

    @property
    def kind(self) -> str:
        return "undo" if self.undoes else "recover"


def tell(listeners: Sequence[Listener], event: EventName, **fields: Any) -> None:
    for listener in listeners:
        listener.event(event, fields)


def decisions(plan: Plan) -> list[dict[str, str]]:
    return [
        {"step": planned.step.id, "decision": str(planned.decision), "reason": planned.reason} for planned in plan.steps
    ]


def look(session: Session) -> Reading:
    """A first look at both sides. Raises GpufixError (status 7) where one of them cannot be read."""
    session.connect()
    session.ui.progress(t("reading {node}: the cluster and the host", node=session.node))
    reading = session.read()
    require_both(reading)
    session.ui.progress("")
    return reading


@contextmanager
def held(session: Session, reading: Reading) -> Iterator[tuple[Hold, Reading]]:
    """The node held, and a look at it that is not older than the waiting for that: who was waited for may have acted.

    Raises GpufixError: status 8 while another has it.
    """
    began = session.clock.monotonic()
    with session.hold() as hold:
        waited = session.clock.monotonic() - began > FRESH_SECONDS
        yield hold, look(session) if waited else reading


def wait_for_host(session: Session, reading: Reading) -> Reading:
    """A step that a killed run began may go on by itself on the host: it is waited for, never run beside.

    Raises GpufixError (status 4) where it does not end.
    """
    began = session.clock.monotonic()
    while reading.facts.busy.value:
        if session.clock.monotonic() - began > BUSY_SECONDS:
            raise GpufixError(
                t("{work} still runs on {host}", work=reading.facts.busy.value, host=session.host),
                t("look at it there; nothing was changed"),
                ExitStatus.BLOCKED,
            )
        told = t(
            "waiting for what still runs on {host}: {work}, {time}",
            host=session.host,
            work=reading.facts.busy.value,
            time=duration_s(session.clock.monotonic() - began),
        )
        session.ui.progress(told)
        session.clock.sleep(POLL_SECONDS)
        reading = session.read()
    session.ui.progress("")
    return reading


def settled_by(step: str, verdict: Verdict) -> Settled:
    """What ``verdict``, that of a step's post-condition over a fresh look, says of a step that was begun."""
    if verdict.holds:
        return Settled(step, "done", t("found done: {held}", held=held_words(verdict)))
    told = "; ".join(leaf.text for leaf in verdict.open_parts() if leaf.kind == "observation")
    return Settled(step, "unknown" if verdict.holds is None else "not done", t("found not done: {found}", found=told))


def held_words(verdict: Verdict) -> str:
    return "; ".join(leaf.text for leaf in verdict.leaves() if leaf.holds and leaf.kind == "observation")


def present(
    session: Session,
    request: Request,
    plan: Plan,
    given: Mapping[str, Given],
    reading: Reading,
    listeners: Sequence[Listener],
) -> None:
    """Show the plan before its first gate. Without a person at the gates, see first that they will all open.

    Raises GpufixError: status 4, 3 or 2 (``require_consents``).
    """
    ui = session.ui
    marks = planning.others_at(session, reading)
    ui.say(["", *mark_lines(marks, ui.style)] if marks else [])
    at_it = None if request.attended else _who_stops(session, reading)
    if at_it is not None:
        raise GpufixError(
            t("{why}; nothing was changed", why=at_it),
            t("end that first, or decide at a terminal"),
            ExitStatus.BLOCKED,
        )
    ui.say(["", *plan_lines(plan, {name: one.origin for name, one in given.items()}, ui.style)])
    ui.say(stops_lines(plan, ui.style) if request.attended else [])
    tell(listeners, "plan", node=session.node, answers=dict(plan.answers), steps=decisions(plan))
    if not request.attended:
        require_consents(request, plan, reading)


def _who_stops(session: Session, reading: Reading) -> str | None:
    """Why nothing is begun here without a person: another remediator, in the middle of its own work."""
    stops = next((mark for mark in planning.others_at(session, reading) if mark.stops), None)
    if stops is None:
        return None
    return t("somebody else is at {node}: {who}", node=session.node, who=stops.text)


def simply(session: Session, reading: Reading, status: ExitStatus, line: str) -> Result:
    style = session.ui.style
    return Result(
        session.node, status, line, ("", *style.wrap(safe(line))), diagnosis=reading.diagnosis,
        verdicts=judge(reading.facts, reading.diagnosis),
    )  # fmt: skip


def checked(
    session: Session, request: Request, plan: Plan, reading: Reading, verdicts: Verdicts, given: Mapping[str, Given]
) -> Result:
    """The plan with its dry runs, and the status it deserves. With an answers file, the gates that would not open."""
    gaps = consent_gaps(request, plan, reading)
    shut = [*gaps.declined, *gaps.missing]
    told = shut if request.answers is not None else None
    made = planning.make_plan(session, plan, reading, verdicts, given, told, gaps.given)
    blocked = [step["id"] for step in made["steps"] if step["decision"] == Decision.BLOCKED]
    if made["errored"]:
        status, line = ExitStatus.STEP_FAILED, t("The plan has a dry run that failed.")
    elif blocked:
        status = ExitStatus.BLOCKED
        line = t("The plan cannot be applied: {steps} blocked.", steps=", ".join(blocked))
    elif not made["complete"]:
        status, line = ExitStatus.OK, t("A plan, not complete: {why}.", why="; ".join(made["because"]))
    else:
        status, line = ExitStatus.OK, t("The plan can be applied.")
    at_it = None if request.attended else _who_stops(session, reading)
    if (shut or at_it) and status is ExitStatus.OK:
        whys = [*([at_it] if at_it else []), *shut]
        line = t("Without a person it stops before its first change: {consents}.", consents="; ".join(whys))
        ends = ExitStatus.BLOCKED if at_it else gaps.status
        status = ends if request.check else status  # --check ends as the run itself would
    return Result(
        session.node, status, line + " " + t("Nothing was changed."), tuple(plan_data_lines(made, session.ui.style)),
        runbook=plan.runbook.id, answers=given, verdicts=verdicts, diagnosis=reading.diagnosis, made=made,
    )  # fmt: skip


def require_same_node(run: Run, reading: Reading, session: Session) -> None:
    """Raises OtherNode (status 4) where the node is another one than that of ``run``, by the same name."""
    node = reading.facts.node.value
    if node is not None and node.uid != run.node_uid:
        raise OtherNode(
            t(
                "the run {run} was on another node of this name: its uid was {was}, here it is {now}",
                run=run.id,
                was=run.node_uid,
                now=node.uid,
            ),
            t(
                "point --kubeconfig and --context at the cluster of the run; {close}",
                close=close_words(run),
            ),
            ExitStatus.BLOCKED,
        )


class OtherNode(GpufixError):
    """The node is another one than the run's, by the same name."""


def close_words(run: Run) -> str:
    return t("where its node is gone for good, {command} ends it", command=f"gpufix runs close {run.id}")


def close_run(
    session: Session, request: Request, course: Course, hold: Hold, listeners: Sequence[Listener], reading: Reading
) -> Result:
    """End the run that ``course`` would go on with; nothing of the world is changed."""
    walk = _Walk(session, request, course, hold, Interrupts(), tuple(listeners))
    journal = walk.journal()
    record = Record(journal, *listeners)
    try:
        walk.record_start(journal, record, reading)
        line = t("The run {run} is closed: what it did stays as it is. Nothing was changed.", run=journal.folder.name)
        record.write("run-end", exit_status=int(ExitStatus.DECLINED), line=line, verdicts={}, changes=[], closed=True)
    finally:
        journal.close()
    return Result(
        session.node, ExitStatus.DECLINED, line, ("", *session.ui.style.wrap(safe(line))), runbook=course.book.id,
        verdicts=judge(reading.facts, reading.diagnosis), diagnosis=reading.diagnosis, run=str(journal.folder),
    )  # fmt: skip


def walk_course(
    session: Session, request: Request, course: Course, hold: Hold, listeners: Sequence[Listener], reading: Reading
) -> Result:
    """Walk it to its end or to where it stops. The node is held by ``hold`` already.

    Raises GpufixError for what breaks it off: a journal that cannot be written any more, above all.
    """
    notice = t("Stopping after this step, as asked. Once more kills it, and its state will not be known.")
    # from here on Ctrl-C stops after the step; before it, it just ends
    with Interrupts(lambda: session.ui.say(["", *session.ui.style.wrap(notice)])) as interrupts:
        session.runner.kill = lambda: interrupts.kill
        return _Walk(session, request, course, hold, interrupts, tuple(listeners)).walk(reading)


@dataclass(frozen=True, slots=True)
class _Walk:
    session: Session
    request: Request
    course: Course
    hold: Hold
    interrupts: Interrupts
    listeners: tuple[Listener, ...]

    def walk(self, reading: Reading) -> Result:
        session, course = self.session, self.course
        journal = self.journal()
        record = Record(journal, *self.listeners)
        values = {name: one.value for name, one in course.given.items()}
        if self.request.attended:
            asker: Approver = PromptApprover(
                self.request.who, lambda step: record.tell("waiting", step=step, on="gate")
            )
        else:
            asker = AnswersApprover(self.request, session.ui.say)
        approver = Remembering(asker, values)
        try:
            self.record_start(journal, record, reading)
            walker = Walker(
                session, course.book, values, course.findings, record, self.interrupts, reading, approver,
                self.hold.fence, acted_before=self.course.goes_on is not None and self.course.goes_on.history.changed,
            )  # fmt: skip
            last = self._steps(walker)
            with suppress(GpufixError):  # then the last reading is what there is, and it says what was unread
                walker.refresh()
            result = self._judge(walker, last, approver, str(journal.folder), self._began_with(reading))
            record.write(
                "run-end", exit_status=int(result.status), line=result.line,
                verdicts=_verdict_words(result.verdicts), changes=walker.changes,
            )  # fmt: skip
            self._keep_last_look(journal, walker.latest)
            return result
        except BaseException:
            if session.lasts:
                told = t(
                    "The run broke off. What it had done by then is in {journal}; "
                    "{command} looks at the node and goes on.",
                    journal=journal.folder / "run.jsonl",
                    command=session.words("resume"),
                )
            else:
                told = t(
                    "The run broke off. What it had done by then is in {journal}.",
                    journal=journal.folder / "run.jsonl",
                )
            session.ui.say(["", *session.ui.style.wrap(told)])
            raise
        finally:
            journal.close()

    def _keep_last_look(self, journal: Journal, reading: Reading) -> None:
        try:
            _keep_snapshot(journal, "after", reading)
        except GpufixError as error:  # how the run ended stays as it is
            self.session.ui.say([f"  {safe(error.message)}"])

    def journal(self) -> Journal:
        run = self.course.goes_on
        if run is None:
            return Journal.start(self.session.state, self.session.node)
        return Journal.reopen(run.folder, run.history.seq)

    def _steps(self, walker: Walker) -> StepResult:
        steps = self.course.book.steps
        for step in steps:
            result = walker.walk(step)
            if not result.outcome.goes_on:
                break
            if self.interrupts.stop and step is not steps[-1]:
                return StepResult(step.id, Outcome.INTERRUPTED, t("stopped after {step}, as asked", step=step.id))
        return result

    def record_start(self, journal: Journal, record: Record, reading: Reading) -> None:
        session, course, book = self.session, self.course, self.course.book
        node, boot = reading.facts.node.value, reading.facts.boot_id.value
        self.hold.name_run(journal.folder.name)
        beginning = {
            "run": journal.folder.name,
            "node": session.node,
            "node_uid": node.uid if node else None,
            "boot_id": boot,
            "host": session.host,
            "who": self.request.who,
            "pid": os.getpid(),
            "pid_began": process_began(os.getpid()),
            "attended": self.request.attended,
            "lock": self.hold.words,
            "runbook": book.id,
            "runbook_digest": book.digest,
            "root_cause": reading.diagnosis.root_cause.id,
            "plan_digest": self.request.plan["digest"] if self.request.plan is not None else None,
            "answers": {name: {"value": one.value, "origin": one.origin} for name, one in course.given.items()},
            "plan": decisions(course.plan),
        }
        if course.goes_on is not None:
            record.write("resume", **beginning)
            for one in course.settled:
                record.write("settled", step=one.step, outcome=one.outcome, text=one.text)
            _keep_snapshot(journal, "before", reading)
            return
        record.write(
            "run-start",
            **beginning,
            kind=course.kind,
            number=next_number(session.state),
            undoes=course.undoes or None,
            only=course.only or None,
            access=session.access_data(),
        )
        _keep_snapshot(journal, "before", reading)

    def _began_with(self, reading: Reading) -> str:
        """A run that is gone on with keeps the cause that its first look found."""
        first = self.course.goes_on.history.start.get("root_cause") if self.course.goes_on is not None else None
        return first if isinstance(first, str) else reading.diagnosis.root_cause.id

    def _judge(self, walker: Walker, last: StepResult, approver: Remembering, run: str, cause_before: str) -> Result:
        session, style, book = self.session, self.session.ui.style, self.course.book
        verdicts = judge(walker.latest.facts, walker.latest.diagnosis, reached(walker))
        if self.course.undoes:
            status, line = ending_of_undo(session, walker, book, last, verdicts, self.course.undoes, self.course.stays)
        else:
            status, line = ending(session, walker, book, last, verdicts)
        lines = ["", style.paint(t("What was done"), "bold"), *summary(walker, book)]
        for step, why in self.course.stays.items():
            lines += style.wrap(f"{safe(step):<18} " + t("stays as it is: {why}", why=safe(why)), 2, 4)
        lines += ["", *verdict_lines(verdicts, style)]
        colour = "green" if status is ExitStatus.OK else "red"
        lines += [
            "",
            *(style.paint(one, colour, "bold") for one in style.wrap(safe(line))),
            t("Journal: {folder}", folder=run),
        ]
        return Result(
            session.node, status, line, tuple(lines), runbook=book.id, answers=self.course.given,
            steps=tuple(walker.results), consents=approver.as_consents(session.node), verdicts=verdicts,
            failed_since=self.course.failed_since, cause_before=cause_before,
            diagnosis=walker.latest.diagnosis, changes=tuple(walker.changes), run=run,
        )  # fmt: skip


def _keep_snapshot(journal: Journal, name: str, reading: Reading) -> None:
    """Beside the journal; a run that is gone on with has more than one. Raises GpufixError (status 5)."""
    free = (journal.folder / f"{name}{more}" for more in ("", *(f"-{number}" for number in range(2, 1000))))
    try:
        write_snapshot(reading.snapshot, next(folder for folder in free if not folder.exists()))
    except GpufixError as error:
        raise GpufixError(
            t("the snapshot of the run cannot be written: {why}", why=error.message),
            t("free space, or give --state-dir a folder that can be written; nothing was changed"),
            ExitStatus.STEP_FAILED,
        ) from None


def _verdict_words(verdicts: Verdicts | None) -> dict[str, str]:
    return {"node": str(verdicts.node.health), "vms": str(verdicts.vms.health)} if verdicts is not None else {}
