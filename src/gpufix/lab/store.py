"""The objects of the practice cluster: what a Kubernetes API server keeps in etcd. Pure: no I/O, no clock."""

from __future__ import annotations

import marshal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Object = dict[str, Any]


class Kind(NamedTuple):
    """A resource of the API. ``group`` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    singular: str
    short: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


KINDS = {
    kind.plural: kind
    for kind in (
        Kind("", "v1", "namespaces", "Namespace", False, "namespace", ("ns",)),
        Kind("", "v1", "nodes", "Node", False, "node", ("no",)),
        Kind("", "v1", "pods", "Pod", True, "pod", ("po",)),
        Kind("", "v1", "events", "Event", True, "event", ("ev",)),
        Kind("apps", "v1", "daemonsets", "DaemonSet", True, "daemonset", ("ds",)),
        Kind("coordination.k8s.io", "v1", "leases", "Lease", True, "lease"),
        Kind("kubevirt.io", "v1", "virtualmachines", "VirtualMachine", True, "virtualmachine", ("vm", "vms")),
        Kind(
            "kubevirt.io",
            "v1",
            "virtualmachineinstances",
            "VirtualMachineInstance",
            True,
            "virtualmachineinstance",
            ("vmi", "vmis"),
        ),
        Kind("kubevirt.io", "v1", "kubevirts", "KubeVirt", True, "kubevirt", ("kv", "kvs")),
        Kind("nvidia.com", "v1", "clusterpolicies", "ClusterPolicy", False, "clusterpolicy"),
    )
}
"""By plural; no two groups here share one."""

HISTORY = 2000
"""Changes that are kept for watches. Who is further behind must list again, as with etcd's compaction."""


class Change(NamedTuple):
    """One change. ``type`` is ADDED | MODIFIED | DELETED; ``object`` is the object after it (before it, if deleted).

    ``before`` is what a MODIFIED object was: a watch with a selector must know whether it matched.
    """

    version: int
    type: str
    plural: str
    object: Object
    before: Object | None = None


@dataclass(slots=True)
class Store:
    """Objects by plural, namespace ("" where there is none) and name, each change with a new resource version.

    What goes in and what comes out are copies: nobody changes an object but by ``put``.
    """

    version: int = 1
    _objects: dict[str, dict[tuple[str, str], Object]] = field(default_factory=lambda: {name: {} for name in KINDS})
    _changes: list[Change] = field(default_factory=list)

    def get(self, plural: str, name: str, namespace: str = "") -> Object | None:
        found = self._objects[plural].get((namespace, name))
        return copied(found) if found is not None else None

    def all(self, plural: str) -> Iterator[Object]:
        """Copies of all objects of a kind, by namespace and name."""
        for key in sorted(self._objects[plural]):
            yield copied(self._objects[plural][key])

    def put(self, plural: str, item: Object, now: str = "") -> Object:
        """Create or replace an object; one that is as it was keeps its resource version. Returns the stored copy.

        ``now`` (RFC 3339) is the creationTimestamp of an object that is new and has none.
        """
        kind = KINDS[plural]
        key = _key(kind, item)
        before = self._objects[plural].get(key)
        after = copied(item)
        after.update(apiVersion=kind.api_version, kind=kind.kind)
        metadata = after["metadata"]
        if before is not None:
            metadata["resourceVersion"] = before["metadata"]["resourceVersion"]
            if after == before:
                return after
        else:
            metadata.setdefault("uid", _uid(plural, key, self.version))
            if now:
                metadata.setdefault("creationTimestamp", now)
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        self._objects[plural][key] = after
        self._note("MODIFIED" if before is not None else "ADDED", plural, after, before)
        return copied(after)

    def remove(self, plural: str, name: str, namespace: str = "") -> None:
        """Take an object away; one that is not there is no error."""
        gone = self._objects[plural].pop((namespace, name), None)
        if gone is not None:
            self.version += 1
            gone["metadata"]["resourceVersion"] = str(self.version)
            self._note("DELETED", plural, gone)

    def since(self, version: int) -> list[Change] | None:
        """The changes after ``version``, oldest first; None when they are not all kept any more."""
        if self._changes and version < self._changes[0].version - 1:
            return None
        return [change for change in self._changes if change.version > version]

    def _note(self, kind: str, plural: str, item: Object, before: Object | None = None) -> None:
        self._changes.append(Change(self.version, kind, plural, copied(item), before))
        del self._changes[:-HISTORY]


def copied(item: Object) -> Object:
    """A copy of JSON values; ten times as fast as copy.deepcopy, and the rules read everything at every step."""
    fresh: Object = marshal.loads(marshal.dumps(item))
    return fresh


def _key(kind: Kind, item: Object) -> tuple[str, str]:
    metadata = item["metadata"]
    return (metadata["namespace"] if kind.namespaced else "", metadata["name"])


def _uid(plural: str, key: tuple[str, str], version: int) -> str:
    """The same for the same history, so that a run of the model can be repeated."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{plural}/{key[0]}/{key[1]}/{version}"))
