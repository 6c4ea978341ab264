"""Reads a runbook: YAML text -> Runbook, with every mistake named by its place and the nearest right word. Pure.

A runbook is data and cannot become a language: its conditions are ``all`` / ``any`` / ``not`` over named observations
(``core.observations``), findings (root cause ids) and answers. Real logic lives in a playbook.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpufix.core.checked_yaml import Marks, Path, load_checked, mistake, near, quoted
from gpufix.errors import GpufixError

Scalar = str | int | bool


@dataclass(frozen=True, slots=True)
class FromAnswer:
    """A value that is the answer to a question."""

    question: str


Value = Scalar | FromAnswer


@dataclass(frozen=True, slots=True)
class Leaf:
    """``kind`` is observation | finding | answer. ``op`` is ``is`` or ``at_least``."""

    kind: str
    name: str
    op: str
    value: Value
    because: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """``op`` is all | any | not (one part)."""

    op: str
    parts: tuple[Condition, ...]


Condition = Leaf | Group
ALWAYS = Group("all", ())
NEVER = Group("any", ())
UNDO = "undo"
"""The id of the runbook that is made of a run to undo it; no file of one can have it."""


@dataclass(frozen=True, slots=True)
class Choice:
    value: str
    label: str
    consequence: str


@dataclass(frozen=True, slots=True)
class Question:
    id: str
    ask: str
    default: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class RunbookStep:
    """One step as written. ``timeout`` and ``stable_for`` are seconds; ``playbook`` empty: the step only observes."""

    id: str
    title: str
    why: str
    done_when: Condition
    timeout: int
    when: Condition = ALWAYS
    requires: Condition = ALWAYS
    playbook: str = ""
    variables: Mapping[str, Value] = field(default_factory=dict)
    stable_for: int = 0
    if_late: str = ""
    skippable: bool = False
    destructive: Condition = NEVER
    irreversible: str = ""
    risk: str = ""


@dataclass(frozen=True, slots=True)
class Runbook:
    id: str
    title: str
    summary: str
    fits: Condition
    questions: tuple[Question, ...]
    steps: tuple[RunbookStep, ...]
    digest: str = ""
    """SHA-256 of the file's text, filled in by the caller that read it."""


def load_runbook(
    text: str,
    *,
    file: str,
    schema: Mapping[str, Any],
    observations: Sequence[str],
    findings: Sequence[str],
    playbooks: Sequence[str],
) -> Runbook:
    """The runbook in ``text``. ``observations``, ``findings`` and ``playbooks`` are the names that exist.

    Raises GpufixError (exit status 2) with ``file:line:column`` for broken YAML, a schema violation or an unknown name.
    """
    data, marks = load_checked(text, file, schema, "runbook")
    book = _runbook(data)
    _check_names(book, data, file, marks, observations, findings, playbooks)
    return book


def _condition(data: Any) -> Condition:
    for op in ("all", "any"):
        if op in data:
            return Group(op, tuple(_condition(part) for part in data[op]))
    if "not" in data:
        return Group("not", (_condition(data["not"]),))
    kind = next(kind for kind in ("observation", "finding", "answer") if kind in data)
    op = "is" if "is" in data else "at_least"
    return Leaf(kind, data[kind], op, _value(data[op]), data.get("because", ""))


def _value(data: Any) -> Value:
    return FromAnswer(data["answer"]) if isinstance(data, dict) else data


def _runbook(data: Mapping[str, Any]) -> Runbook:
    return Runbook(
        id=data["id"],
        title=data["title"],
        summary=_fold(data["summary"]),
        fits=_condition(data["fits"]),
        questions=tuple(
            Question(
                q["id"],
                q["ask"],
                q["default"],
                tuple(Choice(c["value"], c["label"], _fold(c["consequence"])) for c in q["choices"]),
            )
            for q in data["questions"]
        ),
        steps=tuple(_step(step) for step in data["steps"]),
    )


def _step(data: Mapping[str, Any]) -> RunbookStep:
    destructive = data.get("destructive", False)
    return RunbookStep(
        id=data["id"],
        title=data["title"],
        why=_fold(data["why"]),
        done_when=_condition(data["done_when"]),
        timeout=data["timeout"],
        when=_condition(data["when"]) if "when" in data else ALWAYS,
        requires=_condition(data["requires"]) if "requires" in data else ALWAYS,
        playbook=data.get("playbook", ""),
        variables={name: _value(value) for name, value in data.get("vars", {}).items()},
        stable_for=data.get("stable_for", 0),
        if_late=_fold(data.get("if_late", "")),
        skippable=data.get("skippable", False),
        destructive=(ALWAYS if destructive else NEVER) if isinstance(destructive, bool) else _condition(destructive),
        irreversible=_fold(data.get("irreversible", "")),
        risk=_fold(data.get("risk", "")),
    )


def _fold(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _check_names(
    book: Runbook,
    data: Any,
    file: str,
    marks: Marks,
    observations: Sequence[str],
    findings: Sequence[str],
    playbooks: Sequence[str],
) -> None:
    known = {"observation": observations, "finding": findings, "answer": [q.id for q in book.questions]}
    choices = {q.id: [choice.value for choice in q.choices] for q in book.questions}

    def fail(path: Path, message: str, hint: str) -> GpufixError:
        return mistake(file, marks[path], message, hint)

    def visit(value: Any, path: Path) -> None:
        if isinstance(value, dict):
            for kind, names in known.items():
                name = value.get(kind)
                if isinstance(name, str) and name not in names:
                    raise fail((*path, kind), f"unknown {kind} {quoted(name)}", near(name, names))
            asked, wanted = value.get("answer"), value.get("is")
            if isinstance(asked, str) and isinstance(wanted, str) and wanted not in choices[asked]:
                raise fail(
                    (*path, "is"), f"{quoted(wanted)} is no choice of {quoted(asked)}", near(wanted, choices[asked])
                )
            for key, part in value.items():
                visit(part, (*path, key))
        elif isinstance(value, list):
            for index, part in enumerate(value):
                visit(part, (*path, index))

    visit(data, ())
    asked_before: set[str] = set()
    for index, question in enumerate(book.questions):
        if question.id in asked_before:
            raise fail(("questions", index, "id"), f"question {quoted(question.id)} stands twice", "keep one of them")
        asked_before.add(question.id)
        if question.default not in choices[question.id]:
            raise fail(
                ("questions", index, "default"),
                f"default {quoted(question.default)} is no choice",
                near(question.default, choices[question.id]),
            )
    seen: set[str] = set()
    for index, step in enumerate(book.steps):
        if step.id in seen:
            raise fail(
                ("steps", index, "id"), f"step {quoted(step.id)} stands twice", "every step has an id of its own"
            )
        seen.add(step.id)
        if step.playbook and step.playbook not in playbooks:
            raise fail(
                ("steps", index, "playbook"), f"no playbook {quoted(step.playbook)}", near(step.playbook, playbooks)
            )
