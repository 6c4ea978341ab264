"""What was agreed to: the consents of an answers file at the gates, and those of a person, for such a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpufix.core.answers import Answers, StepConsent, consent_problem, plan_problem
from gpufix.core.plan import Decision, Plan, PlannedStep, target_of
from gpufix.core.plan_data import Given, GivenConsent, killed_by
from gpufix.core.runbook import Runbook
from gpufix.core.workload import CONTAINER
from gpufix.errors import ExitStatus, GpufixError
from gpufix.gate import Approval, Approver, Gate
from gpufix.language import t
from gpufix.session import Reading
from gpufix.text import safe


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked of ``recover`` or ``plan``.

    ``answers``: the file of an unattended run; None where a person answers. ``given``: the answers known beforehand,
    from that file and from ``-a``. ``plan``: a plan file's data, which the world must still match. ``check``: walk
    nothing, make the plan with its dry runs.
    """

    books: Sequence[Runbook]
    answers: Answers | None = None
    given: Mapping[str, Given] = field(default_factory=dict)
    plan: Mapping[str, Any] | None = None
    check: bool = False
    who: str = ""

    @property
    def attended(self) -> bool:
        return self.answers is None

    @property
    def digest(self) -> str | None:
        """Of the plan that was given."""
        return str(self.plan["digest"]) if self.plan is not None else None


def require_consents(request: Request, plan: Plan, reading: Reading) -> None:
    """An unattended run knows before its first change that it may do all of its plan.

    Raises GpufixError: status 4 for a step that an order rule blocks, 3 for one that is refused, 2 naming the consents
    that are missing.
    """
    for planned in plan.steps:
        if planned.decision is Decision.BLOCKED:
            rule = f"{planned.violations[0].rule}: " if planned.violations else ""
            hint = planned.violations[0].hint if planned.violations else ""
            told = t(
                "{step} is blocked, nothing was changed: {why}", step=planned.step.id, why=f"{rule}{planned.reason}"
            )
            raise GpufixError(told, hint, ExitStatus.BLOCKED)
    gaps = consent_gaps(request, plan, reading)
    if gaps.declined:
        told = t("declined: {consent}; nothing was changed", consent=gaps.declined[0])
        raise GpufixError(told, "", ExitStatus.DECLINED)
    if gaps.missing:
        raise GpufixError(
            t("{consents}; nothing was changed", consents="; ".join(gaps.missing)),
            t(
                "{command} shows every consent and what it means",
                command=f"gpufix answers {plan.runbook.id} --node {plan.node}",
            ),
        )


class Gaps(NamedTuple):
    """Why a run with this answers file would stop before its first change: a line for each gate that does not open.

    ``given``: what opens the others.
    """

    declined: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    given: tuple[GivenConsent, ...] = ()

    @property
    def status(self) -> ExitStatus:
        """With which the run would end."""
        return ExitStatus.DECLINED if self.declined else ExitStatus.USAGE if self.missing else ExitStatus.OK


def consent_gaps(request: Request, plan: Plan, reading: Reading) -> Gaps:
    """The gates of ``plan`` that do not open; none where a person is asked."""
    if request.answers is None:
        return Gaps()
    runs = [planned for planned in plan.steps if planned.decision is Decision.RUN]
    given = [consent for planned in runs if (consent := request.answers.consents.get(planned.step.id)) is not None]
    declined = (_is_false(one) for one in given if one.kind == "no")
    problems = {planned.step.id: _problem(request, plan, planned, reading) for planned in runs}
    opens = (one for one in given if one.kind != "no" and problems[one.step] is None)
    return Gaps(
        tuple(declined),
        tuple(problem for problem in problems.values() if problem is not None),
        tuple(GivenConsent(one.step, one.kind, str(one.origin)) for one in opens),
    )


def _problem(request: Request, plan: Plan, planned: PlannedStep, reading: Reading) -> str | None:
    answers = request.answers
    assert answers is not None
    step, consent = planned.step.id, answers.consents.get(planned.step.id)
    if consent is not None and consent.kind == "no":
        return None  # refused, not missing
    if consent is not None and consent.kind == "skip":
        needs = [later.step.id for later in plan.steps if step in later.assumes and later.decision is Decision.RUN]
        if needs:
            return t(
                "{origin}: {consent} is skip, but {step} needs it",
                origin=consent.origin,
                consent=f"consent.{step}",
                step=needs[0],
            )
        return plan_problem(consent, request.digest)
    told = consent_problem(planned.destructive, step, plan.node, consent, request.digest, answers.file)
    if told is not None or consent is None or target_of(plan.answers) == CONTAINER:
        return told
    agreed = _kills(request, consent)
    extra = [one for one in reading.facts.gpu_holders.value or () if one.pid not in agreed]
    if extra:
        names = ", ".join(f"{one.pid} ({one.command})" for one in extra)
        return t(
            "{key} in {file} does not list who uses the GPU and dies: {names}",
            key=f"consent.{step}.kills",
            file=answers.file,
            names=names,
        )
    return None


def _is_false(consent: StepConsent) -> str:
    return t("{consent} is false ({origin})", consent=f"consent.{consent.step}", origin=consent.origin)


def _kills(request: Request, consent: StepConsent) -> frozenset[int]:
    """The processes that may die: those listed, and those of the plan that the consent is bound to."""
    if request.plan is None or consent.plan != request.digest:
        return consent.kills
    return consent.kills | killed_by(request.plan, consent.step)


class AnswersApprover:
    """Nobody is asked: the gate opens for the consent in the answers file, and for nothing else."""

    def __init__(self, request: Request, say: Callable[[list[str]], None]) -> None:
        self._request = request
        self._say = say

    def decide(self, gate: Gate, by_hand: str) -> Approval:
        answers, step = self._request.answers, gate.planned.step.id
        assert answers is not None
        consent = answers.consents.get(step)
        if consent is not None and consent.kind == "no":
            said = f"consent.{step}: false"
            return Approval("quit", t("by {consent} ({origin})", consent=said, origin=consent.origin))
        if consent is not None and consent.kind == "skip":
            needed = None
            if not gate.may_skip:
                needed = t(
                    "{origin}: {consent} is skip, but a later step needs it",
                    origin=consent.origin,
                    consent=f"consent.{step}",
                )
            if problem := needed or plan_problem(consent, self._request.digest):
                return Approval("refuse", problem)
            return Approval("skip", t("by {consent} ({origin})", consent=f"consent.{step}", origin=consent.origin))
        digest, node = self._request.digest, gate.session.node
        problem = consent_problem(gate.planned.destructive, step, node, consent, digest, answers.file)
        if consent is None or problem is not None:
            return Approval("refuse", problem or _is_missing(step, answers.file))
        self._say([f"  consent.{step} ({safe(str(consent.origin))})"])
        return Approval("apply", str(consent.origin), self._request.who, _kills(self._request, consent))


def _is_missing(step: str, file: str) -> str:
    return t("{consent} is missing in {file}", consent=f"consent.{step}", file=file)


class Remembering:
    """Keeps what was agreed to at each gate, so that an answers file can say the same."""

    def __init__(self, approver: Approver, answers: Mapping[str, str]) -> None:
        self._approver = approver
        self._answers = answers
        self._given: dict[str, tuple[str, bool, frozenset[int]]] = {}

    def decide(self, gate: Gate, by_hand: str) -> Approval:
        approval = self._approver.decide(gate, by_hand)
        if approval.choice in ("apply", "skip"):
            killed = gate.holder_pids if approval.kills is None else approval.kills
            told = killed if target_of(self._answers) != CONTAINER else frozenset()
            self._given[gate.planned.step.id] = (approval.choice, gate.planned.destructive, told)
        return approval

    def as_consents(self, node: str) -> dict[str, bool | str | StepConsent]:
        """As ``core.answers_format.saved`` takes them."""
        consents: dict[str, bool | str | StepConsent] = {}
        for step, (choice, destructive, killed) in self._given.items():
            if choice == "skip":
                consents[step] = "skip"
            elif killed:
                consents[step] = StepConsent(step, "yes", node, kills=killed)
            else:
                consents[step] = node if destructive else True
        return consents
