"""Nodes, pods, virtual machines and policies; and JSON that keeps its own text."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from snapshots_for_tests import case, changed, facts, launcher, listed, node, pod, policy, snapshot, vm, vmi

from gpufix.core.parse import parse_snapshot
from gpufix.core.parse.jsonraw import cut, cut_member, read_items
from gpufix.core.parse.source import Unreadable

RESOURCE = "nvidia.com/GB202_GEFORCE_RTX_5090"


def test_a_real_node() -> None:
    found = parse_snapshot(case("trace-3a-ready")).node.value
    assert found is not None
    assert (found.ready, found.ready_reason, found.kubelet_version) == ("True", "KubeletReady", "v1.34.4")
    assert [(taint.key, taint.effect) for taint in found.taints] == [("node.kubernetes.io/unreachable", "NoExecute")]
    assert found.ready_since == datetime(2026, 12, 2, 8, 43, 50, tzinfo=UTC)
    assert found.kubevirt_heartbeat == datetime(2026, 12, 2, 8, 42, 53, tzinfo=UTC)
    assert found.labels["nvidia.com/gpu.workload.config"] == "container"


def test_a_node_that_is_not_there_is_unknown() -> None:
    found = facts(cluster_nodes=listed(node("other")))
    assert found.node.unknown == "cluster/nodes.json: no node 'omen2' among 1"
    assert len(found.nodes.value or ()) == 1


def test_one_broken_object_does_not_lose_the_others() -> None:
    text = json.dumps({"items": [None, 5, {"metadata": None}, {"metadata": {"name": ["x"]}}, node()]})
    assert [entry.name for entry in facts(cluster_nodes=text).nodes.value or ()] == ["omen2"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"items": [', "cluster/nodes.json:1:12"),
        ("", "cluster/nodes.json:1:1"),
        ('{"items": []} {"more": 1}', "more text after the end"),
        ('{"kind": "Status", "message": "forbidden"}', "kind Status"),
        ("[" * 100_000, "RecursionError"),
        ('{"items": 5}', "neither a list"),
        ("5", "no JSON object"),
    ],
)
def test_broken_json_is_unknown_with_its_place(text: str, place: str) -> None:
    found = facts(cluster_nodes=text).nodes
    assert not found.known
    assert place in found.unknown


def test_what_a_pod_asks_for() -> None:
    found = parse_snapshot(case("trace-1-kubelet-dead")).pods.value or ()
    fedora = next(entry for entry in found if "gpu-fedora" in entry.name)
    assert fedora.requests[RESOURCE] == 1
    assert fedora.scheduled == "False"
    assert "untolerated taint" in fedora.scheduled_message
    assert fedora.node_selector["kubernetes.io/hostname"] == "omen2"
    manager = next(entry for entry in found if "vfio-manager" in entry.name)
    assert (manager.phase, manager.ready) == ("Running", "False")


def test_what_a_pod_waits_for() -> None:
    (found,) = (
        facts(
            cluster_pods=listed(pod("a", node_name="omen2", waiting="PodInitializing", init_waiting="CrashLoopBackOff"))
        ).pods.value
        or ()
    )
    assert found.waiting == ("Init:CrashLoopBackOff", "PodInitializing")


def test_deletion_marks() -> None:
    found = parse_snapshot(case("trace-2-relabelled-while-dead")).pods.value or ()
    assert {entry.name.rsplit("-", 1)[0] for entry in found if entry.deleting} == {
        "nvidia-vfio-manager",
        "nvidia-sandbox-validator",
        "nvidia-sandbox-device-plugin-daemonset",
    }


def test_vms_and_their_instances() -> None:
    found = {
        entry.name: entry
        for entry in parse_snapshot(case("trace-5-dead-again-label-already-container")).vms.value or ()
    }
    assert found["gpu-fedora"].devices == {RESOURCE: 1, "nvidia.com/GB202_AUDIO": 1}
    assert found["gpu-fedora"].vmi_phase == "Scheduling"
    assert "untolerated taint" in found["gpu-fedora"].vmi_message
    assert found["rhel9-gpu-vm"].wanted


@pytest.mark.parametrize(
    ("strategy", "status", "instance", "wanted"),
    [
        ("Always", "Stopped", False, True),
        ("Halted", "Stopped", False, False),
        ("Manual", "Stopped", False, False),
        ("Manual", "Running", True, True),
        ("RerunOnFailure", "Stopped", False, False),
        ("RerunOnFailure", "CrashLoopBackOff", False, True),
    ],
)
def test_vms_that_are_meant_to_be_off(strategy: str, status: str, instance: bool, wanted: bool) -> None:
    instances = [vmi("a", RESOURCE)] if instance else []
    read = facts(
        cluster_virtualmachines=listed(vm("a", RESOURCE, strategy=strategy, status=status)),
        cluster_virtualmachineinstances=listed(*instances),
    )
    (found,) = read.vms.value or ()
    assert found.wanted is wanted


def test_the_older_field_running() -> None:
    machine = vm("a", RESOURCE)
    del machine["spec"]["runStrategy"]
    machine["spec"]["running"] = False
    (found,) = facts(cluster_virtualmachines=listed(machine), cluster_virtualmachineinstances=listed()).vms.value or ()
    assert not found.wanted


def test_an_instance_without_a_vm_counts_too() -> None:
    (found,) = (
        facts(
            cluster_virtualmachines=listed(),
            cluster_virtualmachineinstances=listed(vmi("bare", RESOURCE, node_name="omen2")),
        ).vms.value
        or ()
    )
    assert (found.name, found.node, found.devices) == ("bare", "omen2", {RESOURCE: 1})


def test_half_of_the_vms_is_unknown() -> None:
    assert not facts(cluster_virtualmachines=listed(vm("a", RESOURCE))).vms.known


def test_the_cluster_policy() -> None:
    found = facts(cluster_clusterpolicy=listed(policy(default="vm-passthrough"))).cluster_policy.value
    assert found is not None
    assert (found.present, found.sandbox_enabled, found.default_workload, found.operator_pods) == (
        True,
        True,
        "vm-passthrough",
        None,
    )
    none = facts(cluster_clusterpolicy=listed()).cluster_policy.value
    assert none is not None
    assert not none.present


def test_the_operators_pods_are_counted_where_they_were_read() -> None:
    assert _operators(case_name="60-gpu-taken-by-other-vm") == 1
    assert _operators(case_name="trace-1-kubelet-dead") is None


def _operators(case_name: str) -> int | None:
    found = parse_snapshot(case(case_name)).cluster_policy.value
    assert found is not None
    return found.operator_pods


def test_permitted_devices() -> None:
    found = parse_snapshot(case("trace-1-kubelet-dead")).kubevirt.value
    assert found is not None
    assert found.permitted == {RESOURCE: True, "nvidia.com/GB202_AUDIO": True}
    nothing = facts(cluster_kubevirt=listed({"kind": "KubeVirt", "metadata": {"name": "k"}, "spec": {}})).kubevirt.value
    assert nothing is not None
    assert nothing.permitted is None


def test_why_something_is_missing() -> None:
    read = parse_snapshot(snapshot(unread={"host": "ssh: no route to host", "cluster/pods.json": "forbidden"}))
    assert read.unit.unknown == "ssh: no route to host"
    assert read.pods.unknown == "forbidden"
    assert read.host_unread == "ssh: no route to host"
    assert read.host_asked
    assert not parse_snapshot(snapshot(cluster_nodes=listed(node()))).host_asked


def test_quantities_with_a_suffix() -> None:
    (found,) = facts(cluster_pods=listed(launcher("a", RESOURCE))).pods.value or ()
    assert found.requests == {RESOURCE: 1, "devices.kubevirt.io/kvm": 1}


# --- JSON ------------------------------------------------------------------------------------------------------------

TEXT = '{\n "items": [ {"a": {"b": [1, {"type": "X", "v": "é\\n"}]}, "k/l": "v"} ]\n}'


def test_cuts_are_the_files_own_text() -> None:
    (item,) = read_items("f", TEXT)
    assert item.raw in TEXT
    assert cut(item.raw, "a", "b", ("type", "X")) == '{"type": "X", "v": "é\\n"}'
    assert cut(item.raw, "a", "b", 0) == "1"
    assert cut_member(item.raw, "k/l") == '"k/l": "v"'
    assert cut_member(item.raw, "a", "b") in TEXT


@pytest.mark.parametrize("steps", [("z",), ("a", "b", 7), ("a", "b", ("type", "Y")), ("k/l", "deeper")])
def test_what_is_not_there_cuts_to_nothing(steps: tuple[str | int | tuple[str, str], ...]) -> None:
    (item,) = read_items("f", TEXT)
    assert cut(item.raw, *steps) == ""


def test_lists_at_the_top_and_lone_objects() -> None:
    assert [item.value for item in read_items("f", '[{"a": 1}, 2]')] == [{"a": 1}]
    assert [item.raw for item in read_items("f", ' {"metadata": {"name": "x"}} ')] == ['{"metadata": {"name": "x"}}']
    assert read_items("f", '{"items": null}') == ()
    with pytest.raises(Unreadable):
        read_items("f", "{}")


def test_unread_pods_leave_the_policy_as_it_is() -> None:
    read = parse_snapshot(changed(case("60-gpu-taken-by-other-vm"), {"cluster/pods.json": None}))
    assert read.cluster_policy.value is not None
    assert read.cluster_policy.value.operator_pods is None
