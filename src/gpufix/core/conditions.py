"""Evaluates a runbook's conditions over observations, findings and answers. Pure.

Three-valued: a condition over something unknown is itself unknown, never false and never true (rule O5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpufix.core.observations import observe
from gpufix.core.runbook import Condition, FromAnswer, Group, Leaf, Scalar, Value
from gpufix.language import mark, t
from gpufix.model import Diagnosis, Evidence, Facts


@dataclass(frozen=True, slots=True)
class World:
    """What a condition may look at. ``findings`` maps a root cause id to its status."""

    facts: Facts
    answers: Mapping[str, str]
    findings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """``holds`` None: unknown. ``text`` says what was found and wanted; ``because`` why it is awaited."""

    holds: bool | None
    text: str
    because: str = ""
    evidence: tuple[Evidence, ...] = ()
    parts: tuple[Verdict, ...] = ()
    kind: str = ""
    """Of a leaf: observation | finding | answer."""

    def open_parts(self) -> tuple[Verdict, ...]:
        """The leaves that keep this from holding, in the order they are written."""
        if self.holds:
            return ()
        if not self.parts:
            return (self,)
        return tuple(leaf for part in self.parts for leaf in part.open_parts())

    def leaves(self) -> tuple[Verdict, ...]:
        if not self.parts:
            return (self,) if self.text else ()
        return tuple(leaf for part in self.parts for leaf in part.leaves())


def findings_of(diagnosis: Diagnosis) -> dict[str, str]:
    """Root cause id -> status. Alternatives that were put aside count with their own status."""
    found = {alternative.id: str(alternative.status) for alternative in diagnosis.alternatives}
    found[diagnosis.root_cause.id] = str(diagnosis.root_cause.status)
    return found


def resolve(value: Value, answers: Mapping[str, str]) -> Scalar | None:
    return answers.get(value.question) if isinstance(value, FromAnswer) else value


def evaluate(condition: Condition, world: World) -> Verdict:
    if isinstance(condition, Leaf):
        return _leaf(condition, world)
    parts = tuple(evaluate(part, world) for part in condition.parts)
    return Verdict(_combine(condition, parts), "", parts=parts)


def _combine(group: Group, parts: tuple[Verdict, ...]) -> bool | None:
    values = [part.holds for part in parts]
    if group.op == "not":
        return None if values[0] is None else not values[0]
    if group.op == "all":
        return False if False in values else None if None in values else True
    return True if True in values else None if None in values else False


def _leaf(leaf: Leaf, world: World) -> Verdict:
    wanted = resolve(leaf.value, world.answers)
    evidence: tuple[Evidence, ...] = ()
    if leaf.kind == "observation":
        seen = observe(leaf.name, world.facts)
        if not seen.known:
            text = t("{name} is unknown: {reason}", name=leaf.name, reason=seen.unknown)
            return Verdict(None, text, leaf.because, seen.evidence, kind=leaf.kind)
        found: Scalar | None = seen.value
        evidence = seen.evidence
    elif leaf.kind == "finding":
        found = world.findings.get(leaf.name, "not found")
    else:
        found = world.answers.get(leaf.name)
    if wanted is None or found is None:
        return Verdict(None, t("{name}: not answered yet", name=leaf.name), leaf.because, evidence, kind=leaf.kind)
    if leaf.op == "at_least":
        holds = isinstance(found, int) and isinstance(wanted, int) and found >= wanted
        otherwise = mark("{name} is {found}, wanted at least {wanted}")
    else:
        holds = found == wanted and isinstance(found, bool) == isinstance(wanted, bool)
        otherwise = mark("{name} is {found}, wanted {wanted}")
    words = mark("{name} is {found}") if holds else otherwise
    text = t(words, name=leaf.name, found=_show(found), wanted=_show(wanted))
    return Verdict(holds, text, leaf.because, evidence, kind=leaf.kind)


def _show(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if value != "" else "(empty)"
