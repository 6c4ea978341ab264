"""A runbook as a document to follow by hand: what stands in it, as plain data that templates lay out. Pure.

Made of a runbook alone it is the general procedure; with a reading of one node it is the procedure for that incident.
Every text is safe to show (nothing in it that a terminal or a printer would obey, no secret) but not escaped for any
markup: that is the templates' part.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gpufix.core.actions import actions_of
from gpufix.core.announce import announcements
from gpufix.core.conditions import Verdict, World, evaluate, findings_of, resolve
from gpufix.core.hand_values import ChooseVerb, values_of
from gpufix.core.invariants import RULE_TEXTS, RuleText
from gpufix.core.placeholders import NAMES, Known, assignment, fill_plain, names_in, spread
from gpufix.core.plan import Decision as Decided
from gpufix.core.plan import PlannedStep, build_plan
from gpufix.core.render.chain_figure import Figure, chain_figure
from gpufix.core.render.terminal import compact
from gpufix.core.runbook import ALWAYS, NEVER, Condition, FromAnswer, Group, HandCommand, Leaf, Runbook, RunbookStep
from gpufix.core.verdict import Verdicts, judge
from gpufix.language import t
from gpufix.model import Diagnosis, Evidence, Facts
from gpufix.text import ago, redact, safe

GENERAL_RULES = ("O4", "O5")
"""Told once, for they are about every step; the others stand at the steps that they are about."""


@dataclass(frozen=True, slots=True)
class Case:
    """One node as it was read. ``fits``: the runbook's own condition surely holds. ``host``: what ssh calls it."""

    facts: Facts
    diagnosis: Diagnosis
    files: Mapping[str, str]
    host: str
    answers: Mapping[str, str]
    fits: bool


@dataclass(frozen=True, slots=True)
class Making:
    """What the document is made with. ``at`` is a date and time in UTC; the two functions are the playbooks' own."""

    version: str
    at: str
    comment_swap: Callable[[str], str]
    choose_verb: ChooseVerb


@dataclass(frozen=True, slots=True)
class Clause:
    """A condition. ``op`` is ``leaf``, or all | any | not over ``parts``. ``holds`` None: not known, or not looked."""

    op: str
    text: str = ""
    because: str = ""
    parts: tuple[Clause, ...] = ()
    holds: bool | None = None
    found: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """Commands for one shell, ``on`` admin | node. ``only_if`` None: without a condition."""

    on: str
    shell: str
    expect: str = ""
    output: str = ""
    only_if: Clause | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """Evidence: where it was read, and the words."""

    source: str
    excerpt: str


@dataclass(frozen=True, slots=True)
class CauseLink:
    number: int
    title: str
    status: str
    detail: str
    evidence: tuple[Proof, ...]
    more: int
    """How much evidence is left out here."""


@dataclass(frozen=True, slots=True)
class PutAside:
    id: str
    status: str
    by: str


@dataclass(frozen=True, slots=True)
class Vm:
    name: str
    status: str
    wants: str
    since: str
    reason: str
    elsewhere: bool | None


@dataclass(frozen=True, slots=True)
class FoundCheck:
    text: str
    holds: bool | None


@dataclass(frozen=True, slots=True)
class Incident:
    """What was found on the node."""

    as_of: str
    cause: str
    status: str
    summary: str
    since: str
    chain: tuple[CauseLink, ...]
    figure: Figure
    put_aside: tuple[PutAside, ...]
    vms: tuple[Vm, ...]
    warnings: tuple[str, ...]
    unread: tuple[Proof, ...]
    node_health: str
    checks: tuple[FoundCheck, ...]
    reboot: str
    vms_health: str
    vms_text: str
    announced: tuple[str, ...]
    holders: tuple[str, ...] | None
    """Who uses the card on the host; None: not known."""


@dataclass(frozen=True, slots=True)
class OneChoice:
    value: str
    label: str
    consequence: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class Decision:
    id: str
    ask: str
    choices: tuple[OneChoice, ...]


@dataclass(frozen=True, slots=True)
class FillIn:
    """A shell variable that a person sets first, because the value is not known."""

    name: str
    line: str
    meaning: str
    many: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """An order rule: what it forbids, and why."""

    id: str
    forbids: str
    why: str


@dataclass(frozen=True, slots=True)
class StepPage:
    """One step. ``decision`` and ``reason`` as found: run | no-op | blocked | ..., both empty in the general procedure.

    ``by_hand`` False: the runbook does not say how it is done by hand, and ``playbook`` is all there is.
    """

    number: int
    id: str
    title: str
    why: str
    risk: str
    irreversible: str
    destructive: bool | None
    decision: str
    reason: str
    only_if: Clause | None
    rules: tuple[Rule, ...]
    requires: Clause | None
    effect: Clause
    timeout: int
    stable_for: int
    if_late: str
    playbook: str
    by_hand: bool
    check: tuple[Block, ...] = ()
    commands: tuple[Block, ...] = ()
    verify: tuple[Block, ...] = ()
    undo: tuple[Block, ...] = ()
    undo_note: str = ""
    expect: str = ""
    diff: str = ""
    """The expected change of a file, as a unified diff; empty where none is known."""
    if_it_fails: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """``node`` and ``host`` are empty, and ``incident`` and ``fits`` None, in the general procedure."""

    node: str
    host: str
    runbook: str
    title: str
    summary: str
    digest: str
    gpufix: str
    """The version that made it."""
    made_at: str
    fits: bool | None
    incident: Incident | None
    decisions: tuple[Decision, ...]
    rules: tuple[Rule, ...]
    access: tuple[str, ...]
    console: str
    open_node: Block
    fill_in: Mapping[str, tuple[FillIn, ...]] = field(default_factory=dict)
    """By shell: admin, node."""
    steps: tuple[StepPage, ...] = ()

    @property
    def footer(self) -> str:
        """Stands on every page of a PDF."""
        return f"gpufix {self.gpufix} \u00b7 {self.runbook} {self.digest[:12]} \u00b7 {self.made_at}"


def build_document(book: Runbook, making: Making, case: Case | None = None) -> Document:
    """The document of ``book``: for the node of ``case``, or the general procedure."""
    return _Builder(book, making, case).document()


class _Builder:
    def __init__(self, book: Runbook, making: Making, case: Case | None) -> None:
        self.book, self.making, self.case = book, making, case
        self.answers: Mapping[str, str] = case.answers if case is not None else {}
        self.world: World | None = None
        self.known: Known = {}
        self.planned: dict[str, PlannedStep] = {}
        if case is not None:
            self.world = World(case.facts, case.answers, findings_of(case.diagnosis))
            self.known = values_of(case.facts, case.host, case.answers, case.files, making.choose_verb)
            plan = build_plan(book, case.facts.node_name, self.world)
            self.planned = {planned.step.id: planned for planned in plan.steps}
        self.used: dict[str, dict[str, None]] = {"admin": {}, "node": {}}
        """The names that are not known and that a command of each shell wants, in the order of their use."""

    def document(self) -> Document:
        book, case = self.book, self.case
        open_node = self._blocks([HandCommand("admin", "ssh {{ host }}")])[0]
        steps = tuple(self._step(number, step) for number, step in enumerate(book.steps, 1))
        return Document(
            node=shown(case.facts.node_name) if case is not None else "",
            host=shown(case.host) if case is not None else "",
            runbook=book.id,
            title=shown(book.title),
            summary=shown(book.summary),
            digest=book.digest,
            gpufix=self.making.version,
            made_at=self.making.at,
            fits=case.fits if case is not None else None,
            incident=_incident(case) if case is not None else None,
            decisions=tuple(self._decisions()),
            rules=tuple(_rule(one) for one in RULE_TEXTS),
            access=tuple(shown(text) for text in book.access),
            console=shown(book.console),
            open_node=open_node,
            fill_in={on: self._fill_in(names) for on, names in self.used.items()},
            steps=steps,
        )

    def _decisions(self) -> Iterator[Decision]:
        for question in self.book.questions:
            chosen = self.answers.get(question.id)
            choices = tuple(
                OneChoice(one.value, shown(one.label), shown(one.consequence), one.value == chosen)
                for one in question.choices
            )
            yield Decision(question.id, shown(question.ask), choices)

    def _fill_in(self, names: Mapping[str, None]) -> tuple[FillIn, ...]:
        wanted = list(names)
        if "host" in wanted and "node" not in wanted and "node" not in self.known:
            wanted.insert(0, "node")  # what the line for host begins with
        found = []
        for name in sorted(wanted, key=lambda one: list(NAMES).index(one) if one in NAMES else len(NAMES)):
            about = NAMES.get(name)
            if about is not None:
                found.append(FillIn(name, assignment(name, about.assign), t(about.meaning), bool(about.plural)))
            else:
                question = next(one for one in self.book.questions if one.id == name)
                found.append(FillIn(name, assignment(name, question.default), shown(question.ask), False))
        return tuple(found)

    # --- a step ---

    def _step(self, number: int, step: RunbookStep) -> StepPage:
        planned = self.planned.get(step.id)
        actions = actions_of(step.playbook)
        page = StepPage(
            number=number,
            id=step.id,
            title=shown(step.title),
            why=shown(step.why),
            risk=shown(step.risk),
            irreversible=shown(step.irreversible),
            destructive=planned.destructive if planned else _surely(step.destructive),
            decision=str(planned.decision) if planned else "",
            reason=shown(_reason(planned)) if planned else "",
            only_if=self._only_if(step.when),
            rules=tuple(_rule(one) for one in RULE_TEXTS if one.actions & actions and one.id not in GENERAL_RULES),
            requires=None if step.requires == ALWAYS else self._clause(step.requires),
            effect=self._clause(step.done_when),
            timeout=step.timeout,
            stable_for=step.stable_for,
            if_late=shown(step.if_late),
            playbook=step.playbook,
            by_hand=step.by_hand is not None,
        )  # fmt: skip
        return page if step.by_hand is None else self._with_hand(page, step)

    def _with_hand(self, page: StepPage, step: RunbookStep) -> StepPage:
        hand = step.by_hand
        assert hand is not None
        return replace(
            page,
            check=self._blocks(hand.check),
            commands=self._blocks(hand.commands),
            verify=self._blocks(hand.verify),
            undo=self._blocks(hand.undo),
            undo_note=self._plain(hand.undo_note),
            expect=self._plain(hand.expect),
            diff=self._fstab_diff() if hand.diff == "fstab" else "",
            if_it_fails=self._plain(hand.if_it_fails),
        )

    def _blocks(self, commands: tuple[HandCommand, ...] | list[HandCommand]) -> tuple[Block, ...]:
        blocks = []
        for command in commands:
            only_if = self._only_if(command.when)
            if self.world is not None and evaluate(command.when, self.world).holds is False:
                continue
            names = [
                *names_in(command.run),
                *names_in(command.output),
                *([command.for_each] if command.for_each else []),
            ]
            self.used[command.on].update(dict.fromkeys(name for name in names if name not in self.known))
            blocks += [
                Block(command.on, shell, self._plain(command.expect), self._plain(command.output, lines=True), only_if)
                for shell in spread(command.run, command.for_each, self.known)
            ]
        return tuple(blocks)

    def _plain(self, text: str, lines: bool = False) -> str:
        filled = fill_plain(text, self.known)
        return shown_lines(filled) if lines else shown(filled)

    def _fstab_diff(self) -> str:
        text = self.case.files.get("host/fstab") if self.case is not None else None
        return fstab_diff(text, self.making.comment_swap) if text is not None else ""

    # --- conditions ---

    def _only_if(self, condition: Condition) -> Clause | None:
        """None where there is nothing to say: it always holds, or surely holds in this case."""
        if condition == ALWAYS or (self.world is not None and evaluate(condition, self.world).holds):
            return None
        return self._clause(condition)

    def _clause(self, condition: Condition) -> Clause:
        narrowed = narrow(condition, self.answers)
        return self._described(narrowed, evaluate(narrowed, self.world) if self.world is not None else None)

    def _described(self, condition: Condition, verdict: Verdict | None) -> Clause:
        if isinstance(condition, Group):
            verdicts = verdict.parts if verdict is not None else (None,) * len(condition.parts)
            parts = tuple(self._described(one, seen) for one, seen in zip(condition.parts, verdicts, strict=True))
            return Clause(condition.op, parts=parts, holds=verdict.holds if verdict is not None else None)
        wanted = resolve(condition.value, self.answers)
        if isinstance(wanted, bool):
            word = "true" if wanted else "false"
        elif wanted is None and isinstance(condition.value, FromAnswer):
            word = f"${condition.value.question.upper()}"
        else:
            word = str(wanted)
        sign = "is" if condition.op == "is" else "is at least"
        holds = verdict.holds if verdict is not None else None
        found = shown(verdict.text) if verdict is not None else ""
        return Clause("leaf", f"{condition.name} {sign} {word}", shown(condition.because), holds=holds, found=found)


def _surely(condition: Condition) -> bool | None:
    """Without a case: None where it depends."""
    return True if condition == ALWAYS else False if condition == NEVER else None


def _rule(text: RuleText) -> Rule:
    return Rule(text.id, t(text.forbids), t(text.why))


def _reason(planned: PlannedStep) -> str:
    """Why it is decided so; empty where its post-condition, which is told anyway, says it."""
    if planned.decision in (Decided.RUN, Decided.OBSERVE):
        return ""
    if not planned.violations:
        return planned.reason
    first = planned.violations[0]
    return f"{first.rule}: {first.reason}. {first.hint}"


def narrow(condition: Condition, answers: Mapping[str, str]) -> Condition:
    """``condition`` without what the answers have decided already: branches for another choice are taken out."""
    decided = _by_answers(condition, answers)
    if decided is not None:
        return ALWAYS if decided else NEVER
    if isinstance(condition, Leaf):
        return condition
    kept = [part for part in condition.parts if _by_answers(part, answers) is None]
    if condition.op == "not":
        return Group("not", (narrow(condition.parts[0], answers),))
    parts = tuple(narrow(part, answers) for part in kept)
    if len(parts) == 1:
        return parts[0]
    return Group(condition.op, parts)


def _by_answers(condition: Condition, answers: Mapping[str, str]) -> bool | None:
    """What the answers alone make of it; None where it hangs on something else."""
    if isinstance(condition, Leaf):
        if condition.kind != "answer" or condition.name not in answers:
            return None
        return answers[condition.name] == resolve(condition.value, answers)
    values = [_by_answers(part, answers) for part in condition.parts]
    if condition.op == "not":
        return None if values[0] is None else not values[0]
    decisive = condition.op == "any"
    if decisive in values:
        return decisive
    return None if None in values else not decisive


def leaves(clause: Clause) -> Iterator[Clause]:
    if clause.op == "leaf":
        yield clause
    for part in clause.parts:
        yield from leaves(part)


def fstab_diff(text: str, comment_swap: Callable[[str], str]) -> str:
    """What the edit changes, as ``diff -U 0`` prints it from its first hunk on. Secrets are taken out."""
    before, after = redact(text).split("\n"), comment_swap(redact(text)).split("\n")
    lines = list(difflib.unified_diff(before, after, lineterm="", n=0))[2:]
    return shown_lines("\n".join(lines))


# --- the incident ----------------------------------------------------------------------------------------------------


def _incident(case: Case) -> Incident:
    facts, diagnosis = case.facts, case.diagnosis
    verdicts: Verdicts = judge(facts, diagnosis)
    cause = diagnosis.root_cause
    chain = chain_of(diagnosis)
    holders = facts.gpu_holders.value
    return Incident(
        as_of=f"{diagnosis.as_of:%Y-%m-%d %H:%M:%S} UTC" if diagnosis.as_of else "",
        cause=cause.id,
        status=str(cause.status),
        summary=shown(cause.summary),
        since=ago(diagnosis.down_since, diagnosis.as_of),
        chain=chain,
        figure=chain_figure([(link.title, link.status) for link in chain]),
        put_aside=put_aside_of(diagnosis),
        vms=tuple(_vms(diagnosis)),
        warnings=tuple(shown(text) for text in diagnosis.warnings),
        unread=tuple(Proof(shown(what), shown(why)) for what, why in sorted(diagnosis.unread.items())),
        node_health=str(verdicts.node.health),
        checks=tuple(FoundCheck(shown(one.text), one.holds) for one in verdicts.node.checks),
        reboot=shown(verdicts.node.reboot_text),
        vms_health=str(verdicts.vms.health),
        vms_text=shown(verdicts.vms.text),
        announced=tuple(shown(text) for text in announcements(facts, case.answers)),
        holders=None
        if holders is None
        else tuple(shown(f"{one.command} (pid {one.pid}, {one.kind})") for one in holders),
    )


def chain_of(diagnosis: Diagnosis) -> tuple[CauseLink, ...]:
    """From cause to effect."""
    return tuple(
        CauseLink(
            number,
            shown(link.title),
            str(link.status),
            shown(link.detail),
            _proofs(link.evidence[:_MOST]),
            max(0, len(link.evidence) - _MOST),
        )
        for number, link in enumerate(diagnosis.chain, 1)
    )


def put_aside_of(diagnosis: Diagnosis) -> tuple[PutAside, ...]:
    return tuple(PutAside(one.id, str(one.status), shown(one.by)) for one in diagnosis.alternatives)


_MOST = 4
"""Pieces of evidence for one link that are printed."""
_LONGEST = 600
"""Characters of one excerpt."""


def _proofs(evidence: tuple[Evidence, ...]) -> tuple[Proof, ...]:
    return tuple(Proof(shown(one.source), safe(redact(compact(one.excerpt)), limit=_LONGEST)) for one in evidence)


def _vms(diagnosis: Diagnosis) -> Iterator[Vm]:
    for vm in diagnosis.affected:
        yield Vm(
            name=shown(f"{vm.namespace}/{vm.name}"),
            status=shown(vm.status),
            wants=shown(", ".join(f"{name} x{count}" for name, count in sorted(vm.resources.items()))),
            since=ago(vm.since, diagnosis.as_of),
            reason=shown(vm.reason),
            elsewhere=vm.servable_elsewhere if vm.other_nodes else False,
        )


def shown(text: str) -> str:
    """One line for people: no secret, and nothing that a terminal or a page would obey."""
    return safe(redact(text))


def shown_lines(text: str) -> str:
    return safe(redact(text), keep_newlines=True)
