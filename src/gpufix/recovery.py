"""recover: diagnose, answer, plan, walk and judge, with a person at the prompt or without one. Sequencing only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpufix import planning
from gpufix.consents import Request
from gpufix.core.announce import announcements
from gpufix.core.answers import ASKED, DEFAULT
from gpufix.core.basis import moved
from gpufix.core.conditions import World, evaluate, findings_of
from gpufix.core.plan import Plan
from gpufix.core.plan_data import Given, basis_from
from gpufix.core.render.terminal import destructive_words, diagnosis_lines
from gpufix.core.render.words import word
from gpufix.core.runbook import Question, Runbook
from gpufix.core.verdict import Health, Verdicts, VmHealth, judge
from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import t
from gpufix.model import Status
from gpufix.record import Listener
from gpufix.resuming import take_up
from gpufix.running import Course, Result, checked, held, look, present, simply, tell, walk_course
from gpufix.runs import Run, open_run
from gpufix.session import Hold, Reading, Session
from gpufix.text import safe
from gpufix.world.prompts import Interrupted, Option


def fitting(runbooks: Sequence[Runbook], reading: Reading) -> Runbook | None:
    """The first runbook whose ``fits`` surely holds. Unknown does not fit."""
    world = World(reading.facts, {}, findings_of(reading.diagnosis))
    return next((book for book in runbooks if evaluate(book.fits, world).holds), None)


def recover(session: Session, request: Request, listeners: Sequence[Listener] = ()) -> Result:
    """Raises GpufixError for what stops it before the first change."""
    reading = look(session)
    if request.plan is not None:
        _require_unmoved(request, session, reading)
    changes = fitting(request.books, reading) is not None or _stopped(session, reading) is not None
    if request.check or not changes:
        return _recover(session, request, reading, None, listeners)
    with held(session, reading) as (hold, seen):  # before a word of the diagnosis: who has the node is what counts
        if request.plan is not None and seen is not reading:
            _require_unmoved(request, session, seen)
        return _recover(session, request, seen, hold, listeners)


def _stopped(session: Session, reading: Reading) -> Run | None:
    node = reading.facts.node.value
    return open_run(session.state, session.node, node.uid if node else "")


def _recover(
    session: Session, request: Request, reading: Reading, hold: Hold | None, listeners: Sequence[Listener]
) -> Result:
    """``hold`` None: nothing is walked."""
    ui = session.ui
    book, stopped = fitting(request.books, reading), _stopped(session, reading)
    verdicts = judge(reading.facts, reading.diagnosis)
    offer = book is None and stopped is None
    ui.say(diagnosis_lines(reading.diagnosis, verdicts, book.id if book else None, ui.style, offer=offer))
    tell(
        listeners, "diagnosis", node=session.node, root_cause=reading.diagnosis.root_cause.id,
        status=str(reading.diagnosis.root_cause.status), runbook=book.id if book else None,
    )  # fmt: skip
    if stopped is not None and hold is None:
        told = t("The run {run} on this node is unfinished: gpufix recover offers it.", run=safe(stopped.id))
        ui.say(["", *ui.style.wrap(told)])
    elif stopped is not None and request.plan is not None:
        # its consents are bound to decisions that were shown to somebody, and going on decides anew
        raise GpufixError(
            t(
                "the run {run} on {node} is unfinished: a plan is for a run of its own",
                run=stopped.id,
                node=session.node,
            ),
            t(
                "go on with it ({command}), or undo or close it, then make a new plan",
                command=session.words("resume"),
            ),
            ExitStatus.BLOCKED,
        )
    elif stopped is not None and hold is not None:
        taken = take_up(session, request, stopped, reading, hold, listeners, anew=True)
        if taken is not None:
            return taken
        reading = look(session)
        book = fitting(request.books, reading)
    if book is None:
        return _nothing_to_walk(session, reading, verdicts)
    _require_same_runbook(request, book, session.node)
    return _walk(session, request, book, reading, hold, listeners)


def _walk(
    session: Session,
    request: Request,
    book: Runbook,
    reading: Reading,
    hold: Hold | None,
    listeners: Sequence[Listener],
) -> Result:
    """``hold`` None: nothing is walked, the plan is made with its dry runs."""
    ui = session.ui
    ui.say(["", ui.style.paint(book.title, "bold"), *ui.style.wrap(book.summary, 2)])
    try:
        given = _answers(session, request, book)
    except Interrupted:
        return simply(session, reading, ExitStatus.INTERRUPTED, t("Interrupted. Nothing was changed."))
    values = {name: one.value for name, one in given.items()}
    told = announcements(reading.facts, values)
    ui.say(["", *(line for text in told for line in ui.style.wrap(safe(text)))] if told else [])
    plan = planning.decide(book, session.node, reading, values)
    _require_as_planned(request, plan)
    if hold is None:
        made = checked(session, request, plan, reading, judge(reading.facts, reading.diagnosis), given)
        tell(listeners, "plan", node=session.node, answers=values, plan=made.made)
        return made
    present(session, request, plan, given, reading, listeners)
    course = Course(book, plan, given, findings_of(reading.diagnosis), reading.diagnosis.down_since)
    return walk_course(session, request, course, hold, listeners, reading)


def plan(session: Session, request: Request) -> Result:
    """The plan of a recovery, with the dry runs that can be made. Nothing is changed and nobody is asked."""
    reading = look(session)
    book = fitting(request.books, reading)
    verdicts = judge(reading.facts, reading.diagnosis)
    if book is None:
        return _nothing_to_walk(session, reading, verdicts)
    _require_same_runbook(request, book, session.node)
    given = _assumed(book.questions, request.given)
    decided = planning.decide(book, session.node, reading, {name: one.value for name, one in given.items()})
    return checked(session, request, decided, reading, verdicts, given)


# --- where it ends before it begins ----------------------------------------------------------------------------------


def _nothing_to_walk(session: Session, reading: Reading, verdicts: Verdicts) -> Result:
    cause, node = reading.diagnosis.root_cause, session.node
    if verdicts.node.health is Health.WELL and verdicts.node.reboot_proof is False:
        line = t(
            "{node} is well now and does not survive a reboot: {why}. No runbook changes that; nothing was changed.",
            node=node,
            why=verdicts.node.reboot_text,
        )
        return simply(session, reading, ExitStatus.DECLINED, line)
    if verdicts.node.health is Health.WELL and cause.id == "healthy" and cause.status is Status.CONFIRMED:
        line = t("{node} is well: nothing to do, nothing was changed.", node=node)
        return simply(session, reading, ExitStatus.OK, line)
    if verdicts.node.health is Health.WELL:
        status = ExitStatus.OK if verdicts.vms.health is not VmHealth.WAITING else ExitStatus.DECLINED
        line = t("{node} itself is well; no runbook changes what is left. Nothing was changed.", node=node)
        return simply(session, reading, status, line)
    line = t("No runbook fits {cause} on {node}. Nothing was changed.", cause=cause.id, node=node)
    return simply(session, reading, ExitStatus.DECLINED, line)


def _require_unmoved(request: Request, session: Session, reading: Reading) -> None:
    """Raises GpufixError (status 4) naming every fact of the plan that is another one now."""
    assert request.plan is not None
    named = request.plan["runbook"]["id"]
    book = next((book for book in request.books if book.id == named), None)
    if book is None:
        raise GpufixError(
            t("the plan is of the runbook {runbook}, which is not here", runbook=repr(named)),
            t("give its folder with --runbooks"),
        )
    if found := moved(basis_from(request.plan), planning.basis(reading, book)):
        raise GpufixError(
            t("the plan is stale, nothing was changed: {facts}", facts="; ".join(map(str, found))),
            t("look at it, then make a new plan: {command}", command=_new_plan(session.node)),
            ExitStatus.BLOCKED,
        )


def _require_same_runbook(request: Request, book: Runbook, node: str) -> None:
    """Raises GpufixError: status 4 for a plan of another runbook, 2 for answers to questions that ``book`` has not."""
    if request.plan is not None and request.plan["runbook"]["id"] != book.id:
        raise GpufixError(
            t(
                "the plan is of the runbook {runbook}, but what fits {node} now is {other}",
                runbook=request.plan["runbook"]["id"],
                node=node,
                other=book.id,
            ),
            t("make a new plan: {command}", command=_new_plan(node)),
            ExitStatus.BLOCKED,
        )
    strange = sorted(set(request.given) - {question.id for question in book.questions})
    if strange and request.answers is None:
        origin = request.given[strange[0]].origin
        told = t(
            "{origin}: {runbook}, which fits {node}, has no question {question}",
            origin=origin,
            runbook=book.id,
            node=node,
            question=repr(strange[0]),
        )
        raise GpufixError(told, t("leave it out"))
    if request.answers is not None and request.answers.runbook_id != book.id:
        raise GpufixError(
            t(
                "{file} answers the runbook {runbook}, but what fits {node} now is {other}",
                file=request.answers.file,
                runbook=request.answers.runbook_id,
                node=node,
                other=book.id,
            ),
            t("{command} writes a sample for it", command=f"gpufix answers {book.id} --node {node}"),
        )


def _require_as_planned(request: Request, plan: Plan) -> None:
    """Raises GpufixError (status 4) where a step is decided otherwise than the plan's reader saw it."""
    if request.plan is None:
        return
    for planned, step in zip(plan.steps, request.plan["steps"], strict=True):  # the runbook's digest is the same
        if (step["decision"], step["destructive"]) != (str(planned.decision), planned.destructive):
            raise GpufixError(
                t(
                    "the plan is stale, nothing was changed: {step}: was {was}, is {now} ({why})",
                    step=planned.step.id,
                    was=_decided_words(step["decision"], step["destructive"]),
                    now=_decided_words(str(planned.decision), planned.destructive),
                    why=planned.reason,
                ),
                t("look at it, then make a new plan: {command}", command=_new_plan(plan.node)),
                ExitStatus.BLOCKED,
            )


def _decided_words(decision: str, destructive: bool) -> str:
    return word(decision) + destructive_words(destructive)


def _new_plan(node: str) -> str:
    return f"gpufix plan {node} --out FILE"


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
    options = []
    for choice in question.choices:
        label = f"{choice.value}: {choice.label}"
        is_default = choice.value == question.default
        options.append(Option(choice.value, t("{choice} (default)", choice=label) if is_default else label))
    return ui.ask_choice(question.ask, options, question.default)
