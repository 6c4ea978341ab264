"""One change of a host at a time: who is refused, in which words, and when the lock is free again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gpufix_swap
import pytest
from ansible.module_utils import gpufix_busy, gpufix_swaps
from ansible.module_utils.gpufix_host import Host
from fakehost import FSTAB, FakeHost
from types_of_fixtures import RunModule

from gpufix.core.parse import parse_snapshot
from gpufix.model import Snapshot

CHANGING: dict[str, dict[str, Any]] = {
    "gpufix_swap": {},
    "gpufix_kubelet_unit": {"state": "held"},
    "gpufix_stop_container": {},
}


@pytest.fixture(autouse=True)
def one_vfio_manager(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.container("nvidia-vfio-manager-a", "nvidia-vfio-manager")
    monkeypatch.setattr(gpufix_busy, "_PATIENCE", 0.0)


def held(host: FakeHost, name: str = "gpufix_swap") -> ExitStack:
    stack = ExitStack()
    stack.enter_context(gpufix_busy.holding(Host(str(host.root)), name))
    return stack


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("name", CHANGING)
def test_a_second_change_is_refused_and_names_the_first(host: FakeHost, run_module: RunModule, name: str) -> None:
    with held(host, "gpufix_restore_swap"):
        result = run_module(name, **CHANGING[name])
        assert result["failed"] is True
        assert result["changed"] is False
        assert result["msg"].startswith(
            f"Another change of this host is under way: gpufix_restore_swap (process {os.getpid()}), since 20"
        )
        assert result["msg"].endswith(" UTC; nothing was done")
        assert host.changes() == []
        assert host.read("etc/fstab") == FSTAB
    assert run_module(name, **CHANGING[name])["changed"] is True, "and it is free again"


@pytest.mark.parametrize("name", CHANGING)
def test_a_look_needs_no_lock(host: FakeHost, run_module: RunModule, name: str) -> None:
    assert run_module(name, check=True, **CHANGING[name])["changed"] is True
    assert not (host.root / "run/gpufix.lock").exists()
    with held(host):
        assert run_module(name, check=True, **CHANGING[name])["changed"] is True


@pytest.mark.parametrize("name", CHANGING)
def test_nothing_to_do_needs_no_lock(host: FakeHost, run_module: RunModule, name: str) -> None:
    run_module(name, **CHANGING[name])
    with held(host):
        result = run_module(name, **CHANGING[name])
    assert (result["changed"], result.get("failed")) == (False, None)


@pytest.mark.parametrize("name", CHANGING)
def test_a_lock_that_cannot_be_opened_stops_it(host: FakeHost, run_module: RunModule, name: str) -> None:
    (host.root / "run/gpufix.lock").mkdir(parents=True)
    result = run_module(name, **CHANGING[name])
    assert result["failed"] is True
    assert result["msg"] == (
        "Whether another change of this host is under way is not known: /run/gpufix.lock: Is a directory; "
        "nothing was done"
    )
    assert host.changes() == []


def test_a_link_in_its_place_is_not_followed(host: FakeHost, run_module: RunModule) -> None:
    host.write("victim", "kept\n")
    host.link("run/gpufix.lock", "../victim")
    assert run_module("gpufix_swap")["failed"] is True
    assert host.read("victim") == "kept\n"
    assert "gpufix.lock" in run_module("gpufix_read_node")["unread"]["busy"]


def test_the_lock_is_held_while_the_change_is_made(
    host: FakeHost, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = gpufix_swap.switch_off

    def look(fake: Host, *rest: Any) -> None:
        seen.append(gpufix_busy.read_busy(Host(str(host.root))).text)
        real(fake, *rest)

    monkeypatch.setattr(gpufix_swap, "switch_off", look)
    assert run_module("gpufix_swap")["changed"] is True
    (line,) = seen
    holder = json.loads(line or "")
    assert (holder["module"], holder["pid"]) == ("gpufix_swap", os.getpid())
    assert abs(holder["since"] - time.time()) < 60
    assert gpufix_busy.read_busy(Host(str(host.root))).text == ""


def test_read_node_tells_who_has_it(host: FakeHost, run_module: RunModule) -> None:
    def busy() -> str | None:
        files = run_module("gpufix_read_node")["files"]
        return parse_snapshot(Snapshot("omen2", {f"host/{name}": text for name, text in files.items()})).busy.value

    assert busy() == ""
    assert not (host.root / "run/gpufix.lock").exists(), "looking makes no file"
    with held(host):
        assert busy() == f"gpufix_swap (process {os.getpid()})"
    assert busy() == "", "the line of the last one is still in the file, and it is nobody's"
    assert "gpufix_swap" in host.read("run/gpufix.lock")


@pytest.mark.parametrize("line", ["", "noise\n", '{"module": "gpufix_swap"}\n', '{"module": 1, "pid": [], "since": 0}'])
def test_a_holder_that_does_not_say_who_it_is(host: FakeHost, run_module: RunModule, line: str) -> None:
    with held(host):
        host.write("run/gpufix.lock", line)
        result = run_module("gpufix_read_node")
        assert result["unread"]["busy"] == "/run/gpufix.lock is held, and by whom is not written"
        assert "under way: by whom is not written; nothing was done" in run_module("gpufix_swap")["msg"]


def test_a_reader_that_looks_just_then_refuses_nobody(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the lock for a moment, and whoever wants to change something waits that moment."""
    monkeypatch.setattr(gpufix_busy, "_PATIENCE", 20.0)
    host.write("run/gpufix.lock", "")
    program = (
        "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_SH); print(); sys.stdout.flush()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program + "; time.sleep(0.3)", str(host.root / "run/gpufix.lock")],
        stdout=subprocess.PIPE,
    ) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        held(host).close()


def test_a_swapoff_that_goes_on_by_itself_keeps_the_lock(host: FakeHost) -> None:
    """The module is killed, the swapoff it began is not: nothing else may start on this host until that is over."""
    started, finish = host.root / "started", host.root / "finish"
    tool = host.bin / "swapoff"
    tool.write_text(f"#!/bin/sh\n: >{started}\nwhile [ ! -e {finish} ]; do /bin/sleep 0.02; done\n")
    pid = os.fork()
    if pid == 0:
        try:
            fake = Host(str(host.root))
            with gpufix_busy.holding(fake, "gpufix_swap"):
                gpufix_swap.switch_off(fake, gpufix_swaps.Device("/swapfile", "file", 9, 9, -2), 60.0)
        finally:
            os._exit(1)
    until(started.exists)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    assert f'"pid": {pid},' in (gpufix_busy.read_busy(Host(str(host.root))).text or "")
    with pytest.raises(gpufix_busy.Busy, match=rf"gpufix_swap \(process {pid}\)"), held(host):
        pass
    finish.touch()
    until(lambda: gpufix_busy.read_busy(Host(str(host.root))).text == "")
    held(host).close()


def test_a_tool_that_the_host_runs_has_the_lock_too(host: FakeHost) -> None:
    fake = Host(str(host.root))
    tool = host.bin / "systemctl"
    tool.write_text("#!/bin/sh\nfor f in /proc/self/fd/*; do /usr/bin/readlink $f; done\n")
    assert "gpufix.lock" not in fake.run(["systemctl"]).out
    with gpufix_busy.holding(fake, "gpufix_swap"):
        assert str(host.root / "run/gpufix.lock") in fake.run(["systemctl"]).out
    assert fake.inherited == ()


def test_a_host_that_lacks_the_folder(host: FakeHost) -> None:
    assert not Path(host.root / "run").exists()
    held(host).close()
    mode = (host.root / "run/gpufix.lock").stat().st_mode & 0o777
    assert mode == 0o600, "who can read it can lock it, and keep every change off the host"
