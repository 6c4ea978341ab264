"""A plan is refused when what it rests on has moved: each fact in turn, by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots_for_tests import CRASH_LOOP, NODE, RUNNING, STOPPED, case, changed

from gpufix.core.basis import Fact, basis_of, moved
from gpufix.core.parse import parse_snapshot
from gpufix.model import Snapshot

DIGESTS = {"runbook": "sha256:aa", "playbook modules": "sha256:bb", "playbook relabel-node.yml": "sha256:cc"}


def dead() -> Snapshot:
    """A snapshot of the real node in which every fact of a plan is known."""
    return changed(case("realnode-vm-passthrough-healthy"), {"host/kubelet.show": "Id=kubelet.service\n" + CRASH_LOOP})


def basis(snapshot: Snapshot, digests: dict[str, str] = DIGESTS) -> tuple[Fact, ...]:
    return basis_of(snapshot, parse_snapshot(snapshot), digests)


def node_with(change: Callable[[dict[str, Any]], None]) -> dict[str, str | None]:
    nodes = json.loads(dead().files["cluster/nodes.json"])
    for item in nodes["items"]:
        if item["metadata"]["name"] == NODE:
            change(item)
    return {"cluster/nodes.json": json.dumps(nodes)}


def relabel(name: str, value: str | None) -> Callable[[dict[str, Any]], None]:
    def change(item: dict[str, Any]) -> None:
        labels = item["metadata"].setdefault("labels", {})
        labels.pop(name, None)
        if value is not None:
            labels[name] = value

    return change


MOVES: dict[str, dict[str, str | None]] = {
    "node_uid": node_with(lambda item: item["metadata"].update(uid="another")),
    "boot_id": {"host/boot_id": "11111111-2222-3333-4444-555555555555\n"},
    "workload_label": node_with(relabel("nvidia.com/gpu.workload.config", "vm-isolated")),
    "vfio_manager_label": node_with(relabel("nvidia.com/gpu.deploy.vfio-manager", "paused-for-driver-upgrade")),
    "swaps": {"host/proc_swaps": "Filename Type Size Used Priority\n/other file 1048572 0 -2\n"},
    "fstab": {"host/fstab": "# another\n"},
    "kubelet_unit": {"host/kubelet.show": "Id=kubelet.service\n" + STOPPED},
    "kubelet_config": {"host/kubelet_config": "failSwapOn: true\nevictionHard: {}\n"},
    "gpu_holders": {
        "host/gpu_holders": "# scanned 20 processes, unreadable 0\n4242\tpython3\t/dev/nvidia0\t0::/train.service\n"
    },
    "vfio_manager_containers": {
        "host/containers": case("realnode-vm-passthrough-healthy").files["host/containers"]
        + "nvidia-vfio-manager-abcde\tnvidia-vfio-manager\t0123456789abcdef\tRUNNING\n"
    },
}
"""By the fact's name: what happens to the world."""


def test_nothing_moved() -> None:
    facts = basis(dead())
    assert moved(facts, basis(dead())) == ()
    assert [fact.name for fact in facts if fact.unknown] == []
    assert {fact.name for fact in facts} == {*MOVES, *DIGESTS}, "every fact is moved in one of the tests below"


def test_a_runbook_or_a_playbook_that_moved_is_named() -> None:
    for name in DIGESTS:
        found = moved(basis(dead()), basis(dead(), {**DIGESTS, name: "sha256:" + "9" * 64}))
        assert [one.name for one in found] == [name]


@pytest.mark.parametrize("name", MOVES)
def test_each_fact_that_moves_is_named_and_no_other(name: str) -> None:
    found = moved(basis(dead()), basis(changed(dead(), MOVES[name])))
    assert [one.name for one in found] == [name]
    assert found[0].was != found[0].now


@pytest.mark.parametrize("name", [fact.name for fact in basis(dead())])
def test_every_fact_counts(name: str) -> None:
    before = basis(dead())
    other = tuple(Fact(one.name, "something else") if one.name == name else one for one in before)
    assert [one.name for one in moved(before, other)] == [name]
    lost = tuple(Fact(one.name, "", "not read") if one.name == name else one for one in before)
    was_known = not next(one for one in before if one.name == name).unknown
    assert [one.name for one in moved(before, lost)] == ([name] if was_known else []), "unknown is not unchanged"
    gone = tuple(one for one in before if one.name != name)
    assert [str(one) for one in moved(before, gone)] == [f"{name}: was {_shown(before, name)}, is not there any more"]
    assert [one.name for one in moved(gone, before)] == [name], "a fact that this gpufix looks at and the plan did not"


def _shown(facts: tuple[Fact, ...], name: str) -> str:
    shown = next(one for one in facts if one.name == name).shown
    return shown[:19] if shown.startswith("sha256:") else shown


@pytest.mark.parametrize("moment", [CRASH_LOOP, CRASH_LOOP.replace("auto-restart", "start"), RUNNING])
def test_every_moment_of_a_crash_loop_is_the_same_state(moment: str) -> None:
    not_ready = node_with(lambda item: [one.update(status="Unknown") for one in item["status"]["conditions"]])
    dying = changed(dead(), not_ready)
    assert moved(basis(dying), basis(changed(dying, {"host/kubelet.show": moment + "Id=kubelet.service\n"}))) == ()


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.text(), st.text()), max_size=6, unique_by=lambda one: one[0]))
def test_moved_is_empty_only_for_the_same_facts(data: list[tuple[str, str, str]]) -> None:
    facts = tuple(Fact(name, "" if unknown else value, unknown) for name, value, unknown in data)
    assert moved(facts, facts) == ()
    for index in range(len(facts)):
        without = facts[:index] + facts[index + 1 :]
        assert [one.name for one in moved(facts, without)] == [facts[index].name]
