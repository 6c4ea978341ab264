"""``gpufix runbook``: a runbook as a document to follow by hand, as Markdown, HTML, PDF or plain data."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from gpufix import planning, resources
from gpufix.core.answers import override
from gpufix.core.conditions import World, evaluate, findings_of
from gpufix.core.render.document import Case, Document, Making, build_document
from gpufix.core.render.pages import Templates, render
from gpufix.core.runbook import Runbook
from gpufix.errors import ExitStatus, GpufixError
from gpufix.model import Status
from gpufix.recovery import fitting
from gpufix.session import Reading
from gpufix.text import did_you_mean
from gpufix.world import pdf
from gpufix.world.files import check_replaceable, reason, replace_file

VERSION = 1
KIND = "gpufix-runbook"
TEMPLATES = {"md": "runbook.md.j2", "html": "runbook.html.j2", "pdf": "runbook.html.j2"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--snapshot", metavar="DIR", type=Path, help="read this captured folder; no cluster, no host")
    parser.add_argument("--runbook", metavar="NAME", help="this one, fit or not (default: the one that fits)")
    parser.add_argument("--format", choices=("md", "html", "pdf", "json"), default="md", help="default: md")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="-", help="write it there; - is stdout (default); pdf needs a file"
    )
    parser.add_argument(
        "-a",
        metavar="KEY=VALUE",
        dest="overrides",
        action="append",
        default=[],
        help="answer a question of the runbook",
    )
    parser.add_argument("--template-dir", metavar="DIR", type=Path, help="templates of your own, before gpufix's")
    parser.add_argument("--paper", choices=("a4", "letter"), default="a4", help="of a pdf (default: a4)")


def check_options(arguments: argparse.Namespace) -> None:
    """Raises GpufixError (status 2), before anything is read, for what cannot be carried out."""
    if arguments.node is None and arguments.snapshot is not None:
        raise GpufixError("--snapshot needs the node's name", "gpufix runbook NODE --snapshot DIR")
    if arguments.output == "-":
        if arguments.format == "pdf" and sys.stdout is not None and sys.stdout.isatty():
            raise GpufixError("a PDF is nothing for a terminal", "give a file: -o FILE")
    else:
        check_replaceable(Path(arguments.output), "-o", KIND, "runbook that gpufix printed")
    if arguments.format == "pdf":
        pdf.check_pdf()
    if arguments.template_dir is not None and arguments.format == "json":
        raise GpufixError("--template-dir has no part in --format json", "leave one of them out")


def run(arguments: argparse.Namespace, read: Callable[[], Reading], books: Sequence[Runbook], host: str) -> ExitStatus:
    """``read`` looks at the node, where one was given; ``host`` is what ssh calls it."""
    own, theirs = resources.template_texts(), _templates(arguments)
    book = _named(arguments.runbook, books) if arguments.runbook is not None else None
    reading = read() if arguments.node is not None else None
    if book is None:
        book = fitting(books, reading) if reading is not None else _only(books)
    if book is None:
        assert reading is not None
        sys.stderr.write(f"gpufix: {_none_fits(reading)} Nothing was written.\n")
        return ExitStatus.DECLINED
    answers = {name: one.value for name, one in override(None, arguments.overrides, book).items()}
    case = _case(reading, book, answers, host) if reading is not None else None
    document = build_document(book, _making(), case)
    if arguments.format == "json":
        _write(arguments, json.dumps({"version": VERSION, "kind": KIND, **asdict(document)}, indent=2) + "\n")
        return ExitStatus.OK
    page = make_page(document, arguments.format, own, theirs)
    _write(arguments, pdf.make_pdf(page, _PAPERS[arguments.paper]) if arguments.format == "pdf" else page)
    return ExitStatus.OK


def make_page(document: Document, form: str, own: Templates, theirs: Templates) -> str:
    """``document`` through the template of ``form``: md, html, or pdf (which is HTML too)."""
    return render(TEMPLATES[form], own, theirs, {"doc": document, "language": "en"})


_PAPERS: Mapping[str, str] = {"a4": "A4", "letter": "letter"}


def _templates(arguments: argparse.Namespace) -> Templates:
    if arguments.template_dir is None:
        return {}
    found = resources.template_texts(arguments.template_dir)
    wanted = {*resources.template_texts()}
    if not wanted & set(found):
        raise GpufixError(
            f"no template in {arguments.template_dir} has the name of one of gpufix's", did_you_mean(min(found), wanted)
        )
    return found


def _named(name: str, books: Sequence[Runbook]) -> Runbook:
    book = next((book for book in books if book.id == name), None)
    if book is None:
        raise GpufixError(f"no runbook {name!r}", did_you_mean(name, [one.id for one in books]))
    return book


def _only(books: Sequence[Runbook]) -> Runbook:
    if len(books) > 1:
        raise GpufixError("which runbook?", "give --runbook NAME; there is: " + ", ".join(book.id for book in books))
    return books[0]


def _none_fits(reading: Reading) -> str:
    cause, node = reading.diagnosis.root_cause, reading.snapshot.node
    if cause.id == "healthy" and cause.status is Status.CONFIRMED:
        return f"{node} is well, so no runbook fits."
    return f"no runbook fits {cause.id} on {node}; --runbook NAME prints one all the same."


def _case(reading: Reading, book: Runbook, answers: Mapping[str, str], host: str) -> Case:
    world = World(reading.facts, {}, findings_of(reading.diagnosis))
    assumed = {question.id: answers.get(question.id, question.default) for question in book.questions}
    fits = evaluate(book.fits, world).holds is True
    return Case(reading.facts, reading.diagnosis, reading.snapshot.files, host, assumed, fits)


def _making() -> Making:
    return Making(
        version=version("gpufix"),
        at=f"{planning.now():%Y-%m-%d %H:%M} UTC",
        comment_swap=resources.fstab_module().comment_swap,
        choose_verb=resources.swaps_module().choose_verb,
    )


def _write(arguments: argparse.Namespace, content: str | bytes) -> None:
    if arguments.output != "-":
        try:
            replace_file(Path(arguments.output), content)
        except (OSError, ValueError) as error:
            raise GpufixError(f"-o {arguments.output}: {reason(error)}", "give another file") from None
        return
    try:
        stream = sys.stdout.buffer if isinstance(content, bytes) else sys.stdout
        stream.write(content)  # type: ignore[arg-type]
        stream.flush()
    except BrokenPipeError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
