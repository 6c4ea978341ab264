"""The write-ahead journal of a run: one folder, one append-only run.jsonl, flushed to disk line by line.

Every line is one JSON object with ``v`` (the format's version), ``seq``, ``at`` (RFC 3339) and ``event``. The intent
of a step, with its undo material, is on disk before the step changes anything; no line ever holds a secret.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import re
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import t
from gpufix.text import redact_all, stamp

VERSION = 1
JOURNAL = "run.jsonl"


def state_folder() -> Path:
    """``$XDG_STATE_HOME/gpufix``, else ``~/.local/state/gpufix``."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "gpufix"


def operator() -> str:
    """Who runs this, as ``user@host``, for the record of consents."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no entry for this user id, as in many containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def process_began(pid: int) -> str:
    """The boot and the moment (clock ticks since then) at which process ``pid`` of this machine began: together they
    name one process for good. Empty where there is no such process, or no /proc to ask (proc(5), stat field 22)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # the command before it may hold anything
    return f"{boot}/{fields[19]}" if len(fields) > 19 and fields[0] not in ("Z", "X") else ""


def process_mark(pid: int) -> str:
    """``process_began``, with the process namespace in which ``pid`` is that number: what another process needs to
    tell whether this one lives. Empty where there is no /proc."""
    began, space = process_began(pid), _process_space()
    return f"{began}/{space}" if began and space else ""


def process_lives(pid: int, mark: str) -> bool | None:
    """Whether the process with this ``process_mark`` lives; None where that cannot be seen from here.

    Another boot is no proof of death: two machines can have the same name. Nor is a number that is not there in this
    container, and with hidepid=2 (proc(5)) a living process of another user is not under /proc either.
    """
    boot, _, rest = mark.partition("/")
    ticks, _, space = rest.partition("/")
    if pid <= 0 or not ticks or not space or space != _process_space():
        return None
    if boot != process_began(os.getpid()).partition("/")[0]:
        return None
    if began := process_began(pid):
        return began == f"{boot}/{ticks}"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return None
    return None


def _process_space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - it names no file
    except OSError:
        return ""


class JournalError(GpufixError):
    """The journal cannot be written (status 5). Nothing more may be changed without one."""

    def __init__(self, path: str, error: OSError, hint: str) -> None:
        told = t("the run's journal cannot be written: {path}: {why}", path=path, why=error.strerror)
        super().__init__(told, hint, ExitStatus.STEP_FAILED)


class Journal:
    """A run's journal, open for appending, by one process at a time: it is locked for as long as it is open."""

    def __init__(self, folder: Path, handle: int, seq: int, now: Callable[[], datetime]) -> None:
        self.folder = folder
        self._file = handle
        self._seq = seq
        self._now = now
        self._acted = seq > 0
        """A step may have begun to act: here, or before this run was gone on with."""

    @classmethod
    def create(cls, folder: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Journal:
        """A new one. Raises JournalError before anything was changed."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=False)
            handle = os.open(folder / JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sync_folder(folder)
            _sync_folder(folder.parent)
        except OSError as error:
            hint = t("free space, or give --state-dir a folder that can be written; nothing was changed")
            raise JournalError(str(error.filename or folder), error, hint) from None
        return cls(folder, handle, 0, now)

    @classmethod
    def start(cls, state: Path, node: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Journal:
        """The journal of a new run on ``node``, in a folder of its own below ``state``."""
        began = now().strftime("%Y%m%dT%H%M%SZ")
        runs = state / "runs"
        name = f"{began}-{re.sub(r'[^a-z0-9.-]', '_', node)}-{os.getpid()}"
        free = (runs / f"{name}{more}" for more in ("", *(f"-{number}" for number in range(2, 1000))))
        return cls.create(next((folder for folder in free if not folder.exists()), runs / name), now)

    @classmethod
    def reopen(cls, folder: Path, seq: int, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Journal:
        """The journal of a run that is gone on with, after its line ``seq``.

        A line that was cut off is taken away first: what it announced was not done, and with an end it would look like
        one that was damaged.

        Raises GpufixError: status 8 while another process has it open, JournalError where it cannot be written.
        """
        path = folder / JOURNAL
        try:
            handle = os.open(path, os.O_RDWR | os.O_APPEND)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _end_last_line(handle)
            except BaseException:
                os.close(handle)
                raise
        except BlockingIOError:
            raise GpufixError(
                t("the run {run} is being written by another process", run=folder.name),
                t("let that one end; nothing was changed"),
                ExitStatus.LOCKED,
            ) from None
        except OSError as error:
            raise JournalError(str(path), error, t("free space, or look at its rights; nothing was changed")) from None
        return cls(folder, handle, seq, now)

    def write(self, event: str, **fields: Any) -> None:
        """Append one line and wait until it is on disk. Raises JournalError when it cannot be."""
        self._seq += 1
        record = {"v": VERSION, "seq": self._seq, "at": stamp(self._now()), "event": event}
        line = json.dumps({**record, **redact_all(fields)}, sort_keys=False, ensure_ascii=True) + "\n"
        try:
            data = line.encode()
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError as error:
            raise JournalError(str(self.folder / JOURNAL), error, self._way_on(event)) from None
        self._acted = self._acted or event == "intent"

    def _way_on(self, event: str) -> str:
        """What to do when the line of ``event`` could not be written."""
        if not self._acted:
            return t("free space there, or give --state-dir another folder; nothing was changed")
        if event in ("applied", "step-result"):
            return t("free space there; the last step's result is not on record, so look at the node before you go on")
        return t("free space there; nothing more was changed")

    def close(self) -> None:
        os.close(self._file)


def _end_last_line(handle: int) -> None:
    text = os.pread(handle, os.fstat(handle).st_size, 0)
    last = text.rpartition(b"\n")[2]
    if not last:
        return
    try:
        json.loads(last)
    except (ValueError, RecursionError):
        os.ftruncate(handle, len(text) - len(last))
    else:  # all but its end: it has been read as one of the run's lines
        os.write(handle, b"\n")
    os.fsync(handle)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
