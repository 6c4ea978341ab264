"""The door to the cluster when the API server or the way to it is sick: one line each, in time, and tried again only
where that is safe."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from test_cluster import kubeconfig

from gpufix.errors import ExitStatus
from gpufix.world import cluster as door
from gpufix.world.cluster import Cluster, ClusterAccess, Unreadable, api_error, read_cluster

Fault = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Sick

    def _any(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append(f"{self.command} {self.path.partition('?')[0]}")
        self.server.next_fault(self)

    def do_GET(self) -> None:
        self._any()

    def do_POST(self) -> None:
        self._any()

    def do_PUT(self) -> None:
        self._any()

    def answer(self, status: int, body: Any, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Sick(ThreadingHTTPServer):
    """Has each of ``faults`` once, in their order, then ``for_good`` again and again."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults: list[Fault] = []
        self.for_good: Fault = well
        self.asked: list[str] = []
        self.closing = threading.Event()
        self._lock = threading.Lock()

    def next_fault(self, handler: Handler) -> None:
        with self._lock:
            fault = self.faults.pop(0) if self.faults else self.for_good
        fault(handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


def well(handler: Handler) -> None:
    handler.answer(200, {"items": [], "metadata": {}})


def status(code: int, message: str = "", **headers: str) -> Fault:
    body = {"kind": "Status", "status": "Failure", "message": message, "code": code}
    return lambda handler: handler.answer(code, body, **headers)


def reset(handler: Handler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    handler.connection.close()


def hang_up(handler: Handler) -> None:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def half(handler: Handler) -> None:
    handler.close_connection = True
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"items"')


def silent(handler: Handler) -> None:
    handler.server.closing.wait(60)
    handler.close_connection = True


def trickle(handler: Handler) -> None:
    """A byte now and then: no single wait is long."""
    handler.close_connection = True
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    while not handler.server.closing.wait(0.05):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def garbage(handler: Handler) -> None:
    handler.close_connection = True
    handler.wfile.write(b"\x15\x03\x01\x00\x02\x02\x50 this is TLS, or a tunnel\r\n\r\n")


@pytest.fixture
def api() -> Iterator[Sick]:
    server = Sick()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield server
    server.closing.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def cluster(api: Sick, tmp_path: Path, slept: list[float], request: pytest.FixtureRequest) -> Cluster:
    """Only who waits for silence waits shortly: on a busy machine an answer may take its time."""
    url = f"http://127.0.0.1:{api.server_address[1]}"
    timeout = 1 if "silent" in request.node.name else 15
    return Cluster(ClusterAccess(kubeconfig(tmp_path, url), timeout=timeout), sleep=slept.append)


LEASE = {"metadata": {"name": "gpufix-omen2", "namespace": "kube-node-lease", "resourceVersion": "7"}}

PASSING = {
    "429": status(429, "too many requests"),
    "500": status(500, "etcd is busy"),
    "503": status(503, "the server is starting"),
    "reset": reset,
    "hung up": hang_up,
    "half an answer": half,
}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_a_read_gets_over_what_passes(
    api: Sick, cluster: Cluster, slept: list[float], fault: Fault, times: int
) -> None:
    api.faults = [fault] * times
    assert cluster.nodes() == []
    assert len(api.asked) == times + 1
    assert slept == list(door.PAUSES[:times])


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (status(429, "too many requests"), "failed", "list nodes: 429 too many requests"),
        (status(500, "etcd is\ndown"), "failed", "list nodes: 500 etcd is down"),
        (reset, "unreachable", "does not answer: the connection was reset"),
        (hang_up, "unreachable", "does not answer: the connection was closed"),
        (half, "unreachable", "does not answer: the connection was closed"),
    ],
)
def test_what_does_not_pass_is_given_up_soon(
    api: Sick, cluster: Cluster, slept: list[float], fault: Fault, kind: str, words: str
) -> None:
    api.for_good = fault
    with pytest.raises(Unreadable) as caught:
        cluster.nodes()
    assert caught.value.kind == kind
    assert words in caught.value.reason
    assert "\n" not in caught.value.reason
    assert len(api.asked) == 3
    assert sum(slept) < 2


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (status(401, "Unauthorized"), "unauthorized"),
        (status(403, "nodes is forbidden"), "forbidden"),
        (status(404, "not found"), "absent"),
        (status(400, "bad"), "failed"),
        (status(200, "a Status, and no list"), ""),
        (silent, "unreachable"),
        (garbage, "unreachable"),
    ],
    ids=["401", "403", "404", "400", "status", "silent", "garbage"],
)
def test_what_would_be_the_same_again_is_asked_once(
    api: Sick, cluster: Cluster, slept: list[float], fault: Fault, kind: str
) -> None:
    api.for_good = fault
    if not kind:
        assert cluster.nodes() == []
    else:
        with pytest.raises(Unreadable) as caught:
            cluster.nodes()
        assert caught.value.kind == kind
    if fault is not garbage:
        assert (len(api.asked), slept) == (1, [])


@pytest.mark.parametrize(("said", "sleeps"), [("3", [3.0]), ("0", [0.3]), ("soon", [0.3]), ("-4", [0.3]), ("", [0.3])])
def test_the_server_says_how_long_to_wait(
    api: Sick, cluster: Cluster, slept: list[float], said: str, sleeps: list[float]
) -> None:
    api.faults = [status(429, "later", Retry_After=said)]
    assert cluster.nodes() == []
    assert slept == sleeps


def test_it_may_say_it_as_a_date(api: Sick, cluster: Cluster, slept: list[float]) -> None:
    when = datetime.now(UTC) + timedelta(seconds=4)
    api.faults = [status(503, "later", Retry_After=format_datetime(when, usegmt=True))]
    assert cluster.nodes() == []
    assert 1 <= slept[0] <= 4


@pytest.mark.parametrize("said", ["60", "99999999", "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_one_that_wants_to_be_left_alone_is(api: Sick, cluster: Cluster, slept: list[float], said: str) -> None:
    api.for_good = status(429, "too many requests", Retry_After=said)
    with pytest.raises(Unreadable, match="it asks to wait") as caught:
        cluster.nodes()
    assert (len(api.asked), slept) == (1, [])
    assert caught.value.kind == "failed"


def test_a_byte_now_and_then_is_no_answer(api: Sick, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_ANSWER_SECONDS", 0.3)
    api.for_good = trickle
    began = time.monotonic()
    with pytest.raises(Unreadable, match="timed out") as caught:
        cluster.nodes()
    assert caught.value.kind == "unreachable"
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("fault", [*PASSING.values(), silent], ids=[*PASSING, "silent"])
def test_a_write_is_never_repeated(api: Sick, cluster: Cluster, slept: list[float], fault: Fault) -> None:
    api.for_good = fault
    for write in (cluster.replace_lease, cluster.create_lease):
        with pytest.raises(Unreadable):
            write(LEASE)
    assert [asked.split()[0] for asked in api.asked] == ["PUT", "POST"]
    assert slept == []


def test_a_lease_is_read_again(api: Sick, cluster: Cluster) -> None:
    api.faults = [reset, status(500)]
    api.for_good = lambda handler: handler.answer(200, LEASE)
    assert cluster.lease("kube-node-lease", "gpufix-omen2") == LEASE


@pytest.mark.parametrize(
    ("fault", "words", "hint"),
    [
        (status(401, "Unauthorized"), "401 Unauthorized", "log in again"),
        (status(429, "too many requests", Retry_After="60"), "it asks to wait 60 s", "API server"),
        (status(500, "etcd is down"), "500 etcd is down", "API server"),
        (reset, "the connection was reset", "API server"),
        (silent, "timed out", "API server"),
        (garbage, "does not answer", "API server"),
    ],
    ids=["401", "429", "500", "reset", "silent", "garbage"],
)
def test_a_whole_reading_of_a_sick_server_is_one_reason(
    api: Sick, cluster: Cluster, fault: Fault, words: str, hint: str
) -> None:
    api.for_good = fault
    began = time.monotonic()
    files, unread = read_cluster(cluster, "omen2")
    assert time.monotonic() - began < 30
    assert files == {}
    reason = unread.get("cluster") or unread["cluster/nodes.json"]
    assert words in reason
    error = api_error(reason)
    assert (error.exit_status, hint in error.hint) == (ExitStatus.UNREACHABLE, True)
    assert "\n" not in error.message
    assert "Traceback" not in json.dumps(unread)
    assert "object at 0x" not in json.dumps(unread)


def test_a_reading_gets_over_a_server_that_restarts(api: Sick, cluster: Cluster) -> None:
    """Every read meets it: each address is refused as often as a read is tried again, whichever thread is the first."""

    def restarting(handler: Handler) -> None:
        asked = api.asked.count(f"{handler.command} {handler.path.partition('?')[0]}")
        [reset, status(503), well][min(asked, 3) - 1](handler)

    api.for_good = restarting
    files, unread = read_cluster(cluster, "omen2")
    assert unread == {}
    assert len(files) == 7
