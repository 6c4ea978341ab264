"""Reads a runbook: YAML text -> Runbook, with every mistake named by its place and the nearest right word. Pure.

A runbook is data and cannot become a language: its conditions are ``all`` / ``any`` / ``not`` over named observations
(``core.observations``), findings (root cause ids) and answers. Real logic lives in a playbook.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from gpufix.core import placeholders
from gpufix.core.checked_yaml import Marks, Path, load_checked, mistake, near, quoted
from gpufix.errors import GpufixError
from gpufix.language import t

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
class HandCommand:
    """Bash for the shell ``on`` (admin | node), with ``{{ name }}`` for values (``core.placeholders``).

    ``output`` is what it prints, to the letter, but for ``...`` at the end of a line; ``expect`` says it in words.
    """

    on: str
    run: str
    expect: str = ""
    output: str = ""
    when: Condition = ALWAYS
    for_each: str = ""


@dataclass(frozen=True, slots=True)
class ByHand:
    """A step as a person does it without gpufix. ``diff``: ``fstab``, or empty."""

    check: tuple[HandCommand, ...]
    commands: tuple[HandCommand, ...]
    verify: tuple[HandCommand, ...]
    if_it_fails: str
    undo: tuple[HandCommand, ...] = ()
    undo_note: str = ""
    expect: str = ""
    diff: str = ""


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
    by_hand: ByHand | None = None


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
    access: tuple[str, ...] = ()
    """Rights and tools that a person needs who follows the runbook by hand."""
    console: str = ""
    """What that person may and may not do with no way to the API server."""


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


SENTENCES = frozenset(
    {
        "title", "summary", "access", "console", "ask", "label", "consequence", "why", "because", "risk",
        "irreversible", "if_late", "expect", "if_it_fails", "undo_note",
    }
)  # fmt: skip
"""The fields that say something to people. All others are names, conditions, commands and what these print."""


def spoken(book: Runbook) -> Runbook:
    """``book``, one of gpufix's own, with its sentences in the language of the person. Its digest stays the file's."""
    said = _spoken(book)
    assert isinstance(said, Runbook)
    return said


def _spoken(part: Any) -> Any:
    if isinstance(part, tuple):
        return tuple(_spoken(one) for one in part)
    if not is_dataclass(part) or isinstance(part, type):
        return part
    values = {one.name: getattr(part, one.name) for one in fields(part)}
    return replace(
        part, **{name: _said(value) if name in SENTENCES else _spoken(value) for name, value in values.items()}
    )


def _said(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    return t(value) if isinstance(value, str) else tuple(t(one) for one in value)


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
        access=tuple(_fold(text) for text in data.get("by_hand", {}).get("access", ())),
        console=_fold(data.get("by_hand", {}).get("console", "")),
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
        by_hand=_by_hand(data["by_hand"]) if "by_hand" in data else None,
    )


def _by_hand(data: Mapping[str, Any]) -> ByHand:
    def commands(key: str) -> tuple[HandCommand, ...]:
        return tuple(
            HandCommand(
                on=one["on"],
                run=one["run"].strip("\n"),
                expect=_fold(one.get("expect", "")),
                output=one.get("output", "").strip("\n"),
                when=_condition(one["when"]) if "when" in one else ALWAYS,
                for_each=one.get("for_each", ""),
            )
            for one in data.get(key, ())
        )

    return ByHand(
        check=commands("check"),
        commands=commands("commands"),
        verify=commands("verify"),
        if_it_fails=_fold(data["if_it_fails"]),
        undo=commands("undo"),
        undo_note=_fold(data.get("undo_note", "")),
        expect=_fold(data.get("expect", "")),
        diff=data.get("diff", ""),
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
        if step.by_hand is not None:
            _check_by_hand(step, ("steps", index, "by_hand"), [q.id for q in book.questions], fail)


def _check_by_hand(
    step: RunbookStep, path: Path, questions: Sequence[str], fail: Callable[[Path, str, str], GpufixError]
) -> None:
    hand = step.by_hand
    assert hand is not None
    if step.playbook and not hand.commands:
        raise fail(path, "a step with a playbook has commands by hand too", "say what a person types: commands")
    if hand.commands and not hand.undo and not step.irreversible:
        raise fail(path, "there is no way back by hand, and the step does not say why", "give undo, or irreversible")
    for key in ("if_it_fails", "undo_note", "expect"):
        _check_values(getattr(hand, key), (*path, key), "", questions, fail)
    for key in ("check", "commands", "verify", "undo"):
        for index, command in enumerate(getattr(hand, key)):
            _check_command(command, (*path, key, index), questions, fail)


def _check_command(
    command: HandCommand, path: Path, questions: Sequence[str], fail: Callable[[Path, str, str], GpufixError]
) -> None:
    many = placeholders.many_names()
    if command.for_each and command.for_each not in many:
        raise fail((*path, "for_each"), f"no values {quoted(command.for_each)}", near(command.for_each, many))
    for key in ("run", "output", "expect"):
        _check_values(getattr(command, key), (*path, key), command.for_each, questions, fail)
    if wrong := placeholders.why_unfillable(command.run):
        raise fail((*path, "run"), *wrong)


def _check_values(
    text: str, path: Path, for_each: str, questions: Sequence[str], fail: Callable[[Path, str, str], GpufixError]
) -> None:
    known = [*placeholders.NAMES, *questions]
    for name in placeholders.names_in(text):
        if name not in known:
            raise fail(path, f"no value {quoted(name)}", near(name, known))
        if name in placeholders.many_names() and name != for_each:
            raise fail(path, f"there may be many of {quoted(name)}", f"give for_each: {name}")
