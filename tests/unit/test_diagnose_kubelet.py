"""Every known way for a kubelet to die or to be useless, in many versions' words; and what only looks like one."""

from __future__ import annotations

import pytest
import yaml
from snapshots_for_tests import (
    CASES,
    CRASH_LOOP,
    HEADER,
    RUNNING,
    STOPPED,
    diagnosis,
    ended_by,
    failed,
    journal,
    listed,
    node,
    rescheduled,
    said,
    snapshot,
    started,
    stopped,
)

from gpufix.model import Diagnosis, Status

K = 'E0302 09:59:50.1 42 run.go:72] "command failed" err="{}"'
F = "F0302 09:59:50.1 42 server.go:274] {}"
WORDS = yaml.safe_load((CASES / "words.yml").read_text(encoding="utf-8"))


def by_id(entry: dict[str, str]) -> str:
    return entry["id"]


def dead(log: str, unit: str = CRASH_LOOP, **more: str) -> Diagnosis:
    files = {"cluster_nodes": listed(node()), "host_proc_swaps": HEADER, "host_kubelet_show": unit, **more}
    return diagnosis(snapshot(host_kubelet_journal=log, **files))


@pytest.mark.parametrize("entry", WORDS["last_words"], ids=by_id)
def test_last_words(entry: dict[str, str]) -> None:
    found = dead(ended_by(entry["line"]))
    assert (found.root_cause.id, found.root_cause.status) == (entry["id"], Status.CONFIRMED)
    assert found.root_cause.evidence[0].excerpt.endswith(entry["line"])
    assert found.chain[0].id == entry["id"]
    swap = next(entry for entry in found.alternatives if entry.id == "swap-on")
    assert swap.status is Status.REFUTED


@pytest.mark.parametrize("line", WORDS["unknown_last_words"])
def test_last_words_that_nobody_knows(line: str) -> None:
    found = dead(ended_by(line))
    assert (found.root_cause.id, found.root_cause.status) == ("unknown", Status.UNKNOWN)
    assert found.root_cause.evidence[0].excerpt.endswith(line)


def test_a_bootstrap_file_that_is_missing_needs_the_expired_certificate_beside_it() -> None:
    fatal = K.format(
        "failed to run Kubelet: unable to load bootstrap kubeconfig: stat /b.conf: no such file or directory"
    )
    assert dead(ended_by(fatal)).root_cause.status is Status.SUSPECTED
    expired = "E0302 09:59:40.1 42 bootstrap.go:266] part of the bootstrap client certificate is expired: 2026"
    log = journal(
        started("09:59:40"),
        said("09:59:41", expired),
        said("09:59:41", fatal),
        failed("09:59:41"),
        rescheduled("09:59:50"),
    )
    found = dead(log)
    assert (found.root_cause.id, found.root_cause.status) == ("client-cert-expired", Status.CONFIRMED)
    assert expired in found.root_cause.evidence[1].excerpt


def test_an_older_cri_is_only_suspected() -> None:
    found = dead(ended_by(F.format("failed to run Kubelet: unknown service runtime.v1alpha2.RuntimeService")))
    assert (found.root_cause.id, found.root_cause.status) == ("cri-v1-unsupported", Status.SUSPECTED)


def test_the_flag_is_named() -> None:
    assert (
        "(--network-plugin)"
        in dead(ended_by(K.format("failed to parse kubelet flag: unknown flag: --network-plugin"))).root_cause.summary
    )


def test_stopped_since_the_failure_is_only_suspected() -> None:
    line = K.format("failed to parse kubelet flag: unknown flag: --network-plugin")
    log = journal(started("09:59:40"), said("09:59:41", line), failed("09:59:41"), stopped("09:59:45"))
    found = dead(log, unit=STOPPED)
    assert (found.root_cause.id, found.root_cause.status) == ("kubelet-flag-removed", Status.SUSPECTED)


def test_given_up_by_systemd() -> None:
    unit = "ActiveState=failed\nSubState=failed\nResult=exit-code\nNRestarts=5\n"
    line = K.format("failed to parse kubelet flag: unknown flag: --network-plugin")
    assert dead(ended_by(line), unit=unit).root_cause.status is Status.CONFIRMED


def test_noise_beside_the_fatal_line_is_put_aside_by_name() -> None:
    noise = (
        "E0302 09:59:40.1 42 certificate_manager.go:314] Post: dial tcp 192.0.2.11:6443: connect: connection refused"
    )
    line = K.format("failed to parse kubelet flag: unknown flag: --x")
    log = journal(
        started("09:59:40"),
        said("09:59:41", noise),
        said("09:59:41", line),
        failed("09:59:41"),
        rescheduled("09:59:50"),
    )
    aside = {entry.id: entry for entry in dead(log).alternatives}
    assert aside["apiserver-unreachable"].status is Status.REFUTED
    assert line in aside["apiserver-unreachable"].evidence[0].excerpt


def test_a_crash_loop_without_words() -> None:
    log = journal(started("09:59:40"), failed("09:59:41", "9/KILL"), rescheduled("09:59:50"))
    assert dead(log).root_cause.id == "unknown"


# --- a kubelet that runs ---------------------------------------------------------------------------------------------


def alive(*lines: str, ready: str = "Unknown", message: str = "", **conditions: str) -> Diagnosis:
    log = journal(
        *(said(f"09:58:{index:02}", f"E0302 09:58:{index:02}.1 42 {line}") for index, line in enumerate(lines))
    )
    nodes = listed(node(ready=ready, message=message, conditions=conditions))
    return diagnosis(
        snapshot(cluster_nodes=nodes, host_proc_swaps=HEADER, host_kubelet_show=RUNNING, host_kubelet_journal=log)
    )


UPDATE = 'kubelet_node_status.go:540] "Error updating node status, will retry" err="error getting node \\"omen2\\": '


@pytest.mark.parametrize("entry", WORDS["ready_unknown"], ids=by_id)
def test_cut_off_from_the_cluster(entry: dict[str, str]) -> None:
    found = alive("kubelet.go:1] x", entry["line"], entry["line"])
    assert (found.root_cause.id, found.root_cause.status.value) == (entry["id"], entry["status"])
    assert [entry.status.value for entry in found.chain[1:3]] == ["refuted", "confirmed"]


def test_a_name_that_is_forbidden_to_itself_is_no_mismatch() -> None:
    assert (
        alive('x.go:1] nodes "a" is forbidden: node "a" is not allowed to modify node "a"').root_cause.id == "unknown"
    )


def test_the_servers_expired_certificate_is_not_the_clients() -> None:
    line = UPDATE + 'Get \\"https://192.0.2.11:6443/x\\": x509: certificate has expired or is not yet valid"'
    assert alive(line, line).root_cause.id == "unknown"


@pytest.mark.parametrize("entry", WORDS["ready_false"], ids=by_id)
def test_not_ready_with_a_kubelet_that_reports(entry: dict[str, str]) -> None:
    found = alive(entry["line"], ready="False", message=entry["message"])
    assert (found.root_cause.id, found.root_cause.status.value) == (entry["id"], entry["status"])


def test_sockets_of_runtimes_that_are_not_used_are_noise() -> None:
    line = "factory.go:221] Registration of the crio container factory failed: dial unix /var/run/crio/crio.sock: "
    assert alive(line + "connect: no such file or directory", ready="False", message="x").root_cause.id == "unknown"


def test_old_trouble_is_not_what_holds_now() -> None:
    old = said("09:00:00", f"E0302 09:00:00.1 42 {UPDATE}dial tcp 192.0.2.11:6443: connect: connection refused")
    new = said("09:58:00", "I0302 09:58:00.1 42 x.go:1] fine")
    files = {"cluster_nodes": listed(node()), "host_kubelet_show": RUNNING, "host_proc_swaps": HEADER}
    assert diagnosis(snapshot(host_kubelet_journal=journal(old, new), **files)).root_cause.id == "unknown"


def test_disk_pressure_on_a_ready_node() -> None:
    line = "x.go:1] write /var/lib/kubelet/device-plugins/.28: no space left on device"
    found = alive(line, ready="True", message="ok", DiskPressure="True")
    assert (found.root_cause.id, found.root_cause.status) == ("disk-full", Status.CONFIRMED)
    suspected = alive("x.go:1] nothing", ready="True", message="ok", DiskPressure="True")
    assert (suspected.root_cause.id, suspected.root_cause.status) == ("disk-full", Status.SUSPECTED)


def test_a_first_start_that_waits_for_the_api_server() -> None:
    line = said(
        "09:58:00", f"E0302 09:58:00.1 42 {UPDATE}dial tcp 192.0.2.11:6443: connect: connection refused", "k3s[42]"
    )
    starting = said("09:50:00", "Starting Lightweight Kubernetes...", "systemd[1]")
    unit = "ActiveState=activating\nSubState=start\nNRestarts=0\n"
    assert dead(journal(starting, line), unit=unit).root_cause.id == "apiserver-unreachable"
