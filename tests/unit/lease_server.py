"""Leases in memory, by the API server's own rules: resource versions, uids, conflicts. And a clock to go with them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from gpufix.world.cluster import Unreadable


class Leases:
    """``before`` and ``after`` are told the verb around each call, and may raise Unreadable: before the write is made,
    or after it, when only its answer is lost. ``refused`` maps a verb to the kind of its refusal."""

    def __init__(self) -> None:
        self.found: dict[str, Any] | None = None
        self.version = 100
        self.made = 0
        self.calls: list[str] = []
        self.refused: dict[str, str] = {}
        self.before: Callable[[str], None] = lambda verb: None
        self.after: Callable[[str], None] = lambda verb: None

    @property
    def holder(self) -> str:
        """The key of who has it."""
        return str(((self.found or {}).get("spec") or {}).get("holderIdentity", "")).rpartition("/")[2]

    def lease(self, namespace: str, name: str) -> dict[str, Any]:
        def get() -> dict[str, Any]:
            if self.found is None:
                raise Unreadable("absent", f"get lease: 404 {namespace}/{name} not found")
            return self.found

        return self._call("get", get)

    def create_lease(self, body: Mapping[str, Any]) -> dict[str, Any]:
        def create() -> dict[str, Any]:
            assert "resourceVersion" not in body["metadata"]
            if self.found is not None:
                raise Unreadable("conflict", "create lease: 409 already exists")
            self.made += 1
            return self._put(body, f"uid-{self.made}")

        return self._call("create", create)

    def replace_lease(self, body: Mapping[str, Any]) -> dict[str, Any]:
        def replace() -> dict[str, Any]:
            metadata = body["metadata"]
            if self.found is None:
                if metadata.get("uid"):
                    raise Unreadable("conflict", "replace lease: 409 Precondition failed: UID in precondition")
                self.made += 1
                return self._put(body, f"uid-{self.made}")
            kept = self.found["metadata"]
            if metadata["resourceVersion"] != kept["resourceVersion"] or metadata["uid"] != kept["uid"]:
                raise Unreadable("conflict", "replace lease: 409 the object has been modified")
            return self._put(body, kept["uid"])

        return self._call("replace", replace)

    def annotate(self, **annotations: str) -> None:
        """As somebody else's controller does."""
        assert self.found is not None
        self._put(self.found, self.found["metadata"]["uid"])
        self.found["metadata"].setdefault("annotations", {}).update(annotations)

    def _put(self, body: Mapping[str, Any], uid: str) -> dict[str, Any]:
        self.version += 1
        self.found = copy.deepcopy(dict(body))
        self.found["metadata"] |= {"resourceVersion": str(self.version), "uid": uid}
        return self.found

    def _call(self, verb: str, act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        self.calls.append(verb)
        self.before(verb)
        if verb in self.refused:
            raise Unreadable(self.refused[verb], f"{verb} lease: {self.refused[verb]}")
        answer = copy.deepcopy(act())
        self.after(verb)
        return answer


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.while_asleep: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.while_asleep()
