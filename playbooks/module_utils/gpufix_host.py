# Copyright the gpufix authors. SPDX-License-Identifier: Apache-2.0
"""How the modules touch the host: tools through PATH and with a time limit, files under ``host_root``.

Standard library only. A thing that cannot be read comes back with its reason, never as an empty text.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

READ_TIMEOUT = 10.0
_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/var/lib/rancher/rke2/bin:/snap/bin"


class Done(NamedTuple):
    """What a tool did. ``why`` is one line on why it has no result; empty when it ended with status 0."""

    code: Optional[int]
    out: str
    err: str
    why: str


class Text(NamedTuple):
    """A text that was read, or (``text`` None) why not."""

    text: Optional[str]
    why: str = ""


def finished(name: str, code: int, out: str, err: str) -> Done:
    """Pure. What tool ``name`` did when it ended by itself."""
    if code == 0:
        return Done(0, out, err, "")
    said = one_line(err) or one_line(out) or f"ended with status {code}"
    return Done(code, out, err, said if said.startswith(name) else f"{name}: {said}")


def one_line(text: str, limit: int = 300) -> str:
    """``text`` as one line of at most ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


class Host:
    """The machine whose files lie under ``root``: ``/``, but for a practice host. ``timeout``: seconds a tool gets."""

    def __init__(self, root: str = "/", timeout: float = READ_TIMEOUT) -> None:
        self.root = root or "/"
        self.timeout = timeout
        self.inherited: Tuple[int, ...] = ()
        """Descriptors that the tools get too: the lock of gpufix_busy, for they may outlive this process."""

    def path(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))

    def exists(self, path: str) -> bool:
        return os.path.exists(self.path(path))

    def environment(self) -> Dict[str, str]:
        """The tools' environment: English words, and on a real host the folders that a bare SSH session lacks.

        A practice host has the tools below its own root and no others: this machine's are never run for it.
        """
        environment = dict(os.environ, LC_ALL="C", LANG="C", SYSTEMD_PAGER="", SYSTEMD_COLORS="0")
        if os.path.realpath(self.root) == "/":
            path = environment.get("PATH", "")
            environment["PATH"] = path + ":" + _FOLDERS if path else _FOLDERS
        else:
            environment["PATH"] = ":".join(self.path(folder) for folder in _FOLDERS.split(":"))
        return environment

    def run(self, command: Sequence[str], timeout: Optional[float] = None) -> Done:
        """Run a tool and wait at most ``timeout`` seconds; then it is killed, and left behind if it cannot be."""
        timeout = self.timeout if timeout is None else timeout
        name = command[0]
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.environment(),
                start_new_session=True,
                pass_fds=self.inherited,
            )
        except FileNotFoundError:
            return Done(None, "", "", f"{name}: not installed")
        except OSError as error:
            return Done(None, "", "", f"{name}: {error.strerror or error}")
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            kill_group(process)
            return Done(None, "", "", f"{name}: no answer in {timeout:g} s")
        return finished(name, process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))

    def read_bytes(self, path: str) -> bytes:
        with open(self.path(path), "rb") as stream:
            return stream.read()

    def read(self, path: str) -> Text:
        """The text of a file; its reason names ``path`` as the host knows it."""
        try:
            return Text(self.read_bytes(path).decode("utf-8", "replace"))
        except OSError as error:
            return Text(None, f"{path}: {error.strerror or error}")

    def word(self, path: str) -> str:
        """The first line of a small file (sysfs), empty when it cannot be read."""
        text = self.read(path).text
        return text.strip().split("\n")[0] if text and text.strip() else ""

    def names(self, path: str) -> List[str]:
        """The sorted names in a folder. Raises OSError."""
        return sorted(os.listdir(self.path(path)))

    def link_name(self, path: str) -> str:
        """The last part of where a link of sysfs leads, empty when there is none. Raises OSError."""
        try:
            return os.path.basename(os.readlink(self.path(path)))
        except FileNotFoundError:
            return ""


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and its children. One that hangs in the kernel cannot be killed: it is left behind after 1 s."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass
    try:
        process.communicate(timeout=1)
    except (subprocess.TimeoutExpired, ValueError, OSError):
        pass


def in_child(work: Callable[[], Any], timeout: float) -> Callable[[], Tuple[Any, str]]:
    """Start ``work`` in a forked child. The function returned waits for ``(work(), "")``, or ``(None, reason)``.

    Reading /proc of a process that hangs in a driver can hang too, and for good: a child can be left behind. What
    ``work`` returns must fit in JSON. Call this before any thread is started.
    """
    end = time.monotonic() + timeout
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            try:
                answer = json.dumps([work(), ""])
            except Exception as error:  # the parent says what went wrong
                answer = json.dumps([None, one_line(getattr(error, "strerror", None) or str(error)) or repr(error)])
            with os.fdopen(writer, "w") as stream:
                stream.write(answer)
        finally:
            os._exit(0)
    os.close(writer)
    return lambda: _child_answer(pid, reader, end, timeout)


def _child_answer(pid: int, reader: int, end: float, timeout: float) -> Tuple[Any, str]:
    parts: List[bytes] = []
    with os.fdopen(reader, "rb", buffering=0) as stream:
        while True:
            ready, _writable, _broken = select.select([stream], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                os.kill(pid, signal.SIGKILL)
                return None, f"not finished in {timeout:g} s"
            part = stream.read(65536)
            if not part:
                break
            parts.append(part)
    os.waitpid(pid, 0)
    try:
        value, why = json.loads(b"".join(parts).decode("utf-8"))
    except ValueError:
        return None, "the process that reads it died"
    return value, why


def show_blocks(text: str) -> List[Dict[str, str]]:
    """The units of ``systemctl show A B ...`` as dictionaries; of a property given twice, all lines. Pure."""
    blocks: List[Dict[str, str]] = []
    current: Dict[str, str] = {}
    for line in text.split("\n") + [""]:
        if not line.strip():
            if current:
                blocks.append(current)
            current = {}
            continue
        key, equals, value = line.partition("=")
        if not equals:
            continue
        current[key] = current[key] + "\n" + value if key in current else value
    return blocks
