"""The events of a run for machines (``--events``): one JSON object per line, written as it happens.

A reader that goes away or stops reading, or a disk that fills up, ends the stream and never the run: a recovery that
stops half-way because nobody listens would be worse than one that nobody heard. The journal is the record.
The shape is ``data/events.schema.json``: fields are added, never changed.
"""

from __future__ import annotations

import errno
import json
import os
import select
import stat
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from gpufix.errors import GpufixError
from gpufix.language import t
from gpufix.text import redact, redact_all, safe, stamp
from gpufix.world.files import reason

VERSION = 1
PATIENCE_SECONDS = 5.0
"""How long a line waits for a reader that does not read. Once: then the stream is broken."""

EventName = Literal[
    "run-start",
    "resume",
    "settled",
    "diagnosis",
    "plan",
    "step-start",
    "preview",
    "waiting",
    "consent",
    "intent",
    "applied",
    "step-result",
    "run-end",
]


class EventStream:
    """Numbered event lines on one target. Nothing here raises once it is open; ``broken`` says why it went silent."""

    def __init__(
        self,
        name: str = "",
        send: Callable[[bytes], None] | None = None,
        handle: int | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.broken: str | None = None
        self._name = name
        self._send = send
        self._handle = handle
        self._now = now
        self._seq = 0

    @classmethod
    def open(
        cls,
        target: str | None,
        *,
        stdout: TextIO | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        patience: float = PATIENCE_SECONDS,
    ) -> EventStream:
        """A stream to ``target``: a file (appended to, created for the owner only), ``-`` for stdout, None for nowhere.

        Raises GpufixError (status 2) when it cannot be opened, or is a pipe that nobody reads.
        """
        if target is None:
            return cls(now=now)
        if target == "-":
            return _to_stdout(stdout if stdout is not None else sys.stdout, now, patience)
        handle = _open_file(target)
        return cls(target, _writer(handle, patience), handle, now)

    def write(self, event: EventName, /, **fields: Any) -> None:
        """Send one line, redacted as the journal is. ``v``, ``seq``, ``at`` and ``event`` are this stream's own."""
        if self._send is None:
            return
        self._seq += 1
        head = {"v": VERSION, "seq": self._seq, "at": stamp(self._now()), "event": event}
        record = {**head, **redact_all(fields, _text), **head}
        try:
            self._send(json.dumps(record, ensure_ascii=True, allow_nan=False).encode() + b"\n")
        except (OSError, ValueError) as error:  # ValueError: a stream that somebody closed
            self._break(error, self._seq)

    def close(self) -> None:
        self._send = None
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        try:
            os.close(handle)
        except OSError as error:  # a network file system may say only now that it is full
            self._break(error)

    def _break(self, error: OSError | ValueError, since: int = 0) -> None:
        """``since``: the number of the first event that was not sent."""
        self._send = None
        told = t("events: {name}: {why}", name=self._name, why=reason(error))
        if since:
            told = t("{why}; silent from event number {n} on", why=told, n=since)
        self.broken = self.broken or safe(told)


def _text(text: str) -> str:
    """Redacted, and without the lone surrogates of undecodable bytes, which strict JSON readers refuse."""
    return redact(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _to_stdout(stdout: TextIO | None, now: Callable[[], datetime], patience: float) -> EventStream:
    if stdout is None:
        raise GpufixError("--events -: standard output is closed", "give a file instead")
    try:
        number = stdout.fileno()
    except (OSError, ValueError):  # not a file of the system's: a stream in memory

        def send(data: bytes) -> None:
            stdout.write(data.decode())
            stdout.flush()

        return EventStream("stdout", send, None, now)
    try:
        stdout.flush()
        # past the stream's own buffer: what stays in there when the reader has gone would fail the interpreter's exit
        handle = os.dup(number)
    except OSError as error:
        raise GpufixError(f"--events -: standard output: {error.strerror}", "give a file instead") from None
    return EventStream("stdout", _writer(handle, patience), handle, now)


def _open_file(target: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY | os.O_NONBLOCK  # non-blocking: a FIFO with no reader
    try:
        handle = os.open(target, flags, 0o600)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise GpufixError(f"--events {target}: nobody reads this pipe", "start its reader first") from None
        raise GpufixError(
            f"--events {target}: {error.strerror}", "give a file in a folder that exists and can be written, or -"
        ) from None
    except ValueError:
        raise GpufixError("--events: not a file's name", "give a file, or - for standard output") from None
    try:
        if _cut_short(target, handle):
            os.write(handle, b"\n")
    except OSError as error:
        os.close(handle)
        raise GpufixError(f"--events {target}: {error.strerror}", "make it writable, or give another file") from None
    return handle


def _cut_short(target: str, handle: int) -> bool:
    """Whether the file's last line has no end (a full disk, a kill): the next would make one broken line with it."""
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        return False
    try:
        reader = os.open(target, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False  # it may be written but not read: then the operator has to look
    try:
        return os.pread(reader, 1, status.st_size - 1) != b"\n"
    finally:
        os.close(reader)


def _writer(handle: int, patience: float) -> Callable[[bytes], None]:
    """Writes to ``handle`` without ever waiting longer than ``patience`` (seconds) for room."""
    poll = select.poll()
    poll.register(handle, select.POLLOUT)
    regular = stat.S_ISREG(os.fstat(handle).st_mode)

    def send(data: bytes) -> None:
        while data:
            if not poll.poll(patience * 1000):
                raise OSError(errno.EAGAIN, t("its reader has stopped reading"))
            # poll promises room for PIPE_BUF only; a file takes a line whole, so that two runs' lines never mix
            try:
                data = data[os.write(handle, data if regular else data[: select.PIPE_BUF]) :]
            except BlockingIOError:
                continue  # another writer was quicker

    return send
