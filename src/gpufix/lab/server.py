"""A running practice lab: the model, its API over HTTP, one sandbox per node, and the clock that drives them."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpufix.errors import ExitStatus, GpufixError
from gpufix.lab.controllers import mark_for_deletion
from gpufix.lab.door import LabApi
from gpufix.lab.patches import Refused
from gpufix.lab.sandbox import BIN, Sandbox
from gpufix.lab.scenario import Scenario, act_out
from gpufix.lab.store import Object
from gpufix.lab.tools import ToolResult, run_tool

TICK = 0.1
"""Seconds between two looks of the lab at the clock, when nobody asks anything of it."""
_ANSIBLE_CFG = "[defaults]\nretry_files_enabled = False\ninternal_poll_interval = 0.02\n"
"""Ansible's own default, a look at its worker every millisecond, takes a tenth of a run that is all on one machine."""
LOCK, LOG, STATE = ".lock", "lab.log", "state"
MARK = "lab.json"
"""The file by which a folder is known as a lab's own, so that nothing else is ever cleared away."""


class Lab:
    """The lab in ``folder``, which is cleared first if it was one. Use as a context manager: it runs in between.

    Everything that it writes lies in the folder, and all that runs in it (Ansible, the journal of runs) is pointed
    there by ``environment``.
    """

    def __init__(self, folder: Path, scenario: Scenario, pace: float = 10.0, *, stays: bool = False) -> None:
        """``stays``: it is a process of its own, which ``gpufix lab down`` may end."""
        self.folder = folder.resolve()
        self.stays = stays
        self.scenario = scenario
        self.node = scenario.node
        self.changed = threading.Condition(threading.RLock())
        self.world = act_out(scenario, time.time(), pace)  # before anything is cleared: it may be refused
        _clear(self.folder)
        self.store = self.world.store
        self._token = secrets.token_urlsafe(24)
        self.api = LabApi(self, self._token)
        self.sandboxes = {name: Sandbox(self.folder / "nodes" / name) for name in self.world.machines}
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True, name="lab")

    def __enter__(self) -> Lab:
        try:
            write_mark(self.folder, {**self._mark, "pid": os.getpid(), "url": self.api.url, "stays": self.stays})
            self._furnish()
        except OSError as error:
            self._tidy()
            raise GpufixError(f"{self.folder} cannot be written: {error}", "look at its rights and its space") from None
        if unwritten := [one for sandbox in self.sandboxes.values() for one in sandbox.unwritten]:
            self._tidy()
            raise GpufixError(f"{self.scenario.file}: {unwritten[0]}", "mend the scenario")
        self.api.start()
        self._ticker.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        """Stop, and take away the credentials; what was left on the hosts and the journal stay to be looked at."""
        self._ended.set()
        try:
            self.api.stop()
            self._ticker.join(5)
            self._write_unknown()
        finally:
            self._tidy()

    def _tidy(self) -> None:
        for name in ("kubeconfig", "token"):
            (self.folder / name).unlink(missing_ok=True)
        write_mark(self.folder, self._mark)

    @property
    def _mark(self) -> dict[str, Any]:
        return {"scenario": self.scenario.id, "node": self.node}

    # --- what the API asks for ---

    def now(self) -> str:
        return self.world.stamp

    def advance(self) -> None:
        """Bring model and sandboxes to the present. The lock is held."""
        for name, sandbox in self.sandboxes.items():
            sandbox.read_disk(self.world.machines[name])
        self.world.advance(time.time())
        self._show()

    def _show(self) -> None:
        for name, sandbox in self.sandboxes.items():
            sandbox.write(self.world.machines[name])

    def written(self, plural: str, before: Object | None, after: Object | None) -> None:
        """Raises Refused where the model cannot live with ``after``; then all is as it was."""
        if plural == "pods" and before is not None and after is None:
            mark_for_deletion(self.world, before)
        try:
            self.world.settle()
        except Exception as error:  # a shape that no rule expects: one bad patch must not end the lab
            self._put_back(plural, before, after)
            self.world.settle()
            why = f"the practice lab cannot hold this object: {type(error).__name__}: {error}"
            raise Refused(422, "Invalid", why) from None
        self._show()

    def _put_back(self, plural: str, before: Object | None, after: Object | None) -> None:
        if before is not None:
            self.store.put(plural, before)
        elif after is not None:
            self.store.remove(plural, after["metadata"]["name"], after["metadata"].get("namespace", ""))

    def tool(self, node: str, argv: list[str]) -> ToolResult:
        if node not in self.world.machines:
            return ToolResult(64, "", f"the practice lab has no node {node}\n")
        result = run_tool(self.world, node, argv)
        self._show()
        unwritten = self.sandboxes[node].unwritten
        if unwritten:
            return ToolResult(1, "", f"{argv[0]}: {unwritten.pop()}\n")
        return result

    @property
    def unknown(self) -> list[str]:
        """What was asked of the API or of a tool that the lab does not model."""
        return [*self.api.unknown, *self.world.unknown]

    # --- what a person or a test does to it ---

    @contextmanager
    def held(self) -> Iterator[None]:
        """The model brought to the present and held still, for a look at it or a hand on it."""
        with self.changed:
            self.advance()
            yield
            self.world.settle()
            self._show()
            self.changed.notify_all()

    def _tick(self) -> None:
        while not self._ended.wait(TICK):
            with self.changed:
                version = self.store.version
                try:
                    self.advance()
                    self._write_unknown()
                except Exception as error:  # a full disk, say: the clock goes on, and it is on record
                    note = f"the lab's clock: {type(error).__name__}: {error}"
                    if note not in self.world.unknown:
                        self.world.unknown.append(note)
                if self.store.version != version:
                    self.changed.notify_all()

    def _write_unknown(self) -> None:
        if self.unknown:
            text = "".join(f"{line}\n" for line in self.unknown)
            (self.folder / "unknown.log").write_text(text, encoding="utf-8", errors="backslashreplace")

    # --- files ---

    def _furnish(self) -> None:
        host, port = self.api.url.removeprefix("http://").rsplit(":", 1)
        token = self.folder / "token"
        private(token, self._token)
        for name, sandbox in self.sandboxes.items():
            sandbox.furnish(name, (host, int(port)), token)
        private(self.folder / "kubeconfig", json.dumps(_kubeconfig(self.api.kubeconfig_url, self._token), indent=1))
        inventory = _inventory(self.folder, list(self.sandboxes))
        (self.folder / "inventory.yml").write_text(json.dumps(inventory, indent=1), encoding="utf-8")
        (self.folder / "ansible.cfg").write_text(_ANSIBLE_CFG, encoding="utf-8")
        with self.changed:
            self._show()


def write_mark(folder: Path, data: dict[str, Any]) -> None:
    fresh = folder / f".{MARK}.new"
    fresh.write_text(json.dumps(data) + "\n", encoding="utf-8")
    fresh.replace(folder / MARK)


def read_mark(folder: Path) -> dict[str, Any]:
    """What the lab in ``folder`` is: scenario, node; pid, url, stays while it is up. Empty where there is none."""
    try:
        data = json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def environment(folder: Path, node: str) -> dict[str, str]:
    """The environment of everything that runs against the lab in ``folder``: nothing of it leaves the folder."""
    return {
        "KUBECONFIG": str(folder / "kubeconfig"),
        "ANSIBLE_INVENTORY": str(folder / "inventory.yml"),
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "ANSIBLE_HOME": str(folder / "ansible"),
        "ANSIBLE_LOCAL_TEMP": str(folder / "ansible" / "tmp"),
        "ANSIBLE_REMOTE_TMP": str(folder / "ansible" / "tmp"),
        "XDG_STATE_HOME": str(folder / STATE),
        # a proxy would be asked for 127.0.0.1 too, and be given the token
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "GPUFIX_LAB": str(folder),
        "GPUFIX_LAB_NODE": node,
        "NODE_ROOT": str(folder / "nodes" / node),
    }


def tools_folder(folder: Path, node: str) -> Path:
    return folder / "nodes" / node / BIN


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the lab's folder for this process. Raises GpufixError (status 2) while another one has it."""
    _require_lab(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise GpufixError(f"{folder}: {error.strerror}", "give a folder that can be written with --dir") from None
    with os.fdopen(handle, "r+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            known = read_mark(folder)
            what = f"scenario {known['scenario']}" if known else "another process starts one"
            raise GpufixError(
                f"a practice lab is up in {folder} already ({what})",
                "use it with gpufix lab shell, end it with gpufix lab down, or give another folder with --dir",
            ) from None
        yield


def private(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)


def _require_lab(folder: Path) -> None:
    """Raises GpufixError (status 2) for a folder that is somebody's, and for a name that a lab cannot have."""
    name = str(folder)
    if os.pathsep in name or not name.isprintable():  # it goes into PATH, and there the real tools would be next
        raise GpufixError(
            f"--dir {name!r}: a lab's folder has no {os.pathsep!r} and no control character in its path", "give another"
        )
    try:
        there = {entry.name for entry in folder.iterdir()} if os.path.lexists(folder) else set()
    except OSError:
        there = {""}
    if there - {LOCK, LOG} and not {"scenario", "node"} <= set(read_mark(folder)):
        raise GpufixError(f"{folder} exists and is no practice lab", "give an empty or a new folder with --dir")


def _clear(folder: Path) -> None:
    """Empty a folder that is a lab's, but for its hosts' stand-ins: while a lab is built anew, a shell that is still
    open there must find them and not this machine's own tools."""
    _require_lab(folder)
    try:
        for entry in folder.iterdir():
            if entry.name == "nodes" and entry.is_dir() and not entry.is_symlink():
                _clear_hosts(entry)
            elif entry.is_dir() and not entry.is_symlink():
                if entry.name != STATE:  # the journals of runs: their folders were named to a person
                    shutil.rmtree(entry)
            elif entry.name not in (MARK, LOCK, LOG):
                entry.unlink()
    except OSError as error:
        raise GpufixError(f"{folder} cannot be cleared: {error}", "look at its rights", ExitStatus.USAGE) from None


def _clear_hosts(nodes: Path) -> None:
    kept = {nodes / node.name / part for node in nodes.iterdir() for part in ("usr", BIN)}
    for folder in [path for node in nodes.iterdir() for path in (node, node / "usr")]:
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry in kept:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def _kubeconfig(url: str, token: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": "gpufix-lab",
        "contexts": [{"name": "gpufix-lab", "context": {"cluster": "gpufix-lab", "user": "gpufix-lab"}}],
        "clusters": [{"name": "gpufix-lab", "cluster": {"server": url}}],
        "users": [{"name": "gpufix-lab", "user": {"token": token}}],
    }  # fmt: skip


def _inventory(folder: Path, nodes: list[str]) -> dict[str, Any]:
    """The nodes as hosts of this machine whose root lies elsewhere. gpufix_host_root is all that differs."""
    hosts = {name: {"gpufix_host_root": str(folder / "nodes" / name)} for name in nodes}
    variables = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
    }
    return {"lab": {"hosts": hosts, "vars": variables}}
