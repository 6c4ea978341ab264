"""The command line: bad input is one clear line with a documented status, and never a traceback."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest

from gpufix import cli

ROOT = Path(__file__).resolve().parents[2]
INCIDENT = ROOT / "tests" / "cases" / "trace-1-kubelet-dead"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["diagnose"], "NODE"),
        (["diagnos", "omen2"], "invalid choice"),
        (["diagnose", "Omen2"], "DNS-1123"),
        (["diagnose", "omen2;reboot"], "DNS-1123"),
        (["diagnose", "-omen2"], ""),
        (["diagnose", "{{ x }}"], "DNS-1123"),
        (["diagnose", "omen2\n"], "DNS-1123"),
        (["diagnose", "a" * 300], "DNS-1123"),
        (["diagnose", "omen2", "--host", "a:b{{"], "inventory host name"),
        (["diagnose", "omen2", "--host", "all:!omen1"], "inventory host name"),
        (["diagnose", "omen2", "--snapshot", "/nowhere"], "no such snapshot folder"),
        (["diagnose", "omen2", "-i", "/nowhere/hosts"], "no inventory"),
        (["diagnose", "omen2", "--kubeconfig", "/nowhere/config"], "no kubeconfig"),
        (["diagnose", "omen2", "-o", "yaml"], "invalid choice"),
        (["recover", "omen2"], "no terminal"),
        (["frobnicate"], "invalid choice"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert message in streams.err
    assert streams.err.startswith("gpufix: ")
    assert len(streams.err.splitlines()) <= 2
    assert "Traceback" not in streams.err


def test_near_files_are_offered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "inventory.ini").write_text("")
    assert cli.main(["diagnose", "omen2", "-i", str(tmp_path / "inventry.ini")]) == 2
    assert "did you mean inventory.ini?" in capsys.readouterr().err


def test_a_defect_of_ours_is_status_1_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("\x1b[31mboom")

    monkeypatch.setattr(cli.workflow, "read_folder", broken)
    assert cli.main(["diagnose", "omen2", "--snapshot", str(INCIDENT)]) == 1
    error = capsys.readouterr().err
    assert "internal error: RuntimeError: \\x1b[31mboom" in error
    assert "Traceback" not in error


def test_json_has_a_version_and_both_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diagnose", "omen2", "--snapshot", str(INCIDENT), "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["version"] == 1
    assert data["root_cause"]["id"] == "swap-on"
    assert data["verdicts"]["node"]["status"] == "sick"
    assert data["verdicts"]["vms"]["status"] == "waiting"
    assert data["runbook"] == "revive-kubelet-swap"


def test_exit_code_tells_a_sick_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diagnose", "omen2", "--snapshot", str(INCIDENT), "--exit-code"]) == 3


def test_hostile_words_in_a_snapshot_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    shutil.copytree(INCIDENT, tmp_path / "x")
    journal = tmp_path / "x" / "host" / "kubelet.journal"
    text = journal.read_text().replace("running with swap on", "\x1b]0;owned\x07\u202erunning with swap on")
    journal.write_text(text)
    assert cli.main(["diagnose", "omen2", "--snapshot", str(tmp_path / "x")]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "\u202e" not in out


def in_a_terminal(columns: int, *arguments: str) -> tuple[int, str]:
    main, sub = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(sub, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "KUBECONFIG")}
    environment |= {"TERM": "xterm", "HOME": "/nonexistent"}
    child = subprocess.Popen(
        [sys.executable, "-m", "gpufix", *arguments], stdin=sub, stdout=sub, stderr=sub, env=environment
    )
    os.close(sub)
    seen = b""
    while select.select([main], [], [], 60)[0]:
        try:
            data = os.read(main, 4096)
        except OSError:
            break
        if not data:
            break
        seen += data
    return child.wait(60), seen.decode()


def test_a_terminal_that_is_too_narrow_is_told_how_wide(tmp_path: Path) -> None:
    status, text = in_a_terminal(40, "recover", "omen2")
    assert status == 2
    assert "40 columns wide; the wizard needs 60" in text


def test_recover_without_a_kubeconfig_stops_before_anything_is_read() -> None:
    status, text = in_a_terminal(100, "recover", "omen2")
    assert status == 2
    assert "no kubeconfig at /nonexistent/.kube/config" in text
