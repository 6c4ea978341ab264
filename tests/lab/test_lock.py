"""The lock through the real client and the practice cluster's API: two who start at once, and a version that is old."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpufix.core import lease
from gpufix.core.lease import Holder
from gpufix.errors import ExitStatus, GpufixError
from gpufix.lab import cluster
from gpufix.lab.door import LabApi
from gpufix.lab.store import Object, Store
from gpufix.lab.tools import ToolResult
from gpufix.lock import Lock
from gpufix.world.cluster import Cluster, ClusterAccess, Unreadable

TOKEN = "a-token"


@dataclass
class Still:
    """The practice cluster as it is built, behind its API; nothing happens by itself."""

    store: Store = field(default_factory=lambda: cluster.build(1e9).store)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def advance(self) -> None:
        pass

    def now(self) -> str:
        return "2026-12-02T08:43:24Z"

    def written(self, plural: str, before: Object | None, after: Object | None) -> None:
        pass

    def tool(self, node: str, argv: list[str]) -> ToolResult:
        raise AssertionError("nobody asks for a tool here")


@pytest.fixture
def access(tmp_path: Path) -> Iterator[ClusterAccess]:
    api = LabApi(Still(), TOKEN)
    api.start()
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": {"server": api.url}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "u"}}],
    }  # fmt: skip
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    yield ClusterAccess(str(path))
    assert api.unknown == []
    api.stop()


def lock(access: ClusterAccess, person: str, node: str = "omen2") -> Lock:
    return Lock(Cluster(access), node, Holder(person, 12), clock=time, alive_here=lambda holder: True)


def test_a_lease_is_made_read_and_replaced_by_its_version(access: ClusterAccess) -> None:
    api, name = Cluster(access), lease.lease_name("omen2")
    with pytest.raises(Unreadable) as caught:
        api.lease(lease.NAMESPACE, name)
    assert caught.value.kind == "absent"
    one = lock(access, "ada@desk")
    one.acquire()
    one.name_run("a-run")
    found = api.lease(lease.NAMESPACE, name)
    assert lease.is_held_by(found, one._me)
    assert found["metadata"]["annotations"]["gpufix/run"] == "a-run"
    stale = {**found, "metadata": {**found["metadata"], "resourceVersion": "1"}}
    with pytest.raises(Unreadable, match=r"409 .*the object has been modified") as caught:
        api.replace_lease(stale)
    assert caught.value.kind == "conflict"
    with pytest.raises(Unreadable, match=r"409 .*already exists") as caught:
        api.create_lease({**found, "metadata": {"name": name, "namespace": lease.NAMESPACE}})
    assert caught.value.kind == "conflict"
    one.fence("relabel")
    one.release()
    assert lease.holder_of(api.lease(lease.NAMESPACE, name)) is None


def test_a_lease_that_is_no_more_is_not_made_anew_by_its_uid(access: ClusterAccess) -> None:
    old = {"metadata": {"uid": "gone", "resourceVersion": "7"}}
    body = lease.taken("omen2", Holder("ada@desk", 1, "k"), datetime.now(UTC), old)
    with pytest.raises(Unreadable) as caught:
        Cluster(access).replace_lease(body)
    assert caught.value.kind == "conflict"


def test_without_the_namespace_nobody_is_kept_out(access: ClusterAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "NAMESPACE", "nowhere")
    one = lock(access, "ada@desk")
    one.acquire()
    assert "404" in one.why_none


def at_once(locks: list[Lock]) -> dict[int, GpufixError | None]:
    """How each acquire ended, all begun at the same moment."""
    together, ends = threading.Barrier(len(locks)), dict[int, GpufixError | None]()

    def run(number: int) -> None:
        together.wait(10)
        try:
            locks[number].acquire()
        except GpufixError as error:
            ends[number] = error
        else:
            ends[number] = None

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(locks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return ends


@pytest.mark.parametrize("turn", range(10))
def test_of_two_that_start_at_once_exactly_one_wins(access: ClusterAccess, turn: int) -> None:
    if turn % 2:  # a lease that is there already, let go
        before = lock(access, "eve@pad")
        before.acquire()
        before.release()
    both = [lock(access, "ada@desk"), lock(access, "bob@desk")]
    ends = at_once(both)
    [winner] = [number for number, error in ends.items() if error is None]
    refusal = ends[1 - winner]
    assert refusal is not None
    assert refusal.exit_status is ExitStatus.LOCKED
    assert ("ada@desk", "bob@desk")[winner] in refusal.message
    both[winner].fence("a step")
    with pytest.raises(GpufixError):
        both[1 - winner].fence("a step")
    both[winner].release()
