"""Reading a snapshot's files: one way to say that a file is missing, broken, or what stands on which line. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from gpufix.language import t
from gpufix.model import Evidence, Observation, Snapshot

T = TypeVar("T")


class Unreadable(Exception):
    """The content of one file cannot be understood. The message says where and why, on one line."""


def observe(snapshot: Snapshot, path: str, parse: Callable[[str, str], Observation[T]]) -> Observation[T]:
    """What ``parse(path, text)`` makes of one file; unknown, with the reason, when it is missing or broken.

    A parser that meets what nobody foresaw is a broken file too: parsing never takes the diagnosis down with it.
    """
    text = snapshot.files.get(path)
    if text is None:
        return Observation.missing(snapshot.why_unread(path))
    try:
        return parse(path, text)
    except Unreadable as error:
        return Observation.missing(str(error))
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        return Observation.missing(t("{path}: not understood ({error})", path=path, error=type(error).__name__))


def lines(path: str, text: str) -> Iterator[Evidence]:
    """Each line with its number, as ``sed -n`` counts it. The excerpt is the line as it stands, without its end."""
    for number, line in enumerate(text.split("\n"), start=1):
        yield Evidence(f"{path}:{number}", line.rstrip("\r"))


def content_lines(path: str, text: str) -> list[Evidence]:
    """The lines that say something: neither blank nor a ``#`` comment."""
    return [line for line in lines(path, text) if line.excerpt.strip() and not line.excerpt.lstrip().startswith("#")]


def first_line(path: str, text: str) -> Evidence:
    """The first line that is not blank. Raises Unreadable when there is none."""
    for line in lines(path, text):
        if line.excerpt.strip():
            return line
    raise Unreadable(t("{path} is empty", path=path))
