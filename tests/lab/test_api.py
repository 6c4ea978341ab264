"""The practice cluster's API, as the Python client, kubectl and plain HTTP see it, over a small fake model."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes import client, watch

from gpufix.lab.door import BODY_LIMIT, LabApi
from gpufix.lab.patches import NotModelled, merged, patched
from gpufix.lab.request import write_continue
from gpufix.lab.selectors import BadSelector, Requirement, Selection, parse_fields, parse_labels
from gpufix.lab.store import HISTORY, Object, Store
from gpufix.lab.tables import human
from gpufix.lab.tools import ToolResult

NOW = "2026-12-02T08:43:24Z"
TOKEN = "a-token"
INFO = dict.fromkeys(
    (
        "architecture",
        "bootID",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ),
    "x",
)
"""The Python client insists on all of these."""


class Fake:
    """A model in which nothing happens by itself; a deleted pod gets a deletionTimestamp."""

    def __init__(self) -> None:
        self.store = Store()
        self.changed = threading.Condition()
        self.writes: list[tuple[str, Object | None, Object | None]] = []
        self.broken = False
        for name in ("default", "kube-system", "kube-node-lease"):
            self.put("namespaces", name)
        for name in ("omen1", "omen2", "omen3"):
            self.put("nodes", name, labels={"kubernetes.io/hostname": name, "node-role.kubernetes.io/worker": ""})
            self.put(
                "leases",
                name,
                "kube-node-lease",
                spec={"holderIdentity": name, "renewTime": NOW.replace("Z", ".000000Z")},
            )
        node = self.store.get("nodes", "omen2") or {}
        node["spec"] = {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]}
        node["status"]["conditions"][0]["status"] = "Unknown"
        self.store.put("nodes", node)
        self.put("pods", "cuda", labels={"app": "cuda", "tier": "gpu"}, spec=_pod_spec("omen2"))
        self.put("pods", "web", labels={"app": "web"}, spec=_pod_spec("omen1"))
        self.put("pods", "dns", "kube-system", spec=_pod_spec("omen1"))
        self.put("virtualmachines", "gpu-vm", spec={"runStrategy": "Always"}, status={"printableStatus": "Running"})
        self.put("clusterpolicies", "cluster-policy", spec={"driver": {"enabled": False}}, status={"state": "ready"})
        self.put("daemonsets", "plugin", status={"desiredNumberScheduled": 2, "numberReady": 1})
        self.put(
            "events",
            "omen2.1",
            involvedObject={"kind": "Node", "name": "omen2", "uid": "omen2", "namespace": ""},
            reason="NodeNotReady",
            type="Normal",
            message="Node omen2 status is now: NodeNotReady",
            source={"component": "node-controller"},
            firstTimestamp="2026-12-02T08:43:14Z",
            lastTimestamp="2026-12-02T08:43:14Z",
        )

    def put(self, plural: str, name: str, namespace: str = "default", labels: Any = None, **rest: Any) -> None:
        metadata: Object = {"name": name, "creationTimestamp": "2026-12-02T08:00:00Z"}
        if plural not in ("nodes", "namespaces", "clusterpolicies"):
            metadata["namespace"] = namespace
        if labels:
            metadata["labels"] = labels
        if plural == "nodes":
            conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": NOW, "lastHeartbeatTime": NOW}]
            rest = {"status": {"conditions": conditions, "nodeInfo": {**INFO, "kubeletVersion": "v1.34.4"}}}
        if plural == "pods":
            state = {"name": "main", "ready": True, "restartCount": 0, "state": {"running": {"startedAt": NOW}}}
            rest["status"] = {"phase": "Running", "containerStatuses": [{**state, "image": "x", "imageID": "x"}]}
        self.store.put(plural, {"metadata": metadata, **rest})

    def advance(self) -> None:
        if self.broken:
            raise KeyError("a bug")

    def now(self) -> str:
        return NOW

    def written(self, plural: str, before: Object | None, after: Object | None) -> None:
        self.writes.append((plural, before, after))
        if plural == "pods" and before is not None and after is None:
            before["metadata"]["deletionTimestamp"] = NOW
            self.store.put("pods", before)

    def tool(self, node: str, argv: list[str]) -> ToolResult:
        return ToolResult(3, f"{node}: {argv}", "no")


def _pod_spec(node: str) -> Object:
    return {"nodeName": node, "containers": [{"name": "main", "image": "x"}]}


@pytest.fixture
def model() -> Fake:
    return Fake()


@pytest.fixture
def api(model: Fake) -> Iterator[LabApi]:
    api = LabApi(model, TOKEN)
    api.start()
    yield api
    started = time.monotonic()
    api.stop()
    assert time.monotonic() - started < 1


@pytest.fixture
def calls(api: LabApi) -> Iterator[client.ApiClient]:
    configuration = client.Configuration(host=api.url)
    configuration.api_key["authorization"] = TOKEN
    configuration.api_key_prefix["authorization"] = "Bearer"
    with client.ApiClient(configuration) as calls:
        yield calls


@pytest.fixture
def core(calls: client.ApiClient) -> client.CoreV1Api:
    return client.CoreV1Api(calls)


@pytest.fixture
def custom(calls: client.ApiClient) -> client.CustomObjectsApi:
    return client.CustomObjectsApi(calls)


Ask = Callable[..., tuple[int, Any]]


@pytest.fixture
def ask(api: LabApi) -> Iterator[Ask]:
    """One kept-alive connection: (method, path, body, headers) -> status and JSON."""
    connection = http.client.HTTPConnection(api.url.removeprefix("http://"), timeout=10)

    def ask(method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        given = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        given.update({name.replace("_", "-"): value for name, value in headers.items()})
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, sent, given)
        response = connection.getresponse()
        read = response.read()
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(read) if is_json and read else read.decode()

    yield ask
    connection.close()


def names(listed: Any) -> list[str]:
    return [item.metadata.name for item in listed.items]


MERGE = {"Content_Type": "application/merge-patch+json"}
STRATEGIC = {"Content_Type": "application/strategic-merge-patch+json"}
OMEN2 = "/api/v1/nodes/omen2"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


# --- reads ---


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, ["cuda", "web", "dns"]),
        ({"label_selector": "app=cuda"}, ["cuda"]),
        ({"label_selector": "app!=cuda"}, ["web", "dns"]),
        ({"label_selector": "app in (cuda, web),tier"}, ["cuda"]),
        ({"label_selector": "app notin (cuda)"}, ["web", "dns"]),
        ({"label_selector": "!app"}, ["dns"]),
        ({"field_selector": "spec.nodeName=omen1,metadata.namespace!=kube-system"}, ["web"]),
        ({"field_selector": "status.phase=Pending"}, []),
    ],
)
def test_lists_select(core: client.CoreV1Api, selector: dict[str, str], expected: list[str]) -> None:
    assert names(core.list_pod_for_all_namespaces(**selector)) == expected


def test_lists_of_a_namespace_and_single_objects(core: client.CoreV1Api, custom: client.CustomObjectsApi) -> None:
    assert names(core.list_namespaced_pod("kube-system")) == ["dns"]
    assert names(core.list_namespaced_pod("nowhere")) == []
    assert core.read_node("omen2").spec.taints[0].key == "node.kubernetes.io/unreachable"
    vms = custom.list_cluster_custom_object("kubevirt.io", "v1", "virtualmachines")
    assert [vm["metadata"]["name"] for vm in vms["items"]] == ["gpu-vm"]
    with pytest.raises(client.ApiException) as gone:
        core.read_node("omen9")
    assert gone.value.status == 404
    assert json.loads(gone.value.body)["message"] == 'nodes "omen9" not found'


def test_events_are_selected_by_what_they_are_about(core: client.CoreV1Api) -> None:
    about = "involvedObject.kind=Node,involvedObject.name=omen2,involvedObject.namespace="
    found = core.list_event_for_all_namespaces(field_selector=f"{about},reason=NodeNotReady,source=node-controller")
    assert names(found) == ["omen2.1"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("fieldSelector=spec.foo=1", "field label not supported: spec.foo"),
        ("fieldSelector=name", "invalid selector"),
        ("labelSelector=a==b==c", "unable to parse requirement"),
        ("labelSelector=a+in+(b", "unable to parse requirement"),
        ("labelSelector=app=a%20b", "unable to parse requirement"),
        ("limit=many", "limit"),
        ("limit=1&continue=%25%25", "continue key is not valid"),
        ("limit=1&continue=eyJydiI6IDF9", "continue key is not valid"),
        ("limit=1&continue=eyJydiI6IEluZmluaXR5LCAic3RhcnQiOiBbIiIsICIiXX0", "continue key is not valid"),
        ("limit=" + "9" * 5000, "limit"),
        ("watch=1&timeoutSeconds=" + "9" * 400, "timeoutSeconds"),
        ("watch=1&resourceVersion=new", "resourceVersion"),
    ],
)
def test_bad_lists_are_400(ask: Ask, api: LabApi, query: str, message: str) -> None:
    status, body = ask("GET", f"/api/v1/pods?{query}")
    assert (status, body["reason"]) == (400, "BadRequest")
    assert message in body["message"]
    assert not api.unknown


def test_pages(core: client.CoreV1Api) -> None:
    first = core.list_pod_for_all_namespaces(limit=2)
    assert (names(first), first.metadata.remaining_item_count) == (["cuda", "web"], 1)
    rest = core.list_pod_for_all_namespaces(limit=2, _continue=first.metadata._continue)
    assert (names(rest), rest.metadata._continue) == (["dns"], None)
    assert rest.metadata.resource_version == first.metadata.resource_version


def test_a_page_of_a_list_that_is_too_old_is_410(model: Fake, core: client.CoreV1Api) -> None:
    first = core.list_node(limit=1)
    another_life = write_continue(str(model.store.version + 1000), {"metadata": {"name": "a"}})
    with pytest.raises(client.ApiException) as ahead:
        core.list_node(limit=1, _continue=another_life)
    assert ahead.value.status == 410
    _outlive(model)
    with pytest.raises(client.ApiException) as old:
        core.list_node(limit=1, _continue=first.metadata._continue)
    assert old.value.status == 410


def _outlive(model: Fake) -> None:
    """So many changes that those until now are forgotten."""
    with model.changed:
        node = model.store.get("nodes", "omen1") or {}
        for count in range(HISTORY + 1):
            node["spec"] = {"count": count}
            model.store.put("nodes", node)


# --- watches ---


def test_a_watch_tells_of_each_change_as_the_selector_sees_it(model: Fake, core: client.CoreV1Api) -> None:
    listed = core.list_node(label_selector="gpu=on")
    for patch in ({"gpu": "on"}, {"other": "x"}, {"gpu": "off"}, {"gpu": None}):
        core.patch_node("omen2", {"metadata": {"labels": patch}})
    core.patch_node("omen1", {"metadata": {"labels": {"gpu": "on"}}})
    stream = watch.Watch()
    seen = []
    for event in stream.stream(
        core.list_node, label_selector="gpu=on", resource_version=listed.metadata.resource_version, timeout_seconds=5
    ):
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 4:
            stream.stop()
    assert seen == [("ADDED", "omen2"), ("MODIFIED", "omen2"), ("DELETED", "omen2"), ("ADDED", "omen1")]


def test_a_watch_from_nothing_begins_with_what_is_there_and_wakes(model: Fake, core: client.CoreV1Api) -> None:
    stream, seen = watch.Watch(), []
    for event in stream.stream(core.list_namespaced_pod, "default", timeout_seconds=5):
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 2:
            with model.changed:
                model.store.remove("pods", "dns", "kube-system")
                model.store.remove("pods", "web", "default")
                model.changed.notify_all()
        if event["type"] == "DELETED":
            stream.stop()
    assert seen == [("ADDED", "cuda"), ("ADDED", "web"), ("DELETED", "web")]


@pytest.mark.parametrize("version", ["1", "999999"])
def test_a_watch_from_a_version_that_is_not_kept_is_an_error_event(model: Fake, ask: Ask, version: str) -> None:
    _outlive(model)
    status, body = ask("GET", f"/api/v1/nodes?watch=true&resourceVersion={version}&timeoutSeconds=5")
    assert (status, body["type"], body["object"]["code"], body["object"]["reason"]) == (200, "ERROR", 410, "Expired")


def test_stop_ends_watches(model: Fake, api: LabApi, core: client.CoreV1Api) -> None:
    seen = []
    for event in watch.Watch().stream(core.list_node, timeout_seconds=30):
        seen.append(event["type"])
        if len(seen) == 3:
            break
    ended = threading.Event()

    def follow() -> None:
        connection = http.client.HTTPConnection(api.url.removeprefix("http://"), timeout=10)
        connection.request("GET", "/api/v1/nodes?watch=1", headers={"Authorization": f"Bearer {TOKEN}"})
        response = connection.getresponse()
        started.set()
        response.read()
        ended.set()
        connection.close()

    started = threading.Event()
    threading.Thread(target=follow, daemon=True).start()
    assert started.wait(5)
    api.stop()
    assert ended.wait(2)


def test_a_watch_on_which_the_model_fails_ends_with_an_error(model: Fake, api: LabApi, ask: Ask) -> None:
    request = "/api/v1/nodes?watch=1&resourceVersion=2&timeoutSeconds=1"
    model.broken = True
    status, body = ask("GET", request)
    assert status == 500
    assert "KeyError: 'a bug'" in body["message"]
    assert api.unknown == [f"GET {request}: KeyError: 'a bug'"]


# --- patches ---


def test_a_patch_merges_and_the_model_hears_of_it(model: Fake, core: client.CoreV1Api) -> None:
    before = core.read_node("omen2")
    labels = {"gpu": "on", "kubernetes.io/hostname": None}
    after = core.patch_node("omen2", {"metadata": {"labels": labels}, "status": {"conditions": []}})
    assert after.metadata.labels == {"gpu": "on", "node-role.kubernetes.io/worker": ""}
    assert after.status.conditions, "the status is a resource of its own"
    assert int(after.metadata.resource_version) > int(before.metadata.resource_version)
    (plural, was, became) = model.writes[0]
    assert (plural, was and was["metadata"]["uid"]) == ("nodes", before.metadata.uid)
    assert became == model.store.get("nodes", "omen2")
    core.patch_node("omen2", {"metadata": {"labels": {"gpu": "on"}}})
    assert len(model.writes) == 1, "nothing changed"


def test_taints_are_replaced_and_a_cordon_undone_leaves_no_trace(core: client.CoreV1Api, model: Fake) -> None:
    before = model.store.get("nodes", "omen1")
    taint = {"key": "gpufix/held", "effect": "NoExecute"}
    held = core.patch_node("omen1", {"spec": {"unschedulable": True, "taints": [taint]}})
    assert (held.spec.unschedulable, [entry.key for entry in held.spec.taints]) == (True, ["gpufix/held"])
    core.patch_node("omen1", {"spec": {"unschedulable": False, "taints": []}})
    after = model.store.get("nodes", "omen1")
    assert before is not None and after is not None
    assert after["spec"] == {}


def test_a_dry_run_changes_nothing(core: client.CoreV1Api, model: Fake, ask: Ask) -> None:
    version = model.store.version
    after = core.patch_node("omen2", {"metadata": {"labels": {"gpu": "on"}}}, dry_run="All")
    assert after.metadata.labels["gpu"] == "on"
    core.delete_namespaced_pod("web", "default", dry_run="All")
    core.delete_namespaced_pod("web", "default", body=client.V1DeleteOptions(dry_run=["All"]))
    assert (model.store.version, model.writes) == (version, [])
    assert ask("PATCH", f"{OMEN2}?dryRun=Some", {}, **MERGE)[0] == 400


@pytest.mark.parametrize(
    ("metadata", "code", "message"),
    [
        (
            {"resourceVersion": "1"},
            409,
            "the object has been modified; please apply your changes to the latest version and try again",
        ),
        ({"uid": "another"}, 409, "Precondition failed: UID in precondition: another, UID in object meta: "),
        ({"name": "omen3"}, 400, "does not match the name on the URL (omen2)"),
        ({"namespace": "default"}, 400, "does not match the namespace sent on the request"),
        ({"labels": {"a b": "c"}}, 422, 'Node "omen2" is invalid: metadata.labels: Invalid value: "a b": name part'),
        ({"labels": {"/b": "c"}}, 422, "prefix part must be non-empty"),
        ({"labels": {"A_/b": "c"}}, 422, "prefix part a lowercase RFC 1123 subdomain"),
        ({"labels": {"gpu": "a b"}}, 422, "a valid label must be an empty string or consist of"),
        ({"labels": {"gpu": "a" * 64}}, 422, "must be no more than 63 bytes"),
        ({"labels": {"gpu": 1}}, 400, "cannot unmarshal"),
        ({"labels": ["gpu"]}, 400, "cannot unmarshal"),
        ({"annotations": {"": "c"}}, 422, "name part must be non-empty"),
    ],
)
def test_what_a_patch_may_not_do(ask: Ask, model: Fake, metadata: Object, code: int, message: str) -> None:
    status, body = ask("PATCH", OMEN2, {"metadata": metadata}, **MERGE)
    assert (status, body["kind"], body["code"]) == (code, "Status", code)
    assert message in body["message"]
    assert not model.writes


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"unschedulable": "yes"}, 400),
        ({"taints": {}}, 400),
        ({"taints": [{"key": "a", "effect": "Sometimes"}]}, 422),
        ({"taints": [{"key": "a b", "effect": "NoExecute"}]}, 422),
        ({"taints": [{"key": "a", "effect": "NoExecute"}] * 2}, 422),
        ("much", 400),
    ],
)
def test_what_a_node_may_not_be(ask: Ask, spec: Any, code: int) -> None:
    assert ask("PATCH", OMEN2, {"spec": spec}, **STRATEGIC)[0] == code


def test_what_only_the_server_sets_stays(ask: Ask, model: Fake) -> None:
    before = model.store.get("nodes", "omen2")
    assert ask("PATCH", OMEN2, {"metadata": {"creationTimestamp": NOW, "generation": 7}}, **MERGE)[0] == 200
    assert model.store.get("nodes", "omen2") == before


def test_custom_resources_take_merge_patches_only(custom: client.CustomObjectsApi, ask: Ask, api: LabApi) -> None:
    path = "/apis/nvidia.com/v1/clusterpolicies/cluster-policy"
    patch = {"spec": {"driver": {"enabled": True}}}
    status, after = ask("PATCH", path, patch, **MERGE)
    assert (status, after["spec"]["driver"]["enabled"], after["metadata"]["generation"]) == (200, True, 2)
    assert after["status"] == {"state": "ready"}
    assert ask("PATCH", path, patch, **STRATEGIC)[0] == 415
    assert not api.unknown
    assert ask("PATCH", path, [], Content_Type="application/json-patch+json")[0] == 501


@pytest.mark.parametrize(
    "patch",
    [
        {"spec": {"$patch": "replace"}},
        {"spec": {"taints": [{"$patch": "replace"}]}},
        {"metadata": {"$setElementOrder/finalizers": ["a"]}},
        {"metadata": {"finalizers": ["a"]}},
        {"metadata": {"ownerReferences": [{"uid": "a"}]}},
    ],
)
def test_strategic_patches_beyond_maps_are_not_modelled(ask: Ask, api: LabApi, patch: Object) -> None:
    assert ask("PATCH", OMEN2, patch, **STRATEGIC)[0] == 501
    assert len(api.unknown) == 1


def test_a_pods_spec_is_not_modelled() -> None:
    pod = Fake().store.get("pods", "web", "default")
    assert pod is not None
    assert patched("pods", pod, {"metadata": {"labels": {"a": "b"}}}, True)["metadata"]["labels"]["a"] == "b"
    with pytest.raises(NotModelled):
        patched("pods", pod, {"spec": {"nodeName": "omen3"}}, True)


# --- other writes ---


def test_a_pods_deletion_is_the_models_matter(core: client.CoreV1Api, model: Fake, ask: Ask) -> None:
    body = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="another"))
    with pytest.raises(client.ApiException, match="Precondition failed"):
        core.delete_namespaced_pod("web", "default", body=body)
    assert core.delete_namespaced_pod("web", "default").metadata.deletion_timestamp
    assert [(plural, after) for plural, _, after in model.writes] == [("pods", None)]
    assert ask("DELETE", "/api/v1/namespaces/default/pods/cuda?gracePeriodSeconds=0")[0] == 501
    assert ask("DELETE", "/api/v1/namespaces/default/pods/no")[0] == 404


def test_leases(calls: client.ApiClient, model: Fake, ask: Ask) -> None:
    leases = client.CoordinationV1Api(calls)
    lease = leases.read_namespaced_lease("omen2", "kube-node-lease")
    lease.spec.holder_identity = "me"
    assert leases.replace_namespaced_lease("omen2", "kube-node-lease", lease).spec.holder_identity == "me"
    with pytest.raises(client.ApiException, match="the object has been modified"):
        leases.replace_namespaced_lease("omen2", "kube-node-lease", lease)
    new = client.V1Lease(metadata=client.V1ObjectMeta(name="new"), spec=client.V1LeaseSpec(holder_identity="me"))
    created = leases.create_namespaced_lease("kube-node-lease", new)
    assert created.metadata.creation_timestamp.isoformat() == NOW.replace("Z", "+00:00")
    with pytest.raises(client.ApiException, match="already exists"):
        leases.create_namespaced_lease("kube-node-lease", new)
    assert ask("DELETE", f"{LEASES}/new")[1]["status"] == "Success"
    assert model.store.get("leases", "new", "kube-node-lease") is None
    assert ask("PUT", f"{LEASES}/put", {"metadata": {"name": "put"}})[0] == 201
    assert ask("PUT", f"{LEASES}/put", {"metadata": {"name": "put"}})[0] == 422
    assert ask("POST", LEASES, {"metadata": {"name": "A B"}})[0] == 422
    assert ask("POST", LEASES, {"metadata": {}})[0] == 422
    assert ask("POST", LEASES, {"metadata": {"name": "x", "namespace": "default"}})[0] == 400
    assert ask("POST", LEASES, {"kind": "Pod", "metadata": {"name": "x"}})[0] == 400
    assert ask("POST", LEASES.replace("kube-node-lease", "nowhere"), {"metadata": {"name": "x"}})[0] == 404
    assert ask("POST", f"{LEASES}?dryRun=All", {"metadata": {"name": "x"}})[0] == 201
    assert ask("GET", f"{LEASES}/x")[0] == 404


def test_events_can_be_created(core: client.CoreV1Api, ask: Ask) -> None:
    about = client.V1ObjectReference(kind="Node", name="omen2")
    event = client.CoreV1Event(metadata=client.V1ObjectMeta(name="e"), involved_object=about, reason="Test")
    assert core.create_namespaced_event("default", event).metadata.uid
    assert names(core.list_namespaced_event("default", field_selector="reason=Test")) == ["e"]
    assert ask("PATCH", "/api/v1/namespaces/default/events/e", {}, **MERGE)[0] == 501


# --- HTTP ---


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer another", TOKEN, "Bearer \u00fc"])
def test_without_the_token_nothing_is_said(ask: Ask, given: str) -> None:
    for method, path in (("GET", "/api/v1/nodes"), ("GET", "/healthz"), ("POST", "/lab/v1/tool")):
        status, body = ask(method, path, Authorization=given)
        assert (status, body["reason"]) == (401, "Unauthorized")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/configmaps"),
        ("GET", "/api/v1/pods/web"),
        ("GET", "/api/v1/namespaces/default/nodes"),
        ("GET", "/api/v1/namespaces/default/pods/web/log"),
        ("PATCH", "/api/v1/nodes/omen2/status"),
        ("POST", "/api/v1/namespaces/default/pods"),
        ("POST", "/api/v1/namespaces/default/pods/web/eviction"),
        ("DELETE", "/api/v1/nodes/omen2"),
        ("DELETE", "/api/v1/namespaces/default/pods"),
        ("GET", "/apis/nvidia.com/v1alpha1/nvidiadrivers"),
        ("GET", "/apis/kubevirt.io/v1/migrations"),
        ("POST", "/apis/cert-manager.io/v1/issuers"),
        ("GET", "/api/v1/nodes?resourceVersionMatch=Exact"),
        ("GET", "/api/v1/nodes?shard=1"),
        ("GET", "/metrics"),
        ("OPTIONS", "/api/v1/nodes"),
        ("GET", "/lab/v1/tool"),
    ],
)
def test_what_is_not_modelled_is_said_and_noted(ask: Ask, api: LabApi, method: str, path: str) -> None:
    status, body = ask(method, path, {}, **MERGE)
    assert (status, body["reason"]) == (501, "NotImplemented")
    assert body["message"].startswith(f"the practice lab does not model {method} {path.partition('?')[0]}")
    assert len(api.unknown) == 1
    assert api.unknown[0].startswith(f"{method} {path}: ")


@pytest.mark.parametrize(
    "path",
    ["/apis/cert-manager.io", "/apis/cert-manager.io/v1", "/apis/cert-manager.io/v1/x", "/openapi/v2", "/openapi/v3"],
)
def test_groups_that_a_cluster_lacks_are_404(ask: Ask, api: LabApi, path: str) -> None:
    status, body = ask("GET", path)
    assert (status, body["message"]) == (404, "the server could not find the requested resource")
    assert not api.unknown


def test_discovery(ask: Ask) -> None:
    assert ask("GET", "/version")[1]["gitVersion"] == "v1.34.4"
    assert ask("GET", "/readyz?verbose") == (200, "ok")
    assert ask("GET", "/api")[1]["versions"] == ["v1"]
    groups = [group["name"] for group in ask("GET", "/apis?timeout=32s")[1]["groups"]]
    assert groups == ["apps", "coordination.k8s.io", "kubevirt.io", "nvidia.com"]
    assert ask("GET", "/apis/apps")[1]["preferredVersion"]["groupVersion"] == "apps/v1"
    nodes = next(entry for entry in ask("GET", "/api/v1")[1]["resources"] if entry["name"] == "nodes")
    assert nodes["verbs"] == ["get", "list", "patch", "watch"]
    assert [entry["name"] for entry in ask("GET", "/apis/apps/v1")[1]["resources"]] == ["daemonsets"]


def test_bodies_are_checked(ask: Ask) -> None:
    assert ask("PATCH", OMEN2, b" " * (BODY_LIMIT + 1), **MERGE)[0] == 413
    for body in (b"{", b"[]", b"\xff", b'{"a": NaN}', b"[" * 100_000):
        assert ask("PATCH", OMEN2, body, **MERGE)[0] == 400
    for method, path in (("POST", LEASES), ("DELETE", f"{LEASES}/omen2")):
        assert ask(method, path, b"k8s\0", Content_Type="application/vnd.kubernetes.protobuf")[0] == 501
    assert ask("GET", OMEN2, Accept="application/vnd.kubernetes.protobuf")[0] == 501
    for options in ({"dryRun": 5}, {"preconditions": [1]}, {"dryRun": ["Some"]}):
        assert ask("DELETE", f"{LEASES}/omen2", options)[0] == 400
    assert ask("PATCH", OMEN2, b"{}", Content_Length="9" * 5000)[0] == 400


def test_without_the_token_nothing_is_noted_either(ask: Ask, api: LabApi) -> None:
    assert ask("POST", "/api/v1/nodes", b"0\r\n\r\n", Transfer_Encoding="chunked", Authorization="Bearer x")[0] == 401
    assert api.unknown == []


def test_nothing_goes_to_stderr(ask: Ask, model: Fake, capfd: pytest.CaptureFixture[str]) -> None:
    model.broken = True
    assert ask("GET", OMEN2)[0] == 500
    model.broken = False
    assert ask("BREW", OMEN2)[0] == 501
    assert ask("GET", OMEN2)[0] == 200
    assert capfd.readouterr().err == ""


def test_the_tools_door(ask: Ask) -> None:
    call = {"node": "omen2", "argv": ["swapoff", "-a"], "cwd": "/"}
    assert ask("POST", "/lab/v1/tool", call) == (200, {"code": 3, "out": "omen2: ['swapoff', '-a']", "err": "no"})
    for argv in ([], "swapoff", [1], None):
        assert ask("POST", "/lab/v1/tool", {**call, "argv": argv})[0] == 400
    assert ask("POST", "/lab/v1/tool", [])[0] == 400
    assert ask("POST", "/lab/v1/tool", {**call, "node": "omen9"})[0] == 404


# --- the pure parts ---

EDGES = "a0Z"
VALUES = st.just("") | st.text(EDGES + "-_.", max_size=6).map(lambda middle: f"a{middle}0")
KEYS = st.sampled_from(["", "example.com/", "a/"]).flatmap(
    lambda prefix: st.text(EDGES, min_size=1, max_size=3).map(prefix.__add__)
)
REQUIREMENTS = st.one_of(
    st.tuples(KEYS, st.sampled_from(["exists", "!exists"]), st.just(())),
    st.tuples(KEYS, st.sampled_from(["in", "notin"]), st.lists(VALUES, min_size=1, max_size=3).map(tuple)),
).map(lambda parts: Requirement(*parts))


def printed(requirement: Requirement) -> str:
    match requirement.op:
        case "exists":
            return requirement.key
        case "!exists":
            return f"!{requirement.key}"
    return f"{requirement.key} {requirement.op} ({','.join(requirement.values)})"


@given(st.lists(REQUIREMENTS, max_size=4), st.dictionaries(KEYS, VALUES, max_size=4))
def test_a_selector_means_what_it_prints(wanted: list[Requirement], labels: dict[str, str]) -> None:
    parsed = parse_labels(",".join(map(printed, wanted)))
    assert list(parsed) == wanted
    for requirement in parsed:
        opposite = {"exists": "!exists", "!exists": "exists", "in": "notin", "notin": "in"}[requirement.op]
        assert requirement.matches(labels) != requirement._replace(op=opposite).matches(labels)


@given(st.text(max_size=30))
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    pod: Object = {"metadata": {"labels": {}}}
    with suppress(BadSelector):
        Selection("pods", labels=parse_labels(text)).matches(pod)
    with suppress(BadSelector):
        Selection("pods", fields=parse_fields(text, "pods")).matches(pod)


def test_numbers_compare() -> None:
    (more,) = parse_labels("count>2")
    assert [more.matches({"count": count}) for count in ("1", "3", "x")] == [False, True, False]
    assert not more.matches({})


JSON = st.recursive(
    st.none() | st.booleans() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=10,
)


@given(JSON, JSON)
def test_a_merge_patch_is_done_once(before: Any, patch: Any) -> None:
    once = merged(before, patch)
    assert merged(once, patch) == once


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-5, "<invalid>"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (303, "5m3s"),
        (660, "11m"),
        (3 * 3600 + 60, "3h1m"),
        (9 * 3600, "9h"),
        (52 * 3600, "2d4h"),
        (41 * 86400, "41d"),
        (800 * 86400, "2y70d"),
    ],
)
def test_ages(seconds: float, expected: str) -> None:
    assert human(seconds) == expected


# --- kubectl ---

KUBECTL = shutil.which("kubectl")
Kubectl = Callable[..., str]


@pytest.fixture
def kubectl(api: LabApi, tmp_path: Path) -> Kubectl:
    if KUBECTL is None:
        if os.environ.get("GPUFIX_REQUIRE_KUBECTL") == "1":
            pytest.fail("no kubectl on PATH")
        pytest.skip("no kubectl on PATH")
    cluster = {"name": "lab", "cluster": {"server": api.kubeconfig_url}}
    context = {"name": "lab", "context": {"cluster": "lab", "user": "lab"}}
    user = {"name": "lab", "user": {"token": TOKEN}}
    config = tmp_path / "config"
    kubeconfig = {"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "lab"}
    config.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **kubeconfig}), encoding="utf-8")

    def kubectl(*arguments: str) -> str:
        command = [str(KUBECTL), "--kubeconfig", str(config), *arguments]
        environment = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        assert api.unknown == []
        return done.stdout

    return kubectl


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_kubectl_get(kubectl: Kubectl) -> None:
    assert rows(kubectl("get", "nodes")) == [
        ["NAME", "STATUS", "ROLES", "AGE", "VERSION"],
        ["omen1", "Ready", "worker", "43m", "v1.34.4"],
        ["omen2", "NotReady", "worker", "43m", "v1.34.4"],
        ["omen3", "Ready", "worker", "43m", "v1.34.4"],
    ]
    wide = rows(kubectl("get", "pods", "-A", "-o", "wide"))
    assert " ".join(wide[0]) == "NAMESPACE NAME READY STATUS RESTARTS AGE IP NODE NOMINATED NODE READINESS GATES"
    assert wide[1] == ["default", "cuda", "1/1", "Running", "0", "43m", "<none>", "omen2", "<none>", "<none>"]
    assert rows(kubectl("get", "vm")) == [["NAME", "AGE", "STATUS", "READY"], ["gpu-vm", "43m", "Running"]]
    assert rows(kubectl("get", "ds"))[1][1:6] == ["2", "0", "1", "0", "0"]
    assert rows(kubectl("get", "events"))[1][:4] == ["10s", "Normal", "NodeNotReady", "node/omen2"]
    assert "kubelet" not in kubectl("get", "node", "omen2", "-o", "name")
    assert "name: omen2" in kubectl("get", "node", "omen2", "-o", "yaml")
    assert "virtualmachines" in kubectl("api-resources")


def test_kubectl_describe_node(kubectl: Kubectl) -> None:
    text = kubectl("describe", "node", "omen2")
    for part in ("HolderIdentity:  omen2", "unreachable:NoSchedule", "Non-terminated Pods:", "cuda", "NodeNotReady"):
        assert part in text


def test_kubectl_writes(kubectl: Kubectl, model: Fake) -> None:
    assert "labeled (server dry run)" in kubectl("label", "node", "omen2", "gpu=on", "--dry-run=server")
    assert not model.writes
    assert "labeled" in kubectl("label", "node", "omen2", "gpu=on")
    assert "cordoned" in kubectl("cordon", "omen2")
    assert rows(kubectl("get", "node", "omen2"))[1][1] == "NotReady,SchedulingDisabled"
    kubectl("uncordon", "omen2")
    kubectl("taint", "node", "omen2", "gpufix/held=now:NoSchedule")
    kubectl("annotate", "pod", "web", "a=b")
    kubectl("delete", "pod", "web", "--wait=false")
    assert rows(kubectl("get", "pod", "web"))[1][2] == "Terminating"
    after = model.store.get("nodes", "omen2")
    assert after is not None
    assert after["metadata"]["labels"]["gpu"] == "on"
    assert {taint["key"] for taint in after["spec"]["taints"]} == {"node.kubernetes.io/unreachable", "gpufix/held"}


def test_kubectl_watches(kubectl: Kubectl, model: Fake, tmp_path: Path) -> None:
    command = [str(KUBECTL), "--kubeconfig", str(tmp_path / "config"), "get", "nodes", "-w"]
    environment = {**os.environ, "HOME": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as following:
        assert following.stdout is not None
        try:
            listed = [following.stdout.readline().split()[:2] for _ in range(4)]
            assert listed == [["NAME", "STATUS"], ["omen1", "Ready"], ["omen2", "NotReady"], ["omen3", "Ready"]]
            with model.changed:
                node = model.store.get("nodes", "omen2") or {}
                node["spec"] = {"unschedulable": True}
                model.store.put("nodes", node)
                model.changed.notify_all()
            assert following.stdout.readline().split()[:2] == ["omen2", "NotReady,SchedulingDisabled"]
        finally:
            following.kill()
    kubectl("wait", "--for=condition=Ready", "node/omen1", "--timeout=5s")
