"""Swap: what is on now, and what would bring it back at boot. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpufix.core.parse.source import Unreadable, content_lines, lines
from gpufix.language import t
from gpufix.model import Evidence, FstabLine, MemoryFacts, Observation, SwapDevice, SwapUnit

_OCTAL = re.compile(r"\\([0-3][0-7]{2})")
_HEX = re.compile(r"\\x([0-9a-fA-F]{2})")
_TAGS = {"UUID": "by-uuid", "LABEL": "by-label", "PARTUUID": "by-partuuid", "PARTLABEL": "by-partlabel"}
_NATIVE = ("/etc/", "/usr/", "/lib/", "/run/systemd/system/", "/run/systemd/transient/")
_AT_BOOT = ("enabled", "enabled-runtime", "generated", "linked", "alias")


def parse_swaps(path: str, text: str, memory: Observation[MemoryFacts]) -> Observation[tuple[SwapDevice, ...]]:
    """/proc/swaps. Every line but the header is active swap, zram too, whatever Used says (as the kubelet counts it).

    Where it names none and /proc/meminfo counts some, one of the two is wrong: unknown.
    """
    kept = [line for line in lines(path, text) if line.excerpt.strip()]
    if not kept or not kept[0].excerpt.startswith("Filename"):
        raise Unreadable(t("{path}: the header of /proc/swaps is missing", path=path))
    devices: list[SwapDevice] = []
    for line in kept[1:]:
        fields = line.excerpt.split()
        if len(fields) < 5 or not (fields[-3].isdecimal() and fields[-2].isdecimal()):
            raise Unreadable(
                t("{line}: not a line of /proc/swaps: {text}", line=line.source, text=repr(line.excerpt[:80]))
            )
        name = line.excerpt.rsplit(None, 4)[0].strip()
        priority = int(fields[-1]) if re.fullmatch(r"-?\d{1,9}", fields[-1]) else 0
        devices.append(SwapDevice(_octal(name), fields[-4], int(fields[-3]), int(fields[-2]), priority))
    total = memory.value.swap_total_kib if memory.value is not None else None
    if not devices and total:
        why = t("{path} names no swap, host/proc_meminfo counts {n} kB", path=path, n=total)
        return Observation(None, (*kept, *memory.evidence), why)
    return Observation.of(tuple(devices), *kept)


def _octal(text: str) -> str:
    """The kernel writes space, tab, newline and backslash as octal (fs/seq_file.c, mangle_path)."""
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), text)


def parse_fstab(path: str, text: str) -> Observation[tuple[FstabLine, ...]]:
    """The lines of fstab that are swap: no comment, and field 3 is ``swap`` (fstab(5)), not the word elsewhere."""
    found = [line for line in content_lines(path, text) if _is_swap(line.excerpt)]
    numbered = tuple(FstabLine(int(line.source.rsplit(":", 1)[1]), line.excerpt) for line in found)
    return Observation.of(numbered, *found)


def _is_swap(line: str) -> bool:
    fields = line.split()
    return len(fields) >= 3 and fields[2] == "swap"


def parse_swap_units(
    path: str, text: str, fstab: Observation[tuple[FstabLine, ...]]
) -> Observation[tuple[SwapUnit, ...]]:
    """The .swap units: ``systemctl show`` blocks, or list-units text, which does not tell where a unit comes from."""
    kept = [line for line in lines(path, text) if line.excerpt.strip()]
    if any(re.match(r"[A-Z]\w+=", line.excerpt) for line in kept):
        blocks = _blocks(path, text)
        units = tuple(_from_show(block, fstab) for block in blocks if block.get("Id", "").endswith(".swap"))
        return Observation.of(
            units, *(line for line in kept if line.excerpt.startswith(("Id=", "FragmentPath=", "What=")))
        )
    found = [(line, _from_list(line.excerpt)) for line in kept]
    return Observation.of(tuple(unit for _, unit in found if unit), *(line for line, unit in found if unit))


def _blocks(path: str, text: str) -> list[Mapping[str, str]]:
    blocks: list[dict[str, str]] = [{}]
    for line in lines(path, text):
        key, equals, value = line.excerpt.partition("=")
        if not line.excerpt.strip():
            blocks.append({})
        elif equals:
            blocks[-1][key.strip()] = value.strip()
    return [block for block in blocks if block]


def _from_show(block: Mapping[str, str], fstab: Observation[tuple[FstabLine, ...]]) -> SwapUnit:
    name, fragment = block.get("Id", ""), block.get("FragmentPath", "")
    what = block.get("What", "") or _unescape(name)
    state = block.get("UnitFileState", "")
    origin = _origin(what, fragment, state, block.get("SourcePath", ""), fstab)
    return SwapUnit(name, what, fragment, block.get("ActiveState", ""), state, origin)


def _origin(what: str, fragment: str, state: str, source: str, fstab: Observation[tuple[FstabLine, ...]]) -> str:
    """Where a .swap unit comes from: systemd.swap(5), systemd-fstab-generator(8), systemd-gpt-auto-generator(8)."""
    if state.startswith("masked") or fragment == "/dev/null":
        return "masked"
    if what.startswith("/dev/zram"):
        return "zram"
    if not fragment:
        return "proc"
    if fragment.startswith("/run/systemd/generator.late/"):
        return "gpt-auto"
    if fragment.startswith("/run/systemd/generator"):
        if source.endswith("fstab"):
            return "fstab"
        if fstab.value is None:
            return "unknown"
        return "fstab" if any(_device(line.text.split()[0]) == what for line in fstab.value) else "gpt-auto"
    return "native" if fragment.startswith(_NATIVE) else "unknown"


def _device(spec: str) -> str:
    """fstab's first field as systemd names it: ``UUID=x`` is ``/dev/disk/by-uuid/x``."""
    tag, equals, value = spec.partition("=")
    if equals and tag.upper() in _TAGS:
        return f"/dev/disk/{_TAGS[tag.upper()]}/{value.strip(chr(34))}"
    return _octal(spec)


def _from_list(line: str) -> SwapUnit | None:
    fields = line.replace("●", " ").replace("*", " ").split()
    if not fields or not fields[0].endswith(".swap"):
        return None
    load, active = [*fields[1:3], "", ""][:2]
    masked = load == "masked"
    return SwapUnit(fields[0], _unescape(fields[0]), "", active, "", "masked" if masked else "unknown")


def _unescape(name: str) -> str:
    """The path behind a unit's name (systemd-escape --path): ``dev-dm\\x2d2.swap`` is /dev/dm-2."""
    path = name.removesuffix(".swap").replace("-", "/")
    return "/" + _HEX.sub(lambda match: chr(int(match.group(1), 16)), path)


def parse_swap_services(path: str, text: str) -> Observation[tuple[str, ...]]:
    """Of ``zramswap.service enabled`` lines, the services that make swap at boot."""
    found: list[str] = []
    evidence: list[Evidence] = []
    for line in content_lines(path, text):
        fields = line.excerpt.split()
        if len(fields) < 2:
            raise Unreadable(t("{line}: no state after {word}", line=line.source, word=repr(fields[0])))
        evidence.append(line)
        if fields[1] in _AT_BOOT:
            found.append(fields[0])
    return Observation.of(tuple(found), *evidence)
