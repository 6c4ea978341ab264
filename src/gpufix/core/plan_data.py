"""A plan as plain data: made, given a digest, read back from a file. Pure.

The data is the plan: the human view is drawn from it, so that an old file reads as it did. Fields are added and never
changed; a file of a later version is refused by its number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpufix.core.basis import Fact
from gpufix.core.conditions import World, evaluate
from gpufix.core.fold import PlayResult
from gpufix.core.invariants import Action
from gpufix.core.marks import Mark
from gpufix.core.plan import Decision, Plan, PlannedStep, target_of
from gpufix.core.runbook import UNDO
from gpufix.core.verdict import Verdicts, verdicts_as_data
from gpufix.core.workload import CONTAINER
from gpufix.errors import GpufixError
from gpufix.language import t
from gpufix.model import Diagnosis, GpuHolder
from gpufix.text import redact_all, safe

VERSION = 1
KIND = "gpufix-plan"
_NOT_IN_DIGEST = ("digest", "made_at", "made_with")


@dataclass(frozen=True, slots=True)
class Preview:
    """What is known of a step before it runs. ``state``:

    changed | undetermined (the dry run shows no change, and the effect is not there) | failed | predicted (its dry run
    only passes once the steps that it assumes have run) | none (nothing to preview).
    """

    state: str
    why: str = ""
    result: PlayResult | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """An answer and where it came from, in words: ``answers.yml:4:20``, ``-a KEY=VALUE``, ``the prompt``."""

    value: str
    origin: str
    assumed: bool = False
    """Nobody gave it: the runbook's default stands in, so the plan is not complete."""


@dataclass(frozen=True, slots=True)
class GivenConsent:
    """What an answers file says of a step's gate. ``kind``: yes | skip. ``origin``: file, line and column."""

    step: str
    kind: str
    origin: str


@dataclass(frozen=True, slots=True)
class Draft:
    """All that a plan's data is made from."""

    plan: Plan
    host: str
    diagnosis: Diagnosis
    verdicts: Verdicts
    world: World
    answers: Mapping[str, Given]
    previews: Mapping[str, Preview]
    basis: Sequence[Fact]
    announced: Sequence[str]
    variables: Mapping[str, Mapping[str, str | int | bool]]
    marks: Sequence[Mark] = ()
    gaps: Sequence[str] | None = None
    """The consents that the answers file does not give; None where there is none."""
    consents: Sequence[GivenConsent] = ()
    """Those that it gives, and that open their gate."""


def plan_as_data(draft: Draft, made_at: str, made_with: str) -> dict[str, Any]:
    """The plan file's object. ``made_at`` is RFC 3339 in UTC; the digest covers neither it nor ``made_with``."""
    plan, cause = draft.plan, draft.diagnosis.root_cause
    steps = [_step(number, planned, draft) for number, planned in enumerate(plan.steps, 1)]
    assumed = [name for name, given in draft.answers.items() if given.assumed]
    blocked = [step["id"] for step in steps if step["decision"] == Decision.BLOCKED]
    failed = [step["id"] for step in steps if step["preview"]["state"] == "failed"]
    data: dict[str, Any] = {
        "version": VERSION,
        "kind": KIND,
        "node": plan.node,
        "host": draft.host,
        "runbook": {"id": plan.runbook.id, "title": plan.runbook.title, "digest": f"sha256:{plan.runbook.digest}"},
        "root_cause": {"id": cause.id, "status": str(cause.status), "summary": cause.summary},
        "verdicts": verdicts_as_data(draft.verdicts),
        "answers": {name: {"value": given.value, "origin": given.origin} for name, given in draft.answers.items()},
        "marks": [_mark(one) for one in draft.marks],
        "announced": list(draft.announced),
        "complete": not assumed and not failed,
        "applyable": not assumed and not failed and not blocked,
        "errored": bool(failed),
        "because": [
            *(t("{answer} is not given; the default stands in", answer=f"answers.{name}") for name in assumed),
            *(t("{step} is blocked", step=name) for name in blocked),
            *(t("the dry run of {step} failed", step=name) for name in failed),
        ],
        "consents_missing": list(draft.gaps) if draft.gaps is not None else None,
        "consents_given": {one.step: {"kind": one.kind, "origin": one.origin} for one in draft.consents},
        "basis": [_fact(fact) for fact in draft.basis],
        "steps": steps,
        "made_at": made_at,
        "made_with": made_with,
    }
    data = redact_all(data)
    data["digest"] = digest_of(data)
    return data


def digest_of(data: Mapping[str, Any]) -> str:
    """``sha256:`` and the hex digest of the plan's canonical JSON, without the fields that say when and by what."""
    told = {key: value for key, value in data.items() if key not in _NOT_IN_DIGEST}
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _fact(fact: Fact) -> dict[str, str]:
    return {"name": fact.name, "unknown": fact.unknown} if fact.unknown else {"name": fact.name, "value": fact.value}


def _mark(mark: Mark) -> dict[str, Any]:
    evidence = {"source": mark.evidence.source, "excerpt": mark.evidence.excerpt}
    return {"who": mark.who, "text": mark.text, "stops": mark.stops, "evidence": evidence}


def _step(number: int, planned: PlannedStep, draft: Draft) -> dict[str, Any]:
    step, preview = planned.step, draft.previews.get(planned.step.id, Preview("none"))
    runs = planned.decision is Decision.RUN
    return {
        "number": number,
        "id": step.id,
        "title": step.title,
        "why": step.why,
        "decision": str(planned.decision),
        "reason": planned.reason,
        "assumes": list(planned.assumes),
        "destructive": planned.destructive,
        "skippable": step.skippable,
        "risk": step.risk,
        "irreversible": step.irreversible,
        "playbook": step.playbook,
        "variables": dict(draft.variables.get(step.id, {})),
        "consent": _consent(planned, draft.plan) if runs else "",
        "violations": [{"rule": one.rule, "reason": one.reason, "hint": one.hint} for one in planned.violations],
        "awaited": _awaited(planned, draft.world) if planned.decision in (Decision.RUN, Decision.OBSERVE) else [],
        "preview": {
            "state": preview.state,
            "why": preview.why,
            "tasks": tasks_as_data(preview.result),
            "kills": _holders(draft.world.facts.gpu_holders.value or ()) if runs and _kills(planned, draft) else [],
        },
    }


def _consent(planned: PlannedStep, plan: Plan) -> str:
    """What an answers file must say; nothing for an undo, which is a person's alone."""
    if plan.runbook.id == UNDO:
        return ""
    return plan.node if planned.destructive else "true"


def _kills(planned: PlannedStep, draft: Draft) -> bool:
    return bool(planned.actions - {Action.RESTORE_SWAP}) and target_of(draft.plan.answers) != CONTAINER


def _holders(holders: Sequence[GpuHolder]) -> list[dict[str, Any]]:
    return [{"pid": one.pid, "command": one.command, "pod": one.pod, "kind": one.kind} for one in holders]


def _awaited(planned: PlannedStep, world: World) -> list[dict[str, str]]:
    """What must hold afterwards, each with what it is now (in the world as it was read)."""
    leaves = evaluate(planned.step.done_when, world).leaves()
    return [{"now": leaf.text, "because": leaf.because} for leaf in leaves if leaf.kind == "observation"]


def tasks_as_data(result: PlayResult | None) -> list[dict[str, Any]]:
    tasks = []
    for task in result.tasks if result is not None else ():
        warnings = task.result.get("warnings")
        tasks.append(
            {
                "name": task.name,
                "host": task.host,
                "changed": task.changed,
                "failed": task.failed or task.unreachable,
                "skipped": task.skipped,
                "message": task.message if task.failed else "",
                "diffs": [dict(record) for record in task.diffs] if task.changed else [],
                "warnings": [str(warning) for warning in warnings] if isinstance(warnings, list) else [],
            }
        )
    return tasks


def preview_as_data(result: PlayResult) -> dict[str, Any]:
    """A dry run for the stream of events."""
    return {"state": "changed" if result.changed else "undetermined", "tasks": tasks_as_data(result)}


# --- read back -------------------------------------------------------------------------------------------------------


def read_plan(text: str, file: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The plan in ``text``. Raises GpufixError (status 2) for what is no plan, of a later version, or edited since."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        rest = "nested without end" if isinstance(error, RecursionError) else "a number of too many digits"
        words = getattr(error, "msg", rest)  # a ValueError without one: sys.set_int_max_str_digits
        raise GpufixError(f"{file}:{line}: not a plan: not valid JSON: {words}", _MAKE_ONE) from None
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise GpufixError(f"{file}: not a plan of gpufix", _MAKE_ONE)
    version = data.get("version")
    if version != VERSION:
        raise GpufixError(
            f"{file}: a plan of version {safe(json.dumps(version), limit=40)}; this gpufix reads version {VERSION}",
            "read it with the gpufix that wrote it, or make a new one: gpufix plan NODE --out FILE",
        )
    import jsonschema

    errors = sorted(jsonschema.Draft202012Validator(schema).iter_errors(data), key=lambda e: list(map(str, e.path)))
    if errors:
        where = ".".join(map(str, errors[0].absolute_path)) or "top level"
        raise GpufixError(f"{file}: {where}: {safe(errors[0].message, limit=160)}", _MAKE_ONE)
    if digest_of(data) != data["digest"]:
        raise GpufixError(
            f"{file}: the plan was changed after it was made: its digest does not match what it says", _MAKE_ONE
        )
    return data


_MAKE_ONE = "gpufix plan NODE --out FILE makes one"


def basis_from(data: Mapping[str, Any]) -> tuple[Fact, ...]:
    return tuple(Fact(fact["name"], fact.get("value", ""), fact.get("unknown", "")) for fact in data["basis"])


def killed_by(data: Mapping[str, Any], step: str) -> frozenset[int]:
    """The process ids that the plan says ``step`` kills."""
    found = next((one for one in data["steps"] if one["id"] == step), None)
    return frozenset(one["pid"] for one in found["preview"]["kills"]) if found else frozenset()
