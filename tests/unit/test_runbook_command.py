"""``gpufix runbook``: what it writes where, its exit statuses, templates of a user's own, and the PDF."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from snapshots_for_tests import CASES

from gpufix import cli, resources

INCIDENT = str(CASES / "trace-1-kubelet-dead")
HEALTHY = str(CASES / "realnode-container-healthy")
ANOTHER = str(CASES / "30-client-cert-expired-running")
NODE = ["runbook", "omen2", "--snapshot"]


def pdf_pages(path: Path) -> tuple[list[str], list[str], object]:
    """The text of each page, the bookmarks from top to bottom, and the size of the first page."""
    import pypdf

    reader = pypdf.PdfReader(path, strict=True)

    def titles(outline: list[object]) -> list[str]:
        return [t for one in outline for t in (titles(one) if isinstance(one, list) else [str(one.title)])]  # type: ignore[attr-defined]

    return [page.extract_text() for page in reader.pages], titles(reader.outline), reader.pages[0].mediabox


def test_the_incident_goes_to_stdout_as_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*NODE, INCIDENT]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# Revive a GPU node")
    assert "sudo swapoff -- /swapfile" in out
    assert out.endswith("\n")


def test_without_a_node_it_is_the_general_procedure(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runbook"]) == 0
    out = capsys.readouterr().out
    assert "This is the general procedure" in out
    assert 'swapoff -- "$SWAP_DEVICE"' in out


@pytest.mark.parametrize(("folder", "word"), [(HEALTHY, "is well"), (ANOTHER, "--runbook NAME")])
def test_where_none_fits_nothing_is_written(
    folder: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "page.md"
    assert cli.main([*NODE, folder, "-o", str(target)]) == 3
    streams = capsys.readouterr()
    assert streams.out == ""
    assert word in streams.err
    assert len(streams.err.splitlines()) == 1
    assert not target.exists()


def test_one_that_is_named_is_printed_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*NODE, ANOTHER, "--runbook", "revive-kubelet-swap"]) == 0
    assert "this runbook is not for this incident" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runbook", "--runbook", "revive-kubelet-swop"], ["no runbook", "revive-kubelet-swap"]),
        (["runbook", "--snapshot", INCIDENT], ["--snapshot needs the node's name"]),
        (["runbook", "Omen2"], ["DNS-1123"]),
        (["runbook", "-a", "target_workload=vms"], ["is no choice"]),
        ([*NODE, INCIDENT, "-a", "target_workload=vms"], ["is no choice"]),
        (["runbook", "--template-dir", "/nowhere"], ["no template (*.j2) in /nowhere"]),
        (["runbook", "--template-dir", "/nowhere", "--format", "json"], ["has no part in"]),
        (["runbook", "-o", "/nowhere/page.md"], ["the folder /nowhere is not there"]),
    ],
)
def test_bad_input_is_told_before_anything_is_written(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert all(word in streams.err for word in words), streams.err
    assert len(streams.err.splitlines()) <= 2


@pytest.mark.parametrize("form", ["md", "html", "json", pytest.param("pdf", marks=pytest.mark.dev)])
def test_a_file_is_written_over_only_where_gpufix_wrote_it(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / f"page.{form}"
    write = [*NODE, INCIDENT, "--format", form, "-o", str(target)]
    assert cli.main(write) == 0
    first = target.read_bytes()
    assert cli.main(write) == 0, "its own, again"
    assert len(target.read_bytes()) > 0.9 * len(first)
    assert [entry.name for entry in tmp_path.iterdir()] == [target.name]
    target.write_text("a letter to my mother\n")
    assert cli.main(write) == 2
    assert "it exists and is no runbook" in capsys.readouterr().err
    assert target.read_text() == "a letter to my mother\n"


def test_as_plain_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*NODE, INCIDENT, "--format", "json", "-a", "target_workload=vm-passthrough"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["version"], data["kind"], data["node"]) == (1, "gpufix-runbook", "omen2")
    assert data["decisions"][0]["choices"][1]["chosen"] is True
    assert [step["id"] for step in data["steps"]][-1] == "verify"


# --- PDF -------------------------------------------------------------------------------------------------------------


@pytest.mark.dev
@pytest.mark.parametrize(("paper", "width"), [("a4", 595), ("letter", 612)])
def test_the_pdf_can_be_searched_and_says_on_each_page_what_it_is(paper: str, width: int, tmp_path: Path) -> None:
    target = tmp_path / "page.pdf"
    assert cli.main([*NODE, INCIDENT, "--format", "pdf", "-o", str(target), "--paper", paper]) == 0
    pages, bookmarks, size = pdf_pages(target)
    assert int(size.width) == width  # type: ignore[attr-defined]
    text = " ".join(" ".join(pages).split())
    for words in (
        "running with swap on is not supported",
        "sudo swapoff -- /swapfile",
        "STOP, order rule O1",
        "Sign-off",
    ):
        assert words in text
    assert cli.main([*NODE, INCIDENT, "--format", "json", "-o", str(tmp_path / "data")]) == 0
    digest = json.loads((tmp_path / "data").read_text())["digest"][:12]
    for number, page in enumerate(pages, 1):
        assert f"{number} / {len(pages)}" in page
        assert digest in page
        assert "gpufix 0" in page
        assert "UTC" in page
    assert "The steps" in bookmarks
    assert sum(title.startswith("Step ") for title in bookmarks) == 5


def test_without_weasyprint_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    assert cli.main([*NODE, INCIDENT, "--format", "pdf", "-o", str(tmp_path / "page.pdf")]) == 2
    message, hint = capsys.readouterr().err.splitlines()
    assert message == "gpufix: PDF needs WeasyPrint, which is not installed"
    assert "gpufix[pdf]" in hint
    assert list(tmp_path.iterdir()) == []


def test_without_its_system_library_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "weasyprint.py").write_text("raise OSError(\"cannot load library 'libpango-1.0-0':\\n  not found\")\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "weasyprint", raising=False)
    assert cli.main([*NODE, INCIDENT, "--format", "pdf", "-o", str(tmp_path / "page.pdf")]) == 2
    message, hint = capsys.readouterr().err.splitlines()
    assert "libpango" in message
    assert "install Pango" in hint


def test_a_terminal_is_not_given_a_pdf(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert cli.main([*NODE, INCIDENT, "--format", "pdf"]) == 2
    assert "nothing for a terminal" in capsys.readouterr().err


# --- templates of one's own ------------------------------------------------------------------------------------------


def test_a_template_of_ones_own_changes_one_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runbook.md.j2").write_text(
        '{% extends "gpufix/runbook.md.j2" %}\n{% block foot %}\nHouse rules: call {{ "*Ada*" }}.\n{% endblock %}\n'
    )
    assert cli.main([*NODE, INCIDENT, "--template-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.endswith("House rules: call \\*Ada\\*.\n")
    assert "sudo swapoff -- /swapfile" in out


def test_a_whole_template_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runbook.html.j2").write_text("<p>{{ doc.node }}: {{ '<b>' }} {{ _('Done') }}</p>\n")
    assert cli.main([*NODE, INCIDENT, "--template-dir", str(tmp_path), "--format", "html"]) == 0
    assert capsys.readouterr().out == "<p>omen2: &lt;b&gt; Done</p>\n"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a\n{{ doc.nobody }}\n", 2, "nobody"),
        ("a\n\n{% if %}\n", 3, "Expected an expression"),
        ("{{ ''.__class__.__mro__ }}\n", 1, "unsafe"),
        ("x\n{{ 1 / 0 }}\n", 2, "division by zero"),
        ("x\n{% include 'mine.j2' %}\n", 2, "no template 'mine.j2'"),
        ("x\n{% include 'runbook.md.j2' %}\n", 1, "without end"),
        ("{% for i in range(999999999) %}{% endfor %}\n", 1, "Range too big"),
    ],
)
def test_a_mistake_in_one_is_told_with_file_and_line(
    text: str, place: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runbook.md.j2"
    file.write_text(text)
    assert cli.main(["runbook", "--template-dir", str(tmp_path)]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith(f"gpufix: {file}:{place}: "), streams.err
    assert words in streams.err
    assert len(streams.err.splitlines()) == 2


def test_a_folder_whose_templates_would_never_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(Path(resources.template_texts()["runbook.md.j2"][1]), tmp_path / "runbok.md.j2")
    assert cli.main(["runbook", "--template-dir", str(tmp_path)]) == 2
    assert "runbook.md.j2" in capsys.readouterr().err
