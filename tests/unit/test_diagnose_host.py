"""A host that was not read: dead, or only not reached from here. And the file of signatures itself."""

from __future__ import annotations

import json

import pytest
from snapshots_for_tests import diagnosis, link, listed, node, signatures, snapshot

from gpufix.core.signatures import SignatureError, load_signatures
from gpufix.model import Diagnosis, Status
from gpufix.resources import read_text

NO_ROUTE = "ssh: connect to host 192.0.2.41 port 22: No route to host"


def unread(why: str, host_node: dict[str, object] | None = None, **more: str) -> Diagnosis:
    files = {"cluster_nodes": listed(host_node or node()), **more}
    return diagnosis(snapshot(unread={"host": why} if why else {}, **files))


def root(found: Diagnosis) -> tuple[str, str]:
    return found.root_cause.id, found.root_cause.status.value


@pytest.mark.parametrize("why", [NO_ROUTE, "Connection timed out", "Host is down", "timed out after 10 s"])
def test_silence_and_every_condition_unknown(why: str) -> None:
    found = unread(why)
    assert root(found) == ("host-unreachable", "confirmed")
    assert link(found, "kubelet-down").status is Status.UNKNOWN
    assert link(found, "node-not-ready").status is Status.CONFIRMED
    assert found.unread["host"] == why


def test_a_reason_that_nobody_knows_is_only_a_suspicion() -> None:
    assert root(unread("the dog ate it")) == ("host-unreachable", "suspected")


@pytest.mark.parametrize(
    "why",
    [
        "root@192.0.2.41: Permission denied (publickey,password).",
        "Host key verification failed.",
        "ssh: connect to host 192.0.2.41 port 22: Connection refused",
        "kex_exchange_identification: Connection closed by remote host",
        "Missing sudo password",
        "ssh: Could not resolve hostname omen2: Name or service not known",
        "omen2 is not in the inventory",
        "Could not match supplied host pattern, ignoring: omen2",
    ],
)
def test_a_host_that_answers_or_was_not_asked_is_not_dead(why: str) -> None:
    found = unread(why)
    assert root(found) == ("unknown", "unknown")
    assert why in found.root_cause.summary


def test_a_snapshot_of_the_cluster_alone_says_nothing_about_the_host() -> None:
    assert root(unread("")) == ("unknown", "unknown")


def beating(at: str, since: str = "2026-03-02T09:00:00Z") -> dict[str, object]:
    return node(annotations={"kubevirt.io/heartbeat": at}, since=since)


def test_a_fresh_heartbeat_means_that_the_host_lives() -> None:
    found = unread(NO_ROUTE, beating("2026-03-02T09:58:30Z"))
    assert root(found) == ("unknown", "unknown")
    assert "the host lives" in found.root_cause.summary


@pytest.mark.parametrize("at", ["2026-03-02T08:59:30Z", "2026-03-02T09:20:00Z"])
def test_an_old_heartbeat_does_not(at: str) -> None:
    assert root(unread(NO_ROUTE, beating(at))) == ("host-unreachable", "confirmed")


def test_an_event_written_by_the_host_since_is_a_sign_of_life() -> None:
    event = {
        "involvedObject": {"kind": "VirtualMachineInstance", "name": "a", "namespace": "vms"},
        "source": {"component": "virt-handler", "host": "omen2"},
        "message": "VirtualMachineInstance started.",
        "lastTimestamp": "2026-03-02T09:30:00Z",
    }
    assert root(unread(NO_ROUTE, cluster_events=listed(event))) == ("unknown", "unknown")
    event["lastTimestamp"] = "2026-03-02T08:30:00Z"
    assert root(unread(NO_ROUTE, cluster_events=listed(event))) == ("host-unreachable", "confirmed")


def test_a_kubelet_that_reports_is_not_on_a_dead_host() -> None:
    found = unread(NO_ROUTE, node(ready="False", message="container runtime is down"))
    assert found.root_cause.id != "host-unreachable"


def test_ready_and_not_read() -> None:
    found = unread(NO_ROUTE, node(ready="True", allocatable={"nvidia.com/gpu": "1"}, heartbeat="2026-03-02T09:59:00Z"))
    assert root(found) == ("healthy", "suspected")


def test_neither_side_was_read() -> None:
    found = diagnosis(snapshot(unread={"host": NO_ROUTE, "cluster": "connection refused"}))
    assert root(found) == ("unknown", "unknown")
    assert (found.unread["host"], found.unread["cluster"]) == (NO_ROUTE, "connection refused")


def test_frozen_numbers_of_a_dead_node_are_called_stale() -> None:
    found = unread(NO_ROUTE, node(allocatable={"nvidia.com/GB202_GEFORCE_RTX_5090": "1"}))
    gone = link(found, "gpu-stack-gone")
    assert gone.status is Status.CONFIRMED
    assert "stale" in gone.detail
    assert '"nvidia.com/GB202_GEFORCE_RTX_5090": "1"' in [line.excerpt for line in gone.evidence]


# --- the file of signatures ------------------------------------------------------------------------------------------

HEAD = "version: 1\nthresholds:\n"
HEAD += "".join(
    f"  {name}: {{value: 1, source: s}}\n"
    for name in ("recent_seconds", "settled_seconds", "heartbeat_fresh_seconds", "node_stale_seconds")
)


def test_every_signature_and_threshold_has_a_source() -> None:
    loaded = signatures()
    assert len(loaded.entries) > 20
    assert all(entry.source and entry.says for entry in loaded.entries)
    assert loaded.thresholds["heartbeat_fresh_seconds"] == 300


def test_expressions_do_not_blow_up_on_long_lines() -> None:
    line = "failed to load kubelet config file " + "a/b: " * 20_000
    for entry in signatures().entries:
        entry.found_in(line)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"id": "x", "where": "fatal", "match": "(", "says": "s", "source": "s"}, "unterminated"),
        ({"id": "x", "where": "moon", "match": "a", "says": "s", "source": "s"}, "where must be one of"),
        ({"id": "x", "where": "fatal", "match": "a", "says": "s"}, "source must be text"),
        ({"id": "x", "where": "fatal", "match": "a", "says": "s", "source": "s", "wen": 1}, "unknown key wen"),
        ({"id": "x", "where": "fatal", "match": "a", "says": "s", "source": "s", "needs": ["rain"]}, "needs must be"),
        (
            {"id": "x", "where": "fatal", "match": "a", "says": "s", "source": "s", "differ": ["a", "b"]},
            "differ must name",
        ),
        ({"id": "x", "where": "fatal", "match": "a", "says": "s", "source": "s", "status": "sure"}, "status must be"),
        ("text", "must be a mapping"),
    ],
)
def test_what_is_wrong_with_a_signature_is_said(entry: object, says: str) -> None:
    with pytest.raises(SignatureError, match=says):
        load_signatures(f"{HEAD}host_unread: []\nsignatures: [{json.dumps(entry)}]\n")


@pytest.mark.parametrize("text", ["", "a: [", "version: 2", HEAD, HEAD + "signatures: []\nhost_unread: {}"])
def test_what_is_no_file_of_signatures(text: str) -> None:
    with pytest.raises(SignatureError):
        load_signatures(text)


def test_the_file_that_ships_loads() -> None:
    assert load_signatures(read_text("signatures.yml")).at("fatal")
