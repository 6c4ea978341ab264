"""The door to the cluster, against a small HTTP server: what is read, how errors become one line, what is left out."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gpufix.errors import ExitStatus, GpufixError
from gpufix.world.cluster import Cluster, ClusterAccess, api_error, read_cluster, trim, trim_pod
from gpufix.world.runs import sweep

Answer = tuple[int, Any]


class Api:
    """Answers GETs from ``routes``: path -> (status, body) or a function of the query that returns that."""

    def __init__(self) -> None:
        self.routes: dict[str, Answer | Callable[[dict[str, list[str]]], Answer]] = {}
        self.asked: list[str] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.asked.append(self.path)
                parts = urlsplit(self.path)
                route = api.routes.get(parts.path, (200, {"items": []}))
                status, body = route(parse_qs(parts.query)) if callable(route) else route
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    yield api
    api.server.shutdown()
    api.server.server_close()


def kubeconfig(tmp_path: Path, server: str) -> str:
    path = tmp_path / "config"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t0ps3cret"}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "u"}}],
    }
    path.write_text(json.dumps(config))
    return str(path)


def node(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": name, "managedFields": [{"x": 1}]},
        "spec": {},
        "status": {"images": [{"names": ["x"]}], "allocatable": {"nvidia.com/gpu": "1"}},
    }


def status(code: int, message: str) -> Answer:
    return code, {"kind": "Status", "status": "Failure", "message": message, "code": code}


def test_all_pages_are_read_and_trimmed(api: Api, tmp_path: Path) -> None:
    def pages(query: dict[str, list[str]]) -> Answer:
        if "continue" in query:
            return 200, {"metadata": {}, "items": [node("omen3")]}
        return 200, {"metadata": {"continue": "next"}, "items": [node("omen1"), node("omen2")]}

    api.routes["/api/v1/nodes"] = pages
    files, unread = read_cluster(Cluster(ClusterAccess(kubeconfig(tmp_path, api.url))), "omen2")
    nodes = json.loads(files["cluster/nodes.json"])["items"]
    assert [item["metadata"]["name"] for item in nodes] == ["omen1", "omen2", "omen3"]
    assert "managedFields" not in nodes[0]["metadata"]
    assert "images" not in nodes[0]["status"]
    assert unread == {}


def test_a_missing_definition_is_a_fact_and_a_forbidden_read_is_a_gap(api: Api, tmp_path: Path) -> None:
    api.routes["/api/v1/nodes"] = (200, {"items": [node("omen2")]})
    api.routes["/apis/kubevirt.io/v1/virtualmachines"] = status(404, "the server could not find the requested resource")
    api.routes["/apis/nvidia.com/v1/clusterpolicies"] = status(
        403, 'clusterpolicies is forbidden: User "u" cannot list'
    )
    files, unread = read_cluster(Cluster(ClusterAccess(kubeconfig(tmp_path, api.url))), "omen2")
    assert json.loads(files["cluster/virtualmachines.json"])["items"] == []
    assert "cluster/clusterpolicy.json" not in files
    assert "403" in unread["cluster/clusterpolicy.json"]
    assert "cluster/pods.json" in files, "the pods are read although the policy that names their namespace is not"


def test_the_operator_s_pods_are_looked_for_where_the_policy_says(api: Api, tmp_path: Path) -> None:
    policy = {"metadata": {"name": "p"}, "status": {"namespace": "nvidia-gpu-operator"}}
    api.routes["/apis/nvidia.com/v1/clusterpolicies"] = (200, {"items": [policy]})
    read_cluster(Cluster(ClusterAccess(kubeconfig(tmp_path, api.url))), "omen2")
    assert any(path.startswith("/api/v1/namespaces/nvidia-gpu-operator/pods") for path in api.asked)
    assert any("labelSelector=kubevirt.io%3Dvirt-launcher" in path for path in api.asked)
    assert any("fieldSelector=spec.nodeName%3Domen2" in path for path in api.asked)


@pytest.mark.parametrize(
    ("route", "word", "hint"),
    [
        (status(401, "Unauthorized"), "401", "log in again"),
        (status(403, 'nodes is forbidden: User "u" cannot list resource "nodes"'), "forbidden", "get and list"),
        (status(500, "etcd is down"), "500", "API server"),
        ((200, b"<html>proxy</html>"), "no JSON", "API server"),
        ((200, b"[]"), "no object", "API server"),
    ],
)
def test_refusals_are_one_line_with_a_hint(api: Api, tmp_path: Path, route: Answer, word: str, hint: str) -> None:
    for path in ("/api/v1/nodes", "/api/v1/pods", "/api/v1/events"):
        api.routes[path] = route
    _, unread = read_cluster(Cluster(ClusterAccess(kubeconfig(tmp_path, api.url))), "omen2")
    reason = unread.get("cluster") or unread["cluster/nodes.json"]
    assert word in reason
    error = api_error(reason)
    assert hint in error.hint
    assert error.exit_status is ExitStatus.UNREACHABLE
    assert "\n" not in error.message
    assert "t0ps3cret" not in json.dumps(unread)


def test_an_api_server_that_is_not_there(tmp_path: Path) -> None:
    cluster = Cluster(ClusterAccess(kubeconfig(tmp_path, "http://127.0.0.1:1"), timeout=2))
    files, unread = read_cluster(cluster, "omen2")
    assert files == {}
    assert "http://127.0.0.1:1 does not answer: connection refused" in unread["cluster"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "just text",
        "apiVersion: v1\nkind: Config\n",
        "\x00",
        "clusters: 7\ncontexts: 7\nusers: 7\ncurrent-context: x",
    ],
)
def test_a_broken_kubeconfig_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(GpufixError) as caught:
        Cluster(ClusterAccess(str(path)))
    assert "\n" not in caught.value.message
    assert str(path) in caught.value.message


def test_a_missing_kubeconfig_and_an_unknown_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(GpufixError, match="no kubeconfig"):
        Cluster(ClusterAccess())
    with pytest.raises(GpufixError, match="prod"):
        Cluster(ClusterAccess(kubeconfig(tmp_path, "http://127.0.0.1:1"), context="prod"))


def test_kubeconfig_may_be_a_list_of_files(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{kubeconfig(tmp_path, api.url)}")
    api.routes["/api/v1/nodes"] = (200, {"items": [node("omen2")]})
    files, _ = read_cluster(Cluster(ClusterAccess()), "omen2")
    assert "omen2" in files["cluster/nodes.json"]


def test_what_may_carry_a_secret_is_left_out() -> None:
    vm = {
        "spec": {
            "template": {"spec": {"volumes": [{"cloudInitNoCloud": {"userData": "password: hunter2"}}], "domain": {}}}
        }
    }
    pod = {
        "spec": {
            "containers": [{"name": "c", "env": [{"name": "P", "value": "hunter2"}], "resources": {}}],
            "volumes": [1],
        }
    }
    assert "hunter2" not in json.dumps([trim(vm), trim_pod(pod)])
    assert vm["spec"]["template"]["spec"]["volumes"], "the caller's object is left as it was"


KEEPS_A_KEY = """
import base64, json, sys, time
from gpufix.world.runs import sweep
from gpufix.world.cluster import Cluster, ClusterAccess
Cluster(ClusterAccess(sys.argv[1]))
print("read", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("killed", [True, False])
def test_the_key_of_a_kubeconfig_does_not_outlive_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """The client writes it to a file, which a kill would leave."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    key = "-----BEGIN PRIVATE KEY-----\nMHcCAQEEIMade4Up\n-----END PRIVATE KEY-----\n"
    user = {"client-key-data": base64.b64encode(key.encode()).decode(), "client-certificate-data": "bm9uZQ=="}
    config = {
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": user}],
    }  # fmt: skip
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    child = subprocess.Popen(
        [sys.executable, "-c", KEEPS_A_KEY, str(tmp_path / "kubeconfig")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(scratch)},
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == b"read\n"
    for path in scratch.rglob("*"):
        if path.is_file() and b"Made4Up" in path.read_bytes():  # for as long as it lives, for this user only
            assert (scratch / path.relative_to(scratch).parts[0]).stat().st_mode & 0o077 == 0
    if killed:
        child.kill()
    child.communicate()
    sweep()
    assert list(scratch.iterdir()) == []
