"""What a recovery did to a node of the lab is taken back by the undo playbooks, as gpufix runs them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from labnode import NODE, LabNode, scenario_of

from gpufix.core.fold import PlayResult, finish, fold
from gpufix.core.plan_data import tasks_as_data
from gpufix.world.playbooks import Access, PlaybookRunner

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
DEPLOY, WORKLOAD = "nvidia.com/gpu.deploy.vfio-manager", "nvidia.com/gpu.workload.config"
UNIT = "[Swap]\\nWhat=/data/swap\\n\\n[Install]\\nWantedBy=swap.target\\n"
Run = Callable[..., PlayResult]


@pytest.fixture
def run(cluster: LabNode) -> Run:
    def run(playbook: str, host: str = NODE, *, check: bool = False, **variables: str) -> PlayResult:
        runner = PlaybookRunner(Access(inventory=(str(cluster.inventory),)))
        values = {"gpufix_host": NODE, "gpufix_node": NODE, "gpufix_kubeconfig": str(cluster.kubeconfig), **variables}
        done = runner.run(PLAYBOOKS / playbook, values, check=check)
        return finish(fold(done.events), done.return_code, host)

    return run


def test_swap_comes_back_as_it_was(cluster: LabNode, run: Run) -> None:
    cluster.start(
        scenario_of(
            "swapfile: {path: /swapfile, size_gib: 0.25, used_mib: 0.03}",
            "swapfile: {path: /data/swap, size_gib: 1, used_mib: 1}",
            "run: swapon -p 7 /swapfile", 'write: {path: /etc/fstab, text: "/swapfile none swap sw,pri=7 0 0\\n"}',
            f'write: {{path: /etc/systemd/system/data-swap.swap, text: "{UNIT}"}}', "run: systemctl daemon-reload",
            "run: systemctl enable data-swap.swap", "run: systemctl start data-swap.swap", "wait: 15s",
        )
    )  # fmt: skip
    swaps, fstab, back = cluster.read("proc/swaps"), cluster.read("etc/fstab"), cluster.swap_at_boot()
    assert [line.split()[4] for line in swaps.splitlines()[1:]] == ["7", "-2"]
    assert sorted(back) == ["/data/swap", "/swapfile"]
    done = run("disable-swap.yml")
    assert done.ok, done.message
    assert (cluster.active_swaps(), cluster.swap_at_boot()) == ([], [])
    cluster.inside("systemctl start kubelet")
    material = {
        "fstab": {
            "backup": done.returned("backup"),
            "sha256": done.returned("fstab_sha256"),
            "sha256_after": done.returned("fstab_sha256_after"),
        },
        **{name: done.returned(name) for name in ("devices", "units", "services")},
    }
    restore = base64.b64encode(json.dumps(material).encode()).decode()

    preview = run("restore-swap.yml", check=True, gpufix_restore=restore)
    assert preview.ok, preview.message
    assert [part["before_header"] for task in preview.tasks for part in task.diffs] == [
        "/etc/fstab", "swap devices", "units that make swap at boot"
    ]  # fmt: skip
    (warning,) = [word for task in tasks_as_data(preview) for word in task["warnings"]]
    assert warning.startswith("kubelet.service runs. With swap on, ")
    assert cluster.active_swaps() == []

    state = preview.returned("state_sha256")
    done = run("restore-swap.yml", gpufix_restore=restore, gpufix_expect_state_sha256=state)
    assert done.ok, done.message
    assert cluster.read("etc/fstab") == fstab
    assert cluster.read("proc/swaps") == swaps
    assert cluster.swap_at_boot() == back
    assert cluster.unit_state() == "active/running", "the kubelet is not touched"
    again = run("restore-swap.yml", gpufix_restore=restore)
    assert again.ok and not again.changed


def test_labels_come_back_as_they_were(cluster: LabNode, run: Run) -> None:
    cluster.reset("vm-passthrough", vms=False)
    before = {name: cluster.labels().get(name) for name in (WORKLOAD, DEPLOY)}
    assert before == {WORKLOAD: "vm-passthrough", DEPLOY: "true"}
    done = run("relabel-node.yml", "localhost", gpufix_workload_config="container")
    assert done.ok, done.message
    assert DEPLOY not in cluster.labels()
    values = {
        "gpufix_workload_config": "vm-passthrough",
        "gpufix_vfio_manager": "true",
        "gpufix_expect_workload_config": "container",
        "gpufix_expect_vfio_manager": "(absent)",
    }
    preview = run("restore-labels.yml", "localhost", check=True, **values)
    assert preview.ok and preview.changed, preview.message
    assert cluster.labels()[WORKLOAD] == "container"
    done = run("restore-labels.yml", "localhost", **values)
    assert done.ok, done.message
    assert {name: cluster.labels().get(name) for name in (WORKLOAD, DEPLOY)} == before
