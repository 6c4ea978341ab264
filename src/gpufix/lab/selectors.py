"""Label and field selectors, and what the API accepts as a label. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gpufix.lab.store import Object

_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SET = re.compile(r"(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")
_COMPARISON = re.compile(r"(?P<key>[^\s=!<>]+)\s*(?P<op>==|=|!=|>|<)\s*(?P<value>[^\s=!<>]*)")
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^(]*\))")
_UNESCAPED_COMMA = re.compile(r"(?<!\\),")

_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
    " '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_NAME_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
    " character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    " '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_PREFIX_RULE = (
    "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and"
    " must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is"
    " '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


class BadSelector(ValueError):
    """A selector the API server would answer with 400; the text is its message."""


def key_fault(key: str) -> str | None:
    """Why ``key`` is no qualified name ("example.com/name" or "name"), in the API server's words; None: it is one."""
    prefix, slash, name = key.rpartition("/")
    if slash:
        if not prefix:
            return "prefix part must be non-empty"
        if len(prefix) > 253:
            return "prefix part must be no more than 253 bytes"
        if not _PREFIX.fullmatch(prefix):
            return _PREFIX_RULE
    if not name:
        return f"name part must be non-empty; {_NAME_RULE}"
    if len(name) > 63:
        return "name part must be no more than 63 bytes"
    return None if _NAME.fullmatch(name) else _NAME_RULE


def value_fault(value: str) -> str | None:
    """Why ``value`` is no label value, in the API server's words; None: it is one."""
    if len(value) > 63:
        return "must be no more than 63 bytes"
    return None if not value or _NAME.fullmatch(value) else _VALUE_RULE


def name_fault(name: str) -> str | None:
    """Why ``name`` is no object name (RFC 1123 subdomain), shortly; None: it is one."""
    if len(name) <= 253 and _PREFIX.fullmatch(name):
        return None
    return "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"


class Requirement(NamedTuple):
    """One condition on the labels. ``op`` is exists | !exists | in | notin | > | <; = and != are sets of one."""

    key: str
    op: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.op:
            case "exists":
                return value is not None
            case "!exists":
                return value is None
            case "in":
                return value in self.values
            case "notin":
                return value not in self.values
        try:
            number, bound = int(value or ""), int(self.values[0])
        except ValueError:
            return False
        return number > bound if self.op == ">" else number < bound


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """The requirements of a labelSelector; all must hold. Raises BadSelector."""
    if not text.strip():
        return ()
    return tuple(_requirement(part.strip()) for part in _COMMA_OUTSIDE_BRACKETS.split(text))


def _requirement(text: str) -> Requirement:
    if found := _SET.fullmatch(text):
        values = tuple(value.strip() for value in found["values"].split(","))
        requirement = Requirement(found["key"], found["op"], values)
    elif found := _COMPARISON.fullmatch(text):
        op = {"=": "in", "==": "in", "!=": "notin"}.get(found["op"], found["op"])
        requirement = Requirement(found["key"], op, (found["value"],))
    elif text.startswith("!"):
        requirement = Requirement(text[1:].strip(), "!exists")
    else:
        requirement = Requirement(text, "exists")
    if fault := key_fault(requirement.key):
        raise BadSelector(f"unable to parse requirement: <nil>: Invalid value: {_quoted(requirement.key)}: {fault}")
    for value in requirement.values:
        if fault := value_fault(value):
            raise BadSelector(f"unable to parse requirement: values[0][{requirement.key}]: {_quoted(value)}: {fault}")
        if requirement.op in "<>" and not re.fullmatch(r"-?\d+", value):
            raise BadSelector(
                f"unable to parse requirement: values[0]: Invalid value: {_quoted(value)}:"
                " for 'Gt', 'Lt' operators, the value must be an integer"
            )
    return requirement


class FieldTerm(NamedTuple):
    """One condition on a field: it is ``value`` (or, with ``equal`` False, it is not)."""

    field: str
    equal: bool
    value: str


def parse_fields(text: str, plural: str) -> tuple[FieldTerm, ...]:
    """The terms of a fieldSelector for a kind; all must hold. Raises BadSelector, also for a field it lacks."""
    terms = tuple(_term(part) for part in _UNESCAPED_COMMA.split(text) if part)
    for term in terms:
        if term.field not in _COMMON and term.field not in _FIELDS.get(plural, {}):
            raise BadSelector(f"field label not supported: {term.field}")
    return terms


def _term(text: str) -> FieldTerm:
    for sign in ("!=", "==", "="):
        field, found, value = text.partition(sign)
        if found:
            return FieldTerm(field, sign != "!=", re.sub(r"\\([\\,=])", r"\1", value))
    raise BadSelector(f"invalid selector: '{text}'; can't understand '{text}'")


class Selection(NamedTuple):
    """What a list or a watch is limited to. Empty fields let everything through."""

    plural: str
    namespace: str = ""
    labels: tuple[Requirement, ...] = ()
    fields: tuple[FieldTerm, ...] = ()

    def matches(self, item: Object) -> bool:
        metadata = item["metadata"]
        if self.namespace and metadata.get("namespace") != self.namespace:
            return False
        labels = metadata.get("labels") or {}
        return all(wanted.matches(labels) for wanted in self.labels) and all(
            (_field(self.plural, term.field, item) == term.value) == term.equal for term in self.fields
        )


def _field(plural: str, field: str, item: Object) -> str:
    read = _COMMON.get(field) or _FIELDS[plural][field]
    return read(item)


def _at(path: str) -> Callable[[Object], str]:
    """Reads the field at ``path``, as the API server prints it: what is not there is empty."""

    def read(item: Object) -> str:
        value: Any = item
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return "" if value is None else str(value)

    return read


def _unschedulable(item: Object) -> str:
    return "true" if item.get("spec", {}).get("unschedulable") else "false"


_COMMON = {path: _at(path) for path in ("metadata.name", "metadata.namespace")}
_FIELDS: dict[str, dict[str, Callable[[Object], str]]] = {
    "nodes": {"spec.unschedulable": _unschedulable},
    "pods": {
        path: _at(path)
        for path in (
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        )
    },
    "events": {
        **{f"involvedObject.{name}": _at(f"involvedObject.{name}") for name in ("kind", "name", "namespace", "uid")},
        "reason": _at("reason"),
        "type": _at("type"),
        "source": _at("source.component"),
    },
}


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
