"""Reads the cluster. The only importer of kubernetes (within src/), and the place where its errors become ours.

Everything is read as plain JSON (``_preload_content=False``): 2,000 nodes cost a third of what the client's models do.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import mark, t
from gpufix.text import redact, redact_all
from gpufix.world.private import private_folder

ClusterFiles = tuple[dict[str, str], dict[str, str]]
PAGE = 500
"""Objects per request."""
PAUSES = (0.3, 1.0)
"""Seconds before a read is tried again, where the server does not say for how long it wants to be left alone."""
LONGEST_PAUSE = 5.0
"""A server that wants to be left alone for longer is not asked again: its reason is told instead."""
_PASSING = (429, 500, 502, 503, 504)
"""Answers that may be another one a moment later."""
_LEASE_TIMEOUT = 5
"""Seconds: a renewal that hangs for long costs the lease."""
_ANSWER_SECONDS = 60.0
"""For a whole answer; ``ClusterAccess.timeout`` is only for each piece of it."""


class Unreadable(Exception):
    """One thing that could not be read or written. ``kind`` is forbidden | unreachable | unauthorized | absent |
    conflict | failed."""

    def __init__(self, kind: str, reason: str, again_after: float | None = None) -> None:
        """``again_after``: seconds after which the same may go well; None where that is not to be expected."""
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.again_after = again_after


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """``kubeconfig`` and ``context`` as given by flag or environment; empty means the client's own default."""

    kubeconfig: str = ""
    context: str = ""
    timeout: int = 10
    """Seconds, for connecting and for each answer."""

    def files(self) -> list[Path]:
        """The kubeconfig files that would be used, existing or not: flag, KUBECONFIG (a path list), ~/.kube/config."""
        named = self.kubeconfig or os.environ.get("KUBECONFIG", "")
        if named:
            return [Path(part).expanduser() for part in named.split(os.pathsep) if part]
        return [Path.home() / ".kube" / "config"]

    def missing(self) -> str:
        """Why there is no kubeconfig, or empty when there is one."""
        files = self.files()
        if any(path.is_file() for path in files):
            return ""
        return t("no kubeconfig at {files}", files=", ".join(str(path) for path in files))


@cache
def _scratch() -> Path:
    """Where the client writes the certificates and the key that stand in a kubeconfig as data: it reads them again at
    each connection, and takes them away when this process ends, but not when it is killed."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(private_folder())


class Cluster:
    """A connection to one API server. Raises GpufixError (status 2) when the kubeconfig cannot be used."""

    def __init__(self, access: ClusterAccess, sleep: Callable[[float], None] = time.sleep) -> None:
        if missing := access.missing():
            raise GpufixError(missing, t("set KUBECONFIG or give --kubeconfig"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import urllib3
            from kubernetes import client, config

        self._access = access
        self._sleep = sleep
        self._urllib3 = urllib3
        self._errors = client.exceptions
        path = os.pathsep.join(str(file) for file in access.files())
        try:
            configuration = client.Configuration()
            load = cast("Callable[..., None]", config.load_kube_config)
            load(
                path, context=access.context or None, client_configuration=configuration, temp_file_path=str(_scratch())
            )
        except (config.ConfigException, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            raise GpufixError(
                t("kubeconfig {file} cannot be used: {why}", file=path, why=redact(text)[:300]),
                t("check --kubeconfig and --context"),
            ) from None
        except Exception as error:
            text = " ".join(str(error).split())
            raise GpufixError(
                t("kubeconfig {file} is not valid: {why}", file=path, why=redact(text)[:300]),
                t("check --kubeconfig"),
            ) from None
        configuration.retries = False
        self.server: str = re.sub(r"//[^/@]*@", "//", configuration.host)  # a password may stand in the address
        api = client.ApiClient(configuration)
        self._core = client.CoreV1Api(api)
        self._custom = client.CustomObjectsApi(api)
        self._coordination = client.CoordinationV1Api(api)

    def _read(self, what: str, method: Callable[..., Any], *args: Any, **query: Any) -> dict[str, Any]:
        """``_call`` for a request that changes nothing: what may pass by itself is waited for, shortly."""
        for pause in PAUSES:
            try:
                return self._call(what, method, *args, **query)
            except Unreadable as error:
                if error.again_after is None or error.again_after > LONGEST_PAUSE:
                    raise
                self._sleep(max(pause, error.again_after))
        return self._call(what, method, *args, **query)

    def _call(
        self, what: str, method: Callable[..., Any], *args: Any, timeout: int = 0, **query: Any
    ) -> dict[str, Any]:
        """One request, made once, as JSON. Raises Unreadable; its kind is ``absent`` for 404, ``conflict`` for 409."""
        timeout = min(timeout or self._access.timeout, self._access.timeout)
        try:
            response = method(*args, **query, _preload_content=False, _request_timeout=(timeout, timeout))
            data = json.loads(_body(response))
        except self._errors.ApiException as error:
            after = _again_after(error.status or 0, error.headers)
            raise self._refused(error.status or 0, error.body or "", what, after) from None
        except (self._urllib3.exceptions.HTTPError, OSError) as error:
            # broken off: by a server that restarts, or a proxy in between; one that is silent is not asked for longer
            broken = 0.0 if isinstance(error, self._urllib3.exceptions.ProtocolError) else None
            reason = t("the API server {server} does not answer: {why}", server=self.server, why=_short(error))
            raise Unreadable("unreachable", reason, broken) from None
        except ValueError:
            raise Unreadable("failed", t("{request}: the answer is no JSON", request=what)) from None
        if not isinstance(data, dict):
            raise Unreadable("failed", t("{request}: the answer is no object", request=what))
        return data

    def _refused(self, status: int, body: str | bytes, what: str, again_after: float | None) -> Unreadable:
        try:
            message = " ".join(str(json.loads(body).get("message") or "").split())
        except (ValueError, AttributeError):
            message = ""
        kind = {401: "unauthorized", 403: "forbidden", 404: "absent", 409: "conflict"}.get(status, "failed")
        reason = f"{what}: {status} {message}".strip()  # in no language: ``is_logged_out`` reads it
        if again_after is not None and again_after > LONGEST_PAUSE:
            reason = t("{why} (it asks to wait {n} s)", why=reason, n=f"{again_after:.0f}")
        return Unreadable(kind, reason, again_after)

    def _pages(self, what: str, method: Callable[..., Any], *args: str, **query: str | int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        token = ""
        while True:
            page = self._read(what, method, *args, limit=PAGE, **query, **({"_continue": token} if token else {}))
            found += page.get("items") or []
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return found

    def nodes(self) -> list[dict[str, Any]]:
        return self._pages("list nodes", self._core.list_node)

    def pods(self, namespace: str = "", **selector: str) -> list[dict[str, Any]]:
        """Pods of one namespace, or of all; ``selector`` is field_selector or label_selector."""
        if namespace:
            return self._pages(f"list pods in {namespace}", self._core.list_namespaced_pod, namespace, **selector)
        return self._pages("list pods", self._core.list_pod_for_all_namespaces, **selector)

    def events(self, field_selector: str) -> list[dict[str, Any]]:
        return self._pages("list events", self._core.list_event_for_all_namespaces, field_selector=field_selector)

    def lease(self, namespace: str, name: str) -> dict[str, Any]:
        what, get = f"get lease {namespace}/{name}", self._coordination.read_namespaced_lease
        return self._read(what, get, name, namespace, timeout=_LEASE_TIMEOUT)

    def create_lease(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Raises Unreadable, of kind ``conflict`` where there is one already."""
        metadata = body["metadata"]
        what, create = f"create lease {metadata['name']}", self._coordination.create_namespaced_lease
        return self._call(what, create, metadata["namespace"], body, timeout=_LEASE_TIMEOUT)

    def replace_lease(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Raises Unreadable, of kind ``conflict`` where it is no longer the one that ``body`` was made from."""
        metadata = body["metadata"]
        what, change = f"replace lease {metadata['name']}", self._coordination.replace_namespaced_lease
        return self._call(what, change, metadata["name"], metadata["namespace"], body, timeout=_LEASE_TIMEOUT)

    def custom(self, group: str, version: str, plural: str) -> list[dict[str, Any]]:
        """Objects of a custom resource in all namespaces; empty where its definition does not exist (a fact)."""
        try:
            return self._pages(
                f"list {plural}.{group}", self._custom.list_cluster_custom_object, group, version, plural
            )
        except Unreadable as error:
            if error.kind == "absent":
                return []
            raise


def _body(response: Any) -> bytes:
    """The whole answer, within ``_ANSWER_SECONDS``: a server that sends a byte now and then never times out."""
    if not hasattr(response, "read1"):  # urllib3 before 2
        return cast("bytes", response.data)
    until, parts = time.monotonic() + _ANSWER_SECONDS, []
    while part := response.read1(1 << 20):
        parts.append(part)
        if time.monotonic() > until:
            response.close()
            raise TimeoutError("timed out")
    response.release_conn()
    return b"".join(parts)


def _again_after(status: int, headers: Mapping[str, str] | None) -> float | None:
    """When a refused request may be made again; None where that would be refused too."""
    if status not in _PASSING:
        return None
    said = str((headers or {}).get("Retry-After") or "").strip()
    if said.isascii() and said.isdigit() and len(said) < 10:
        return float(said)
    try:
        return max(0.0, (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):  # none, or no date, or one without a time zone
        return 0.0


def _short(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    text = " ".join(str(reason if reason is not None else error).split())
    if "NewConnectionError" in text or "Connection refused" in text:
        return t("connection refused") if "refused" in text else text.split(": ", 1)[-1][:160]
    if "timed out" in text:
        return t("timed out")
    if "reset by peer" in text:
        return t("the connection was reset")
    if "without response" in text or "IncompleteRead" in text:
        return t("the connection was closed in the middle of it")
    return text[:160]


# --- what is read ----------------------------------------------------------------------------------------------------


_CUSTOM: Mapping[str, tuple[str, str, str]] = {
    "virtualmachines": ("kubevirt.io", "v1", "virtualmachines"),
    "virtualmachineinstances": ("kubevirt.io", "v1", "virtualmachineinstances"),
    "kubevirt": ("kubevirt.io", "v1", "kubevirts"),
    "clusterpolicy": ("nvidia.com", "v1", "clusterpolicies"),
}


def read_cluster(cluster: Cluster, node: str) -> ClusterFiles:
    """The ``cluster/`` files of a snapshot, all read at once, and the reasons of those that could not be.

    An API server that does not answer comes back as ``({}, {"cluster": reason})``.
    """
    reads: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "nodes": lambda: [trim_node(item) for item in cluster.nodes()],
        "pods": lambda: _pods(cluster, node),
        "events": lambda: _events(cluster, node),
    }
    for name, (group, version, plural) in _CUSTOM.items():
        reads[name] = partial(_custom, cluster, group, version, plural)
    files: dict[str, str] = {}
    unread: dict[str, str] = {}
    with ThreadPoolExecutor(max_workers=len(reads)) as pool:
        pending = {name: pool.submit(read) for name, read in reads.items()}
        for name, future in pending.items():
            try:
                items = future.result()
            except Unreadable as error:
                if error.kind in ("unreachable", "unauthorized"):
                    unread["cluster"] = error.reason
                unread[f"cluster/{name}.json"] = error.reason
            else:
                body = {"apiVersion": "v1", "kind": "List", "items": items}
                files[f"cluster/{name}.json"] = json.dumps(redact_all(body), indent=1, sort_keys=True)
    if "cluster" in unread and not files:
        return {}, {"cluster": unread["cluster"]}
    unread.pop("cluster", None)
    return files, unread


def _custom(cluster: Cluster, group: str, version: str, plural: str) -> list[dict[str, Any]]:
    return [trim(item) for item in cluster.custom(group, version, plural)]


def _pods(cluster: Cluster, node: str) -> list[dict[str, Any]]:
    """Pods on the node, the GPU Operator's pods, and every virt-launcher pod, unscheduled ones too."""
    namespace = "gpu-operator"
    try:
        for policy in cluster.custom(*_CUSTOM["clusterpolicy"]):
            namespace = (policy.get("status") or {}).get("namespace") or namespace
    except Unreadable as error:
        if error.kind != "forbidden":
            raise
    found: dict[str, dict[str, Any]] = {}
    for items in (
        cluster.pods(field_selector=f"spec.nodeName={node}"),
        cluster.pods(label_selector="kubevirt.io=virt-launcher"),
        cluster.pods(namespace),
    ):
        for item in items:
            found[str(item.get("metadata", {}).get("uid"))] = trim_pod(item)
    return list(found.values())


_VMI_EVENTS = "involvedObject.kind=VirtualMachineInstance"
"""A group that is not viable is said only there (kubevirt issue 6718)."""


def _events(cluster: Cluster, node: str) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    selectors = (f"involvedObject.kind=Node,involvedObject.name={node}", "reason=FailedScheduling", _VMI_EVENTS)
    for selector in selectors:
        for item in cluster.events(selector):
            found[str(item.get("metadata", {}).get("uid"))] = trim(item)
    return list(found.values())


# --- what is kept of an object ---------------------------------------------------------------------------------------

_NOISE_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)


def trim(item: Mapping[str, Any]) -> dict[str, Any]:
    """An object without managed fields, last-applied copies and whatever may carry a secret (volumes, cloud-init)."""
    trimmed = json.loads(json.dumps(item))
    metadata = trimmed.get("metadata") or {}
    metadata.pop("managedFields", None)
    annotations = metadata.get("annotations") or {}
    for name in _NOISE_ANNOTATIONS:
        annotations.pop(name, None)
    for spec in (trimmed.get("spec") or {}, ((trimmed.get("spec") or {}).get("template") or {}).get("spec") or {}):
        spec.pop("volumes", None)
        spec.pop("accessCredentials", None)
    return trimmed  # type: ignore[no-any-return]


def trim_node(item: Mapping[str, Any]) -> dict[str, Any]:
    trimmed = trim(item)
    for noise in ("images", "volumesInUse", "volumesAttached"):
        (trimmed.get("status") or {}).pop(noise, None)
    return trimmed


def trim_pod(item: Mapping[str, Any]) -> dict[str, Any]:
    trimmed = trim(item)
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        for container in (trimmed.get("spec") or {}).get(kind) or []:
            for noise in (
                "env",
                "envFrom",
                "volumeMounts",
                "args",
                "command",
                "lifecycle",
                "livenessProbe",
                "readinessProbe",
                "startupProbe",
            ):
                container.pop(noise, None)
    return trimmed


LOG_IN = mark("the credentials of this kubeconfig are refused: log in again")


def is_logged_out(reason: str) -> bool:
    """Whether the cluster could not be read for want of credentials: waiting does not bring them back."""
    return _says(401, reason) or "unauthorized" in reason.lower()


def _says(status: int, reason: str) -> bool:
    """Whether ``reason`` tells of an answer of the API server with this HTTP status."""
    return re.search(rf": {status}(?: |$)", reason) is not None


def api_error(reason: str) -> GpufixError:
    """The error of a recovery whose cluster cannot be read."""
    if _says(403, reason) or "forbidden" in reason.lower():
        hint = t(
            "gpufix needs get and list on nodes, pods, events, virtualmachines and clusterpolicies, and patch on nodes"
        )
    elif is_logged_out(reason):
        hint = t(LOG_IN)
    else:
        hint = t("check the API server's address and --context; nothing was changed")
    return GpufixError(reason, hint, ExitStatus.UNREACHABLE)
