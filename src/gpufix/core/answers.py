"""The answers file of an unattended run: its schema, reading it, writing it, and what its consents are good for. Pure.

Nothing in it is a default: every question is answered, and every gate has a consent of its own that names the step.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpufix.core.checked_yaml import NOT_YAML, Mark, Marks, Path, mistake, near, plain_value, quoted, read_yaml
from gpufix.core.runbook import ALWAYS, NEVER, Condition, FromAnswer, Leaf, Question, Runbook, RunbookStep
from gpufix.core.workload import VM_PASSTHROUGH
from gpufix.errors import ExitStatus, GpufixError
from gpufix.text import safe

Kind = Literal["yes", "no", "skip"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where something was said. ``line`` 0: not in a file, and ``file`` says it whole (``-a question=value``)."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


ASKED = Origin("the prompt")
DEFAULT = Origin("the runbook's default")


@dataclass(frozen=True, slots=True)
class Answer:
    value: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class StepConsent:
    """What is said of one gate. ``node`` empty: a plain ``true``. ``plan`` empty: for whatever plan there is.

    ``kills``: the processes on the node's GPU that may die.
    """

    step: str
    kind: Kind
    node: str = ""
    plan: str = ""
    kills: frozenset[int] = frozenset()
    origin: Origin = ASKED


@dataclass(frozen=True, slots=True)
class Answers:
    """A whole file. ``node`` empty: for any node. ``origins``: of ``runbook`` and, where it is there, ``node``."""

    file: str
    runbook_id: str
    node: str
    answers: Mapping[str, Answer]
    consents: Mapping[str, StepConsent]
    origins: Mapping[str, Origin] = field(default_factory=dict)


_NODE = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
_DIGEST = r"^sha256:[0-9a-f]{64}$"
_ID = r"^[a-z][a-z0-9-]*$"
_QUESTION_ID = r"^[a-z][a-z0-9_]*$"
NO_NAMES = ("true", "false", "yes", "no", "on", "off", "y", "n", "ok", "all", "any", "none", "null", "skip")
"""Never taken for a node's name: where one is meant as a yes or a no, reading it as a name would change its sense."""
_BLANKETS = ("*", "all", "any", "default", "defaults", "everything")
_TOP_KEYS = ("version", "runbook", "node", "answers", "consent")
_CONSENT_KEYS = ("consent", "plan", "kills")
_WORKLOAD = "target_workload"


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
                    **_consent(step.skippable, _can_kill(runbook)),
                }
                for step in _gates(runbook)
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
    return {"type": "string", "pattern": _NODE, "not": {"enum": list(NO_NAMES)}}


def _consent(skippable: bool, can_kill: bool) -> dict[str, Any]:
    short: list[dict[str, Any]] = [
        {"type": "boolean", "description": "true: where the step is not destructive; false: stop before any change"},
        {**_node(), "description": "the node's name, which a destructive step wants"},
    ]
    if skippable:
        short.append({"const": "skip", "description": "leave this step out"})
    keys: dict[str, Any] = {
        "consent": {"anyOf": short},
        "plan": {"type": "string", "pattern": _DIGEST, "description": "only for the plan of this digest"},
    }
    if can_kill:
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
        "enum": _choices(question),
    }


def _choices(question: Question) -> list[str]:
    return list(dict.fromkeys(choice.value for choice in question.choices))


def _gates(runbook: Runbook) -> list[RunbookStep]:
    return [step for step in runbook.steps if step.playbook]


def _can_kill(runbook: Runbook) -> bool:
    return any(q.id == _WORKLOAD and VM_PASSTHROUGH in _choices(q) for q in runbook.questions)


# --- reading ---------------------------------------------------------------------------------------------------------


def load_answers(text: str, file: str, books: Sequence[Runbook]) -> tuple[Answers, Runbook]:
    """The answers in ``text``, and the one of ``books`` that they are for. Not every question need be answered.

    Raises GpufixError (exit status 2) with ``file:line:column`` for broken YAML and for each mistake.
    """
    data, marks = read_yaml(text, file, "answers")
    return _Reading(file, marks).whole(data, books)


def _show(value: Any) -> str:
    """``value`` for a message, in the words of YAML rather than of Python."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "empty"
    if isinstance(value, list):
        return "a list"
    return "keys of its own" if isinstance(value, dict) else str(value)


def _listed(words: Iterable[str]) -> str:
    return ", ".join(safe(word, limit=60) or '""' for word in words)


@dataclass(frozen=True, slots=True)
class _Reading:
    file: str
    marks: Marks

    def fail(self, path: Path, message: str, hint: str = "") -> GpufixError:
        return mistake(self.file, self.marks.get(path, Mark(1, 1)), message, hint)

    def fail_at_key(self, path: Path, message: str, hint: str = "") -> GpufixError:
        return mistake(self.file, self.marks.of_key[path], message, hint)

    def origin(self, path: Path) -> Origin:
        return Origin(self.file, *self.marks[path])

    def whole(self, data: Any, books: Sequence[Runbook]) -> tuple[Answers, Runbook]:
        if not isinstance(data, dict):
            raise self.fail((), f"the file is {_show(data)}, not keys", f"its keys are {', '.join(_TOP_KEYS)}")
        # The version first: another may have other keys. Then those: a misspelt key is better told than a missing one.
        if "version" in data and (type(data["version"]) is not int or data["version"] != 1):
            raise self.fail(("version",), f"version is {_show(data['version'])}; it must be 1", "write version: 1")
        for key in data:
            if key not in _TOP_KEYS:
                raise self.fail_at_key((key,), f"unknown key {quoted(key)}", near(key, _TOP_KEYS))
        if "version" not in data:
            raise self.fail((), "version is missing", "write version: 1")
        book = self.runbook(data, books)
        node = self.node(data["node"], ("node",), "node") if "node" in data else ""
        questions = {question.id: question for question in book.questions}
        answers = {}
        for key, value in self.section(data, "answers", questions, f"a question of {book.id}").items():
            path = ("answers", key)
            answers[key] = Answer(self.answer(path, value, questions[key]), self.origin(path))
        consents = self.consents(data, book, node, answers)
        origins = {name: self.origin((name,)) for name in ("runbook", "node") if name in data}
        return Answers(self.file, book.id, node, answers, consents, origins), book

    def runbook(self, data: Mapping[str, Any], books: Sequence[Runbook]) -> Runbook:
        ids = [book.id for book in books]
        if "runbook" not in data:
            raise self.fail((), "runbook is missing", f"write runbook: with one of {_listed(ids)}")
        name = data["runbook"]
        for book in books:
            if book.id == name:
                return book
        if not isinstance(name, str):
            raise self.fail(("runbook",), f"runbook is {_show(name)}, not the id of one", near("", ids))
        raise self.fail(("runbook",), f"there is no runbook {quoted(name)}", near(name, ids))

    def node(self, value: Any, path: Path, where: str) -> str:
        if not isinstance(value, str):
            raise self.fail(
                path, f"{where} is {_show(value)}, not a node's name", "write one name, in quotes if it is a number"
            )
        if value in NO_NAMES or not re.fullmatch(_NODE, value) or value.endswith("\n"):
            raise self.fail(
                path, f"{where} is {quoted(value)}, which is no node's name", "kubectl get nodes lists them"
            )
        return value

    def section(self, data: Mapping[str, Any], name: str, known: Collection[str], what: str) -> Mapping[str, Any]:
        """The keys below ``name``, each of them known. With nothing in it, as when all is a comment, it is empty."""
        value = data.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.fail((name,), f"{name} is {_show(value)}, not keys", f"write {name}: and below it one key each")
        for key in value:
            if key not in known:
                raise self.fail_at_key(
                    (name, key), f"{name}.{_key(key)}: {quoted(key)} is not {what}", near(key, known)
                )
        return value

    def answer(self, path: Path, value: Any, question: Question) -> str:
        where, choices = f"answers.{question.id}", _choices(question)
        told = f"its choices are {_listed(choices)}"
        if isinstance(value, str):
            if value in choices:
                return value
            raise self.fail(path, f"{where} is {quoted(value)}; {told}", near(value, choices))
        if isinstance(value, list | dict):
            raise self.fail(path, f"{where} is {_show(value)}, not one choice; {told}", "write one of them")
        if value is None:
            raise self.fail(path, f"{where} has no value; {told}", "write one of them")
        raise self.fail(path, f"{where} is {_show(value)}, which is not text; {told}", "put text in quotes")

    def consents(
        self, data: Mapping[str, Any], book: Runbook, node: str, answers: Mapping[str, Answer]
    ) -> dict[str, StepConsent]:
        raw = data.get("consent")
        gates = {step.id: step for step in _gates(book)}
        each = f"give one to each gate: {', '.join(gates)}"
        if isinstance(raw, bool | str):
            raise self.fail(
                ("consent",), f"consent is {_show(raw)}, for all at once: there is no blanket consent", each
            )
        if isinstance(raw, dict):
            watched = {step.id for step in book.steps} - gates.keys()
            for key in raw:
                if key in watched:
                    message = f"consent.{_key(key)}: this step changes nothing, so it has no gate"
                    raise self.fail_at_key(("consent", key), message, "take it out")
                if key in _BLANKETS and key not in gates:
                    message = f"consent.{_key(key)}: there is no blanket consent"
                    raise self.fail_at_key(("consent", key), message, each)
        found = {}
        for key, value in self.section(data, "consent", gates, f"a step of {book.id} with a gate").items():
            found[key] = self.consent(value, gates[key], book, node, answers)
        return found

    def consent(
        self, value: Any, step: RunbookStep, book: Runbook, node: str, answers: Mapping[str, Answer]
    ) -> StepConsent:
        path: Path = ("consent", step.id)
        where = f"consent.{step.id}"
        if not isinstance(value, dict):
            kind, name = self.word(value, path, where, step, node)
            return StepConsent(step.id, kind, name, origin=self.origin(path))
        allowed = _CONSENT_KEYS if _can_kill(book) else _CONSENT_KEYS[:2]
        for key in value:
            if key not in _CONSENT_KEYS:
                message = f"unknown key {quoted(key)} in {where}"
                raise self.fail_at_key((*path, key), message, near(key, allowed))
        if "consent" not in value:
            raise self.fail(path, f"{where}.consent is missing", "write consent: true, false, skip or the node's name")
        kind, name = self.word(value["consent"], (*path, "consent"), f"{where}.consent", step, node)
        plan = self.plan(value["plan"], (*path, "plan"), f"{where}.plan") if "plan" in value else ""
        kills: frozenset[int] = frozenset()
        if "kills" in value:
            self.check_may_kill(path, where, kind, book, answers)
            kills = self.kills(value["kills"], (*path, "kills"), f"{where}.kills")
        return StepConsent(step.id, kind, name, plan, kills, self.origin((*path, "consent")))

    def word(self, value: Any, path: Path, where: str, step: RunbookStep, node: str) -> tuple[Kind, str]:
        if isinstance(value, bool):
            return ("yes" if value else "no"), ""
        words = "true, false, skip or the node's name" if step.skippable else "true, false or the node's name"
        if value is None:
            raise self.fail(path, f"{where} has no value", f"write {words}")
        if value == "skip":
            if step.skippable:
                return "skip", ""
            raise self.fail(
                path, f"{where} is skip, but the runbook does not let this step be skipped", f"write {words}"
            )
        if isinstance(value, str) and value.lower() in NO_NAMES:
            raise self.fail(
                path, f"{where} is the text {quoted(value)}", f"write {words}; true and false without quotes"
            )
        if not isinstance(value, str):
            raise self.fail(path, f"{where} is {_show(value)}, not {words}", "put a node's name of digits in quotes")
        name = self.node(value, path, where)
        if node and name != node:
            raise self.fail(
                path, f"{where} names {quoted(name)}, but this file is for node {quoted(node)}", near(name, [node])
            )
        return "yes", name

    def plan(self, value: Any, path: Path, where: str) -> str:
        if not isinstance(value, str) or not re.fullmatch(_DIGEST, value) or value.endswith("\n"):
            message = f"{where} is {_show(value)}, not sha256: and 64 digits of 0-9 a-f"
            raise self.fail(path, message, "copy the digest of the plan whole")
        return value

    def kills(self, value: Any, path: Path, where: str) -> frozenset[int]:
        if not isinstance(value, list):
            raise self.fail(path, f"{where} is {_show(value)}, not a list of pids", "write a list, such as [4242]")
        for index, pid in enumerate(value):
            if type(pid) is not int or pid < 1:
                raise self.fail(
                    (*path, index), f"{where}.{index} is {_show(pid)}, not a pid", "a pid is a whole number from 1"
                )
        return frozenset(value)

    def check_may_kill(self, path: Path, where: str, kind: Kind, book: Runbook, answers: Mapping[str, Answer]) -> None:
        at = (*path, "kills")
        if kind != "yes":
            said = "skip" if kind == "skip" else "false"
            raise self.fail_at_key(at, f"{where}.kills: {where} is {said}, so nothing may die", "take it out")
        answer = answers.get(_WORKLOAD)
        if not _can_kill(book) or (answer is not None and answer.value != VM_PASSTHROUGH):
            message = f"{where}.kills: processes may die only where {_WORKLOAD} is {VM_PASSTHROUGH}"
            raise self.fail_at_key(at, message, "take it out")


def _key(key: str) -> str:
    return safe(key, limit=40)


# --- answers from elsewhere ------------------------------------------------------------------------------------------


def override(answers: Answers | None, words: Sequence[str], runbook: Runbook) -> dict[str, Answer]:
    """The answers of the file, if there is one, and over them those of ``words`` (``question=choice``, of -a).

    Raises GpufixError (exit status 2) that names the -a, for an unknown question or choice and for one given twice.
    """
    questions = {question.id: question for question in runbook.questions}
    given: dict[str, Answer] = {}
    for word in words:
        option = f"-a {safe(word, limit=80)}"

        def fail(message: str, hint: str, option: str = option) -> GpufixError:
            return GpufixError(f"{option}: {message}", safe(hint, limit=300), ExitStatus.USAGE)

        name, equals, value = word.partition("=")
        if not equals:
            raise fail("'=' is missing", "write -a QUESTION=CHOICE")
        if name not in questions:
            raise fail(f"{runbook.id} has no question {quoted(name)}", near(name, questions))
        choices = _choices(questions[name])
        if value not in choices:
            message = f"{quoted(value)} is no choice of {name}; its choices are {_listed(choices)}"
            raise fail(message, near(value, choices))
        if name in given:
            raise fail(f"{name} is given twice, first as {given[name].origin}", "keep one of them")
        given[name] = Answer(value, Origin(option))
    return {**(answers.answers if answers else {}), **given}


def missing_answers(runbook: Runbook, answers: Mapping[str, Answer]) -> tuple[Question, ...]:
    """The questions without an answer, as the runbook orders them. An unattended run takes no default."""
    return tuple(question for question in runbook.questions if question.id not in answers)


def missing_problem(missing: Sequence[Question], file: str) -> str | None:
    """One line on the questions that ``file`` (empty: there is none) leaves open; None where there are none."""
    if not missing:
        return None
    names = ", ".join(f"answers.{question.id}" for question in missing)
    verb = "is" if len(missing) == 1 else "are"
    choices = f"; its choices are {_listed(_choices(missing[0]))}" if len(missing) == 1 else ""
    return f"{names} {verb} not answered{f' in {file}' if file else ''}{choices}"


# --- what a consent is good for --------------------------------------------------------------------------------------


def file_problem(answers: Answers, runbook_id: str, node: str) -> str | None:
    """One line, with its place, on why the file is not for this run: another runbook's, or another node's."""
    if answers.runbook_id != runbook_id:
        return f"{answers.origins['runbook']}: these are answers for {answers.runbook_id}, and this is {runbook_id}"
    if answers.node and answers.node != node:
        return f"{answers.origins['node']}: these are answers for node {answers.node}, and this is {node}"
    return None


def plan_problem(consent: StepConsent, plan_digest: str | None) -> str | None:
    """One line on why ``consent`` is not for the plan of this digest (with or without ``sha256:``), or None."""
    if not consent.plan:
        return None
    where = f"{consent.origin}: consent.{consent.step}"
    if not plan_digest:
        return f"{where} is bound to the plan {_short(consent.plan)}, but there is no plan to compare it with"
    if consent.plan.removeprefix("sha256:") != plan_digest.removeprefix("sha256:"):
        return f"{where} is bound to the plan {_short(consent.plan)}, but this plan is {_short(plan_digest)}"
    return None


def _short(digest: str) -> str:
    return f"sha256:{safe(digest.removeprefix('sha256:'))[:12]}"


def consent_problem(
    planned_step_destructive: bool,
    step_id: str,
    node: str,
    consent: StepConsent | None,
    plan_digest: str | None,
    file: str,
) -> str | None:
    """One line on why the gate before ``step_id`` may not be passed, or None: it may.

    ``skip`` passes no gate: a caller looks at ``kind`` (and ``plan_problem``) before it asks this.
    """
    name = f"consent.{step_id}"
    if consent is None or consent.step != step_id:
        return f"{name} is missing in {file}"
    if problem := plan_problem(consent, plan_digest):
        return problem
    where = f"{consent.origin}: {name}"
    if consent.kind == "no":
        return f"{where} is false: the step is declined"
    if consent.kind == "skip":
        return f"{where} is skip: the step is left out, not passed"
    if consent.node and consent.node != node:
        return f"{where} names the node {safe(consent.node)}, but this is {safe(node)}"
    if planned_step_destructive and not consent.node:
        return f"{where} is true, but the step is destructive: it wants the node's name, {safe(node)}"
    return None


# --- writing ---------------------------------------------------------------------------------------------------------


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
        value = condition.value if isinstance(condition.value, str) else _show(condition.value)
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
    gates = _gates(runbook)
    if gates:
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
    for step in gates:
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
