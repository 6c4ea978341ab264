"""resume: a run that stopped, or whose process died, is gone on with. Sequencing only.

The world is looked at first, and the journal is never believed over it: what was begun and has no result is settled by
looking, and each step is decided, shown and agreed to anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpufix import planning
from gpufix.consents import Request
from gpufix.core.actions import actions_of
from gpufix.core.announce import announcements
from gpufix.core.conditions import Verdict, World, evaluate, findings_of
from gpufix.core.invariants import Action
from gpufix.core.plan import Decision, Plan
from gpufix.core.plan_data import Given
from gpufix.core.render.run_text import standing_lines, stopped_lines
from gpufix.core.render.terminal import diagnosis_lines
from gpufix.core.render.words import word
from gpufix.core.run_history import steps_of as steps_on_record
from gpufix.core.run_history import stopped_at, unsettled
from gpufix.core.runbook import NEVER, UNDO, Runbook, RunbookStep
from gpufix.core.undo import parts_of
from gpufix.core.verdict import judge
from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import t
from gpufix.model import Status
from gpufix.record import Listener, Record
from gpufix.running import (
    POLL_SECONDS,
    Course,
    OtherNode,
    Result,
    Settled,
    close_run,
    close_words,
    held,
    held_words,
    look,
    present,
    require_same_node,
    settled_by,
    simply,
    wait_for_host,
    walk_course,
)
from gpufix.runs import Run, close, find_run, list_runs, require_own
from gpufix.session import Hold, NodeGone, Reading, Session
from gpufix.text import safe
from gpufix.undoing import undo_run
from gpufix.world.journal import Journal
from gpufix.world.prompts import Interrupted, Option


def resume(session: Session, request: Request, run: Run, listeners: Sequence[Listener] = ()) -> Result:
    """Go on with ``run``. Raises GpufixError for what stops it before the first change."""
    try:
        reading = look(session)
        require_same_node(run, reading, session)
    except (NodeGone, OtherNode) as error:
        return _offer_to_close(session, request, run, error)
    with held(session, reading) as (hold, reading):
        verdicts = judge(reading.facts, reading.diagnosis)
        session.ui.say(diagnosis_lines(reading.diagnosis, verdicts, None, session.ui.style, offer=False))
        result = take_up(session, request, run, reading, hold, listeners)
    assert result is not None  # only a recovery may start anew
    return result


def _offer_to_close(session: Session, request: Request, run: Run, error: GpufixError) -> Result:
    """Its node is not there, so that nothing but closing it is left. Raises ``error`` where nobody can be asked."""
    if not request.attended:
        raise GpufixError(error.message, f"{error.hint} {close_words(run)}".strip(), error.exit_status)
    ui, node = session.ui, session.node
    ui.say(ui.style.wrap(t("It cannot be gone on with: {why}.", why=safe(error.message))))
    ui.say(
        ui.style.wrap(
            t(
                "Where that is the wrong cluster, quit, and point --kubeconfig and --context at the right one. "
                "Where the node is gone for good, close the run."
            )
        )
    )
    options = [
        Option("quit", t("quit, and decide later")),
        Option("close", t("close it: what it did stays as it is")),
    ]
    try:
        choice = ui.ask_choice(t("The run {run}:", run=run.id), options, "quit")
    except Interrupted:
        choice = "quit"
    line = close(run, request.who) if choice == "close" else t("Left as it is. Nothing was changed.")
    return Result(node, ExitStatus.DECLINED, line, ("", *ui.style.wrap(safe(line))))


def take_up(
    session: Session,
    request: Request,
    run: Run,
    reading: Reading,
    hold: Hold,
    listeners: Sequence[Listener],
    anew: bool = False,
) -> Result | None:
    """Say where ``run`` stands, ask what is to become of it (unattended: it goes on), and do that.

    None: it is closed and a new run is wanted, which only ``anew`` offers.
    """
    try:
        run = _still_open(session, run)
        reading = wait_for_host(session, reading)
        if run.history.kind == "undo":
            return _take_up_undo(session, request, run, reading, hold, listeners, anew)
        return _TakenUp(session, request, run, hold, tuple(listeners), anew).go(reading)
    except Interrupted:
        return simply(session, reading, ExitStatus.INTERRUPTED, t("Interrupted. Nothing was changed."))


def _still_open(session: Session, run: Run) -> Run:
    """The run as it is now that the node is ours: somebody may have gone on with it while the lock was waited for."""
    fresh = find_run(session.state, run.id)
    require_own(fresh)
    if fresh.is_open:
        return fresh
    raise GpufixError(
        t("the run {run} is {state} by now: somebody else went on with it", run=run.id, state=word(fresh.state)),
        t("{command}; nothing was changed", command=f"gpufix runs show {run.id}"),
        ExitStatus.LOCKED,
    )


def _take_up_undo(
    session: Session,
    request: Request,
    run: Run,
    reading: Reading,
    hold: Hold,
    listeners: Sequence[Listener],
    anew: bool,
) -> Result | None:
    """An undo that cannot be brought to its end must not keep the node from being recovered: it can be closed."""
    ui = session.ui
    told = t("The run {run} was undoing {other} and stopped half-way.", run=safe(run.id), other=safe(run.of))
    ui.say(["", *ui.style.wrap(told)])
    ui.say(standing_lines(reading.facts, ui.style))
    if not request.attended:
        raise GpufixError(
            t("the last run of {node}, {run}, is an undo that stopped half-way", node=session.node, run=run.id),
            t("finish or close it at a terminal: {command}", command=f"gpufix resume {run.id}"),
            ExitStatus.BLOCKED,
        )
    of, problem = _undone_run(session, run)
    if problem:
        ui.say(ui.style.wrap(t("It cannot be gone on with: {why}.", why=safe(problem)), 2, 4))
    options = [] if problem else [Option("on", t("go on with undoing it"))]
    options.append(Option("close", t("close it: what it put back and what it did not stays as it is")))
    if anew:
        options.append(Option("new", t("close it and begin a recovery")))
    options.append(Option("quit", t("quit, and decide later")))
    choice = ui.ask_choice(t("The run {run}:", run=run.id), options, options[0].value)
    if choice == "quit":
        return simply(session, reading, ExitStatus.DECLINED, t("Left as it is. Nothing was changed."))
    only = str(run.history.start.get("only") or "")
    if choice == "on" and of is not None:
        return undo_run(session, request, of, only, reading, hold, listeners, goes_on=run)
    book = _no_book(UNDO)
    plan = planning.decide(book, session.node, reading, {})
    course = Course(book, plan, {}, {}, goes_on=run, undoes=run.of, only=only)
    closed = close_run(session, request, course, hold, listeners, reading)
    return None if choice == "new" else closed


def _undone_run(session: Session, run: Run) -> tuple[Run | None, str]:
    """The run that ``run`` undoes, and why that cannot be gone on with."""
    of = next((one for one in list_runs(session.state, session.node) if one.id == run.of), None)
    if of is None:
        return None, t("the run {run}, which it undoes, is gone", run=run.of)
    if of.node_uid != run.node_uid:
        return of, t("the run {run}, which it undoes, was on another node of this name", run=of.id)
    return of, run.history.damage or of.history.damage


def _no_book(named: str) -> Runbook:
    """Stands for a runbook that is not here."""
    return Runbook(named, "", "", NEVER, (), ())


@dataclass(frozen=True, slots=True)
class _TakenUp:
    session: Session
    request: Request
    run: Run
    hold: Hold
    listeners: tuple[Listener, ...]
    anew: bool

    def go(self, reading: Reading) -> Result | None:
        session, style = self.session, self.session.ui.style
        book, problem = self._book()
        given = self._given()
        values = {name: one.value for name, one in given.items()}
        findings = {
            **findings_of(reading.diagnosis),
            str(self.run.history.start.get("root_cause")): str(Status.CONFIRMED),
        }
        reading, settled = self._settle(reading, book, values, findings)
        found = [(one.step, one.outcome, one.text) for one in settled]
        session.ui.say(["", *stopped_lines(self.run.id, self.run.history, found, style)])
        session.ui.say(standing_lines(reading.facts, style))
        plan = planning.decide(book, session.node, reading, values)
        problem = self.run.history.damage or problem or _why_not_answers(book, given)
        course = Course(book, plan, given, findings, reading.diagnosis.down_since, goes_on=self.run, settled=settled)
        while True:
            choice = self._choose(course, problem or _why_not_on(book, course.plan, reading, self._stands_at(course)))
            if choice == "done":
                course, reading = self._mark_done(course, reading)
                continue
            return self._carry_out(choice, course, reading)

    def _carry_out(self, choice: str, course: Course, reading: Reading) -> Result | None:
        session, request = self.session, self.request
        if choice == "quit":
            return simply(session, reading, ExitStatus.DECLINED, t("Left as it is. Nothing was changed."))
        if choice == "undo":
            return undo_run(session, request, _run_of(course), "", reading, self.hold, self.listeners)
        if choice in ("close", "new"):
            closed = close_run(session, request, course, self.hold, self.listeners, reading)
            return None if choice == "new" else closed
        told = announcements(reading.facts, course.plan.answers)
        session.ui.say(["", *(line for text in told for line in session.ui.style.wrap(safe(text)))] if told else [])
        present(session, request, course.plan, course.given, reading, self.listeners)
        return walk_course(session, request, course, self.hold, self.listeners, reading)

    # --- what is known of it ---

    def _book(self) -> tuple[Runbook, str]:
        """The run's runbook, and why it cannot be gone on with by it."""
        start, request = self.run.history.start, self.request
        named_by = [request.answers.runbook_id] if request.answers is not None else []
        named_by += [str(request.plan["runbook"]["id"])] if request.plan is not None else []
        if strange := [name for name in named_by if name != start.get("runbook")]:
            raise GpufixError(
                t(
                    "what was given is for the runbook {other}, but the run {run} is unfinished and is of {runbook}",
                    other=strange[0],
                    run=self.run.id,
                    runbook=start.get("runbook"),
                ),
                self._first(),
                ExitStatus.BLOCKED,
            )
        found = next((book for book in self.request.books if book.id == start.get("runbook")), None)
        if found is None:
            named = safe(str(start.get("runbook")))
            return _no_book(named), t("its runbook {runbook} is not here (--runbooks)", runbook=named)
        changed = found.digest != start.get("runbook_digest")
        return found, t("its runbook {runbook} was changed since it began", runbook=found.id) if changed else ""

    def _first(self) -> str:
        return t(
            "go on with it ({resume}) or undo it ({undo}) first",
            resume=self.session.words("resume"),
            undo=self.session.words("undo"),
        )

    def _given(self) -> dict[str, Given]:
        """The answers of the run. Raises GpufixError (status 4) where this command was given others."""
        recorded = self.run.history.start.get("answers")
        given = {}
        for name, one in recorded.items() if isinstance(recorded, Mapping) else ():
            value = str(one.get("value")) if isinstance(one, Mapping) else str(one)
            given[str(name)] = Given(value, t("the run {run}", run=self.run.id))
        for name, other in self.request.given.items():
            if name in given and given[name].value != other.value:
                raise GpufixError(
                    t(
                        "{origin}: {question} is {answer}, but the run {run} is unfinished and was begun with {other}",
                        origin=other.origin,
                        question=name,
                        answer=other.value,
                        run=self.run.id,
                        other=given[name].value,
                    ),
                    self._first(),
                    ExitStatus.BLOCKED,
                )
        return given

    def _stands_at(self, course: Course) -> str:
        """The step at which it stopped and that was not found done since; empty where there is none."""
        at = stopped_at(_run_of(course).history)
        done = {one.step for one in course.settled if one.outcome == "done"}
        return at.step if at is not None and at.step not in done else ""

    # --- looking ---

    def _settle(
        self, reading: Reading, book: Runbook, answers: Mapping[str, str], findings: Mapping[str, str]
    ) -> tuple[Reading, tuple[Settled, ...]]:
        """What a look says of the steps that were begun and have no result. A started kubelet gets its time."""
        settled = []
        for name in unsettled(steps_on_record(self.run.history)):
            step = next((step for step in book.steps if step.id == name), None)
            if step is None:
                settled.append(Settled(name, "unknown", t("its runbook does not say how it would show")))
                continue

            def judged(seen: Reading, step: RunbookStep = step) -> Verdict:
                return evaluate(step.done_when, World(seen.facts, answers, findings))

            if Action.START_KUBELET in actions_of(step.playbook):
                reading = self._give_time(reading, step, judged)
            settled.append(settled_by(name, judged(reading)))
        return reading, tuple(settled)

    def _give_time(self, reading: Reading, step: RunbookStep, judged: Callable[[Reading], Verdict]) -> Reading:
        session, began = self.session, self.session.clock.monotonic()
        while not judged(reading).holds and _is_up(reading) and session.clock.monotonic() - began < step.timeout:
            session.ui.progress(t("{step} was begun; waiting to see what comes of it", step=step.id))
            session.clock.sleep(POLL_SECONDS)
            reading = session.read()
        session.ui.progress("")
        return reading

    # --- asking ---

    def _choose(self, course: Course, problem: str) -> str:
        if not self.request.attended:
            if problem:
                raise GpufixError(
                    t("the run {run} is unfinished and cannot be gone on with: {why}", run=self.run.id, why=problem),
                    t("at a terminal it can be undone or closed: {command}", command=self.session.words("resume")),
                    ExitStatus.BLOCKED,
                )
            return "on"
        ui, at = self.session.ui, self._stands_at(course)
        if problem:
            ui.say(ui.style.wrap(t("It cannot be gone on with: {why}.", why=safe(problem)), 2, 4))
        on = t("go on: {step}, and the rest", step=at) if at else t("go on with the rest")
        options = [] if problem else [Option("on", on)]
        if at and not problem and any(step.id == at for step in course.book.steps):
            options.append(Option("done", t("mark {step} done by hand (only if it shows)", step=at)))
        undoable = any(not part.left for part in parts_of(_run_of(course).history, self.run.node_uid))
        if undoable and not self.run.history.damage:
            options.append(Option("undo", t("undo what it changed, the newest step first")))
        options.append(Option("close", t("close it: what it did stays as it is")))
        if self.anew:
            options.append(Option("new", t("close it and begin a new one")))
        options.append(Option("quit", t("quit, and decide later")))
        return ui.ask_choice(t("The run {run}:", run=self.run.id), options, options[0].value)

    def _mark_done(self, course: Course, reading: Reading) -> tuple[Course, Reading]:
        """Done by hand: believed only where it shows, and then on record at once, whatever is chosen next."""
        session, ui, at = self.session, self.session.ui, self._stands_at(course)
        step = next(step for step in course.book.steps if step.id == at)
        fresh = session.read()
        verdict = evaluate(step.done_when, World(fresh.facts, course.plan.answers, course.findings))
        if not verdict.holds:
            told = "; ".join(leaf.text for leaf in verdict.open_parts())
            told = t("{step} is not done: {found}. Nothing was marked.", step=at, found=safe(told))
            ui.say(ui.style.wrap(told, 2, 4))
            return course, reading
        told = t("marked done by hand by {who}; {held}", who=self.request.who, held=held_words(verdict))
        run = _run_of(course)
        journal = Journal.reopen(run.folder, run.history.seq)
        try:
            Record(journal, *self.listeners).write(
                "settled", step=at, outcome="done", text=told, by_hand=True, who=self.request.who
            )
        finally:
            journal.close()
        ui.say(ui.style.wrap(f"{at}: {safe(told)}", 2, 4))
        others = tuple(one for one in course.settled if one.step != at)
        plan = planning.decide(course.book, session.node, fresh, course.plan.answers)
        return replace(course, plan=plan, goes_on=find_run(session.state, run.id), settled=others), fresh


def _run_of(course: Course) -> Run:
    assert course.goes_on is not None
    return course.goes_on


def _is_up(reading: Reading) -> bool:
    unit = reading.facts.unit.value
    return unit is not None and (unit.running or unit.active_state == "activating")


def _why_not_answers(book: Runbook, given: Mapping[str, Given]) -> str:
    """Why the answers of the run cannot be those of ``book``; empty where they can."""
    for question in book.questions:
        one = given.get(question.id)
        if one is None:
            return t("its journal does not say what was answered to {question}", question=question.id)
        if one.value not in [choice.value for choice in question.choices]:
            return t(
                "{answer}, which its journal has for {question}, is none of the choices",
                answer=repr(one.value),
                question=question.id,
            )
    return ""


def _why_not_on(book: Runbook, plan: Plan, reading: Reading, at: str) -> str:
    """A run goes on where its runbook still fits, where nothing is left but to look, or from a kubelet's start."""
    if evaluate(book.fits, World(reading.facts, {}, findings_of(reading.diagnosis))).holds:
        return ""
    if all(planned.decision not in (Decision.RUN, Decision.BLOCKED) for planned in plan.steps):
        return ""
    step = next((step for step in book.steps if step.id == at), None)
    if step is not None and (not step.playbook or Action.START_KUBELET in actions_of(step.playbook)):
        return ""
    cause = reading.diagnosis.root_cause
    return t("what ails the node now is {cause}, and {runbook} is not for that", cause=cause.id, runbook=book.id)
