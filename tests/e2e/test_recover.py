"""The main path on a real node: a real kubelet that really refuses swap is walked back to life, or truly not.

Real: API server, controllers, scheduler, kubelet, systemd, containerd, SSH, sudo, swap. Stands in: the card, the GPU
Operator's controller and KubeVirt's (small controllers of the tests' own that follow their rules), the device plugin
(real gRPC towards the kubelet, no card behind it), vfio-manager (its hooks only log).
"""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from node import (
    CONTAINER,
    FSTAB_FIXED,
    FSTAB_INCIDENT,
    GPU,
    PASSTHROUGH,
    RTX_5090,
    SUDO_PASSWORD,
    WORKLOAD_CONFIG,
    RealNode,
)
from operator_hands import DOWN, ENTER, QUIT, Gpufix, Wizard, journal

Start = Callable[..., Wizard]
WHO = "Who owns the GPU"


def test_the_incident_from_diagnosis_to_a_node_that_stays(
    cluster: RealNode, wizard: Start, gpufix: Gpufix, state: Path
) -> None:
    cluster.incident(PASSTHROUGH)
    assert cluster.swap_at_boot(), "the fault must be one that would come back at boot"
    assert cluster.containers("nvidia-vfio-manager"), "vfio-manager must be running when the kubelet is revived"
    before = gpufix.diagnose()
    assert (before["root_cause"]["id"], before["root_cause"]["status"]) == ("swap-on", "confirmed")
    assert [link["status"] for link in before["chain"]] == ["confirmed"] * 5
    assert all(link["evidence"] for link in before["chain"])
    assert {vm["name"] for vm in before["affected"]} == {"gpu-fedora", "rhel9-gpu-vm"}
    assert all(vm["resources"] == {RTX_5090: 1} for vm in before["affected"])
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
    assert cluster.read("/etc/fstab") == FSTAB_FIXED
    assert cluster.swap_at_boot() == []
    assert cluster.calls("unbind") == []
    assert cluster.labels()[WORKLOAD_CONFIG] == "container"
    after = gpufix.diagnose()
    assert after["verdicts"]["node"]["status"] == "well"
    assert after["verdicts"]["vms"]["status"] == "waiting"
    assert after["root_cause"]["id"] == "workload-label-wrong", "the worse of the two verdicts: the VMs still wait"

    cluster.reboot()  # recovered means that it survives one
    cluster.until(cluster.is_ready, "the node to come back by itself", 90)
    assert cluster.inside("cat /proc/swaps").count("\n") == 1

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


def test_quitting_at_each_gate_leaves_the_rest_undone(cluster: RealNode, wizard: Start) -> None:
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
    run.answer(WHO)
    run.gate("stop-vfio-manager", name="omen2")
    assert "no-op" in run.text, "relabel holds already and asks nothing"
    run.gate("disable-swap", QUIT)
    assert run.end() == 3
    assert cluster.containers("nvidia-vfio-manager") == []
    assert cluster.read("/etc/fstab") == FSTAB_INCIDENT
    cluster.stays_refused()

    run = wizard()
    run.answer(WHO)
    run.gate("disable-swap")
    run.gate("restart-kubelet", QUIT)
    assert run.end() == 3
    assert "The kubelet is stopped and stays stopped" in run.text
    assert cluster.unit_state().split("/")[0] in ("inactive", "failed")
    assert cluster.read("/etc/fstab") == FSTAB_FIXED
    assert not cluster.is_ready()

    run = wizard()  # what was left half-way is taken up where it was left
    run.answer(WHO)
    run.gate("restart-kubelet", name="omen2")
    assert run.end() == 0, run.text
    assert cluster.is_ready()
    assert cluster.calls("unbind") == []


def test_the_label_already_set_is_a_no_op_without_a_question(cluster: RealNode, wizard: Start) -> None:
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


def test_a_wrong_name_at_a_destructive_gate_does_nothing(cluster: RealNode, wizard: Start) -> None:
    cluster.incident(PASSTHROUGH)
    run = wizard()
    run.answer(WHO)
    run.gate("relabel")
    run.gate("stop-vfio-manager", name="omen3")
    run.expect("nothing was done")
    run.answer("stop-vfio-manager:", DOWN + ENTER)
    run.expect("By hand:")
    run.gate("stop-vfio-manager", QUIT)
    assert run.end() == 3
    assert cluster.containers("nvidia-vfio-manager")


def test_passthrough_means_a_destructive_restart_that_lists_who_dies(cluster: RealNode, wizard: Start) -> None:
    cluster.incident(PASSTHROUGH)
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


def test_without_an_operator_gpufix_takes_the_deploy_label_off_itself(cluster: RealNode, wizard: Start) -> None:
    cluster.incident(PASSTHROUGH)
    cluster.operator_down()
    run = wizard()
    run.answer(WHO)
    run.ask("relabel:")
    assert "nvidia.com/gpu.deploy.vfio-manager: true -> (absent)" in run.text
    run.child.send(ENTER)
    run.ask("stop-vfio-manager:", timeout=200)
    assert "nvidia.com/gpu.deploy.vfio-manager" not in cluster.labels()
    run.child.send(QUIT)
    assert run.end() == 3


def test_a_kubelet_that_dies_again_of_something_else_is_not_recovered(
    cluster: RealNode, wizard: Start, gpufix: Gpufix
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


def test_swap_on_with_a_kubelet_that_may_run_is_healthy(cluster: RealNode, wizard: Start, gpufix: Gpufix) -> None:
    cluster.reset(CONTAINER, vms=False)
    cluster.swap_on()
    cluster.allow_swap()
    data = gpufix.diagnose()
    assert (data["root_cause"]["id"], data["root_cause"]["status"]) == ("healthy", "confirmed")
    assert data["chain"][0]["status"] == "refuted"
    run = wizard()
    assert run.end() == 0
    assert "nothing to do" in run.text


def test_sudo_with_a_password_without_one_and_failing(
    cluster: RealNode, state: Path, tmp_path: Path, gpufix: Gpufix
) -> None:
    cluster.incident(CONTAINER)
    inventory = tmp_path / "hosts"

    def access(user: str) -> list[str]:
        text = (
            cluster.inventory.read_text()
            .replace("ansible_user=root", f"ansible_user={user}")
            .replace("omen2 ", "gpu-box ", 1)
        )
        inventory.write_text(text)
        return ["-i", str(inventory), "--kubeconfig", str(cluster.kubeconfig), "--host", "gpu-box"]

    done = gpufix.run("diagnose", "omen2", "-o", "json", access=access("ops"))
    assert json.loads(done.stdout)["root_cause"]["id"] == "swap-on", (
        "passwordless sudo, and another name in the inventory"
    )

    run = Wizard("recover", "omen2", *access("operator"))
    assert run.end() == 7
    assert "sudo" in run.text
    assert "--ask-become-pass" in run.text

    run = Wizard("recover", "omen2", *access("operator"), "--ask-become-pass")
    run.expect("sudo password on the node:")
    run.child.sendline("wrong")
    assert run.end() == 7
    assert "sudo" in run.text

    run = Wizard("recover", "omen2", *access("operator"), "--ask-become-pass")
    run.expect("sudo password on the node:")
    run.child.sendline(SUDO_PASSWORD)
    run.answer(WHO)
    run.gate("disable-swap")
    run.gate("restart-kubelet", name="omen2")
    assert run.end() == 0, run.text
    assert cluster.is_ready()
    left = [path for path in state.rglob("*") if path.is_file() and SUDO_PASSWORD.encode() in path.read_bytes()]
    assert left == [], "the password is in no file"


def test_unreachable_host_and_unreachable_api(cluster: RealNode, wizard: Start, gpufix: Gpufix) -> None:
    cluster.incident(CONTAINER)
    cluster.ssh_down()
    try:
        run = wizard()
        assert run.end() == 7
        assert "omen2 is unreachable: " in run.text
        data = gpufix.diagnose()  # the cluster alone still gives a diagnosis, and it confirms nothing it cannot know
        assert data["root_cause"]["status"] != "confirmed"
        assert any(entry["what"] == "host" for entry in data["unread"])
    finally:
        cluster.ssh_up()
    cluster.api_down()
    try:
        run = wizard()
        assert run.end() == 7
        assert "does not answer: connection refused" in run.text
        data = gpufix.diagnose()
        assert data["chain"][0]["status"] == "confirmed", "the host alone still shows that swap stands in the way"
        assert data["chain"][2]["status"] == "unknown"
    finally:
        cluster.api_up()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["omen3"], "no node 'omen3'"),
        (["omen2", "--host", "omen9"], "no host 'omen9'"),
    ],
)
def test_names_that_do_not_exist(cluster: RealNode, gpufix: Gpufix, arguments: list[str], word: str) -> None:
    done = gpufix.run("diagnose", *arguments)
    assert done.returncode == 2
    assert word in done.stderr
    assert "omen2" in done.stderr, "the nearest name is offered"
    assert "Traceback" not in done.stderr


def test_a_user_who_may_read_but_not_patch_is_told_before_anything_changes(
    cluster: RealNode, wizard: Start, tmp_path: Path
) -> None:
    cluster.incident(PASSTHROUGH)
    custom = ("virtualmachines.kubevirt.io", "virtualmachineinstances.kubevirt.io", "kubevirts.kubevirt.io")
    readable = ",".join(("nodes", "pods", "events", "clusterpolicies.nvidia.com", *custom))
    for command in (
        "create serviceaccount reader -n default",
        f"create clusterrole gpufix-reader --verb=get,list --resource={readable}",
        "create clusterrolebinding gpufix-reader --clusterrole=gpufix-reader --serviceaccount=default:reader",
    ):
        cluster.kubectl(*command.split(), check=False)
    token = cluster.kubectl("create", "token", "reader", "-n", "default").strip()
    config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    config["users"][0]["user"] = {"token": token}
    path = tmp_path / "reader.conf"
    path.write_text(json.dumps(config))
    run = wizard("-i", str(cluster.inventory), "--kubeconfig", str(path))
    run.answer(WHO)
    status = run.end()
    assert status == 5, run.text
    assert "forbidden" in run.text
    assert "Nothing was changed" in run.text
    assert cluster.labels()[WORKLOAD_CONFIG] == "vm-passthrough"
    assert token not in run.text
