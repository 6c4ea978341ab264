"""The part of the Kubernetes API that knows one node: GET and PATCH, with dry runs and resource versions."""

from __future__ import annotations

import copy
import json
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

WORKLOAD = "nvidia.com/gpu.workload.config"
DEPLOY = "nvidia.com/gpu.deploy.vfio-manager"


class NodeApi:
    def __init__(self) -> None:
        self.node: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": "omen2",
                "uid": "11111111-2222-3333-4444-555555555555",
                "resourceVersion": "100",
                "labels": {"kubernetes.io/hostname": "omen2", WORKLOAD: "vm-passthrough", DEPLOY: "true"},
                "managedFields": [{"manager": "noise"}],
            },
        }
        self.requests: list[tuple[str, str, Any]] = []
        self.refuse: dict[str, int] = {}
        self.faults: list[tuple[str, str]] = []
        """What goes wrong, one after the other, at the next request of a verb: ``429``, ``500``, ... or ``429/60`` (a
        Retry-After), ``reset`` before it is done, ``lost`` when only the answer is, ``silent``."""
        self.heartbeats = 0
        """So many reads are followed by a change of the node before its patch comes."""
        self.stopping = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler(self))

    @property
    def uid(self) -> str:
        return str(self.node["metadata"]["uid"])

    @property
    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.node["metadata"]["labels"]
        return found

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def kubeconfig(self, folder: Path) -> str:
        path = folder / "kubeconfig"
        server = f"http://127.0.0.1:{self._server.server_address[1]}"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": {"server": server}}],
                    "users": [{"name": "u", "user": {}}],
                }
            )
        )
        return str(path)

    def patches(self) -> list[tuple[str, Any]]:
        """Query and body of each PATCH."""
        return [(urlsplit(path).query, body) for verb, path, body in self.requests if verb == "PATCH"]

    # --- what the server does ---

    def answer(self, verb: str, path: str, content_type: str, body: Any) -> tuple[int, Any]:
        self.requests.append((verb, path, body))
        if self.faults and self.faults[0][0] == verb and self.faults[0][1] != "lost":
            raise Fault(self.faults.pop(0)[1])
        if verb in self.refuse:
            return self.refuse[verb], {"kind": "Status", "message": f"nodes is forbidden: cannot {verb.lower()}"}
        if urlsplit(path).path != "/api/v1/nodes/omen2":
            return 404, {"kind": "Status", "message": "not found"}
        if verb == "GET":
            return 200, self._read()
        assert content_type == "application/strategic-merge-patch+json"
        answer = self._patch(body, parse_qs(urlsplit(path).query).get("dryRun") == ["All"])
        if self.faults and self.faults[0] == (verb, "lost"):
            raise Fault(self.faults.pop(0)[1])
        return answer

    def _read(self) -> Any:
        answer = copy.deepcopy(self.node)
        if self.heartbeats:
            self.heartbeats -= 1
            self._bump()
        return answer

    def _patch(self, body: Any, dry_run: bool) -> tuple[int, Any]:
        if body["metadata"]["resourceVersion"] != self.node["metadata"]["resourceVersion"]:
            return 409, {"kind": "Status", "message": "the object has been modified"}
        node = copy.deepcopy(self.node)
        for name, value in body["metadata"]["labels"].items():
            if value is None:
                node["metadata"]["labels"].pop(name, None)
            else:
                node["metadata"]["labels"][name] = value
        if not dry_run:
            self.node = node
            self._bump()
        return 200, node

    def _bump(self) -> None:
        self.node["metadata"]["resourceVersion"] = str(int(self.node["metadata"]["resourceVersion"]) + 1)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # the connection was closed under it, on purpose


class Fault(Exception):
    """The way that a request ends instead of being answered."""


def _handler(api: NodeApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET", None)

        def do_PATCH(self) -> None:
            self._answer("PATCH", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, verb: str, body: Any) -> None:
            wait = ""
            try:
                status, answer = api.answer(verb, self.path, self.headers.get("Content-Type", ""), body)
            except Fault as fault:
                code, _, wait = str(fault).partition("/")
                if not code.isdigit():
                    api.stopping.wait(20 if code == "silent" else 0)
                    self.close_connection = True
                    linger = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.connection.close()
                    return
                status, answer = int(code), {"kind": "Status", "message": "not now"}
            data = json.dumps(answer).encode()
            self.send_response(status)
            if wait:
                self.send_header("Retry-After", wait)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_arguments: Any) -> None:
            pass

    return Handler
