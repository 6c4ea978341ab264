"""The node shows what the end-to-end tests rely on: no gpufix here, only the node and its faults.

The order rules have their proof here too: what a kubelet that comes back does with the old vfio-manager pod.
"""

from __future__ import annotations

import time

import pytest

from . import (
    CONTAINER,
    FSTAB_FIXED,
    FSTAB_HEALTHY,
    FSTAB_INCIDENT,
    GPU,
    NODE,
    PASSTHROUGH,
    RTX_5090,
    SUDO_PASSWORD,
    VMS,
    WORKLOAD_CONFIG,
    RealNode,
    RealNodeError,
    swap_devices,
)

pytestmark = pytest.mark.realnode

VFIO_LABEL = "nvidia.com/gpu.deploy.vfio-manager"


def relabel(cluster: RealNode, mode: str) -> None:
    cluster.kubectl("label", "node", NODE, "--overwrite", f"{WORKLOAD_CONFIG}={mode}")


def vfio_pod_is_gone(cluster: RealNode) -> bool:
    return not cluster.get("pod", "-n", "gpu-operator", "-l", "app=nvidia-vfio-manager")["items"]


def test_container_mode_advertises_the_gpu_and_leaves_the_machines_waiting(cluster: RealNode) -> None:
    cluster.reset(CONTAINER)
    assert cluster.allocatable(GPU) == 1
    assert cluster.allocatable(RTX_5090) == 0
    assert [cluster.vm_status(vm) for vm in VMS] == ["ErrorUnschedulable"] * 2
    for pod in cluster.launchers():
        scheduled = next(it for it in pod["status"]["conditions"] if it["type"] == "PodScheduled")
        assert f"Insufficient {RTX_5090}" in scheduled["message"]
    assert cluster.get("clusterpolicy", "cluster-policy")["status"]["state"] == "ready"


def test_passthrough_mode_runs_one_machine_on_the_one_card(cluster: RealNode) -> None:
    cluster.reset(PASSTHROUGH)
    assert cluster.allocatable(RTX_5090) == 1
    assert [cluster.vm_status(vm) for vm in VMS] == ["Running", "ErrorUnschedulable"]
    assert len(cluster.containers("nvidia-vfio-manager")) == 1


def test_incident_is_the_one_of_the_report(cluster: RealNode) -> None:
    cluster.incident()
    assert len(swap_devices()) == 1
    assert cluster.read("/etc/fstab") == FSTAB_INCIDENT
    cluster.stays_refused()
    assert "kubelet" in cluster.ssh("systemctl list-units --all --no-legend kubelet.service")
    assert cluster.allocatable(RTX_5090) == 1, "frozen"
    assert len(cluster.containers("nvidia-vfio-manager")) == 1, "its container outlives the kubelet"
    assert [cluster.vm_status(vm) for vm in VMS] == ["ErrorUnschedulable"] * 2
    for pod in cluster.launchers():
        scheduled = next(it for it in pod["status"]["conditions"] if it["type"] == "PodScheduled")
        assert "untolerated taint" in scheduled["message"] or "had taint" in scheduled["message"]
    assert cluster.swap_at_boot() == ["/swapfile"]
    cluster.write("/etc/fstab", FSTAB_FIXED)
    assert cluster.swap_at_boot() == []


def test_right_order_saves_the_card(cluster: RealNode) -> None:
    """Relabel while dead, stop the container through the runtime, kubelet stopped, swap off, kubelet started."""
    cluster.incident()
    relabel(cluster, CONTAINER)
    cluster.until(lambda: VFIO_LABEL not in cluster.labels(), "the deploy label to go", 10)
    for container in cluster.containers("nvidia-vfio-manager"):
        cluster.ssh(f"ctr -n k8s.io task kill -s SIGKILL {container}")
    cluster.ssh("systemctl stop kubelet && swapoff /swapfile && systemctl start kubelet")
    cluster.until(cluster.is_ready, "Ready", 30)
    cluster.until(lambda: cluster.allocatable(GPU) == 1, "the GPU to be allocatable", 30)
    cluster.until(lambda: vfio_pod_is_gone(cluster), "vfio-manager to be gone", 60)
    assert cluster.calls("unbind") == []
    assert cluster.calls("bind") == []


def test_wrong_order_unbinds_the_card(cluster: RealNode) -> None:
    """Swap off and kubelet restarted with the old label still on, relabelled afterwards."""
    cluster.incident()
    cluster.ssh("swapoff /swapfile && systemctl restart kubelet")
    # Ready comes first: a pod that the kubelet has not taken up again is refused as if relabelled before the revival
    cluster.until(lambda: cluster.is_healthy(PASSTHROUGH), "the kubelet to have its pods again", 60)
    relabel(cluster, CONTAINER)
    cluster.until(lambda: cluster.calls("unbind"), "the preStop hook to run", 30)


def test_relabelled_while_dead_with_the_container_running(cluster: RealNode) -> None:
    """The write-up's order alone: kubelet 1.34 refuses the old pod without its preStop hook, kubelet 1.20 runs it."""
    cluster.incident()
    relabel(cluster, CONTAINER)
    cluster.until(lambda: VFIO_LABEL not in cluster.labels(), "the deploy label to go", 10)
    cluster.ssh("systemctl stop kubelet && swapoff /swapfile && systemctl start kubelet")
    cluster.until(cluster.is_ready, "Ready", 30)
    cluster.until(lambda: vfio_pod_is_gone(cluster), "vfio-manager to be gone", 60)
    assert bool(cluster.calls("unbind")) == cluster.version().startswith("v1.20.")


def test_swapoff_alone_revives_a_crash_looping_kubelet(cluster: RealNode) -> None:
    cluster.incident()
    cluster.ssh("swapoff /swapfile")
    cluster.until(cluster.is_ready, "Ready", 30)


def test_without_operator_labels_stay(cluster: RealNode) -> None:
    cluster.reset(CONTAINER, vms=False)
    cluster.operator_down()
    relabel(cluster, PASSTHROUGH)
    time.sleep(2)  # nothing to poll for: nothing must happen
    assert VFIO_LABEL not in cluster.labels()
    cluster.operator_up()
    cluster.until(lambda: cluster.labels().get(VFIO_LABEL) == "true", "the operator to label", 5)


def test_operator_outlives_the_api_server(cluster: RealNode) -> None:
    cluster.reset(CONTAINER, vms=False)
    cluster.api_down()
    with pytest.raises(RealNodeError):
        cluster.kubectl("get", "node")
    cluster.api_up()
    relabel(cluster, PASSTHROUGH)
    cluster.until(lambda: cluster.labels().get(VFIO_LABEL) == "true", "the operator to label", 5)


def test_latent_bad_flag_counts_from_the_next_daemon_reload_on(cluster: RealNode) -> None:
    cluster.incident()
    cluster.kubelet_bad_flag()
    cluster.stays_refused()
    cluster.ssh("swapoff -a; systemctl daemon-reload; systemctl restart kubelet")
    cluster.until(
        lambda: "unknown flag: --no-such-flag" in cluster.ssh("journalctl -u kubelet -n 50 -o cat"), "the flag", 15
    )
    cluster.until(lambda: cluster.unit_state() == "activating/auto-restart", "a crash loop", 15)
    assert not cluster.is_ready()


def test_taken_port_is_found_after_swap(cluster: RealNode) -> None:
    cluster.incident()
    cluster.kubelet_port_taken()
    cluster.ssh("swapoff /swapfile; systemctl restart kubelet")
    cluster.until(
        lambda: "address already in use" in cluster.ssh("journalctl -u kubelet -n 500 -o cat"), "the reason", 30
    )


def test_kubelet_that_allows_swap_runs_with_swap_on(cluster: RealNode) -> None:
    cluster.incident()
    cluster.allow_swap()
    assert cluster.is_ready()
    assert swap_devices()


def test_ssh_refused_and_back(cluster: RealNode) -> None:
    cluster.reset(CONTAINER, vms=False)
    cluster.ssh_down()
    with pytest.raises(RealNodeError, match="refused"):
        cluster.ssh("true")
    assert cluster.is_ready(), "nothing else is touched"
    cluster.ssh_up()
    assert cluster.ssh("id -un") == "root\n"


def test_sudo_asks_operator_and_not_ops(cluster: RealNode) -> None:
    assert cluster.ssh("sudo -n id -un", user="ops") == "root\n"
    with pytest.raises(RealNodeError, match="password is required"):
        cluster.ssh("sudo -n id -un", user="operator")
    assert cluster.ssh(f"echo {SUDO_PASSWORD} | sudo -S -p '' id -un", user="operator") == "root\n"


def test_gpu_job_is_found_in_proc(cluster: RealNode) -> None:
    cluster.gpu_job()
    assert "/dev/nvidia0" in cluster.ssh("ls -l /proc/[0-9]*/fd 2>/dev/null; true")
    cluster.reset(CONTAINER, vms=False)
    assert "/dev/nvidia0" not in cluster.ssh("ls -l /proc/[0-9]*/fd 2>/dev/null; true")


@pytest.mark.parametrize("fixed", [False, True])
def test_reboot_brings_swap_back_unless_fstab_is_fixed(cluster: RealNode, fixed: bool) -> None:
    cluster.incident()
    if fixed:
        cluster.write("/etc/fstab", FSTAB_FIXED)
        cluster.reboot()
        cluster.until(cluster.is_ready, "Ready", 60)
        assert swap_devices() == []
    else:
        cluster.reboot()
        cluster.until(cluster.is_refused_for_swap, "the kubelet to refuse swap again", 30)


def test_reset_puts_everything_back(cluster: RealNode) -> None:
    cluster.incident()
    cluster.ssh(
        "echo junk >> /etc/fstab; cp /etc/fstab /etc/fstab.bak; systemctl mask kubelet; ln -s /dev/null "
        "/etc/systemd/system/swapfile.swap; echo 'KUBELET_KUBEADM_ARGS=--junk' > /var/lib/kubelet/kubeadm-flags.env"
    )
    cluster.kubectl("cordon", NODE)
    cluster.kubectl("label", "node", NODE, "--overwrite", f"{VFIO_LABEL}=paused-for-driver-upgrade")
    cluster.ssh_down()
    cluster.api_down()
    cluster.reset(CONTAINER)
    assert cluster.is_healthy(CONTAINER)
    assert cluster.read("/etc/fstab") == FSTAB_HEALTHY
    assert cluster.ssh("ls /etc/fstab* ; systemctl is-enabled kubelet") == "/etc/fstab\nenabled\n"
    assert swap_devices() == []
    assert cluster.calls() == []
