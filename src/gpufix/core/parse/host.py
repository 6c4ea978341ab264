"""The small host files: memory, overcommit, boot id, lock, virtualisation, command line, kernel log, runtime. Pure."""

from __future__ import annotations

import json
import re

from gpufix.core.parse.source import Unreadable, content_lines, first_line, lines
from gpufix.language import t
from gpufix.model import Evidence, HostContainer, MemoryFacts, Observation

_MEMINFO = re.compile(r"(MemAvailable|SwapTotal|CommitLimit|Committed_AS|MemTotal):\s+(\d{1,18}) kB\s*$")
_CONTAINERS = re.compile(
    r"systemd-nspawn|lxc|lxc-libvirt|docker|podman|openvz|rkt|wsl|proot|pouch|container-other|oci|private-users"
)
_MACHINES = re.compile(
    r"none|kvm|qemu|amazon|bochs|xen|uml|vmware|oracle|microsoft|zvm|parallels|bhyve|qnx|acrn|powervm|apple|sre|google"
    r"|vm-other"
)
"""systemd-detect-virt(1)."""


def parse_meminfo(path: str, text: str) -> Observation[MemoryFacts]:
    """/proc/meminfo, KiB."""
    found: dict[str, int] = {}
    evidence: list[Evidence] = []
    for line in lines(path, text):
        match = _MEMINFO.match(line.excerpt)
        if match and match.group(1) not in found:
            found[match.group(1)] = int(match.group(2))
            evidence.append(line)
    if not found:
        raise Unreadable(t("{path}: no line of /proc/meminfo in it", path=path))
    facts = MemoryFacts(
        found.get("MemAvailable"), found.get("SwapTotal"), found.get("CommitLimit"), found.get("Committed_AS")
    )
    return Observation.of(facts, *(line for line in evidence if not line.excerpt.startswith("MemTotal")))


def parse_overcommit(path: str, text: str) -> Observation[int]:
    """vm.overcommit_memory: 0, 1 or 2."""
    line = first_line(path, text)
    if line.excerpt.strip() not in ("0", "1", "2"):
        raise Unreadable(t("{line}: not 0, 1 or 2", line=line.source))
    return Observation.of(int(line.excerpt), line)


def parse_boot_id(path: str, text: str) -> Observation[str]:
    """/proc/sys/kernel/random/boot_id."""
    line = first_line(path, text)
    if not re.fullmatch(r"[0-9a-fA-F-]{32,36}", line.excerpt.strip()):
        raise Unreadable(t("{line}: not a boot id", line=line.source))
    return Observation.of(line.excerpt.strip().lower(), line)


def parse_virt(path: str, text: str) -> Observation[bool]:
    """Whether the host is itself a container (systemd-detect-virt): then boot sources cannot be judged from inside."""
    line = first_line(path, text)
    word = line.excerpt.strip()
    inside = _CONTAINERS.fullmatch(word) is not None
    if not inside and not _MACHINES.fullmatch(word):
        raise Unreadable(
            t("{line}: not an answer of systemd-detect-virt: {text}", line=line.source, text=repr(word[:40]))
        )
    return Observation.of(inside, line)


def parse_busy(path: str, text: str) -> Observation[str]:
    """Who changes the host at the moment, in words: the line in /run/gpufix.lock. An empty file: nobody does."""
    if not text.strip():
        return Observation.of("")
    line = first_line(path, text)
    try:
        holder = json.loads(line.excerpt)
        module, pid = holder["module"], holder["pid"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Unreadable(t("{line}: does not say who changes the host", line=line.source)) from None
    if not isinstance(module, str) or not re.fullmatch(r"[\w.-]{1,60}", module, re.ASCII) or type(pid) is not int:
        raise Unreadable(t("{line}: does not say who changes the host", line=line.source))
    return Observation.of(t("{module} (process {pid})", module=module, pid=pid), line)


def parse_cmdline(path: str, text: str) -> Observation[str]:
    """/proc/cmdline."""
    line = first_line(path, text)
    return Observation.of(line.excerpt.strip(), line)


def parse_kernel_log(path: str, text: str) -> Observation[tuple[Evidence, ...]]:
    """dmesg, line by line."""
    kept = tuple(line for line in lines(path, text) if line.excerpt.strip())
    if not kept:
        raise Unreadable(t("{path} is empty", path=path))
    return Observation.of(kept)


_GROUP_COUNT = re.compile(r"#\s*IOMMU groups:\s*(\d+)")
_GROUP = re.compile(r"(?:.*iommu_groups/|\s*(?:IOMMU )?(?:[Gg]roup )?)(?P<group>\d+)\b")


def parse_iommu_groups(path: str, text: str) -> Observation[tuple[str, ...]]:
    """The group numbers, from a listing of /sys/kernel/iommu_groups in any form: names, paths, or group and function.

    Raises Unreadable when it says how many there are and lists another number: it was cut short.
    """
    found: list[str] = []
    header: tuple[Evidence, ...] = ()
    for line in lines(path, text):
        stated = _GROUP_COUNT.match(line.excerpt)
        if stated:
            header = (line,)
        elif line.excerpt.strip() and not line.excerpt.startswith("#"):
            match = _GROUP.match(line.excerpt)
            if match is None:
                raise Unreadable(
                    t(
                        "{line}: not a line of /sys/kernel/iommu_groups: {text}",
                        line=line.source,
                        text=repr(line.excerpt[:60]),
                    )
                )
            if match["group"] not in found:
                found.append(match["group"])
    counted = _GROUP_COUNT.match(header[0].excerpt) if header else None
    if counted and int(counted.group(1)) != len(found):
        raise Unreadable(
            t("{path}: says {said} groups and lists {listed}", path=path, said=counted.group(1), listed=len(found))
        )
    return Observation.of(tuple(found), *header)


_TASK = re.compile(r"(?P<id>[0-9a-f]{12,64})\s+(?P<pid>\d+)\s+(?P<state>[A-Z]+)\s*$")
_ALIVE, _DEAD = {"RUNNING", "PAUSED", "PAUSING"}, {"EXITED", "STOPPED", "CREATED"}


def parse_containers(path: str, text: str) -> Observation[tuple[HostContainer, ...]]:
    """What the runtime knows. Two forms: TAB-separated pod, container, id and state; or ``pod container id`` lines and
    then the runtime's own table of tasks, which says what runs. A line that is neither makes the whole unknown: a
    container that runs may be on it. So does a blank file: the reader writes a comment where the runtime knows none."""
    if not text.strip():
        raise Unreadable(t("{path} is empty", path=path))
    rows: list[tuple[Evidence, list[str]]] = []
    tasks: dict[str, str] = {}
    has_table = False
    for line in content_lines(path, text):
        task = _TASK.match(line.excerpt)
        tabbed = [part.strip() for part in line.excerpt.split("\t")]
        words = line.excerpt.split()
        if words[:2] == ["TASK", "PID"]:
            has_table = True
        elif task:
            tasks[task["id"]] = task["state"]
        elif len(tabbed) >= 4:
            rows.append((line, tabbed[:4]))
        elif len(words) == 3:
            rows.append((line, [*words, ""]))
        else:
            raise Unreadable(
                t("{line}: not a line about a container: {text}", line=line.source, text=repr(line.excerpt[:80]))
            )
    found = [HostContainer(row[0], _name(row[1]), row[2], _runs(row, tasks, has_table)) for _, row in rows]
    return Observation.of(tuple(found), *(line for line, _ in rows))


def _name(word: str) -> str:
    return "" if word in ("-", "None", "") else word


def _runs(row: list[str], tasks: dict[str, str], has_table: bool) -> bool | None:
    state = row[3].upper().removeprefix("CONTAINER_").removeprefix("SANDBOX_")
    if not state:
        if not has_table:
            return None
        state = next((kept for full, kept in tasks.items() if row[2] and full.startswith(row[2])), "STOPPED")
    if state in ("READY", *_ALIVE):
        return True
    return False if state in ("NOTREADY", *_DEAD) else None
