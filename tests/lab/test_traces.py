"""The model, walked through the recorded incident (cases trace-*), stage by stage: same cause, same state.

The recording has no card, so its container-mode operands ran without one. The model's wait for the driver: the card is
put on the nvidia driver by hand before stage 3, and off it before stage 4, where vfio-manager's guard would stop it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpufix.core.parse.journal import parse_journal
from gpufix.core.parse.unit import parse_unit
from gpufix.lab import cluster
from gpufix.lab.kubelet import proc_swaps
from gpufix.lab.tools import run_tool
from gpufix.lab.world import World, condition
from gpufix.model import JournalFacts, Snapshot

CASES = Path(__file__).parents[1] / "cases"
NODE = "omen2"
WORKLOAD = "nvidia.com/gpu.workload.config"
STAGES = {
    "0": "trace-0-passthrough-healthy",
    "1": "trace-1-kubelet-dead",
    "2": "trace-2-relabelled-while-dead",
    "3a": "trace-3a-ready",
    "3b": "trace-3b-ready-40s",
    "4": "trace-4-back-to-passthrough",
    "5": "trace-5-dead-again-label-already-container",
    "6": "trace-6-container-mode-vms-waiting",
}
DEAD = ("1", "2", "5")

PLUGIN = "nvidia-sandbox-device-plugin-daemonset"
PLUGIN_STATE = "state-sandbox-device-plugin"
NOT_COMPARED = {
    "whether the sandbox device plugin's pod is Ready, and ClusterPolicy for it": "a stand-in that never leaves Init",
    "nvidia.com resources in allocatable of a living node": "patched into the status by hand; no plugin registered",
    "whether a VM runs, and statuses of VMs without a scheduling problem": "no virt-handler: a VM never got to Running",
    "statuses of gpu-fedora in 0 to 4, and of rhel9-gpu-vm": "virt-controller was between two VMIs (its back-off)",
    "nvidia-operator-validator in 4": "a stand-in that ignores SIGTERM, and lasts its 30 s of grace",
    "Ready of a pod that goes, in 3a: absent or False": "the kubelet writes a refused pod's status anew, without it",
    "calls of vfio-manager's pods that came and went between 4 and 5": "other tries (FACTS 9), not part of the walk",
    "numbers in the scheduler's message": "the recorded cluster has one node, the practice cluster has eight",
    "NRestarts": "the recorded unit has RestartSec=3, kubeadm's and the model's 10",
    "nvidia-device-plugin-mps-control-daemon": "never had a pod: the model leaves the DaemonSet out",
}
"""What the stages below do not compare, and why."""
PLUGIN_COUNTS = ("0", "1", "4")
"""Where the recorded ClusterPolicy waits for the sandbox device plugin."""


@dataclass(frozen=True)
class Pod:
    app: str
    going: bool
    ready: bool


@dataclass(frozen=True)
class Stage:
    """What is compared of one moment, told by the recording or by the model."""

    labels: dict[str, str]
    taints: set[tuple[str, str]]
    conditions: set[tuple[str, str, str]]
    unschedulable: bool
    allocatable: dict[str, str]
    pods: set[Pod]
    unit: tuple[str, str, str, str]
    swap: bool
    fatal: str
    waits_for: set[str]
    policy: str
    launchers: dict[str, tuple[str, str, str]]
    statuses: dict[str, str]
    calls: list[tuple[str, str]]
    """What vfio-manage.sh was asked for: pod (empty in the model) and verb."""


# --- the two tellers -------------------------------------------------------------------------------------------------


@cache
def recorded(stage: str) -> Stage:
    folder = CASES / STAGES[stage]

    def text(name: str) -> str:
        return (folder / "host" / name).read_text(encoding="utf-8")

    def items(name: str) -> list[dict[str, Any]]:
        data = json.loads((folder / "cluster" / f"{name}.json").read_text(encoding="utf-8"))
        found: list[dict[str, Any]] = data.get("items", [data])
        return found

    journal = parse_journal("host/kubelet.journal", text("kubelet.journal")).value
    assert journal is not None
    swap = len(text("proc_swaps").splitlines()) > 1
    calls = re.findall(r"^\d+ (\S+) \[/bin/bash\] \[/bin/vfio-manage\.sh\] \[(\w+)\]", text("calls"), re.MULTILINE)
    return told(
        *(items(name) for name in ("nodes", "pods", "virtualmachines", "clusterpolicy")),
        show=text("kubelet.show"), swap=swap, journal=journal, calls=calls,
    )  # fmt: skip


def modelled(world: World) -> Stage:
    machine = world.machines[NODE]
    journal = parse_journal("j", run_tool(world, NODE, ["journalctl", "-u", "kubelet", "-o", "short-iso"]).out).value
    assert journal is not None
    return told(
        *(list(world.store.all(name)) for name in ("nodes", "pods", "virtualmachines", "clusterpolicies")),
        show=run_tool(world, NODE, ["systemctl", "show", "kubelet.service"]).out,
        swap=len(proc_swaps(machine).splitlines()) > 1, journal=journal,
        calls=[("", call.split()[0]) for call in machine.calls],
    )  # fmt: skip


def told(
    nodes: list[dict[str, Any]], pods: list[dict[str, Any]], vms: list[dict[str, Any]], policies: list[dict[str, Any]],
    *, show: str, swap: bool, journal: JournalFacts, calls: list[tuple[str, str]],
) -> Stage:  # fmt: skip
    (node,) = (one for one in nodes if one["metadata"]["name"] == NODE)
    others = [one for one in nodes if one is not node]
    unit = parse_unit(Snapshot(NODE, {}), "host/kubelet.show", show).value
    assert unit is not None
    starts = [start for start in journal.starts if start.fatal is not None or not start.ended]
    fatal = starts[-1].fatal if starts else None
    waits = re.search(r"states not ready: \[(.*)\]", condition(policies[0], "Error").get("message", ""))
    return Stage(
        labels={
            name: value
            for name, value in node["metadata"]["labels"].items()
            if name.startswith(("nvidia.com/gpu.", "kubevirt.io/", "feature.node.kubernetes.io/pci-"))
        },
        taints={(taint["key"], taint["effect"]) for taint in node["spec"].get("taints", [])},
        conditions={(one["type"], one["status"], one["reason"]) for one in node["status"]["conditions"]},
        unschedulable=node["spec"].get("unschedulable", False),
        allocatable=node["status"]["allocatable"],
        pods={
            Pod(app_of(pod), "deletionTimestamp" in pod["metadata"], condition(pod, "Ready").get("status") == "True")
            for pod in pods
            if pod["spec"].get("nodeName") == NODE and pod["metadata"]["namespace"] == "gpu-operator"
        },
        unit=(unit.active_state, unit.sub_state, unit.unit_file_state, unit.result),
        swap=swap,
        fatal=fatal.excerpt.partition("err=")[2] if fatal else "",
        waits_for=set(waits[1].split()) if waits else set(),
        policy=policies[0]["status"]["state"],
        launchers={pod["metadata"]["labels"]["vm.kubevirt.io/name"]: scheduled(pod, others) for pod in pods
                   if pod["metadata"]["name"].startswith("virt-launcher-")},
        statuses={vm["metadata"]["name"]: vm["status"].get("printableStatus", "") for vm in vms},
        calls=calls,
    )  # fmt: skip


def app_of(pod: dict[str, Any]) -> str:
    """The DaemonSet of a pod, by its name: the labels of the recorded pods do not all tell it."""
    name: str = pod["metadata"]["name"]
    return name.rpartition("-")[0]


def scheduled(pod: dict[str, Any], others: list[dict[str, Any]]) -> tuple[str, str, str]:
    """PodScheduled: status, reason, and which obstacle the message counts once more than its neighbours explain."""
    found = condition(pod, "PodScheduled")
    tainted = sum(any(taint["effect"] == "NoSchedule" for taint in node["spec"].get("taints", [])) for node in others)
    message = found.get("message", "").partition(" preemption: ")[0]
    counted = re.search(r"(\d+) node\(s\) had untolerated taint", message)
    lacking = re.search(r"\d+ (Insufficient nvidia\.com/[\w.]+)", message)
    kind = "untolerated taint" if int(counted[1] if counted else 0) > tainted else lacking[1] if lacking else ""
    return found["status"], found.get("reason", ""), kind


# --- the walk --------------------------------------------------------------------------------------------------------


@cache
def walked() -> dict[str, Stage]:
    """All stages in the model, in the order of the recording (traces/INDEX.md)."""
    world = cluster.build(1e9)
    machine = world.machines[NODE]
    machine.swap_files["/swapfile"] = (262140, 28)
    stages: dict[str, Stage] = {}

    def run(line: str) -> None:
        result = run_tool(world, NODE, line.split())
        assert result.code == 0, result

    def passes(seconds: float) -> None:
        world.advance(world.now + seconds)

    def vms(strategy: str) -> None:
        for name in ("rhel9-gpu-vm", "gpu-fedora"):  # the first one gets the card, as in the recording
            cluster.set_run_strategy(world, name, strategy)
            passes(15)

    def driver(name: str) -> None:
        for card in machine.cards:
            card.driver = name

    passes(180)
    vms("Always")
    stages["0"] = modelled(world)
    run("swapon /swapfile")
    run("systemctl restart kubelet")
    passes(70)
    stages["1"] = modelled(world)
    world.set_labels(NODE, {WORKLOAD: "container"})
    passes(20)
    stages["2"] = modelled(world)
    driver("nvidia")
    run("swapoff /swapfile")
    run("systemctl restart kubelet")
    passes(1.5)
    stages["3a"] = modelled(world)
    passes(40)
    stages["3b"] = modelled(world)
    driver("")
    world.set_labels(NODE, {WORKLOAD: "vm-passthrough"})
    passes(8)
    stages["4"] = modelled(world)
    passes(60)
    world.set_labels(NODE, {WORKLOAD: "container"})
    passes(5)
    driver("nvidia")
    passes(60)
    vms("Halted")
    run("swapon /swapfile")
    run("systemctl restart kubelet")
    passes(70)
    vms("Always")
    stages["5"] = modelled(world)
    run("swapoff /swapfile")
    run("systemctl restart kubelet")
    passes(20)
    stages["6"] = modelled(world)
    assert world.unknown == []
    return stages


both = pytest.mark.parametrize("stage", STAGES)


# --- the comparison --------------------------------------------------------------------------------------------------


@both
def test_labels(stage: str) -> None:
    assert walked()[stage].labels == recorded(stage).labels


@both
def test_taints_conditions_and_the_cordon(stage: str) -> None:
    model, trace = walked()[stage], recorded(stage)
    assert model.taints == trace.taints
    assert model.conditions == trace.conditions
    assert model.unschedulable == trace.unschedulable


@both
def test_operand_pods(stage: str) -> None:
    def compared(pods: set[Pod]) -> set[Pod]:
        kept = {one for one in pods if (stage, one.app) != ("4", "nvidia-operator-validator")}
        return {replace(one, ready=False) if one.app == PLUGIN else one for one in kept}

    assert compared(walked()[stage].pods) == compared(recorded(stage).pods)


@both
def test_kubelet_unit_and_swap(stage: str) -> None:
    model, trace = walked()[stage], recorded(stage)
    assert model.unit == trace.unit
    assert model.swap == trace.swap == (stage in DEAD)


@both
def test_the_last_start_says_why_it_failed(stage: str) -> None:
    model, trace = walked()[stage], recorded(stage)
    assert model.fatal == trace.fatal
    assert bool(trace.fatal) == (stage in DEAD)


@both
def test_cluster_policy(stage: str) -> None:
    model, trace = walked()[stage], recorded(stage)
    assert (PLUGIN_STATE in trace.waits_for) == (stage in PLUGIN_COUNTS)
    assert model.waits_for - {PLUGIN_STATE} == trace.waits_for - {PLUGIN_STATE}
    if stage not in PLUGIN_COUNTS:
        assert model.policy == trace.policy
    assert model.policy == ("notReady" if model.waits_for else "ready")


@both
def test_launchers_are_scheduled_or_refused_alike(stage: str) -> None:
    assert walked()[stage].launchers == recorded(stage).launchers


@pytest.mark.parametrize("stage", ["5", "6"])
def test_status_of_the_vm_that_waits(stage: str) -> None:
    assert walked()[stage].statuses["gpu-fedora"] == recorded(stage).statuses["gpu-fedora"] == "ErrorUnschedulable"


@pytest.mark.parametrize(("before", "after"), [("0", "1"), ("1", "2")])
def test_allocatable_is_frozen_while_the_kubelet_is_dead(before: str, after: str) -> None:
    assert recorded(after).allocatable == recorded(before).allocatable
    assert walked()[after].allocatable == walked()[before].allocatable


@pytest.mark.parametrize(
    ("before", "after", "verbs"),
    [
        ("0", "1", []),  # the container runs on, and nothing is called
        ("1", "2", []),
        ("2", "3a", []),  # relabelled while dead: its container goes without preStop
        ("3a", "3b", []),
        ("3b", "4", ["bind"]),  # a new pod begins
        ("4", "5", ["unbind"]),  # relabelled while alive: the preStop runs
        ("5", "6", []),
    ],
)
def test_calls_of_vfio_manager_between_stages(before: str, after: str, verbs: list[str]) -> None:
    def fresh(first: Stage, second: Stage) -> list[tuple[str, str]]:
        assert second.calls[: len(first.calls)] == first.calls
        return second.calls[len(first.calls) :]

    told_by_trace = fresh(recorded(before), recorded(after))
    if (before, after) == ("4", "5"):  # of the pod that was there at 4: others came and went in between
        there = recorded(before).calls[-1][0]
        assert {pod for pod, _verb in told_by_trace} > {there}
        told_by_trace = [(pod, verb) for pod, verb in told_by_trace if pod == there]
    assert [verb for _pod, verb in told_by_trace] == verbs
    assert [verb for _pod, verb in fresh(walked()[before], walked()[after])] == verbs


def test_every_recorded_stage_is_walked() -> None:
    assert sorted(STAGES.values()) == sorted(path.name for path in CASES.glob("trace-*"))
    assert list(walked()) == list(STAGES)
