"""Hostile text made safe for a terminal, and small formatting that every renderer shares. Pure."""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import wcwidth

from gpufix.language import t

_BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def safe(text: str, *, keep_newlines: bool = False, limit: int = 0) -> str:
    """``text`` with nothing left that a terminal would obey: control characters, bidi overrides and lone surrogates
    become visible escapes. Tabs become one space. ``limit`` > 0 cuts to that many characters, with an ellipsis."""
    out: list[str] = []
    for char in text:
        if char == "\n" and keep_newlines:
            out.append(char)
        elif char == "\t":
            out.append("\t" if keep_newlines else " ")
        elif unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") or unicodedata.bidirectional(char) in _BIDI:
            code = ord(char)
            out.append(f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
        else:
            out.append(char)
    result = "".join(out)
    if limit and len(result) > limit:
        return result[: limit - 1] + "…"
    return result


_SECRET = re.compile(
    r"""(?ix)
    (?P<key> (?<![a-z0-9_-]) [_-]* (?:[a-z0-9]+[_-]+)*
        (?: password2? | passwd | passphrase | token | secret | api[-_]?key | access[-_]?key | pass(?==) )
        (?P<quote>\\?["']?) \s*[=:]\s* )
        (?P<value> \\"[^"\\\n]*\\" | "(?:[^"\\\n]|\\.)*" | '[^'\n]*' | ["'][^\s,;"']* | [^\s,;"'(){}\[\]\\]+ )
    | (?P<option> --[a-z0-9-]*(?:password|passphrase|token|secret) \s+ ) (?P<word> [^\s"'-][^\s"']* )
    | (?P<scheme> \b(?:bearer|basic)\s+ ) (?P<credential> [a-z0-9._~+/=-]{8,} )
    | (?P<user> ://[^/\s:@"']+: ) [^/\s@"']+ (?= @ )
    | (?P<hook> \bhooks\.slack\.com/services/ ) [^\s"']+
    | (?P<jwt> eyJ[a-z0-9_-]{10,}\.[a-z0-9_-]{10,}\.[a-z0-9_-]* )
    | (?P<begin> -----BEGIN\ [A-Z\ ]*PRIVATE\ KEY----- ) [\s\S]*? (?P<end> -----END\ [A-Z\ ]*PRIVATE\ KEY----- | \Z )
    """
)
"""Names of one word, or of words joined by _ and -: a camelCase one is a field of Kubernetes' own, with no secret."""


_SECRET_NAME = re.compile(
    r"(?i)(?:[a-z0-9]+[_-])*(?:password2?|passwd|passphrase|token|secret|api[-_]?key|access[-_]?key)"
)


def redact(text: str) -> str:
    """``text`` without what looks like a password, a token or a private key. Used on everything that is stored.

    A quoted value stays quoted, and one after a quoted key becomes so. Data goes through ``redact_all`` before it
    becomes JSON: in a text alone, where a value ends cannot always be told.
    """

    def replace(match: re.Match[str]) -> str:
        if match["key"]:
            opened = re.match(r"\\?[\"']", match["value"])
            quote = opened[0] if opened else match["quote"]
            return f"{match['key']}{quote}(redacted){quote}"
        if match["begin"]:
            return f"{match['begin']} (redacted) {match['end']}"
        return f"{match['option'] or match['scheme'] or match['user'] or match['hook'] or ''}(redacted)"

    return _SECRET.sub(replace, text)


def redact_all(value: Any, text: Callable[[str], str] = redact) -> Any:
    """``value`` as plain JSON data, each string in it (keys too) passed through ``text``. Anything that is no JSON type
    becomes a string; a number that is not finite becomes None, since JSON has no word for it."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {
            text(str(key)): "(redacted)" if isinstance(part, str) and _SECRET_NAME.fullmatch(str(key)) else
            redact_all(part, text)
            for key, part in value.items()
        }  # fmt: skip
    if isinstance(value, (list, tuple, set, frozenset)):
        return [redact_all(part, text) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (int, float, bool)) or value is None:
        return value
    return text(str(value))


def wrapped(text: str, width: int, first: str = "", rest: str = "", *, break_long_words: bool = False) -> list[str]:
    """``text`` in lines of at most ``width`` terminal columns (two for a Hangul syllable), the indents included."""
    return wcwidth.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=break_long_words,
        break_on_hyphens=False,
        propagate_sgr=False,
    )


def columns(text: str) -> int:
    """How many columns of a terminal ``text`` takes: two for a Hangul syllable."""
    return int(wcwidth.width(text))


def padded(text: str, width: int) -> str:
    """``text`` with blanks up to ``width`` terminal columns."""
    return text + " " * max(0, width - columns(text))


def clipped(text: str, width: int) -> str:
    """``text``, made ``safe`` already, cut to ``width`` terminal columns, with an ellipsis."""
    if len(text) * 2 <= width or columns(text) <= width:
        return text
    room, kept = width - 1, 0
    while kept < len(text) and (room := room - columns(text[kept])) >= 0:
        kept += 1
    return text[:kept] + "…"


def stamp(moment: datetime) -> str:
    """``moment`` as RFC 3339 in UTC, to the microsecond: ``2026-12-02T12:00:00.000000Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def moment(when: datetime) -> str:
    """For people, everywhere: ``2026-12-02 08:43:27 UTC``."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def nearest(word: str, choices: Iterable[str], count: int = 3) -> list[str]:
    """The choices closest to ``word``, best first."""
    return difflib.get_close_matches(word, list(choices), n=count, cutoff=0.5)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """``did you mean a, b?`` or, where nothing is near, the first few choices that there are."""
    pool = sorted(set(choices))
    near = nearest(word, pool)
    if near:
        return t("did you mean {names}?", names=", ".join(near))
    if not pool:
        return ""
    shown = ", ".join(pool[:8]) + (", ..." if len(pool) > 8 else "")
    return t("there is: {names}", names=shown)


def duration(delta: timedelta) -> str:
    """The two largest units: ``112 d 3 h``, ``4 min 10 s``, ``0 s``. Negative spans count as zero."""
    seconds = max(0, int(delta.total_seconds()))
    days, seconds = divmod(seconds, 86400)
    hours, seconds = divmod(seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    parts = [t("{n} d", n=days)] if days else []
    parts += [t("{n} h", n=hours)] if hours else []
    parts += [t("{n} min", n=minutes)] if minutes else []
    parts += [t("{n} s", n=seconds)] if seconds or not parts else []
    return " ".join(parts[:2])


def ago(since: datetime | None, as_of: datetime | None) -> str:
    """``since 2026-08-12 04:11:09 UTC (112 d 4 h)``; empty when the start is not known."""
    if since is None:
        return ""
    if as_of is None:
        return t("since {moment}", moment=moment(since))
    return t("since {moment} ({duration})", moment=moment(since), duration=duration(as_of - since))


def size(kib: int) -> str:
    """A size given in KiB, for people: ``28 KiB``, ``256.0 MiB``, ``32.0 GiB``."""
    if kib < 1024:
        return f"{kib} KiB"
    if kib < 1024 * 1024:
        return f"{kib / 1024:.1f} MiB"
    return f"{kib / (1024 * 1024):.1f} GiB"


def duration_s(seconds: float) -> str:
    """Seconds of work, for people: ``0.8 s``, ``41 s``, ``2 min 5 s``."""
    return t("{n} s", n=f"{seconds:.1f}") if seconds < 10 else duration(timedelta(seconds=seconds))
