"""The folders of runs under the state folder on disk, and sweeping up after a kill."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import tempfile
import time
from pathlib import Path

from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import t
from gpufix.world.journal import JOURNAL, process_began
from gpufix.world.private import OWNER, PRIVATE

STALE_SECONDS = 60.0
"""A private folder that names no process and is younger may be one that is being made right now."""


def journals(state: Path) -> list[tuple[Path, str | None]]:
    """The folder of each run below ``state``, by name, and the text of its journal; None where that cannot be read.

    Raises GpufixError (status 2) where it cannot be seen which there are."""
    folder = state / "runs"
    try:
        found = sorted(folder.iterdir())
        return [(path, _text(path / JOURNAL)) for path in found if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise GpufixError(
            t("the runs in {folder} cannot be read: {why}", folder=error.filename or folder, why=error.strerror),
            t("look at its rights, or give another --state-dir"),
        ) from None


def _text(path: Path) -> str | None:
    try:
        if not path.is_file():  # a pipe would be waited for
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def why_not_own(folder: Path) -> str:
    """Why what the journal in ``folder`` says may be another user's word; empty where only this user can write it."""
    for path in (folder, folder / JOURNAL):
        try:
            status = path.stat()
        except OSError as error:
            return t("{path} cannot be read: {why}", path=path, why=error.strerror)
        if status.st_uid != os.geteuid():
            return t("{path} belongs to another user (uid {uid})", path=path, uid=status.st_uid)
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return t("{path} can be written by other users", path=path)
    return ""


def remove(folder: Path) -> None:
    """Take the folder of a run away. Raises GpufixError (status 5) when it cannot be."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise GpufixError(
            t("{folder} cannot be removed: {why}", folder=folder, why=error.strerror or error),
            t("look at its rights"),
            ExitStatus.STEP_FAILED,
        ) from None


def sweep() -> list[int]:
    """Remove what killed runs of this user left in the temporary folder, which holds their environment, and stop an
    ``ansible-playbook`` that outlived its gpufix. Returns the process numbers of those.

    A folder whose process lives is not touched: a lock in it says so, also where that process is in another container
    and its number says nothing here; where there is no lock, the number in its name does. Only Ansible's own processes
    are killed, so that no further task begins: the task that is at work on the host goes on to its end there, and
    the host's own lock says for how long.
    """
    stopped: list[int] = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PRIVATE}*"):
        try:
            status = folder.lstat()
            if status.st_uid != os.getuid() or not folder.is_dir() or folder.is_symlink():
                continue
            if _is_owned(folder, status.st_mtime):
                continue
            stopped += _stop_playbooks(folder)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
    return stopped


def _is_owned(folder: Path, made: float) -> bool:
    """Raises OSError where that cannot be seen."""
    try:
        owner = os.open(folder / OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        pid = folder.name.removeprefix(PRIVATE).partition("-")[0]
        return _lives(int(pid)) if pid.isdecimal() else time.time() - made < STALE_SECONDS
    try:
        fcntl.flock(owner, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(owner)
    return False


def _lives(pid: int) -> bool:
    if process_began(pid):
        return True
    if Path("/proc/self/stat").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _stop_playbooks(folder: Path) -> list[int]:
    """Kill each ``ansible-playbook`` that ansible-runner started for ``folder`` (Linux: proc(5), environ and cmdline).

    Its workers have sessions of their own since ansible-core 2.19, so that no process group holds them all.
    """
    found: list[int] = []
    mark = f"AWX_ISOLATED_DATA_DIR={folder}/".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            if not any(part.endswith(b"/ansible-playbook") for part in arguments[:2]):
                continue
            if any(entry.startswith(mark) for entry in (process / "environ").read_bytes().split(b"\0")):
                os.kill(int(process.name), signal.SIGKILL)
                found.append(int(process.name))
        except OSError:
            continue
    return sorted(found)
