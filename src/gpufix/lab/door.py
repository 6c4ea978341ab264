"""The practice cluster's API server: HTTP on the loopback over a model. kubectl and the Python client talk to it.

The verbs are in ``gpufix.lab.api``; here are the port, the authorization, the lock, and the time that a watch takes.
What is not modelled gets a 501 and is noted in ``LabApi.unknown``.
"""

from __future__ import annotations

import base64
import hmac
import json
import select
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import quote

from gpufix.lab.api import Model, Verbs, Watch
from gpufix.lab.patches import NotModelled, Refused, bad_request
from gpufix.lab.request import Reply, Request, refusal
from gpufix.lab.selectors import BadSelector
from gpufix.lab.store import Object

BODY_LIMIT = 1 << 20
_DRAINED = 8 << 20
"""So much of a body that is too long is read all the same: else the client sees a reset and not the 413."""
_TICK = 0.5
"""A watch looks so often whether time has changed the model, whether the client is gone, and whether to stop."""
_USER = "lab"


class Backend(Model, Protocol):
    """The model behind the API, in time. All of it is called with ``changed`` held."""

    changed: threading.Condition
    """Held around every use of the store; all are notified after each change."""

    def advance(self) -> None:
        """Bring the model to the present. Called before each answer."""


class LabApi:
    """Serves ``backend`` at ``url`` from ``start`` to ``stop``. ``unknown`` holds what was answered with 501 or 500.

    ``kubeconfig_url`` carries the token as a password: kubectl sends no bearer token where there is no TLS, but what
    stands in the URL it does send, as Basic authorization. That is accepted too.
    """

    def __init__(self, backend: Backend, token: str, port: int = 0) -> None:
        self.unknown: list[str] = []
        self._backend = backend
        self._stopping = threading.Event()
        self._server = _Server(("127.0.0.1", port), self, token)
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

    def answer(self, request: Request) -> Reply | Stream:
        """What there is to say to an authorized request."""
        try:
            with self._backend.changed:
                before = self._backend.store.version
                try:
                    self._backend.advance()
                    answer = Verbs(self._backend).route(request)
                    return Stream(self._backend, self._stopping, answer) if isinstance(answer, Watch) else answer
                finally:
                    # A write or a tool may move the model and leave the store as it is.
                    if request.method != "GET" or self._backend.store.version != before:
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


class Stream:
    """A watch in time: its events, batch by batch, until its seconds are over or the server stops."""

    def __init__(self, backend: Backend, stopping: threading.Event, watch: Watch) -> None:
        self._backend, self._stopping, self._watch = backend, stopping, watch
        self._ends = time.monotonic() + watch.seconds

    def batch(self) -> list[Object] | None:
        """The next watch events, after at most half a second; None when the watch is over. An ERROR is the last."""
        with self._backend.changed:
            if self._due() is None:
                return None
            before = self._backend.store.version
            self._backend.advance()
            if self._backend.store.version != before:
                self._backend.changed.notify_all()
            events = self._watch.events()
            if not events:
                self._backend.changed.wait(self._due() or 0)
            return events

    def _due(self) -> float | None:
        left = self._ends - time.monotonic()
        return min(left, _TICK) if left > 0 and not self._stopping.is_set() else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], api: LabApi, token: str) -> None:
        super().__init__(address, _Handler)
        self.api = api
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
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if not self.server.authorized(given):  # before its body is looked at: whoever it is gets nothing noted
            self.close_connection = True
            return self._send(refusal(Refused(401, "Unauthorized", "Unauthorized")))
        try:
            request = request._replace(body=self._body())
        except Refused as error:
            self.close_connection = True
            return self._send(refusal(error))
        except NotModelled as error:
            self.close_connection = True
            return self._send(self.server.api.not_modelled(request, str(error)))
        answer = self.server.api.answer(request)
        if isinstance(answer, Stream):
            return self._stream(request, answer)
        return self._send(answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = _serve  # noqa: N815

    def _body(self) -> bytes:
        if "Transfer-Encoding" in self.headers:
            raise NotModelled("a body of unknown length")
        text = self.headers.get("Content-Length", "0")
        if not (text.isascii() and text.isdigit() and len(text) < 20):
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

    def _stream(self, request: Request, stream: Stream) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.server.watching(1)
        try:
            while (events := self._batch(request, stream)) is not None and not self._gone():
                for event in events:
                    self._chunk(json.dumps(event).encode() + b"\n")
                if any(event["type"] == "ERROR" for event in events):
                    break
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
        finally:
            self.server.watching(-1)

    def _batch(self, request: Request, stream: Stream) -> list[Object] | None:
        try:
            return stream.batch()
        except Exception as error:
            return [{"type": "ERROR", "object": self.server.api.failed(request, error).body}]

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _gone(self) -> bool:
        """Whether the client has hung up: nothing else would tell while there is nothing to send."""
        poll = select.poll()  # select knows no descriptor above 1023
        poll.register(self.connection, select.POLLIN)
        return bool(poll.poll(0)) and not self.connection.recv(1, socket.MSG_PEEK)
