"""The order, proved on a real kubelet: whether vfio-manager's preStop, which unbinds the card, is called.

``gpufix recover`` with the container running at the revival: never. By hand in the wrong order, same fixture: it is.
On kubelet 1.20.2 (GPUFIX_OLD_KUBELET=1, binaries of WAY=B) even the right order calls it, unless the container was
stopped first: that is what the step stop-vfio-manager is for.
"""

from __future__ import annotations

import os

import pytest
from node import PASSTHROUGH, WORKLOAD_CONFIG, RealNode
from recoveries import Start

OLD = os.environ.get("WAY") == "B"


@pytest.mark.skipif(not OLD, reason="measured on kubelet 1.20.2 only: run with WAY=B")
def test_on_an_old_kubelet_the_right_order_alone_still_calls_it(cluster: RealNode) -> None:
    cluster.incident(PASSTHROUGH)
    cluster.kubectl("label", "node", "omen2", f"{WORKLOAD_CONFIG}=container", "--overwrite")
    cluster.until(lambda: "nvidia.com/gpu.deploy.vfio-manager" not in cluster.labels(), "the operator to act", 30)
    cluster.inside("systemctl stop kubelet; swapoff -a; systemctl start kubelet")
    cluster.until(lambda: cluster.calls("unbind"), "the old kubelet to run the preStop", 60)


@pytest.mark.skipif(not OLD, reason="the walk through the incident shows it on other kubelets")
def test_gpufix_never_lets_unbind_be_called(cluster: RealNode, wizard: Start) -> None:
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
