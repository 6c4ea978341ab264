"""The stand-in tools of a practice host: what they print is read by gpufix's own readers, and what they do is done."""

from __future__ import annotations

import pickle
from functools import cache
from pathlib import Path

import ansible.module_utils
import pytest

from gpufix.core.parse.gpu import parse_lspci
from gpufix.core.parse.journal import parse_journal
from gpufix.core.parse.swap import parse_fstab, parse_swap_units, parse_swaps
from gpufix.core.parse.unit import parse_unit
from gpufix.errors import GpufixError
from gpufix.lab import cluster
from gpufix.lab.kubelet import proc_swaps
from gpufix.lab.machine import FLAGS, FSTAB, UNITS, Machine
from gpufix.lab.operands import WORKLOAD
from gpufix.lab.scenario import Scenario, act_out, job_state, load_scenario
from gpufix.lab.tools import ToolResult, run_tool
from gpufix.lab.world import World, condition, stamp
from gpufix.model import JournalFacts, Observation, Snapshot, SwapUnit, UnitFacts
from gpufix.resources import scenario_paths, scenario_schema

MODULE_UTILS = Path(__file__).parents[2] / "playbooks" / "module_utils"
if str(MODULE_UTILS) not in ansible.module_utils.__path__:  # where Ansible finds them when it runs a playbook
    ansible.module_utils.__path__.append(str(MODULE_UTILS))

from ansible.module_utils.gpufix_containers import Container, crictl, parse_crictl  # noqa: E402 - only now it is found

NODE = "omen2"
VFIO = "nvidia-vfio-manager"
SOCKET = "/run/containerd/containerd.sock"
NATIVE = "[Unit]\nDescription=Swap\n\n[Swap]\nWhat=/data/swap\n\n[Install]\nWantedBy=swap.target\n"


@cache
def _frozen() -> bytes:
    built = cluster.build(1e9)
    built.advance(built.now + 60)
    built.machines[NODE].swap_files.update({"/swapfile": (262140, 28), "/data/swap": (4194300, 3 * 1024 * 1024)})
    return pickle.dumps(built)


@pytest.fixture
def world() -> World:
    thawed: World = pickle.loads(_frozen())
    return thawed


def here(world: World) -> Machine:
    return world.machines[NODE]


def run(world: World, line: str, code: int = 0) -> ToolResult:
    result = run_tool(world, NODE, line.split())
    assert result.code == code, result
    return result


def passes(world: World, seconds: float) -> None:
    world.advance(world.now + seconds)


def unit(world: World, line: str = "systemctl show kubelet.service") -> UnitFacts:
    found = parse_unit(Snapshot(NODE, {}), "host/kubelet.show", run(world, line).out).value
    assert found is not None
    return found


def swap_units(world: World) -> dict[str, SwapUnit]:
    fstab = parse_fstab("host/fstab", here(world).disk[FSTAB])
    text = run(world, "systemctl show *.swap --all").out
    found = parse_swap_units("host/swap_units", text, fstab).value
    assert found is not None
    return {one.name: one for one in found}


def journal(world: World) -> JournalFacts:
    found = parse_journal("host/kubelet.journal", run(world, "journalctl -u kubelet.service -o short-iso").out).value
    assert found is not None
    return found


def containers(world: World) -> list[Container]:
    ps, listed = (
        run_tool(world, NODE, crictl(SOCKET, *words)) for words in (("ps", "-a", "-o", "json"), ("pods", "-o", "json"))
    )
    assert ps.code == listed.code == 0
    found: list[Container] = parse_crictl(ps.out, listed.out, SOCKET)
    return found


# --- systemctl show --------------------------------------------------------------------------------------------------


def test_show_of_a_kubelet_that_runs(world: World) -> None:
    facts = unit(world)
    assert (facts.name, facts.load_state) == ("kubelet.service", "loaded")
    assert facts.running and facts.result == "success" and facts.restarts == 0
    assert (facts.unit_file_state, facts.restart_policy) == ("enabled", "always")
    assert facts.main_pid == here(world).kubelet.pid > 0
    assert facts.active_since is not None and facts.active_since.timestamp() == 1e9


def test_show_of_a_crash_loop_and_of_a_hold(world: World) -> None:
    run(world, "swapon /swapfile")
    run(world, "systemctl restart kubelet")
    passes(world, 35)
    facts = unit(world)
    assert (facts.active_state, facts.sub_state, facts.result) == ("activating", "auto-restart", "exit-code")
    assert facts.restarts == 3 and facts.main_pid == 0 and not facts.running
    run(world, "systemctl disable kubelet")
    run(world, "systemctl stop kubelet")
    facts = unit(world)
    assert (facts.active_state, facts.sub_state, facts.result) == ("inactive", "dead", "success")
    assert facts.unit_file_state == "disabled" and facts.restarts == 0


def test_show_of_a_unit_that_is_not_there(world: World) -> None:
    assert unit(world, "systemctl show k3s.service").load_state == "not-found"


def test_show_gives_the_properties_that_are_asked_for(world: World) -> None:
    asked = run(world, "systemctl show -p ActiveState,SubState -p Result kubelet").out.splitlines()
    assert sorted(asked) == ["ActiveState=active", "Result=success", "SubState=running"]
    assert run(world, "/usr/bin/systemctl show kubelet --property=ActiveState --value").out == "active\n"


def test_is_active_and_is_enabled_answer_with_their_status(world: World) -> None:
    assert run(world, "systemctl is-active kubelet").out == "active\n"
    assert run(world, "systemctl is-enabled kubelet").out == "enabled\n"
    run(world, "systemctl stop kubelet")
    run(world, "systemctl disable kubelet")
    assert run(world, "systemctl is-active kubelet", 3).out == "inactive\n"
    assert run(world, "systemctl is-enabled kubelet", 1).out == "disabled\n"


# --- .swap units -----------------------------------------------------------------------------------------------------


def test_a_unit_that_fstab_makes(world: World) -> None:
    here(world).disk[FSTAB] += "/swapfile none swap sw 0 0\n"
    assert not swap_units(world)
    run(world, "systemctl daemon-reload")
    one = swap_units(world)["swapfile.swap"]
    assert (one.origin, one.what, one.active_state, one.unit_file_state) == (
        "fstab",
        "/swapfile",
        "inactive",
        "generated",
    )
    run(world, "swapon -a")
    assert swap_units(world)["swapfile.swap"].active_state == "active"


def test_a_unit_of_its_own_returns_at_boot_while_it_is_enabled(world: World) -> None:
    here(world).disk[f"{UNITS}/data-swap.swap"] = NATIVE
    run(world, "systemctl enable data-swap.swap")
    run(world, "systemctl start data-swap.swap")
    one = swap_units(world)["data-swap.swap"]
    assert (one.origin, one.what, one.unit_file_state, one.active_state) == (
        "native",
        "/data/swap",
        "enabled",
        "active",
    )
    assert one.returns_at_boot
    run(world, "systemctl disable --now data-swap.swap")
    one = swap_units(world)["data-swap.swap"]
    assert (one.origin, one.unit_file_state, one.active_state) == ("native", "disabled", "inactive")
    assert not one.returns_at_boot
    run(world, "systemctl enable data-swap.swap")
    assert swap_units(world)["data-swap.swap"].returns_at_boot


def test_an_area_that_is_just_on_has_a_unit_from_proc(world: World) -> None:
    run(world, "swapon /data/swap")
    one = swap_units(world)["data-swap.swap"]
    assert (one.origin, one.what, one.active_state) == ("proc", "/data/swap", "active")
    run(world, "systemctl stop data-swap.swap")
    assert not swap_units(world) and not here(world).swaps


def test_mask_and_unmask_of_a_generated_unit(world: World) -> None:
    here(world).disk[FSTAB] += "/swapfile none swap sw 0 0\n"
    run(world, "systemctl daemon-reload")
    run(world, "systemctl mask swapfile.swap")
    run(world, "systemctl mask swapfile.swap")  # again, no error
    one = swap_units(world)["swapfile.swap"]
    assert (one.origin, one.unit_file_state, one.returns_at_boot) == ("masked", "masked", False)
    assert here(world).comes_back() == []
    run(world, "systemctl unmask swapfile.swap")
    assert swap_units(world)["swapfile.swap"].origin == "fstab"
    assert here(world).comes_back() == ["/swapfile"]


@pytest.mark.parametrize("name", ["kubelet.service", "data-swap.swap"])
def test_mask_fails_where_the_units_own_file_lies(world: World, name: str) -> None:
    here(world).disk[f"{UNITS}/data-swap.swap"] = NATIVE
    run(world, "systemctl daemon-reload")
    before = dict(here(world).disk)
    assert run(world, f"systemctl mask {name}", 1).err == (
        f"Failed to mask unit: File '{UNITS}/{name}' already exists.\n"
    )
    assert here(world).disk == before and not here(world).masked(name)


# --- swap ------------------------------------------------------------------------------------------------------------


def test_proc_swaps(world: World) -> None:
    run(world, "swapon /swapfile /data/swap")
    found = parse_swaps("host/proc_swaps", proc_swaps(here(world)), Observation.missing("not read")).value
    assert found is not None
    told = [(one.path, one.kind, one.size_kib, one.used_kib, one.priority) for one in found]
    assert told == [("/swapfile", "file", 262140, 28, -2), ("/data/swap", "file", 4194300, 3145728, -3)]


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("swapoff /swapfile", 4, "swapoff: /swapfile: swapoff failed: Invalid argument\n"),
        ("swapoff /no/such", 4, "swapoff: /no/such: swapoff failed: Invalid argument\n"),
        ("swapon /no/such", 255, "swapon: cannot open /no/such: No such file or directory\n"),
        ("swapon /swapfile /swapfile", 255, "swapon: /swapfile: swapon failed: Device or resource busy\n"),
    ],
)
def test_swap_that_is_not_there_or_on_already(world: World, line: str, code: int, said: str) -> None:
    assert run(world, line, code).err == said


def test_swapoff_fails_where_memory_has_no_room_and_turns_the_others_off(world: World) -> None:
    run(world, "swapon /swapfile /data/swap")
    here(world).available = 1024 * 1024
    result = run_tool(world, NODE, ["swapoff", "-a"])
    assert result.code and result.err == "swapoff: /data/swap: swapoff failed: Cannot allocate memory\n"
    assert [swap.path for swap in here(world).swaps] == ["/data/swap"]
    here(world).available = 4 * 1024 * 1024
    run(world, "swapoff /data/swap")
    assert not here(world).swaps and here(world).available == 1024 * 1024


def test_swapon_with_a_priority(world: World) -> None:
    run(world, "swapon -p 5 /swapfile")
    run(world, "swapon /data/swap")
    assert [(swap.path, swap.priority) for swap in here(world).swaps] == [("/swapfile", 5), ("/data/swap", -2)]
    run(world, "swapoff -a")
    run(world, "swapon --priority=0 /swapfile")
    assert [swap.priority for swap in here(world).swaps] == [0]


def test_a_unit_that_was_set_aside_is_put_back_over_its_mask(world: World) -> None:
    own, aside = f"{UNITS}/data-swap.swap", f"{UNITS}/data-swap.swap.gpufix-aside"
    here(world).disk[own] = NATIVE
    run(world, "systemctl daemon-reload")
    run(world, "systemctl enable data-swap.swap")
    here(world).disk[aside] = here(world).disk.pop(own)
    run(world, "systemctl mask data-swap.swap")
    run(world, "systemctl daemon-reload")
    assert "data-swap.swap" not in swap_units(world) and here(world).comes_back() == []
    here(world).disk[own] = here(world).disk.pop(aside)
    run(world, "systemctl unmask data-swap.swap")  # nothing to do, and no error
    run(world, "systemctl daemon-reload")
    assert swap_units(world)["data-swap.swap"].returns_at_boot
    assert here(world).comes_back() == ["/data/swap"]


def test_swapon_shows_what_is_on(world: World) -> None:
    assert run(world, "swapon").out == ""
    run(world, "swapon /swapfile")
    assert run(world, "swapon --show").out.splitlines()[1].split() == ["/swapfile", "file", "255M", "0M", "-2"]


# --- journalctl ------------------------------------------------------------------------------------------------------


def test_the_journal_of_a_kubelet_that_runs(world: World) -> None:
    (start,) = journal(world).starts
    assert start.fatal is None and not start.ended and not journal(world).held
    assert start.at is not None and start.at.timestamp() == 1e9


@pytest.mark.parametrize("flags", ["", "--container-runtime=remote"])
def test_the_journal_of_a_crash_loop(world: World, flags: str) -> None:
    here(world).disk[FLAGS] = f'KUBELET_KUBEADM_ARGS="{flags}"\n'
    run(world, "swapon /swapfile")
    run(world, "systemctl restart kubelet")
    passes(world, 35)
    first, *failed = journal(world).starts
    assert (first.fatal, first.how) == (None, "stop")
    assert len(failed) == 4
    for start in failed:
        assert start.fatal is not None and start.ended
        assert (start.how, start.exit_status) == ("failure", "1/FAILURE")
        assert ("unknown flag: --container-runtime" if flags else "running with swap on") in start.fatal.excerpt


def test_the_journal_of_a_hold(world: World) -> None:
    run(world, "swapon /swapfile")
    run(world, "systemctl restart kubelet")
    passes(world, 15)
    assert not journal(world).held
    run(world, "systemctl stop kubelet")
    assert journal(world).held
    run(world, "swapoff -a")
    run(world, "systemctl start kubelet")
    found = journal(world)
    assert not found.held and found.starts[-1].fatal is None and not found.starts[-1].ended


def test_a_journal_without_lines(world: World) -> None:
    assert run(world, "journalctl -u no-such -n 5 --no-pager").out == "-- No entries --\n"


# --- crictl, lspci ---------------------------------------------------------------------------------------------------


def test_containers_and_sandboxes(world: World) -> None:
    found = containers(world)
    names = {pod["metadata"]["name"] for pod in world.pods_on(NODE)}
    assert {one.pod for one in found} == names and len(found) == 2 * len(names)
    assert [one.container for one in found if VFIO in one.pod] == ["-", VFIO]
    assert all(one.runs for one in found)


def test_a_container_that_is_stopped_has_exited_and_its_sandbox_runs_on(world: World) -> None:
    run(world, "systemctl stop kubelet")
    (main,) = (one for one in containers(world) if one.container == VFIO)
    assert run_tool(world, NODE, crictl(SOCKET, "stop", "--timeout", "10", main.id)).out == f"{main.id}\n"
    assert {one.container: one.state for one in containers(world) if VFIO in one.pod} == {
        "-": "RUNNING", VFIO: "EXITED",
    }  # fmt: skip
    assert run(world, "crictl ps -q").out.count("\n") == run(world, "crictl ps -a -q").out.count("\n") - 1
    assert "NotFound" in run(world, "crictl stop 0123456789", 1).err


def test_lspci_shows_functions_and_drivers(world: World) -> None:
    def shown() -> dict[str, tuple[str, str, str]]:
        found = parse_lspci("host/lspci", run(world, "lspci -Dnnk").out).value
        assert found is not None
        return {one.address: (one.device, one.pci_class, one.driver) for one in found if one.vendor == "10de"}

    assert shown() == {"0000:01:00.0": ("2b85", "0300", "vfio-pci"), "0000:01:00.1": ("22e8", "0403", "vfio-pci")}
    for card in here(world).cards:
        card.driver = ""
    assert {driver for _device, _class, driver in shown().values()} == {""}


# --- what is not modelled --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "fdisk -l", "/usr/bin/vim fstab", "systemctl reload kubelet", "systemctl stop", "swapoff --fixpgsz",
        "systemctl --user show kubelet", "journalctl -f -u kubelet", "journalctl SYSLOG_IDENTIFIER=kubelet",
        "swapon -p -2 /swapfile", "swapon -p", "systemctl enable --runtime data-swap.swap",
        "crictl rm abc", "crictl ps --latest", "crictl", "nvidia-smi -q",
    ],
)  # fmt: skip
def test_what_is_not_modelled_says_so_and_is_noted(world: World, line: str) -> None:
    before = world.store.version
    result = run_tool(world, NODE, line.split())
    assert result.code == 64 and result.out == "" and "the practice lab does not model" in result.err
    assert world.unknown == [f"{NODE}: {line}"]
    assert world.store.version == before


# --- scenarios -------------------------------------------------------------------------------------------------------

NOW = 1.8e9


@cache
def scenarios() -> dict[str, Scenario]:
    found = [load_scenario(path.read_text(encoding="utf-8"), path.name, scenario_schema()) for path in scenario_paths()]
    return {one.id: one for one in found}


@cache
def _acted(id: str) -> bytes:
    return pickle.dumps(act_out(scenarios()[id], NOW, pace=10))


def acted(id: str) -> World:
    thawed: World = pickle.loads(_acted(id))
    return thawed


def statuses(world: World) -> dict[str, str]:
    return {vm["metadata"]["name"]: vm["status"]["printableStatus"] for vm in world.store.all("virtualmachines")}


@pytest.mark.parametrize("id", [path.stem for path in scenario_paths()])
def test_a_scenario_ends_as_its_text_says(id: str) -> None:
    told, world = scenarios()[id], acted(id)
    machine = world.machines[told.node]
    assert (world.now, world.pace, world.unknown) == (NOW, 10, [])
    assert machine.kubelet_version == told.kubelet
    assert job_state(machine) == told.expect.job
    found, cause = journal(world), told.expect.root_cause
    assert unit(world).running == (cause == "healthy")
    assert condition(world.node(told.node), "Ready")["status"] == ("True" if cause == "healthy" else "Unknown")
    if cause != "healthy":
        fatal = found.starts[-1].fatal
        assert fatal is not None
        assert ("running with swap on" in fatal.excerpt) == (cause == "swap-on")
        assert ("unknown flag: --container-runtime" in fatal.excerpt) == (cause == "kubelet-flag-removed")


def test_incident() -> None:
    world = acted("incident")
    assert statuses(world) == {"gpu-fedora": "ErrorUnschedulable", "rhel9-gpu-vm": "ErrorUnschedulable"}
    since = condition(world.node(NODE), "Ready")["lastTransitionTime"]
    assert stamp(NOW - 113 * 86400) < since < stamp(NOW - 112 * 86400 + 1)
    assert here(world).gpu_on("nvidia") and here(world).users("/dev/nvidia")
    assert [one.container for one in containers(world) if one.runs and one.container != "-" and VFIO in one.pod] == [
        VFIO
    ]
    run(world, "swapoff -a")  # the wrong order: it revives by itself; then the relabel
    passes(world, 5)
    assert job_state(here(world)) == "alive"
    world.set_labels(NODE, {WORKLOAD: "container"})
    passes(world, 5)
    assert job_state(here(world)) == "dead"


def test_wrong_order() -> None:
    world = acted("wrong-order")
    run(world, "swapoff -a")
    passes(world, 5)
    assert here(world).alive and job_state(here(world)) == "dead" and here(world).gpu_on("vfio-pci")


def test_healthy_and_job_killed() -> None:
    assert statuses(acted("healthy"))["gpu-fedora"] == "Running"
    assert here(acted("job-killed")).gpu_on("vfio-pci")


def test_label_already_set() -> None:
    world = acted("label-already-set")
    assert world.labels(NODE)[WORKLOAD] == "container" and VFIO not in {one.container for one in containers(world)}


def test_no_operator() -> None:
    world = acted("no-operator")
    world.set_labels(NODE, {WORKLOAD: "container"})
    passes(world, 60)
    assert world.labels(NODE)["nvidia.com/gpu.deploy.vfio-manager"] == "true"


def test_old_kubelet() -> None:
    world = acted("old-kubelet")
    world.set_labels(NODE, {WORKLOAD: "container"})
    passes(world, 1)
    run(world, "swapoff -a")
    passes(world, 5)
    assert job_state(here(world)) == "dead"  # the preStop has run, in the right order too


def test_swap_from_a_unit() -> None:
    world = acted("swap-from-a-unit")
    assert swap_units(world)["data-swap.swap"].returns_at_boot
    assert not parse_fstab("host/fstab", here(world).disk[FSTAB]).value
    run(world, "swapoff -a")
    run(world, "reboot")
    assert [swap.path for swap in here(world).swaps] == ["/data/swap"]


def test_too_little_memory() -> None:
    world = acted("too-little-memory")
    result = run_tool(world, NODE, ["swapoff", "-a"])
    assert result.code and "Cannot allocate memory" in result.err
    assert here(world).swaps and not here(world).alive


def test_a_history_that_cannot_be_acted_out_names_its_step() -> None:
    text = scenario_paths()[0].read_text(encoding="utf-8").split("history:")[0]
    text += (
        "history:\n  - wait: 1min\n  - run: swapoff /swapfile\nexpect: {root_cause: healthy, recover: 0, job: none}\n"
    )
    scenario = load_scenario(text, "mine.yml", scenario_schema())
    with pytest.raises(GpufixError, match=r"mine\.yml:9: history, step 2 \(run\): swapoff /swapfile"):
        act_out(scenario, NOW, pace=10)


@pytest.mark.parametrize("verb", ["mask", "unmask", "enable", "disable", "start", "show"])
def test_a_unit_s_name_never_leads_out_of_the_node_s_folder(verb: str) -> None:
    world = cluster.build(1e9)
    result = run_tool(world, "omen2", ["systemctl", verb, "../../../../../../tmp/evil.swap"])
    assert result.code == 64
    assert not any("evil" in path for path in world.machines["omen2"].disk)


def test_after_two_dashes_all_are_words(world: World) -> None:
    run(world, "swapon -- /swapfile")
    assert "/swapfile" in proc_swaps(here(world))
    run(world, "swapoff -- /swapfile")
    assert "/swapfile" not in proc_swaps(here(world))
    run(world, "swapoff -- -a", code=4)
    assert world.unknown == []
