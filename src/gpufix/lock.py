"""One operator per node: takes the node's Lease before a run, keeps it while the run lasts, and fences each change.

What keeps two apart is the API server alone: a lease is written by its resource version, so a write that succeeds in
our name proves that nobody had taken it until then. Time only decides when a silent holder may be put aside.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

from gpufix.core import lease
from gpufix.core.lease import Holder
from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import t
from gpufix.text import duration_s
from gpufix.world.cluster import LOG_IN, Unreadable
from gpufix.world.journal import operator, process_lives, process_mark

RENEW_SECONDS = 8.0
HASTE_SECONDS = 2.0
"""Until a renewal that failed is tried again: one that hangs must not cost the lease."""
LOOK_SECONDS = 1.0
"""Between two looks at a lease of which is not known whether its holder lives, and between two tries of a fence."""
FENCE_TRIES = 3
RELEASE_SECONDS = 5.0
"""How long a release waits for a renewal that is under way."""
TAKES = 5
"""Tries of a write while others change the lease: who loses as often is told so."""
UNCERTAIN = ("unreachable", "failed")
"""Failures of a write after which it may have been made all the same."""

Lease = Mapping[str, Any]


class Leases(Protocol):
    """The door to the API. Each raises Unreadable; ``absent`` is 404, ``conflict`` is 409."""

    def lease(self, namespace: str, name: str) -> dict[str, Any]: ...

    def create_lease(self, body: Lease) -> dict[str, Any]: ...

    def replace_lease(self, body: Lease) -> dict[str, Any]: ...


class Clock(Protocol):
    """Time of this machine that only goes forward. It may stand still while the machine sleeps (CLOCK_MONOTONIC does):
    a watched holder is then given more time, and a fence asks the API server anyway."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


def alive_here(holder: Holder) -> bool | None:
    """Whether ``holder`` is a living process of this machine; None when it is another machine's, or not to be seen."""
    return process_lives(holder.pid, holder.process)


class Lock:
    """The lease of ``node``, taken once and let go once. Safe to use from several threads.

    ``why_none``: why it may not be used here (forbidden, no such API), so that nobody is kept out; then nothing fences.
    ``took_over``: whose it was and why that one is held for dead, when it was taken from somebody.
    """

    def __init__(
        self,
        leases: Leases,
        node: str,
        me: Holder | None = None,
        *,
        clock: Clock,
        alive_here: Callable[[Holder], bool | None] = alive_here,
        say: Callable[[str], None] = lambda text: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        in_background: bool = True,
    ) -> None:
        """``me``: this process where it is not given. ``say`` is told again and again whom it waits for, each time in
        place of the last. ``now`` only says to others when it was. Without ``in_background`` the caller must ``renew``.
        """
        found = me or Holder(operator(), os.getpid(), process=process_mark(os.getpid()))
        self._me = replace(found, key=found.key or uuid.uuid4().hex)
        self._leases = leases
        self._node = node
        self._clock = clock
        self._alive_here = alive_here
        self._say = say
        self._now = now
        self._in_background = in_background
        self._held: Lease | None = None
        self._renewed = 0.0
        """When the last renewal that succeeded was sent: from then on the lease is believed, whenever it arrived."""
        self._lost = ""
        self._guard = threading.RLock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.why_none = ""
        self.took_over = ""

    @property
    def lost(self) -> str:
        """Who has it now, in words, once it is known that we have it no more; empty until then."""
        return self._lost

    @property
    def words(self) -> str:
        """What keeps others out, for the record."""
        if self.why_none:
            return t("none: {why}", why=self.why_none)
        name = f"{lease.NAMESPACE}/{lease.lease_name(self._node)}"
        if self.took_over:
            return t("lease {name}, taken over from {holder}", name=name, holder=self.took_over)
        return t("lease {name}", name=name)

    # --- taking it ---------------------------------------------------------------------------------------------------

    def acquire(self) -> None:
        """Take the lease, or raise GpufixError: status 8 names a living holder, 7 says that it cannot be known.

        A holder of which this machine cannot see whether it lives is watched for as long as its lease lasts.
        """
        try:
            self._acquire()
        except Unreadable as error:
            if error.kind in ("forbidden", "absent"):
                self.why_none = error.reason
                return
            again = t(LOG_IN) if error.kind == "unauthorized" else t("try again once the API server answers")
            raise GpufixError(
                t("whether anybody else works on {node} cannot be known: {why}", node=self._node, why=error.reason),
                t("nothing was changed; {what_to_do}", what_to_do=again),
                ExitStatus.UNREACHABLE,
            ) from None
        self._keep_renewing()

    def _acquire(self) -> None:
        found = self._read()
        watched = lease.beat(found)
        # what an answer says held after the asking: a holder was silent from the first answer to the last asking
        since = asked = self._clock.monotonic()
        for _ in range(TAKES):
            while (holder := lease.holder_of(found or {})) is not None:
                moved, silent = lease.beat(found) != watched, asked - since
                if dead := self._why_dead(holder, found or {}, 0.0 if moved else silent):
                    break
                if moved or self._alive_here(holder):
                    raise GpufixError(
                        t("{node} is being recovered by {holder}", node=self._node, holder=holder.words),
                        t("let that run end, or ask its operator; nothing was changed"),
                        ExitStatus.LOCKED,
                    )
                left = max(0.0, lease.lasts(found or {}) - silent)
                told = t(
                    "locked by {holder}: watching for {n} s whether it still lives",
                    holder=holder.words,
                    n=f"{left:.0f}",
                )
                self._say(told)
                self._clock.sleep(LOOK_SECONDS)
                asked = self._clock.monotonic()
                found = self._read()
            if self._take(found):
                self.took_over = f"{holder.words}: {dead}" if holder is not None else ""
                return
            asked = self._clock.monotonic()
            found = self._read()  # somebody was quicker: look at who
        raise Unreadable("failed", f"lease {lease.lease_name(self._node)} changes all the time")

    def _why_dead(self, holder: Holder, found: Lease, silent: float) -> str:
        """Why ``holder``, whose lease was not renewed for ``silent`` seconds, is held for dead; empty while it is not.

        One that is seen to live is never dead, however silent: it may have been stopped, and go on.
        """
        alive = self._alive_here(holder)
        if alive is False:
            return t("its process is gone from this machine")
        if alive is None and silent >= lease.lasts(found):
            return t("its lease was not renewed for {time}", time=duration_s(silent))
        return ""

    def _read(self) -> Lease | None:
        try:
            return self._leases.lease(lease.NAMESPACE, lease.lease_name(self._node))
        except Unreadable as error:
            if error.kind == "absent":
                return None
            raise

    def _take(self, found: Lease | None) -> bool:
        """False when somebody else was quicker. Raises Unreadable, of kind ``absent`` where there are no leases."""
        body = lease.taken(self._node, self._me, self._now(), found)
        sent = self._clock.monotonic()
        try:
            held: Lease = self._leases.replace_lease(body) if found is not None else self._leases.create_lease(body)
        except Unreadable as error:
            if error.kind == "conflict" or (error.kind == "absent" and found is not None):
                return False
            if error.kind not in UNCERTAIN:
                raise
            # the answer was lost: the write may have been made, and then nobody else can undo it in our place
            with suppress(Unreadable):
                if lease.is_held_by(seen := self._read(), self._me):
                    return self._hold(seen, sent)
            raise
        return self._hold(held, sent)

    def _hold(self, held: Lease | None, sent: float) -> bool:
        with self._guard:
            self._held, self._renewed = held, sent
        return True

    # --- keeping it --------------------------------------------------------------------------------------------------

    def name_run(self, run: str) -> None:
        """Say in the lease which run this is, now if that can be done. Never raises."""
        with self._guard:
            self._me = replace(self._me, run=run)
        self.renew()

    def renew(self) -> bool:
        """Renew now, if it is ours. False when that failed and should be tried again soon. Never raises."""
        try:
            self._keep()
        except Exception:  # whatever it is: a thread that dies of it would hand the node to the next one
            return False
        return True

    def fence(self, step: str) -> None:
        """Right before ``step`` changes anything: passes when the lease was renewed in our name during this call.

        Raises GpufixError: status 8 when it is another's, or nobody's any more; 7 when that cannot be known.
        """
        if self.why_none:
            return
        with self._guard:
            self._me = replace(self._me, step=step)
        self._keep_renewing()
        reason = ""
        for attempt in range(FENCE_TRIES):
            if attempt:
                self._clock.sleep(LOOK_SECONDS)
            try:
                if not self._keep():
                    raise self._not_ours()
            except Unreadable as error:
                reason = f"{error.reason} ({t(LOG_IN)})" if error.kind == "unauthorized" else error.reason
                continue
            if self._age() < lease.SECONDS:
                return
            reason = t("the answer to its renewal took longer than it lasts")
        age = self._age()
        if age >= lease.SECONDS:
            told = t(
                "the lease of {node} cannot be renewed, not for {time}, and it lasts {n} s: {why}",
                node=self._node,
                time=duration_s(age),
                n=lease.SECONDS,
                why=reason,
            )
        else:
            told = t("the lease of {node} cannot be renewed: {why}", node=self._node, why=reason)
        raise GpufixError(
            told,
            t("nothing of {step} was done; see that the API server answers, then run this again", step=step),
            ExitStatus.UNREACHABLE,
        )

    def release(self) -> None:
        """Let the next one in, and be fenced off for good. Never raises: a lease that is left ends by itself."""
        self._ended.set()
        if not self._guard.acquire(timeout=RELEASE_SECONDS):
            return
        try:
            if self._held is not None and not self._lost:
                self._let_go(self._held)
        except Exception:  # the run is over and its result stands, whatever the API server says to this
            return
        finally:
            self._held = None
            self._guard.release()

    def _keep_renewing(self) -> None:
        """Once it was taken; and before each change, in case that its thread has ended after all."""
        done = self._lost or self._ended.is_set() or (self._thread is not None and self._thread.is_alive())
        if self._in_background and not done:
            self._thread = threading.Thread(target=self._renew_on, name="gpufix-lease", daemon=True)
            self._thread.start()

    def _renew_on(self) -> None:
        pause = RENEW_SECONDS
        while not self._ended.wait(pause) and not self._lost:
            pause = RENEW_SECONDS if self.renew() else HASTE_SECONDS

    def _keep(self) -> bool:
        """Renew now. False, for good, when the lease is not ours any more. Raises Unreadable when that is not known."""
        with self._guard:
            for _ in range(TAKES):
                if self._held is None or self._lost or self._ended.is_set():
                    return False
                sent = self._clock.monotonic()
                try:
                    body = lease.renewed(self._node, self._me, self._now(), self._held)
                    return self._hold(self._leases.replace_lease(body), sent)
                except Unreadable as error:
                    if error.kind not in ("conflict", "absent"):
                        raise
                found = self._read()
                if not lease.is_held_by(found, self._me):
                    holder = lease.holder_of(found or {})
                    self._lost = holder.words if holder is not None else t("nobody: it was taken away")
                    return False
                self._held = found  # somebody annotated it, or the answer to our own last renewal was lost
            raise Unreadable("failed", f"lease {lease.lease_name(self._node)} changes all the time")

    def _let_go(self, held: Lease) -> None:
        try:
            self._leases.replace_lease(lease.released(self._node, self._me, self._now(), held))
        except Unreadable as error:
            found = self._read() if error.kind == "conflict" else None
            if found is not None and lease.is_held_by(found, self._me):
                self._leases.replace_lease(lease.released(self._node, self._me, self._now(), found))

    def _age(self) -> float:
        return self._clock.monotonic() - self._renewed

    def _not_ours(self) -> GpufixError:
        if self._lost:
            told = t("the lease of {node} is held by {holder} now", node=self._node, holder=self._lost)
        else:
            told = t("the lease of {node} was not taken, or was let go", node=self._node)
        return GpufixError(
            told,
            t("look at what is done there now; run this again once that has ended"),
            ExitStatus.LOCKED,
        )
