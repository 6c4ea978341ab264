"""The practice cluster in time: objects, machines, and what is still to come. Pure: time is what it is told.

Rules live in the modules beside this one (kubelet, operator, controllers, kubevirt); each says which fact it follows.
``pace`` divides every delay: at 10 a kubelet's RestartSec of 10 s passes in one. Time stamps are never bent.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gpufix.lab.machine import Machine
from gpufix.lab.store import Object, Store

Rule = Callable[["World"], None]


@dataclass(slots=True)
class World:
    """All there is. ``now`` in Unix seconds. Rules run after every event until nothing changes any more."""

    now: float
    pace: float = 1.0
    store: Store = field(default_factory=Store)
    machines: dict[str, Machine] = field(default_factory=dict)
    operator: bool = True
    """The GPU Operator runs."""
    rules: tuple[Rule, ...] = ()
    unknown: list[str] = field(default_factory=list)
    """What was asked of the lab that it does not model."""
    serial: int = 0
    _timers: list[tuple[float, int, str]] = field(default_factory=list)
    _actions: dict[str, tuple[float, int, Callable[[], None]]] = field(default_factory=dict)
    _count: int = 0
    _settled: int = 0

    # --- time ---

    def later(self, seconds: float, key: str, action: Callable[[], None]) -> None:
        """Do ``action`` after so many (unpaced) seconds, unless something of the same key is due already."""
        if key not in self._actions:
            self._count += 1
            due = self.now + seconds / self.pace
            self._actions[key] = (due, self._count, action)
            heapq.heappush(self._timers, (due, self._count, key))

    def cancel(self, prefix: str) -> None:
        """Forget what is due under keys that begin so."""
        for key in [key for key in self._actions if key.startswith(prefix)]:
            del self._actions[key]

    def advance(self, to: float) -> None:
        """Let time pass until ``to``. Time that has passed already is no error."""
        if self.store.version != self._settled:
            self.settle()
        while self._timers and self._timers[0][0] <= to:
            due, count, key = heapq.heappop(self._timers)
            entry = self._actions.get(key)
            if entry is None or entry[:2] != (due, count):
                continue  # cancelled, or set anew
            del self._actions[key]
            self.now = max(self.now, due)
            entry[2]()
            self.settle()
        self.now = max(self.now, to)

    def skip(self, seconds: float) -> None:
        """Let a long time pass in which nothing new happens: all that is due is put off by as much."""
        self.now += seconds
        self._actions = {key: (due + seconds, n, action) for key, (due, n, action) in self._actions.items()}
        self._timers = sorted((due, n, key) for key, (due, n, _action) in self._actions.items())

    def hurry(self, pace: float) -> None:
        """Let delays pass at ``pace`` from now on, those under way too."""
        ratio = self.pace / pace
        self._actions = {
            key: (self.now + (due - self.now) * ratio, n, action) for key, (due, n, action) in self._actions.items()
        }
        self._timers = sorted((due, n, key) for key, (due, n, _action) in self._actions.items())
        self.pace = pace

    def settle(self) -> None:
        """Run the rules until none changes an object. Raises RuntimeError when that does not end: a wrong rule."""
        for _round in range(60):
            before = self.store.version
            for rule in self.rules:
                rule(self)
            if self.store.version == before:
                self._settled = before
                return
        raise RuntimeError("the model's rules do not come to rest")

    # --- objects ---

    @property
    def stamp(self) -> str:
        return stamp(self.now)

    def put(self, plural: str, item: Object) -> Object:
        return self.store.put(plural, item, self.stamp)

    def node(self, name: str) -> Object:
        found = self.store.get("nodes", name)
        if found is None:
            raise KeyError(f"the practice cluster has no node {name}")
        return found

    def labels(self, name: str) -> dict[str, str]:
        labels: dict[str, str] = self.node(name)["metadata"].get("labels", {})
        return labels

    def set_labels(self, name: str, changes: dict[str, str | None]) -> None:
        """Set labels of a node; None takes one off."""
        node = self.node(name)
        labels = node["metadata"].setdefault("labels", {})
        for key, value in changes.items():
            if value is None:
                labels.pop(key, None)
            else:
                labels[key] = value
        self.put("nodes", node)

    def pods_on(self, node: str) -> list[Object]:
        return [pod for pod in self.store.all("pods") if pod["spec"].get("nodeName") == node]

    def pods_by_node(self) -> dict[str, list[Object]]:
        found: dict[str, list[Object]] = {}
        for pod in self.store.all("pods"):
            found.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
        return found

    def is_ready(self, node: str) -> bool:
        return condition(self.node(node), "Ready").get("status") == "True"

    def suffix(self) -> str:
        """The five letters at the end of a generated name, from the alphabet that Kubernetes uses."""
        self.serial += 1
        alphabet, number, letters = "bcdfghjklmnpqrstvwxz2456789", self.serial * 7919 + 12345, ""
        for _ in range(5):
            number, index = divmod(number, len(alphabet))
            letters += alphabet[index]
            number += self.serial * 31
        return letters

    def event(self, about: Object, reason: str, message: str, kind: str = "Normal", component: str = "kubelet") -> None:
        """Record an event, or count it up when the same was said before."""
        metadata = about["metadata"]
        namespace = metadata.get("namespace", "default")
        for old in self.store.all("events"):
            same = old["involvedObject"].get("uid") == metadata.get("uid") and old["reason"] == reason
            if same and old["message"] == message:
                old.update(count=old["count"] + 1, lastTimestamp=self.stamp)
                self.put("events", old)
                return
        reference: Object = {key: about[key] for key in ("apiVersion", "kind") if key in about}
        reference.update({key: metadata[key] for key in ("name", "namespace", "uid") if key in metadata})
        self.serial += 1
        self.put(
            "events",
            {
                "metadata": {"name": f"{metadata['name']}.{self.serial:016x}", "namespace": namespace},
                "involvedObject": reference, "reason": reason, "message": message, "type": kind, "count": 1,
                "firstTimestamp": self.stamp, "lastTimestamp": self.stamp, "source": {"component": component},
            },
        )  # fmt: skip


def stamp(at: float) -> str:
    """RFC 3339 in UTC, whole seconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def set_condition(status: dict[str, Any], kind: str, value: str, now: str, **more: str) -> None:
    """Set a condition; its lastTransitionTime moves only when the status does."""
    conditions = status.setdefault("conditions", [])
    old = next((one for one in conditions if one["type"] == kind), None)
    changed = old is None or old["status"] != value
    since = now if old is None or changed else old["lastTransitionTime"]
    fresh = {"type": kind, "status": value, "lastTransitionTime": since, **more}
    if old is None:
        conditions.append(fresh)
    else:
        conditions[conditions.index(old)] = fresh


def condition(item: Object, kind: str) -> dict[str, Any]:
    """A condition of an object, empty where there is none."""
    conditions = item.get("status", {}).get("conditions", [])
    return next((one for one in conditions if one["type"] == kind), {})
