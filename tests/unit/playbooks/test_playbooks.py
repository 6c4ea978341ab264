"""The playbooks as a person runs them: ansible-playbook with --check --diff, then for real, then once more."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from fakehost import FSTAB, FakeHost
from nodeapi import DEPLOY, WORKLOAD, NodeApi
from types_of_fixtures import RunPlaybook
from undo_material import material_of, packed

PLAYBOOKS = Path(__file__).parents[3] / "playbooks"
STEPS = ("relabel-node.yml", "stop-vfio-manager.yml", "disable-swap.yml", "restart-kubelet.yml")


def changed(output: str) -> int:
    """The number of changed tasks."""
    return len(re.findall(r"^changed: ", output, re.MULTILINE))


def test_all_of_them_in_order(host: FakeHost, run_playbook: RunPlaybook, api: NodeApi, tmp_path: Path) -> None:
    """A dry run that changes nothing; then the recovery, and a step that has nothing left to do."""
    identity = host.container("nvidia-vfio-manager-4scww", "nvidia-vfio-manager")
    values = {"gpufix_kubeconfig": api.kubeconfig(tmp_path), "gpufix_workload_config": "container"}

    preview = run_playbook(*STEPS, "--check", "--diff", gpufix_assume_earlier_steps=True, **values)
    assert preview.returncode == 0, preview.stdout + preview.stderr
    assert changed(preview.stdout) == 6  # two labels, one container, the unit, swap, the unit again
    for shown in (
        f"-{WORKLOAD}: vm-passthrough\n+{WORKLOAD}: container\n",
        "Take the vfio-manager label off, if the GPU Operator does not do it itself",
        f"-{DEPLOY}: true\n",
        f"-nvidia-vfio-manager-4scww nvidia-vfio-manager {identity[:13]} RUNNING\n",
        "-activating/auto-restart\n+inactive/dead\n",
        "-/swapfile none swap sw 0 0\n+#/swapfile none swap sw 0 0\n",
        "-activating/auto-restart\n+active/running\n",
    ):
        assert shown in preview.stdout
    assert host.changes() == []
    assert host.read("etc/fstab") == FSTAB
    assert api.labels[WORKLOAD] == "vm-passthrough"
    assert DEPLOY in api.labels

    # no operator runs: after its second the label is taken off here; then a step once more
    done = run_playbook(
        *STEPS, "disable-swap.yml", "read-node.yml", "-v", gpufix_operator_wait=1, gpufix_node_uid=api.uid, **values
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert changed(done.stdout) == 6
    assert "FAILED - RETRYING" in done.stdout + done.stderr
    assert "failed=0" in done.stdout
    assert api.labels[WORKLOAD] == "container"
    assert DEPLOY not in api.labels
    assert host.changes() == [
        f"crictl stop --timeout 10 {identity}",
        "systemctl stop kubelet.service",
        "swapoff /swapfile",
        "systemctl daemon-reload",
        "systemctl reset-failed kubelet.service",
        "systemctl restart kubelet.service",  # and it is not held for nothing when there is no swap any more
    ]
    assert '"proc_swaps": "Filename' in done.stdout


def test_the_undo_of_swap(host: FakeHost, run_playbook: RunPlaybook) -> None:
    done = run_playbook("disable-swap.yml", "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    returned = re.search(r"^changed: \[omen2\] => (\{.*\"swaps_sha256\".*\})$", done.stdout, re.MULTILINE)
    assert returned is not None
    material = packed(material_of(json.loads(returned[1])))
    host.state["units"]["kubelet.service"].update(ActiveState="active", SubState="running")
    before = len(host.changes())

    preview = run_playbook("restore-swap.yml", "--check", "--diff", gpufix_restore=material)
    assert preview.returncode == 0, preview.stdout + preview.stderr
    for shown in ("-#/swapfile none swap sw 0 0\n+/swapfile none swap sw 0 0\n", "+/swapfile (file, 2,048 MiB, "):
        assert shown in preview.stdout
    assert "kubelet.service runs. With swap on" in " ".join((preview.stdout + preview.stderr).split())
    assert host.changes()[before:] == []

    done = run_playbook("restore-swap.yml", gpufix_restore=material)
    assert (done.returncode, changed(done.stdout)) == (0, 1), done.stdout + done.stderr
    assert host.changes()[before:] == ["systemctl daemon-reload", "swapon /swapfile"]
    assert host.read("etc/fstab") == FSTAB
    again = run_playbook("restore-swap.yml", gpufix_restore=material)
    assert (again.returncode, changed(again.stdout)) == (0, 0)


@pytest.mark.parametrize(
    ("workload", "deploy", "labels"),
    [
        ("vm-passthrough", "true", {WORKLOAD: "vm-passthrough", DEPLOY: "true"}),
        ("(absent)", "(absent)", {}),
        ("", "false", {WORKLOAD: "", DEPLOY: "false"}),
    ],
)
def test_the_undo_of_the_labels(
    run_playbook: RunPlaybook, api: NodeApi, tmp_path: Path, workload: str, deploy: str, labels: dict[str, str]
) -> None:
    api.labels[WORKLOAD] = "container"
    del api.labels[DEPLOY]
    values = {
        "gpufix_kubeconfig": api.kubeconfig(tmp_path),
        "gpufix_workload_config": workload,
        "gpufix_vfio_manager": deploy,
        "gpufix_expect_workload_config": "container",
        "gpufix_expect_vfio_manager": "(absent)",
        "gpufix_node_uid": api.uid,
    }
    done = run_playbook("restore-labels.yml", **values)
    assert (done.returncode, changed(done.stdout)) == (0, 1), done.stdout + done.stderr
    assert {name: value for name, value in api.labels.items() if name in (WORKLOAD, DEPLOY)} == labels
    assert len(api.patches()) == 1, "both in one patch"


def low_on_memory(host: FakeHost, tmp_path: Path) -> Path:
    """The files of ``host`` once more, but for its memory; its tools are the same."""
    root = tmp_path / "low"
    for name, text in {"proc/meminfo": "MemAvailable: 1 kB\n", "proc/swaps": host.read("proc/swaps")}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "usr").mkdir()
    (root / "usr" / "bin").symlink_to(host.bin)
    return root


def test_refusals(host: FakeHost, run_playbook: RunPlaybook, api: NodeApi, tmp_path: Path) -> None:
    kubeconfig = api.kubeconfig(tmp_path)
    api.labels[WORKLOAD] = "container"  # and the deploy label still stands
    back = {"gpufix_workload_config": "vm-passthrough", "gpufix_vfio_manager": "true"}
    refusals: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
        ("The kubelet is not started", ("restart-kubelet.yml",), {"gpufix_assume_earlier_steps": True}),
        ("--limit, if it is used, must name localhost", ("restart-kubelet.yml", "--limit", "omen2"), {}),
        ("one host, not of a group", ("disable-swap.yml",), {"gpufix_host": "all"}),
        # the kubelet is not held either when swap cannot go off
        ("Swap stays on", ("disable-swap.yml",), {"gpufix_host_root": str(low_on_memory(host, tmp_path))}),
        ("vm-passthrough or vm-vgpu", ("relabel-node.yml",), {"gpufix_workload_config": "gpu"}),
        ("one host, not of a group", ("restore-swap.yml",), {"gpufix_host": "all", "gpufix_restore": "e30="}),
        ("is the base64 of what disable-swap.yml", ("restore-swap.yml",), {}),
        ("is the base64 of what disable-swap.yml", ("restore-swap.yml",), {"gpufix_restore": "{'fstab': 1}"}),
        ("lacks fstab", ("restore-swap.yml",), {"gpufix_restore": "e30="}),
        ("the word (absent) for a label", ("restore-labels.yml",), {"gpufix_workload_config": "container"}),
        ("the word (absent) for a label", ("restore-labels.yml",), back | {"gpufix_vfio_manager": True}),
        ("the word (absent) for a label", ("restore-labels.yml",), back | {"gpufix_vfio_manager": "a b"}),
        ("was not set in the preview", ("restore-labels.yml",), back | {"gpufix_expect_vfio_manager": "(absent)"}),
        ("was '' in the preview", ("restore-labels.yml",), back | {"gpufix_expect_workload_config": ""}),
    ]
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(run_playbook, *names, gpufix_kubeconfig=kubeconfig, **values) for _, names, values in refusals
        ]
    for (words, _, _), job in zip(refusals, jobs, strict=True):
        done = job.result()
        assert done.returncode == 2, done.stdout + done.stderr
        assert words in done.stdout
    assert host.changes() == []
    assert api.patches() == []


@pytest.mark.parametrize("path", sorted(PLAYBOOKS.glob("*.yml")), ids=lambda path: path.stem)
def test_shape(path: Path) -> None:
    plays = DataLoader().load_from_file(str(path))
    for play in plays:
        assert play["gather_facts"] is False
        assert "vars_prompt" not in play
        if play["hosts"] == "localhost":
            assert play["connection"] == "local"
            assert "become" not in play
            assert play["vars"]["ansible_python_interpreter"] == "{{ ansible_playbook_python }}"
        else:
            assert play["become"] is True
        assert all(task["name"][0].isupper() for task in play["tasks"])
        assert not any("ansible.builtin.pause" in task or "ansible.builtin.shell" in task for task in play["tasks"])
