"""HTML to PDF, through WeasyPrint: its only door. It is an extra, and fetches nothing from anywhere."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any, NamedTuple

from gpufix.errors import GpufixError


def check_pdf() -> None:
    """Raises GpufixError (status 2) where PDF cannot be made here."""
    _weasyprint()


class Pdf(NamedTuple):
    """``boxes``: the letters in it that no font of this machine has; a box stands in the place of each."""

    content: bytes
    boxes: tuple[str, ...]


def make_pdf(html: str, paper: str, mark: str) -> Pdf:
    """``html``, which stands alone, as a PDF with bookmarks. ``paper`` is A4 or Letter.

    ``mark`` is a comment at its end, which tells a document of gpufix from another file.

    Raises GpufixError (status 2) where WeasyPrint is not there.
    """
    weasyprint = _weasyprint()
    logging.getLogger("fontTools").setLevel(logging.ERROR)
    size = weasyprint.CSS(string=f"@page {{ size: {paper} }}")
    document = weasyprint.HTML(string=keep_words(html), url_fetcher=_fetch_nothing)
    with _listening() as boxes:
        made: bytes = document.write_pdf(stylesheets=[size], pdf_tags=True)
    return Pdf(made.rstrip(b"\n") + f"\n%{mark}\n".encode(), tuple(boxes))


class _Boxes(logging.Handler):
    """What it skips of a style sheet is no operator's matter; that nobody can read the page is."""

    def __init__(self) -> None:
        super().__init__()
        self.letters: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if ".notdef" in str(record.msg) and isinstance(record.args, tuple) and record.args:
            self.letters[str(record.args[0])] = None


@contextmanager
def _listening() -> Iterator[dict[str, None]]:
    logger, boxes = logging.getLogger("weasyprint"), _Boxes()
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    logger.addHandler(boxes)
    try:
        yield boxes.letters
    finally:
        logger.removeHandler(boxes)
        logger.setLevel(level)
        logger.propagate = propagate


_HANGUL = re.compile(r"[\uac00-\ud7a3]")
_WORD = re.compile(r"(?<!\S)(?=\S*[\uac00-\ud7a3])\S{2,30}(?!\S)")
"""A longer one may be broken, lest it stands out of the page."""
_AS_IT_IS = frozenset({"code", "pre", "samp", "script", "style", "svg", "title"})


def keep_words(html: str) -> str:
    """``html`` whose Korean words are not broken at the end of a line.

    WeasyPrint has no ``word-break: keep-all``. Joiners between the syllables would do too, and then no reader could
    search for a word.
    """
    if not _HANGUL.search(html):
        return html
    keeper = _WordKeeper()
    keeper.feed(html)
    keeper.close()
    return "".join(keeper.out)


class _WordKeeper(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.out: list[str] = []
        self.untouched = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.out.append(self.get_starttag_text() or "")
        self.untouched += tag in _AS_IT_IS

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.out.append(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        self.out.append(f"</{tag}>")
        self.untouched -= tag in _AS_IT_IS

    def handle_data(self, data: str) -> None:
        kept = data if self.untouched else _WORD.sub(r'<span style="white-space: nowrap">\g<0></span>', data)
        self.out.append(kept)

    def handle_entityref(self, name: str) -> None:
        self.out.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.out.append(f"&#{name};")

    def handle_decl(self, decl: str) -> None:
        self.out.append(f"<!{decl}>")


def _weasyprint() -> Any:
    try:
        import weasyprint
    except ImportError:
        raise GpufixError(
            "PDF needs WeasyPrint, which is not installed", "pip install 'gpufix[pdf]', or --format html and print that"
        ) from None
    except OSError as error:  # Pango and its like, which pip does not bring
        raise GpufixError(
            f"PDF needs a system library that WeasyPrint does not find: {' '.join(str(error).split())}",
            "install Pango (Debian: libpango-1.0-0 libpangoft2-1.0-0), or --format html and print that",
        ) from None
    return weasyprint


def _fetch_nothing(url: str, *_: object, **__: object) -> dict[str, Any]:
    raise ValueError(f"nothing is fetched: {url[:80]}")
