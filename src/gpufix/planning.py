"""Makes a plan of a recovery: every step decided, with the dry runs that can be made. Changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from gpufix import resources
from gpufix.core.announce import announcements
from gpufix.core.basis import Fact, basis_of
from gpufix.core.conditions import World, findings_of
from gpufix.core.fold import PlayResult, Trouble, explain
from gpufix.core.marks import Mark, marks_of
from gpufix.core.plan import Decision, Plan, PlannedStep, build_plan
from gpufix.core.plan_data import Draft, Given, GivenConsent, Preview, plan_as_data
from gpufix.core.runbook import Runbook
from gpufix.core.verdict import Verdicts
from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import t
from gpufix.session import Reading, Session
from gpufix.steps import StepRunner


def now() -> datetime:
    return datetime.now(UTC)


def decide(book: Runbook, node: str, reading: Reading, answers: Mapping[str, str]) -> Plan:
    """Every step against the state that the earlier ones are predicted to leave; nothing is run."""
    return build_plan(book, node, World(reading.facts, answers, findings_of(reading.diagnosis)))


def others_at(session: Session, reading: Reading) -> tuple[Mark, ...]:
    """The marks of others on the node, those that stop first; none where the node was not read."""
    node = reading.facts.node.value
    return marks_of(node, session.remediators) if node is not None else ()


def make_plan(
    session: Session,
    plan: Plan,
    reading: Reading,
    verdicts: Verdicts,
    answers: Mapping[str, Given],
    gaps: Sequence[str] | None = None,
    consents: Sequence[GivenConsent] = (),
) -> dict[str, Any]:
    """``plan`` with its dry runs, as data. ``gaps``: the consents that its answers file (None: there is none) does
    not give; ``consents``: those that it does.

    Raises GpufixError (status 7) when the node cannot be reached for a dry run.
    """
    runner = StepRunner(session, plan.answers)
    draft = Draft(
        plan=plan,
        host=session.host,
        diagnosis=reading.diagnosis,
        verdicts=verdicts,
        world=World(reading.facts, plan.answers, findings_of(reading.diagnosis)),
        answers=answers,
        previews={planned.step.id: _preview(runner, planned) for planned in plan.steps},
        basis=basis(reading, plan.runbook),
        announced=announcements(reading.facts, plan.answers),
        marks=others_at(session, reading),
        gaps=gaps,
        consents=consents,
        variables={step.id: runner.variables(step) for step in plan.runbook.steps if step.playbook},
    )
    session.ui.progress("")
    return plan_as_data(draft, now().strftime("%Y-%m-%dT%H:%M:%SZ"), f"gpufix {version('gpufix')}")


def basis(reading: Reading, book: Runbook) -> tuple[Fact, ...]:
    """What a plan of ``book`` rests on, in the world as it was just read."""
    digests = {"runbook": f"sha256:{book.digest}", "playbook modules": _digest_of_modules()}
    for name in sorted({step.playbook for step in book.steps if step.playbook}):
        digests[f"playbook {name}"] = _digest_of(resources.playbook_path(name).read_bytes())
    return basis_of(reading.snapshot, reading.facts, digests)


def _digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _digest_of_modules() -> str:
    """Of the modules that the playbooks run and of what these share, as one."""
    return _digest_of(b"".join(path.name.encode() + b"\0" + path.read_bytes() for path in resources.module_paths()))


def _preview(runner: StepRunner, planned: PlannedStep) -> Preview:
    if planned.decision is not Decision.RUN:
        return Preview("none")
    result = runner.run(planned.step, check=True)
    first = ", ".join(planned.assumes)
    if result.ok and result.changed:
        why = t("on the node as it is now, before {steps}", steps=first) if first else ""
        return Preview("changed", why, result)
    if not first or result.trouble in (Trouble.UNREACHABLE, Trouble.BECOME, Trouble.KILLED):
        return _undetermined(result, runner.host(planned.step))
    # its playbook looks for itself at what the steps before it change: that it refuses now is as it should be
    why = t("its dry run means something only after {steps}; it is made at its own gate", steps=first)
    return Preview("predicted", why)


def _undetermined(result: PlayResult, host: str) -> Preview:
    if result.ok:
        return Preview("undetermined", t("the dry run shows no change, and the effect is not there yet"), result)
    reason = explain(result, host)
    if result.trouble in (Trouble.UNREACHABLE, Trouble.BECOME):
        raise GpufixError(reason, t("nothing was changed; see that the host answers"), ExitStatus.UNREACHABLE)
    return Preview("failed", reason, result)
