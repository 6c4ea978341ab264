"""One operator per node: takes the node's Lease before a run, keeps it while the run lasts, and fences each change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

from gpufix.core import lease
from gpufix.core.lease import Holder
from gpufix.errors import ExitStatus, GpufixError
from gpufix.world.cluster import Unreadable

RENEW_SECONDS = 8.0
LOOK_SECONDS = 1.0
"""Between two looks at a lease of which is not known whether its holder lives."""

Lease = Mapping[str, Any]


class Leases(Protocol):
    """The door to the API. Each raises Unreadable; ``absent`` is 404, ``conflict`` is 409."""

    def lease(self, namespace: str, name: str) -> dict[str, Any]: ...

    def create_lease(self, body: Lease) -> dict[str, Any]: ...

    def replace_lease(self, body: Lease) -> dict[str, Any]: ...


class Clock(Protocol):
    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class Lock:
    """The lease of ``node``. ``why_none``: why it could not be taken at all (forbidden), so that nobody is kept out.

    ``took_over``: whose it was, when its holder was found dead.
    """

    def __init__(
        self,
        leases: Leases,
        node: str,
        me: Holder,
        clock: Clock,
        *,
        alive_here: Callable[[Holder], bool | None],
        say: Callable[[str], None] = lambda text: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``alive_here`` says whether a holder is a living process of this machine; None when it is another one's."""
        self._leases = leases
        self._node = node
        self._me = me
        self._clock = clock
        self._alive_here = alive_here
        self._say = say
        self._now = now
        self._held: Lease | None = None
        self._lost = ""
        self._guard = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.why_none = ""
        self.took_over = ""

    # --- taking it ---

    def acquire(self) -> None:
        """Take the lease, or raise GpufixError (status 8) naming a living holder.

        A holder of another machine that does not renew is waited for as long as a lease lasts, then taken for dead.
        """
        try:
            self._acquire()
        except Unreadable as error:
            if error.kind in ("forbidden", "absent"):
                self.why_none = error.reason
                return
            raise GpufixError(
                f"the lock of {self._node} cannot be taken: {error.reason}",
                "nothing was changed",
                ExitStatus.UNREACHABLE,
            ) from None
        self._thread = threading.Thread(target=self._renew, name="gpufix-lease", daemon=True)
        self._thread.start()

    def _acquire(self) -> None:
        seen, since = "", self._clock.monotonic()
        while True:
            found = self._read()
            holder = lease.holder_of(found) if found is not None else None
            if holder is None or self._is_dead(holder, found, seen, since):
                if self._take(found):
                    self.took_over = holder.words if holder is not None else ""
                    return
                seen, since = "", self._clock.monotonic()  # somebody was quicker: look at who
                continue
            now = lease.beat(found or {})
            if self._alive_here(holder) or (seen and now != seen):
                raise GpufixError(
                    f"{self._node} is being recovered by {holder.words}",
                    "let that run end, or ask its operator; nothing was changed",
                    ExitStatus.LOCKED,
                )
            seen = seen or now
            left = lease.SECONDS - (self._clock.monotonic() - since)
            self._say(f"locked by {holder.words}: waiting {max(0, left):.0f} s to see whether it still lives")
            self._clock.sleep(LOOK_SECONDS)

    def _is_dead(self, holder: Holder, found: Lease | None, seen: str, since: float) -> bool:
        if self._alive_here(holder) is False:
            return True
        same = bool(seen) and lease.beat(found or {}) == seen
        return same and self._clock.monotonic() - since > lease.SECONDS

    def _read(self) -> Lease | None:
        try:
            return self._leases.lease(lease.NAMESPACE, lease.lease_name(self._node))
        except Unreadable as error:
            if error.kind == "absent":
                return None
            raise

    def _take(self, found: Lease | None) -> bool:
        """False when somebody else was quicker."""
        body = lease.taken(self._node, self._me, self._now(), found)
        try:
            self._held = self._leases.replace_lease(body) if found is not None else self._leases.create_lease(body)
        except Unreadable as error:
            if error.kind == "conflict":
                return False
            raise
        return True

    # --- keeping it ---

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            with suppress(Unreadable):  # it is tried again; a change asks for itself, and stops when it cannot be known
                self._keep()

    def _keep(self) -> None:
        """Renew now. Raises Unreadable; remembers when the lease is another's."""
        with self._guard:
            if self._held is None or self._lost:
                return
            try:
                self._held = self._leases.replace_lease(lease.renewed(self._node, self._me, self._now(), self._held))
                return
            except Unreadable as error:
                if error.kind not in ("conflict", "absent"):
                    raise
            found = self._read()
            holder = lease.holder_of(found) if found is not None else None
            if found is not None and holder is not None and holder.identity == self._me.identity:
                self._held = found  # an annotation of somebody's: still ours
            else:
                self._lost = holder.words if holder is not None else "nobody: it was taken away"

    def fence(self, step: str) -> None:
        """Right before a change: the lease is ours this moment, or GpufixError (status 8, or 7 when it cannot be known)."""
        if self._held is None:
            return
        self._me = replace(self._me, step=step)
        try:
            self._keep()
            if not self._lost:
                self._keep()  # what _keep found to be ours still is renewed in our name
        except Unreadable as error:
            raise GpufixError(
                f"whether {self._node} is still ours to change is not known: {error.reason}",
                "nothing of the step was done",
                ExitStatus.UNREACHABLE,
            ) from None
        if self._lost:
            raise GpufixError(
                f"{self._node} was taken over by {self._lost}", "look at what is done there now", ExitStatus.LOCKED
            )

    def release(self) -> None:
        """Let the next one in. Never raises: a lease that is left ends by itself."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(1.0)
        with self._guard, suppress(Unreadable):
            if self._held is not None and not self._lost:
                self._leases.replace_lease(lease.released(self._node, self._now(), self._held))
            self._held = None
