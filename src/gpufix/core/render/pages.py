"""Documents through jinja2 templates. Pure: templates come in as text, and the page goes out as text.

What a page shows comes from clusters and nodes and is hostile until escaped. HTML is escaped by jinja2 itself; for
Markdown, every value that a template prints is escaped unless a filter below has made it Markdown. Templates of a
user's own run in jinja2's sandbox.
"""

from __future__ import annotations

import functools
import gettext
import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from jinja2.sandbox import SandboxedEnvironment
from markupsafe import Markup

from gpufix import language
from gpufix.errors import GpufixError

Templates = Mapping[str, tuple[str, str]]
"""Template name -> its text, and the file that a mistake in it is told with."""
OWN = "gpufix/"
"""Before the name of one of gpufix's own templates where one of the user's has the same."""


class Markdown(str):
    """Text that is Markdown already."""

    __slots__ = ()


def render(name: str, own: Templates, theirs: Templates, context: Mapping[str, Any]) -> str:
    """The page of template ``name``, ``theirs`` before ``own``.

    Raises GpufixError (status 2) with file and line for a mistake in a template.
    """
    environment = _environment(_is_markdown(name), _Texts(own), _Texts(theirs), language.current())
    files = {**{OWN + key: file for key, (_, file) in own.items()}, **{key: file for key, (_, file) in own.items()}}
    files.update({key: file for key, (_, file) in theirs.items()})
    try:
        page = environment.get_template(name).render(context)
        return tidy_markdown(page) if _is_markdown(name) else page
    except jinja2.TemplateSyntaxError as error:
        file = files.get(error.name or name, error.name or name)
        raise GpufixError(f"{file}:{error.lineno}: {error.message}", _HINT) from None
    except jinja2.TemplateNotFound as error:
        raise GpufixError(f"{_place(error, files, name)}: no template {error.name!r}", _HINT) from None
    except RecursionError:
        raise GpufixError(f"{files.get(name, name)}:1: it includes itself without end", _HINT) from None
    except Exception as error:  # a template may do anything wrong that Python code can
        if not theirs:
            raise
        words = " ".join(str(error).split()) or type(error).__name__
        raise GpufixError(f"{_place(error, files, name)}: {words}", _HINT) from None


_HINT = "mend the template; docs/runbook-document.md and docs/report.md say what it gets"


def _place(error: BaseException, files: Mapping[str, str], name: str) -> str:
    """file:line of the innermost template that was at work."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files:
            return f"{files[frame.filename]}:{frame.lineno}"
    return files.get(name, name) + ":1"


class _Texts(dict[str, tuple[str, str]]):
    """Templates that the same ones are equal to, for the cache."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


@functools.lru_cache(maxsize=8)
def _environment(
    is_markdown: bool, own: _Texts, theirs: _Texts, translations: gettext.NullTranslations
) -> SandboxedEnvironment:
    """It compiles each template once, which takes longer than to make a page of it."""

    def load(wanted: str) -> tuple[str, str, Callable[[], bool]] | None:
        text = own.get(wanted.removeprefix(OWN)) if wanted.startswith(OWN) else theirs.get(wanted) or own.get(wanted)
        return None if text is None else (text[0], wanted, lambda: True)

    environment = SandboxedEnvironment(
        loader=jinja2.FunctionLoader(load),
        autoescape=not is_markdown,
        undefined=jinja2.StrictUndefined,
        extensions=["jinja2.ext.i18n"],
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_as_markdown if is_markdown else None,
    )
    environment.install_gettext_translations(translations, newstyle=True)  # type: ignore[attr-defined]
    environment.filters.update({"css": _css_string} if not is_markdown else {})
    if is_markdown:
        environment.filters.update({"code": _code_span, "fenced": _fenced, "raw": Markdown})
    return environment


def _is_markdown(name: str) -> bool:
    return name.endswith(".md.j2")


# --- Markdown --------------------------------------------------------------------------------------------------------

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~$])")
_LINE_START = re.compile(r"^(\s*)([#+=-]|\d+(?=[.)](?:\s|$)))", re.MULTILINE)
_LINKING = re.compile(r"(?i)\b(https?|ftp|mailto|www)(?=:|\.)")


def _as_markdown(value: Any) -> Any:
    """Any value as Markdown that shows just that text: no markup, no HTML, no entity and no link in it works."""
    if isinstance(value, Markdown):
        return str(value)
    if not isinstance(value, str):
        return value
    text = _SPECIAL.sub(r"\\\1", value.replace("&", "&amp;"))
    text = _LINKING.sub(r"\g<0>\\", text)
    return _LINE_START.sub(lambda match: match[1] + (match[2] + "\\" if match[2].isdigit() else "\\" + match[2]), text)


def _code_span(text: str) -> Markdown:
    """``text`` on one line as inline code, whatever backticks it holds."""
    line = " ".join(str(text).split("\n"))
    fence = "`" * (_longest_run(line) + 1)
    pad = " " if not line or line[0] in "` " or line[-1] in "` " else ""
    return Markdown(f"{fence}{pad}{line}{pad}{fence}")


def _fenced(text: str, language: str = "", indent: int = 0) -> Markdown:
    """``text`` as a block of code, whatever backticks it holds."""
    fence = "`" * max(3, _longest_run(str(text)) + 1)
    lines = [f"{fence}{language}", *str(text).split("\n"), fence]
    return Markdown("\n".join(" " * indent + line if line else line for line in lines))


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)


def tidy_markdown(text: str) -> str:
    """``text`` with one blank line where there were several, one around each heading, and no blanks at the ends of
    lines; but in blocks of code everything as it is."""
    lines: list[str] = []
    fence, after_heading = "", False
    for raw in text.split("\n"):
        if fence:
            lines.append(raw)
            fence = "" if raw.strip() == fence else fence
            continue
        line = raw.rstrip()
        if not line and (not lines or not lines[-1]):
            continue
        heading = re.match(r"#{1,6} ", line) is not None
        if line and lines and lines[-1] and (heading or after_heading):
            lines.append("")
        lines.append(line)
        after_heading = heading
        if opened := re.match(r"\s*(`{3,})", line):
            fence = opened[1]
    return "\n".join(lines).rstrip("\n") + "\n"


# --- HTML ------------------------------------------------------------------------------------------------------------


def _css_string(text: str) -> Markup:
    """``text`` as the content of a quoted string in a style sheet: all but plain characters as CSS escapes."""
    return Markup(
        "".join(char if (char.isascii() and char.isalnum()) or char in " .:-" else f"\\{ord(char):x} " for char in text)
    )
