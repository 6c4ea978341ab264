"""diagnose and capture: sequencing only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from gpufix.core.render.data import diagnosis_as_data
from gpufix.core.render.terminal import Style, diagnosis_lines
from gpufix.core.runbook import Runbook
from gpufix.core.verdict import judge
from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import t
from gpufix.model import Status
from gpufix.recovery import fitting
from gpufix.session import Reading, judge_snapshot, read_signatures
from gpufix.world.snapshots import read_snapshot_folder, write_snapshot


def read_folder(folder: Path, node: str) -> Reading:
    """The reading of a snapshot folder: the same code as for a live node, with no cluster and no host."""
    return judge_snapshot(read_snapshot_folder(folder, node), read_signatures())


def require_one(reading: Reading) -> None:
    """Raises GpufixError (status 7) when neither side could be read: then there is nothing to diagnose."""
    unread = reading.snapshot.unread
    if "cluster" in unread and "host" in unread:
        raise GpufixError(
            t(
                "neither the cluster nor the host could be read: {cluster}; {host}",
                cluster=unread["cluster"],
                host=unread["host"],
            ),
            t("check KUBECONFIG, the inventory, and that the machines answer"),
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
    """Whether ``diagnose --exit-code`` says 3: everything but a positively healthy node that survives a reboot."""
    cause = reading.diagnosis.root_cause
    healthy = cause.id == "healthy" and cause.status is Status.CONFIRMED
    return not healthy or judge(reading.facts, reading.diagnosis).node.reboot_proof is False


def capture(reading: Reading, folder: Path) -> None:
    write_snapshot(reading.snapshot, folder)
