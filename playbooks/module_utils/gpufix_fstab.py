# Copyright the gpufix authors. SPDX-License-Identifier: Apache-2.0
"""The edit of /etc/fstab that keeps swap from coming back at boot, and how it is written.

Standard library only, and no import from Ansible: gpufix loads this same file to preview the edit. The functions on
text are pure. Text is bytes decoded by ``decode``, so that every byte comes back as it was.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat

_SWAP_LINE = re.compile(r"[ \t]*[^# \t\r][^ \t]*[ \t]+[^ \t]+[ \t]+swap(?=[ \t\r]|\Z)")


class FstabChanged(Exception):
    """The file is not the one that was previewed."""


def decode(data: bytes) -> str:
    """Bytes as text that ``encode`` turns back into the same bytes, whatever they were."""
    return data.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def swap_lines(text: str) -> list[tuple[int, str]]:
    """The lines, counted from 1 and without their ending, whose third field is ``swap`` and that are no comment."""
    return [
        (number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), start=1) if _SWAP_LINE.match(line)
    ]


def comment_swap(text: str) -> str:
    """``text`` with a ``#`` at the start of each swap line; every other byte as it was. Idempotent."""
    return "\n".join("#" + line if _SWAP_LINE.match(line) else line for line in text.split("\n"))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def backup_path(path: str, data: bytes) -> str:
    """Where the copy of ``path``, holding ``data``, is kept. The same content always has the same name."""
    return f"{path}.gpufix-{sha256(data)[:12]}"


def follow(path: str, root: str = "/") -> str:
    """The file that ``path`` leads to. An absolute link target is looked up under ``root``."""
    for _hop in range(40):
        if not os.path.islink(path):
            return path
        target = os.readlink(path)
        if os.path.isabs(target):
            path = os.path.join(root, target.lstrip("/"))
        else:
            path = os.path.join(os.path.dirname(path), target)
    raise OSError(f"too many levels of symbolic links: {path}")


def why_not_writable(path: str, root: str = "/") -> str:
    """Why ``replace_file`` cannot work on ``path``, in words; empty when nothing speaks against it."""
    try:
        real = follow(path, root)
        if not stat.S_ISREG(os.stat(real).st_mode):
            return f"{real} is not a regular file"
    except OSError as error:
        return str(error)
    folder = os.path.dirname(real)
    if os.path.ismount(real):
        return f"{real} is a mount point of its own, it cannot be replaced"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"no new file can be made in {folder} (read-only file system, or no right)"
    return ""


def back_up(path: str, data: bytes, root: str = "/") -> str:
    """Keep ``data``, the content of ``path``, in a file beside it with the same mode and owner; return its path.

    An existing backup is never overwritten: it holds the same content, or this raises FileExistsError.
    """
    real = follow(path, root)
    backup = backup_path(real, data)
    temporary = _write_beside(real, data)
    try:
        try:
            os.link(temporary, backup)  # fails where the name is taken, which a rename would not
        except FileExistsError:
            with open(backup, "rb") as stream:
                if stream.read() != data:
                    raise FileExistsError(f"{backup} exists and holds something else") from None
    finally:
        os.unlink(temporary)
    _sync_folder(os.path.dirname(real))
    return backup


def replace_file(path: str, data: bytes, expected: bytes, root: str = "/") -> str:
    """Back ``path`` up, put ``data`` in its place in one step, and return the backup's path.

    Mode, owner, SELinux context and other attributes stay; a symbolic link stays a link and its target is replaced.
    Raises FstabChanged when the content is not ``expected``, and OSError; in both cases the file is untouched.
    """
    real = follow(path, root)
    with open(real, "rb") as stream:
        if stream.read() != expected:
            raise FstabChanged(f"{path} changed since it was read")
    backup = back_up(path, expected, root)
    temporary = _write_beside(real, data)
    try:
        os.rename(temporary, real)
    except OSError:
        os.unlink(temporary)
        raise
    _sync_folder(os.path.dirname(real))
    return backup


def _write_beside(real: str, data: bytes) -> str:
    """A new file with ``data``, in the folder of ``real`` and with its mode, owner and attributes, safely on disk."""
    was = os.stat(real)
    temporary = f"{real}.gpufix-tmp-{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            if (was.st_uid, was.st_gid) != (os.fstat(stream.fileno()).st_uid, os.fstat(stream.fileno()).st_gid):
                os.fchown(stream.fileno(), was.st_uid, was.st_gid)
            os.fchmod(stream.fileno(), stat.S_IMODE(was.st_mode))
            _copy_attributes(real, temporary)
            os.fsync(stream.fileno())
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def _copy_attributes(source: str, target: str) -> None:
    if not hasattr(os, "listxattr"):
        return
    try:
        names = os.listxattr(source)
    except OSError:
        return  # the file system has none
    for name in names:
        value = os.getxattr(source, name)
        try:
            if os.getxattr(target, name) == value:
                continue
        except OSError:
            pass
        try:
            os.setxattr(target, name, value)
        except OSError:
            if name == "security.selinux":  # a file that systemd may not read is worse than an edit not made
                raise


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
