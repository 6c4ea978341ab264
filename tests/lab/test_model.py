"""The rules of the practice cluster, each with the fact that it follows (FACTS, by section).

Tests marked ``defect`` show where the model strays from its facts; they pass as soon as it is mended.
"""

from __future__ import annotations

import pickle
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufix.lab import cluster
from gpufix.lab.kubelet import RESTART_SEC
from gpufix.lab.machine import CONFIG, FLAGS, FSTAB, UNITS, Machine, Process, Swap, Unit
from gpufix.lab.operands import DEPLOY, DEPLOYED, PRESENT, WORKLOAD, app_of
from gpufix.lab.scenario import JOB, job_state
from gpufix.lab.tools import run_tool
from gpufix.lab.world import World, condition

NODE = "omen2"
RTX = cluster.RTX_5090
UNREACHABLE = "node.kubernetes.io/unreachable"
NFD = "feature.node.kubernetes.io/pci-10de.present"
VFIO = "nvidia-vfio-manager"
NEW, OLD = "v1.34.4", "v1.20.2"


# --- worlds and hands ------------------------------------------------------------------------------------------------


@cache
def _frozen(version: str, workload: str, alone: bool) -> bytes:
    built = cluster.build(1e9, kubelet_version=version)
    if alone:  # the other nodes take most of the time, and nothing happens to them
        for name in [name for name in built.machines if name != NODE]:
            built.cancel(f"alive/{name}/")
            built.store.remove("nodes", name)
            del built.machines[name]
    machine = built.machines[NODE]
    machine.swap_files["/swapfile"] = (262140, 28)
    if workload == "container":
        _drive(machine, "nvidia")
    built.set_labels(NODE, {WORKLOAD: workload})
    built.advance(built.now + 180)
    return pickle.dumps(built)


def world_of(version: str = NEW, workload: str = "vm-passthrough", *, alone: bool = True) -> World:
    """A healthy cluster of its own, three minutes old; of omen2 alone, unless the others matter."""
    thawed: World = pickle.loads(_frozen(version, workload, alone))
    return thawed


@pytest.fixture
def world() -> World:
    return world_of()


def here(world: World) -> Machine:
    return world.machines[NODE]


def run(world: World, line: str) -> None:
    result = run_tool(world, NODE, line.split())
    assert result.code == 0, result


def passes(world: World, seconds: float) -> None:
    world.advance(world.now + seconds)


def dies(world: World) -> None:
    """Swap on, kubelet restarted, and long enough for the cluster to notice."""
    run(world, "swapon /swapfile")
    run(world, "systemctl restart kubelet")
    passes(world, 70)


def revives(world: World, seconds: float = 60) -> None:
    run(world, "swapoff -a")
    run(world, "systemctl restart kubelet")
    passes(world, seconds)


def _drive(machine: Machine, driver: str) -> None:
    for card in machine.cards:
        card.driver = driver


def job_begins(world: World) -> None:
    """A person binds the card to the nvidia driver, and a CUDA job takes it."""
    machine = here(world)
    _drive(machine, "nvidia")
    pid = machine.new_pid()
    machine.units[JOB] = Unit(JOB, "CUDA training", "active", "running", enabled=False, pid=pid)
    machine.processes[pid] = Process(pid, "python3", ("/dev/nvidia0",), f"/system.slice/{JOB}", JOB)


def stop_vfio_manager(world: World) -> None:
    for one in [one.id for one in here(world).containers if one.name == VFIO and one.running]:
        run(world, f"crictl stop {one}")


def verbs(world: World) -> list[str]:
    return [call.split()[0] for call in here(world).calls]


def pods(world: World, app: str = "") -> dict[str, dict[str, Any]]:
    """The pods of omen2, by DaemonSet."""
    return {app_of(pod): pod for pod in world.pods_on(NODE) if app in ("", app_of(pod))}


def runs(world: World, app: str) -> bool:
    return any(condition(pod, "Ready").get("status") == "True" for pod in pods(world, app).values())


def marked(world: World) -> set[str]:
    return {app for app, pod in pods(world).items() if "deletionTimestamp" in pod["metadata"]}


def pre_installed(world: World) -> int:
    """How often vfio-manager's guard has set its label: in this mode the operator takes it off again."""
    nodes = [one.object["metadata"] for one in world.store._changes if one.plural == "nodes"]
    values = [one["labels"].get(f"{DEPLOY}driver") for one in nodes if one["name"] == NODE]
    return sum(new == "pre-installed" != old for old, new in pairwise(values))


def ready(world: World) -> str:
    status: str = condition(world.node(NODE), "Ready")["status"]
    return status


def taints(world: World) -> set[str]:
    return {taint["effect"] for taint in world.node(NODE)["spec"].get("taints", []) if taint["key"] == UNREACHABLE}


def offered(world: World) -> dict[str, str]:
    amounts: dict[str, str] = world.node(NODE)["status"]["allocatable"]
    return amounts


def deployed(world: World) -> set[str]:
    return {name.removeprefix(DEPLOY) for name in world.labels(NODE) if name.startswith(DEPLOY)}


def policy(world: World, **sandbox: object) -> dict[str, Any]:
    found = world.store.get("clusterpolicies", "cluster-policy")
    assert found is not None
    found["spec"]["sandboxWorkloads"].update(sandbox)
    return world.put("clusterpolicies", found)


def vm(world: World, name: str) -> str:
    found = world.store.get("virtualmachines", name, "default")
    assert found is not None
    status: str = found["status"]["printableStatus"]
    return status


def refused(world: World, name: str) -> str:
    """Why the scheduler refuses a VM's launcher."""
    launchers = [pod for pod in world.store.all("pods") if pod["metadata"]["name"].startswith(f"virt-launcher-{name}-")]
    found = condition(launchers[0], "PodScheduled")
    assert (found["status"], found["reason"]) == ("False", "Unschedulable")
    message: str = found["message"]
    return message


def journal(world: World) -> str:
    return run_tool(world, NODE, ["journalctl", "-u", "kubelet"]).out


# --- the kubelet's start (FACTS 0.6, 4) ------------------------------------------------------------------------------


def test_swap_added_later_changes_nothing_until_a_restart(world: World) -> None:
    run(world, "swapon /swapfile")
    passes(world, 900)
    assert here(world).alive and ready(world) == "True"
    run(world, "systemctl restart kubelet")
    assert (here(world).kubelet.active, here(world).kubelet.sub) == ("activating", "auto-restart")
    assert "running with swap on is not supported" in journal(world)


@pytest.mark.parametrize(
    "area", [Swap("/dev/zram0", "partition", 4194300, 0, 100), Swap("/swapfile", "file", 262140, 0)]
)
def test_zram_and_an_unused_area_are_refused_as_well(world: World, area: Swap) -> None:
    here(world).swaps.append(area)
    run(world, "systemctl restart kubelet")
    passes(world, 300)
    assert not here(world).alive


@pytest.mark.parametrize(
    ("in_file", "flag", "lives"),
    [
        ("false", "", True),
        ("true", "", False),
        ("", "", False),
        ("false", "--fail-swap-on=true", False),
        ("false", "--fail-swap-on", False),
        ("true", "--fail-swap-on=false", True),
        ("", "--fail-swap-on=false", True),
    ],
)
def test_failswapon_flag_over_file_over_default(world: World, in_file: str, flag: str, lives: bool) -> None:
    here(world).disk[CONFIG] = "kind: KubeletConfiguration\n" + (f"failSwapOn: {in_file}\n" if in_file else "")
    here(world).disk[FLAGS] = f'KUBELET_KUBEADM_ARGS="--v=2 {flag}"\n'
    dies(world)
    assert here(world).alive == lives
    assert ready(world) == ("True" if lives else "Unknown")


@pytest.mark.parametrize(
    ("version", "wording"),
    [(NEW, '"command failed" err="failed to run Kubelet: running with swap on is not supported, please disable swap '),
     (OLD, "] failed to run Kubelet: running with swap on is not supported, please disable swap! or set")],
)  # fmt: skip
def test_the_refusal_is_worded_as_the_version_words_it(version: str, wording: str) -> None:
    world = world_of(version)
    dies(world)
    assert wording in journal(world)


def test_an_unknown_flag_is_refused_swap_or_not(world: World) -> None:
    here(world).disk[FLAGS] = 'KUBELET_KUBEADM_ARGS="--container-runtime=remote"\n'
    run(world, "systemctl restart kubelet")
    assert not here(world).alive
    assert "failed to parse kubelet flag: unknown flag: --container-runtime" in journal(world)


def test_a_missing_config_is_refused(world: World) -> None:
    del here(world).disk[CONFIG]
    run(world, "systemctl restart kubelet")
    assert not here(world).alive
    assert f"failed to load kubelet config file, path: {CONFIG}" in journal(world)
    assert "no such file or directory" in journal(world)


def test_flags_of_a_drop_in_count_from_a_daemon_reload_on(world: World) -> None:
    here(world).disk[f"{UNITS}/kubelet.service.d/20-swap.conf"] = (
        '[Service]\nEnvironment="KUBELET_EXTRA_ARGS=--fail-swap-on=false"\n'
    )
    dies(world)
    assert not here(world).alive
    run(world, "systemctl daemon-reload")
    passes(world, RESTART_SEC + 2)
    assert here(world).alive


# --- Restart=always (FACTS 4, 9) -------------------------------------------------------------------------------------


def test_swapoff_alone_revives_it_within_restartsec(world: World) -> None:
    dies(world)
    before = here(world).kubelet.restarts
    assert before >= 6
    run(world, "swapoff /swapfile")
    passes(world, RESTART_SEC)
    assert here(world).alive
    assert here(world).kubelet.restarts == before + 1
    passes(world, 14 - RESTART_SEC)
    assert ready(world) == "True"


def test_held_by_systemctl_stop_it_stays_down(world: World) -> None:
    dies(world)
    run(world, "systemctl stop kubelet")
    run(world, "swapoff /swapfile")
    passes(world, 300)
    assert (here(world).kubelet.active, here(world).kubelet.result) == ("inactive", "success")
    run(world, "systemctl start kubelet")
    passes(world, 10)
    assert ready(world) == "True"


# --- the node's status (FACTS 5, 9) ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "grace"), [(NEW, 50), ("v1.32.0", 50), ("v1.31.0", 40), (OLD, 40)])
def test_a_silent_node_is_given_up_after_the_grace_period(version: str, grace: int) -> None:
    world = world_of(version)
    run(world, "systemctl stop kubelet")
    passes(world, grace - 1)
    assert ready(world) == "True" and not taints(world)
    passes(world, 2)
    assert ready(world) == "Unknown" and taints(world) == {"NoSchedule", "NoExecute"}


def test_a_kubelet_that_is_back_within_the_grace_period_is_not_missed(world: World) -> None:
    run(world, "systemctl stop kubelet")
    passes(world, 30)
    run(world, "systemctl start kubelet")
    passes(world, 300)
    assert ready(world) == "True" and not taints(world)
    assert not any(event["reason"] == "NodeNotReady" for event in world.store.all("events"))


def test_the_taints_go_after_ready(world: World) -> None:
    dies(world)
    revives(world, 2)
    assert ready(world) == "True" and taints(world) == {"NoExecute"}
    passes(world, 5)
    assert not taints(world)


def test_allocatable_is_frozen_while_it_is_dead(world: World) -> None:
    before = offered(world)
    dies(world)
    world.set_labels(NODE, {WORKLOAD: "container"})
    passes(world, 300)
    assert offered(world) == before and before[RTX] == "1"


def test_extended_resources_are_0_right_after_ready() -> None:
    world = world_of(workload="container")
    assert offered(world)["nvidia.com/gpu"] == "1"
    dies(world)
    revives(world, 2)
    assert ready(world) == "True" and offered(world)["nvidia.com/gpu"] == "0"


@pytest.mark.parametrize(("workload", "resource"), [("container", "nvidia.com/gpu"), ("vm-passthrough", RTX)])
def test_the_plugin_registers_again_with_a_kubelet_that_is_back(workload: str, resource: str) -> None:
    """FACTS 5: 0 *until re-registration*. The plugin's container ran on, and sees the new kubelet.sock."""
    world = world_of(workload=workload)
    run(world, "systemctl restart kubelet")
    passes(world, 120)
    assert offered(world)[resource] == "1"


def test_a_plugin_that_is_new_registers_what_it_offers(world: World) -> None:
    dies(world)
    world.set_labels(NODE, {WORKLOAD: "container"})
    passes(world, 1)
    _drive(here(world), "nvidia")
    revives(world, 2)
    assert "nvidia.com/gpu" not in offered(world) and offered(world)[RTX] == "0"
    passes(world, 40)
    assert offered(world)["nvidia.com/gpu"] == "1" and offered(world)[RTX] == "0"


def test_virt_handlers_heartbeat_goes_on_while_the_kubelet_is_dead(world: World) -> None:
    dies(world)
    before = world.node(NODE)
    passes(world, 300)
    after = world.node(NODE)
    beats = [node["metadata"]["annotations"]["kubevirt.io/heartbeat"] for node in (before, after)]
    assert beats[0] < beats[1]
    assert condition(before, "Ready")["lastHeartbeatTime"] == condition(after, "Ready")["lastHeartbeatTime"]


# --- the GPU Operator's labels (FACTS 0.5, 1) ------------------------------------------------------------------------


@pytest.mark.parametrize("workload", DEPLOYED)
@pytest.mark.parametrize("dead", [False, True])
def test_deploy_labels_of_each_mode_kubelet_dead_or_alive(world: World, workload: str, dead: bool) -> None:
    if dead:
        dies(world)
    world.set_labels(NODE, {WORKLOAD: workload})
    passes(world, 1)
    assert deployed(world) == set(DEPLOYED[workload])
    assert world.labels(NODE)[PRESENT] == "true"


@pytest.mark.parametrize("label", [None, "", "vm_passthrough"])
@pytest.mark.parametrize(
    ("default", "mode"), [("vm-passthrough", "vm-passthrough"), ("", "container"), ("nonsense", "container")]
)
def test_a_label_that_is_missing_or_invalid_means_the_default(
    world: World, label: str | None, default: str, mode: str
) -> None:
    policy(world, defaultWorkload=default)
    world.set_labels(NODE, {WORKLOAD: "vm-vgpu"})
    passes(world, 1)
    world.set_labels(NODE, {WORKLOAD: label})
    passes(world, 1)
    assert deployed(world) == set(DEPLOYED[mode])


def test_sandbox_workloads_disabled_always_mean_container(world: World) -> None:
    policy(world, enabled=False, defaultWorkload="vm-passthrough")
    passes(world, 1)
    assert deployed(world) == set(DEPLOYED["container"])


def test_a_stale_pause_is_kept_and_keeps_its_operand_off(world: World) -> None:
    world.set_labels(NODE, {f"{DEPLOY}vfio-manager": "paused-for-driver-upgrade"})
    passes(world, 60)
    assert world.labels(NODE)[f"{DEPLOY}vfio-manager"] == "paused-for-driver-upgrade"
    assert not pods(world, VFIO)


def test_without_the_nfd_label_present_is_false_and_no_deploy_label_is_left(world: World) -> None:
    world.set_labels(NODE, {NFD: None})
    passes(world, 60)
    assert world.labels(NODE)[PRESENT] == "false"
    assert not deployed(world) and not pods(world)
    world.set_labels(NODE, {NFD: "true"})
    passes(world, 60)
    assert deployed(world) == set(DEPLOYED["vm-passthrough"]) and runs(world, VFIO)


def test_without_the_operator_no_label_follows(world: World) -> None:
    world.operator = False
    world.set_labels(NODE, {WORKLOAD: "container"})
    passes(world, 600)
    assert deployed(world) == set(DEPLOYED["vm-passthrough"]) and runs(world, VFIO)


def test_the_policy_waits_for_operands_that_are_wanted(world: World) -> None:
    world.set_labels(NODE, {WORKLOAD: "container"})
    passes(world, 30)  # their init containers wait for the driver
    assert policy(world)["status"]["state"] == "notReady"
    told = condition(policy(world), "Error")["message"]
    assert told.startswith("ClusterPolicy is not ready, states not ready: [") and "state-device-plugin" in told


def test_the_policy_is_ready_with_0_desired(world: World) -> None:
    dies(world)
    world.set_labels(NODE, {WORKLOAD: "container"})
    passes(world, 60)
    assert policy(world)["status"]["state"] == "ready"
    assert all(one["status"]["desiredNumberScheduled"] == 0 for one in world.store.all("daemonsets"))


# --- DaemonSet pods (FACTS 5, 9) -------------------------------------------------------------------------------------


def test_pods_of_a_dead_node_stay_running_and_are_not_ready(world: World) -> None:
    dies(world)
    passes(world, 300)
    assert {pod["status"]["phase"] for pod in pods(world).values()} == {"Running"}
    assert not any(runs(world, app) for app in pods(world))
    assert all(one.running for one in here(world).containers)


def test_unwanted_pods_are_marked_and_kept_and_no_new_one_comes_while_the_noschedule_taint_stands(world: World) -> None:
    before = {app: pod["metadata"]["uid"] for app, pod in pods(world).items()}
    dies(world)
    world.set_labels(NODE, {WORKLOAD: "container"})
    passes(world, 300)
    assert {app: pod["metadata"]["uid"] for app, pod in pods(world).items()} == before
    assert marked(world) == set(before)
    _drive(here(world), "nvidia")
    revives(world, 1.5)
    assert marked(world) == set(before) < set(pods(world))
    passes(world, 4)
    assert not marked(world) and not set(before) & set(pods(world))


def test_a_pod_that_waits_in_init_still_waits_when_the_kubelet_is_back() -> None:
    """vfio-manager, stopped by its guard: no main container ever began, so it cannot become Ready (FACTS 0.2)."""
    world = world_of()
    _drive(here(world), "nvidia")
    run(world, "reboot")  # all begins anew, with init
    passes(world, 90)
    assert not runs(world, VFIO)
    dies(world)
    revives(world)
    assert not any(one.name == VFIO for one in here(world).containers)
    assert not runs(world, VFIO)


def test_a_pod_that_waits_in_init_has_one_sandbox_after_a_restart_of_the_kubelet() -> None:
    world = world_of()
    world.set_labels(NODE, {WORKLOAD: "container"})
    passes(world, 60)  # its operands wait for the driver
    run(world, "systemctl restart kubelet")
    passes(world, 1)
    assert not any(runs(world, app) for app in pods(world))
    passes(world, 60)
    assert len([one for one in here(world).containers if one.name == "-"]) == len(pods(world))


# --- vfio-manager and the card (FACTS 0.2, 0.3, 9) -------------------------------------------------------------------


def test_the_guard_of_init_rebinds_nothing_while_the_card_is_on_nvidia() -> None:
    world = world_of(workload="container")
    job_begins(world)
    world.set_labels(NODE, {WORKLOAD: "vm-passthrough"})
    passes(world, 300)
    assert pre_installed(world) > 1
    (status,) = pods(world)[VFIO]["status"]["initContainerStatuses"]
    assert status["state"] == {"waiting": {"reason": "CrashLoopBackOff"}} and status["restartCount"] > 1
    assert not verbs(world) and here(world).gpu_on("nvidia") and job_state(here(world)) == "alive"


def test_a_main_container_begun_again_has_no_guard_and_kills_the_job(world: World) -> None:
    dies(world)
    stop_vfio_manager(world)
    job_begins(world)
    revives(world)
    assert verbs(world) == ["bind", "bind"]
    assert here(world).gpu_on("vfio-pci") and job_state(here(world)) == "dead"
    assert f"{DEPLOY}driver" not in world.labels(NODE)
    assert any("non-zero usage count" in text for _at, text in here(world).kernel)


def test_a_living_kubelet_begins_a_stopped_container_again(world: World) -> None:
    job_begins(world)
    stop_vfio_manager(world)
    assert verbs(world) == ["bind", "bind"] and job_state(here(world)) == "dead"


@pytest.mark.parametrize("version", [NEW, OLD])
def test_relabelled_while_alive_it_unbinds(version: str) -> None:
    world = world_of(version)
    job_begins(world)
    world.set_labels(NODE, {WORKLOAD: "container"})
    passes(world, 10)
    assert verbs(world) == ["bind", "unbind"] and job_state(here(world)) == "dead"
    assert [card.driver for card in here(world).cards] == ["", ""]


@pytest.mark.parametrize(
    ("version", "stopped", "called", "job"),
    [(NEW, False, [], "alive"), (NEW, True, [], "alive"), (OLD, False, ["unbind"], "dead"), (OLD, True, [], "alive")],
)
def test_relabelled_while_dead_then_revived(version: str, stopped: bool, called: list[str], job: str) -> None:
    world = world_of(version)
    dies(world)
    job_begins(world)
    world.set_labels(NODE, {WORKLOAD: "container"})
    passes(world, 5)
    if stopped:
        stop_vfio_manager(world)
    revives(world)
    assert verbs(world) == ["bind", *called]
    assert job_state(here(world)) == job
    assert VFIO not in pods(world)


@pytest.mark.parametrize("version", [NEW, OLD])
def test_revived_with_passthrough_kept_nothing_is_called(version: str) -> None:
    world = world_of(version)
    dies(world)
    revives(world)
    assert verbs(world) == ["bind"] and runs(world, VFIO)


# --- VMs (FACTS 3, 9) ------------------------------------------------------------------------------------------------


def test_the_first_vm_gets_the_card_and_the_second_is_insufficient() -> None:
    world = world_of(alone=False)
    cluster.set_run_strategy(world, "gpu-fedora", "Always")
    passes(world, 30)
    assert vm(world, "gpu-fedora") == "Running" and vm(world, "rhel9-gpu-vm") == "Stopped"
    assert {one.command for one in here(world).users("/dev/vfio/14")} == {"qemu-kvm"}
    cluster.set_run_strategy(world, "rhel9-gpu-vm", "Always")
    passes(world, 30)
    assert vm(world, "rhel9-gpu-vm") == "ErrorUnschedulable"
    assert f"5 Insufficient {RTX}" in refused(world, "rhel9-gpu-vm")


def test_a_vm_waits_for_an_untolerated_taint_while_its_node_is_dead_and_for_the_resource_afterwards() -> None:
    world = world_of(alone=False)
    dies(world)
    world.set_labels(NODE, {WORKLOAD: "container"})
    cluster.set_run_strategy(world, "gpu-fedora", "Always")
    passes(world, 10)
    assert vm(world, "gpu-fedora") == "ErrorUnschedulable"
    assert "4 node(s) had untolerated taint(s)" in refused(world, "gpu-fedora")  # three of the control plane
    assert refused(world, "gpu-fedora").startswith("0/8 nodes are available: ") and NODE not in refused(
        world, "gpu-fedora"
    )
    revives(world)
    assert vm(world, "gpu-fedora") == "ErrorUnschedulable"
    assert "3 node(s) had untolerated taint(s)" in refused(world, "gpu-fedora")
    assert f"5 Insufficient {RTX}" in refused(world, "gpu-fedora")


def test_a_vm_that_is_halted_goes_with_all_it_had(world: World) -> None:
    cluster.set_run_strategy(world, "gpu-fedora", "Always")
    passes(world, 30)
    cluster.set_run_strategy(world, "gpu-fedora", "Halted")
    passes(world, 30)
    assert vm(world, "gpu-fedora") == "Stopped"
    assert not list(world.store.all("virtualmachineinstances"))
    assert not any("virt-launcher" in pod["metadata"]["name"] for pod in world.store.all("pods"))
    cluster.set_run_strategy(world, "gpu-fedora", "Always")
    passes(world, 30)
    assert vm(world, "gpu-fedora") == "Running"


def test_a_vm_runs_on_while_the_kubelet_is_dead_and_after_it(world: World) -> None:
    cluster.set_run_strategy(world, "gpu-fedora", "Always")
    passes(world, 30)
    for hand in (dies, revives):
        hand(world)
        assert here(world).users("/dev/vfio") and vm(world, "gpu-fedora") == "Running"


def test_a_vm_is_one_qemu(world: World) -> None:
    cluster.set_run_strategy(world, "gpu-fedora", "Always")
    passes(world, 60)
    assert len(here(world).users("/dev/vfio")) == 1


def test_a_halted_vm_leaves_no_qemu_on_the_card(world: World) -> None:
    cluster.set_run_strategy(world, "gpu-fedora", "Always")
    passes(world, 30)
    cluster.set_run_strategy(world, "gpu-fedora", "Halted")
    passes(world, 30)
    assert not here(world).users()


@pytest.mark.parametrize("dead", [False, True])
def test_a_vm_that_is_begun_again_before_its_old_launcher_is_gone_gets_a_new_one(world: World, dead: bool) -> None:
    cluster.set_run_strategy(world, "gpu-fedora", "Always")
    passes(world, 30)
    if dead:
        dies(world)
    cluster.set_run_strategy(world, "gpu-fedora", "Halted")
    passes(world, 1)
    cluster.set_run_strategy(world, "gpu-fedora", "Always")
    passes(world, 1)
    if dead:
        revives(world)
    passes(world, 120)
    launchers = [pod for pod in world.store.all("pods") if "virt-launcher" in pod["metadata"]["name"]]
    assert len(launchers) == 1


# --- reboot (FACTS 0.3, 6) -------------------------------------------------------------------------------------------


NATIVE = "[Swap]\nWhat=/swapfile\n[Install]\nWantedBy=swap.target\n"


@pytest.mark.parametrize(
    ("fstab", "unit", "before", "returns"),
    [
        ("/swapfile none swap sw 0 0\n", "", [], True),
        ("#/swapfile none swap sw 0 0\n", "", [], False),
        ("/swapfile none swap noauto 0 0\n", "", [], False),
        ("/swapfile none swap sw 0 0\n", "", ["systemctl mask swapfile.swap"], False),
        ("", NATIVE, ["systemctl enable swapfile.swap"], True),
        ("", NATIVE, ["systemctl enable swapfile.swap", "systemctl disable swapfile.swap"], False),
        ("", NATIVE, ["systemctl daemon-reload"], False),
        ("", "", [], False),
    ],
)
def test_what_brings_swap_back_at_boot(world: World, fstab: str, unit: str, before: list[str], returns: bool) -> None:
    run(world, "swapon /swapfile")
    here(world).disk[FSTAB] += fstab
    if unit:
        here(world).disk[f"{UNITS}/swapfile.swap"] = unit
    for line in before:
        run(world, line)
    run(world, "reboot")
    passes(world, 60)
    assert [swap.path for swap in here(world).swaps] == (["/swapfile"] if returns else [])
    assert here(world).alive != returns


def test_a_reboot_begins_containers_anew_with_init(world: World) -> None:
    before, boot = {one.id for one in here(world).containers}, here(world).boot_id
    run(world, "reboot")
    assert not here(world).containers
    passes(world, 60)
    assert verbs(world) == ["bind", "bind"] and runs(world, VFIO)
    assert not before & {one.id for one in here(world).containers}
    assert world.node(NODE)["status"]["nodeInfo"]["bootID"] == here(world).boot_id != boot


def test_a_reboot_with_the_card_on_nvidia_stops_at_the_guard(world: World) -> None:
    job_begins(world)
    run(world, "reboot")
    passes(world, 120)
    assert verbs(world) == ["bind"] and not runs(world, VFIO)
    assert pre_installed(world) > 0
    assert job_state(here(world)) == "dead"


def test_a_reboot_ends_a_hold_and_respects_a_disabled_kubelet(world: World) -> None:
    run(world, "systemctl stop kubelet")
    run(world, "reboot")
    assert here(world).alive
    run(world, "systemctl disable kubelet")
    run(world, "reboot")
    passes(world, 60)
    assert not here(world).alive


# --- whatever is done ------------------------------------------------------------------------------------------------

HANDS = {
    "swapon": "swapon /swapfile", "swapoff": "swapoff -a", "restart": "systemctl restart kubelet",
    "stop": "systemctl stop kubelet", "start": "systemctl start kubelet", "reboot": "reboot",
}  # fmt: skip
Action = str | int
actions = st.lists(
    st.sampled_from([*HANDS, "container", "vm-passthrough", "crictl"]) | st.sampled_from([1, 3, 8, 20, 55]),
    min_size=1,
    max_size=7,
)
versions = st.sampled_from([NEW, OLD])
bounded = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)


def act(world: World, action: Action) -> None:
    """One action of a person who may do what is wrong or impossible."""
    if isinstance(action, int):
        passes(world, action)
    elif action in HANDS:
        run_tool(world, NODE, HANDS[action].split())
    elif action == "crictl":
        stop_vfio_manager(world)
    else:
        world.set_labels(NODE, {WORKLOAD: action})


def contents(world: World) -> dict[str, list[dict[str, Any]]]:
    """All objects, without their resource versions and what is made from those."""
    found = {}
    for plural in ("nodes", "pods", "daemonsets", "clusterpolicies", "events", "virtualmachines"):
        found[plural] = list(world.store.all(plural))
        for item in found[plural]:
            del item["metadata"]["resourceVersion"]
    return found


@bounded
@given(versions, actions)
def test_in_one_go_or_in_small_steps_all_comes_to_the_same(version: str, done: list[Action]) -> None:
    """And it always comes to rest: ``settle`` raises RuntimeError otherwise."""
    worlds = (world_of(version), world_of(version))
    for action in [*done, 60]:
        act(worlds[0], action)
        for step in [1] * action if isinstance(action, int) else [action]:
            act(worlds[1], step)
    assert contents(worlds[0]) == contents(worlds[1])
    assert here(worlds[0]) == here(worlds[1])


@bounded
@given(versions, actions)
def test_allocatable_of_a_dead_node_never_changes(version: str, done: list[Action]) -> None:
    world = world_of(version)
    for action in [*done, 60]:
        for step in [1] * action if isinstance(action, int) else [action]:
            dead, before = not here(world).alive, offered(world)
            act(world, step)
            if dead and not here(world).alive:
                assert offered(world) == before


@bounded
@given(versions, actions)
def test_a_job_never_dies_without_a_call_of_vfio_manager(version: str, done: list[Action]) -> None:
    world = world_of(version)
    job_begins(world)
    for action in [*done, 60]:
        calls, state = len(here(world).calls), job_state(here(world))
        act(world, action)
        if state == "alive" and action != "reboot":
            assert job_state(here(world)) == "alive" or len(here(world).calls) > calls


@bounded
@given(versions, actions)
def test_the_right_order_keeps_the_job_from_any_state_that_is_dead_by_swap(version: str, done: list[Action]) -> None:
    world = world_of(version)
    for action in done:
        act(world, action)
    if not here(world).swaps:
        act(world, "swapon")
    act(world, "restart")
    assert here(world).kubelet.sub == "auto-restart"
    job_begins(world)
    world.set_labels(NODE, {WORKLOAD: "container"})
    passes(world, 1)
    assert f"{DEPLOY}vfio-manager" not in world.labels(NODE)
    calls = list(here(world).calls)
    stop_vfio_manager(world)
    for line in ("systemctl stop kubelet", "swapoff -a", "systemctl start kubelet"):
        run(world, line)
        passes(world, 2)
    passes(world, 90)
    assert job_state(here(world)) == "alive" and here(world).calls == calls
    assert ready(world) == "True" and not taints(world) and not marked(world)
