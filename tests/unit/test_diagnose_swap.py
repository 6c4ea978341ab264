"""Swap as the cause: only where the last start that spoke was refused for it, it is on now, and it is not allowed."""

from __future__ import annotations

import pytest
import yaml
from snapshots_for_tests import (
    CASES,
    CRASH_LOOP,
    HEADER,
    REFUSAL,
    RUNNING,
    STOPPED,
    SWAP_ON,
    diagnosis,
    failed,
    journal,
    link,
    listed,
    node,
    refused_once,
    rescheduled,
    said,
    snapshot,
    started,
    stopped,
)

from gpufix.model import Diagnosis, Status

SPOKEN = yaml.safe_load((CASES / "words.yml").read_text(encoding="utf-8"))
NODES = listed(node())
READY = listed(node(ready="True", heartbeat="2026-03-02T09:59:55Z"))
HELD = journal(started("09:59:49"), said("09:59:50", REFUSAL), failed("09:59:50"), stopped("09:59:55"))
CONFIG = "# file: /var/lib/kubelet/config.yaml\nfailSwapOn: false\n"
FLAGS = "# from /proc/1/cmdline\n--config=/x\n"


def found(**files: str) -> Diagnosis:
    return diagnosis(snapshot(**{"cluster_nodes": NODES, **files}))


def root(diagnosed: Diagnosis) -> tuple[str, str]:
    return diagnosed.root_cause.id, diagnosed.root_cause.status.value


def dead(swaps: str = SWAP_ON, unit: str = CRASH_LOOP, log: str | None = None, **more: str) -> Diagnosis:
    return found(host_proc_swaps=swaps, host_kubelet_show=unit, host_kubelet_journal=log or refused_once(), **more)


def test_refused_on_and_not_allowed() -> None:
    diagnosed = dead()
    assert root(diagnosed) == ("swap-on", "confirmed")
    assert [entry.status.value for entry in diagnosed.chain[:3]] == ["confirmed"] * 3
    assert link(diagnosed, "kubelet-down").title == "the kubelet refuses to start"
    excerpts = [line.excerpt for line in diagnosed.root_cause.evidence]
    assert any(REFUSAL in excerpt for excerpt in excerpts)
    assert any(excerpt.startswith("/swapfile") for excerpt in excerpts)
    assert {entry.id for entry in diagnosed.alternatives} >= {"kubelet-stopped", "host-unreachable"}


@pytest.mark.parametrize(
    "line",
    [
        "/dev/zram0                              partition\t8388604\t\t0\t\t100",
        "/dev/dm-1                               partition\t8388604\t\t512\t\t-2",
        "/dev/sda2 partition 10 0 -2\n/swapfile file 20 0 -3\n/dev/mapper/vg-swap partition 5 5 -4",
    ],
)
def test_any_device_counts_whatever_is_used(line: str) -> None:
    assert root(dead(swaps=f"{HEADER}{line}\n")) == ("swap-on", "confirmed")


@pytest.mark.parametrize("words", SPOKEN["swap_refusals"])
def test_the_refusal_in_every_versions_words(words: str) -> None:
    log = journal(started("09:59:49"), said("09:59:50", words), failed("09:59:50"), rescheduled("09:59:59"))
    assert root(dead(log=log)) == ("swap-on", "confirmed")


def test_swap_is_on_alone_proves_nothing() -> None:
    seen = said("09:59:50", 'I0302 09:59:50.1 42 swap_util.go:113] "Swap is on" /proc/swaps contents=<')
    log = journal(started("09:59:49"), seen, failed("09:59:50"), rescheduled("09:59:59"))
    assert root(dead(log=log)) == ("swap-on", "suspected")
    assert link(dead(log=log), "swap-on").status is Status.UNKNOWN


def test_stopped_by_hand_with_swap_still_on() -> None:
    diagnosed = dead(unit=STOPPED, log=HELD)
    assert root(diagnosed) == ("swap-on", "confirmed")
    assert "stopped now" in diagnosed.root_cause.summary
    assert link(diagnosed, "kubelet-down").status is Status.CONFIRMED


def test_stopped_with_swap_off_since_only_needs_starting() -> None:
    diagnosed = dead(swaps=HEADER, unit=STOPPED, log=HELD)
    assert root(diagnosed) == ("kubelet-stopped", "confirmed")
    assert "swap is off since, and it only needs starting" in diagnosed.root_cause.summary
    swap = next(entry for entry in diagnosed.alternatives if entry.id == "swap-on")
    assert (swap.status, swap.by) == (Status.REFUTED, "swap is off")


def test_stopped_by_hand_in_the_middle_of_a_start() -> None:
    stop = said("09:59:59", "Stopping kubelet.service - kubelet...", "systemd[1]")
    cut = journal(started("09:59:59"), said("09:59:59", "I0302 x", "kubelet[4243]"), stop, stopped("09:59:59"))
    assert root(dead(unit=STOPPED, log=refused_once() + "\n" + cut)) == ("swap-on", "confirmed")
    assert root(dead(swaps=HEADER, unit=STOPPED, log=refused_once() + "\n" + cut)) == ("kubelet-stopped", "confirmed")


def test_swap_off_in_a_crash_loop_is_still_to_be_seen() -> None:
    diagnosed = dead(swaps=HEADER)
    assert root(diagnosed) == ("unknown", "unknown")
    assert "swap is off now" in diagnosed.root_cause.summary


def test_whether_swap_is_on_is_not_known() -> None:
    diagnosed = found(host_kubelet_show=CRASH_LOOP, host_kubelet_journal=refused_once())
    assert root(diagnosed) == ("swap-on", "suspected")
    assert link(diagnosed, "swap-on").status is Status.UNKNOWN


def test_a_configuration_that_now_allows_it_contradicts() -> None:
    diagnosed = dead(host_kubelet_config=CONFIG, host_kubelet_flags=FLAGS)
    assert root(diagnosed) == ("swap-on", "suspected")
    assert "now allows it" in diagnosed.root_cause.summary


def test_seen_for_a_moment_as_active_in_a_crash_loop() -> None:
    active = RUNNING.replace("NRestarts=0", "NRestarts=8")
    log = journal(
        refused_once(), started("09:59:59"), said("09:59:59", "I0302 09:59:59.1 43 x.go:1] hi", "kubelet[4243]")
    )
    diagnosed = dead(unit=active, log=log)
    assert root(diagnosed) == ("swap-on", "confirmed")
    assert link(diagnosed, "kubelet-down").status is Status.CONFIRMED
    assert root(dead(swaps=HEADER, unit=active, log=log)) == ("unknown", "unknown")


def test_active_and_settled_is_no_crash_loop() -> None:
    log = journal(refused_once("09:50:00", "09:50:01"), started("09:50:10"), said("09:58:00", "I0302 up", "kubelet[9]"))
    diagnosed = found(cluster_nodes=READY, host_kubelet_show=RUNNING, host_proc_swaps=HEADER, host_kubelet_journal=log)
    assert diagnosed.root_cause.id == "healthy"


def test_the_unit_was_read_as_active_and_the_journal_a_moment_later() -> None:
    assert root(dead(unit=RUNNING)) == ("swap-on", "confirmed")


def test_an_old_refusal_before_a_good_start_explains_nothing() -> None:
    stop = said("09:40:00", "Stopping kubelet.service - kubelet...", "systemd[1]")
    log = journal(
        refused_once("09:00:00", "09:00:01"),
        started("09:10:00"),
        said("09:10:01", "I0302 x", "kubelet[9]"),
        stop,
        stopped("09:40:00"),
    )
    diagnosed = dead(unit=STOPPED, log=log)
    assert root(diagnosed) == ("kubelet-stopped", "confirmed")
    assert any("next start would be refused" in warning for warning in diagnosed.warnings)


def test_silent_starts_after_the_refusal() -> None:
    silent = journal(started("09:59:50"), failed("09:59:51"), rescheduled("09:59:59"))
    diagnosed = dead(log=refused_once("09:59:30", "09:59:31") + "\n" + silent)
    assert root(diagnosed) == ("swap-on", "confirmed")
    assert "1 starts failed without a word" in diagnosed.root_cause.summary
    other = journal(started("09:59:50"), failed("09:59:51", "2/INVALIDARGUMENT"), rescheduled("09:59:59"))
    assert root(dead(log=refused_once("09:59:30", "09:59:31") + "\n" + other)) == ("swap-on", "suspected")


def test_another_last_word_with_swap_on_too() -> None:
    line = "F0302 09:59:50.1 42 server.go:190] failed to load Kubelet config file /c: no such file or directory"
    log = journal(
        refused_once("09:00:00", "09:00:01"),
        started("09:59:49"),
        said("09:59:50", line, "kubelet[7]"),
        failed("09:59:50"),
    )
    diagnosed = dead(log=log)
    assert root(diagnosed) == ("kubelet-config-missing", "confirmed")
    swap = next(entry for entry in diagnosed.alternatives if entry.id == "swap-on")
    assert swap.status is Status.REFUTED
    assert any("swap is on too" in warning for warning in diagnosed.warnings)


def test_the_unit_was_not_read() -> None:
    assert root(found(host_proc_swaps=SWAP_ON, host_kubelet_journal=refused_once())) == ("swap-on", "confirmed")


# --- stopped, and healthy --------------------------------------------------------------------------------------------

STOP = said("09:40:00", "Stopping kubelet.service - kubelet...", "systemd[1]")
CLEAN = journal(started("09:00:00"), said("09:00:01", "I0302 x"), STOP, stopped("09:40:00"))


def test_stopped_without_a_word() -> None:
    diagnosed = dead(swaps=HEADER, unit=STOPPED, log=CLEAN)
    assert root(diagnosed) == ("kubelet-stopped", "confirmed")
    assert diagnosed.warnings == ()


def test_stopped_and_disabled_with_swap_on_warns_of_both() -> None:
    diagnosed = dead(unit=STOPPED.replace("enabled", "disabled"), log=CLEAN)
    assert root(diagnosed) == ("kubelet-stopped", "confirmed")
    assert "kubelet.service is disabled: it will not start at the next boot" in diagnosed.warnings
    assert any("swap is on (/swapfile)" in warning for warning in diagnosed.warnings)


@pytest.mark.parametrize("unit", [STOPPED.replace("success", "oom-kill"), STOPPED.replace("success", "exit-code")])
def test_stopped_after_a_failure_without_words_is_only_suspected(unit: str) -> None:
    assert root(dead(swaps=HEADER, unit=unit, log=CLEAN)) == ("kubelet-stopped", "suspected")


def test_a_unit_that_does_not_exist_is_not_stopped() -> None:
    diagnosed = dead(swaps=HEADER, unit=STOPPED + "LoadState=not-found\n", log=CLEAN)
    assert root(diagnosed) == ("unknown", "unknown")
    assert any("is it the kubelet's?" in warning for warning in diagnosed.warnings)


def well(**more: str) -> Diagnosis:
    gpu = {"nvidia.com/gpu": "1"}
    labels = {"nvidia.com/gpu.workload.config": "container", "nvidia.com/gpu.present": "true"}
    files = {
        "cluster_nodes": listed(node(ready="True", allocatable=gpu, labels=labels, heartbeat="2026-03-02T09:59:55Z")),
        "cluster_pods": listed(),
        "cluster_virtualmachines": listed(),
        "cluster_virtualmachineinstances": listed(),
        "host_proc_swaps": HEADER,
        "host_kubelet_show": RUNNING,
        "host_kubelet_journal": journal(started("09:00:00"), said("09:58:00", "I0302 up")),
    }
    return found(**{**files, **more})


def test_healthy_is_confirmed_when_every_link_is_refuted() -> None:
    diagnosed = well()
    assert root(diagnosed) == ("healthy", "confirmed")
    assert diagnosed.chain[0].id == "swap-on"
    assert {entry.status for entry in diagnosed.chain} == {Status.REFUTED}
    assert all(entry.evidence for entry in diagnosed.chain)
    assert (diagnosed.warnings, diagnosed.affected, diagnosed.down_since) == ((), (), None)


def test_healthy_with_swap_on_is_a_latent_death() -> None:
    diagnosed = well(host_proc_swaps=SWAP_ON, host_kubelet_flags=FLAGS, host_kubelet_config="a: 1\n")
    assert root(diagnosed) == ("healthy", "confirmed")
    assert diagnosed.warnings == (
        "latent: swap is on (/swapfile) and not allowed; the kubelet's next restart will be refused",
    )
    tolerated = well(host_proc_swaps=SWAP_ON, host_kubelet_flags=FLAGS, host_kubelet_config=CONFIG)
    assert tolerated.warnings == ()


@pytest.mark.parametrize("path", ["cluster_pods", "cluster_virtualmachines", "host_kubelet_show", "cluster_nodes"])
def test_healthy_is_not_confirmed_with_anything_unread(path: str) -> None:
    assert well(**{path: "rubbish"}).root_cause.status is not Status.CONFIRMED


def test_ready_with_the_taint_still_standing_is_coming_back() -> None:
    taints = [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]
    diagnosed = well(cluster_nodes=listed(node(ready="True", taints=taints, allocatable={"nvidia.com/gpu": "1"})))
    assert root(diagnosed) == ("healthy", "suspected")
    assert "not settled" in diagnosed.root_cause.summary
    assert link(diagnosed, "node-not-ready").status is Status.UNKNOWN


def test_ready_and_stale_is_not_confirmed() -> None:
    old = listed(node(ready="True", allocatable={"nvidia.com/gpu": "1"}, heartbeat="2026-03-02T08:00:00Z"))
    assert root(well(cluster_nodes=old)) == ("healthy", "suspected")


def test_another_machines_boot_id() -> None:
    boot = "aaaaaaaa-038e-4bf0-9b6e-14f245b2a0a5"
    nodes = listed(
        node(ready="True", allocatable={"nvidia.com/gpu": "1"}, boot_id="bbbbbbbb-038e-4bf0-9b6e-14f245b2a0a5")
    )
    diagnosed = well(cluster_nodes=nodes, host_boot_id=boot)
    assert root(diagnosed) == ("healthy", "suspected")
    assert any("same machine" in warning for warning in diagnosed.warnings)


def test_a_cordoned_node() -> None:
    diagnosed = well(cluster_nodes=listed(node(ready="True", unschedulable=True, allocatable={"nvidia.com/gpu": "1"})))
    assert root(diagnosed) == ("node-cordoned", "confirmed")


def test_down_since() -> None:
    diagnosed = dead()
    assert diagnosed.down_since is not None
    assert diagnosed.down_since.isoformat() == "2026-03-02T09:00:00+00:00"
