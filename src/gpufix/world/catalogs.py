"""Catalogs of translations, and which of them a person wants."""

from __future__ import annotations

import gettext
from collections.abc import Mapping
from pathlib import Path

from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import LANGUAGES

DOMAIN = "gpufix"
FOLDER = Path(__file__).resolve().parent.parent / "locale"


def wanted(environment: Mapping[str, str]) -> str:
    """The language of LANGUAGES that the environment asks for, as gettext reads it: LANGUAGE, then LC_ALL, LC_MESSAGES
    and LANG; the C locale is English, whatever LANGUAGE says."""
    names = ("LC_ALL", "LC_MESSAGES", "LANG")
    locale = next((environment[name] for name in names if environment.get(name)), "C")
    if _language(locale) in ("c", "posix"):
        return LANGUAGES[0]
    for name in (*environment.get("LANGUAGE", "").split(":"), locale):
        if _language(name) in LANGUAGES:
            return _language(name)
    return LANGUAGES[0]


def _language(locale: str) -> str:
    for end in ".@_":
        locale = locale.split(end)[0]
    return locale.lower()


def catalog(language: str) -> gettext.NullTranslations | None:
    """The catalog of ``language``; None for English. Raises GpufixError where this installation has none."""
    if language == LANGUAGES[0]:
        return None
    try:
        return gettext.translation(DOMAIN, FOLDER, [language])
    except (OSError, UnicodeError, ValueError) as error:
        raise GpufixError(
            f"the {language} catalog of this installation cannot be read: {error}",
            "install gpufix again, or take --lang en",
            ExitStatus.INTERNAL,
        ) from None
