"""The folders of runs under the state folder on disk, and sweeping up after a kill."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from gpufix.errors import ExitStatus, GpufixError
from gpufix.world.journal import JOURNAL, process_began
from gpufix.world.playbooks import PRIVATE

STALE_SECONDS = 60.0
"""A private folder that names no process and is younger may be one that is being made right now."""


def journals(state: Path) -> list[tuple[Path, str | None]]:
    """The folder of each run below ``state``, by name, and the text of its journal; None where that cannot be read."""
    folder = state / "runs"
    if not folder.is_dir():
        return []
    return [(path, _text(path / JOURNAL)) for path in sorted(folder.iterdir()) if path.is_dir()]


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def remove(folder: Path) -> None:
    """Take the folder of a run away. Raises GpufixError (status 5) when it cannot be."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise GpufixError(
            f"{folder} cannot be removed: {error.strerror}", "look at its rights", ExitStatus.STEP_FAILED
        ) from None


def sweep() -> None:
    """Remove what killed runs of this user left in the temporary folder: it holds their environment.

    A folder whose process lives is not touched: it says in its name which one that is.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{PRIVATE}*"):
        try:
            status = folder.lstat()
            if status.st_uid != os.getuid() or not folder.is_dir() or folder.is_symlink():
                continue
            owner = folder.name.removeprefix(PRIVATE).partition("-")[0]
            if owner.isdecimal() and process_began(int(owner)):
                continue
            if not owner.isdecimal() and time.time() - status.st_mtime < STALE_SECONDS:
                continue
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
