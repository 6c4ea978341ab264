"""gpufix as a process that is killed (SIGKILL) at a named point of its work.

Run as a program this is a server: it has everything imported once, and forks one process for each command that it is
given on its standard input. Each of those is gpufix from its ``main`` on, and dies at the first of the points that it
was armed with, or ends by itself.

A point is a text: its kind, what is going on, and ``@`` the last line that this process has written to its journal. So
it is the same one in every run, however often the node was looked at before.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READ = "read-node.yml"
NODE = "omen2"
_KUBECONFIG = json.dumps({
    "apiVersion": "v1", "kind": "Config", "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "c", "user": {"token": "t"}}],
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ended:
    """How a gpufix process ended. ``point``: where it was killed, empty where it was not; ``passed``: the points that
    it came by, in order."""

    status: int
    point: str
    passed: tuple[str, ...]


class Killer:
    """The server, from outside. Use as a context manager."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def __enter__(self) -> Killer:
        self._server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_exception: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(60)

    def run(self, argv: Sequence[str], armed: Sequence[str] = (), *, real: bool, hurry: float) -> Ended:
        """``real``: playbooks run through ansible-runner. ``hurry``: how many times as fast gpufix's own waits pass."""
        order = {
            "argv": list(argv), "armed": list(armed), "real": real, "hurry": hurry, "log": str(self._log),
            "environment": dict(os.environ), "folder": str(Path.cwd()),
        }  # fmt: skip
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        return Ended(answer["status"], answer["point"], tuple(answer["passed"]))


# --- in the process that is killed -----------------------------------------------------------------------------------


class Points:
    """The points that this process comes by. ``report`` is where it says so: a descriptor that outlives it."""

    def __init__(self, armed: Sequence[str], report: int) -> None:
        self._armed = frozenset(armed)
        self._report = report
        self._passed: set[str] = set()
        self._guard = threading.Lock()
        self.where = "begin"

    def come_by(self, what: str, at: str | None = None, last_act: Callable[[], None] | None = None) -> None:
        """Die here if that was wanted, after ``last_act``. ``at``: in place of the last line of the journal."""
        point = f"{what} @ {at if at is not None else self.where}"
        with self._guard:
            if point in self._passed:
                return
            self._passed.add(point)
            dies = point in self._armed
            os.write(self._report, f"{'x' if dies else '-'}{point}\n".encode())
            if dies:
                if last_act is not None:
                    last_act()
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()


class Hurried:
    """A clock that is ``by`` times as fast as this machine's."""

    def __init__(self, by: float) -> None:
        self._by = by

    def monotonic(self) -> float:
        return time.monotonic() * self._by

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / self._by)


def put_points(points: Points, real: bool, clock: Hurried) -> None:
    """Let gpufix in this process come by ``points``, and with ``real`` False put the short door in its place."""
    from gpufix import lock, session
    from gpufix.world import journal, playbooks, prompts, snapshots

    session.Session.__init__.__kwdefaults__["clock"] = clock
    _put_into_journal(points, journal)
    _put_into_lock(points, lock.Lock)
    _put_into_door(points, playbooks.PlaybookRunner, real, clock)

    read_cluster, write = session.read_cluster, snapshots._write

    def read(*arguments: Any) -> Any:
        answer = read_cluster(*arguments)
        points.come_by("observe cluster")
        return answer

    def write_one(path: Path, text: str) -> None:
        if path.name == "nodes.json":
            points.come_by("snapshot")
        write(path, text)

    session.read_cluster = read  # type: ignore[attr-defined]
    snapshots._write = write_one
    # of an undo, which nobody can consent to in a file: the hands of a person who applies everything
    prompts.check_terminal = lambda unattended: None
    prompts.ask_text = lambda message: NODE
    prompts.ask_choice = lambda message, options, default: next(
        one for one in ("apply", "on", default) if one in [option.value for option in options]
    )


def _put_into_journal(points: Points, journal: Any) -> None:
    write = journal.Journal.write

    class Disk:
        """``os``, as the journal sees it."""

        line = ""

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def write(self, file: int, data: bytes) -> int:
            if self.line:
                half = data[: len(data) // 2]
                points.come_by("mid-write", self.line, lambda: void(os.write(file, half)))
            return os.write(file, data)

    disk = Disk()

    def written(self: Any, event: str, **fields: Any) -> None:
        line = f"{event} {fields.get('step', '')}".strip()
        points.come_by("before-write", line)
        disk.line = line
        write(self, event, **fields)
        disk.line = ""
        points.where = line
        points.come_by("after-write", line)

    journal.os = disk
    journal.Journal.write = written


def _put_into_lock(points: Points, lock: Any) -> None:
    acquire, fence, release = lock.acquire, lock.fence, lock.release

    def acquired(self: Any) -> None:
        acquire(self)
        points.come_by("lock taken")

    def fenced(self: Any, step: str) -> None:
        fence(self, step)
        points.come_by(f"lock fenced {step}")

    def released(self: Any) -> None:
        points.come_by("lock about to be let go")
        release(self)

    lock.acquire, lock.fence, lock.release = acquired, fenced, released


def _put_into_door(points: Points, runner: Any, real: bool, clock: Hurried) -> None:
    through = runner.run
    doing = [""]

    def tool(command: Sequence[str], ask: Callable[[], Any]) -> Any:
        words = " ".join(command)
        points.come_by(f"{doing[0]} before {words[:60]}")
        done = ask()
        points.come_by(f"{doing[0]} after {words[:60]}")
        return done

    if not real:
        from short_door import ShortDoor

        door = ShortDoor(clock.sleep, tool)

        def through(self: Any, playbook: Path, variables: Any, *, check: bool, on_event: Any) -> Any:
            return door.run(self, playbook, variables, check, on_event)

    def run(
        self: Any, playbook: Path, variables: Mapping[str, Any], *, check: bool = False, on_event: Any = None
    ) -> Any:
        kind = "observe" if playbook.name == READ else "preview" if check else "playbook"
        doing[0] = what = f"{kind} {playbook.name}"

        def heard(event: Mapping[str, Any]) -> None:
            if on_event is not None:
                on_event(event)
            if event.get("event") in ("playbook_on_task_start", "runner_on_ok"):
                data = event["event_data"]
                word = "begins" if event["event"] == "playbook_on_task_start" else "is done"
                points.come_by(f"{what} task {word}: {data.get('task')}")

        points.come_by(f"{what} about to begin")
        if not real and kind == "playbook":
            # as with ansible-playbook, which is a process of its own: it goes on for a while, and nobody listens
            points.come_by(f"{what} outlives it", last_act=lambda: _leave_behind(lambda: through(
                self, playbook, variables, check=check, on_event=lambda event: None)))  # fmt: skip
        result = through(self, playbook, variables, check=check, on_event=heard)
        points.come_by(f"{what} back")
        return result

    runner.run = run


def _leave_behind(work: Callable[[], object]) -> None:
    """Do ``work`` in a process that this one's death leaves alone."""
    if os.fork() == 0:
        os.setsid()
        os.closerange(3, 1 << 16)  # as a program has none of them: the journal's lock is one
        _forget_points()
        with contextlib.suppress(BaseException):
            work()
        os._exit(0)


def _forget_points() -> None:
    Points.come_by = lambda *_, **__: None  # type: ignore[method-assign]


def void(_: object) -> None:
    pass


# --- the server ------------------------------------------------------------------------------------------------------


def _warm() -> None:
    """What every gpufix does first and comes to the same thing each time: imports, and its own data files."""
    for name in ("gpufix.cli", "gpufix.recovery", "gpufix.lab.commands", "kubernetes.client", "jinja2", "jsonschema",
                 "short_door", "ansible_runner", "urllib3", "concurrent.futures.thread"):  # fmt: skip
        importlib.import_module(name)
    from gpufix import cli, session
    from gpufix.world.cluster import Cluster, ClusterAccess

    with tempfile.NamedTemporaryFile("w", suffix=".kubeconfig") as file:
        file.write(_KUBECONFIG)
        file.flush()
        Cluster(ClusterAccess(file.name, None))  # the client imports most of itself by then
    signatures, remediators, books = session.read_signatures(), session.read_remediators(), session.read_runbooks()
    session.read_signatures = lambda: signatures
    session.read_remediators = lambda: remediators
    cli.read_runbooks = lambda folder=None: books


def _serve() -> None:
    _warm()
    for line in sys.stdin:
        print(json.dumps(_one(json.loads(line))), flush=True)


def _one(order: Mapping[str, Any]) -> dict[str, Any]:
    report, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            os.close(report)
            status = _be_gpufix(order, told)
        finally:
            os._exit(status)
    os.close(told)
    passed: list[str] = []
    with os.fdopen(report) as lines:
        for line in lines:
            passed.append(line.rstrip("\n"))
    _, ended = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(ended) and os.WTERMSIG(ended) == signal.SIGKILL
    point = passed[-1][1:] if killed and passed and passed[-1].startswith("x") else ""
    status = os.waitstatus_to_exitcode(ended)
    return {"status": status, "point": point, "passed": [one[1:] for one in passed]}


def _be_gpufix(order: Mapping[str, Any], told: int) -> int:
    os.set_inheritable(told, False)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    print(f"\n$ gpufix {' '.join(order['argv'])}", flush=True)
    from gpufix import cli

    put_points(Points(order["armed"], told), order["real"], Hurried(order["hurry"]))
    status = int(cli.main(order["argv"]))
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    _serve()
