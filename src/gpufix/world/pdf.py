"""HTML to PDF, through WeasyPrint: its only door. It is an extra, and fetches nothing from anywhere."""

from __future__ import annotations

import logging
from typing import Any

from gpufix.errors import GpufixError


def check_pdf() -> None:
    """Raises GpufixError (status 2) where PDF cannot be made here."""
    _weasyprint()


def make_pdf(html: str, paper: str, mark: str) -> bytes:
    """``html``, which stands alone, as a PDF with bookmarks. ``paper`` is A4 or Letter.

    ``mark`` is a comment at its end, which tells a document of gpufix from another file.

    Raises GpufixError (status 2) where WeasyPrint is not there.
    """
    weasyprint = _weasyprint()
    logging.getLogger("weasyprint").setLevel(logging.ERROR)  # what it skips of a style sheet is no operator's matter
    logging.getLogger("fontTools").setLevel(logging.ERROR)
    size = weasyprint.CSS(string=f"@page {{ size: {paper} }}")
    document = weasyprint.HTML(string=html, url_fetcher=_fetch_nothing)
    made: bytes = document.write_pdf(stylesheets=[size], pdf_tags=True)
    return made.rstrip(b"\n") + f"\n%{mark}\n".encode()


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
