"""Answers files as they are described and written: their JSON Schema, the sample that a person fills in, and the file
that makes a wizard's run again. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from gpufix.core.answers import (
    DIGEST_PATTERN,
    NO_NAMES,
    NODE_PATTERN,
    StepConsent,
    can_kill,
    choices_of,
    gated_steps,
    shown,
)
from gpufix.core.checked_yaml import NOT_YAML, plain_value
from gpufix.core.runbook import ALWAYS, NEVER, Condition, FromAnswer, Leaf, Question, Runbook, RunbookStep
from gpufix.text import safe

_ID = r"^[a-z][a-z0-9-]*$"
_QUESTION_ID = r"^[a-z][a-z0-9_]*$"

# --- the schema ------------------------------------------------------------------------------------------------------


def answers_schema(runbook: Runbook | None = None) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of an answers file for ``runbook``; without one, for any runbook.

    A file that ``load_answers`` takes is valid by both.
    """
    if runbook is None:
        title, about = "Answers for an unattended run of gpufix", "gpufix recover NODE --answers FILE"
        which: dict[str, Any] = {"type": "string", "pattern": _ID, "description": "the id of the runbook"}
        answers: dict[str, Any] = {
            "propertyNames": {"pattern": _QUESTION_ID},
            "additionalProperties": {"type": "string"},
        }
        consent: dict[str, Any] = {"propertyNames": {"pattern": _ID}, "additionalProperties": _consent(True, True)}
    else:
        title, about = f"Answers for an unattended run of {runbook.id}", _plain(runbook.summary)
        which = {"const": runbook.id, "description": _plain(runbook.title)}
        answers = {"additionalProperties": False, "properties": {q.id: _question(q) for q in runbook.questions}}
        consent = {
            "additionalProperties": False,
            "properties": {
                step.id: {
                    "title": _plain(step.title),
                    "description": " ".join(_about_step(step)),
                    **_consent(step.skippable, can_kill(runbook)),
                }
                for step in gated_steps(runbook)
            },
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "gpufix-answers-1" if runbook is None else f"gpufix-answers-1-{runbook.id}",
        "title": title,
        "description": about,
        "type": "object",
        "additionalProperties": False,
        "required": ["version", "runbook"],
        "properties": {
            "version": {"const": 1, "description": "of this format"},
            "runbook": which,
            "node": {**_node(), "description": "The file is for this node only."},
            "answers": {
                "type": ["object", "null"],
                "description": "one for each question; there is no default",
                **answers,
            },
            "consent": {"type": ["object", "null"], "description": "one for each gate, never a blanket yes", **consent},
        },
    }


def _node() -> dict[str, Any]:
    return {"type": "string", "pattern": NODE_PATTERN, "not": {"enum": list(NO_NAMES)}}


def _consent(skippable: bool, kills: bool) -> dict[str, Any]:
    short: list[dict[str, Any]] = [
        {"type": "boolean", "description": "true: where the step is not destructive; false: stop before any change"},
        {**_node(), "description": "the node's name, which a destructive step wants"},
    ]
    if skippable:
        short.append({"const": "skip", "description": "leave this step out"})
    keys: dict[str, Any] = {
        "consent": {"anyOf": short},
        "plan": {"type": "string", "pattern": DIGEST_PATTERN, "description": "only for the plan of this digest"},
    }
    if kills:
        keys["kills"] = {
            "type": "array",
            "items": {"type": "integer", "minimum": 1},
            "description": "pids of processes on the node's GPU that may die, towards vm-passthrough",
        }
    long = {"type": "object", "additionalProperties": False, "required": ["consent"], "properties": keys}
    return {"anyOf": [*short, long]}


def _question(question: Question) -> dict[str, Any]:
    told = [f"{_plain(c.value)} ({_plain(c.label)}): {_plain(c.consequence)}" for c in question.choices]
    return {
        "type": "string",
        "description": " ".join([_plain(question.ask), *told]),
        "enum": choices_of(question),
    }


# --- files -----------------------------------------------------------------------------------------------------------


def _plain(text: str) -> str:
    """``text`` in one line, with nothing that YAML would refuse or a terminal obey."""
    return NOT_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", safe(" ".join(text.split())))


def _comment(text: str, indent: int = 0, hanging: int = 0) -> list[str]:
    first = " " * indent + "# "
    return textwrap.wrap(
        _plain(text),
        110,
        initial_indent=first,
        subsequent_indent=first + " " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


_BARE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


def _yaml(text: str) -> str:
    """``text`` as a scalar: bare where no reader could take it for anything else."""
    if _BARE.fullmatch(text) and isinstance(plain_value(text), str) and text.lower() not in NO_NAMES:
        return text
    body = "".join(_ESCAPES.get(char, char) for char in text)
    return '"' + NOT_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", body) + '"'


def _words(condition: Condition) -> str:
    """``condition`` as a person would say it."""
    if isinstance(condition, Leaf):
        op = "is at least" if condition.op == "at_least" else "is"
        if isinstance(condition.value, FromAnswer):
            return f"{condition.name} {op} the answer to {condition.value.question}"
        value = condition.value if isinstance(condition.value, str) else shown(condition.value)
        return f"{condition.name} {op} {value}"
    if condition.op == "not":
        return f"not ({_words(condition.parts[0])})"
    joint = " and " if condition.op == "all" else " or "
    return joint.join(
        _words(part) if isinstance(part, Leaf) or len(condition.parts) == 1 else f"({_words(part)})"
        for part in condition.parts
    )


def _about_step(step: RunbookStep) -> list[str]:
    """Risk, whether it is destructive, and that there is no way back: a sentence each."""
    told = [f"Risk: {_plain(step.risk)}"] if step.risk else []
    if step.destructive == ALWAYS:
        told.append("Destructive: it wants the node's name.")
    elif step.destructive == NEVER:
        told.append("Not destructive: true is enough.")
    else:
        told.append(f"Destructive if {_plain(_words(step.destructive))}: then it wants the node's name.")
    if step.irreversible:
        told.append(f"No way back: {_plain(step.irreversible)}")
    if step.skippable:
        told.append("May be skipped where no later step needs it.")
    return told


def sample(runbook: Runbook, node: str | None) -> str:
    """An answers file to fill in. Untouched it answers nothing and declines every gate."""
    lines = [
        *_comment(f"Answers for an unattended run of {runbook.id}: {runbook.title}"),
        *_comment(runbook.summary),
        "#",
        *_comment(f"gpufix recover {node or 'NODE'} --answers FILE"),
        "#",
        *_comment("As it stands it answers nothing and consents to nothing, and a run with it is refused."),
        "version: 1",
        f"runbook: {_yaml(runbook.id)}",
    ]
    if node:
        lines += [f"node: {_yaml(node)}"]
    else:
        lines += ["# For one node only: take the # off the next line and write its name.", "#node: NODE"]
    if runbook.questions:
        lines += [
            "",
            "# Take the # off one answer to each question (the # alone, so that its indent stays).",
            "answers:",
        ]
    for question in runbook.questions:
        lines += _comment(question.ask, 2)
        for choice in question.choices:
            lines += _comment(f"{choice.label}: {choice.consequence}", 2, 2)
            lines.append(f"  #{_yaml(question.id)}: {_yaml(choice.value)}")
    steps = gated_steps(runbook)
    if steps:
        lines += [
            "",
            "# One consent for each gate. Write, in place of false:",
            "#   true                       the gate is passed, if the step is not destructive",
            f"#   {node or 'the name of the node':<26} the gate is passed, destructive or not, on this node",
            "#   skip                       the step is left out, if it says below that it may be",
            "#   false                      the run stops before any change",
            "# The long form holds for one plan only, and towards vm-passthrough it names the processes that may die:",
            f"#   {{consent: {node or 'NODE'}, plan: sha256:<64 hex digits>, kills: [4242]}}",
            "consent:",
        ]
    for step in steps:
        lines += _comment(step.title, 2)
        for sentence in _about_step(step):
            lines += _comment(sentence, 2, 2)
        lines.append(f"  {_yaml(step.id)}: false")
    return "\n".join(lines) + "\n"


def saved(
    runbook: Runbook,
    node: str,
    answers: Mapping[str, str],
    consents: Mapping[str, bool | str | StepConsent],
    comments: Sequence[str] = (),
) -> str:
    """The file that makes the same run again on ``node``. A consent is as in the file, or a StepConsent.

    ``load_answers`` gives back what went in.
    """
    lines = [line for comment in comments for line in _comment(comment) or ["#"]]
    lines += ["version: 1", f"runbook: {_yaml(runbook.id)}", f"node: {_yaml(node)}"]
    if answers:
        lines += ["answers:", *(f"  {_yaml(name)}: {_yaml(value)}" for name, value in answers.items())]
    if consents:
        lines += ["consent:", *(f"  {_yaml(step)}: {_written(consent)}" for step, consent in consents.items())]
    return "\n".join(lines) + "\n"


def _written(consent: bool | str | StepConsent) -> str:
    if isinstance(consent, bool):
        return "true" if consent else "false"
    if isinstance(consent, str):
        return "skip" if consent == "skip" else _yaml(consent)
    short = {"yes": _yaml(consent.node) if consent.node else "true", "no": "false", "skip": "skip"}[consent.kind]
    if not consent.plan and not consent.kills:
        return short
    keys = [f"consent: {short}"]
    if consent.plan:
        keys.append(f"plan: {_yaml(consent.plan)}")
    if consent.kills:
        keys.append(f"kills: [{', '.join(map(str, sorted(consent.kills)))}]")
    return "{" + ", ".join(keys) + "}"
