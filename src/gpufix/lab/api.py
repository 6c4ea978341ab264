"""The practice cluster's API server: HTTP on the loopback over a Store. kubectl and the Python client talk to it.

It answers as a real API server does, or it says 501 and notes the request in ``LabApi.unknown``: it never guesses.
"""

from __future__ import annotations

import base64
import hmac
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlsplit

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
from gpufix.lab.selectors import BadSelector, Selection, parse_fields, parse_labels
from gpufix.lab.store import KINDS, Change, Kind, Object, Store
from gpufix.lab.tables import table
from gpufix.lab.tools import ToolResult

VERSION = "v1.34.4"
"""The server's version; the recorded cluster's."""

BODY_LIMIT = 1 << 20
_DRAINED = 8 << 20
"""So much of a body that is too long is read all the same: else the client sees a reset and not the 413."""
_WATCH_SECONDS = 1800.0
_TICK = 0.5
"""A watch looks so often whether time has changed the model, whether the client is gone, and whether to stop."""

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

_USER = "lab"
_LOST = "the server could not find the requested resource"


class Backend(Protocol):
    """The model behind the API."""

    store: Store
    changed: threading.Condition
    """Held around every use of the store; all are notified after each change."""

    def advance(self) -> None:
        """Bring the model to the present. Called with ``changed`` held, before each answer."""

    def now(self) -> str:
        """RFC 3339, UTC, in seconds: "2026-12-02T08:43:24Z"."""

    def written(self, plural: str, before: Object | None, after: Object | None) -> None:
        """A client has written (``before`` None: created). Called with ``changed`` held.

        ``after`` is None for a deletion; a pod is then still in the store, and the model decides what happens to it.
        """

    def tool(self, node: str, argv: list[str]) -> ToolResult:
        """Run a tool on the host of a node. Called with ``changed`` held."""


class Request(NamedTuple):
    """One HTTP request. Of a query parameter given twice the first counts, as in Go."""

    method: str
    target: str
    headers: Message
    body: bytes = b""

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def segments(self) -> list[str]:
        return [unquote(part) for part in self.path.split("/")[1:]]

    @property
    def query(self) -> dict[str, str]:
        return dict(reversed(parse_qsl(urlsplit(self.target).query, keep_blank_values=True)))

    @property
    def media_type(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def json(self) -> Any:
        """The body as JSON. Refuses one that is none."""
        try:
            return json.loads(self.body, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            raise bad_request("the request body is not valid JSON") from None

    def allow(self, parameters: frozenset[str]) -> None:
        """Raises NotModelled when a query parameter is not among those that are understood here."""
        if strange := sorted(set(self.query) - parameters):
            raise NotModelled(f"the query parameter {strange[0]}")


class Reply(NamedTuple):
    """``body`` is JSON, or plain text."""

    code: int
    body: Object | str


class Target(NamedTuple):
    """What a URL names. ``name`` is empty for a collection, ``namespace`` also for all namespaces."""

    kind: Kind
    namespace: str
    name: str


class LabApi:
    """Serves ``backend`` at ``url`` from ``start`` to ``stop``. ``unknown`` holds what was answered with 501 or 500.

    ``kubeconfig_url`` carries the token as a password: kubectl sends no bearer token where there is no TLS, but what
    stands in the URL it does send, as Basic authorization. That is accepted too.
    """

    def __init__(self, backend: Backend, token: str, port: int = 0) -> None:
        self.unknown: list[str] = []
        self._backend = backend
        self._stopping = threading.Event()
        self._server = _Server(("127.0.0.1", port), self, backend, token, self._stopping)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.kubeconfig_url = f"http://{_USER}:{quote(token, safe='')}@127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        """Serve, in daemon threads."""
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="lab-api", daemon=True).start()

    def stop(self) -> None:
        """End the watches, close the connections and the port. Only after ``start``; a second time does nothing."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        with self._backend.changed:
            self._backend.changed.notify_all()
        self._server.shutdown()
        self._server.close_connections(0.2)
        self._server.server_close()

    def answer(self, request: Request) -> Reply | Watch:
        """What there is to say to an authorized request; a Watch is to be streamed."""
        try:
            with self._backend.changed:
                before = self._backend.store.version
                try:
                    self._backend.advance()
                    return _Answers(self._backend, self._stopping).route(request)
                finally:
                    if self._backend.store.version != before:
                        self._backend.changed.notify_all()
        except BadSelector as error:
            return refusal(bad_request(str(error)))
        except Refused as error:
            return refusal(error)
        except NotModelled as error:
            return self.not_modelled(request, str(error))
        except Exception as error:
            return self.failed(request, error)

    def not_modelled(self, request: Request, why: str) -> Reply:
        """The 501 to a request, noted in ``unknown``."""
        self.unknown.append(f"{request.method} {request.target}: {why}")
        message = f"the practice lab does not model {request.method} {request.path}"
        return refusal(Refused(501, "NotImplemented", f"{message}: {why}"))

    def failed(self, request: Request, error: Exception) -> Reply:
        """The 500 to a request on which the model failed, noted in ``unknown``."""
        what = f"{type(error).__name__}: {error}"
        self.unknown.append(f"{request.method} {request.target}: {what}")
        return refusal(Refused(500, "InternalError", f"Internal error occurred: {what}"))


def refusal(error: Refused) -> Reply:
    """The Status that tells of an error."""
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
        "reason": error.reason,
        "details": error.details,
        "code": error.code,
    }
    return Reply(error.code, status)


# --- what is answered ---


class _Answers:
    """Routes a request. All of it runs with the backend's lock held; raises Refused, BadSelector, NotModelled."""

    def __init__(self, backend: Backend, stopping: threading.Event) -> None:
        self._backend, self._store, self._stopping = backend, backend.store, stopping

    def route(self, request: Request) -> Reply | Watch:
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
        result = self._backend.tool(node, argv)
        self._backend.changed.notify_all()
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
        return table(plural, items, self._backend.now(), version, request.query.get("includeObject", "Metadata"))

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
        limit = _number(query, "limit")
        version, start = str(self._store.version), None
        if query.get("continue"):
            version, start = read_continue(query["continue"])
            if self._store.since(int(version)) is None:
                message = "The provided continue parameter is too old to display a consistent list result."
                raise Refused(410, "Expired", f"{message} You must start a new list without the continue parameter.")
        rest = [
            item
            for item in self._store.all(selection.plural)
            if selection.matches(item) and (start is None or _place(item) > start)
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
        seconds = float(_number(query, "timeoutSeconds")) or _WATCH_SECONDS
        version = _number(query, "resourceVersion")
        return Watch(self._backend, self._stopping, selection, version, seconds, include)

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
        dry = _dry_run(request)
        before = self._find(target)
        return Reply(200, self._write(plural, before, patched(plural, before, patch, strategic), dry))

    def _update(self, request: Request, target: Target) -> Reply:
        request.allow(_WRITE_PARAMETERS)
        sent, dry = shaped(_sent_json(request)), _dry_run(request)
        before = self._store.get(target.kind.plural, target.name, target.namespace)
        subject = Subject(target.kind, target.name)
        if before is None:  # a Lease may be created by an update
            return Reply(201, self._add(subject, sent, target.namespace, dry))
        if not sent["metadata"].get("resourceVersion"):
            raise subject.invalid("metadata.resourceVersion", 0, "must be specified for an update")
        check_versions(subject, before, sent)
        return Reply(200, self._write(target.kind.plural, before, settled(subject, before, sent), dry))

    def _create(self, request: Request, target: Target) -> Reply:
        request.allow(_WRITE_PARAMETERS)
        sent, dry = shaped(_sent_json(request)), _dry_run(request)
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
        options = _sent_json(request) if request.body else {}
        if not isinstance(options, dict):
            raise bad_request("the DeleteOptions must be a JSON object")
        if strange := sorted(set(options) - _DELETE_OPTIONS):
            raise NotModelled(f"{strange[0]} in DeleteOptions")
        grace = request.query.get("gracePeriodSeconds", options.get("gracePeriodSeconds"))
        if grace is not None and str(grace) == "0":
            raise NotModelled("gracePeriodSeconds=0 (a deletion by force)")
        dry = _dry_run(request, options.get("dryRun") or ())
        before = self._find(target)
        subject = Subject(target.kind, target.name)
        check_versions(subject, before, {"metadata": options.get("preconditions") or {}})
        if target.kind.plural == "pods":
            return Reply(200, before if dry else self._delete_pod(target, before))
        if not dry:
            self._store.remove(target.kind.plural, target.name, target.namespace)
            self._written(target.kind.plural, before, None)
        details = {**subject.details, "uid": before["metadata"]["uid"]}
        return Reply(
            200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        )

    def _delete_pod(self, target: Target, before: Object) -> Object:
        self._written("pods", before, None)
        return self._store.get("pods", target.name, target.namespace) or before

    def _add(self, subject: Subject, sent: Object, namespace: str, dry: bool) -> Object:
        if self._store.get("namespaces", namespace) is None:
            raise Subject(KINDS["namespaces"], namespace).not_found()
        item = fresh(subject, sent, namespace)
        if dry:
            item["metadata"]["creationTimestamp"] = self._backend.now()
            return item
        after = self._store.put(subject.kind.plural, item, self._backend.now())
        self._written(subject.kind.plural, None, after)
        return after

    def _write(self, plural: str, before: Object, after: Object, dry: bool) -> Object:
        if dry or after == before:
            return after
        stored = self._store.put(plural, after)
        self._written(plural, before, stored)
        return stored

    def _written(self, plural: str, before: Object | None, after: Object | None) -> None:
        self._backend.written(plural, before, after)
        self._backend.changed.notify_all()


class _Page(NamedTuple):
    metadata: Object
    items: list[Object]


def parse_target(request: Request) -> Target:
    """What a URL under /api/v1 or /apis/GROUP/VERSION names.

    Refuses to read from a group that is not there; raises NotModelled for all else that has no Kind.
    """
    match request.segments:
        case ["api", "v1", *rest]:
            group, version = "", "v1"
        case ["apis", group, version, *rest]:
            pass
        case _:
            raise NotModelled("this path")
    kinds = [kind for kind in KINDS.values() if kind.group == group]
    if not kinds and request.method == "GET":
        raise Refused(404, "NotFound", _LOST)
    namespace, in_namespace = "", False
    match rest:
        case ["namespaces", namespace, _, *_] if namespace:
            in_namespace, rest = True, rest[2:]
    plural, name, *deeper = [*rest, "", ""][: max(len(rest), 2)]
    kind = next((kind for kind in kinds if kind.plural == plural and kind.version == version), None)
    if kind is None:
        raise NotModelled("this resource")
    if deeper:
        raise NotModelled(f"the subresource {'/'.join(deeper)}")
    if in_namespace != kind.namespaced and (in_namespace or name):
        raise NotModelled("this path")
    return Target(kind, namespace if in_namespace else "", name)


def discovery(path: str) -> Reply | None:
    """The documents that tell a client what there is, and the health checks; None for any other path."""
    if path in ("/healthz", "/livez", "/readyz"):
        return Reply(200, "ok")
    if path == "/version":
        major, minor, _ = VERSION.removeprefix("v").split(".")
        return Reply(200, {"major": major, "minor": minor, "gitVersion": VERSION, "platform": "linux/amd64"})
    if path.startswith("/openapi/"):
        # kubectl asks by itself, and goes on without: it then leaves the checking to the server.
        return refusal(Refused(404, "NotFound", _LOST))
    match path.strip("/").split("/"):
        case ["api"]:
            return Reply(200, {"kind": "APIVersions", "versions": ["v1"]})
        case ["apis"]:
            groups = [_group(group) for group in _groups()]
            return Reply(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        case ["apis", group] if group in _groups():
            return Reply(200, {"kind": "APIGroup", "apiVersion": "v1", **_group(group)})
        case ["apis", group] if group:
            return refusal(Refused(404, "NotFound", _LOST))
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


def wants_table(request: Request) -> bool:
    """Whether the Accept header would rather have a Table than the objects. Raises NotModelled if it takes neither."""
    accept = request.headers.get("Accept") or "*/*"
    for media_range in accept.split(","):
        media_type, *given = (part.strip() for part in media_range.split(";"))
        if media_type not in ("application/json", "application/*", "*/*"):
            continue
        parameters = dict(part.partition("=")[::2] for part in given)
        match parameters.get("as"):
            case None:
                return False
            case "Table" if (parameters.get("g"), parameters.get("v")) == ("meta.k8s.io", "v1"):
                return True
    raise NotModelled(f"Accept: {accept}")


def write_continue(version: str, last: Object) -> str:
    """The token of the page after ``last`` in a list of that version."""
    token = json.dumps({"v": "meta.k8s.io/v1", "rv": int(version), "start": _place(last)})
    return base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def read_continue(token: str) -> tuple[str, tuple[str, str]]:
    """The list's version and the place (namespace, name) after which to go on. Refuses a token that is none."""
    try:
        read = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        version, (namespace, name) = int(read["rv"]), read["start"]
        return str(version), (str(namespace), str(name))
    except (ValueError, TypeError, KeyError):
        raise bad_request("continue key is not valid: the token cannot be read") from None


def _place(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name) or "0"
    if not (text.isascii() and text.isdigit()):
        raise bad_request(f'{name}: Invalid value: "{text}": must be a whole number')
    return int(text)


def _dry_run(request: Request, also: Iterable[str] = ()) -> bool:
    """Whether the query, or the dryRun of DeleteOptions, asks for a dry run. Refuses any but "All"."""
    asked = [*also, *(value for name, value in request.query.items() if name == "dryRun")]
    for value in asked:
        if value != "All":
            raise bad_request(f'dryRun: Unsupported value: "{value}": supported values: "All"')
    return bool(asked)


def _sent_json(request: Request) -> Any:
    if request.media_type not in ("application/json", ""):  # the Python client names none
        raise NotModelled(f"a body of type {request.media_type}")
    return request.json()


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


# --- watches ---


class Watch:
    """The changes of a selection, batch by batch. ``include`` is a Table's includeObject; empty: plain objects."""

    def __init__(
        self,
        backend: Backend,
        stopping: threading.Event,
        selection: Selection,
        version: int,
        seconds: float,
        include: str,
    ) -> None:
        self._backend, self._stopping, self._selection = backend, stopping, selection
        self._version, self._include = version, include
        self._ends = time.monotonic() + seconds
        self._headed = False

    def batch(self) -> list[Object] | None:
        """The next watch events, after at most half a second; None when the watch is over. An ERROR is the last."""
        with self._backend.changed:
            if self._due() is None:
                return None
            before = self._backend.store.version
            self._backend.advance()
            if self._backend.store.version != before:
                self._backend.changed.notify_all()
            events = self._events()
            if not events:
                self._backend.changed.wait(self._due() or 0)
            return events

    def _due(self) -> float | None:
        left = self._ends - time.monotonic()
        return min(left, _TICK) if left > 0 and not self._stopping.is_set() else None

    def _events(self) -> list[Object]:
        store, since = self._backend.store, self._version
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
        body = table(self._selection.plural, [item], self._backend.now(), version, self._include)
        if self._headed:  # the columns come once
            body["columnDefinitions"] = None
        self._headed = True
        return {"type": type, "object": body}


# --- HTTP ---


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self, address: tuple[str, int], api: LabApi, backend: Backend, token: str, stopping: threading.Event
    ) -> None:
        super().__init__(address, _Handler)
        self.api, self.backend, self.stopping = api, backend, stopping
        basic = base64.b64encode(f"{_USER}:{token}".encode()).decode()
        self._authorizations = (f"Bearer {token}".encode(), f"Basic {basic}".encode())
        self._idle = threading.Condition()
        self._open: set[socket.socket] = set()
        self._watches = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no matter for stderr."""

    def authorized(self, given: bytes) -> bool:
        return any(hmac.compare_digest(given, wanted) for wanted in self._authorizations)

    def opened(self, connection: socket.socket) -> None:
        with self._idle:
            self._open.add(connection)

    def closed(self, connection: socket.socket) -> None:
        with self._idle:
            self._open.discard(connection)

    def watching(self, more: int) -> None:
        with self._idle:
            self._watches += more
            self._idle.notify_all()

    def close_connections(self, seconds: float) -> None:
        """Let the watches end their answers for so long, then shut every connection."""
        with self._idle:
            self._idle.wait_for(lambda: not self._watches, seconds)
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "gpufix-lab"
    sys_version = ""
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.opened(self.connection)

    def finish(self) -> None:
        self.server.closed(self.connection)
        super().finish()

    def log_message(self, format: str, *args: object) -> None:
        """Silent: the terminal is gpufix's."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class finds wrong with a request, as a Status."""
        self.close_connection = True
        self._send(refusal(Refused(code, "BadRequest", message or "malformed request")))

    def _serve(self) -> None:
        request = Request(self.command, self.path, self.headers)
        try:
            request = request._replace(body=self._body())
        except Refused as error:
            self.close_connection = True
            return self._send(refusal(error))
        except NotModelled as error:
            self.close_connection = True
            return self._send(self.server.api.not_modelled(request, str(error)))
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if not self.server.authorized(given):
            return self._send(refusal(Refused(401, "Unauthorized", "Unauthorized")))
        answer = self.server.api.answer(request)
        if isinstance(answer, Watch):
            return self._stream(request, answer)
        return self._send(answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = _serve  # noqa: N815

    def _body(self) -> bytes:
        if "Transfer-Encoding" in self.headers:
            raise NotModelled("a body of unknown length")
        text = self.headers.get("Content-Length", "0")
        if not (text.isascii() and text.isdigit()):
            raise bad_request("Content-Length is no number")
        length = int(text)
        if length <= BODY_LIMIT:
            return self.rfile.read(length)
        left = min(length, _DRAINED)
        while left and (read := self.rfile.read(min(left, 1 << 16))):
            left -= len(read)
        raise Refused(413, "RequestEntityTooLarge", f"Request entity too large: limit is {BODY_LIMIT}")

    def _send(self, reply: Reply) -> None:
        plain = isinstance(reply.body, str)
        body = reply.body.encode() if isinstance(reply.body, str) else json.dumps(reply.body).encode()
        self.send_response(reply.code)
        self.send_header("Content-Type", "text/plain; charset=utf-8" if plain else "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _stream(self, request: Request, watch: Watch) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.server.watching(1)
        try:
            while (events := self._batch(request, watch)) is not None and not self._gone():
                for event in events:
                    self._chunk(json.dumps(event).encode() + b"\n")
                if any(event["type"] == "ERROR" for event in events):
                    break
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
        finally:
            self.server.watching(-1)

    def _batch(self, request: Request, watch: Watch) -> list[Object] | None:
        try:
            return watch.batch()
        except Exception as error:
            return [{"type": "ERROR", "object": self.server.api.failed(request, error).body}]

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _gone(self) -> bool:
        """Whether the client has hung up: nothing else would tell while there is nothing to send."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
