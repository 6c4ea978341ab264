"""Walks one step of a runbook: the same seven moves for each.

observe -> order rules and preconditions -> preview (``--check --diff``) -> gate -> journal the intent with its undo ->
apply -> observe until the post-condition holds -> journal the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpufix.core.conditions import Verdict, World, evaluate
from gpufix.core.fold import PlayResult, Trouble, explain
from gpufix.core.invariants import Action, Consent
from gpufix.core.plan import Decision, PlannedStep, may_skip, plan_step, target_of
from gpufix.core.plan_data import preview_as_data, tasks_as_data
from gpufix.core.render.plan_text import change_lines
from gpufix.core.render.terminal import diff_lines, origin_words, violation_lines
from gpufix.core.runbook import Runbook, RunbookStep
from gpufix.core.undo import FROM_PREVIEW, capture_undo
from gpufix.errors import ExitStatus, GpufixError
from gpufix.gate import Approver, Gate
from gpufix.language import t
from gpufix.model import Status
from gpufix.record import Record
from gpufix.session import Reading, Session, unread_side
from gpufix.steps import StepRunner, expected_of
from gpufix.text import duration_s, safe
from gpufix.world.cluster import LOG_IN, is_logged_out
from gpufix.world.interrupts import Interrupts
from gpufix.world.journal import JournalError
from gpufix.world.prompts import Interrupted

POLL_SECONDS = 1.0
"""Between two looks while a post-condition is awaited; each look itself takes about two seconds."""
STEADY_SECONDS = 4.0
"""The same while it holds and is watched: a kubelet that restarts between two looks is another process, and shows."""

FRESH_SECONDS = 5.0
"""A reading younger than this is not made again before a step is decided. Right before acting one is always made."""


class Outcome(StrEnum):
    DONE = "done"
    NOOP = "no-op"
    LEFT_OUT = "left out"
    SKIPPED = "skipped"
    BLOCKED = "blocked"
    QUIT = "quit"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    LATE = "not reached in time"
    NO_CONSENT = "no consent"
    LOCKED = "locked"
    """Another operator has the node by now."""
    INTERRUPTED = "interrupted"

    @property
    def goes_on(self) -> bool:
        return self in (Outcome.DONE, Outcome.NOOP, Outcome.LEFT_OUT, Outcome.SKIPPED)


@dataclass(frozen=True, slots=True)
class StepResult:
    """``changed``: the playbook ran for real, so that the world may be another one. ``seconds``: without its gate."""

    step: str
    outcome: Outcome
    text: str
    seconds: float = 0.0
    changed: bool = False


@dataclass(slots=True)
class Walker:
    """Walks the steps of ``runbook`` one by one, carrying the latest reading from one to the next."""

    session: Session
    runbook: Runbook
    answers: Mapping[str, str]
    findings: Mapping[str, str]
    record: Record
    interrupts: Interrupts
    latest: Reading
    approver: Approver
    fence: Callable[[str], None] = lambda step: None
    """Asked right before a step changes anything. Raises GpufixError (status 8 or 7) when the node is not ours."""
    results: list[StepResult] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    """What the applied steps changed, as short lines."""
    acted_before: bool = False
    """Another process of this run, that is gone on with, began to act."""
    _read_at: float = field(default=float("-inf"), init=False)
    _acted: bool = field(default=False, init=False)
    _asked: float = field(default=0.0, init=False)
    """Seconds that the gate stood open: a person's time, which is not the step's."""
    _began: float = field(default=0.0, init=False)
    """When the step began to act."""
    _runner: StepRunner = field(init=False)
    _waited_for: tuple[str, str] = field(default=("", ""), init=False)

    def __post_init__(self) -> None:
        self._runner = StepRunner(self.session, self.answers)

    @property
    def run_changed(self) -> bool:
        """Whether this run changed anything, in whichever process."""
        return self.acted_before or any(result.changed for result in self.results)

    def walk(self, step: RunbookStep) -> StepResult:
        """Take ``step`` through its seven moves. Whatever happens is in the journal before this returns."""
        began = self.session.clock.monotonic()
        self._acted, self._asked = False, 0.0
        try:
            result = self._moves(step) if not self.interrupts.stop else _stopped(step)
        except Interrupted:
            result = StepResult(step.id, Outcome.INTERRUPTED, t("interrupted at its gate; nothing of it was done"))
        except JournalError:
            raise
        except GpufixError as error:
            outcome = _OUTCOME_OF.get(error.exit_status, Outcome.FAILED)
            if self._acted:
                text = t("{why}; it was begun, and what it has done is not known", why=error.message)
            else:
                text = nothing_done(error.message)
            result = StepResult(step.id, outcome, text, changed=self._acted)
        seconds = self.session.clock.monotonic() - began - self._asked
        result = StepResult(step.id, result.outcome, result.text, seconds, result.changed)
        self.record.write(
            "step-result", step=step.id, outcome=str(result.outcome), text=result.text, seconds=round(seconds, 1)
        )
        self.results.append(result)
        return result

    # --- the moves ---------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        self.latest = self.session.read()
        self._read_at = self.session.clock.monotonic()

    def refresh(self) -> None:
        """Read again unless that was done a moment ago: a question or a gate may have stood open for hours."""
        if self.session.clock.monotonic() - self._read_at > FRESH_SECONDS:
            self.session.ui.progress(t("reading {node}", node=self.session.node))
            self._read()
            self.session.ui.progress("")

    def _moves(self, step: RunbookStep) -> StepResult:
        number = [other.id for other in self.runbook.steps].index(step.id) + 1
        style, say = self.session.ui.style, self.session.ui.say
        if plan_step(step, self._world()).decision is not Decision.LEFT_OUT:
            self.refresh()
            if (told := _logged_out(self.latest)) is not None:
                return StepResult(step.id, Outcome.UNREACHABLE, nothing_done(told))
        planned = plan_step(step, self._world())
        if planned.decision is Decision.LEFT_OUT:
            return StepResult(step.id, Outcome.LEFT_OUT, planned.reason)
        self.record.tell("step-start", step=step.id, number=number, decision=str(planned.decision))
        head = t(
            "Step {number} of {steps} on {node}: {step}",
            number=number,
            steps=len(self.runbook.steps),
            node=self.session.node,
            step=step.id,
        )
        say(["", *style.wrap(style.paint(head, "bold") + f"  {step.title}", 0, 2)])
        if planned.decision is Decision.NOOP:
            return self._noop(planned)
        if planned.decision is Decision.BLOCKED:
            return self._blocked(planned)
        if planned.decision is Decision.OBSERVE:
            return self._await(step, changed=False)
        say(style.wrap(step.why, 2))
        return self._act(step, planned)

    def _act(self, step: RunbookStep, planned: PlannedStep) -> StepResult:
        preview = self._runner.run(step, check=True)
        if not preview.ok:
            return self._preview_failed(step, preview)
        if self.interrupts.stop:
            return _stopped(step)
        expected = expected_of(preview, step.playbook, self.latest.facts)
        gate = Gate(self.session, planned, preview, self._world(), may_skip(self.runbook, planned, self._world()))
        shown = gate.show_preview()
        self.record.write("preview", step=step.id, **preview_as_data(preview))
        asked = self.session.clock.monotonic()
        try:
            approval = self.approver.decide(gate, self._runner.by_hand(step))
        finally:
            self._asked = self.session.clock.monotonic() - asked
        if approval.choice == "quit":
            return StepResult(
                step.id, Outcome.QUIT, t("declined {by}; nothing of it was done", by=origin_words(approval.by))
            )
        if approval.choice == "refuse":
            return StepResult(step.id, Outcome.NO_CONSENT, nothing_done(approval.by))
        if approval.choice == "skip":
            return StepResult(step.id, Outcome.SKIPPED, t("skipped {by}", by=origin_words(approval.by)))
        target = target_of(self.answers)
        killed = gate.holder_pids if approval.kills is None else approval.kills
        consent = Consent(step.id, target, killed if shown else None)
        self.record.write(
            "consent",
            step=step.id,
            by=approval.by,
            who=approval.who,
            destructive=planned.destructive,
            gpu_holders=sorted(gate.holder_pids),
            kills=sorted(killed) if shown else [],
        )
        # the gate may have stood open for hours: everything is read and judged once more, right before acting
        self.session.ui.progress(t("reading the node once more before acting"))
        self._read()
        if (lost := unread_side(self.latest)) is not None:
            told = _logged_out(self.latest) or lost
            return StepResult(step.id, Outcome.UNREACHABLE, nothing_done(told))
        undo = capture_undo(planned.actions, self.latest.facts)
        if undo is not None and Action.REMOVE_OBSTACLE in planned.actions:
            undo |= {key: preview.returned(key) for key in FROM_PREVIEW}
        last = plan_step(step, self._world(), consent=consent, undo_captured=undo is not None, phase="act")
        if last.decision is Decision.NOOP:
            return self._noop(last)
        if last.decision is not Decision.RUN:
            return self._blocked(last)
        if last.destructive and not planned.destructive:
            text = t("it has become destructive since its gate stood open; nothing of it was done")
            return StepResult(step.id, Outcome.BLOCKED, text)
        if self.interrupts.stop:
            return _stopped(step)
        self.fence(step.id)
        self.record.write("intent", step=step.id, playbook=step.playbook, undo=undo, irreversible=step.irreversible)
        self._acted, self._began = True, self.session.clock.monotonic()
        done = self._runner.run(step, expected=expected)
        self.record.write(
            "applied",
            step=step.id,
            ok=done.ok,
            message=done.message,
            tasks=[one for one in tasks_as_data(done) if one["changed"] or one["failed"]],
            backup=done.returned("backup"),
        )
        self.changes += change_lines(step.id, done)
        if done.trouble is Trouble.KILLED:
            text = t("interrupted, state unknown: {why}", why=done.message)
            return StepResult(step.id, Outcome.INTERRUPTED, text, changed=True)
        if not done.ok:
            return self._apply_failed(step, done)
        return self._await(step, changed=True)

    def _noop(self, planned: PlannedStep) -> StepResult:
        self.session.ui.say(self.session.ui.style.wrap(t("no-op, {why}", why=safe(planned.reason)), 2, 4))
        return StepResult(planned.step.id, Outcome.NOOP, planned.reason)

    def _blocked(self, planned: PlannedStep) -> StepResult:
        style = self.session.ui.style
        self.session.ui.say([style.paint("  " + t("blocked"), "red", "bold"), *violation_lines(planned, style)])
        return StepResult(planned.step.id, Outcome.BLOCKED, planned.reason)

    def _preview_failed(self, step: RunbookStep, preview: PlayResult) -> StepResult:
        if preview.trouble is Trouble.KILLED:
            text = t("interrupted during its preview; nothing of it was done")
            return StepResult(step.id, Outcome.INTERRUPTED, text)
        reason = explain(preview, self._runner.host(step))
        style = self.session.ui.style
        state = style.paint(t("undetermined"), "yellow", "bold")
        told = t("{state}: its dry run failed, so no gate: {why}", state=state, why=safe(reason))
        self.session.ui.say(style.wrap(told, 2, 4))
        for (
            task
        ) in preview.tasks:  # what it refused over, where it shows that: fstab as it was, as it was left, as it is
            self.session.ui.say(diff_lines(task.diffs, style) if task.failed else [])
        outcome = Outcome.UNREACHABLE if preview.trouble in (Trouble.UNREACHABLE, Trouble.BECOME) else Outcome.FAILED
        return StepResult(step.id, outcome, t("its dry run failed, nothing of it was done: {why}", why=reason))

    def _apply_failed(self, step: RunbookStep, done: PlayResult) -> StepResult:
        reason = explain(done, self._runner.host(step))
        partial = done.returned("done")
        if isinstance(partial, list) and partial:
            reason = t("{why}; done before that: {parts}", why=reason, parts=", ".join(map(str, partial)))
        self._read()
        outcome = Outcome.UNREACHABLE if done.trouble in (Trouble.UNREACHABLE, Trouble.BECOME) else Outcome.FAILED
        return StepResult(step.id, outcome, reason, changed=True)

    # --- running and waiting -----------------------------------------------------------------------------------------

    def _world(self) -> World:
        return World(self.latest.facts, self.answers, self.findings)

    def _await(self, step: RunbookStep, *, changed: bool) -> StepResult:
        """Read until the post-condition holds for as long as it must, showing what is still awaited and why."""
        clock, ui = self.session.clock, self.session.ui
        began = clock.monotonic()
        holds_since: float | None = None
        identity: tuple[int, int] | None = None
        suspects: dict[str, int] = {}
        refused = 0
        while True:
            self._read()
            verdict = evaluate(step.done_when, self._world())
            now = clock.monotonic()
            unit = self.latest.facts.unit.value
            seen = (unit.main_pid, unit.restarts) if unit is not None else None
            if not verdict.holds or (identity is not None and seen != identity):
                holds_since = None  # a kubelet that was restarted meanwhile has not been stable
            identity = seen
            if verdict.holds:
                holds_since = now if holds_since is None else holds_since
                if now - holds_since >= step.stable_for:
                    ui.progress("")
                    took = duration_s(now - (self._began if changed else began))
                    state = ui.style.paint(t("done"), "green", "bold")
                    told = t("{state} after {time}: {held}", state=state, time=took, held=safe(_held(verdict, step)))
                    ui.say(ui.style.wrap(told, 2, 2))
                    return StepResult(step.id, Outcome.DONE, _held(verdict, step), changed=changed)
                seconds = {"n": f"{now - holds_since:.0f}", "most": step.stable_for}
                ui.progress(t("holds; watching that it stays so: {n} of {most} s", **seconds))
            else:
                seconds = {"n": f"{now - began:.0f}", "most": step.timeout}
                # Translators: what ticks stands before the first ": ", or a log gets a line each second
                ui.progress(t("waiting {n} of {most} s: {awaited}", awaited=_awaited(verdict), **seconds))
                self._tell_waiting(step, verdict)
            if self.interrupts.kill:
                ui.progress("")
                text = t("interrupted while waiting: {awaited}", awaited=_open(verdict))
                return StepResult(step.id, Outcome.INTERRUPTED, text, changed=changed)
            # twice: an API server that restarts may refuse anybody for a moment
            out = _logged_out(self.latest)
            refused = refused + 1 if out is not None else 0
            if refused > 1:
                ui.progress("")
                text = t("what came of it is not known: {why}", why=out)
                return StepResult(step.id, Outcome.UNREACHABLE, text, changed=changed)
            if (other := self._dies_of_something_else(suspects)) is not None:
                ui.progress("")
                return StepResult(step.id, Outcome.FAILED, other, changed=changed)
            if now - began > step.timeout + (step.stable_for if holds_since is not None else 0):
                ui.progress("")
                awaited = _open(verdict) or t("it does not stay so")
                late = t("after {time} still: {awaited}", time=duration_s(now - began), awaited=awaited)
                return StepResult(step.id, Outcome.LATE, late, changed=changed)
            left = 0.0 if holds_since is None else min(STEADY_SECONDS, step.stable_for - (now - holds_since))
            clock.sleep(max(POLL_SECONDS, left))

    def _tell_waiting(self, step: RunbookStep, verdict: Verdict) -> None:
        """Once for each thing that is awaited: a stream that repeats itself every second helps nobody."""
        awaited = _open(verdict)
        if (step.id, awaited) != self._waited_for:
            self._waited_for = (step.id, awaited)
            self.record.tell("waiting", step=step.id, on="effect", awaited=[leaf.text for leaf in verdict.open_parts()])

    def _dies_of_something_else(self, suspects: dict[str, int]) -> str | None:
        """The kubelet dies again, of another cause than the one this recovery is for: waiting on would hide that.

        Two looks in a row must say so: right after a start the last words in the journal may still be the old ones.
        """
        unit, cause = self.latest.facts.unit.value, self.latest.diagnosis.root_cause
        dying = unit is not None and (unit.will_start_by_itself or unit.active_state == "failed")
        if not dying or cause.status is not Status.CONFIRMED or self.findings.get(cause.id) == Status.CONFIRMED:
            suspects.clear()
            return None
        suspects[cause.id] = suspects.get(cause.id, 0) + 1
        if suspects[cause.id] < 2:
            return None
        words = cause.evidence[0].excerpt.strip() if cause.evidence else ""
        told = t("the kubelet dies again, now of {cause}: {summary}", cause=cause.id, summary=cause.summary)
        return f"{told} {words}".strip()


_OUTCOME_OF = {ExitStatus.UNREACHABLE: Outcome.UNREACHABLE, ExitStatus.LOCKED: Outcome.LOCKED}


def _logged_out(reading: Reading) -> str | None:
    """Why the cluster cannot be read any more without a person who logs in again; None where it is not that."""
    lost = unread_side(reading)
    return f"{lost} ({t(LOG_IN)})" if lost is not None and is_logged_out(lost) else None


def nothing_done(why: str) -> str:
    """Of a step that ended before it began to act."""
    return t("{why}; nothing of it was done", why=why)


def _stopped(step: RunbookStep) -> StepResult:
    return StepResult(step.id, Outcome.INTERRUPTED, t("interrupted before it began; nothing of it was done"))


def _held(verdict: Verdict, step: RunbookStep) -> str:
    text = "; ".join(leaf.text for leaf in verdict.leaves() if leaf.holds and leaf.kind == "observation")
    return t("{held}; for {n} s without a break", held=text, n=step.stable_for) if step.stable_for else text


def _open(verdict: Verdict) -> str:
    return "; ".join(leaf.text for leaf in verdict.open_parts())


def _awaited(verdict: Verdict) -> str:
    leaf = verdict.open_parts()[0]
    return leaf.text + (f" ({leaf.because})" if leaf.because else "")
