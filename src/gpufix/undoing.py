"""undo: what a run changed is put back, the newest step first, through the same gates. Sequencing only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpufix import planning
from gpufix.consents import Request
from gpufix.core.conditions import World, evaluate, findings_of
from gpufix.core.plan_data import Given
from gpufix.core.run_history import steps_of, unsettled
from gpufix.core.runbook import Runbook
from gpufix.core.undo import ABSENT, Part, parts_of, undo_book, undo_target
from gpufix.core.verdict import judge
from gpufix.core.workload import WORKLOAD_LABEL, effective_workload
from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import t
from gpufix.model import Status
from gpufix.record import Listener
from gpufix.running import (
    Course,
    Result,
    Settled,
    checked,
    close_words,
    held,
    look,
    present,
    require_same_node,
    settled_by,
    wait_for_host,
    walk_course,
)
from gpufix.runs import Run, run_to_undo
from gpufix.session import Hold, NodeGone, Reading, Session
from gpufix.text import did_you_mean, safe


def undo(session: Session, request: Request, run: Run, only: str = "", listeners: Sequence[Listener] = ()) -> Result:
    """Undo ``run``, or the one step ``only`` of it. Raises GpufixError for what stops it before the first change."""
    try:
        reading = look(session)
    except NodeGone as error:
        raise GpufixError(error.message, f"{error.hint} {close_words(run)}".strip(), error.exit_status) from None
    require_same_node(run, reading, session)
    if request.check:
        return undo_run(session, request, run, only, reading, None, listeners)
    with held(session, reading) as (hold, seen):
        run = run_to_undo(session.state, run.id)  # as it is now that the node is ours
        reading = wait_for_host(session, seen)
        return undo_run(session, request, run, only, reading, hold, listeners)


def undo_run(
    session: Session,
    request: Request,
    run: Run,
    only: str,
    reading: Reading,
    hold: Hold | None,
    listeners: Sequence[Listener],
    goes_on: Run | None = None,
) -> Result:
    """``hold`` None: only the plan, with its dry runs. ``goes_on``: the undo that was begun and is gone on with."""
    ui = session.ui
    if run.history.damage:
        raise GpufixError(
            t("what the run {run} changed is not known for sure: {why}", run=run.id, why=run.history.damage),
            t(
                "{command} says what is left of it; put back by hand what you want; nothing was changed",
                command=f"gpufix runs show {run.id}",
            ),
            ExitStatus.BLOCKED,
        )
    node = reading.facts.node.value
    label = node.labels.get(WORKLOAD_LABEL, ABSENT) if node is not None else None
    parts = _chosen(run, only, parts_of(run.history, run.node_uid, label))
    left = [part for part in parts if part.left]
    title = t("What the run {run} changed on {node}, the newest first", run=safe(run.id), node=session.node)
    ui.say(["", ui.style.paint(title, "bold")])
    for part in parts:
        told = t("stays as it is: {why}", why=part.left) if part.left else t("can be undone")
        ui.say(ui.style.wrap(f"{safe(part.step):<18} {safe(told)}", 2, 4))
    if len(left) == len(parts):
        why = "; ".join(f"{part.step}: {part.left}" for part in left)
        told = t("nothing of the run {run} can be undone: {why}", run=run.id, why=why)
        raise GpufixError(told, "", ExitStatus.BLOCKED)
    book = undo_book(run.id, session.node, parts)
    target = undo_target(parts, _without_label(reading))
    given = {"target_workload": Given(target, t("the labels before the run {run}", run=run.id))}
    plan = planning.decide(book, session.node, reading, {"target_workload": target})
    if hold is None:
        return checked(session, request, plan, reading, judge(reading.facts, reading.diagnosis), given)
    present(session, request, plan, given, reading, listeners)
    # swap that is on again is what this walk is for, so a kubelet that dies of it is no surprise
    findings = {**findings_of(reading.diagnosis), "swap-on": str(Status.CONFIRMED)}
    settled = _settled(goes_on, book, World(reading.facts, plan.answers, findings)) if goes_on is not None else ()
    course = Course(
        book, plan, given, findings, goes_on=goes_on, undoes=run.id, only=only, settled=settled,
        stays={part.step: part.left for part in left},
    )  # fmt: skip
    return walk_course(session, request, course, hold, listeners, reading)


def _settled(run: Run, book: Runbook, world: World) -> tuple[Settled, ...]:
    """What a look says of the steps that the undo ``run`` began and of which it does not say how they ended."""
    begun = unsettled(steps_of(run.history))
    return tuple(settled_by(step.id, evaluate(step.done_when, world)) for step in book.steps if step.id in begun)


def _chosen(run: Run, only: str, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    chosen = tuple(part for part in parts if only in ("", part.step))
    if not chosen:
        names = [part.step for part in parts]
        told = t("the run {run} did nothing in a step {step}", run=run.id, step=repr(only))
        raise GpufixError(told, did_you_mean(only, names))
    return chosen


def _without_label(reading: Reading) -> str:
    """What the GPU Operator would serve on the node if its label said nothing; empty where that is not known."""
    node = reading.facts.node.value
    if node is None:
        return ""
    bare = replace(node, labels={key: value for key, value in node.labels.items() if key != WORKLOAD_LABEL})
    return effective_workload(bare, reading.facts.cluster_policy).value or ""
