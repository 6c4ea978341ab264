"""The main path on a real node: a real kubelet that really refuses swap is walked back to life, or truly not.

Real: API server, controllers, scheduler, kubelet, systemd, containerd, SSH, sudo, swap. Stands in: the card, the GPU
Operator's controller and KubeVirt's (small controllers of the tests' own that follow their rules), the device plugin
(real gRPC towards the kubelet, no card behind it), vfio-manager (its hooks only log).
"""

from __future__ import annotations

import json
from pathlib import Path

from node import CONTAINER, PASSTHROUGH, SUDO_PASSWORD, WORKLOAD_CONFIG, RealNode
from operator_hands import Gpufix, Wizard
from recoveries import *  # noqa: F403 - what holds in both worlds
from recoveries import WHO, Start


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
