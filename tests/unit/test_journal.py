"""The journal: on disk line by line, for the owner only, without secrets; without one no run begins."""

from __future__ import annotations

import json
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpufix.core.run_history import read_history
from gpufix.errors import ExitStatus, GpufixError
from gpufix.model import Snapshot
from gpufix.world.journal import Journal, state_folder
from gpufix.world.snapshots import read_snapshot_folder, write_snapshot

NOON = datetime(2026, 12, 2, 12, 0, tzinfo=UTC)


def test_lines_are_numbered_dated_and_versioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    journal = Journal.start(state_folder(), "omen2", lambda: NOON)
    journal.write("run-start", node="omen2")
    journal.write("consent", step="relabel", note="password=hunter2", nested={"token": ["Bearer abcdefghijkl"]})
    journal.close()
    lines = [json.loads(line) for line in (journal.folder / "run.jsonl").read_text().splitlines()]
    assert [line["seq"] for line in lines] == [1, 2]
    assert {line["v"] for line in lines} == {1}
    assert lines[0]["at"] == "2026-12-02T12:00:00.000000Z"
    assert "hunter2" not in json.dumps(lines)
    assert "abcdefghijkl" not in json.dumps(lines)
    assert stat.S_IMODE(journal.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((journal.folder / "run.jsonl").stat().st_mode) == 0o600
    assert journal.folder.is_relative_to(state_folder())


def test_each_line_is_flushed_before_the_next_thing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (flushed.append(handle), real(handle))[1])
    journal = Journal.create(tmp_path / "run")
    before = len(flushed)
    journal.write("intent", step="relabel")
    assert len(flushed) == before + 1
    journal.close()


def test_a_state_folder_that_cannot_be_written_stops_the_run(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(GpufixError) as caught:
        Journal.create(blocker / "run")
    assert "nothing was changed" in caught.value.hint
    assert caught.value.exit_status is ExitStatus.STEP_FAILED


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.create(tmp_path / "run")

    def full(handle: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(GpufixError, match="No space left on device"):
        journal.write("intent")


def test_where_to_write_on_depends_on_what_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.create(tmp_path / "run")
    real = os.write

    def full(handle: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    def hint(event: str) -> str:
        with monkeypatch.context() as patch, pytest.raises(GpufixError) as caught:
            patch.setattr(os, "write", full)
            journal.write(event)
        return caught.value.hint

    assert os.write is real
    assert "nothing was changed" in hint("run-start") and "--state-dir" in hint("consent")
    journal.write("intent", step="relabel")
    assert "look at the node" in hint("applied")
    assert "nothing more was changed" in hint("preview")
    journal.close()
    journal = Journal.reopen(tmp_path / "run", 1)
    assert "nothing more was changed" in hint("resume"), "the run had begun something before"
    journal.close()


@pytest.mark.parametrize(
    ("left", "lines"), [(b'{"v": 1, "seq": 2, "ev', [1]), (b'{"v": 1, "seq": 2, "event": "consent"}', [1, 2])]
)
def test_a_line_that_was_cut_off_is_taken_away_before_the_next(tmp_path: Path, left: bytes, lines: list[int]) -> None:
    """Whoever does that may die before his own first line, or find the disk still full: it is sound then too."""
    journal = Journal.create(tmp_path / "run")
    journal.write("run-start")
    journal.close()
    path = tmp_path / "run" / "run.jsonl"
    path.write_bytes(path.read_bytes() + left)
    for _ in range(2):
        Journal.reopen(tmp_path / "run", lines[-1]).close()
        history = read_history(path.read_text())
        assert (history.torn, history.damage) == (False, "")
        assert [line["seq"] for line in history.lines] == lines


def test_a_snapshot_comes_back_as_it_was_written(tmp_path: Path) -> None:
    snapshot = Snapshot(
        "omen2",
        {"host/fstab": "a\tb\r\nc\udc80", "cluster/nodes.json": "{}"},
        {"host/lspci": "not installed"},
        "2026-12-02T12:00:00Z",
    )
    write_snapshot(snapshot, tmp_path / "incident")
    assert read_snapshot_folder(tmp_path / "incident", "omen2") == snapshot
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "incident").rglob("*")}
    assert modes == {0o600, 0o700}


def test_a_capture_never_mixes_with_another(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x")
    with pytest.raises(GpufixError, match="not empty"):
        write_snapshot(Snapshot("omen2", {}), tmp_path)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ("node: omen3\n", "snapshot of 'omen3'"),
        ("a: [", "meta.yml:"),
        ("\tx", "meta.yml:1"),
        (None, "no snapshot here"),
    ],
)
def test_folders_that_are_no_snapshot_of_this_node(tmp_path: Path, meta: str | None, message: str) -> None:
    if meta is not None:
        (tmp_path / "meta.yml").write_text(meta)
    with pytest.raises(GpufixError, match=message):
        read_snapshot_folder(tmp_path, "omen2")


def test_odd_meta_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "meta.yml").write_text("unread: 7\ncaptured_at: 2026-12-02\n")
    assert read_snapshot_folder(tmp_path, "omen2").unread == {}
