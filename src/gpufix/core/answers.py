"""The answers file of an unattended run: its schema, reading it, writing it, and what its consents are good for. Pure.

Nothing in it is a default: every question is answered, and every gate has a consent of its own that names the step.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpufix.core.checked_yaml import Mark, Marks, Path, mistake, near, quoted, read_yaml
from gpufix.core.runbook import Question, Runbook, RunbookStep
from gpufix.core.workload import VM_PASSTHROUGH
from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import mark
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


ASKED = Origin(mark("the prompt"))
AT_ITS_GATE = mark("at its gate")
"""Where a person consents, as it stands in the journal, whatever language that person speaks."""
DEFAULT = Origin(mark("the runbook's default"))


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


NODE_PATTERN = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"
NO_NAMES = ("true", "false", "yes", "no", "on", "off", "y", "n", "ok", "all", "any", "none", "null", "skip")
"""Never taken for a node's name: where one is meant as a yes or a no, reading it as a name would change its sense."""
_BLANKETS = ("*", "all", "any", "default", "defaults", "everything")
_TOP_KEYS = ("version", "runbook", "node", "answers", "consent")
_CONSENT_KEYS = ("consent", "plan", "kills")
_WORKLOAD = "target_workload"


# --- what a runbook asks ---------------------------------------------------------------------------------------------


def choices_of(question: Question) -> list[str]:
    return list(dict.fromkeys(choice.value for choice in question.choices))


def gated_steps(runbook: Runbook) -> list[RunbookStep]:
    return [step for step in runbook.steps if step.playbook]


def can_kill(runbook: Runbook) -> bool:
    return any(q.id == _WORKLOAD and VM_PASSTHROUGH in choices_of(q) for q in runbook.questions)


# --- reading ---------------------------------------------------------------------------------------------------------


def load_answers(text: str, file: str, books: Sequence[Runbook]) -> tuple[Answers, Runbook]:
    """The answers in ``text``, and the one of ``books`` that they are for. Not every question need be answered.

    Raises GpufixError (exit status 2) with ``file:line:column`` for broken YAML and for each mistake.
    """
    data, marks = read_yaml(text, file, "answers")
    return _Reading(file, marks).whole(data, books)


def shown(value: Any) -> str:
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
            raise self.fail((), f"the file is {shown(data)}, not keys", f"its keys are {', '.join(_TOP_KEYS)}")
        # The version first: another may have other keys. Then those: a misspelt key is better told than a missing one.
        if "version" in data and (type(data["version"]) is not int or data["version"] != 1):
            raise self.fail(("version",), f"version is {shown(data['version'])}; it must be 1", "write version: 1")
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
            raise self.fail(("runbook",), f"runbook is {shown(name)}, not the id of one", near("", ids))
        raise self.fail(("runbook",), f"there is no runbook {quoted(name)}", near(name, ids))

    def node(self, value: Any, path: Path, where: str) -> str:
        if not isinstance(value, str):
            raise self.fail(
                path, f"{where} is {shown(value)}, not a node's name", "write one name, in quotes if it is a number"
            )
        if value in NO_NAMES or not re.fullmatch(NODE_PATTERN, value) or value.endswith("\n"):
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
            raise self.fail((name,), f"{name} is {shown(value)}, not keys", f"write {name}: and below it one key each")
        for key in value:
            if key not in known:
                raise self.fail_at_key(
                    (name, key), f"{name}.{_key(key)}: {quoted(key)} is not {what}", near(key, known)
                )
        return value

    def answer(self, path: Path, value: Any, question: Question) -> str:
        where, choices = f"answers.{question.id}", choices_of(question)
        told = f"its choices are {_listed(choices)}"
        if isinstance(value, str):
            if value in choices:
                return value
            raise self.fail(path, f"{where} is {quoted(value)}; {told}", near(value, choices))
        if isinstance(value, list | dict):
            raise self.fail(path, f"{where} is {shown(value)}, not one choice; {told}", "write one of them")
        if value is None:
            raise self.fail(path, f"{where} has no value; {told}", "write one of them")
        raise self.fail(path, f"{where} is {shown(value)}, which is not text; {told}", "put text in quotes")

    def consents(
        self, data: Mapping[str, Any], book: Runbook, node: str, answers: Mapping[str, Answer]
    ) -> dict[str, StepConsent]:
        raw = data.get("consent")
        gates = {step.id: step for step in gated_steps(book)}
        each = f"give one to each gate: {', '.join(gates)}"
        if isinstance(raw, bool | str):
            raise self.fail(
                ("consent",), f"consent is {shown(raw)}, for all at once: there is no blanket consent", each
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
        allowed = _CONSENT_KEYS if can_kill(book) else _CONSENT_KEYS[:2]
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
            raise self.fail(path, f"{where} is {shown(value)}, not {words}", "put a node's name of digits in quotes")
        name = self.node(value, path, where)
        if node and name != node:
            raise self.fail(
                path, f"{where} names {quoted(name)}, but this file is for node {quoted(node)}", near(name, [node])
            )
        return "yes", name

    def plan(self, value: Any, path: Path, where: str) -> str:
        if not isinstance(value, str) or not re.fullmatch(DIGEST_PATTERN, value) or value.endswith("\n"):
            message = f"{where} is {shown(value)}, not sha256: and 64 digits of 0-9 a-f"
            raise self.fail(path, message, "copy the digest of the plan whole")
        return value

    def kills(self, value: Any, path: Path, where: str) -> frozenset[int]:
        if not isinstance(value, list):
            raise self.fail(path, f"{where} is {shown(value)}, not a list of pids", "write a list, such as [4242]")
        for index, pid in enumerate(value):
            if type(pid) is not int or pid < 1:
                raise self.fail(
                    (*path, index), f"{where}.{index} is {shown(pid)}, not a pid", "a pid is a whole number from 1"
                )
        return frozenset(value)

    def check_may_kill(self, path: Path, where: str, kind: Kind, book: Runbook, answers: Mapping[str, Answer]) -> None:
        at = (*path, "kills")
        if kind != "yes":
            said = "skip" if kind == "skip" else "false"
            raise self.fail_at_key(at, f"{where}.kills: {where} is {said}, so nothing may die", "take it out")
        answer = answers.get(_WORKLOAD)
        if not can_kill(book) or (answer is not None and answer.value != VM_PASSTHROUGH):
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
        choices = choices_of(questions[name])
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
    choices = f"; its choices are {_listed(choices_of(missing[0]))}" if len(missing) == 1 else ""
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
