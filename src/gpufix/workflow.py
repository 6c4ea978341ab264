"""diagnose, capture, recover: sequencing only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpufix.core.conditions import World, evaluate, findings_of
from gpufix.core.plan import Plan, build_plan, target_of
from gpufix.core.render.data import diagnosis_as_data
from gpufix.core.render.terminal import Style, diagnosis_lines, plan_lines, verdict_lines
from gpufix.core.runbook import Question, Runbook
from gpufix.core.verdict import Health, Verdicts, VmHealth, judge
from gpufix.core.workload import CONTAINER
from gpufix.errors import ExitStatus, GpufixError
from gpufix.model import Status
from gpufix.session import Reading, Session, judge_snapshot, read_signatures, require_both
from gpufix.text import duration_s, safe
from gpufix.walk import Outcome, StepResult, Walker
from gpufix.world.interrupts import Interrupts
from gpufix.world.journal import Journal
from gpufix.world.prompts import Interrupted, Option
from gpufix.world.snapshots import read_snapshot_folder, write_snapshot


def fitting(runbooks: Sequence[Runbook], reading: Reading) -> Runbook | None:
    """The first runbook whose ``fits`` surely holds. Unknown does not fit."""
    world = World(reading.facts, {}, findings_of(reading.diagnosis))
    return next((book for book in runbooks if evaluate(book.fits, world).holds), None)


# --- diagnose --------------------------------------------------------------------------------------------------------


def read_folder(folder: Path, node: str) -> Reading:
    """The reading of a snapshot folder: the same code as for a live node, with no cluster and no host."""
    return judge_snapshot(read_snapshot_folder(folder, node), read_signatures())


def require_one(reading: Reading) -> None:
    """Raises GpufixError (status 7) when neither side could be read: then there is nothing to diagnose."""
    unread = reading.snapshot.unread
    if "cluster" in unread and "host" in unread:
        raise GpufixError(
            f"neither the cluster nor the host could be read: {unread['cluster']}; {unread['host']}",
            "check KUBECONFIG, the inventory, and that the machines answer",
            ExitStatus.UNREACHABLE,
        )


def diagnosis_text(reading: Reading, books: Sequence[Runbook], style: Style, as_json: bool) -> str:
    """The diagnosis as it is printed: text lines, or one JSON object."""
    verdicts = judge(reading.facts, reading.diagnosis)
    book = fitting(books, reading)
    if as_json:
        return json.dumps(diagnosis_as_data(reading.diagnosis, verdicts, book.id if book else None), indent=2)
    return "\n".join(diagnosis_lines(reading.diagnosis, verdicts, book.id if book else None, style))


def sick(reading: Reading) -> bool:
    """Whether ``diagnose --exit-code`` says 3: everything but a positively healthy node."""
    cause = reading.diagnosis.root_cause
    return not (cause.id == "healthy" and cause.status is Status.CONFIRMED)


def capture(reading: Reading, folder: Path) -> None:
    write_snapshot(reading.snapshot, folder)


# --- recover ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ending:
    """How a recovery ended, for the exit status and the last lines."""

    status: ExitStatus
    line: str


def recover(session: Session, books: Sequence[Runbook]) -> ExitStatus:
    """Diagnose, ask, walk and judge. Raises GpufixError for what stops it before the first change."""
    ui = session.ui
    session.connect()
    ui.progress(f"reading {session.node}: the cluster and the host")
    reading = session.read()
    require_both(reading)
    book = fitting(books, reading)
    verdicts = judge(reading.facts, reading.diagnosis)
    ui.progress("")
    ui.say(diagnosis_lines(reading.diagnosis, verdicts, book.id if book else None, ui.style, offer=book is None))
    if book is None:
        return _nothing_to_walk(session, reading, verdicts)
    ui.say(["", ui.style.paint(book.title, "bold"), *ui.style.wrap(book.summary, 2)])
    try:
        answers = _ask_all(session, book.questions)
    except Interrupted:
        ui.say(["", "Interrupted. Nothing was changed."])
        return ExitStatus.INTERRUPTED
    ui.say(_announcement(session, reading, answers))
    world = World(reading.facts, answers, findings_of(reading.diagnosis))
    plan = build_plan(book, session.node, world)
    ui.say(["", *plan_lines(plan, ui.style)])
    notice = "Stopping after this step, as asked. Once more kills it, and its state will not be known."
    with Interrupts(lambda: ui.say(["", notice])) as interrupts:  # from the first gate on; before it, Ctrl-C just ends
        session.runner.kill = lambda: interrupts.kill
        return _walk_all(session, interrupts, book, plan, reading, answers)


def _nothing_to_walk(session: Session, reading: Reading, verdicts: Verdicts) -> ExitStatus:
    cause = reading.diagnosis.root_cause
    if cause.id == "healthy" and cause.status is Status.CONFIRMED and verdicts.node.health is Health.WELL:
        session.ui.say(["", f"{session.node} is well: nothing to do, nothing was changed."])
        return ExitStatus.OK
    if verdicts.node.health is Health.WELL:
        session.ui.say(["", f"{session.node} itself is well; no runbook changes what is left. Nothing was changed."])
        return ExitStatus.OK if verdicts.vms.health is not VmHealth.WAITING else ExitStatus.DECLINED
    session.ui.say(["", f"No runbook fits {cause.id} on {session.node}. Nothing was changed."])
    return ExitStatus.DECLINED


def _ask_all(session: Session, questions: Sequence[Question]) -> dict[str, str]:
    answers: dict[str, str] = {}
    for question in questions:
        lines = ["", session.ui.style.paint(question.ask, "bold")]
        for choice in question.choices:
            lines += session.ui.style.wrap(f"{choice.value}: {choice.consequence}", 2, 4)
        session.ui.say(lines)
        options = [
            Option(
                choice.value,
                f"{choice.value}: {choice.label}" + (" (default)" if choice.value == question.default else ""),
            )
            for choice in question.choices
        ]
        answers[question.id] = session.ui.ask_choice(question.ask, options, question.default)
    return answers


def _announcement(session: Session, reading: Reading, answers: Mapping[str, str]) -> list[str]:
    """What the choice means for the VMs and for the jobs on the card, said before the first gate."""
    style, facts = session.ui.style, reading.facts
    if target_of(answers) != CONTAINER:
        return []
    lines: list[str] = []
    gpu_vms = [vm for vm in facts.vms.value or () if vm.devices and vm.wanted]
    if gpu_vms:
        names = ", ".join(f"{vm.namespace}/{vm.name}" for vm in gpu_vms)
        lines += style.wrap(
            style.paint("After this recovery ", "yellow")
            + safe(
                f"{names} will still be ErrorUnschedulable: container mode does not offer what they ask for. "
                "The node recovers; they do not."
            ),
            0,
        )
    elif not facts.vms.known:
        lines += style.wrap(safe(f"Which VMs wait for this GPU is not known: {facts.vms.unknown}"))
    cuda = [holder for holder in facts.gpu_holders.value or () if holder.kind == "cuda" and not holder.pod]
    if cuda:
        jobs = ", ".join(f"{holder.command} (pid {holder.pid})" for holder in cuda)
        lines += style.wrap(
            safe(
                f"Kubernetes will offer nvidia.com/gpu on this node even while host jobs use the card: {jobs}. "
                "Cordon the node if pods must not share it."
            )
        )
    return ["", *lines] if lines else []


def _walk_all(
    session: Session, interrupts: Interrupts, book: Runbook, plan: Plan, reading: Reading, answers: Mapping[str, str]
) -> ExitStatus:
    ui = session.ui
    journal = Journal.start(session.node)
    try:
        _record_start(journal, session, book, plan, reading, answers)
        walker = Walker(session, book, answers, findings_of(reading.diagnosis), journal, interrupts, reading)
        for step in book.steps:
            result = walker.walk(step)
            if not result.outcome.goes_on:
                break
            if interrupts.stop and step is not book.steps[-1]:
                result = StepResult(step.id, Outcome.INTERRUPTED, f"stopped after {step.id}, as asked")
                break
        with suppress(GpufixError):  # then the last reading is what there is, and it says what was unread
            walker.refresh()
        ending = _judge_ending(session, walker, book, result)
        journal.write("run-end", exit_status=int(ending.status), line=ending.line)
        _keep_snapshot(journal, "after", walker.latest)
        ui.say(_ending_lines(session, ending))
        ui.say([f"Journal: {journal.folder}"])
        return ending.status
    except BaseException:
        ui.say(["", f"The run broke off. What it had done by then is in {journal.folder / 'run.jsonl'}."])
        raise
    finally:
        journal.close()


def _record_start(
    journal: Journal, session: Session, book: Runbook, plan: Plan, reading: Reading, answers: Mapping[str, str]
) -> None:
    node, boot = reading.facts.node.value, reading.facts.boot_id.value
    journal.write(
        "run-start",
        node=session.node,
        node_uid=node.uid if node else None,
        boot_id=boot,
        host=session.host,
        runbook=book.id,
        runbook_digest=book.digest,
        root_cause=reading.diagnosis.root_cause.id,
        answers=dict(answers),
        plan=[
            {"step": planned.step.id, "decision": str(planned.decision), "reason": planned.reason}
            for planned in plan.steps
        ],
    )
    _keep_snapshot(journal, "before", reading)


def _keep_snapshot(journal: Journal, name: str, reading: Reading) -> None:
    write_snapshot(reading.snapshot, journal.folder / name)


_STATUS_OF = {
    Outcome.QUIT: ExitStatus.DECLINED,
    Outcome.BLOCKED: ExitStatus.BLOCKED,
    Outcome.FAILED: ExitStatus.STEP_FAILED,
    Outcome.UNREACHABLE: ExitStatus.UNREACHABLE,
    Outcome.LATE: ExitStatus.NOT_IN_TIME,
    Outcome.INTERRUPTED: ExitStatus.INTERRUPTED,
}


def _judge_ending(session: Session, walker: Walker, book: Runbook, last: StepResult) -> Ending:
    ui = session.ui
    ui.say(["", ui.style.paint("What was done", "bold"), *_summary(walker, book)])
    verdicts = judge(walker.latest.facts, walker.latest.diagnosis, target_of(walker.answers))
    ui.say(["", *verdict_lines(verdicts, ui.style)])
    if not last.outcome.goes_on:
        step = next((step for step in book.steps if step.id == last.step), None)
        hint = f" {step.if_late}." if step and step.if_late and last.outcome is Outcome.LATE else ""
        return Ending(
            _STATUS_OF[last.outcome], f"Not recovered: {last.step}: {last.text}.{hint}{_held_note(session, walker)}"
        )
    if verdicts.node.health is not Health.WELL:
        return Ending(ExitStatus.NOT_IN_TIME, f"Not recovered: {session.node} is {verdicts.node.health}.")
    proof = "" if verdicts.node.reboot_proof else f" Not shown to survive a reboot: {verdicts.node.reboot_text}."
    vms = f" VMs: {verdicts.vms.text}." if verdicts.vms.health is VmHealth.WAITING else ""
    return Ending(ExitStatus.OK, f"Recovered: {session.node} is Ready and stays so.{vms}{proof}")


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
            f"gpufix recover {session.node} goes on from here."
        )
    if not any(result.changed for result in walker.results):
        return " Nothing was changed."
    return f" gpufix recover {session.node} looks again and goes on from here."


def _ending_lines(session: Session, ending: Ending) -> list[str]:
    colour = "green" if ending.status is ExitStatus.OK else "red"
    return ["", *(session.ui.style.paint(line, colour, "bold") for line in session.ui.style.wrap(safe(ending.line)))]
