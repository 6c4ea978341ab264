"""Marks of others who mend, drain, reboot or delete a node, from the text of ``data/remediators.yml``. Pure.

Only what stands on the node itself is read. kured's lock, for one, is an annotation of its DaemonSet: that kured holds
it for this node is seen only by the annotations that it puts on the node where it is told to (--annotate-nodes).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from gpufix.core.evidence import annotation_of, condition_of, cordon_of, label_of, taints_of
from gpufix.core.signatures import SignatureError
from gpufix.language import t
from gpufix.model import Evidence, NodeFacts

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_PLACES = ("taint", "label", "annotation", "condition")
_KEYS = {"who", "where", "key", "value", "cordoned", "explains", "stops", "says", "source"}
_LONGEST = 120
"""Characters of a value in a line; the evidence has all of it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Somebody else is at this node. ``stops``: going on makes little sense, or is dangerous without a person."""

    who: str
    text: str
    evidence: Evidence
    stops: bool


@dataclass(frozen=True, slots=True)
class MarkSignature:
    """What one program writes on a node, where, and what it means for a recovery."""

    who: str
    where: str
    key: re.Pattern[str]
    says: str
    stops: bool
    source: str
    value: re.Pattern[str] | None = None
    cordoned: bool = False
    explains_cordon: bool = False


def marks_of(node: NodeFacts, signatures: tuple[MarkSignature, ...]) -> tuple[Mark, ...]:
    """The marks on ``node``: those that stop first, else as the signatures come.

    That a node is cordoned the diagnosis says already (node-cordoned): here it is told since when, and only where no
    mark explains it.
    """
    found: list[Mark] = []
    explained = False
    for signature in signatures:
        if signature.cordoned and not node.unschedulable:
            continue
        for value, evidence in _met(node, signature):
            text = t(signature.says).replace("{value}", _short(value))
            if all((mark.who, mark.text) != (signature.who, text) for mark in found):
                found.append(Mark(signature.who, text, evidence, signature.stops))
            explained |= signature.explains_cordon
    if node.unschedulable and not explained:
        found += _plain_cordon(node)
    return tuple(sorted(found, key=lambda mark: not mark.stops))


def _met(node: NodeFacts, signature: MarkSignature) -> Iterator[tuple[str, Evidence]]:
    for key, value in _written(node, signature.where):
        if signature.key.fullmatch(key) and (signature.value is None or signature.value.fullmatch(value)):
            yield value, _evidence(node, signature.where, key)


def _written(node: NodeFacts, where: str) -> Iterator[tuple[str, str]]:
    if where == "taint":
        yield from ((taint.key, taint.value) for taint in node.taints)
    elif where == "condition":
        yield from sorted(node.conditions.items())
    else:
        yield from sorted((node.labels if where == "label" else node.annotations).items())


def _evidence(node: NodeFacts, where: str, key: str) -> Evidence:
    if where == "taint":
        return taints_of(node, key)[0]
    return {"label": label_of, "annotation": annotation_of, "condition": condition_of}[where](node, key)


def _plain_cordon(node: NodeFacts) -> list[Mark]:
    """Who did it is written nowhere; since when, on the taint that the control plane puts beside it."""
    taint = next((taint for taint in node.taints if taint.key == UNSCHEDULABLE), None)
    if taint is None or taint.since is None:
        text = t("cordoned by somebody, who left no reason on it")
        return [Mark("cordon", text, cordon_of(node), False)]
    at = f"{taint.since:%Y-%m-%d %H:%M:%S}"
    text = t("cordoned since {at} UTC by somebody, who left no reason on it", at=at)
    return [Mark("cordon", text, taints_of(node, UNSCHEDULABLE)[0], False)]


def _short(value: str) -> str:
    words = " ".join(value.split()) or t("(empty)")
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"


# --- the signatures --------------------------------------------------------------------------------------------------


def load_remediators(text: str) -> tuple[MarkSignature, ...]:
    """Signatures from YAML. Raises SignatureError on unknown keys, broken expressions and missing sources."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SignatureError(f"not YAML: {error}") from None
    if not isinstance(data, Mapping) or data.get("version") != 1:
        raise SignatureError("version must be 1")
    entries = data.get("marks")
    if not isinstance(entries, list):
        raise SignatureError("marks must be a list")
    return tuple(_signature(entry) for entry in entries)


def _signature(entry: Any) -> MarkSignature:
    if not isinstance(entry, Mapping):
        raise SignatureError(f"a mark must be a mapping, not {entry!r}")
    name = f"mark of {entry.get('who')} ({entry.get('key')})"
    if unknown := set(entry) - _KEYS:
        raise SignatureError(f"{name}: unknown key {sorted(map(str, unknown))[0]}")
    for key in ("who", "where", "key", "says", "source"):
        if not isinstance(entry.get(key), str) or "\n" in entry[key]:
            raise SignatureError(f"{name}: {key} must be text on one line")
    if entry["where"] not in _PLACES:
        raise SignatureError(f"{name}: where must be one of {', '.join(_PLACES)}")
    if not entry["source"].startswith("https://"):
        raise SignatureError(f"{name}: source must be an address")
    if not isinstance(entry.get("stops"), bool) or not isinstance(entry.get("cordoned", False), bool):
        raise SignatureError(f"{name}: stops and cordoned must be true or false")
    if entry.get("explains", "cordon") != "cordon":
        raise SignatureError(f"{name}: explains can only be cordon")
    return MarkSignature(
        entry["who"],
        entry["where"],
        _compile(name, entry["key"]),
        entry["says"],
        entry["stops"],
        entry["source"],
        value=_compile(name, entry["value"]) if "value" in entry else None,
        cordoned=entry.get("cordoned", False),
        explains_cordon="explains" in entry,
    )


def _compile(name: str, text: Any) -> re.Pattern[str]:
    if not isinstance(text, str):
        raise SignatureError(f"{name}: a pattern must be text")
    try:
        return re.compile(text)
    except re.error as error:
        raise SignatureError(f"{name}: {text!r}: {error}") from None
