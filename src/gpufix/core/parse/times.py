"""Timestamps of every writer a snapshot holds, as timezone-aware datetimes in UTC. Pure: never the wall clock."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone

from gpufix.model import Snapshot
from gpufix.text import moment

_STAMP = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})[T ](\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?\s*(Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?"
)
_JSON_STAMP = re.compile(
    r'"(?:lastHeartbeatTime|lastTransitionTime|lastProbeTime|lastTimestamp|firstTimestamp|eventTime|timeAdded|renewTime'
    r'|creationTimestamp|startedAt|finishedAt|startTime|kubevirt\.io/heartbeat)"\s*:\s*"([^"]{19,40})"'
)
"""Only moments that have passed: a deletionTimestamp lies ahead by the grace period."""


def parse_time(text: object, *, default_utc: bool = False) -> datetime | None:
    """RFC 3339 and journalctl's short-iso: ``Z``, ``+00:00``, ``+0000``, local offsets, fractions of a second.

    None for what is no timestamp, and for one without a zone unless ``default_utc``.
    """
    if isinstance(text, datetime):
        return text.astimezone(UTC) if text.tzinfo else (text.replace(tzinfo=UTC) if default_utc else None)
    if not isinstance(text, str):
        return None
    match = _STAMP.match(text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    if zone is None and not default_utc:
        return None
    micro = int((fraction or "0")[:6].ljust(6, "0"))
    try:
        local = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), micro, _zone(zone))
        return local.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def told(text: object) -> str:
    """A timestamp of a record as people read it everywhere; what is none stays. Not yet safe for a terminal."""
    when = parse_time(text)
    return moment(when) if when is not None else str(text or "")


def _zone(text: str | None) -> timezone:
    if text is None or text in ("Z", "UTC", "GMT"):
        return UTC
    digits = text[1:].replace(":", "").ljust(4, "0")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)


def parse_systemd_time(text: str) -> datetime | None:
    """``systemctl show``'s ``Wed 2026-12-02 08:43:24 UTC`` or ``@1764665029``; None for zones that are only letters."""
    text = text.strip()
    if text.startswith("@"):
        try:
            return datetime.fromtimestamp(float(text[1:]), UTC)
        except (ValueError, OverflowError, OSError):
            return None
    _, _, rest = text.partition(" ")
    return parse_time(rest)


def as_of(snapshot: Snapshot) -> datetime | None:
    """When the snapshot was taken: captured_at, else the newest timestamp in the folder."""
    return parse_time(snapshot.captured_at, default_utc=True) or max(_stamps(snapshot.files), default=None)


def _stamps(files: Mapping[str, str]) -> Iterator[datetime]:
    for path, text in files.items():
        if path.endswith(".json"):
            found = (parse_time(match.group(1)) for match in _JSON_STAMP.finditer(text))
        elif path.endswith(".journal"):
            found = (parse_time(line[:40]) for line in text.split("\n") if line[:1].isdigit())
        else:
            continue
        yield from (stamp for stamp in found if stamp is not None)
