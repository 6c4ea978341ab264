"""A practice host's disk: one folder per node, with the files that playbooks read and the stand-ins for its tools.

Nothing outside the folder is ever written. What a person or a playbook edits there (fstab, units, the kubelet's
configuration) is read back before the model moves on.
"""

from __future__ import annotations

import shlex
import shutil
import stat
import sys
from pathlib import Path

from gpufix.lab.kubelet import proc_swaps
from gpufix.lab.machine import DISK, UNITS, Card, Machine, Process
from gpufix.lab.tools import TOOLS

BIN = "usr/bin"
_LARGEST = 1 << 20
"""Bytes of a file that the model reads."""
_STAND_IN = '''\
"""Stands in for the tools of this practice host: asks the lab what one does, and prints that."""
import json, os, socket, sys

tool = sys.argv[1]
call = json.dumps({{"node": {node!r}, "argv": sys.argv[1:]}}).encode()
try:
    door = socket.create_connection({address!r}, 30)
    with open({token!r}) as stream:
        token = stream.read()
except OSError:
    sys.exit(tool + ": the practice lab is down: gpufix lab up")
head = "POST /lab/v1/tool HTTP/1.1\\r\\nHost: lab\\r\\nConnection: close\\r\\nContent-Type: application/json\\r\\n"
head += "Authorization: Bearer %s\\r\\nContent-Length: %d\\r\\n\\r\\n" % (token, len(call))
answer = b""
try:
    door.sendall(head.encode() + call)
    while part := door.recv(65536):
        answer += part
except OSError as error:
    sys.exit("%s: the practice lab does not answer: %s" % (tool, error))
head, _, body = answer.partition(b"\\r\\n\\r\\n")
if b" 200 " not in head.splitlines()[0]:
    sys.exit(tool + ": the practice lab: " + body.decode(errors="replace"))
result = json.loads(body)
try:
    for stream, text in ((sys.stdout, result["out"]), (sys.stderr, result["err"])):
        stream.buffer.write(text.encode("utf-8", "replace"))
        stream.flush()
except BrokenPipeError:
    os._exit(141)
sys.exit(result["code"])
'''
_TOOL = """\
#!/bin/sh
exec {python} -IS {program} "${{0##*/}}" "$@"
"""
"""A shell in between: the path of an interpreter may be too long, or hold blanks, for a first line."""


class Sandbox:
    """The folder ``root`` of one machine. Holds what it wrote last, so that only what changed is written again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._written: dict[str, str] = {}
        self._links: dict[str, str] = {}
        self._disk: dict[str, str] = {}
        self.unwritten: list[str] = []
        """What the machine's disk was to hold and a real one cannot, each with the reason."""

    def furnish(self, node: str, address: tuple[str, int], token: Path) -> None:
        """Put the stand-ins there. They are small programs, all the same one under each tool's name."""
        bin_folder = self.root / BIN
        bin_folder.mkdir(parents=True, exist_ok=True)
        program = bin_folder / ".stand-in.py"
        _replace(program, _STAND_IN.format(node=node, address=address, token=str(token)))
        tool = bin_folder / ".tool"
        tool.write_text(
            _TOOL.format(python=shlex.quote(sys.executable), program=shlex.quote(str(program))), encoding="utf-8"
        )
        tool.chmod(0o755)
        for name in TOOLS:
            if not (bin_folder / name).is_symlink():
                (bin_folder / name).symlink_to(tool.name)
        for folder in (
            "proc",
            "sys/block",
            "sys/kernel/iommu_groups",
            "sys/bus/pci/devices",
            "dev",
            "run/containerd",
            "tmp",
        ):
            (self.root / folder).mkdir(parents=True)
        (self.root / "run/containerd/containerd.sock").touch()

    # --- the disk: what may be edited ---

    def read_disk(self, machine: Machine) -> None:
        """Bring ``machine.disk`` in line with what lies in the folder."""
        if not self._disk:
            return
        found = {path: text for path in DISK if (text := self._text(path)) is not None}
        units = self.root / UNITS.lstrip("/")
        for entry in sorted(units.rglob("*")):
            name = f"{UNITS}/{entry.relative_to(units)}"
            if entry.is_symlink() and entry.parent != units:
                found[name] = "link"
            elif entry.is_symlink() and str(entry.readlink()) == "/dev/null":
                found[name] = "masked"
            elif entry.is_file() and (text := self._text(name)) is not None:  # None: renamed since it was listed
                found[name] = text
        machine.disk = found
        self._disk = dict(found)

    def _text(self, path: str) -> str | None:
        """None for what is no file of sensible size: a pipe or a device in its place would be read for ever."""
        file = self.root / path.lstrip("/")
        try:
            status = file.stat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
                return None
            return file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def _write_disk(self, machine: Machine) -> None:
        for path in self._disk.keys() - machine.disk.keys():
            (self.root / path.lstrip("/")).unlink(missing_ok=True)
        for path, text in list(machine.disk.items()):
            if self._disk.get(path) == text:
                continue
            try:
                self._write_one(path, text)
            except (OSError, ValueError) as error:
                del machine.disk[path]
                reason = error.strerror if isinstance(error, OSError) else str(error)
                self.unwritten.append(f"{path[:80]}: {reason}")
        self._disk = dict(machine.disk)

    def _write_one(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        if ".." in Path(path).parts:
            raise ValueError("leads out of the practice host")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        if text == "masked":
            target.symlink_to("/dev/null")
        elif text == "link":
            target.symlink_to(f"../{target.name}")
        else:
            target.write_text(text, encoding="utf-8")

    # --- /proc and /sys: what the model says ---

    def write(self, machine: Machine) -> None:
        """Write what changed of the model since the last time."""
        self._write_disk(machine)
        files = _files(machine)
        links = _links(machine)
        for path in self._links.keys() - links.keys():
            (self.root / path).unlink(missing_ok=True)
        for path in self._written.keys() - files.keys():
            (self.root / path).unlink(missing_ok=True)
        for path, text in files.items():
            if self._written.get(path) != text:
                _replace(self.root / path, text)
        for path, target in links.items():
            if self._links.get(path) != target:
                link = self.root / path
                link.parent.mkdir(parents=True, exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(target)
        for pid in {path.split("/")[1] for path in self._written if path[5:6].isdigit()}:
            if f"proc/{pid}/comm" not in files:
                shutil.rmtree(self.root / f"proc/{pid}", ignore_errors=True)
        self._written, self._links = files, links


def _replace(path: Path, text: str) -> None:
    """Whole or not at all: a playbook may be reading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def _files(machine: Machine) -> dict[str, str]:
    size, used = (sum(getattr(swap, name) for swap in machine.swaps) for name in ("size", "used"))
    memory = {
        "MemTotal": machine.memory, "MemFree": machine.available // 2, "MemAvailable": machine.available,
        "SwapTotal": size, "SwapFree": size - used, "CommitLimit": machine.memory // 2 + size,
        "Committed_AS": machine.memory // 8,
    }  # fmt: skip
    files = {
        "proc/swaps": proc_swaps(machine),
        "proc/meminfo": "".join(f"{name + ':':<15} {value:>9} kB\n" for name, value in memory.items()),
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz-6.12.0 root=/dev/vg0/root ro intel_iommu=on iommu=pt\n",
        "proc/sys/vm/overcommit_memory": f"{machine.overcommit}\n",
        "proc/sys/kernel/random/boot_id": f"{machine.boot_id}\n",
    }
    for card in machine.cards:
        folder = f"sys/bus/pci/devices/{card.address}"
        override = card.driver if card.driver == "vfio-pci" else "(null)"
        words = {
            "vendor": "0x10de",
            "device": f"0x{card.device}",
            "class": f"0x{card.pci_class}",
            "driver_override": override,
        }
        files.update({f"{folder}/{name}": f"{word}\n" for name, word in words.items()})
    for process in machine.processes.values():
        folder = f"proc/{process.pid}"
        files[f"{folder}/comm"] = f"{process.command[:15]}\n"
        files[f"{folder}/cmdline"] = f"{process.command}\0"
        files[f"{folder}/cgroup"] = f"0::{process.cgroup}\n"
        files[f"{folder}/maps"] = ""
    return files


def _links(machine: Machine) -> dict[str, str]:
    links: dict[str, str] = {}
    for card in machine.cards:
        links.update(_card_links(card))
    for process in machine.processes.values():
        links.update(_open_files(process))
    return links


def _card_links(card: Card) -> dict[str, str]:
    folder, group = f"sys/bus/pci/devices/{card.address}", f"sys/kernel/iommu_groups/{card.group}"
    links = {
        f"{folder}/iommu_group": f"../../../../kernel/iommu_groups/{card.group}",
        f"{group}/devices/{card.address}": f"../../../../bus/pci/devices/{card.address}",
    }
    if card.driver:
        links[f"{folder}/driver"] = f"../../../../bus/pci/drivers/{card.driver}"
    return links


def _open_files(process: Process) -> dict[str, str]:
    return {f"proc/{process.pid}/fd/{number}": path for number, path in enumerate(process.devices, start=3)}
