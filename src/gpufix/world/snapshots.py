"""Snapshots in the world: read from a folder, read live from cluster and host at once, written to a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import yaml

from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import t
from gpufix.model import Snapshot

SIDES = ("cluster", "host")
Read = Callable[[], tuple[dict[str, str], dict[str, str]]]


def read_snapshot_folder(folder: Path, node: str) -> Snapshot:
    """The snapshot in ``folder``. Broken content is not an error here: it becomes an unknown when it is parsed.

    Raises GpufixError (status 2) when the folder is none, or holds another node's snapshot.
    """
    if not folder.is_dir():
        raise GpufixError(f"{folder}: no such snapshot folder", "give the folder that holds cluster/ and host/")
    files: dict[str, str] = {}
    for side in SIDES:
        for path in sorted((folder / side).rglob("*")):
            if path.is_file():
                name = f"{side}/{path.relative_to(folder / side).as_posix()}"
                try:
                    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as text:
                        files[name] = text.read()
                except OSError as error:
                    raise GpufixError(f"{path}: {error.strerror}", "make the snapshot readable") from None
    if not files and not (folder / "meta.yml").is_file():
        raise GpufixError(f"{folder}: no snapshot here", "a snapshot has cluster/ and host/ with raw output in them")
    meta = _meta(folder / "meta.yml")
    named = str(meta.get("node") or "")
    if named and named != node:
        raise GpufixError(
            f"{folder} is a snapshot of {named!r}, not of {node!r}", f"did you mean gpufix diagnose {named}?"
        )
    unread: dict[str, str] = {}
    listed = meta.get("unread")
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, Mapping) and entry.get("what"):
            unread[str(entry["what"])] = str(entry.get("why") or "not read")
    return Snapshot(node, files, unread, str(meta.get("captured_at") or ""))


def _meta(path: Path) -> Mapping[str, object]:
    if not path.is_file():
        return {}
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 1
        raise GpufixError(f"{path}:{line}: not readable as YAML", "mend meta.yml, or take it away") from None
    return data if isinstance(data, Mapping) else {}


def read_live(node: str, read_cluster: Read, read_host: Read) -> Snapshot:
    """Both sides at the same time. Each side's function reports what it could not read instead of raising for it."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        cluster_side = pool.submit(read_cluster)
        host_files, host_unread = read_host()  # on this thread: ansible-runner wants the main one
        cluster_files, cluster_unread = cluster_side.result()
    captured = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Snapshot(node, {**cluster_files, **host_files}, {**cluster_unread, **host_unread}, captured)


def write_snapshot(snapshot: Snapshot, folder: Path) -> None:
    """Write ``snapshot`` as a folder that ``read_snapshot_folder`` reads back. Files are for the owner only.

    Raises GpufixError (status 2) when the folder exists and is not empty, or cannot be written.
    """
    try:
        if folder.exists() and any(folder.iterdir()):
            raise GpufixError(
                t("{folder} is not empty", folder=folder), t("give a new folder: a capture never mixes with another")
            )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in sorted(snapshot.files.items()):
            path = folder / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(path, text)
        meta = {
            "node": snapshot.node,
            "captured_at": snapshot.captured_at,
            "unread": [{"what": what, "why": why} for what, why in sorted(snapshot.unread.items())],
        }
        _write(folder / "meta.yml", yaml.safe_dump(meta, sort_keys=False, allow_unicode=True))
    except OSError as error:
        raise GpufixError(
            f"{error.filename or folder}: {error.strerror}", t("give a folder that can be written"), ExitStatus.USAGE
        ) from None


def _write(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape", newline="") as out:
        out.write(text)
