"""The verbs of the practice cluster's API: get, list, watch, patch, update, create, delete, discovery. Pure.

They answer as a real API server does, or raise NotModelled: they never guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from gpufix.lab.patches import (
    NotModelled,
    Refused,
    Subject,
    bad_request,
    check_versions,
    fresh,
    patched,
    settled,
    shaped,
)
from gpufix.lab.request import (
    LOST,
    Reply,
    Request,
    Target,
    dry_run,
    number,
    parse_target,
    place,
    read_continue,
    refusal,
    sent_json,
    wants_table,
    write_continue,
)
from gpufix.lab.selectors import Selection, parse_fields, parse_labels
from gpufix.lab.store import KINDS, Change, Object, Store
from gpufix.lab.tables import table
from gpufix.lab.tools import ToolResult

VERSION = "v1.34.4"
"""The server's version; the recorded cluster's."""

_WATCH_SECONDS = 1800.0

_VERBS = {
    "nodes": ("patch",),
    "pods": ("patch", "delete"),
    "daemonsets": ("patch",),
    "virtualmachines": ("patch",),
    "clusterpolicies": ("patch",),
    "leases": ("create", "update", "delete"),
    "events": ("create",),
}
"""What can be done to a kind beside get, list and watch."""

_OWN_RESOURCES = ("nodes", "pods", "daemonsets")
"""Built in, so with strategic merge patches; a custom resource has none."""

_GET_PARAMETERS = frozenset({"pretty", "resourceVersion", "includeObject"})
_LIST_PARAMETERS = _GET_PARAMETERS | {
    "labelSelector",
    "fieldSelector",
    "limit",
    "continue",
    "resourceVersionMatch",
    "watch",
    "allowWatchBookmarks",
    "sendInitialEvents",
    "timeoutSeconds",
    "timeout",
}
_WRITE_PARAMETERS = frozenset({"pretty", "dryRun", "fieldManager", "fieldValidation"})
_DELETE_PARAMETERS = frozenset({"pretty", "dryRun", "gracePeriodSeconds", "propagationPolicy"})
_DELETE_OPTIONS = (_DELETE_PARAMETERS - {"pretty"}) | {"kind", "apiVersion", "preconditions"}


class Model(Protocol):
    """What the verbs act on."""

    store: Store

    def now(self) -> str:
        """RFC 3339, UTC, in seconds: "2026-12-02T08:43:24Z"."""

    def written(self, plural: str, before: Object | None, after: Object | None) -> None:
        """A client has written (``before`` None: created).

        ``after`` is None for a deletion; a pod is then still in the store, and the model decides what happens to it.
        """

    def tool(self, node: str, argv: list[str]) -> ToolResult:
        """Run a tool on the host of a node."""


class Verbs:
    """Answers requests from a model, which nobody else may touch meanwhile."""

    def __init__(self, model: Model) -> None:
        self._model, self._store = model, model.store

    def route(self, request: Request) -> Reply | Watch:
        """The answer of the verb that a request asks for. Raises Refused, BadSelector, NotModelled."""
        if request.path == "/lab/v1/tool" and request.method == "POST":
            return self._tool(request)
        if request.method == "GET" and (reply := discovery(request.path)) is not None:
            return reply
        target = parse_target(request)
        verbs: dict[tuple[str, bool], Callable[[Request, Target], Reply | Watch]] = {
            ("GET", True): self._get,
            ("GET", False): self._list,
            ("PATCH", True): self._patch,
            ("PUT", True): self._update,
            ("DELETE", True): self._delete,
            ("POST", False): self._create,
        }
        verb = {"PATCH": "patch", "PUT": "update", "DELETE": "delete", "POST": "create"}.get(request.method)
        answer = verbs.get((request.method, bool(target.name)))
        if answer is None or (verb is not None and verb not in _VERBS.get(target.kind.plural, ())):
            raise NotModelled(f"this verb for {target.kind.plural}")
        return answer(request, target)

    def _tool(self, request: Request) -> Reply:
        call = request.json()
        argv, node = (call.get("argv"), call.get("node")) if isinstance(call, dict) else (None, None)
        if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
            raise bad_request("argv must be a list of strings, and not empty")
        if not isinstance(node, str) or self._store.get("nodes", node) is None:
            raise Subject(KINDS["nodes"], str(node)).not_found()
        result = self._model.tool(node, argv)
        return Reply(200, {"code": result.code, "out": result.out, "err": result.err})

    # --- reads ---

    def _find(self, target: Target) -> Object:
        found = self._store.get(target.kind.plural, target.name, target.namespace)
        if found is None:
            raise Subject(target.kind, target.name).not_found()
        return found

    def _get(self, request: Request, target: Target) -> Reply:
        request.allow(_GET_PARAMETERS)
        as_table = wants_table(request)
        found = self._find(target)
        if as_table:
            version = found["metadata"]["resourceVersion"]
            return Reply(200, self._table(request, target.kind.plural, [found], version))
        return Reply(200, found)

    def _table(self, request: Request, plural: str, items: Iterable[Object], version: str) -> Object:
        return table(plural, items, self._model.now(), version, request.query.get("includeObject", "Metadata"))

    def _list(self, request: Request, target: Target) -> Reply | Watch:
        request.allow(_LIST_PARAMETERS)
        query, plural = request.query, target.kind.plural
        selection = Selection(
            plural,
            target.namespace,
            parse_labels(query.get("labelSelector", "")),
            parse_fields(query.get("fieldSelector", ""), plural),
        )
        as_table = wants_table(request)
        if query.get("watch", "").lower() in ("1", "true"):
            return self._watch(request, selection, as_table)
        if query.get("resourceVersionMatch") == "Exact":
            raise NotModelled("resourceVersionMatch=Exact")
        page = self._page(query, selection)
        if as_table:
            body = self._table(request, plural, page.items, page.metadata["resourceVersion"])
            return Reply(200, {**body, "metadata": page.metadata})
        kind = target.kind
        return Reply(
            200,
            {
                "kind": f"{kind.kind}List",
                "apiVersion": kind.api_version,
                "metadata": page.metadata,
                "items": page.items,
            },
        )

    def _page(self, query: Mapping[str, str], selection: Selection) -> _Page:
        limit = number(query, "limit")
        version, start = str(self._store.version), None
        if query.get("continue"):
            version, start = read_continue(query["continue"])
            if int(version) > self._store.version or self._store.since(int(version)) is None:
                message = "The provided continue parameter is too old to display a consistent list result."
                raise Refused(410, "Expired", f"{message} You must start a new list without the continue parameter.")
        rest = [
            item
            for item in self._store.all(selection.plural)
            if selection.matches(item) and (start is None or place(item) > start)
        ]
        items = rest[:limit] if limit else rest
        metadata: Object = {"resourceVersion": version}
        if len(items) < len(rest):
            metadata["continue"] = write_continue(version, items[-1])
            if not selection.labels and not selection.fields:  # the real one does not count what it has to select
                metadata["remainingItemCount"] = len(rest) - len(items)
        return _Page(metadata, items)

    def _watch(self, request: Request, selection: Selection, as_table: bool) -> Watch:
        query = request.query
        if query.get("sendInitialEvents", "").lower() in ("1", "true"):
            # The words of a server without the WatchList feature: client-go then lists first.
            why = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
            raise Refused(422, "Invalid", f'ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: {why}')
        include = query.get("includeObject", "Metadata") if as_table else ""
        seconds = float(number(query, "timeoutSeconds")) or _WATCH_SECONDS
        version = number(query, "resourceVersion")
        return Watch(self._model, selection, version, seconds, include)

    # --- writes ---

    def _patch(self, request: Request, target: Target) -> Reply:
        request.allow(_WRITE_PARAMETERS)
        plural = target.kind.plural
        strategic = request.media_type == "application/strategic-merge-patch+json"
        if not strategic and request.media_type != "application/merge-patch+json":
            raise NotModelled(f"a patch of type {request.media_type or 'unknown'}")
        if strategic and plural not in _OWN_RESOURCES:
            known = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
            message = f"the body of the request was in an unknown format - accepted media types include: {known}"
            raise Refused(415, "UnsupportedMediaType", message)
        patch = request.json()
        if not isinstance(patch, dict):
            raise bad_request("the patch must be a JSON object")
        dry = dry_run(request)
        before = self._find(target)
        return Reply(200, self._write(plural, before, patched(plural, before, patch, strategic), dry))

    def _update(self, request: Request, target: Target) -> Reply:
        request.allow(_WRITE_PARAMETERS)
        sent, dry = shaped(sent_json(request)), dry_run(request)
        before = self._store.get(target.kind.plural, target.name, target.namespace)
        subject = Subject(target.kind, target.name)
        if before is None:  # a Lease may be created by an update, but not one that was another object
            if uid := sent["metadata"].get("uid"):
                raise subject.conflict(f"Precondition failed: UID in precondition: {uid}, UID in object meta: ")
            return Reply(201, self._add(subject, sent, target.namespace, dry))
        if not sent["metadata"].get("resourceVersion"):
            raise subject.invalid("metadata.resourceVersion", 0, "must be specified for an update")
        check_versions(subject, before, sent)
        return Reply(200, self._write(target.kind.plural, before, settled(subject, before, sent), dry))

    def _create(self, request: Request, target: Target) -> Reply:
        request.allow(_WRITE_PARAMETERS)
        sent, dry = shaped(sent_json(request)), dry_run(request)
        name = sent["metadata"].get("name")
        if not name and sent["metadata"].get("generateName"):
            raise NotModelled("generateName")
        subject = Subject(target.kind, str(name or ""))
        if not name:
            raise subject.invalid("metadata.name", "", "name or generateName is required")
        if not target.namespace:
            raise bad_request("an empty namespace may not be set during creation")
        if self._store.get(target.kind.plural, subject.name, target.namespace) is not None:
            raise subject.exists()
        return Reply(201, self._add(subject, sent, target.namespace, dry))

    def _delete(self, request: Request, target: Target) -> Reply:
        request.allow(_DELETE_PARAMETERS)
        options = sent_json(request) if request.body else {}
        if not isinstance(options, dict):
            raise bad_request("the DeleteOptions must be a JSON object")
        if strange := sorted(set(options) - _DELETE_OPTIONS):
            raise NotModelled(f"{strange[0]} in DeleteOptions")
        grace = request.query.get("gracePeriodSeconds", options.get("gracePeriodSeconds"))
        if grace is not None and str(grace) == "0":
            raise NotModelled("gracePeriodSeconds=0 (a deletion by force)")
        dry = dry_run(request, options.get("dryRun") or ())
        before = self._find(target)
        subject = Subject(target.kind, target.name)
        preconditions = options.get("preconditions") or {}
        if not isinstance(preconditions, dict):
            raise bad_request("preconditions of DeleteOptions must be a JSON object")
        check_versions(subject, before, {"metadata": preconditions})
        if target.kind.plural == "pods":
            return Reply(200, before if dry else self._delete_pod(target, before))
        if not dry:
            self._store.remove(target.kind.plural, target.name, target.namespace)
            self._model.written(target.kind.plural, before, None)
        details = {**subject.details, "uid": before["metadata"]["uid"]}
        return Reply(
            200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        )

    def _delete_pod(self, target: Target, before: Object) -> Object:
        self._model.written("pods", before, None)
        return self._store.get("pods", target.name, target.namespace) or before

    def _add(self, subject: Subject, sent: Object, namespace: str, dry: bool) -> Object:
        if self._store.get("namespaces", namespace) is None:
            raise Subject(KINDS["namespaces"], namespace).not_found()
        item = fresh(subject, sent, namespace)
        if dry:
            item["metadata"]["creationTimestamp"] = self._model.now()
            return item
        after = self._store.put(subject.kind.plural, item, self._model.now())
        self._model.written(subject.kind.plural, None, after)
        return after

    def _write(self, plural: str, before: Object, after: Object, dry: bool) -> Object:
        if dry or after == before:
            return after
        stored = self._store.put(plural, after)
        self._model.written(plural, before, stored)
        return stored


class _Page(NamedTuple):
    metadata: Object
    items: list[Object]


class Watch:
    """The changes of a selection, for ``seconds``. ``include`` is a Table's includeObject; empty: plain objects."""

    def __init__(self, model: Model, selection: Selection, version: int, seconds: float, include: str) -> None:
        self.seconds = seconds
        self._model, self._selection = model, selection
        self._version, self._include = version, include
        self._headed = False

    def events(self) -> list[Object]:
        """The watch events since the last call; at first, since the version asked for. An ERROR is the last."""
        store, since = self._model.store, self._version
        self._version = store.version
        if not since:
            found = (item for item in store.all(self._selection.plural) if self._selection.matches(item))
            return [self._event("ADDED", item) for item in found]
        changes = store.since(since)
        if changes is None or since > store.version:  # the latter is of another life of this server
            message = f"too old resource version: {since} ({store.version})"
            return [{"type": "ERROR", "object": refusal(Refused(410, "Expired", message)).body}]
        seen = (self._seen(change) for change in changes if change.plural == self._selection.plural)
        return [self._event(*event) for event in seen if event is not None]

    def _seen(self, change: Change) -> tuple[str, Object] | None:
        """A change as the selection sees it: what comes to match is added, what ceases to match is deleted."""
        gone = change.type == "DELETED"
        before = change.object if gone else change.before
        matched = before is not None and self._selection.matches(before)
        matches = not gone and self._selection.matches(change.object)
        if matches:
            return ("MODIFIED" if matched else "ADDED"), change.object
        if matched and before is not None:
            metadata = {**before["metadata"], "resourceVersion": str(change.version)}
            return "DELETED", {**before, "metadata": metadata}
        return None

    def _event(self, type: str, item: Object) -> Object:
        if not self._include:
            return {"type": type, "object": item}
        version = item["metadata"]["resourceVersion"]
        body = table(self._selection.plural, [item], self._model.now(), version, self._include)
        if self._headed:  # the columns come once
            body["columnDefinitions"] = None
        self._headed = True
        return {"type": type, "object": body}


def discovery(path: str) -> Reply | None:
    """The documents that tell a client what there is, and the health checks; None for any other path."""
    if path in ("/healthz", "/livez", "/readyz"):
        return Reply(200, "ok")
    if path == "/version":
        major, minor, _ = VERSION.removeprefix("v").split(".")
        return Reply(200, {"major": major, "minor": minor, "gitVersion": VERSION, "platform": "linux/amd64"})
    if path.startswith("/openapi/"):
        # kubectl asks by itself, and goes on without: it then leaves the checking to the server.
        return refusal(Refused(404, "NotFound", LOST))
    match path.strip("/").split("/"):
        case ["api"]:
            return Reply(200, {"kind": "APIVersions", "versions": ["v1"]})
        case ["apis"]:
            groups = [_group(group) for group in _groups()]
            return Reply(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        case ["apis", group] if group in _groups():
            return Reply(200, {"kind": "APIGroup", "apiVersion": "v1", **_group(group)})
        case ["apis", group] if group:
            return refusal(Refused(404, "NotFound", LOST))
        case ["api", "v1"]:
            return Reply(200, _resources("v1"))
        case ["apis", group, version] if any(kind.api_version == f"{group}/{version}" for kind in KINDS.values()):
            return Reply(200, _resources(f"{group}/{version}"))
    return None


def _groups() -> list[str]:
    return sorted({kind.group for kind in KINDS.values() if kind.group})


def _group(group: str) -> Object:
    versions = sorted({kind.version for kind in KINDS.values() if kind.group == group})
    listed = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": listed, "preferredVersion": listed[0]}


def _resources(api_version: str) -> Object:
    resources = [
        {
            "name": kind.plural,
            "singularName": kind.singular,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": sorted(("get", "list", "watch", *_VERBS.get(kind.plural, ()))),
            **({"shortNames": list(kind.short)} if kind.short else {}),
        }
        for kind in KINDS.values()
        if kind.api_version == api_version
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources}
