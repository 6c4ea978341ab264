"""One operator per node: who gets the lease, who is refused, who is fenced off, and who is taken for dead."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_server import Clock, Leases

from gpufix.core import lease
from gpufix.core.lease import Holder
from gpufix.errors import ExitStatus, GpufixError
from gpufix.lock import Lock, alive_here
from gpufix.world.cluster import Unreadable
from gpufix.world.journal import process_lives, process_mark

NODE = "omen2"
NOW = datetime(2026, 12, 2, 8, 43, tzinfo=UTC)


def not_seen(holder: Holder) -> bool | None:
    return None


def lock(leases: Leases, person: str = "ada@desk", clock: Clock | None = None, **more: Any) -> Lock:
    more = {"alive_here": not_seen, "now": lambda: NOW, "in_background": False, **more}
    return Lock(leases, NODE, Holder(person, 12), clock=clock or Clock(), **more)


def spec(leases: Leases) -> dict[str, Any]:
    assert leases.found is not None
    return dict(leases.found["spec"])


def annotations(leases: Leases) -> dict[str, str]:
    assert leases.found is not None
    return dict(leases.found["metadata"]["annotations"])


# --- taking it -------------------------------------------------------------------------------------------------------


def test_a_lease_is_made_and_let_go_and_taken_again() -> None:
    leases = Leases()
    first = lock(leases)
    first.acquire()
    assert leases.found is not None
    assert leases.found["metadata"]["name"] == "gpufix-omen2"
    assert leases.found["metadata"]["namespace"] == "kube-node-lease"
    assert spec(leases)["holderIdentity"].startswith("ada@desk/12/")
    assert spec(leases)["leaseDurationSeconds"] == 30
    assert spec(leases)["renewTime"] == "2026-12-02T08:43:00.000000Z"
    assert (spec(leases)["leaseTransitions"], first.took_over, first.why_none) == (0, "", "")
    first.fence("stop-kubelet")
    first.release()
    assert "holderIdentity" not in spec(leases)
    assert annotations(leases) == {}
    second = lock(leases, "bob@desk")
    second.acquire()
    assert second.took_over == ""
    assert spec(leases)["leaseTransitions"] == 1


def test_what_others_wrote_on_it_stays() -> None:
    leases = Leases()
    one = lock(leases)
    one.acquire()
    leases.annotate(team="gpu")
    assert leases.found is not None
    leases.found["metadata"]["labels"] = {"app": "x"}
    one.name_run("20261202T084300Z-omen2-12")
    one.fence("disable-swap")
    assert annotations(leases) == {
        "team": "gpu",
        "gpufix/run": "20261202T084300Z-omen2-12",
        "gpufix/step": "disable-swap",
    }
    one.release()
    assert annotations(leases) == {"team": "gpu"}
    assert leases.found["metadata"]["labels"] == {"app": "x"}


def test_a_holder_that_lives_on_this_machine_is_named_and_refused_at_once() -> None:
    leases, clock = Leases(), Clock()
    held = lock(leases)
    held.acquire()
    held.name_run("a-run")
    held.fence("relabel")
    with pytest.raises(GpufixError) as caught:
        lock(leases, "bob@desk", clock, alive_here=lambda holder: True).acquire()
    assert caught.value.exit_status is ExitStatus.LOCKED
    assert "omen2 is being recovered by ada@desk (process 12, run a-run, at relabel, since 2026" in caught.value.message
    assert caught.value.hint
    assert clock.now == 1000.0
    held.fence("next")


def test_a_holder_that_renews_is_refused_as_soon_as_that_is_seen() -> None:
    leases, clock = Leases(), Clock()
    held = lock(leases, now=lambda: NOW + timedelta(seconds=clock.now))
    held.acquire()
    clock.while_asleep = lambda: held.renew() if clock.now >= 1008 else None  # type: ignore[assignment,return-value]
    with pytest.raises(GpufixError, match="ada@desk") as caught:
        lock(leases, "bob@lap", clock).acquire()
    assert caught.value.exit_status is ExitStatus.LOCKED
    assert clock.now == pytest.approx(1008, abs=1)


def test_one_that_does_not_renew_is_taken_for_dead_after_its_whole_duration() -> None:
    leases, clock, told = Leases(), Clock(), list[str]()
    dead = lock(leases)
    dead.acquire()
    heir = lock(leases, "bob@lap", clock, say=told.append)
    heir.acquire()
    assert 1030 <= clock.now <= 1032
    assert heir.took_over == (
        "ada@desk (process 12, since 2026-12-02 08:43:00 UTC): its lease was not renewed for 30 s"
    )
    assert "locked by ada@desk" in told[0]
    assert "30 s" in told[0]
    with pytest.raises(GpufixError, match=r"held by bob@lap .*now") as caught:
        dead.fence("relabel")
    assert caught.value.exit_status is ExitStatus.LOCKED
    assert dead.lost.startswith("bob@lap")
    heir.fence("relabel")
    dead.release()
    heir.fence("restart-kubelet")


def test_an_annotation_is_no_sign_of_life() -> None:
    leases, clock = Leases(), Clock()
    lock(leases).acquire()
    clock.while_asleep = lambda: leases.annotate(seen=str(clock.now))
    heir = lock(leases, "bob@lap", clock)
    heir.acquire()
    assert heir.took_over


def test_the_clock_of_another_machine_is_never_compared_with_ours() -> None:
    leases = Leases()
    lock(leases, now=lambda: NOW + timedelta(days=4000)).acquire()
    clock = Clock()
    heir = lock(leases, "bob@lap", clock, now=lambda: NOW - timedelta(days=4000))
    heir.acquire()
    assert 1030 <= clock.now <= 1032


@pytest.mark.parametrize("days", [-4000, -1 / 86400, 1 / 86400, 4000])
def test_a_living_holder_whose_clock_is_set_is_not_taken_for_dead(days: float) -> None:
    """Nor is one by a watcher whose own clock is set while he watches: only what goes forward is believed."""
    leases, clock, looks = Leases(), Clock(), iter(range(1, 1000))
    living = lock(leases, clock=clock, now=lambda: NOW + timedelta(days=days * next(looks)))
    living.acquire()
    clock.while_asleep = lambda: living.renew() if clock.now % 8 < 1 else None
    watcher = lock(leases, "bob@lap", clock, now=lambda: NOW - timedelta(days=days * next(looks)))
    with pytest.raises(GpufixError) as caught:
        watcher.acquire()
    assert caught.value.exit_status is ExitStatus.LOCKED
    assert "ada@desk" in caught.value.message
    living.fence("relabel")


@pytest.mark.parametrize(("said", "waits"), [(5, 5), (90, 90), (10**9, 300), (-1, 30), ("x", 30), (None, 30)])
def test_a_lease_is_watched_for_as_long_as_its_holder_said(said: object, waits: int) -> None:
    leases, clock = Leases(), Clock()
    lock(leases).acquire()
    assert leases.found is not None
    leases.found["spec"]["leaseDurationSeconds"] = said
    lock(leases, "bob@lap", clock).acquire()
    assert waits <= clock.now - 1000 <= waits + 2


def test_one_whose_process_is_gone_from_this_machine_is_taken_over_at_once() -> None:
    leases, clock = Leases(), Clock()
    lock(leases).acquire()
    heir = lock(leases, "bob@desk", clock, alive_here=lambda holder: False)
    heir.acquire()
    assert heir.took_over.endswith(": its process is gone from this machine")
    assert clock.now == 1000.0


def test_one_that_is_stopped_but_lives_is_not_dead() -> None:
    leases, clock = Leases(), Clock()
    lock(leases).acquire()

    def hours_pass(verb: str) -> None:
        clock.now += 10000

    leases.after = hours_pass
    with pytest.raises(GpufixError):
        lock(leases, "bob@desk", clock, alive_here=lambda holder: True).acquire()


def test_a_slow_first_look_is_not_counted_as_silence() -> None:
    leases, clock = Leases(), Clock()
    held = lock(leases)
    held.acquire()

    def slow(verb: str) -> None:
        clock.now += 29

    leases.before = slow
    clock.while_asleep = lambda: setattr(leases, "before", lambda verb: None)
    lock(leases, "bob@lap", clock).acquire()
    assert clock.now >= 1029 + 30


@pytest.mark.parametrize("first", ["create", "replace"])
def test_of_two_that_start_at_once_one_wins_and_the_other_names_it(first: str) -> None:
    leases = Leases()
    if first == "replace":
        gone = lock(leases)
        gone.acquire()
        gone.release()
    quick, slow = lock(leases, "bob@lap"), lock(leases, "eve@pad")

    def barge_in(verb: str) -> None:
        if verb == first:
            leases.before = lambda verb: None
            quick.acquire()

    leases.before = barge_in
    with pytest.raises(GpufixError, match="recovered by bob@lap") as caught:
        slow.acquire()
    assert caught.value.exit_status is ExitStatus.LOCKED
    quick.fence("x")
    with pytest.raises(GpufixError):
        slow.fence("x")


def test_a_lease_that_goes_away_while_it_is_taken_over_is_made() -> None:
    leases = Leases()
    gone = lock(leases)
    gone.acquire()
    gone.release()

    def delete(verb: str) -> None:
        if verb == "replace":
            leases.found = None

    leases.before = delete
    next_one = lock(leases, "bob@lap")
    next_one.acquire()
    leases.before = lambda verb: None
    next_one.fence("x")


@pytest.mark.parametrize("verb", ["get", "create"])
def test_where_leases_may_not_be_used_nobody_is_kept_out_and_it_is_said(verb: str) -> None:
    leases = Leases()
    leases.refused = {verb: "forbidden"}
    one = lock(leases)
    one.acquire()
    assert one.why_none == f"{verb} lease: forbidden"
    one.fence("x")
    one.name_run("y")
    one.release()


def test_where_there_is_no_such_api_nobody_is_kept_out() -> None:
    leases = Leases()
    leases.refused = {"create": "absent"}
    one = lock(leases)
    one.acquire()
    assert one.why_none


def test_a_holder_is_named_even_to_one_who_may_only_look() -> None:
    leases = Leases()
    lock(leases).acquire()
    leases.refused = {"replace": "forbidden"}
    with pytest.raises(GpufixError, match="ada@desk"):
        lock(leases, "bob@lap", alive_here=lambda holder: True).acquire()


@pytest.mark.parametrize("kind", ["unreachable", "unauthorized", "failed"])
def test_what_cannot_be_known_stops_it(kind: str) -> None:
    leases = Leases()
    leases.refused = {"get": kind}
    with pytest.raises(GpufixError, match="cannot be known") as caught:
        lock(leases).acquire()
    assert caught.value.exit_status is ExitStatus.UNREACHABLE


def test_a_write_whose_answer_is_lost_is_looked_up() -> None:
    leases = Leases()

    def lose(verb: str) -> None:
        if verb == "create":
            raise Unreadable("unreachable", "timed out")

    leases.after = lose
    one = lock(leases)
    one.acquire()
    one.fence("x")


def test_a_lease_that_changes_all_the_time_ends() -> None:
    leases = Leases()
    leases.refused = {"create": "conflict"}
    with pytest.raises(GpufixError, match="changes all the time"):
        lock(leases).acquire()


@pytest.mark.parametrize(
    "found",
    [{}, {"spec": [], "metadata": 3}, {"spec": {"holderIdentity": 7}}, {"spec": {"holderIdentity": ""}},
     {"spec": {}, "metadata": {"annotations": [1]}}],
)  # fmt: skip
def test_a_lease_of_any_shape_is_read(found: dict[str, Any]) -> None:
    assert lease.holder_of(found) is None
    assert lease.lasts(found) == 30
    assert lease.taken(NODE, Holder("a@b", 1, "k"), NOW, found)["spec"]["leaseTransitions"] == 1


@given(st.text(min_size=1))
def test_an_identity_that_is_not_ours_is_still_named(identity: str) -> None:
    holder = lease.holder_of({"spec": {"holderIdentity": identity}})
    assert holder is not None
    assert holder.words


@given(st.from_regex(r"[^/@]{1,9}@[^/@]{1,9}", fullmatch=True), st.integers(0, 4194304), st.uuids())
def test_an_identity_is_read_as_it_was_written(person: str, pid: int, key: Any) -> None:
    me = Holder(person, pid, key.hex)
    assert lease.holder_of({"spec": {"holderIdentity": me.identity}}) == me
    assert me.machine == person.rpartition("@")[2]


def test_a_long_name_of_a_node_still_makes_a_name_of_a_lease() -> None:
    assert lease.lease_name("omen2") == "gpufix-omen2"
    assert len(lease.lease_name("n" * 250)) < 64
    assert lease.lease_name("n" * 250) != lease.lease_name("n" * 251)


# --- the fence -------------------------------------------------------------------------------------------------------


def test_a_fence_renews_each_time_and_says_where_it_is() -> None:
    leases = Leases()
    one = lock(leases)
    one.acquire()
    one.fence("disable-swap")
    one.fence("restart-kubelet")
    assert leases.calls.count("replace") == 2
    assert annotations(leases)["gpufix/step"] == "restart-kubelet"


def test_before_it_is_taken_and_after_it_was_let_go_a_fence_refuses() -> None:
    leases = Leases()
    one = lock(leases)
    with pytest.raises(GpufixError, match="not taken"):
        one.fence("x")
    one.acquire()
    one.release()
    with pytest.raises(GpufixError, match="let go") as caught:
        one.fence("x")
    assert caught.value.exit_status is ExitStatus.LOCKED
    assert leases.holder == ""


def test_on_waking_what_is_still_ours_is_renewed_and_what_is_another_s_refused() -> None:
    leases, clock = Leases(), Clock()
    sleeper = lock(leases, clock=clock)
    sleeper.acquire()
    clock.now += 3600
    sleeper.fence("x")  # nobody wanted it meanwhile
    lock(leases, "bob@lap").acquire()
    sleeper.renew()
    with pytest.raises(GpufixError, match="bob@lap"):
        sleeper.fence("x")


def test_a_takeover_that_has_ended_already_still_fences_off_the_first() -> None:
    leases = Leases()
    old = lock(leases)
    old.acquire()
    heir = lock(leases, "bob@lap")
    heir.acquire()
    heir.release()
    with pytest.raises(GpufixError, match="nobody: it was taken away") as caught:
        old.fence("x")
    assert caught.value.exit_status is ExitStatus.LOCKED


def test_a_lease_that_was_deleted_is_not_brought_back() -> None:
    leases = Leases()
    old = lock(leases)
    old.acquire()
    leases.found = None
    with pytest.raises(GpufixError, match="taken away"):
        old.fence("x")
    assert leases.found is None


def test_two_with_the_same_name_and_process_id_are_two() -> None:
    leases = Leases()
    one, other = lock(leases, "root@gpufix"), lock(leases, "root@gpufix")
    one.acquire()
    other.acquire()
    with pytest.raises(GpufixError):
        one.fence("x")
    other.fence("x")


def test_an_annotation_in_between_does_not_cost_the_lease() -> None:
    leases = Leases()
    one = lock(leases)
    one.acquire()
    leases.annotate(team="gpu")
    one.fence("x")
    assert annotations(leases)["gpufix/step"] == "x"


def test_one_failure_is_tried_again() -> None:
    leases = Leases()
    one = lock(leases)
    one.acquire()
    failures = [Unreadable("failed", "500 etcd"), Unreadable("unreachable", "the connection was reset")]

    def fail(verb: str) -> None:
        if failures:
            raise failures.pop()

    leases.before = fail
    one.fence("x")


@pytest.mark.parametrize(("passed", "words"), [(1, "cannot be renewed: timed out"), (60, "not for 1 min 2 s, and it")])
def test_where_it_cannot_be_renewed_nothing_is_changed(passed: int, words: str) -> None:
    leases, clock = Leases(), Clock()
    one = lock(leases, clock=clock)
    one.acquire()
    clock.now += passed

    def fail(verb: str) -> None:
        raise Unreadable("unreachable", "timed out")

    leases.before = fail
    with pytest.raises(GpufixError) as caught:
        one.fence("relabel")
    assert words in caught.value.message
    assert caught.value.exit_status is ExitStatus.UNREACHABLE
    assert "nothing of relabel was done" in caught.value.hint


def test_where_the_credentials_are_refused_it_says_to_log_in_again() -> None:
    leases = Leases()
    one = lock(leases)
    one.acquire()
    leases.before = lambda verb: _refuse()
    with pytest.raises(GpufixError, match=r"401 Unauthorized .*log in again") as caught:
        one.fence("relabel")
    assert caught.value.exit_status is ExitStatus.UNREACHABLE
    with pytest.raises(GpufixError) as caught:
        lock(leases).acquire()
    assert "log in again" in caught.value.hint


def _refuse() -> None:
    raise Unreadable("unauthorized", "replace lease: 401 Unauthorized")


def test_an_answer_that_comes_too_late_is_none() -> None:
    leases, clock = Leases(), Clock()
    one = lock(leases, clock=clock)
    one.acquire()

    def hang(verb: str) -> None:
        clock.now += 31

    leases.after = hang
    with pytest.raises(GpufixError, match="took longer than it lasts"):
        one.fence("x")


# --- the thread ------------------------------------------------------------------------------------------------------


def wait_for(what: Callable[[], bool]) -> None:
    until = threading.Event()
    for _ in range(2000):
        if what():
            return
        until.wait(0.01)
    raise AssertionError("it never came to that")


def test_the_thread_renews_whatever_happens_to_it_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpufix.lock.RENEW_SECONDS", 0.01)
    monkeypatch.setattr("gpufix.lock.HASTE_SECONDS", 0.01)
    leases = Leases()
    failures: list[Exception] = [RuntimeError("a bug"), Unreadable("unreachable", "reset"), KeyError("x")]

    def fail(verb: str) -> None:
        if verb == "replace" and failures:
            raise failures.pop()

    one = lock(leases, in_background=True)
    leases.before = fail
    one.acquire()
    wait_for(lambda: not failures and leases.calls.count("replace") > 6)
    one.fence("x")
    one.release()
    thread = one._thread
    assert thread is not None
    thread.join(5)
    assert not thread.is_alive()
    assert leases.holder == ""


def test_a_thread_that_has_ended_is_begun_again_by_a_fence() -> None:
    leases = Leases()
    one = lock(leases, in_background=True)
    one.acquire()
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    one._thread = ended
    one.fence("x")
    assert one._thread is not ended
    assert one._thread.is_alive()
    one.release()


def test_the_thread_ends_when_the_lease_is_another_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpufix.lock.RENEW_SECONDS", 0.01)
    leases = Leases()
    one = lock(leases, in_background=True)
    one.acquire()
    lock(leases, "bob@lap", alive_here=lambda holder: False).acquire()
    thread = one._thread
    assert thread is not None
    thread.join(5)
    assert not thread.is_alive()
    assert one.lost.startswith("bob@lap")


def test_a_release_does_not_wait_for_a_renewal_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpufix.lock.RENEW_SECONDS", 0.01)
    monkeypatch.setattr("gpufix.lock.RELEASE_SECONDS", 0.05)
    leases, hangs, goes_on = Leases(), threading.Event(), threading.Event()

    def hang(verb: str) -> None:
        if verb == "replace":
            hangs.set()
            goes_on.wait(10)

    one = lock(leases, in_background=True)
    leases.before = hang
    one.acquire()
    assert hangs.wait(10)
    one.release()
    goes_on.set()
    with pytest.raises(GpufixError):
        one.fence("x")


def test_a_release_never_raises() -> None:
    leases = Leases()
    one = lock(leases)
    one.acquire()

    def fail(verb: str) -> None:
        raise RuntimeError("a bug")

    leases.before = fail
    one.release()


def test_a_release_after_an_annotation_lets_go() -> None:
    leases = Leases()
    one = lock(leases)
    one.acquire()
    leases.annotate(team="gpu")
    one.release()
    assert leases.holder == ""


# --- processes -------------------------------------------------------------------------------------------------------


def test_this_process_lives_and_one_that_ended_does_not() -> None:
    mark = process_mark(os.getpid())
    assert process_lives(os.getpid(), mark) is True
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs = process_mark(child.pid)
    assert process_lives(child.pid, theirs) is True
    child.communicate(b"\n")
    assert process_lives(child.pid, theirs) is False
    assert process_lives(os.getpid(), theirs) is False, "its number was given to another process"


@pytest.mark.parametrize("mark", ["", "x", "/", "//", "another-boot/17/pid:[4026531836]"])
def test_of_another_boot_or_of_nonsense_nothing_is_known(mark: str) -> None:
    assert process_lives(os.getpid(), mark) is None
    assert process_lives(0, process_mark(os.getpid())) is None


def test_of_another_process_namespace_nothing_is_known() -> None:
    mark = process_mark(os.getpid()).rpartition("/")[0] + "/pid:[1]"
    assert process_lives(999999, mark) is None


def test_a_process_of_another_user_that_proc_hides_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = process_mark(os.getpid())
    real = os.getpid()
    monkeypatch.setattr(
        "gpufix.world.journal.process_began", lambda pid: mark.rpartition("/")[0] if pid == real else ""
    )

    def denied(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr("os.kill", denied)
    assert process_lives(4242, mark) is None


def test_a_lock_is_this_process_s_where_nobody_is_named() -> None:
    leases = Leases()
    one = Lock(leases, NODE, clock=Clock(), in_background=False)
    one.acquire()
    holder = lease.holder_of(leases.found or {})
    assert holder is not None
    assert holder.pid == os.getpid()
    assert alive_here(holder) is True
    with pytest.raises(GpufixError, match=f"process {os.getpid()}"):
        Lock(leases, NODE, clock=Clock(), in_background=False).acquire()


# --- all of them at once ---------------------------------------------------------------------------------------------


class Died(BaseException):
    """The process ends here, whatever it was at."""


class Operator:
    def __init__(self, world: Interleaved, number: int, machine: str) -> None:
        self.number, self.machine = number, machine
        self.alive, self.busy, self.holds, self.over = True, False, False, False
        me = Holder(f"op@{machine}", number, f"key{number}")
        self.lock = Lock(
            world.leases, NODE, me, clock=world.clock, alive_here=lambda other: world.sees(self, other),
            now=world.any_time, in_background=False,
        )  # fmt: skip


class Interleaved:
    """Operators who act in the middle of each other's requests, as hypothesis wants it."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.clock, self.leases = Clock(), Leases()
        self.operators: list[Operator] = []
        self.stack: list[Operator] = []
        self.budget = 30
        self.clock.while_asleep = self.meanwhile
        self.leases.before = self.around
        self.leases.after = self.around

    def any_time(self) -> datetime:
        """A wall clock that jumps, another one at each look."""
        return NOW + timedelta(seconds=self.clock.now, days=(self.clock.now * 7919) % 13)

    def sees(self, me: Operator, other: Holder) -> bool | None:
        found = next(one for one in self.operators if one.number == other.pid)
        return found.alive if found.machine == me.machine else None

    def around(self, verb: str) -> None:
        self.meanwhile()
        if self.budget > 0 and self.data.draw(st.integers(0, 19), label="fault") == 0:
            raise Unreadable(self.data.draw(st.sampled_from(["unreachable", "failed"])), "a fault")

    def meanwhile(self) -> None:
        me = self.stack[-1]
        if self.budget > 0 and self.data.draw(st.integers(0, 2), label="meanwhile") == 0:
            self.act()
        if not me.alive:
            raise Died

    def act(self) -> None:
        self.budget -= 1
        what = self.data.draw(st.sampled_from(["start", "fence", "fence", "renew", "release", "die", "time", "note"]))
        if what == "time":
            self.clock.now += self.data.draw(st.sampled_from([0.5, 8.0, 29.0, 31.0, 600.0]))
            return
        if what == "note":
            if self.leases.found is not None:
                self.leases.annotate(note=str(self.clock.now))
            return
        if what == "start":
            if sum(one.alive for one in self.operators) < 3:
                self.start(self.data.draw(st.sampled_from(["desk", "desk", "lap"])))
            return
        living = [one for one in self.operators if one.alive and (what == "die" or not one.busy)]
        if living:
            self.do(self.data.draw(st.sampled_from(living)), what)

    def start(self, machine: str) -> Operator:
        one = Operator(self, len(self.operators) + 1, machine)
        alive_then = [other.number for other in self.operators if other.alive]
        self.operators.append(one)
        try:
            self.running(one, one.lock.acquire)
        except GpufixError as error:
            one.alive = False  # the run ends with this
            if error.exit_status is ExitStatus.LOCKED:
                named = int(error.message.partition("process ")[2].partition(",")[0])
                started_since = named > one.number
                assert named in alive_then or started_since, "a dead one was taken for living"
        except Died:
            pass
        else:
            one.holds = True
            if self.leases.holder != one.lock._me.key and one.alive:
                # the answer took longer than the lease lasts, and the next one has it: then the fence is shut
                assert one.lock._age() >= lease.SECONDS
                one.over = True
                return one
            for other in self.operators:
                other.over |= other is not one and other.holds
        return one

    def do(self, one: Operator, what: str) -> None:
        if what == "die":
            one.alive = False
        elif what == "renew":
            self.running(one, one.lock.renew, or_die=True)
        elif what == "release":
            self.running(one, one.lock.release, or_die=True)
            one.over, one.alive = True, False
        else:
            try:
                self.running(one, lambda: one.lock.fence("step"))
            except (GpufixError, Died):
                return
            assert self.leases.holder == one.lock._me.key, "two may change the node"
            assert not one.over, "passed after a takeover or a release"

    def running(self, one: Operator, call: Callable[[], Any], *, or_die: bool = False) -> None:
        one.busy = True
        self.stack.append(one)
        try:
            call()
        except Died:
            if not or_die:
                raise
        finally:
            one.busy = False
            self.stack.pop()


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_at_no_time_two_may_change_a_node_and_a_dead_one_is_taken_over_at_last(data: st.DataObject) -> None:
    world = Interleaved(data)
    for _ in range(data.draw(st.integers(1, 12), label="steps")):
        world.act()
    for one in world.operators:
        if one.alive and data.draw(st.booleans(), label="still there at the end"):
            world.do(one, "fence")
        one.alive = False
    world.budget, began = 0, world.clock.now
    last = world.start("pad")
    assert last.holds
    assert world.clock.now - began <= lease.SECONDS + 2
    world.do(last, "fence")
    for one in world.operators[:-1]:
        one.alive = True  # each of them was only thought to be dead
        world.do(one, "fence")
