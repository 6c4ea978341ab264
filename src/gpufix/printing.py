"""What every document that gpufix prints has in common: its options, its templates, and where it is written."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpufix import resources
from gpufix.core.render.pages import Templates
from gpufix.errors import GpufixError
from gpufix.language import t
from gpufix.text import did_you_mean, safe
from gpufix.world import pdf
from gpufix.world.files import check_replaceable, reason, replace_file

PAPERS: Mapping[str, str] = {"a4": "A4", "letter": "letter"}
FORMATS = ("md", "html", "pdf", "json")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=FORMATS, default="md", help="default: md")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="-", help="write it there; - is stdout (default); pdf needs a file"
    )
    parser.add_argument("--template-dir", metavar="DIR", type=Path, help="templates of your own, before gpufix's")
    parser.add_argument("--paper", choices=("a4", "letter"), default="a4", help="of a pdf (default: a4)")


def check_options(arguments: argparse.Namespace, kind: str, what: str) -> None:
    """Raises GpufixError (status 2), before anything is read, for what cannot be carried out.

    ``kind`` is the mark that every document of this kind has, and ``what`` names the kind.
    """
    if arguments.output in FORMATS:  # other commands take the form after -o
        form = arguments.output
        raise GpufixError(
            f"-o {form} names a file, not the form", f"give --format {form}; for a file of that name: -o ./{form}"
        )
    if arguments.output == "-":
        if arguments.format == "pdf" and sys.stdout is not None and sys.stdout.isatty():
            raise GpufixError("a PDF is nothing for a terminal", "give a file: -o FILE")
    else:
        check_replaceable(Path(arguments.output), "-o", kind, f"{what} that gpufix printed")
    if arguments.format == "pdf":
        pdf.check_pdf()
    if arguments.template_dir is not None and arguments.format == "json":
        raise GpufixError("--template-dir has no part in --format json", "leave one of them out")


def templates(arguments: argparse.Namespace) -> Templates:
    """Those of ``--template-dir``. Raises GpufixError (status 2) where none of them would ever be used."""
    if arguments.template_dir is None:
        return {}
    found = resources.template_texts(arguments.template_dir)
    wanted = {*resources.template_texts()}
    if not wanted & set(found):
        raise GpufixError(
            f"no template in {arguments.template_dir} has the name of one of gpufix's", did_you_mean(min(found), wanted)
        )
    return found


def write_page(arguments: argparse.Namespace, page: str, kind: str) -> None:
    """``page`` goes where ``-o`` says, as a PDF where that was asked for."""
    if arguments.format != "pdf":
        write(arguments, page)
        return
    made = pdf.make_pdf(page, PAPERS[arguments.paper], kind)
    write(arguments, made.content)
    if made.boxes:
        letters = safe("".join(made.boxes[:8])) + ("…" if len(made.boxes) > 8 else "")
        told = t(
            "no font of this machine has these letters, and boxes stand in their place: {letters}", letters=letters
        )
        hint = t("install a font that has them (Hangul, on Debian: fonts-noto-cjk), then print this again")
        sys.stderr.write(f"gpufix: {told}\n  {hint}\n")


def write(arguments: argparse.Namespace, content: str | bytes) -> None:
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
