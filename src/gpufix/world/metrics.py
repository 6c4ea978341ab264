"""Writes a metrics file (``--metrics-file``) for node_exporter's textfile collector."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gpufix.errors import GpufixError
from gpufix.text import safe
from gpufix.world.files import reason, replace_file


def check_metrics_file(path: Path) -> None:
    """Raises GpufixError (status 2) where ``write_metrics`` could not write ``path``, or nothing would ever read it."""
    if path.suffix != ".prom":
        raise GpufixError(
            f"--metrics-file {path}: node_exporter reads only files that end in .prom",
            f"did you mean {path.name}.prom?" if path.name else "name a file that ends in .prom",
        )
    try:
        if not path.parent.is_dir():
            raise GpufixError(
                f"--metrics-file {path}: no folder {path.parent}",
                "give a file in the folder of node_exporter's --collector.textfile.directory",
            )
        with suppress(FileNotFoundError):
            path.lstat()  # raises for a name that no folder takes
        if os.path.lexists(path) and not path.is_file():
            raise GpufixError(f"--metrics-file {path}: it exists and is not a file", "give another name")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a file's name"
        raise GpufixError(f"--metrics-file {path}: {reason}", "give another file") from None
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise GpufixError(
            f"--metrics-file {path}: {path.parent} cannot be written", "make it writable for the user that runs gpufix"
        )


def write_metrics(path: Path, text: str) -> str | None:
    """Put ``text`` in ``path``'s place in one move, readable for all (node_exporter is another user). Never raises:
    returns one line of what went wrong, or None; then what was there before is still there."""
    try:
        replace_file(path, text, 0o644)
    except (OSError, ValueError) as error:
        return safe(f"metrics: {path}: {reason(error)}")
    return None
