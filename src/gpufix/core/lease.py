"""Who works on a node: what a coordination.k8s.io Lease says, and what may be written over it. Pure.

One operator per node. A lease is taken by name and resource version, so that of two who try at once the API server lets
one in. Whether its holder lives is seen by watching it being renewed, never by comparing its times with this machine's
clock: the clocks of two machines need not agree (as in client-go's leader election).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpufix.core.parse import times
from gpufix.language import t
from gpufix.text import stamp

NAMESPACE = "kube-node-lease"
"""Where the kubelets' own leases are: it is there on every cluster since 1.14."""
SECONDS = 30
"""How long a lease that is not renewed is believed."""
LONGEST = 300
"""A lease that claims to last longer is not believed: nobody would ever get past a dead holder."""
_STEP, _PROCESS, _RUN = "gpufix/step", "gpufix/process", "gpufix/run"
_OURS = (_STEP, _PROCESS, _RUN)
_NAME_LIMIT = 253


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lease. ``process`` names the process for good on its machine (``world.journal.process_mark``).

    ``key`` is another one for each lock that is taken: a user, a host's name and a process id can be the same in two
    containers, and then neither would see that the other has the lease.
    """

    person: str
    """user@host."""
    pid: int = 0
    key: str = ""
    process: str = ""
    run: str = ""
    step: str = ""
    since: str = ""
    """RFC 3339, by its own clock."""

    @property
    def identity(self) -> str:
        """As in ``holderIdentity``."""
        return f"{self.person}/{self.pid}/{self.key}"

    @property
    def machine(self) -> str:
        return self.person.rpartition("@")[2]

    @property
    def words(self) -> str:
        """As a person is told."""
        about = [t("process {pid}", pid=self.pid)] if self.pid else []
        about += [t("run {run}", run=self.run)] if self.run else []
        about += [t("at {step}", step=self.step)] if self.step else []
        about += [t("since {moment}", moment=times.told(self.since))] if self.since else []
        return f"{self.person} ({', '.join(about)})" if about else self.person


def lease_name(node: str) -> str:
    """``gpufix-NODE``; for a name that would be too long, a digest of it."""
    name = f"gpufix-{node}"
    return name if len(name) <= _NAME_LIMIT else f"gpufix-{hashlib.sha256(node.encode()).hexdigest()[:40]}"


def holder_of(lease: Mapping[str, Any]) -> Holder | None:
    """Who holds ``lease``; None when nobody does. An identity that gpufix did not write is taken as it stands."""
    spec, annotations = _part(lease, "spec"), _part(_part(lease, "metadata"), "annotations")
    identity = spec.get("holderIdentity")
    if not isinstance(identity, str) or not identity:
        return None
    person, pid, key = [*identity.rsplit("/", 2), "", ""][:3]
    ours = bool(person and key) and pid.isascii() and pid.isdigit() and len(pid) < 12
    return Holder(
        person if ours else identity,
        int(pid) if ours else 0,
        key if ours else "",
        process=str(annotations.get(_PROCESS, "")),
        run=str(annotations.get(_RUN, "")),
        step=str(annotations.get(_STEP, "")),
        since=str(spec.get("acquireTime") or ""),
    )


def is_held_by(lease: Mapping[str, Any] | None, me: Holder) -> bool:
    holder = holder_of(lease) if lease is not None else None
    return holder is not None and bool(me.key) and holder.key == me.key


def beat(lease: Mapping[str, Any] | None) -> str:
    """What is another one after each renewal; empty where there is no lease.

    Not the resource version: that moves too when somebody merely annotates the lease of a dead one.
    """
    return json.dumps(_part(lease, "spec"), sort_keys=True, default=str) if lease is not None else ""


def lasts(lease: Mapping[str, Any]) -> int:
    """For how many seconds ``lease`` is believed without being renewed, as its holder said."""
    said = _part(lease, "spec").get("leaseDurationSeconds")
    return min(said, LONGEST) if isinstance(said, int) and said > 0 else SECONDS


def taken(node: str, me: Holder, now: datetime, old: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The lease as ``me`` takes it, over ``old`` (which must still be so) or anew."""
    lease = _written(node, me, now, old)
    before = _part(old or {}, "spec").get("leaseTransitions")
    lease["spec"].update(
        acquireTime=stamp(now), leaseTransitions=(before if isinstance(before, int) else 0) + (old is not None)
    )
    return lease


def renewed(node: str, me: Holder, now: datetime, old: Mapping[str, Any]) -> dict[str, Any]:
    """The lease that ``me`` holds, kept."""
    return _written(node, me, now, old)


def released(node: str, me: Holder, now: datetime, old: Mapping[str, Any]) -> dict[str, Any]:
    """The lease with nobody in it: whoever comes next need not wait."""
    lease = _written(node, me, now, old)
    for key in ("holderIdentity", "acquireTime"):
        lease["spec"].pop(key, None)
    for key in _OURS:
        lease["metadata"]["annotations"].pop(key, None)
    return lease


def _written(node: str, me: Holder, now: datetime, old: Mapping[str, Any] | None) -> dict[str, Any]:
    """A lease of ``me``. What others wrote on ``old`` stays, and so does its uid: a lease that was deleted and made
    again meanwhile is another one, though a PUT would bring the old one back (its strategy is AllowCreateOnUpdate)."""
    before = _part(old or {}, "metadata")
    metadata = {key: value for key, value in before.items() if key not in ("managedFields", "annotations")}
    others = {key: value for key, value in _part(before, "annotations").items() if key not in _OURS}
    said = {_STEP: me.step, _PROCESS: me.process, _RUN: me.run}
    annotations = {**others, **{key: value for key, value in said.items() if value}}
    spec = {
        **_part(old or {}, "spec"),
        "holderIdentity": me.identity,
        "leaseDurationSeconds": SECONDS,
        "renewTime": stamp(now),
    }
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {**metadata, "name": lease_name(node), "namespace": NAMESPACE, "annotations": annotations},
        "spec": spec,
    }


def _part(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = value.get(key)
    return part if isinstance(part, Mapping) else {}
