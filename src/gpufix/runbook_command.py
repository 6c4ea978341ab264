"""``gpufix runbook``: a runbook as a document to follow by hand, as Markdown, HTML, PDF or plain data."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from gpufix import planning, printing, resources
from gpufix.core.answers import override
from gpufix.core.conditions import World, evaluate, findings_of
from gpufix.core.render.document import Case, Document, Making, build_document
from gpufix.core.render.pages import Templates, render
from gpufix.core.runbook import Runbook
from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import mark, spoken, t
from gpufix.model import Status
from gpufix.recovery import fitting
from gpufix.session import Reading
from gpufix.text import did_you_mean

VERSION = 1
KIND = "gpufix-runbook"
TEMPLATES = {"md": "runbook.md.j2", "html": "runbook.html.j2", "pdf": "runbook.html.j2"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--snapshot", metavar="DIR", type=Path, help="read this captured folder; no cluster, no host")
    parser.add_argument("--runbook", metavar="NAME", help="this one, fit or not (default: the one that fits)")
    parser.add_argument(
        "-a",
        metavar="KEY=VALUE",
        dest="overrides",
        action="append",
        default=[],
        help="answer a question of the runbook",
    )
    printing.add_options(parser)


def check_options(arguments: argparse.Namespace) -> None:
    """Raises GpufixError (status 2), before anything is read, for what cannot be carried out."""
    if arguments.node is None and arguments.snapshot is not None:
        raise GpufixError("--snapshot needs the node's name", "gpufix runbook NODE --snapshot DIR")
    printing.check_options(arguments, KIND, "runbook")


def run(arguments: argparse.Namespace, read: Callable[[], Reading], books: Sequence[Runbook], host: str) -> ExitStatus:
    """``read`` looks at the node, where one was given; ``host`` is what ssh calls it."""
    own, theirs = resources.template_texts(), printing.templates(arguments)
    book = _named(arguments.runbook, books) if arguments.runbook is not None else None
    reading = read() if arguments.node is not None else None
    if book is None:
        book = fitting(books, reading) if reading is not None else _only(books)
    if book is None:
        assert reading is not None
        sys.stderr.write(f"gpufix: {_none_fits(reading)} " + t("Nothing was written.") + "\n")
        return ExitStatus.DECLINED
    answers = {name: one.value for name, one in override(None, arguments.overrides, book).items()}
    case = _case(reading, book, answers, host) if reading is not None else None
    document = build_document(book, _making(), case)
    if arguments.format == "json":
        printing.write(arguments, json.dumps({"version": VERSION, "kind": KIND, **asdict(document)}, indent=2) + "\n")
        return ExitStatus.OK
    page = make_page(document, arguments.format, own, theirs)
    printing.write_page(arguments, page, KIND)
    return ExitStatus.OK


def make_page(document: Document, form: str, own: Templates, theirs: Templates) -> str:
    """``document`` through the template of ``form``: md, html, or pdf (which is HTML too)."""
    return render(TEMPLATES[form], own, theirs, {"doc": document, "language": spoken()})


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
        return t("{node} is well, so no runbook fits.", node=node)
    words = mark("no runbook fits {cause} on {node}; --runbook NAME prints one all the same.")
    return t(words, cause=cause.id, node=node)


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
