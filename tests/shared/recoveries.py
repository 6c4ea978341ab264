"""What must hold on the real node and in the practice lab alike: one body of tests, two worlds.

The folders ``e2e`` and ``lab`` import these and bring the fixtures: ``cluster`` (a Node), ``wizard``, ``gpufix`` and
``state``.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from operator_hands import DOWN, ENTER, QUIT, Gpufix, Wizard, journal

CONTAINER = "container"
PASSTHROUGH = "vm-passthrough"
WORKLOAD_CONFIG = "nvidia.com/gpu.workload.config"
GPU = "nvidia.com/gpu"
RTX_5090 = "nvidia.com/GB202_GEFORCE_RTX_5090"
WHO = "Who owns the GPU"
Start = Callable[..., Wizard]


class Node(Protocol):
    """A node that the incident can happen to, and what a test looks at from outside gpufix."""

    fstab_incident: str
    fstab_fixed: str

    def incident(self, mode: Any, card: str = "nvidia") -> None: ...
    def reset(self, mode: Any, vms: bool = True) -> None: ...
    def containers(self, name: str) -> list[str]: ...
    def active_swaps(self) -> list[str]: ...
    def swap_at_boot(self) -> list[str]: ...
    def labels(self) -> dict[str, str]: ...
    def relabel(self, mode: str) -> None: ...
    def read(self, path: str) -> str: ...
    def inside(self, command: str) -> str: ...
    def calls(self, verb: str = "") -> list[str]: ...
    def allocatable(self, resource: str) -> int: ...
    def unit_state(self) -> str: ...
    def is_ready(self) -> bool: ...
    def is_healthy(self, mode: Any) -> bool: ...
    def stays_refused(self) -> None: ...
    def reboot(self) -> None: ...
    def until(self, holds: Callable[[], Any], what: str, timeout: float) -> Any: ...
    def operator_down(self) -> None: ...
    def kubelet_bad_flag(self, flag: str) -> None: ...
    def swap_on(self) -> None: ...
    def allow_swap(self) -> None: ...


def test_the_incident_from_diagnosis_to_a_node_that_stays(
    cluster: Node, wizard: Start, gpufix: Gpufix, state: Path
) -> None:
    cluster.incident(PASSTHROUGH)
    assert cluster.swap_at_boot(), "the fault must be one that would come back at boot"
    running = cluster.containers("nvidia-vfio-manager")
    assert running, "vfio-manager must be running when the kubelet is revived, or the test proves nothing"
    before = gpufix.diagnose()
    assert (before["root_cause"]["id"], before["root_cause"]["status"]) == ("swap-on", "confirmed")
    assert [link["status"] for link in before["chain"]] == ["confirmed"] * 5
    assert all(link["evidence"] for link in before["chain"])
    assert {vm["name"] for vm in before["affected"]} == {"gpu-fedora", "rhel9-gpu-vm"}
    assert all(vm["resources"][RTX_5090] == 1 for vm in before["affected"])
    assert before["runbook"] == "revive-kubelet-swap"

    run = wizard()
    run.answer(WHO)
    run.expect("will still be ErrorUnschedulable")
    run.ask("relabel:")
    assert "nvidia.com/gpu.workload.config: vm-passthrough -> container" in run.text
    assert "managedFields" not in run.text
    run.child.send(ENTER)
    run.gate("stop-vfio-manager", name="omen2")
    run.ask("disable-swap:")
    assert "-/swapfile none swap sw 0 0" in run.text
    assert "+#/swapfile none swap sw 0 0" in run.text
    assert "90 %" in run.text, "the memory arithmetic that lets swapoff pass"
    assert "inactive" in run.text, "what the step does to the unit"
    run.child.send(ENTER)
    run.gate("restart-kubelet", name="omen2")
    assert run.end() == 0, run.text

    assert "Recovered: omen2 is Ready and stays so" in run.text
    assert cluster.is_ready()
    assert cluster.allocatable(GPU) == 1
    assert cluster.read("/etc/fstab") == cluster.fstab_fixed
    assert cluster.swap_at_boot() == []
    assert cluster.calls("unbind") == []
    assert not set(running) & set(cluster.containers("nvidia-vfio-manager")), "and the container was stopped"
    assert cluster.labels()[WORKLOAD_CONFIG] == "container"
    after = gpufix.diagnose()
    assert after["verdicts"]["node"]["status"] == "well"
    assert after["verdicts"]["vms"]["status"] == "waiting"
    assert after["root_cause"]["id"] == "workload-label-wrong", "the worse of the two verdicts: the VMs still wait"

    cluster.reboot()  # recovered means that it survives one
    cluster.until(cluster.is_ready, "the node to come back by itself", 90)
    assert cluster.active_swaps() == []

    lines = journal(state)
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert all(line["v"] == 1 for line in lines)
    order = [
        (line["event"], line.get("step"))
        for line in lines
        if line["event"] in ("consent", "intent", "applied", "step-result")
    ]
    for step in ("relabel", "stop-vfio-manager", "disable-swap", "restart-kubelet"):
        assert [event for event, of in order if of == step] == ["consent", "intent", "applied", "step-result"]
    undo = next(line["undo"] for line in lines if line["event"] == "intent" and line["step"] == "relabel")
    assert undo["labels"][WORKLOAD_CONFIG] == "vm-passthrough"
    (folder,) = state.glob("gpufix/runs/*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_quitting_at_each_gate_leaves_the_rest_undone(cluster: Node, wizard: Start) -> None:
    cluster.incident(PASSTHROUGH)

    run = wizard()
    run.answer(WHO)
    run.gate("relabel", QUIT)
    assert run.end() == 3
    assert "Nothing was changed" in run.text
    assert cluster.labels()[WORKLOAD_CONFIG] == "vm-passthrough"

    run = wizard()
    run.answer(WHO)
    run.gate("relabel")
    run.gate("stop-vfio-manager", QUIT)
    assert run.end() == 3
    assert cluster.labels()[WORKLOAD_CONFIG] == "container"
    assert cluster.containers("nvidia-vfio-manager")

    run = wizard()
    run.answer("The run ")  # it has changed something and is not at its end: it is offered, and asks no question again
    run.gate("stop-vfio-manager", name="omen2")
    assert "no-op" in run.text, "relabel holds already and asks nothing"
    run.gate("disable-swap", QUIT)
    assert run.end() == 3
    assert cluster.containers("nvidia-vfio-manager") == []
    assert cluster.read("/etc/fstab") == cluster.fstab_incident
    cluster.stays_refused()

    run = wizard()
    run.answer("The run ")
    run.gate("disable-swap")
    run.gate("restart-kubelet", QUIT)
    assert run.end() == 3
    assert "The kubelet is stopped and stays stopped" in run.text
    assert cluster.unit_state().split("/")[0] in ("inactive", "failed")
    assert cluster.read("/etc/fstab") == cluster.fstab_fixed
    assert not cluster.is_ready()

    run = wizard()  # what was left half-way is taken up where it was left
    run.answer("The run ")
    run.gate("restart-kubelet", name="omen2")
    assert run.end() == 0, run.text
    assert cluster.is_ready()
    assert cluster.calls("unbind") == []


def test_the_label_already_set_is_a_no_op_without_a_question(cluster: Node, wizard: Start) -> None:
    cluster.incident(CONTAINER)
    run = wizard()
    run.answer(WHO)
    run.ask("disable-swap:")
    assert "relabel:" not in run.text.split("Plan:")[1].replace("relabel: ", "")
    assert "node.workload_config is container" in run.text
    assert "vfio_manager.running is false" in run.text
    run.child.send(ENTER)
    run.gate("restart-kubelet", name="omen2")
    assert run.end() == 0, run.text
    assert cluster.is_ready()


def test_a_wrong_name_at_a_destructive_gate_does_nothing(cluster: Node, wizard: Start) -> None:
    cluster.incident(PASSTHROUGH)
    run = wizard()
    run.answer(WHO)
    run.gate("relabel")
    run.gate("stop-vfio-manager", name="omen3")
    run.expect("nothing was done")
    run.answer("stop-vfio-manager:", DOWN + ENTER)
    run.expect("by hand:")
    run.gate("stop-vfio-manager", QUIT)
    assert run.end() == 3
    assert cluster.containers("nvidia-vfio-manager")


def test_passthrough_means_a_destructive_restart_that_lists_who_dies(cluster: Node, wizard: Start) -> None:
    cluster.incident(PASSTHROUGH, card="vfio-pci")
    run = wizard()
    run.answer(WHO, DOWN + ENTER)
    run.ask("disable-swap:")
    assert "node.workload_config is vm-passthrough" in run.text, "relabel is a no-op"
    run.child.send(ENTER)
    run.ask("restart-kubelet:")
    assert "die if the card is taken" in run.text
    run.child.send(ENTER)
    run.expect("Type the node's name")
    run.child.send("omen2" + ENTER)
    assert run.end() == 0, run.text
    assert cluster.is_ready()
    assert cluster.allocatable(RTX_5090) == 1
    assert cluster.calls("unbind") == []


def test_without_an_operator_gpufix_takes_the_deploy_label_off_itself(cluster: Node, wizard: Start) -> None:
    cluster.incident(PASSTHROUGH)
    cluster.operator_down()
    run = wizard()
    run.answer(WHO)
    run.ask("relabel:")
    assert "nvidia.com/gpu.deploy.vfio-manager: true -> (absent)" in run.text
    run.child.send(ENTER)
    run.ask("stop-vfio-manager:")
    assert "nvidia.com/gpu.deploy.vfio-manager" not in cluster.labels()
    run.child.send(QUIT)
    assert run.end() == 3


def test_a_kubelet_that_dies_again_of_something_else_is_not_recovered(
    cluster: Node, wizard: Start, gpufix: Gpufix
) -> None:
    cluster.incident(CONTAINER)
    cluster.kubelet_bad_flag("--no-such-flag=1")
    run = wizard()
    run.answer(WHO)
    run.gate("disable-swap")
    run.gate("restart-kubelet", name="omen2")
    assert run.end() == 5, run.text
    assert "dies again, now of kubelet-flag-removed" in run.text
    assert "--no-such-flag" in run.text
    assert "Recovered:" not in run.text
    assert gpufix.diagnose()["root_cause"]["id"] == "kubelet-flag-removed"


def test_swap_on_with_a_kubelet_that_may_run_is_healthy(cluster: Node, wizard: Start, gpufix: Gpufix) -> None:
    cluster.reset(CONTAINER, vms=False)
    cluster.swap_on()
    cluster.allow_swap()
    data = gpufix.diagnose()
    assert (data["root_cause"]["id"], data["root_cause"]["status"]) == ("healthy", "confirmed")
    assert data["chain"][0]["status"] == "refuted"
    run = wizard()
    assert run.end() == 0
    assert "nothing to do" in run.text


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["omen3"], "no node 'omen3'"),
        (["omen2", "--host", "omen9"], "no host 'omen9'"),
    ],
)
def test_names_that_do_not_exist(cluster: Node, gpufix: Gpufix, arguments: list[str], word: str) -> None:
    cluster.reset(CONTAINER, vms=False)
    done = gpufix.run("diagnose", *arguments)
    assert done.returncode == 2
    assert word in done.stderr
    assert "omen2" in done.stderr, "the nearest name is offered"
    assert "Traceback" not in done.stderr


def test_by_hand_in_the_wrong_order_it_is_called(cluster: Node) -> None:
    cluster.incident(PASSTHROUGH)
    assert cluster.containers("nvidia-vfio-manager")
    assert cluster.calls("unbind") == []
    cluster.inside("swapoff -a; systemctl restart kubelet")
    # Ready comes first: a pod that the kubelet has not taken up again is refused as if relabelled before the revival
    cluster.until(lambda: cluster.is_healthy(PASSTHROUGH), "the kubelet to have its pods again", 60)
    cluster.relabel(CONTAINER)
    cluster.until(lambda: cluster.calls("unbind"), "the preStop to be called", 60)


def test_swapoff_alone_revives_the_node_so_the_hold_is_needed(cluster: Node) -> None:
    cluster.incident(PASSTHROUGH)
    cluster.inside("swapoff -a")
    cluster.until(cluster.is_ready, "systemd to revive the kubelet with nobody asking", 60)
