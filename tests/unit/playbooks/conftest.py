"""A host made of a folder and stand-in tools, and ways to run the modules on it."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import ansible.module_utils
import pytest
from ansible.module_utils.testing import patch_module_args

PLAYBOOKS = Path(__file__).parents[3] / "playbooks"
STANDIN = Path(__file__).with_name("standin.py")
TOOLS = ("systemctl", "swapoff", "journalctl", "systemd-detect-virt", "dmesg", "crictl", "ctr")

# where Ansible finds them when it runs a playbook of that folder
if str(PLAYBOOKS / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(PLAYBOOKS / "module_utils"))
if str(PLAYBOOKS / "library") not in sys.path:
    sys.path.append(str(PLAYBOOKS / "library"))

SWAPS = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
MEMORY = "MemTotal: 32000000 kB\nMemAvailable: 16000000 kB\nSwapTotal: 4194300 kB\nCommitLimit: 20000000 kB\nCommitted_AS: 2000000 kB\n"
FSTAB = (
    "UUID=0a0a0a0a-0000-4000-8000-000000000001 / ext4 errors=remount-ro 0 1\n"
    "/data/swap-backup /srv/swap ext4 defaults 0 2\n"
    "/swapfile none swap sw 0 0\n"
)
KUBELET = {
    "LoadState": "loaded",
    "ActiveState": "activating",
    "SubState": "auto-restart",
    "UnitFileState": "enabled",
    "FragmentPath": "/etc/systemd/system/kubelet.service",
    "ExecStart": "{ path=/usr/bin/kubelet ; argv[]=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml $EXTRA ; ignore_errors=no ; }",
    "Environment": '"EXTRA=--v=2 --node-ip=10.99.0.10"',
}
SWAPFILE_UNIT = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "What": "/swapfile",
    "FragmentPath": "/run/systemd/generator/swapfile.swap",
    "UnitFileState": "generated",
    "SourcePath": "/etc/fstab",
}


class FakeHost:
    """A host whose root is ``root`` and whose tools are stand-ins in ``bin``."""

    def __init__(self, root: Path, bin_folder: Path) -> None:
        self.root, self.bin = root, bin_folder
        self.state: dict[str, Any] = {
            "units": {"kubelet.service": dict(KUBELET), "swapfile.swap": dict(SWAPFILE_UNIT)},
            "containers": [],
            "fail": {},
            "hang": [],
            "after_stop": {},
            "after_start": {},
            "unstoppable": [],
        }
        self.write("proc/meminfo", MEMORY)
        self.write("proc/sys/vm/overcommit_memory", "0\n")
        self.write("etc/fstab", FSTAB)
        self.swap("/swapfile file 2097148 1024 -2")

    def write(self, name: str, text: str) -> Path:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def link(self, name: str, target: str) -> None:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def read(self, name: str) -> str:
        return (self.root / name.lstrip("/")).read_text()

    def swap(self, *lines: str) -> None:
        self.write("proc/swaps", SWAPS + "".join(line + "\n" for line in lines))

    def container(self, pod: str, name: str, state: str = "RUNNING") -> str:
        identity = f"{len(self.state['containers']):064x}"
        self.state["containers"].append({"pod": pod, "container": name, "id": identity, "state": state})
        return identity

    def save(self) -> None:
        (self.root / "state.json").write_text(json.dumps(self.state))

    def now(self) -> dict[str, Any]:
        """The state as the tools left it."""
        loaded: dict[str, Any] = json.loads(self.read("state.json"))
        return loaded

    def calls(self, tool: str = "") -> list[str]:
        lines = self.read("calls").split("\n") if (self.root / "calls").exists() else []
        return [line for line in lines if line.startswith(tool) and line]

    def changes(self) -> list[str]:
        """The calls that change something."""
        reading = r"systemctl show|journalctl|dmesg|systemd-detect|crictl .*(ps|pods)|ctr .*(list|info)"
        return [line for line in self.calls() if not re.match(reading, line)]

    def remove(self, tool: str) -> None:
        (self.bin / tool).unlink()

    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.bin}:/usr/bin:/bin", "STANDIN_ROOT": str(self.root)}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    root, tools = tmp_path / "root", tmp_path / "bin"
    root.mkdir()
    tools.mkdir()
    program = f"#!{sys.executable} -SEI\n" + STANDIN.read_text()
    for tool in TOOLS:
        (tools / tool).write_text(program)
        (tools / tool).chmod(0o755)
    fake = FakeHost(root, tools)
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    return fake


RunModule = Callable[..., dict[str, Any]]


@pytest.fixture
def run_module(host: FakeHost, capsys: pytest.CaptureFixture[str]) -> RunModule:
    """Run a module's ``main`` in this process on the fake host; its result, ``failed`` included."""

    def run(name: str, *, check: bool = False, **arguments: Any) -> dict[str, Any]:
        host.save()
        module = importlib.import_module(name)
        capsys.readouterr()
        values = {"host_root": str(host.root), **arguments, "_ansible_check_mode": check, "_ansible_diff": True}
        with patch_module_args(values), pytest.raises(SystemExit):
            module.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        (host.root / "state.json").exists() and host.state.update(host.now())
        return result

    return run


@pytest.fixture
def library() -> Callable[[str], ModuleType]:
    return importlib.import_module


@pytest.fixture
def run_playbook(host: FakeHost) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Run a playbook as a person would, with the fake host as ``localhost``."""

    def run(name: str, *arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
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
        command += [str(PLAYBOOKS / name), "-e", json.dumps(values), *arguments]
        environment = {**os.environ, **host.environment(), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCALHOST_WARNING": "False"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
        host.state.update(host.now())
        return done

    yield run
