# Copyright the gpufix authors. SPDX-License-Identifier: Apache-2.0
"""What makes swap, and whether memory can take back what is in it. Pure functions; standard library only."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

SERVICES = ("zramswap.service", "dphys-swapfile.service", "swapspace.service")
DELETED = "\\040(deleted)"
OWN_UNITS = "/etc/systemd/system/"
_ENABLED = ("enabled", "enabled-runtime", "generated", "alias")


class Device(NamedTuple):
    """A line of /proc/swaps. ``path`` is as the kernel writes it, with its octal escapes; sizes in KiB."""

    path: str
    kind: str
    size_kib: int
    used_kib: int
    priority: int

    @property
    def name(self) -> str:
        """The path itself, as swapoff wants it."""
        return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), self.path)

    def as_dict(self) -> Dict[str, Any]:
        return {
            "path": self.name,
            "type": self.kind,
            "size_kib": self.size_kib,
            "used_kib": self.used_kib,
            "priority": self.priority,
        }


class SwapUnit(NamedTuple):
    """A .swap unit, with what systemd says of it and, in ``origin``, who made it.

    ``origin`` is native | fstab | gpt-auto | zram | generated | proc | masked.
    """

    name: str
    what: str
    fragment: str
    active: str
    file_state: str
    origin: str

    @property
    def returns_at_boot(self) -> bool:
        """fstab's units are judged by the fstab line, so they say False here."""
        if self.origin == "native":
            return self.file_state not in ("disabled", "masked", "masked-runtime")
        return self.origin in ("gpt-auto", "zram", "generated")


def choose_verb(fragment: str, file_state: str) -> str:
    """mask | disable | set-aside: how the unit whose file is ``fragment`` is kept from bringing swap back.

    systemd masks no unit whose file lies in /etc/systemd/system: such a one is disabled, or, where it has nothing to
    disable, its file is renamed and then it is masked.
    """
    if not fragment.startswith(OWN_UNITS):
        return "mask"
    return "disable" if file_state in ("enabled", "enabled-runtime") else "set-aside"


class Service(NamedTuple):
    """A service that makes swap. ``enabled`` as systemctl words it; ``active`` is its ActiveState."""

    name: str
    enabled: str
    active: str

    @property
    def makes_swap(self) -> bool:
        return self.enabled in _ENABLED or self.active in ("active", "activating", "reloading")


def parse_swaps(text: str) -> List[Device]:
    """/proc/swaps. Raises ValueError, naming the line, on anything that is not that."""
    devices = []
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.split()
        if not words or (number == 1 and words[0] == "Filename"):
            continue
        try:
            path, kind, size, used, priority = words
            devices.append(Device(path, kind, int(size), int(used), int(priority)))
        except ValueError:
            raise ValueError(f"line {number} of /proc/swaps is not understood: {line}") from None
    return devices


def swaps_sha256(devices: List[Device]) -> str:
    """Which devices are swap: sha256 of their paths as /proc/swaps writes them, sorted, joined by newlines."""
    return hashlib.sha256("\n".join(sorted(device.path for device in devices)).encode("utf-8")).hexdigest()


def parse_meminfo(text: str) -> Dict[str, int]:
    """/proc/meminfo in KiB."""
    return {name: int(value) for name, value in re.findall(r"^([\w()]+):\s+(\d+)", text, re.MULTILINE)}


def mib(kib: int) -> str:
    """Rounded up, so that a little in use is never shown as nothing."""
    return f"{-(-kib // 1024):,} MiB"


def judge_memory(devices: List[Device], memory: Dict[str, int], overcommit: Optional[int]) -> Tuple[bool, str]:
    """Whether swap can be turned off, and the numbers that say so (mm/swapfile.c; a margin of 10 %).

    MemAvailable * 0.9 must hold all that is swapped out, and under vm.overcommit_memory=2 what is promised must fit
    without swap. A number that is missing makes it no.
    """
    used = sum(device.used_kib for device in devices)
    available = memory.get("MemAvailable")
    if available is None:
        return (
            False,
            f"MemAvailable is not in /proc/meminfo, so it is not known whether memory can hold {mib(used)} of swap",
        )
    usable = available * 9 // 10
    text = f"{mib(used)} in swap, {usable // 1024:,} MiB of memory usable"
    text += f" (90 % of MemAvailable, {available // 1024:,} MiB)"
    if used > usable:
        return False, text + ": too little"
    if overcommit is None:
        return False, text + "; vm.overcommit_memory is not known"
    if overcommit != 2:
        return True, text
    try:
        room, promised = memory["CommitLimit"] - memory["SwapTotal"], memory["Committed_AS"]
    except KeyError as error:
        return False, text + f"; vm.overcommit_memory is 2 and {error.args[0]} is not in /proc/meminfo"
    text += f"; vm.overcommit_memory is 2: {mib(promised)} promised, {room // 1024:,} MiB allowed without swap"
    return (True, text) if room >= promised else (False, text + ": too little")


def fstab_whats(lines: List[Tuple[int, str]]) -> List[str]:
    """The first fields of fstab lines as systemd names their devices: UUID=x is /dev/disk/by-uuid/x."""
    whats = []
    for _number, line in lines:
        field = line.split()[0]
        field = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), field)
        tag, equals, value = field.partition("=")
        folder = {"UUID": "by-uuid", "LABEL": "by-label", "PARTUUID": "by-partuuid", "PARTLABEL": "by-partlabel"}.get(
            tag.upper()
        )
        whats.append("/dev/disk/{}/{}".format(folder, value.strip("\"'")) if equals and folder else field)
    return whats


def parse_units(blocks: List[Dict[str, str]], whats: List[str]) -> List[SwapUnit]:
    """Units of ``systemctl show '*.swap'``. ``whats``: the devices of fstab's swap lines (``fstab_whats``)."""
    units = []
    for block in blocks:
        name, fragment, what = block.get("Id", ""), block.get("FragmentPath", ""), block.get("What", "")
        file_state = block.get("UnitFileState", "")
        if not name or block.get("LoadState") == "not-found" and not fragment:
            continue
        if file_state.startswith("masked") or block.get("LoadState") == "masked" or fragment == "/dev/null":
            origin = "masked"
        elif not fragment:
            origin = "proc"
        elif not fragment.startswith(("/run/systemd/generator", "/var/run/systemd/generator")):
            origin = "native"
        elif block.get("SourcePath", "").endswith("/fstab"):
            origin = "fstab"
        elif re.match(r"(/dev/|dev-)zram\d", what or name):
            origin = "zram"
        elif "/generator.late/" in fragment or "gpt-auto" in block.get("Documentation", ""):
            origin = "gpt-auto"
        elif not block.get("SourcePath") and what in whats:
            origin = "fstab"
        else:
            origin = "generated"
        units.append(SwapUnit(name, what, fragment, block.get("ActiveState", ""), file_state, origin))
    return units


def parse_services(blocks: List[Dict[str, str]]) -> List[Service]:
    """Those of SERVICES that are installed."""
    return [
        Service(block["Id"], block.get("UnitFileState", "") or "unknown", block.get("ActiveState", ""))
        for block in blocks
        if block.get("Id") in SERVICES and block.get("LoadState") not in ("not-found", "", None)
    ]
