"""Ways to run the modules and the playbooks on a fake host, and a small Kubernetes API with one node."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ansible.module_utils
import pytest
from ansible.module_utils.testing import patch_module_args
from fakehost import FakeHost
from nodeapi import NodeApi
from standin import Standin

PLAYBOOKS = Path(__file__).parents[3] / "playbooks"
STANDIN = Path(__file__).with_name("standin.py")
TOOLS = ("systemctl", "swapoff", "swapon", "journalctl", "systemd-detect-virt", "dmesg", "crictl", "ctr")

# where Ansible finds them when it runs a playbook of that folder
if str(PLAYBOOKS / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(PLAYBOOKS / "module_utils"))
if str(PLAYBOOKS / "library") not in sys.path:
    sys.path.append(str(PLAYBOOKS / "library"))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    root = tmp_path / "root"
    tools = root / "usr" / "bin"
    tools.mkdir(parents=True)
    program = f"#!{sys.executable} -SEI\n" + STANDIN.read_text()
    for tool in TOOLS:
        (tools / tool).write_text(program)
        (tools / tool).chmod(0o755)
    fake = FakeHost(root, tools)
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    return fake


from ansible.module_utils import gpufix_host  # noqa: E402 - found only once the path is set

RunModule = Callable[..., dict[str, Any]]


@pytest.fixture
def run_module(host: FakeHost, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunModule:
    """Run a module's ``main`` in this process on the fake host; its result, ``failed`` included.

    The tools answer in this process too, unless one shall hang: starting them hundreds of times takes most of the time.
    """
    real_run, lock = gpufix_host.Host.run, threading.Lock()

    def answer(self: gpufix_host.Host, command: list[str], timeout: float | None = None) -> gpufix_host.Done:
        if host.state["hang"] or not (host.bin / command[0]).exists():
            return real_run(self, command, timeout)
        with lock:
            tool = Standin(str(host.root))
            code = tool.answer(command[0], command[1:])
        return gpufix_host.finished(command[0], code, "".join(tool.out), "".join(tool.err))

    monkeypatch.setattr(gpufix_host.Host, "run", answer)

    def run(name: str, *, check: bool = False, **arguments: Any) -> dict[str, Any]:
        host.save()
        module = importlib.import_module(name)
        capsys.readouterr()
        if name != "gpufix_node_label":
            arguments["host_root"] = str(host.root)
        values = {**arguments, "_ansible_check_mode": check, "_ansible_diff": True}
        with patch_module_args(values), pytest.raises(SystemExit):
            module.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        host.state.update(host.now())
        return result

    return run


@pytest.fixture
def run_playbook(host: FakeHost) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Run playbooks, one after another, as a person would; the fake host is ``omen2``."""

    def run(*arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        host.save()
        values = {
            "gpufix_host": "omen2",
            "gpufix_node": "omen2",
            "gpufix_host_root": str(host.root),
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
            **variables,
        }
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "omen2,", "-c", "local"]
        command += [str(PLAYBOOKS / word) if word.endswith(".yml") else word for word in arguments]
        command += ["-e", json.dumps(values)]
        environment = {
            **os.environ,
            **host.environment(),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": "True",
            "ANSIBLE_LOCALHOST_WARNING": "False",
        }
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
        host.state.update(host.now())
        return done

    yield run


@pytest.fixture
def api() -> Iterator[NodeApi]:
    server = NodeApi()
    server.start()
    yield server
    server.stop()
