# Copyright the gpufix authors. SPDX-License-Identifier: Apache-2.0
"""One change of a host at a time: a lock on the host itself, which holds however the change was started.

The kernel gives the lock back when the last process that has it is gone. Tools that are started meanwhile have it too:
a swapoff goes on by itself when the module that began it is killed. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from typing import Iterator

from ansible.module_utils.gpufix_host import Host, Text, one_line

LOCK = "/run/gpufix.lock"
_PATIENCE = 0.4
"""Seconds in which the lock must be free. gpufix_read_node, looking who has it, has it for a moment itself."""


class Busy(Exception):
    """Why nothing may be changed on this host now, in one line."""


@contextlib.contextmanager
def holding(host: Host, module: str) -> Iterator[None]:
    """Keep every other change off ``host`` while this lasts. Raises Busy at once when one is under way."""
    path = host.path(LOCK)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # a practice host may lack /run
        # whoever can read a file can lock it, and keep every change off the host
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _not_known(error) from None
    try:
        _lock(descriptor)
        line = json.dumps({"module": module, "pid": os.getpid(), "since": int(time.time())}) + "\n"
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, line.encode("utf-8"), 0)
        except OSError as error:
            raise _not_known(error) from None
        host.inherited = (descriptor,)
        yield
    finally:
        host.inherited = ()
        os.close(descriptor)  # and no unlock: that would take it from a tool that still runs


def _lock(descriptor: int) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                who = describe(_line(descriptor)) or "by whom is not written"
                raise Busy(f"another change of this host is under way: {who}; nothing was done") from None
        except OSError as error:
            raise _not_known(error) from None
        time.sleep(0.05)


def _not_known(error: OSError) -> Busy:
    why = error.strerror or error
    return Busy(f"whether another change of this host is under way is not known: {LOCK}: {why}; nothing was done")


def read_busy(host: Host) -> Text:
    """The line of whoever changes the host now, empty when nobody does. Changes nothing, and makes no file."""
    try:
        descriptor = os.open(host.path(LOCK), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return Text("")
    except OSError as error:
        return Text(None, f"{LOCK}: {error.strerror or error}")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return Text("")  # closing gives it back
    except BlockingIOError:
        line = _line(descriptor)
        return Text(line + "\n") if describe(line) else Text(None, f"{LOCK} is held, and by whom is not written")
    except OSError as error:
        return Text(None, f"{LOCK}: {error.strerror or error}")
    finally:
        os.close(descriptor)


def _line(descriptor: int) -> str:
    try:
        return one_line(os.pread(descriptor, 1000, 0).decode("utf-8", "replace"))
    except OSError:
        return ""


def describe(line: str) -> str:
    """Pure. The holder in words, empty when ``line`` does not say who it is."""
    try:
        holder = json.loads(line)
        module, pid, since = str(holder["module"]), int(holder["pid"]), float(holder["since"])
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(since))
    except (ValueError, TypeError, KeyError, OverflowError, OSError):
        return ""
    return f"{module} (process {pid}), since {clock} UTC"
