"""``gpufix report``: which run, where it is written, its exit statuses, and the PDF."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest
from model_session import BOOK, ModelSession, Ui, calm, whole
from order_model import NODE, World
from snapshots_for_tests import CASES

from gpufix import cli, recovery
from gpufix import walk as walk_module
from gpufix.consents import Request
from gpufix.lab.server import MARK
from gpufix.report_command import LAB_MARK


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a whole run, with real captures beside its journal."""
    monkeypatch.setattr(walk_module, "POLL_SECONDS", 5.0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    session = ModelSession(World(), Ui(lambda m, options: "apply" if "apply" in options else "container"), calm, whole)
    result = recovery.recover(session, Request([BOOK], who="tester@bench"))  # type: ignore[arg-type]
    folder = Path(result.run)
    for name, case in (("before", "trace-1-kubelet-dead"), ("after", "trace-6-container-mode-vms-waiting")):
        shutil.rmtree(folder / name)
        shutil.copytree(CASES / case, folder / name)
    return folder


def test_by_run_and_by_node_it_is_the_same(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", run.name]) == 0
    first = capsys.readouterr().out
    assert first.startswith("# Postmortem draft: omen2")
    assert cli.main(["report", NODE, "-o", "-"]) == 0
    assert capsys.readouterr().out == first


def test_nothing_is_asked_of_the_network(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    assert cli.main(["report", NODE, "--format", "html"]) == 0
    assert "<h1>" in capsys.readouterr().out


def test_a_run_of_the_practice_lab_says_so(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LAB_MARK == MARK
    assert "practice lab" not in _told(capsys, ["report", NODE])
    lines = (run / "run.jsonl").read_text().splitlines(keepends=True)
    (run / "run.jsonl").write_text("".join(lines[:-1]))
    monkeypatch.setattr("gpufix.runs.process_began", lambda pid: "")
    lab = str(tmp_path / "lab")
    text = _told(capsys, ["lab", "report", "--dir", lab, "--state-dir", str(run.parent.parent), NODE])
    assert text.startswith("# Postmortem draft: omen2 (practice lab)\n")
    head, foot = text.splitlines()[2], text.splitlines()[-1]
    assert head == foot
    assert ", practice lab, run" in head
    assert f"gpufix lab resume --dir {lab} --state-dir {run.parent.parent} {run.name}" in text.replace("\\", "")
    (tmp_path / MARK).write_text("{}")  # beside the state folder: as from within gpufix lab shell
    text = _told(capsys, ["report", NODE])
    assert ", practice lab, run" in text
    assert f"gpufix resume {run.name}" in text.replace("\\", "")


def _told(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    assert cli.main(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", [["report", NODE], ["runbook"]])
def test_the_form_is_no_name_of_a_file(
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: list[str],
) -> None:
    """Other commands take it after -o, and a file of that name is hardly what is wanted."""
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command, "-o", "json"]) == 2
    told = capsys.readouterr().err
    assert "-o json names a file, not the form" in told
    assert "--format json" in told
    assert not (tmp_path / "json").exists()


def test_no_such_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "omen3"]) == 2
    told = capsys.readouterr().err
    assert "no run 'omen3'" in told
    assert "did you mean" in told


def test_a_file_is_written_over_only_where_it_is_a_report(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in ("md", "html", "json"):
        target = tmp_path / f"page.{form}"
        for _ in range(2):
            assert cli.main(["report", NODE, "--format", form, "-o", str(target)]) == 0
        assert target.stat().st_mode & 0o077 == 0
    mine = tmp_path / "mine.md"
    mine.write_text("my own words\n")
    assert cli.main(["report", NODE, "-o", str(mine)]) == 2
    assert "is no report" in capsys.readouterr().err
    assert mine.read_text() == "my own words\n"


def test_as_plain_data(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", NODE, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["version"], data["kind"], data["run"]) == (1, "gpufix-report", run.name)
    assert data["acts"][0]["who"] == "tester@bench"


def test_a_template_of_ones_own(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "report.md.j2").write_text(
        '{% extends "gpufix/report.md.j2" %}\n{% block follow_ups %}\n## Ours\n{% endblock %}\n'
    )
    assert cli.main(["report", NODE, "--template-dir", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "## Ours" in out
    assert "SwapTotal" not in out


@pytest.mark.dev
def test_as_a_pdf(run: Path, tmp_path: Path) -> None:
    import pypdf

    target = tmp_path / "report.pdf"
    for _ in range(2):
        assert cli.main(["report", NODE, "--format", "pdf", "-o", str(target)]) == 0
    reader = pypdf.PdfReader(target, strict=True)
    texts = [" ".join(page.extract_text().split()) for page in reader.pages]
    assert all(run.name in text for text in texts), "each page says which run it is of"
    whole_text = " ".join(texts)
    for words in ("Postmortem draft: omen2", "swap is on (/swapfile)", "What this draft does not know"):
        assert words in whole_text
