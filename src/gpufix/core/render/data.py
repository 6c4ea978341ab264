"""A diagnosis as plain data, for ``-o json``. Pure. The shape is versioned: fields are added, never changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gpufix.core.verdict import Verdicts, verdicts_as_data
from gpufix.model import AffectedVm, Diagnosis, Evidence

VERSION = 1


def diagnosis_as_data(diagnosis: Diagnosis, verdicts: Verdicts, runbook: str | None) -> dict[str, Any]:
    """Timestamps are RFC 3339 in UTC; ``runbook`` is the id of the one that fits, null where none does."""
    cause = diagnosis.root_cause
    return {
        "version": VERSION,
        "node": diagnosis.node,
        "as_of": _time(diagnosis.as_of),
        "root_cause": {
            "id": cause.id,
            "status": str(cause.status),
            "summary": cause.summary,
            "evidence": _evidence(cause.evidence),
        },
        "down_since": _time(diagnosis.down_since),
        "chain": [
            {
                "id": link.id,
                "title": link.title,
                "status": str(link.status),
                "detail": link.detail,
                "evidence": _evidence(link.evidence),
            }
            for link in diagnosis.chain
        ],
        "alternatives": [
            {"id": other.id, "status": str(other.status), "by": other.by, "evidence": _evidence(other.evidence)}
            for other in diagnosis.alternatives
        ],
        "affected": [_vm(vm) for vm in diagnosis.affected],
        "verdicts": verdicts_as_data(verdicts),
        "runbook": runbook,
        "warnings": list(diagnosis.warnings),
        "unread": [{"what": what, "why": why} for what, why in sorted(diagnosis.unread.items())],
    }


def _vm(vm: AffectedVm) -> Mapping[str, Any]:
    return {
        "namespace": vm.namespace,
        "name": vm.name,
        "status": vm.status,
        "resources": dict(vm.resources),
        "since": _time(vm.since),
        "reason": vm.reason,
        "evidence": _evidence(vm.evidence),
        "servable_elsewhere": vm.servable_elsewhere,
        "other_nodes": [{"name": n.name, "can_serve": n.can_serve, "reason": n.reason} for n in vm.other_nodes],
    }


def _evidence(evidence: Sequence[Evidence]) -> list[dict[str, str]]:
    return [{"source": item.source, "excerpt": item.excerpt} for item in evidence]


def _time(moment: datetime | None) -> str | None:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment is not None else None
