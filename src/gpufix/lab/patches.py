"""What a client's write makes of an object: merge patches, and the checks of the API server around them. Pure."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpufix.lab.selectors import key_fault, name_fault, value_fault
from gpufix.lab.store import KINDS, Kind, Object

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_DIRECTIVES = ("$patch", "$retainKeys", "$setElementOrder/", "$deleteFromPrimitiveList/")
_MERGED_SCALARS = ("finalizers", "podCIDRs")
_SERVERS_OWN = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink")
_GENERATIONS = ("daemonsets", "virtualmachines", "clusterpolicies")


class NotModelled(Exception):
    """Something a real API server does and this one does not; the text says what."""


class Refused(Exception):
    """The API server refuses a request: HTTP ``code``, and the Status' ``reason`` and ``message``."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, dict(details or {})


class Subject(NamedTuple):
    """The object a request is about, for the messages."""

    kind: Kind
    name: str

    @property
    def resource(self) -> str:
        """As in messages: "nodes", "virtualmachines.kubevirt.io"."""
        return f"{self.kind.plural}.{self.kind.group}" if self.kind.group else self.kind.plural

    @property
    def details(self) -> dict[str, str]:
        group = {"group": self.kind.group} if self.kind.group else {}
        return {"name": self.name, **group, "kind": self.kind.plural}

    def not_found(self) -> Refused:
        return Refused(404, "NotFound", f'{self.resource} "{self.name}" not found', self.details)

    def exists(self) -> Refused:
        return Refused(409, "AlreadyExists", f'{self.resource} "{self.name}" already exists', self.details)

    def conflict(self, why: str) -> Refused:
        message = f'Operation cannot be fulfilled on {self.resource} "{self.name}": {why}'
        return Refused(409, "Conflict", message, self.details)

    def invalid(self, field: str, value: object, why: str) -> Refused:
        kind = f"{self.kind.kind}.{self.kind.group}" if self.kind.group else self.kind.kind
        shown = json.dumps(value, ensure_ascii=False)
        details = {**self.details, "kind": self.kind.kind}
        message = f'{kind} "{self.name}" is invalid: {field}: Invalid value: {shown}: {why}'
        return Refused(422, "Invalid", message, details)


def bad_request(message: str) -> Refused:
    return Refused(400, "BadRequest", message)


def patched(plural: str, before: Object, patch: Object, strategic: bool) -> Object:
    """``before`` after a patch to its main resource, checked. Its status, which is a resource of its own, stays.

    Raises Refused, and NotModelled for what a strategic patch says beyond the merging of maps.
    """
    subject = Subject(KINDS[plural], before["metadata"]["name"])
    if strategic:
        _check_strategic(plural, patch, ())
    after = shaped(merged(before, patch))
    check_versions(subject, before, after)
    return settled(subject, before, after)


def merged(before: Any, patch: Any) -> Any:
    """RFC 7386: maps merge, null removes, all else replaces."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return copy.deepcopy(result)


def check_versions(subject: Subject, before: Object, sent: Object) -> None:
    """Refuses an object that is not made from ``before`` (its resourceVersion or uid differ). Neither need be sent."""
    kept, told = before["metadata"], sent["metadata"]
    if told.get("uid", kept["uid"]) != kept["uid"]:
        raise subject.conflict(
            f"Precondition failed: UID in precondition: {told['uid']}, UID in object meta: {kept['uid']}"
        )
    if told.get("resourceVersion", kept["resourceVersion"]) != kept["resourceVersion"]:
        raise subject.conflict(
            "the object has been modified; please apply your changes to the latest version and try again"
        )


def settled(subject: Subject, before: Object, sent: Object) -> Object:
    """``sent`` in the place of ``before``: checked, and what only the server sets is as it was. Raises Refused."""
    after = shaped(copy.deepcopy(sent))
    check_names(subject, after, before["metadata"].get("namespace", ""))
    for key in _SERVERS_OWN:
        _keep(before["metadata"], after["metadata"], key)
    _keep(before, after, "status")
    for key in ("apiVersion", "kind"):
        _keep(before, after, key)
    after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
    check_metadata(subject, after)
    if subject.kind.plural == "nodes":
        _settle_node(subject, after)
    if subject.kind.plural == "pods" and after.get("spec") != before.get("spec"):
        raise NotModelled("a change of a pod's spec")
    if subject.kind.plural in _GENERATIONS and after.get("spec") != before.get("spec"):
        after["metadata"]["generation"] = before["metadata"].get("generation", 1) + 1
    return after


def fresh(subject: Subject, sent: Object, namespace: str) -> Object:
    """``sent`` as a new object: checked, without what only the server sets. Raises Refused."""
    item = copy.deepcopy(sent)
    check_names(subject, item, namespace)
    if fault := name_fault(subject.name):
        raise subject.invalid("metadata.name", subject.name, fault)
    for key in (*_SERVERS_OWN, "resourceVersion"):
        item["metadata"].pop(key, None)
    check_metadata(subject, item)
    return {**item, "apiVersion": subject.kind.api_version, "kind": subject.kind.kind}


def check_names(subject: Subject, sent: Object, namespace: str) -> None:
    """Refuses an object that names another kind, name or namespace than the URL."""
    kind, metadata = subject.kind, sent["metadata"]
    told = (sent.get("apiVersion", kind.api_version), sent.get("kind", kind.kind))
    if told != (kind.api_version, kind.kind):
        raise bad_request(
            f"the API version and kind in the data ({told[0]}, Kind={told[1]}) do not match the expected"
            f" ({kind.api_version}, Kind={kind.kind})"
        )
    if metadata.get("name") != subject.name:
        raise bad_request(
            f"the name of the object ({metadata.get('name', '')}) does not match the name on the URL ({subject.name})"
        )
    if metadata.setdefault("namespace", namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if not kind.namespaced:
        del metadata["namespace"]


def check_metadata(subject: Subject, item: Object) -> None:
    """Refuses labels and annotations the API does not take; empty maps of them are dropped, as the real one does."""
    metadata = item["metadata"]
    for field in ("labels", "annotations"):
        found = metadata.get(field, {})
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise bad_request(
                f"json: cannot unmarshal into Go struct field ObjectMeta.metadata.{field} of type map[string]string"
            )
        for key, value in found.items():
            if fault := key_fault(key if field == "labels" else key.lower()):
                raise subject.invalid(f"metadata.{field}", key, fault)
            if field == "labels" and (fault := value_fault(value)):
                raise subject.invalid("metadata.labels", value, fault)
        if not found:
            metadata.pop(field, None)


def shaped(item: Any) -> Object:
    """``item`` if it has the shape of an object: maps where the API has maps. Refuses it otherwise."""
    for field in ("metadata", "spec"):
        if not isinstance(item, dict) or not isinstance(item.get(field, {}), dict):
            raise bad_request(f"json: cannot unmarshal the object: {field} must be a map")
    item.setdefault("metadata", {})
    checked: Object = item
    return checked


def _keep(before: Object, after: Object, key: str) -> None:
    after.pop(key, None)
    if key in before:
        after[key] = copy.deepcopy(before[key])


def _settle_node(subject: Subject, node: Object) -> None:
    """What is empty is not kept (``omitempty``), so that a cordon undone is as if it had not been."""
    spec = node.setdefault("spec", {})
    if not isinstance(spec.get("unschedulable", False), bool):
        raise bad_request("json: cannot unmarshal into Go struct field NodeSpec.spec.unschedulable of type bool")
    taints = spec.get("taints", [])
    if not isinstance(taints, list) or not all(isinstance(taint, dict) for taint in taints):
        raise bad_request("json: cannot unmarshal into Go struct field NodeSpec.spec.taints of type []v1.Taint")
    seen = set()
    for place, taint in enumerate(taints):
        field = f"metadata.taints[{place}]"
        if fault := key_fault(str(taint.get("key", ""))):
            raise subject.invalid(f"{field}.key", taint.get("key", ""), fault)
        if taint.get("effect") not in _EFFECTS:
            raise subject.invalid(f"{field}.effect", taint.get("effect", ""), f"must be one of {', '.join(_EFFECTS)}")
        if (pair := (taint["key"], taint["effect"])) in seen:
            raise subject.invalid(field, pair[0], "taints must be unique by key and effect pair")
        seen.add(pair)
    for field in ("unschedulable", "taints"):
        if not spec.get(field):
            spec.pop(field, None)


def _check_strategic(plural: str, patch: Any, path: tuple[str, ...]) -> None:
    """Lets pass what a strategic patch and a merge patch mean alike: maps, nulls, and lists that are replaced.

    A list of maps may have a merge key; of those only a node's taints are known to be replaced as a whole.
    The status is let pass, for it is ignored.
    """
    if path == ("status",) or not isinstance(patch, dict):
        return
    for key, value in patch.items():
        here = (*path, key)
        if key.startswith(_DIRECTIVES):
            raise NotModelled(f"{key} in a strategic merge patch")
        if isinstance(value, list) and (plural, here) != ("nodes", ("spec", "taints")):
            if key in _MERGED_SCALARS or any(isinstance(entry, dict) for entry in value):
                raise NotModelled(f"the list {'.'.join(here)} in a strategic merge patch")
        elif isinstance(value, list):
            for entry in value:
                _check_strategic(plural, entry, here)
        else:
            _check_strategic(plural, value, here)
