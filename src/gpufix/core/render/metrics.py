"""A recovery as Prometheus text, for node_exporter's textfile collector. Pure.

The format is Prometheus' text exposition format 0.0.4: a family has its HELP and TYPE once and all its samples
together, and a series occurs once; node_exporter throws away a file that breaks one of these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

Series = Mapping[tuple[tuple[str, str], ...], float]


@dataclass(frozen=True, slots=True)
class StepMetrics:
    step: str
    outcome: str
    seconds: float


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """One ended recovery. Datetimes know their zone. ``runbook`` is empty where none fitted; None is not known.

    ``failed_since``: when the failure began that this run was for, whether or not it ended with the run.
    """

    node: str
    runbook: str
    exit_status: int
    finished_at: datetime
    seconds: float
    steps: tuple[StepMetrics, ...] = ()
    failed_since: datetime | None = None
    vms_waiting: int | None = None


def metrics_text(run: RunMetrics) -> str:
    """All families of ``run``; one without a known value is left out."""
    of_run = (("node", run.node), ("runbook", run.runbook))
    steps: dict[tuple[tuple[str, str], ...], float] = {}
    for step in run.steps:
        labels = (*of_run, ("step", step.step), ("outcome", step.outcome))
        steps[labels] = steps.get(labels, 0.0) + step.seconds
    families: list[tuple[str, str, Series]] = [
        (
            "gpufix_recover_exit_status",
            "Exit status of the last recovery of this node; 0 is recovered or nothing to do.",
            {of_run: run.exit_status},
        ),
        (
            "gpufix_recover_success",
            "Whether the last recovery ended with exit status 0.",
            {of_run: 1 if run.exit_status == 0 else 0},
        ),
        (
            "gpufix_recover_last_run_timestamp_seconds",
            "When the last recovery ended, in seconds since the epoch.",
            {of_run: run.finished_at.timestamp()},
        ),
        (
            "gpufix_recover_duration_seconds",
            "How long the last recovery took, the operator's time at its gates included.",
            {of_run: max(0.0, run.seconds)},
        ),
        (
            "gpufix_recover_step_duration_seconds",
            "How long each step of the last recovery took, by its outcome.",
            {labels: max(0.0, seconds) for labels, seconds in steps.items()},
        ),
        *_failure(run),
        (
            "gpufix_recover_vms_waiting",
            "Virtual machines that still waited for a GPU of this node when the last recovery ended.",
            {of_run: run.vms_waiting} if run.vms_waiting is not None else {},
        ),
    ]
    lines: list[str] = []
    for name, text, series in families:
        if series:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
            lines += [f"{name}{{{_labels(labels)}}} {_number(value)}" for labels, value in series.items()]
    return "".join(line + "\n" for line in lines)


def _failure(run: RunMetrics) -> list[tuple[str, str, Series]]:
    if run.failed_since is None:
        return []
    node = ("node", run.node)
    age = (run.finished_at - run.failed_since).total_seconds()
    return [
        (
            "gpufix_node_failed_since_timestamp_seconds",
            "When the failure began that the last recovery was for, in seconds since the epoch.",
            {(node,): run.failed_since.timestamp()},
        ),
        (
            "gpufix_recover_failure_age_seconds",
            "How old that failure was when the last recovery ended.",
            {(node, ("runbook", run.runbook)): max(0.0, age)},  # the node's clock may be ahead of ours
        ),
    ]


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    return ",".join(f'{name}="{escape_label(value)}"' for name, value in labels)


def escape_label(value: str) -> str:
    """``value`` as the exposition format wants it between double quotes. A lone surrogate, which no UTF-8 file can
    hold, becomes U+FFFD."""
    whole = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
