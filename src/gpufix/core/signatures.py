"""The signatures of known failures, from the text of ``data/signatures.yml``, and how they are matched. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from gpufix.model import Evidence, Status

PLACES = ("fatal", "running", "ready-message", "kernel", "vm", "noise")
NEEDS = ("not-ready", "ready-unknown", "ready-false", "disk-pressure")
MEANINGS = ("answers", "not-asked", "silent")
_KEYS = {"id", "where", "match", "not", "also", "differ", "needs", "unless", "status", "says", "source"}


class SignatureError(ValueError):
    """signatures.yml is not what it must be. The message says which entry and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Signature:
    """One known failure: where its words stand, and what else must hold for it to be proved."""

    id: str
    where: str
    match: re.Pattern[str]
    says: str
    source: str
    exclude: re.Pattern[str] | None = None
    also: re.Pattern[str] | None = None
    unless: re.Pattern[str] | None = None
    differ: tuple[str, str] | None = None
    needs: frozenset[str] = frozenset()
    status: Status = Status.CONFIRMED

    def found_in(self, line: str) -> re.Match[str] | None:
        """The match in ``line``, after ``not`` and ``differ``."""
        match = self.match.search(line)
        if match is None or (self.exclude is not None and self.exclude.search(line)):
            return None
        if self.differ is not None and match[self.differ[0]] == match[self.differ[1]]:
            return None
        return match


@dataclass(frozen=True, slots=True)
class Hit:
    """A signature met: by which line, how sure, and the words that were caught."""

    signature: Signature
    line: Evidence
    status: Status
    groups: Mapping[str, str]
    support: tuple[Evidence, ...] = ()

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return (self.line, *self.support)


@dataclass(frozen=True, slots=True)
class Signatures:
    """All signatures, the thresholds, and what a failure to read the host means."""

    entries: tuple[Signature, ...]
    thresholds: Mapping[str, int]
    host_unread: tuple[tuple[re.Pattern[str], str], ...]

    def at(self, where: str) -> tuple[Signature, ...]:
        return tuple(entry for entry in self.entries if entry.where == where)

    def match(
        self, where: str, lines: Iterable[Evidence], context: Iterable[Evidence], holds: frozenset[str], id: str = ""
    ) -> Hit | None:
        """The first signature of ``where`` (and of ``id``, if given) that one of ``lines`` meets, latest line first.

        ``context``: all lines of the same start or log. ``holds``: the conditions (of NEEDS) that hold now.
        """
        newest_first = list(lines)[::-1]
        around = list(context)
        for entry in self.at(where):
            if entry.needs <= holds and id in ("", entry.id):
                hit = _meet(entry, newest_first, around)
                if hit is not None:
                    return hit
        return None

    def what_unread_means(self, reason: str) -> str:
        """``answers``, ``not-asked`` or ``silent``; empty when the reason is none that we know."""
        return next((means for pattern, means in self.host_unread if pattern.search(reason)), "")


def _meet(entry: Signature, newest_first: list[Evidence], around: list[Evidence]) -> Hit | None:
    for line in newest_first:
        match = entry.found_in(line.excerpt)
        if match is None:
            continue
        if entry.unless is not None and any(entry.unless.search(other.excerpt) for other in around):
            return None
        groups = {name: caught for name, caught in match.groupdict().items() if caught}
        if entry.also is None:
            return Hit(entry, line, entry.status, groups)
        support = next((other for other in reversed(around) if entry.also.search(other.excerpt)), None)
        if support is None:
            return Hit(entry, line, Status.SUSPECTED, groups)
        return Hit(entry, line, entry.status, groups, (support,))
    return None


def load_signatures(text: str) -> Signatures:
    """Signatures from YAML. Raises SignatureError on unknown keys, broken expressions and missing sources."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SignatureError(f"not YAML: {error}") from None
    if not isinstance(data, Mapping) or data.get("version") != 1:
        raise SignatureError("version must be 1")
    entries = tuple(_signature(entry) for entry in _list(data, "signatures"))
    meanings = tuple(_meaning(entry) for entry in _list(data, "host_unread"))
    return Signatures(entries, _thresholds(data.get("thresholds")), meanings)


def _list(data: Mapping[str, Any], key: str) -> list[Any]:
    value = data.get(key)
    if not isinstance(value, list):
        raise SignatureError(f"{key} must be a list")
    return value


def _thresholds(data: Any) -> dict[str, int]:
    if not isinstance(data, Mapping):
        raise SignatureError("thresholds must be a mapping")
    found: dict[str, int] = {}
    for name, entry in data.items():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("value"), int) or not entry.get("source"):
            raise SignatureError(f"threshold {name}: needs a whole value and a source")
        found[str(name)] = entry["value"]
    for name in ("recent_seconds", "settled_seconds", "heartbeat_fresh_seconds", "node_stale_seconds"):
        if name not in found:
            raise SignatureError(f"threshold {name} is missing")
    return found


def _signature(entry: Any) -> Signature:
    if not isinstance(entry, Mapping):
        raise SignatureError(f"a signature must be a mapping, not {entry!r}")
    name = f"signature {entry.get('id')} ({entry.get('where')})"
    unknown = set(entry) - _KEYS
    if unknown:
        raise SignatureError(f"{name}: unknown key {sorted(unknown)[0]}")
    for key in ("id", "where", "match", "says", "source"):
        if not isinstance(entry.get(key), str):
            raise SignatureError(f"{name}: {key} must be text")
    if entry["where"] not in PLACES:
        raise SignatureError(f"{name}: where must be one of {', '.join(PLACES)}")
    needs = frozenset(entry.get("needs", ()))
    if not needs <= set(NEEDS):
        raise SignatureError(f"{name}: needs must be among {', '.join(NEEDS)}")
    status = entry.get("status", "confirmed")
    if status not in ("confirmed", "suspected"):
        raise SignatureError(f"{name}: status must be confirmed or suspected")
    match = _compile(name, entry["match"])
    return Signature(
        id=entry["id"],
        where=entry["where"],
        match=match,
        says=" ".join(entry["says"].split()),
        source=" ".join(entry["source"].split()),
        exclude=_optional(name, entry.get("not")),
        also=_optional(name, entry.get("also")),
        unless=_optional(name, entry.get("unless")),
        differ=_differ(name, entry.get("differ"), match),
        needs=needs,
        status=Status(status),
    )


def _differ(name: str, value: Any, match: re.Pattern[str]) -> tuple[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not set(value) <= set(match.groupindex):
        raise SignatureError(f"{name}: differ must name two groups of match")
    return (value[0], value[1])


def _meaning(entry: Any) -> tuple[re.Pattern[str], str]:
    if not isinstance(entry, Mapping) or entry.get("means") not in MEANINGS or not entry.get("source"):
        raise SignatureError(f"host_unread: needs match, source and means, one of {', '.join(MEANINGS)}")
    return _compile("host_unread", entry.get("match")), entry["means"]


def _optional(name: str, text: Any) -> re.Pattern[str] | None:
    return None if text is None else _compile(name, text)


def _compile(name: str, text: Any) -> re.Pattern[str]:
    if not isinstance(text, str):
        raise SignatureError(f"{name}: a pattern must be text")
    try:
        return re.compile(text)
    except re.error as error:
        raise SignatureError(f"{name}: {text!r}: {error}") from None
