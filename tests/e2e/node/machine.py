"""What the node takes from this host: processes, a network namespace, swap, cgroups. And how each is given back."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from .names import ADDRESS, GATEWAY, NODE

NETNS = f"gpufix-{NODE}"
BRIDGE = "br-gpufix"
VETH = "v-gpufix"
OWNER = Path("/run/gpufix-realnode")
"""Names the work folder of the node that is up on this machine."""
MARK = "GPUFIX_REALNODE_CHILD"
"""Environment variable of every process that is started here, so that none is ever lost."""


class RealNodeError(Exception):
    """The node is not, or did not get, as it was asked to be."""


def run(command: list[str], stdin: str | None = None, check: bool = True, timeout: float = 60) -> str:
    """Run a command and give its output; an error names the command and what it said."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout, input=stdin or "")
    except subprocess.TimeoutExpired as error:
        raise RealNodeError(f"{shlex.join(command)[:300]}: no answer in {timeout:g} s") from error
    if check and done.returncode:
        raise RealNodeError(f"{shlex.join(command)[:300]}: status {done.returncode}: {done.stderr.strip()[-800:]}")
    return done.stdout


class Reservation:
    """One process at a time may use the machine's node. The lock goes with the process, however that ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: TextIO | None = None

    def take(self, wait: float, say: Callable[[str], None]) -> None:
        """Take it, or keep it; ``wait`` seconds at most for another process to give it back."""
        if self._lock is not None:
            return
        lock = self.path.open("a+")
        deadline = time.monotonic() + wait
        told = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                lock.seek(0)
                holder = f"{describe_process(lock.read().strip())} uses the real node"
            if time.monotonic() >= deadline:
                lock.close()
                raise RealNodeError(holder)
            if not told:
                say(f"{holder}: waiting for it")
                told = True
            time.sleep(0.5)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def give_back(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


RESERVATION = Reservation(Path(f"{OWNER}.lock"))


class Processes:
    """Processes of this host that outlive the one that starts them: output in logs/, identity in run/."""

    def __init__(self, work: Path) -> None:
        self.work = work

    def start(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        log = self.work / "logs" / f"{name}.log"
        detach = ["/bin/sh", "-c", 'log=$1; shift; setsid "$@" </dev/null >"$log" 2>&1 & echo $!', "sh", str(log)]
        marked = {**os.environ, **(environment or {}), MARK: str(self.work)}
        marked.pop("KUBECONFIG", None)
        done = subprocess.run([*detach, *command], check=True, stdout=subprocess.PIPE, text=True, env=marked)
        pid = int(done.stdout)
        (self.work / "run" / name).write_text(f"{pid} {start_time(pid)}\n")

    def pid(self, name: str) -> int | None:
        """Give the id of a recorded process, if it is still that process and no other that took its number."""
        try:
            pid, started = (self.work / "run" / name).read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if start_time(int(pid)) == started else None

    def is_alive(self, name: str) -> bool:
        return self.pid(name) is not None

    def end(self, name: str) -> None:
        pid = self.pid(name)
        if pid is not None:
            kill([pid])
        (self.work / "run" / name).unlink(missing_ok=True)

    def end_all(self) -> None:
        """End every process that was started for this work folder, found by the mark in its environment too."""
        records = self.work / "run"
        names = [entry.name for entry in records.iterdir()] if records.is_dir() else []
        kill(pid for pid in map(self.pid, names) if pid)
        kill(self._marked())

    def _marked(self) -> list[int]:
        mark = f"{MARK}={self.work}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in environment and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        return found


def describe_process(pid: str) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        command = "?"
    return f"process {pid} ({command[:100]})"


def start_time(pid: int) -> str:
    """Give the start time of a process in clock ticks, or "" where it is gone or only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def kill(pids: Iterable[int]) -> None:
    """End processes at once and see them gone: everything here is thrown away."""
    ending = []
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            ending.append(pid)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + 20
    while any(start_time(pid) for pid in ending):
        if time.monotonic() > deadline:
            raise RealNodeError(f"not ended by SIGKILL in 20 s: {[pid for pid in ending if start_time(pid)]}")
        time.sleep(0.05)


def swap_devices() -> list[str]:
    """Give the swap devices that are on, on this machine."""
    return [line.split()[0] for line in Path("/proc/swaps").read_text().splitlines()[1:]]


def make_network() -> None:
    """A bridge with the host's address, and a namespace with the node's. No rule lets anything further out."""
    run(["ip", "link", "add", BRIDGE, "type", "bridge"])
    run(["ip", "addr", "add", f"{GATEWAY}/24", "dev", BRIDGE])
    run(["ip", "link", "set", BRIDGE, "up"])
    run(["ip", "netns", "add", NETNS])
    run(["ip", "link", "add", VETH, "type", "veth", "peer", "name", "host0", "netns", NETNS])
    run(["ip", "link", "set", VETH, "master", BRIDGE, "up"])
    run(["ip", "-n", NETNS, "addr", "add", f"{ADDRESS}/24", "dev", "host0"])
    run(["ip", "-n", NETNS, "link", "set", "host0", "up"])
    run(["ip", "-n", NETNS, "link", "set", "lo", "up"])
    run(["ip", "-n", NETNS, "route", "add", "default", "via", GATEWAY])


def remove_network() -> None:
    run(["ip", "netns", "del", NETNS], check=False)
    for link in (VETH, BRIDGE):
        run(["ip", "link", "del", link], check=False)


def netns_pids() -> list[int]:
    """Give the processes in the node's network namespace: the node, and nothing else of this machine."""
    if not Path("/run/netns", NETNS).exists():
        return []
    return [int(pid) for pid in run(["ip", "netns", "pids", NETNS], check=False).split()]


def find_leader() -> int | None:
    """Give this host's id of the node's first process: number 1 of a PID namespace, in the node's network."""
    for pid in netns_pids():
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
        if len(numbers) == 2 and numbers[1] == "1" and start_time(pid):
            return pid
    return None


def cgroups_of_node(leader: int) -> list[Path]:
    """Give the groups that the node makes in this host's hierarchies: they outlive it.

    nspawn makes "payload" and "supervisor" where it runs, for systemd; runc makes "k8s.io" for the containers.
    """
    folders = []
    for line in Path(f"/proc/{leader}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        top = Path("/sys/fs/cgroup", controllers.removeprefix("name=") or "unified")
        here = (top if top.is_dir() else Path("/sys/fs/cgroup")) / path.lstrip("/")
        if "payload" in here.parts:
            unit = Path(*here.parts[: here.parts.index("payload")])
            folders += [unit / "payload", unit / "supervisor"]
        else:
            folders.append(here / "k8s.io")
    return folders


def remove_cgroups(folders: Iterable[Path], wait: float = 5) -> None:
    """Remove the groups of a node that is dead. The kernel lets go of them a moment after their processes."""
    deadline = time.monotonic() + wait
    left = [folder for folder in folders if folder.is_dir()]
    while left and time.monotonic() < deadline:
        for top in left:
            below = [folder for folder in top.rglob("*") if folder.is_dir()]
            for folder in [*sorted(below, reverse=True), top]:
                with suppress(OSError):
                    folder.rmdir()
        left = [folder for folder in left if folder.is_dir()]
        time.sleep(0.1 if left else 0)


def mounts_below(folder: Path) -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.startswith(f"{folder}/")]
