"""Posts to a webhook (``--notify``) from a thread of its own, so that no run waits for it or fails by it.

A webhook's address is a secret: who has Slack's may post there. Nothing here says more of it than scheme and host.
"""

from __future__ import annotations

import base64
import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from queue import SimpleQueue
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from gpufix.errors import GpufixError
from gpufix.language import t
from gpufix.text import redact_all, safe

TIMEOUT_SECONDS = 5.0
"""For each wait of one post: the connection, the answer."""
PAUSE_SECONDS = 1.0
"""Before the one retry."""
DRAIN_SECONDS = 3.0
"""How long ``close`` waits for what is still to be posted."""
ROOM = 32
"""Posts that may wait; one more is dropped, and said to be."""

_HINT = "give an address like https://hooks.example.com/services/..."


class Notifier:
    """Posts JSON to ``url``. Raises GpufixError (status 2) at once for an address that cannot be one.

    A user and password in the address are sent as basic auth: webhooks behind a reverse proxy ask for it, and since no
    redirect is followed nobody but the named host sees them. Proxies are those of the environment, as in urllib.
    """

    def __init__(
        self, url: str, *, timeout: float = TIMEOUT_SECONDS, pause: float = PAUSE_SECONDS, room: int = ROOM
    ) -> None:
        self._url, self._headers, self.shown = _checked(url)
        self._timeout = timeout
        self._pause = pause
        self._room = room
        self._queue: SimpleQueue[tuple[str, bytes] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._troubles: list[str] = []
        self._posted = 0
        self._settled = 0
        self._closed = False
        self._given_up = threading.Event()
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"Notifier({self.shown!r})"

    @property
    def troubles(self) -> tuple[str, ...]:
        """One line for each thing that went wrong so far."""
        return tuple(self._troubles)

    def post(self, payload: Mapping[str, Any]) -> None:
        """Queue ``payload``, redacted, and return at once. Never raises for what may happen to it."""
        if self._closed or os.getpid() != self._process:  # a fork has no thread to post for it
            return
        what = safe(str(payload.get("event", "message")), limit=40)
        if self._posted - self._settled >= self._room:
            told = t("{event} was dropped: {n} others wait to be posted", event=what, n=self._room)
            self._troubles.append(f"notify {self.shown}: {told}")
            return
        try:
            body = json.dumps(redact_all(payload), allow_nan=False).encode()
            self._thread = self._thread or self._start()
        except (RuntimeError, ValueError) as error:  # no more threads; data that holds itself
            told = t("{event} was not posted: {why}", event=what, why=error)
            self._troubles.append(safe(f"notify {self.shown}: {told}", limit=300))
            return
        self._posted += 1
        self._queue.put((what, body))

    def close(self, timeout: float = DRAIN_SECONDS) -> None:
        """Wait up to ``timeout`` seconds for what is queued, then give the rest up. May be called twice."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        if self._thread is None:
            return
        self._queue.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._given_up.set()
            if left := self._posted - self._settled:
                told = t("{n} not known to have arrived when gpufix ended", n=left)
                self._troubles.append(f"notify {self.shown}: {told}")

    def _start(self) -> threading.Thread:
        # a daemon: the interpreter does not wait for it, whatever the other side does
        thread = threading.Thread(target=self._work, name="gpufix-notify", daemon=True)
        thread.start()
        return thread

    def _work(self) -> None:
        # only the handlers named here: none for files, none that follows a redirect
        opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
        ):
            opener.add_handler(handler)
        while (item := self._queue.get()) is not None and not self._given_up.is_set():
            what, body = item
            trouble, again = self._try(opener, body)
            if again and not self._given_up.wait(self._pause):
                trouble, _ = self._try(opener, body)
            if trouble and not self._given_up.is_set():
                told = t("{event} did not arrive: {why}", event=what, why=trouble)
                self._troubles.append(safe(f"notify {self.shown}: {told}", limit=300))
            self._settled += 1

    def _try(self, opener: urllib.request.OpenerDirector, body: bytes) -> tuple[str, bool]:
        """What went wrong (empty: nothing), and whether once more may help.

        What may have arrived is not sent again: two "waits for you" would be as wrong as none.
        """
        try:
            request = urllib.request.Request(self._url, body, self._headers, method="POST")
            with opener.open(request, timeout=self._timeout):
                return "", False
        except urllib.error.HTTPError as error:
            error.close()
            if 300 <= error.code < 400:
                return t("the answer was HTTP {status}, and redirects are not followed", status=error.code), False
            return t("the answer was HTTP {status}", status=error.code), error.code == 429 or error.code >= 500
        except urllib.error.URLError as error:  # urllib's word for what failed before the request was sent
            return _reason(error.reason), True
        except TimeoutError:
            return t("no answer within {n} s", n=f"{self._timeout:g}"), False
        except (OSError, HTTPException) as error:
            return _reason(error), False
        except Exception as error:  # this thread must not end before the queue, and its text may hold the address
            return type(error).__name__, False


def _reason(error: object) -> str:
    """Only the system's own words: what http.client says may quote the address."""
    if isinstance(error, TimeoutError):
        return t("no connection in time")
    if str(error).startswith("Tunnel connection failed"):  # a proxy's, which is not told more than the host
        return str(error)
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return type(error).__name__


def _checked(url: str) -> tuple[str, dict[str, str], str]:
    """The address without user and fragment, the headers, and what may be shown of it."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise GpufixError("--notify: the address holds a blank or a character that no address may hold", _HINT)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise GpufixError("--notify: that is no address", _HINT) from None
    if parts.scheme not in ("http", "https"):
        raise GpufixError("--notify: the address is neither http:// nor https://", _HINT)
    if not host:
        raise GpufixError("--notify: the address names no host", _HINT)
    headers = {"Content-Type": "application/json", "User-Agent": "gpufix"}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    named = f"[{host}]" if ":" in host else host
    netloc = named if port is None else f"{named}:{port}"
    return urlunsplit((parts.scheme, netloc, parts.path or "/", parts.query, "")), headers, f"{parts.scheme}://{named}"
