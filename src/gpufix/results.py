"""A run's result as plain data, for ``-o json`` and for what is left behind when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gpufix.core.render.metrics import RunMetrics, StepMetrics
from gpufix.core.verdict import VmHealth, verdicts_as_data
from gpufix.errors import GpufixError
from gpufix.running import Result
from gpufix.text import redact_all

VERSION = 1
KIND = "gpufix-result"


def result_as_data(result: Result) -> dict[str, Any]:
    """The object that ``recover -o json`` prints (schema: data/result.schema.json). Secrets are taken out."""
    cause = result.diagnosis.root_cause if result.diagnosis is not None else None
    data: Mapping[str, Any] = {
        "version": VERSION,
        "kind": KIND,
        "node": result.node,
        "exit_status": int(result.status),
        "line": result.line,
        "changed": result.changed,
        "runbook": result.runbook or None,
        "root_cause": {"id": cause.id, "status": str(cause.status), "summary": cause.summary} if cause else None,
        "root_cause_before": result.cause_before or None,
        "answers": {name: {"value": one.value, "origin": one.origin} for name, one in result.answers.items()},
        "steps": [
            {
                "step": one.step,
                "outcome": str(one.outcome),
                "text": one.text,
                "seconds": round(one.seconds, 1),
                "changed": one.changed,
            }
            for one in result.steps
        ],
        "changes": list(result.changes),
        "verdicts": verdicts_as_data(result.verdicts) if result.verdicts is not None else None,
        "journal": result.run or None,
    }
    cleaned: dict[str, Any] = redact_all(data)
    return cleaned


def error_as_data(node: str, error: GpufixError) -> dict[str, Any]:
    """The object in place of a result, when the run was refused or broke off."""
    cleaned: dict[str, Any] = redact_all(
        {
            "version": VERSION, "kind": KIND, "node": node, "exit_status": int(error.exit_status),
            "line": error.message, "hint": error.hint, "error": True,
        }
    )  # fmt: skip
    return cleaned


def metrics_of(result: Result, seconds: float, finished_at: datetime) -> RunMetrics:
    vms_known = result.verdicts is not None and result.verdicts.vms.health is not VmHealth.UNKNOWN
    return RunMetrics(
        node=result.node,
        runbook=result.runbook,
        exit_status=int(result.status),
        finished_at=finished_at,
        seconds=seconds,
        steps=tuple(StepMetrics(one.step, str(one.outcome), one.seconds) for one in result.steps),
        failed_since=result.failed_since,
        vms_waiting=len(result.diagnosis.affected) if result.diagnosis is not None and vms_known else None,
    )
