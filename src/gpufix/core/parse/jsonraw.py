"""JSON that keeps its own text, so that evidence can quote the exact bytes of the object it speaks of. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpufix.core.parse.source import Unreadable
from gpufix.language import t

_DECODER = json.JSONDecoder()
_SPACE = " \t\n\r"

Step = str | int | tuple[str, str]
"""A step into JSON: a member's name, an element's index, or (name, value): the element whose member has that value."""


@dataclass(frozen=True, slots=True)
class Item:
    """One object of a list, and its text."""

    value: dict[str, Any]
    raw: str


class _Member(NamedTuple):
    name: str
    start: int
    value_start: int
    end: int


def read_items(path: str, text: str) -> tuple[Item, ...]:
    """The objects of a Kubernetes list (or the one object that the file is). What is no object is left out.

    Raises Unreadable, with line and column, when the text is not JSON, and when it is something else than objects: an
    error that the API server sent instead is not an empty list.
    """
    try:
        start = _skip(text, 0)
        whole, end = _DECODER.raw_decode(text, start)
        if text[end:].strip():
            raise json.JSONDecodeError("more text after the end", text, end)
        if isinstance(whole, list):
            return _objects(text, start)
        if not isinstance(whole, dict):
            raise Unreadable(t("{path}: no JSON object", path=path))
        if isinstance(whole.get("items"), list):
            members = [member for member in _members(text, start) if member.name == "items"]
            return _objects(text, members[-1].value_start)
    except json.JSONDecodeError as error:
        at = f"{path}:{error.lineno}:{error.colno}"
        raise Unreadable(t("{at}: not JSON: {error}", at=at, error=error.msg)) from None
    except (RecursionError, ValueError, IndexError) as error:
        raise Unreadable(
            t("{path}: not JSON that can be read ({error})", path=path, error=type(error).__name__)
        ) from None
    if "items" in whole and whole["items"] is None:
        return ()
    if "items" not in whole and isinstance(whole.get("metadata"), dict) and whole["metadata"].get("name"):
        return (Item(whole, text[start:end]),)
    kind = str(whole.get("kind"))[:40]
    raise Unreadable(t("{path}: neither a list of objects nor one object (kind {kind})", path=path, kind=kind))


def cut(raw: str, *steps: Step) -> str:
    """The text of the value that ``steps`` lead to; empty when there is none, or ``raw`` is not JSON."""
    text = raw
    try:
        for step in steps:
            text = _value(text, step)
            if not text:
                return ""
    except (ValueError, RecursionError, IndexError):
        return ""
    return text


def cut_member(raw: str, *names: str) -> str:
    """The text of a member with its name, ``"name": value``; empty when there is none."""
    owner = cut(raw, *names[:-1])
    try:
        for member in _members(owner, _skip(owner, 0)):
            if member.name == names[-1]:
                return owner[member.start : member.end]
    except (ValueError, RecursionError, IndexError):
        pass
    return ""


def _value(text: str, step: Step) -> str:
    start = _skip(text, 0)
    if isinstance(step, str):
        for member in _members(text, start):
            if member.name == step:
                return text[member.value_start : member.end]
        return ""
    for index, (value, begin, end) in enumerate(_elements(text, start)):
        if isinstance(step, int):
            found = index == step
        else:
            found = isinstance(value, dict) and value.get(step[0]) == step[1]
        if found:
            return text[begin:end]
    return ""


def _objects(text: str, start: int) -> tuple[Item, ...]:
    found = _elements(text, start)
    return tuple(Item(value, text[begin:end]) for value, begin, end in found if isinstance(value, dict))


def _elements(text: str, start: int) -> Iterator[tuple[Any, int, int]]:
    """The elements of the array at ``start``, each with where its text begins and ends."""
    at = _skip(text, _after(text, start, "["))
    if text[at : at + 1] == "]":
        return
    while True:
        value, end = _DECODER.raw_decode(text, at)
        yield value, at, end
        at = _skip(text, end)
        if text[at : at + 1] == "]":
            return
        at = _skip(text, _after(text, at, ","))


def _members(text: str, start: int) -> Iterator[_Member]:
    """The members of the object at ``start``."""
    at = _skip(text, _after(text, start, "{"))
    if text[at : at + 1] == "}":
        return
    while True:
        name, end = _DECODER.raw_decode(text, at)
        if not isinstance(name, str):
            raise json.JSONDecodeError("a member's name must be a string", text, at)
        value_start = _skip(text, _after(text, _skip(text, end), ":"))
        _, value_end = _DECODER.raw_decode(text, value_start)
        yield _Member(name, at, value_start, value_end)
        at = _skip(text, value_end)
        if text[at : at + 1] == "}":
            return
        at = _skip(text, _after(text, at, ","))


def _after(text: str, at: int, char: str) -> int:
    if text[at : at + 1] != char:
        raise json.JSONDecodeError(f"expected {char!r}", text, at)
    return at + 1


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at
