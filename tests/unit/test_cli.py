"""The command line: bad input is one clear line with a documented status, and never a traceback."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pexpect
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


def in_a_terminal(columns: int, *arguments: str, at: str = "", press: str = "") -> tuple[int, str]:
    """Run gpufix in a terminal; once ``at`` was shown, type ``press``. The exit status and all that was shown."""
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "KUBECONFIG")}
    environment |= {"TERM": "xterm", "HOME": "/nonexistent"}
    command = ["-m", "gpufix", *arguments]
    child = pexpect.spawn(
        sys.executable, command, env=environment, dimensions=(24, columns), encoding="utf-8", timeout=60
    )
    seen, presses = "", 1
    if at:
        child.expect_exact(at)
        seen = child.before + at
        # a signal that comes between Python's last look for one and its read is seen at the next key only
        while True:
            child.send(press)
            if child.expect([pexpect.EOF, pexpect.TIMEOUT], timeout=15) == 0:
                break
            presses += 1
            assert presses < 4, seen + child.before
    else:
        child.expect(pexpect.EOF)
    child.close()
    return int(child.exitstatus if child.exitstatus is not None else -1), seen + child.before


def test_a_terminal_that_is_too_narrow_is_told_how_wide(tmp_path: Path) -> None:
    status, text = in_a_terminal(40, "recover", "omen2")
    assert status == 2
    assert "40 columns wide; the wizard needs 60" in text


def test_recover_without_a_kubeconfig_stops_before_anything_is_read() -> None:
    status, text = in_a_terminal(100, "recover", "omen2")
    assert status == 2
    assert "no kubeconfig at /nonexistent/.kube/config" in text


def test_ctrl_c_at_the_password_ends_it_at_once() -> None:
    status, text = in_a_terminal(100, "recover", "omen2", "--ask-become-pass", at="sudo password", press="\x03")
    assert status == 130, text
    assert "interrupted" in text


@pytest.mark.parametrize("command", [("diagnose", "--snapshot", str(INCIDENT)), ("recover",)])
def test_a_mistake_in_a_runbook_is_told_with_its_place_before_anything_is_read(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    source = ROOT / "runbooks" / "revive-kubelet-swap.yml"
    (tmp_path / "mine.yml").write_text(source.read_text().replace("    timeout: 90", "    tmeout: 90"))
    status, text = in_a_terminal(100, command[0], "omen2", *command[1:], "--runbooks", str(tmp_path))
    assert status == 2
    assert f"{tmp_path / 'mine.yml'}:" in text
    assert "unknown key 'tmeout'" in text
    assert "timeout" in text.split("unknown key", 1)[1]


def test_runbooks_of_one_s_own_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diagnose", "omen2", "--snapshot", str(INCIDENT), "--runbooks", str(tmp_path)]) == 2
    assert "no runbook" in capsys.readouterr().err
    (tmp_path / "x.yml").write_bytes(b"\xff")
    assert cli.main(["diagnose", "omen2", "--snapshot", str(INCIDENT), "--runbooks", str(tmp_path)]) == 2
    assert "not UTF-8" in capsys.readouterr().err
