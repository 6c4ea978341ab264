"""The language in which gpufix speaks to people. Pure: what a catalog says comes in from outside.

Sentences are in English in the code, whole, with names in braces where a value goes: ``t("{node} is not Ready",
node=name)``. What programs read (ids, keys, statuses, JSON) is never translated: the doors that write it speak English.
"""

from __future__ import annotations

import gettext
from collections.abc import Iterator
from contextlib import contextmanager

LANGUAGES = ("en", "ko")
"""The first is the language of the code."""

# Of the process and not of a context: ansible-runner's events come in on a thread of their own. The last is in use.
_catalogs: list[gettext.NullTranslations] = [gettext.NullTranslations()]


def t(message: str, /, **values: object) -> str:
    """``message`` in the language of the person, with ``values`` in their places (str.format).

    Without values braces mean nothing. A value is put in as it is, whatever braces it holds.
    """
    return _filled(current().gettext(message) if message else "", message, values)


def tn(one: str, many: str, /, n: int, **values: object) -> str:
    """The same for a sentence that counts: ``one`` where ``n`` is 1, else ``many``. ``{n}`` is the number."""
    return _filled(current().ngettext(one, many, n), one if n == 1 else many, {"n": n, **values})


def mark(message: str, /) -> str:
    """``message`` as it is: a constant that ``t`` translates when it is shown. Catalogs are made from such marks."""
    return message


def current() -> gettext.NullTranslations:
    """The catalog in use; in English an empty one."""
    return _catalogs[-1]


@contextmanager
def speaking(catalog: gettext.NullTranslations | None) -> Iterator[None]:
    """Speak the language of ``catalog`` within; None: English."""
    _catalogs.append(catalog or gettext.NullTranslations())
    try:
        yield
    finally:
        _catalogs.pop()


def _filled(translated: str, message: str, values: dict[str, object]) -> str:
    if not values:
        return translated
    try:
        return translated.format(**values)
    except (KeyError, IndexError, ValueError):  # a translation that is wrong must not stop a recovery
        return message.format(**values)
