"""Every playbook also runs alone, with --check --diff, on the real node; and a dry run changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from node import FSTAB_INCIDENT, PASSTHROUGH, WORKLOAD_CONFIG, RealNode

from gpufix import resources


@pytest.fixture(scope="module")
def incident(cluster: RealNode) -> RealNode:
    cluster.incident(PASSTHROUGH)
    return cluster


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("read-node.yml", "changed=0"),
        ("relabel-node.yml", "+nvidia.com/gpu.workload.config: container"),
        ("stop-vfio-manager.yml", "nvidia-vfio-manager"),
        ("disable-swap.yml", "+#/swapfile none swap sw 0 0"),
        ("restart-kubelet.yml", "ActiveState"),
    ],
)
def test_a_playbook_alone(incident: RealNode, name: str, shown: str) -> None:
    command = [
        str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(incident.inventory),
        str(resources.playbook_path(name)),
        "-e", "gpufix_host=omen2", "-e", "gpufix_node=omen2", "-e", "gpufix_workload_config=container",
        "-e", f"gpufix_kubeconfig={incident.kubeconfig}", "-e", "gpufix_assume_earlier_steps=true", "--check", "--diff",
    ]  # fmt: skip
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown in done.stdout, done.stdout
    assert incident.read("/etc/fstab") == FSTAB_INCIDENT
    assert incident.labels()[WORKLOAD_CONFIG] == "vm-passthrough"
    assert incident.containers("nvidia-vfio-manager")
    incident.stays_refused()


def test_the_restart_alone_refuses_while_the_label_is_wrong(incident: RealNode) -> None:
    command = [
        str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(incident.inventory),
        str(resources.playbook_path("restart-kubelet.yml")), "-e", "gpufix_host=omen2", "-e", "gpufix_node=omen2",
        "-e", f"gpufix_kubeconfig={incident.kubeconfig}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "kubelet is not started" in done.stdout.lower().replace("\n", " ")
