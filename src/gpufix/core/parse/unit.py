"""The kubelet's unit, from ``systemctl show``. Pure."""

from __future__ import annotations

from gpufix.core.parse.source import Unreadable, lines
from gpufix.core.parse.times import parse_systemd_time
from gpufix.language import t
from gpufix.model import Evidence, Observation, Snapshot, UnitFacts

_KEPT = frozenset(
    {"ActiveState", "SubState", "Result", "NRestarts", "UnitFileState", "ActiveEnterTimestamp", "LoadState"}
)


def parse_unit(snapshot: Snapshot, path: str, text: str) -> Observation[UnitFacts]:
    """UnitFacts. The evidence holds the lines of the properties that are judged."""
    properties: dict[str, str] = {}
    evidence: list[Evidence] = []
    for line in lines(path, text):
        key, equals, value = line.excerpt.partition("=")
        if equals and key not in properties:
            properties[key] = value
            if key in _KEPT:
                evidence.append(line)
    if not properties.get("ActiveState"):
        raise Unreadable(t("{path}: no ActiveState in it", path=path))
    name = snapshot.files.get("host/unit", "").strip().split("\n")[0] or properties.get("Id") or "kubelet.service"
    facts = UnitFacts(
        name=name,
        active_state=properties["ActiveState"],
        sub_state=properties.get("SubState", ""),
        result=properties.get("Result", ""),
        restarts=_number(properties.get("NRestarts", "")),
        unit_file_state=properties.get("UnitFileState", ""),
        restart_policy=properties.get("Restart", ""),
        active_since=parse_systemd_time(properties.get("ActiveEnterTimestamp", "")),
        main_pid=_number(properties.get("MainPID", "")),
        load_state=properties.get("LoadState", ""),
    )
    return Observation.of(facts, *evidence)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0
