"""Who works on a node: what a coordination.k8s.io Lease says, and what may be written over it. Pure.

One operator per node. A lease is taken by name and resource version, so that of two who try at once the API server lets
one in. Whether its holder lives is seen by watching it being renewed, never by comparing its times with this machine's
clock: the clocks of two machines need not agree (as in client-go's leader election).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

NAMESPACE = "kube-node-lease"
"""Where the kubelets' own leases are: it is there on every cluster since 1.14."""
SECONDS = 30
"""How long a lease that is not renewed is believed."""
_STEP, _BEGAN = "gpufix/step", "gpufix/process"


@dataclass(frozen=True, slots=True)
class Holder:
    """``identity`` is user@host/pid; ``began`` names the process for good on its machine (``process_began``)."""

    identity: str
    began: str = ""
    step: str = ""
    since: str = ""
    """RFC 3339, by its own clock."""

    @property
    def machine(self) -> str:
        return self.identity.rpartition("/")[0].rpartition("@")[2]

    @property
    def pid(self) -> int:
        text = self.identity.rpartition("/")[2]
        return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0

    @property
    def words(self) -> str:
        """As a person is told."""
        person, _, pid = self.identity.rpartition("/")
        at = f", at {self.step}" if self.step else ""
        since = f", since {self.since}" if self.since else ""
        return f"{person} (process {pid}{at}{since})"


def lease_name(node: str) -> str:
    return f"gpufix-{node}"


def holder_of(lease: Mapping[str, Any]) -> Holder | None:
    """Who holds ``lease``; None when nobody does."""
    spec, metadata = lease.get("spec") or {}, lease.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    identity = spec.get("holderIdentity")
    if not isinstance(identity, str) or not identity:
        return None
    return Holder(
        identity, str(annotations.get(_BEGAN, "")), str(annotations.get(_STEP, "")), str(spec.get("acquireTime") or "")
    )


def beat(lease: Mapping[str, Any]) -> str:
    """Something that is another one after each renewal."""
    return str((lease.get("metadata") or {}).get("resourceVersion", ""))


def taken(node: str, me: Holder, now: datetime, old: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The lease as ``me`` takes it, over ``old`` (which must still be so) or anew."""
    before = (old or {}).get("spec") or {}
    transitions = before.get("leaseTransitions")
    lease = _lease(node, me, now, old)
    lease["spec"].update(
        acquireTime=_micro(now), leaseTransitions=(transitions if isinstance(transitions, int) else 0) + bool(old)
    )
    return lease


def renewed(node: str, me: Holder, now: datetime, old: Mapping[str, Any]) -> dict[str, Any]:
    """The lease that ``me`` holds, kept."""
    lease = _lease(node, me, now, old)
    before = old.get("spec") or {}
    lease["spec"].update({key: before[key] for key in ("acquireTime", "leaseTransitions") if key in before})
    return lease


def released(node: str, now: datetime, old: Mapping[str, Any]) -> dict[str, Any]:
    """The lease with nobody in it: whoever comes next need not wait."""
    lease = renewed(node, Holder(""), now, old)
    lease["spec"]["holderIdentity"] = ""
    lease["metadata"]["annotations"] = {}
    return lease


def _lease(node: str, me: Holder, now: datetime, old: Mapping[str, Any] | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": lease_name(node),
        "namespace": NAMESPACE,
        "annotations": {_STEP: me.step, _BEGAN: me.began},
    }
    if old is not None:
        metadata["resourceVersion"] = beat(old)
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {"holderIdentity": me.identity, "leaseDurationSeconds": SECONDS, "renewTime": _micro(now)},
    }


def _micro(now: datetime) -> str:
    """MicroTime: the API server takes no other precision."""
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
