"""Files that a run leaves where it was asked to: new ones, and ones that are put in another's place in one move."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from gpufix.errors import GpufixError


def check_new(path: Path, option: str) -> None:
    """Raises GpufixError (status 2) unless ``write_new`` can make ``path``. ``option`` is how it was given."""
    try:
        path.lstat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise GpufixError(f"{option} {str(path)[:80]}: {reason(error)}", "give another") from None
    else:
        raise GpufixError(f"{option} {path}: it exists", "give a new name; nothing is ever written over")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise GpufixError(
            f"{option} {path}: the folder {path.parent} is not there or cannot be written", "give another"
        )


def check_replaceable(path: Path, option: str, mark: str, what: str) -> None:
    """Raises GpufixError (status 2) unless ``path`` is new, or a file that has ``mark`` near its beginning or end."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        same = mark in text[:4000] or mark in text[-4000:]
    except OSError as error:
        raise GpufixError(f"{option} {str(path)[:80]}: {reason(error)}", "give another") from None
    if same:
        return
    if os.path.lexists(path):
        raise GpufixError(f"{option} {path}: it exists and is no {what}", "give a new name")
    check_new(path, option)


def write_new(path: Path, text: str) -> None:
    """Make a file for its owner only. Raises OSError, also where there is one by now."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)


def replace_file(path: Path, text: str | bytes, mode: int = 0o600) -> None:
    """Put ``text`` in ``path``'s place, whole or not at all. Raises OSError or ValueError; then all is as it was."""
    # its name ends otherwise than what it will be: nobody who lists the folder must take a draft for it
    handle, draft = tempfile.mkstemp(prefix=".gpufix-", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except (OSError, ValueError):
        with suppress(OSError):
            Path(draft).unlink()
        raise


def reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
