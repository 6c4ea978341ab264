"""The practice lab as the shared tests see a node, with the words of the real one (tests/e2e/node)."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from gpufix.lab import commands
from gpufix.lab.scenario import Scenario, load_scenario
from gpufix.lab.server import Lab
from gpufix.lab.world import condition
from gpufix.resources import scenario_schema

NODE = "omen2"
FSTAB = """\
# /etc/fstab: static file system information.
UUID=11111111-2222-3333-4444-555555555555 /data/swap-archive ext4 noauto,nofail 0 0
{}/swapfile none swap sw 0 0
#/old.swap none swap sw 0 0
"""
T = TypeVar("T")


def scenario_of(*history: str) -> Scenario:
    """A scenario of these steps, each one line of YAML."""
    steps = "".join(f"- {step}\n" for step in history)
    head = "version: 1\nid: of-a-test\ntitle: t\nsummary: s\nexpect: {root_cause: swap-on, recover: 0, job: none}\n"
    return load_scenario(f"{head}history:\n{steps}" if history else f"{head}history: []\n", "a test", scenario_schema())


class LabNode:
    """A lab in ``folder``; each ``incident`` and ``reset`` begins a new one."""

    fstab_incident = FSTAB.format("")
    fstab_fixed = FSTAB.format("#")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inventory = folder / "inventory.yml"
        self.kubeconfig = folder / "kubeconfig"
        self._stack = ExitStack()
        self._lab: Lab | None = None
        self.unknown: list[str] = []

    @property
    def lab(self) -> Lab:
        assert self._lab is not None, "no lab runs yet"
        return self._lab

    def start(self, scenario: Scenario) -> Lab:
        self.stop()
        state = os.environ.get("XDG_STATE_HOME")
        self._lab = self._stack.enter_context(commands.running(self.folder, scenario, 10.0))
        if state is not None:
            os.environ["XDG_STATE_HOME"] = state  # the test's own, where it looks for journals
        return self._lab

    def stop(self) -> None:
        if self._lab is not None:
            self.unknown += self._lab.unknown
        self._stack.close()
        self._lab = None

    # --- what happens ---

    def incident(self, mode: str, card: str = "nvidia") -> None:
        fstab = self.fstab_incident.replace("\n", "\\n")
        self.start(
            scenario_of(
                f"label: {{nvidia.com/gpu.workload.config: {mode}}}", "wait: 3min",
                "swapfile: {path: /swapfile, size_gib: 0.25, used_mib: 0.03}", "run: swapon /swapfile",
                f'write: {{path: /etc/fstab, text: "{fstab}"}}', "run: systemctl daemon-reload",
                "run: systemctl restart kubelet", "wait: 2min", "start-vm: gpu-fedora", "start-vm: rhel9-gpu-vm",
                f"card: {card}", "wait: 15s",
            )
        )  # fmt: skip

    def reset(self, mode: str, vms: bool = True) -> None:
        machines = ["start-vm: gpu-fedora", "start-vm: rhel9-gpu-vm", "wait: 1min"] if vms else []
        card = "nvidia" if mode == "container" else "vfio-pci"
        self.start(
            scenario_of(
                f"label: {{nvidia.com/gpu.workload.config: {mode}}}", f"card: {card}",
                "swapfile: {path: /swapfile, size_gib: 0.25, used_mib: 0.03}", "wait: 6min", *machines,
            )
        )  # fmt: skip

    def swap_on(self) -> None:
        self.inside("swapon /swapfile")

    def allow_swap(self) -> None:
        path = self.lab.folder / "nodes" / NODE / "var/lib/kubelet/config.yaml"
        path.write_text(path.read_text().replace("failSwapOn: true", "failSwapOn: false"))
        self.inside("systemctl restart kubelet")
        self.until(self.is_ready, "the kubelet to run with swap on", 20)

    def kubelet_bad_flag(self, flag: str) -> None:
        """In a drop-in that systemd has not read: it counts from the next daemon-reload on."""
        path = self.lab.folder / "nodes" / NODE / "etc/systemd/system/kubelet.service.d/90-bad-flag.conf"
        path.parent.mkdir()
        path.write_text(f'[Service]\nEnvironment="KUBELET_EXTRA_ARGS={flag}"\n')

    def operator_down(self) -> None:
        with self.lab.held():
            self.lab.world.operator = False

    def relabel(self, mode: str) -> None:
        with self.lab.held():
            self.lab.world.set_labels(NODE, {"nvidia.com/gpu.workload.config": mode})

    def reboot(self) -> None:
        self.inside("reboot")

    def inside(self, command: str) -> str:
        """Run a command as a person does in ``gpufix lab shell``."""
        environment = commands.shell_environment(self.lab.folder, NODE)
        root = self.lab.folder / "nodes" / NODE
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    # --- what is looked at ---

    def _node(self) -> dict[str, Any]:
        with self.lab.held():
            return self.lab.world.node(NODE)

    @property
    def _machine(self) -> Any:
        return self.lab.world.machines[NODE]

    def labels(self) -> dict[str, str]:
        labels: dict[str, str] = self._node()["metadata"]["labels"]
        return labels

    def allocatable(self, resource: str) -> int:
        return int(self._node()["status"]["allocatable"].get(resource, "0"))

    def is_ready(self) -> bool:
        node = self._node()
        return condition(node, "Ready")["status"] == "True" and "taints" not in node["spec"]

    def is_healthy(self, mode: str) -> bool:
        with self.lab.held():
            pods = [pod for pod in self.lab.world.pods_on(NODE) if pod["metadata"]["namespace"] == "gpu-operator"]
        running = all(
            pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"] for pod in pods
        )
        return self.is_ready() and bool(pods) and running

    def unit_state(self) -> str:
        with self.lab.held():
            return f"{self._machine.kubelet.active}/{self._machine.kubelet.sub}"

    def stays_refused(self) -> None:
        assert self.unit_state() == "activating/auto-restart"
        assert "running with swap on is not supported" in self.inside("journalctl -u kubelet -n 5")

    def containers(self, name: str) -> list[str]:
        with self.lab.held():
            return [one.id for one in self._machine.containers if one.name == name and one.running]

    def calls(self, verb: str = "") -> list[str]:
        with self.lab.held():
            return [call for call in self._machine.calls if call.startswith(verb)]

    def active_swaps(self) -> list[str]:
        text = (self.lab.folder / "nodes" / NODE / "proc/swaps").read_text()
        return [line.split()[0] for line in text.splitlines()[1:]]

    def swap_at_boot(self) -> list[str]:
        with self.lab.held():
            self._machine.reload_units()
            back: list[str] = self._machine.comes_back()
            return back

    def read(self, path: str) -> str:
        return (self.lab.folder / "nodes" / NODE / path.lstrip("/")).read_text()

    def until(self, holds: Callable[[], T], what: str, timeout: float) -> T:
        deadline = time.monotonic() + 5 * timeout  # these run beside other tests, and only a failure waits so long
        while not (value := holds()):
            assert time.monotonic() < deadline, f"waited {timeout:g} s for {what}"
            time.sleep(0.1)
        return value
