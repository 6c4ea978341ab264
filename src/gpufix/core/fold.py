"""Folds the event stream of one playbook run into what happened. Pure.

Success is only: return code 0 **and** the host among the play's processed hosts **and** in neither failures nor dark.
"No hosts matched" ends with return code 0 and empty stats (ansible-runner), so the code alone proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from gpufix.language import t


class Trouble(StrEnum):
    """Why a run is not a success."""

    NONE = "none"
    NO_HOST = "no-host"
    UNREACHABLE = "unreachable"
    BECOME = "become"
    FAILED = "failed"
    NOT_RUN = "not-run"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """One task on one host. ``result`` is what the module returned; ``diffs`` are Ansible's before/after records."""

    name: str
    host: str
    action: str
    changed: bool = False
    failed: bool = False
    unreachable: bool = False
    skipped: bool = False
    ignored: bool = False
    message: str = ""
    diffs: tuple[Mapping[str, Any], ...] = ()
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlayState:
    """What the events so far say. ``processed``, ``failures`` and ``dark`` come from the final stats event."""

    tasks: tuple[TaskResult, ...] = ()
    processed: frozenset[str] = frozenset()
    failures: frozenset[str] = frozenset()
    dark: frozenset[str] = frozenset()
    ended: bool = False
    notes: tuple[str, ...] = ()
    """Lines Ansible printed outside any task: errors, warnings."""


@dataclass(frozen=True, slots=True)
class PlayResult:
    """A finished run. ``ok`` says that it did what it says; the post-condition still has to be read from the world."""

    ok: bool
    trouble: Trouble
    message: str
    tasks: tuple[TaskResult, ...]

    @property
    def changed(self) -> bool:
        return any(task.changed for task in self.tasks)

    def returned(self, key: str) -> Any:
        """The value that some task returned under ``key``; the last one wins. None where none did."""
        for task in reversed(self.tasks):
            if key in task.result:
                return task.result[key]
        return None


_RESULTS = ("runner_on_ok", "runner_on_failed", "runner_on_unreachable", "runner_on_skipped")


def fold_event(state: PlayState, event: Mapping[str, Any]) -> PlayState:
    """``state`` after ``event`` (an ansible-runner event). Unknown or malformed events change nothing."""
    kind = event.get("event")
    data = event.get("event_data")
    if not isinstance(data, Mapping):
        data = {}
    if kind in _RESULTS:
        return replace(state, tasks=(*state.tasks, _task(str(kind), data)))
    if kind == "playbook_on_stats":
        return replace(
            state,
            ended=True,
            processed=_hosts(data.get("processed")),
            failures=_hosts(data.get("failures")),
            dark=_hosts(data.get("dark")),
        )
    if kind in ("error", "warning", "verbose", "playbook_on_no_hosts_matched"):
        text = str(event.get("stdout") or "").strip()
        return replace(state, notes=(*state.notes, text)) if text else state
    return state


def _hosts(counts: Any) -> frozenset[str]:
    return frozenset(str(host) for host in counts) if isinstance(counts, Mapping) else frozenset()


def _task(kind: str, data: Mapping[str, Any]) -> TaskResult:
    result = data.get("res")
    if not isinstance(result, Mapping):
        result = {}
    diff = result.get("diff")
    records = diff if isinstance(diff, list) else [diff] if isinstance(diff, Mapping) else []
    return TaskResult(
        name=str(data.get("task") or ""),
        host=str(data.get("host") or ""),
        action=str(data.get("task_action") or ""),
        changed=result.get("changed") is True and kind == "runner_on_ok",
        failed=kind == "runner_on_failed",
        unreachable=kind == "runner_on_unreachable",
        skipped=kind == "runner_on_skipped",
        ignored=bool(data.get("ignore_errors")),
        message=_message(result),
        diffs=tuple(record for record in records if isinstance(record, Mapping)),
        result={key: value for key, value in result.items() if key not in ("diff", "invocation")},
    )


def _message(result: Mapping[str, Any]) -> str:
    for key in ("msg", "stderr", "module_stderr", "reason"):
        text = result.get(key)
        if isinstance(text, str) and text.strip():
            return text.strip()
    return ""


def fold(events: Iterable[Mapping[str, Any]]) -> PlayState:
    state = PlayState()
    for event in events:
        state = fold_event(state, event)
    return state


_BECOME_WORDS = ("sudo", "become password", "incorrect password", "a password is required", "privilege escalation")


def finish(state: PlayState, return_code: int | None, host: str) -> PlayResult:
    """The verdict over a run that was meant for ``host``."""
    trouble, message = _judge(state, return_code, host)
    return PlayResult(trouble is Trouble.NONE, trouble, message, state.tasks)


def _judge(state: PlayState, return_code: int | None, host: str) -> tuple[Trouble, str]:
    for task in state.tasks:
        if task.unreachable:
            return Trouble.UNREACHABLE, task.message or t("{host} is unreachable", host=task.host)
    for task in state.tasks:
        if task.failed and not task.ignored:
            words = task.message.lower()
            become = any(word in words for word in _BECOME_WORDS) and "gpufix" not in words
            message = task.message or t("task {task} failed", task=repr(t(task.name)))
            return (Trouble.BECOME if become else Trouble.FAILED), message
    if state.ended and return_code == 0 and not state.processed:
        return Trouble.NO_HOST, t("no host matched {host}", host=repr(host))
    if host in state.dark:
        return Trouble.UNREACHABLE, t("{host} is unreachable", host=host)
    if host in state.failures:
        return Trouble.FAILED, t("the play failed on {host}", host=host)
    if return_code != 0:
        told = _why_not_run(state) or t("ansible-playbook ended with status {status}", status=return_code)
        return Trouble.NOT_RUN, told
    if host not in state.processed:
        return Trouble.NO_HOST, t("the play did not run on {host}", host=repr(host))
    return Trouble.NONE, ""


def _why_not_run(state: PlayState) -> str:
    lines = [line.strip() for note in state.notes for line in note.splitlines()]
    errors = [line for line in lines if "ERROR" in line]
    return (errors or lines or [""])[0]


def progress(event: Mapping[str, Any]) -> str:
    """The line to show while a play runs: the task that began, or the look that did not find it done yet."""
    data = event.get("event_data")
    if not isinstance(data, Mapping):
        return ""
    task = t(str(data.get("task") or data.get("name") or ""))
    if event.get("event") == "playbook_on_task_start":
        return task
    if event.get("event") in ("runner_retry", "runner_on_retry"):
        result = data.get("res")
        attempts = result.get("attempts") if isinstance(result, Mapping) else None
        if attempts:
            return t("{task}: not yet (look {n})", task=task, n=attempts)
        return t("{task}: not yet", task=task)
    return ""


def explain(result: PlayResult, host: str) -> str:
    """One line on why a run on ``host`` failed, in the words of whoever refused."""
    message = re.sub(r"^(Task failed: )?", "", re.sub(r"\s+", " ", result.message).strip())
    if result.trouble is Trouble.UNREACHABLE:
        message = re.sub(r"^Failed to connect to the host via ssh: ", "", message)
        return t("{host} is unreachable: {why}", host=host, why=message)
    if result.trouble is Trouble.BECOME:
        return t("sudo on {host} failed: {why}", host=host, why=message)
    return message if host == "localhost" else f"{host}: {message}"
