"""What the GPU Operator makes of a node's labels, and what each workload offers."""

from __future__ import annotations

import pytest

from gpufix.core import workload
from gpufix.model import ClusterPolicyFacts, NodeFacts, Observation


def policy(default: str = "container", *, sandbox: bool = True) -> Observation[ClusterPolicyFacts]:
    return Observation.of(ClusterPolicyFacts(True, sandbox_enabled=sandbox, default_workload=default))


@pytest.mark.parametrize(
    ("label", "seen", "expected"),
    [
        ("vm-passthrough", policy(), "vm-passthrough"),
        ("vm-passthrough", policy(sandbox=False), "container"),
        ("", policy("vm-passthrough"), "vm-passthrough"),
        ("", policy("rubbish"), "container"),
        ("rubbish", policy("vm-vgpu"), "vm-vgpu"),
        ("", policy("vm-passthrough", sandbox=False), "container"),
        ("vm-passthrough", Observation.of(ClusterPolicyFacts(False)), "vm-passthrough"),
        ("", Observation.of(ClusterPolicyFacts(False)), "none"),
        ("container", Observation.missing("forbidden"), "container"),
        ("", Observation.missing("forbidden"), None),
    ],
)
def test_effective_workload(label: str, seen: Observation[ClusterPolicyFacts], expected: str | None) -> None:
    node = NodeFacts("omen2", labels={workload.WORKLOAD_LABEL: label} if label else {})
    found = workload.effective_workload(node, seen)
    assert found.value == expected
    assert found.known == (expected is not None)


def reconciled(**labels: str) -> dict[str, str]:
    known = {
        "workload": workload.WORKLOAD_LABEL,
        "present": workload.PRESENT_LABEL,
        "operands": workload.OPERANDS_LABEL,
        "vfio": workload.VFIO_MANAGER_LABEL,
        "device_plugin": "nvidia.com/gpu.deploy.device-plugin",
        "nfd": "feature.node.kubernetes.io/pci-10de.present",
        "product": "nvidia.com/gpu.product",
    }
    node = NodeFacts("omen2", labels={known[name]: value for name, value in labels.items()})
    return workload.reconciled_labels(node, policy().value or ClusterPolicyFacts(False))


def test_the_operator_swaps_the_deploy_labels_and_keeps_a_pause() -> None:
    labels = reconciled(workload="container", present="true", nfd="true", vfio="true", device_plugin="paused-x")
    deployed = {label for label in labels if label in workload.ALL_DEPLOY_LABELS}
    assert deployed == workload.DEPLOY_LABELS["container"]
    assert labels["nvidia.com/gpu.deploy.device-plugin"] == "paused-x"
    assert labels["nvidia.com/gpu.deploy.driver"] == "true"
    back = reconciled(workload="vm-passthrough", nfd="true", device_plugin="true")
    assert {label for label in back if label in workload.ALL_DEPLOY_LABELS} == workload.DEPLOY_LABELS["vm-passthrough"]
    assert back[workload.PRESENT_LABEL] == "true"


def test_the_operator_takes_all_labels_off_where_it_deploys_nothing() -> None:
    assert workload.VFIO_MANAGER_LABEL not in reconciled(
        workload="vm-passthrough", present="true", nfd="true", vfio="true", operands="false"
    )
    gone = reconciled(workload="vm-passthrough", present="true", vfio="true")
    assert gone == {workload.WORKLOAD_LABEL: "vm-passthrough", workload.PRESENT_LABEL: "false"}
    assert reconciled(vfio="true") == {workload.VFIO_MANAGER_LABEL: "true"}, "a node it never marked is left alone"


def test_mig_manager_comes_with_capable_products_only() -> None:
    mig = workload.MIG_MANAGER_LABEL
    assert mig in reconciled(workload="container", nfd="true", product="NVIDIA-A100-SXM4-80GB")
    assert mig not in reconciled(workload="container", nfd="true", product="NVIDIA-GeForce-RTX-5090")
    assert mig not in reconciled(workload="vm-passthrough", nfd="true", product="NVIDIA-A100-SXM4-80GB")


@pytest.mark.parametrize(
    ("name", "resource"),
    [
        ("GB202 [GeForce RTX 5090]", "nvidia.com/GB202_GEFORCE_RTX_5090"),
        ("GA100 [A100 PCIe 40GB]", "nvidia.com/GA100_A100_PCIE_40GB"),
        ("GP106M [GeForce GTX 1060 Mobile / Max-Q]", "nvidia.com/GP106M_GEFORCE_GTX_1060_MOBILE___MAXQ"),
        ("TU102 [Rev. A]", "nvidia.com/TU102_REV__A"),
    ],
)
def test_passthrough_resource(name: str, resource: str) -> None:
    assert workload.passthrough_resource(name) == resource


def test_what_each_workload_offers() -> None:
    allocatable = {
        "cpu": "2",
        "devices.kubevirt.io/kvm": "1k",
        "nvidia.com/gpu": "1",
        "nvidia.com/mig-1g.5gb": "7",
        "nvidia.com/GB202_GEFORCE_RTX_5090": "0",
        "nvidia.com/GB202_AUDIO": "1",
    }
    assert workload.workload_resources(allocatable, "container") == {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.5gb": 7}
    assert workload.workload_resources(allocatable, "vm-passthrough") == {"nvidia.com/GB202_GEFORCE_RTX_5090": 0}
