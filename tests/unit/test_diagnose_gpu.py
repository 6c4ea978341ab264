"""A node that is well, and VMs that cannot have its GPU: which VMs, why, and whether another node could serve them."""

from __future__ import annotations

from typing import Any

import pytest
from snapshots_for_tests import (
    HEADER,
    RUNNING,
    case,
    changed,
    diagnosis,
    launcher,
    link,
    listed,
    node,
    pod,
    policy,
    refused_once,
    snapshot,
    vm,
    vmi,
)

from gpufix.model import Diagnosis, Status

R = "nvidia.com/GA104_GEFORCE_RTX_3070"
INSUFFICIENT = f"0/1 nodes are available: 1 Insufficient {R}."
PASSTHROUGH = {
    "nvidia.com/gpu.workload.config": "vm-passthrough",
    "nvidia.com/gpu.present": "true",
    "feature.node.kubernetes.io/pci-10de.present": "true",
}
CONTAINER = {**PASSTHROUGH, "nvidia.com/gpu.workload.config": "container"}
KUBEVIRT = {
    "kind": "KubeVirt",
    "metadata": {"name": "kubevirt"},
    "spec": {
        "configuration": {
            "permittedHostDevices": {"pciHostDevices": [{"resourceName": R, "externalResourceProvider": True}]}
        }
    },
}
UNTOUCHED = "override=- group=- group_members="
CARD = "0000:01:00.0 VGA compatible controller [0300]: NVIDIA Corporation GA104 [10de:2484] (rev a1)\n"


def lspci(driver: str) -> str:
    return CARD + (f"\tKernel driver in use: {driver}\n" if driver else "")


def ready(**more: Any) -> dict[str, Any]:
    return node(ready="True", heartbeat="2026-03-02T09:59:55Z", **more)


def look(
    *nodes: dict[str, Any],
    pods: list[dict[str, Any]] | None = None,
    vms: list[dict[str, Any]] | None = None,
    **more: str,
) -> Diagnosis:
    files = {
        "cluster_nodes": listed(*nodes),
        "cluster_pods": listed(*(pods if pods is not None else [launcher("gpu-fedora", R, message=INSUFFICIENT)])),
        "cluster_virtualmachines": listed(*(vms if vms is not None else [vm("gpu-fedora", R)])),
        "cluster_virtualmachineinstances": listed(),
        "cluster_clusterpolicy": listed(policy()),
        "cluster_kubevirt": listed(KUBEVIRT),
        "host_proc_swaps": HEADER,
        "host_kubelet_show": RUNNING,
        **more,
    }
    return diagnosis(snapshot(**files))


HARD, SOFT = {"key": "k", "effect": "NoSchedule"}, {"key": "k", "effect": "PreferNoSchedule"}


def root(found: Diagnosis) -> tuple[str, str]:
    return found.root_cause.id, found.root_cause.status.value


# --- causes ----------------------------------------------------------------------------------------------------------


def test_the_label_serves_containers_and_the_vm_waits() -> None:
    found = look(ready(labels=CONTAINER, allocatable={R: "0"}))
    assert root(found) == ("workload-label-wrong", "confirmed")
    assert [entry.status.value for entry in found.chain] == [
        "confirmed",
        "refuted",
        "refuted",
        "confirmed",
        "confirmed",
    ]


def test_an_invalid_label_is_wrong_too() -> None:
    labels = {**CONTAINER, "nvidia.com/gpu.workload.config": "vm-passthru"}
    assert root(look(ready(labels=labels))) == ("workload-label-wrong", "confirmed")


def test_no_label_and_the_default_is_container() -> None:
    labels = {key: value for key, value in CONTAINER.items() if "workload" not in key}
    assert root(look(ready(labels=labels))) == ("workload-label-missing", "confirmed")
    for other in (listed(policy(default="vm-passthrough")), "rubbish"):
        found = look(ready(labels=labels), cluster_clusterpolicy=other).root_cause
        assert found.status is not Status.CONFIRMED


def test_without_sandbox_workloads_the_label_is_not_the_fault() -> None:
    found = look(ready(labels=CONTAINER), cluster_clusterpolicy=listed(policy(enabled=False)))
    assert found.root_cause.id == "unknown"


def test_where_another_node_might_serve_the_label_is_only_suspected() -> None:
    found = look(ready(labels=CONTAINER, allocatable={R: "0"}), ready(name="omen3", allocatable={R: "1"}))
    assert root(found) == ("workload-label-wrong", "suspected")
    (affected,) = found.affected
    assert affected.servable_elsewhere is None
    assert "yet the VM was not put there" in affected.other_nodes[0].reason


@pytest.mark.parametrize(
    ("driver", "id", "status"),
    [
        ("nvidia", "gpu-not-bound-to-vfio", "confirmed"),
        ("nouveau", "gpu-bound-to-nouveau", "confirmed"),
        ("", "gpu-not-bound-to-vfio", "suspected"),
        ("vfio-pci", "device-plugin-down", "suspected"),
    ],
)
def test_which_driver_has_the_card(driver: str, id: str, status: str) -> None:
    assert root(look(ready(labels=PASSTHROUGH, allocatable={R: "0"}), host_lspci=lspci(driver))) == (id, status)


def test_vfio_manager_fails() -> None:
    pods = [
        launcher("gpu-fedora", R, message=INSUFFICIENT),
        pod("nvidia-vfio-manager-x", node_name="omen2", ready="False", init_waiting="CrashLoopBackOff"),
    ]
    found = look(ready(labels=PASSTHROUGH, allocatable={R: "0"}), pods=pods, host_lspci=lspci("nvidia"))
    assert root(found) == ("vfio-manager-failing", "confirmed")


PLUGIN = "nvidia-sandbox-device-plugin-daemonset-x"


@pytest.mark.parametrize(
    ("state", "driver", "expected"),
    [
        ({"waiting": "CrashLoopBackOff", "ready": "False"}, "vfio-pci", ("device-plugin-down", "confirmed")),
        ({"waiting": "CrashLoopBackOff", "ready": "False"}, None, ("device-plugin-down", "suspected")),
        ({"init_waiting": "CrashLoopBackOff", "ready": "False"}, "vfio-pci", ("unknown", "unknown")),
        ({"ready": "True", "phase": "Running"}, "vfio-pci", ("device-plugin-down", "suspected")),
    ],
)
def test_the_device_plugin(state: dict[str, str], driver: str | None, expected: tuple[str, str]) -> None:
    pods = [launcher("gpu-fedora", R, message=INSUFFICIENT), pod(PLUGIN, node_name="omen2", **state)]
    more = {} if driver is None else {"host_lspci": lspci(driver)}
    assert root(look(ready(labels=PASSTHROUGH, allocatable={R: "0"}), pods=pods, **more)) == expected


def test_the_card_is_offered_by_its_id() -> None:
    found = look(ready(labels=PASSTHROUGH, allocatable={"nvidia.com/2484": "1"}), host_lspci=lspci("vfio-pci"))
    assert root(found) == ("resource-name-mismatch", "confirmed")


def test_a_vm_that_asks_as_containers_do() -> None:
    kubevirt = {"kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "spec": {}}
    pods = [launcher("gpu-fedora", "nvidia.com/gpu", message="Insufficient nvidia.com/gpu")]
    found = look(
        ready(labels=PASSTHROUGH, allocatable={R: "1"}),
        pods=pods,
        vms=[vm("gpu-fedora", "nvidia.com/gpu")],
        cluster_kubevirt=listed(kubevirt),
    )
    assert root(found) == ("resource-name-mismatch", "confirmed")


def test_not_permitted_without_kubevirts_own_word_is_a_suspicion() -> None:
    wrong = [vm("gpu-fedora", "nvidia.com/TU104GL_TESLA_T4", status="Starting")]
    found = look(ready(labels=PASSTHROUGH, allocatable={R: "1"}), pods=[], vms=wrong)
    assert root(found) == ("resource-name-mismatch", "suspected")


def test_a_name_that_differs_in_case_only() -> None:
    wrong = [vm("gpu-fedora", R.replace("GEFORCE", "GeForce"), status="Starting")]
    found = look(ready(labels=PASSTHROUGH, allocatable={R: "1"}), pods=[], vms=wrong)
    assert root(found) == ("resource-name-mismatch", "confirmed")


@pytest.mark.parametrize(
    ("line", "offered", "id"),
    [
        ("[ 1.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.", "0", "gpu-fell-off-bus"),
        ("[ 1.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.", "1", "gpu-fell-off-bus"),
        ("[ 1.0] NVRM: Xid (PCI:0000:01:00): 31, pid=1, MMU fault", "0", "device-plugin-down"),
    ],
)
def test_a_card_that_fell_off_the_bus(line: str, offered: str, id: str) -> None:
    assert look(ready(labels=PASSTHROUGH, allocatable={R: offered}), host_dmesg=line).root_cause.id == id


def test_a_card_whose_registers_read_as_ones() -> None:
    text = CARD.replace("(rev a1)", "(rev ff)")
    found = look(ready(labels=PASSTHROUGH, allocatable={R: "1"}), host_lspci=text)
    assert root(found) == ("gpu-fell-off-bus", "suspected")


@pytest.mark.parametrize(
    ("driver", "id", "status"),
    [("nvidia", "gpu-not-bound-to-vfio", "confirmed"), ("nouveau", "gpu-bound-to-nouveau", "confirmed")],
)
def test_a_passthrough_node_that_offers_nothing_though_no_vm_waits(driver: str, id: str, status: str) -> None:
    found = look(ready(labels=PASSTHROUGH, allocatable={R: "0"}), pods=[], vms=[], host_lspci=lspci(driver))
    assert root(found) == (id, status)


def test_a_label_that_keeps_the_plugin_away() -> None:
    labels = {**PASSTHROUGH, "nvidia.com/gpu.deploy.sandbox-device-plugin": "paused-for-driver-upgrade"}
    found = look(ready(labels=labels, allocatable={R: "0"}), host_lspci=lspci("vfio-pci"))
    assert root(found) == ("device-plugin-down", "confirmed")
    assert any("keeps that operand off" in warning for warning in found.warnings)


def test_iommu_by_sysfs() -> None:
    for text, status in (("# IOMMU groups: 0\n", "confirmed"), ("", "suspected")):
        found = look(ready(labels=PASSTHROUGH, allocatable={R: "0"}), host_iommu_groups=text, host_lspci=lspci(""))
        assert root(found) == ("iommu-off", status)
    listing = "# NVIDIA PCI functions: 1\n0000:01:00.0 vendor=10de device=2484 class=030000 driver=- "
    found = look(ready(labels=PASSTHROUGH, allocatable={R: "0"}), host_pci_drivers=listing + UNTOUCHED)
    assert root(found) == ("iommu-off", "confirmed")


def test_the_holder_decides() -> None:
    def holder(phase: str) -> Diagnosis:
        taking = launcher("rhel9", R, node_name="omen2", phase=phase, ready="True" if phase == "Running" else "False")
        machines = [vm("gpu-fedora", R), vm("rhel9", R, status="Running" if phase == "Running" else "Starting")]
        pods = [launcher("gpu-fedora", R, message=INSUFFICIENT), taking]
        return look(ready(labels=PASSTHROUGH, allocatable={R: "1"}), pods=pods, vms=machines)

    running = holder("Running")
    assert root(running) == ("gpu-already-allocated", "confirmed")
    assert [entry.name for entry in running.affected] == ["gpu-fedora"]
    pending = holder("Pending")
    assert root(pending) == ("healthy", "confirmed"), "the node is; what waits is said beside it"
    assert "gpu-fedora waits" in pending.root_cause.summary
    assert [entry.name for entry in pending.affected] == ["gpu-fedora"]
    assert any(warning.startswith("rhel9 does not run") for warning in pending.warnings)


def test_a_vm_that_waits_for_no_reason_that_shows_is_never_healthy() -> None:
    pods = [launcher("gpu-fedora", R, message="0/1: 1 Insufficient memory")]
    assert root(look(ready(labels=PASSTHROUGH, allocatable={R: "1"}), pods=pods)) == ("unknown", "unknown")


# --- who is affected -------------------------------------------------------------------------------------------------


def test_the_pods_message_wins_over_kubevirts_older_copy() -> None:
    found = diagnosis(case("trace-6-container-mode-vms-waiting"))
    assert all("Insufficient" in entry.reason for entry in found.affected)
    assert {entry.name for entry in found.affected} == {"gpu-fedora", "rhel9-gpu-vm"}
    assert {str(entry.since) for entry in found.affected} == {"2026-12-02 08:50:00+00:00"}
    assert found.affected[0].resources == {"nvidia.com/GB202_GEFORCE_RTX_5090": 1, "nvidia.com/GB202_AUDIO": 1}
    assert found.affected[0].servable_elsewhere is False


def test_without_the_pods_the_older_copy_is_called_so() -> None:
    found = diagnosis(changed(case("trace-6-container-mode-vms-waiting"), {"cluster/pods.json": None}))
    assert "which may be old" in found.affected[0].reason


def test_vms_that_are_meant_to_be_off_or_want_no_device_are_not_affected() -> None:
    machines = [vm("off", R, strategy="Halted", status="Stopped"), vm("manual", R, strategy="Manual", status="Stopped")]
    plain = vm("plain", R)
    plain["spec"]["template"]["spec"]["domain"]["devices"] = {}
    assert look(ready(labels=PASSTHROUGH, allocatable={R: "1"}), pods=[], vms=[*machines, plain]).affected == ()


def test_a_pod_whose_vm_was_not_read_counts() -> None:
    found = look(ready(labels=CONTAINER, allocatable={R: "0"}), vms=[])
    assert [(entry.name, dict(entry.resources)) for entry in found.affected] == [("gpu-fedora", {R: 1})]


def test_vms_of_other_nodes_are_not_ours() -> None:
    other = ready(name="omen3", allocatable={R: "1"})
    pinned = launcher("pinned", R, message="x", selector={"kubernetes.io/hostname": "omen3"})
    machines = [vm("pinned", R, selector={"kubernetes.io/hostname": "omen3"}), vm("there", R, status="Running")]
    running = launcher("there", R, node_name="omen3", phase="Running", ready="True")
    mine = ready(labels=PASSTHROUGH, allocatable={R: "1"})
    assert look(mine, other, pods=[pinned, running], vms=machines).affected == ()
    unnamed = look(ready(labels=PASSTHROUGH), other, pods=[launcher("gpu-fedora", R, message=INSUFFICIENT)])
    assert unnamed.affected == ()


def test_a_vm_whose_pod_is_on_a_dead_node_may_still_run() -> None:
    pods = [launcher("gpu-fedora", R, node_name="omen2", phase="Running", ready="True")]
    found = look(
        node(allocatable={R: "1"}),
        ready(name="omen3", allocatable={R: "1"}),
        pods=pods,
        vms=[vm("gpu-fedora", R, status="Running")],
        cluster_virtualmachineinstances=listed(vmi("gpu-fedora", R, node_name="omen2")),
        host_kubelet_journal=refused_once(),
        host_kubelet_show="ActiveState=activating\nSubState=auto-restart\n",
    )
    (affected,) = found.affected
    assert "may still run" in affected.reason
    assert affected.since == found.down_since
    assert affected.servable_elsewhere is True


@pytest.mark.parametrize(
    ("other", "selector", "tolerations", "serves", "reason"),
    [
        ({}, {}, [], False, f"does not offer {R}"),
        ({"allocatable": {R: "0"}}, {}, [], False, f"offers 0 of {R}"),
        ({"allocatable": {R: "1"}, "ready": "Unknown", "taints": []}, {}, [], False, "is not Ready (Unknown)"),
        ({"allocatable": {R: "1"}, "unschedulable": True}, {}, [], False, "is cordoned"),
        ({"allocatable": {R: "1"}}, {"kubernetes.io/hostname": "omen2"}, [], False, "pinned to omen2"),
        ({"allocatable": {R: "1"}}, {"zone": "a"}, [], False, "asks for zone=a"),
        ({"allocatable": {R: "1"}, "taints": [HARD]}, {}, [], False, "does not tolerate its taint k"),
        ({"allocatable": {R: "1"}, "taints": [HARD]}, {}, [{"key": "k", "operator": "Exists"}], None, "offers 1"),
        ({"allocatable": {R: "1"}, "taints": [SOFT]}, {}, [], None, "offers 1"),
    ],
)  # fmt: skip
def test_why_another_node_cannot_serve(
    other: dict[str, Any], selector: dict[str, str], tolerations: list[dict[str, str]], serves: bool | None, reason: str
) -> None:
    options = {"ready": "True", **other}
    pods = [launcher("gpu-fedora", R, message=INSUFFICIENT, selector=selector, tolerations=tolerations)]
    mine = ready(labels={**CONTAINER, "zone": "a"}, allocatable={R: "0"})
    (affected,) = look(mine, node("omen3", **options), pods=pods).affected
    (elsewhere,) = affected.other_nodes
    assert elsewhere.can_serve is serves
    assert reason in elsewhere.reason


def test_another_node_whose_cards_are_all_taken() -> None:
    pods = [
        launcher("gpu-fedora", R, message=INSUFFICIENT),
        launcher("there", R, node_name="omen3", phase="Running", ready="True"),
    ]
    machines = [vm("gpu-fedora", R), vm("there", R, status="Running")]
    (affected,) = look(
        ready(labels=CONTAINER, allocatable={R: "0"}),
        ready(name="omen3", allocatable={R: "1"}),
        pods=pods,
        vms=machines,
    ).affected
    assert affected.other_nodes[0].can_serve is False
    assert "taken by virt-launcher-there-abcde" in affected.other_nodes[0].reason


def test_the_link_of_the_vms() -> None:
    pods = [launcher("gpu-fedora", R, node_name="omen2", phase="Running", ready="True")]
    found = look(
        ready(labels=PASSTHROUGH, allocatable={R: "1"}),
        pods=[*pods, pod(PLUGIN, node_name="omen2", phase="Running", ready="True")],
        vms=[vm("gpu-fedora", R, status="Running")],
        cluster_virtualmachineinstances=listed(vmi("gpu-fedora", R, node_name="omen2")),
    )
    assert root(found) == ("healthy", "confirmed")
    assert link(found, "vms-unschedulable").status is Status.REFUTED


# --- what lives on the card while the node is dead -------------------------------------------------------------------

HELD = "# scanned 20 processes, unreadable 0\n"
JOB = HELD + "4242\tpython3\t/dev/nvidia0\t0::/train.service\n"


def minded(name: str, holders: str, **files: str | None) -> str:
    """The warnings of the case ``name`` with these processes on its card."""
    return "\n".join(diagnosis(changed(case(name), {"host/gpu_holders": holders, **files})).warnings)


BY = "by hand or by itself, endangers that"
LABEL = "the label nvidia.com/gpu.workload.config still says vm-passthrough"
CONTAINER_RUNS = "a vfio-manager container still runs here: a starting kubelet may run its preStop"


def test_a_job_that_a_living_kubelet_would_kill_is_told_first() -> None:
    found = diagnosis(changed(case("trace-1-kubelet-dead"), {"host/gpu_holders": JOB}))
    assert found.warnings[0].startswith(
        f"the card is in use by python3 (pid 4242); a kubelet that comes alive now, {BY}: "
    )
    assert LABEL in found.warnings[0] and CONTAINER_RUNS in found.warnings[0]


def test_no_more_jobs_are_named_than_can_be_read() -> None:
    many = HELD + "".join(f"{pid}\tpython3\t/dev/nvidia0\t0::/train.service\n" for pid in range(100, 107))
    told = minded("trace-1-kubelet-dead", many)
    assert "python3 (pid 102), python3 (pid 103) and 3 more; a kubelet" in told and "pid 104" not in told


def test_relabelling_alone_does_not_make_it_safe() -> None:
    """On an old kubelet the preStop of the container that still runs would take the card, whatever the label says."""
    told = minded("trace-2-relabelled-while-dead", JOB)
    assert CONTAINER_RUNS in told and LABEL not in told
    containers = case("trace-2-relabelled-while-dead").files["host/containers"]
    stopped = "\n".join(line for line in containers.splitlines() if "vfio-manager" not in line) + "\n"
    assert "the card is in use" not in minded("trace-2-relabelled-while-dead", JOB, **{"host/containers": stopped})


@pytest.mark.parametrize(
    ("name", "holders"),
    [
        ("trace-1-kubelet-dead", HELD),
        ("trace-0-passthrough-healthy", JOB),  # nothing will come alive
        ("realnode-container-healthy", JOB),
    ],
)
def test_a_card_that_nothing_will_take_is_no_warning(name: str, holders: str) -> None:
    assert "the card is in use" not in minded(name, holders)


@pytest.mark.parametrize("unread", ["cluster/nodes.json", "host/containers", "cluster/clusterpolicy.json"])
def test_what_was_not_read_is_not_taken_for_harmless(unread: str) -> None:
    there = {"cluster/nodes.json": listed(node())} if "policy" in unread else {}
    told = minded("trace-2-relabelled-while-dead", JOB, **there, **{unread: None})
    assert unread in told.split(BY, 1)[1]
