"""The order, proved on a real kubelet: whether vfio-manager's preStop, which unbinds the card, is called.

``gpufix recover`` with the container running at the revival: never. By hand in the wrong order, same fixture: it is.
On kubelet 1.20.2 (GPUFIX_OLD_KUBELET=1, binaries of WAY=B) even the right order calls it, unless the container was
stopped first: that is what the step stop-vfio-manager is for.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from node import PASSTHROUGH, WORKLOAD_CONFIG, RealNode
from operator_hands import Wizard

OLD = os.environ.get("WAY") == "B"


def test_gpufix_never_lets_unbind_be_called(cluster: RealNode, wizard: Callable[..., Wizard]) -> None:
    cluster.incident(PASSTHROUGH)
    running = cluster.containers("nvidia-vfio-manager")
    assert running, "the container must run, or the test proves nothing"
    run = wizard()
    run.answer("Who owns the GPU")
    run.gate("relabel")
    run.gate("stop-vfio-manager", name="omen2")
    run.gate("disable-swap")
    run.gate("restart-kubelet", name="omen2")
    assert run.end() == 0, run.text
    assert cluster.calls("unbind") == []
    assert not set(running) & set(cluster.containers("nvidia-vfio-manager")), "and it was stopped"


def test_by_hand_in_the_wrong_order_it_is_called(cluster: RealNode) -> None:
    cluster.incident(PASSTHROUGH)
    assert cluster.containers("nvidia-vfio-manager")
    assert cluster.calls("unbind") == []
    cluster.inside("swapoff -a; systemctl restart kubelet")
    # Ready comes first: a pod that the kubelet has not taken up again is refused as if relabelled before the revival
    cluster.until(lambda: cluster.is_healthy(PASSTHROUGH), "the kubelet to have its pods again", 60)
    cluster.kubectl("label", "node", "omen2", f"{WORKLOAD_CONFIG}=container", "--overwrite")
    cluster.until(lambda: cluster.calls("unbind"), "the preStop to be called", 60)


def test_swapoff_alone_revives_the_node_so_the_hold_is_needed(cluster: RealNode) -> None:
    cluster.incident(PASSTHROUGH)
    cluster.inside("swapoff -a")
    cluster.until(cluster.is_ready, "systemd to revive the kubelet with nobody asking", 60)


@pytest.mark.skipif(not OLD, reason="measured on kubelet 1.20.2 only: run with WAY=B")
def test_on_an_old_kubelet_the_right_order_alone_still_calls_it(cluster: RealNode) -> None:
    cluster.incident(PASSTHROUGH)
    cluster.kubectl("label", "node", "omen2", f"{WORKLOAD_CONFIG}=container", "--overwrite")
    cluster.until(lambda: "nvidia.com/gpu.deploy.vfio-manager" not in cluster.labels(), "the operator to act", 30)
    cluster.inside("systemctl stop kubelet; swapoff -a; systemctl start kubelet")
    cluster.until(lambda: cluster.calls("unbind"), "the old kubelet to run the preStop", 60)
