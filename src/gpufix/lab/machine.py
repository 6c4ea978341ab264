"""The machines of the practice cluster: what a host is, apart from what the API server says of it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

KUBELET = "kubelet.service"
CONFIG = "/var/lib/kubelet/config.yaml"
FLAGS = "/var/lib/kubelet/kubeadm-flags.env"
FSTAB = "/etc/fstab"
UNITS = "/etc/systemd/system"
DISK = (FSTAB, CONFIG, FLAGS)
"""The files of the disk that the model reads, besides those of UNITS."""


@dataclass(slots=True)
class Unit:
    """A service as systemd holds it. Kubelets have Restart=always (kubeadm's unit); jobs have Restart=no."""

    name: str
    description: str
    active: str = "inactive"
    sub: str = "dead"
    result: str = "success"
    enabled: bool = True
    restarts: int = 0
    pid: int = 0
    since: float = 0.0
    exit_status: int = 0


@dataclass(slots=True)
class Swap:
    """A swap area that is on. ``path`` is the kernel's name of it; sizes in KiB."""

    path: str
    kind: str
    size: int
    used: int
    priority: int = -2


class Native(NamedTuple):
    """A .swap unit that is loaded from a file of UNITS. ``enabled``: swap.target wants it."""

    name: str
    what: str
    enabled: bool


@dataclass(slots=True)
class Card:
    """One PCI function of an NVIDIA card. ``driver`` is empty where none is bound."""

    address: str
    device: str
    pci_class: str
    driver: str
    group: str
    text: str

    @property
    def is_gpu(self) -> bool:
        return self.pci_class == "030000"


@dataclass(slots=True)
class Process:
    """A process that has devices open. ``unit`` is the systemd unit that it belongs to, empty for a pod's."""

    pid: int
    command: str
    devices: tuple[str, ...]
    cgroup: str
    unit: str = ""
    pod: str = ""
    """The uid of the pod that it belongs to."""


@dataclass(slots=True)
class Container:
    """What the runtime keeps of a container; ``name`` is "-" for a pod's sandbox. It needs no kubelet to go on."""

    id: str
    pod: str
    uid: str
    name: str
    running: bool = True


class Line(NamedTuple):
    """A line of the journal. ``who`` is systemd or the program; ``unit`` whose journal shows it."""

    at: float
    unit: str
    who: str
    pid: int
    text: str


@dataclass(slots=True)
class Machine:
    """A host: its systemd, swap, memory (KiB), containers, card, and the files of its disk that count here."""

    name: str
    boot_id: str
    booted: float
    kubelet_version: str = "v1.34.4"
    units: dict[str, Unit] = field(default_factory=dict)
    swaps: list[Swap] = field(default_factory=list)
    swap_files: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Files that mkswap has prepared: path -> KiB in all, KiB in use as soon as it is on."""
    memory: int = 64 * 1024 * 1024
    available: int = 52 * 1024 * 1024
    overcommit: int = 0
    cards: list[Card] = field(default_factory=list)
    containers: list[Container] = field(default_factory=list)
    processes: dict[int, Process] = field(default_factory=dict)
    journal: list[Line] = field(default_factory=list)
    kernel: list[tuple[float, str]] = field(default_factory=list)
    disk: dict[str, str] = field(default_factory=dict)
    """Path -> text. "masked" stands for a link to /dev/null, "link" for a link in a .wants folder."""
    generated: list[str] = field(default_factory=list)
    """Paths whose unit systemd's fstab generator made at the last boot or daemon-reload."""
    native: list[Native] = field(default_factory=list)
    extra_args: str = ""
    """KUBELET_EXTRA_ARGS of the unit's drop-ins, as systemd last read them at a daemon-reload."""
    calls: list[str] = field(default_factory=list)
    """What vfio-manage.sh was asked for: ``bind --all``, ``unbind --all``."""
    pods: dict[str, str] = field(default_factory=dict)
    """What the kubelet does with a pod, by uid: starting | running | stopping. Empty while it is dead."""
    adopted: bool = False
    """The kubelet has registered since its start and has taken its old pods up again."""
    next_pid: int = 2000

    @property
    def kubelet(self) -> Unit:
        return self.units[KUBELET]

    @property
    def alive(self) -> bool:
        """The kubelet runs."""
        return self.kubelet.active == "active"

    @property
    def minor(self) -> int:
        return int(self.kubelet_version.split(".")[1])

    @property
    def gpus(self) -> list[Card]:
        return [card for card in self.cards if card.is_gpu]

    def gpu_on(self, driver: str) -> bool:
        return bool(self.gpus) and all(card.driver == driver for card in self.gpus)

    def users(self, prefix: str = "/dev/") -> list[Process]:
        """The processes that have a device of the card open whose name begins so."""
        return [one for one in self.processes.values() if any(name.startswith(prefix) for name in one.devices)]

    def log(self, at: float, unit: str, who: str, text: str, pid: int = 1) -> None:
        self.journal.append(Line(at, unit, who, pid, text))
        del self.journal[:-4000]

    def says(self, at: float, text: str) -> None:
        """A line of the kernel's log."""
        self.kernel.append((at - self.booted, text))

    def new_pid(self) -> int:
        self.next_pid += 7
        return self.next_pid

    # --- swap and what makes it ---

    def reload_units(self) -> None:
        """systemctl daemon-reload: the generators run again, and unit files are read again (FACTS 6)."""
        self.generated = fstab_swaps(self.disk.get(FSTAB, ""))
        self.native = []
        drop_ins = [text for path, text in sorted(self.disk.items()) if path.startswith(f"{UNITS}/{KUBELET}.d/")]
        found = re.findall(r'^Environment="?KUBELET_EXTRA_ARGS=(.*?)"?$', "\n".join(drop_ins), re.MULTILINE)
        self.extra_args = found[-1] if found else ""
        for path, text in sorted(self.disk.items()):
            match = re.fullmatch(rf"{UNITS}/([^/]+\.swap)", path)
            if match and text != "masked":
                what = re.search(r"^What=(.+)$", text, re.MULTILINE)
                wanted = f"{UNITS}/swap.target.wants/{match[1]}" in self.disk
                self.native.append(Native(match[1], what[1].strip() if what else "", wanted))

    def masked(self, unit: str) -> bool:
        return self.disk.get(f"{UNITS}/{unit}") == "masked"

    def comes_back(self) -> list[str]:
        """The areas that a boot turns on: fstab's, and those of native units that swap.target wants; none masked."""
        paths = [path for path in self.generated if not self.masked(unit_of(path))]
        return paths + [unit.what for unit in self.native if unit.enabled and unit.what not in paths]

    def swap_on(self, path: str, priority: int | None = None) -> str:
        """Turn an area on; without ``priority`` the kernel gives one, counting down from -2 (mm/swapfile.c).

        Why not, as swapon words it; empty when it is on now.
        """
        if any(swap.path == path for swap in self.swaps):
            return f"swapon: {path}: swapon failed: Device or resource busy"
        if path not in self.swap_files:
            return f"swapon: cannot open {path}: No such file or directory"
        size, used = self.swap_files[path]
        kind = "partition" if path.startswith("/dev/") else "file"
        if priority is None:
            priority = -2 - sum(swap.priority < 0 for swap in self.swaps)
        self.swaps.append(Swap(path, kind, size, used, priority))
        return ""

    def swap_off(self, path: str) -> str:
        """Turn an area off. The kernel refuses where memory cannot hold what is in it (FACTS 6, mm/swapfile.c)."""
        swap = next((one for one in self.swaps if one.path == path), None)
        if swap is None:
            return f"swapoff: {path}: swapoff failed: Invalid argument"
        if swap.used > self.available:
            return f"swapoff: {path}: swapoff failed: Cannot allocate memory"
        self.swaps.remove(swap)
        self.available -= swap.used
        return ""


def fstab_swaps(text: str) -> list[str]:
    """The devices of fstab's swap lines: third field ``swap``, no comment, not ``noauto`` (FACTS 6)."""
    fields = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    lines = [one for one in fields if len(one) >= 3 and one[2] == "swap"]
    return [one[0] for one in lines if len(one) < 4 or "noauto" not in one[3].split(",")]


def unit_of(path: str) -> str:
    """systemd's name for the unit of a path: /dev/sda2 -> dev-sda2.swap."""
    parts = [part for part in path.split("/") if part]
    escaped = ["".join(c if c.isalnum() or c in ":_." else f"\\x{ord(c):02x}" for c in part) for part in parts]
    return "-".join(escaped) + ".swap"
