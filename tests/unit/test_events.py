"""Event lines for machines: always one line of JSON each, without secrets, and never a reason for a run to fail."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufix.errors import ExitStatus, GpufixError
from gpufix.resources import read_text
from gpufix.world.events import EventName, EventStream

NOON = datetime(2026, 12, 2, 12, 0, tzinfo=UTC)
SCHEMA = json.loads(read_text("events.schema.json"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=8,
)


def refuse_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def lines_of(text: str) -> list[dict[str, Any]]:
    """Each line of ``text``, strictly: what Python alone would take is refused."""
    assert text.isascii()
    assert text.endswith("\n") or not text
    found = []
    for line in text.split("\n")[:-1]:
        found.append(json.loads(line, parse_constant=refuse_constant))
        VALIDATOR.validate(found[-1])
    return found


def in_memory() -> tuple[EventStream, io.StringIO]:
    out = io.StringIO()
    return EventStream.open("-", stdout=out, now=lambda: NOON), out


def test_the_schema_is_one_and_knows_the_events_that_there_are() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert [one["const"] for one in SCHEMA["properties"]["event"]["oneOf"]] == list(get_args(EventName))
    for missing in ("v", "seq", "at", "event"):
        line = {"v": 1, "seq": 1, "at": "2026-12-02T12:00:00.000000Z", "event": "plan", "more": 1}
        VALIDATOR.validate(line)
        del line[missing]
        assert not VALIDATOR.is_valid(line)


def test_lines_are_numbered_dated_and_versioned(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    stream = EventStream.open(str(path), now=lambda: NOON.astimezone(timezone(timedelta(hours=2))))
    stream.write("run-start", node="omen2", runbook="revive-kubelet-swap")
    assert len(lines_of(path.read_text())) == 1, "a line is there as soon as it was written"
    stream.write("step-result", step="relabel", outcome="done", seconds=1.5)
    stream.write("run-end", exit_status=ExitStatus.OK)
    stream.close()
    stream.close()
    lines = lines_of(path.read_text())
    assert list(lines[0]) == ["v", "seq", "at", "event", "node", "runbook"]
    assert [line["seq"] for line in lines] == [1, 2, 3]
    assert {line["at"] for line in lines} == {"2026-12-02T12:00:00.000000Z"}
    assert lines[2]["exit_status"] == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stream.broken is None


@pytest.mark.parametrize("name", get_args(EventName))
def test_every_event_is_one_of_the_schema(name: EventName) -> None:
    stream, out = in_memory()
    stream.write(name)
    assert lines_of(out.getvalue())[0]["event"] == name


@given(st.dictionaries(st.text(st.characters(), min_size=1), JSON, max_size=4))
def test_whatever_the_fields_hold_it_is_one_line_of_strict_json(fields: dict[str, Any]) -> None:
    stream, out = in_memory()
    for own in ("step", "node", "runbook", "root_cause", "outcome", "seconds", "exit_status"):
        fields.pop(own, None)
    stream.write("applied", **fields)
    (line,) = lines_of(out.getvalue())
    assert (line["v"], line["seq"], line["event"]) == (1, 1, "applied")
    json.dumps(line, ensure_ascii=False).encode()  # no lone surrogate came through


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_comes_through_as_it_was(text: str) -> None:
    stream, out = in_memory()
    stream.write("preview", diff=f"- {text}" if "=" not in text and ":" not in text else "-")
    assert lines_of(out.getvalue())[0]["diff"] in (f"- {text}", "-")


def test_secrets_are_left_out_and_the_head_cannot_be_overwritten() -> None:
    stream, out = in_memory()
    stream.write("intent", undo={"a": ["password=hunter2"]}, **{"seq": 9, "event": "plan", "token=hunter3": Path("/x")})
    (line,) = lines_of(out.getvalue())
    assert "hunter" not in out.getvalue()
    assert (line["seq"], line["event"]) == (1, "intent")
    assert line["token=(redacted)"] == "/x"


def test_nowhere_is_a_stream_too() -> None:
    stream = EventStream.open(None)
    stream.write("run-start", node="omen2")
    stream.close()
    assert stream.broken is None


def test_standard_output_is_written_past_its_buffer(capfd: pytest.CaptureFixture[str]) -> None:
    stream = EventStream.open("-")
    stream.write("run-start", node="omen2")
    assert lines_of(capfd.readouterr().out)[0]["node"] == "omen2"
    stream.close()
    print("still open", flush=True)
    assert capfd.readouterr().out == "still open\n"


def test_a_second_run_is_appended_also_after_a_line_that_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"v": 1, "se')
    path.chmod(0o640)
    for _ in range(2):
        stream = EventStream.open(str(path), now=lambda: NOON)
        stream.write("run-start")
        stream.close()
    cut, *rest = path.read_text().split("\n", 1)
    assert cut == '{"v": 1, "se'
    assert [line["seq"] for line in lines_of(rest[0])] == [1, 1]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640, "a file that was there keeps its mode"


def refused(target: str) -> GpufixError:
    with pytest.raises(GpufixError) as caught:
        EventStream.open(target)
    assert caught.value.exit_status is ExitStatus.USAGE
    assert caught.value.hint
    return caught.value


def test_targets_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No such file" in refused(str(tmp_path / "none" / "events")).message
    assert "Is a directory" in refused(str(tmp_path)).message
    assert "not a file's name" in refused("a\0b").message
    refused("")
    os.mkfifo(tmp_path / "pipe")
    assert "nobody reads this pipe" in refused(str(tmp_path / "pipe")).message

    def denied(*arguments: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    assert "Permission denied" in refused(str(tmp_path / "events")).message


def test_a_closed_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert "closed" in refused("-").message


def test_a_pipe_with_a_reader_is_read_line_by_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    stream = EventStream.open(str(tmp_path / "pipe"), now=lambda: NOON)
    stream.write("preview", diff="x" * 10_000)
    assert len(lines_of(os.read(reader, 65_536).decode())[0]["diff"]) == 10_000
    os.close(reader)
    stream.write("run-end")
    stream.close()
    assert stream.broken == f"events: {tmp_path / 'pipe'}: Broken pipe; silent from event number 2 on"


def test_a_reader_that_stops_reading_ends_the_stream_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    room = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
    with os.fdopen(writer, "w") as out:
        stream = EventStream.open("-", stdout=out, patience=0)
        stream.write("preview", diff="x" * (2 * room))
        assert stream.broken == "events: stdout: its reader has stopped reading; silent from event number 1 on"
        os.read(reader, 2 * room)
        stream.write("run-end")
        os.set_blocking(reader, False)
        with pytest.raises(BlockingIOError):  # silent, though there is room again: half a line would be worse
            os.read(reader, 1)
        stream.close()
    os.close(reader)


def test_a_full_disk_is_one_line_and_the_rest_is_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = EventStream.open(str(tmp_path / "events"), now=lambda: NOON)
    real = os.write

    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    stream.write("run-start")
    monkeypatch.setattr(os, "write", full)
    stream.write("plan")
    monkeypatch.setattr(os, "write", real)
    stream.write("run-end")
    stream.close()
    assert stream.broken is not None
    assert stream.broken.endswith("No space left on device; silent from event number 2 on")
    assert [line["event"] for line in lines_of((tmp_path / "events").read_text())] == ["run-start"]


def test_a_stream_in_memory_that_was_closed() -> None:
    stream, out = in_memory()
    out.close()
    stream.write("run-start")
    assert stream.broken is not None
    assert "\n" not in stream.broken


def test_a_broken_standard_output_does_not_change_how_the_interpreter_ends() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = (
        "from gpufix.world.events import EventStream\n"
        "stream = EventStream.open('-')\nstream.write('run-start')\nassert 'Broken pipe' in stream.broken\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
