"""The catalogs of translations: collects what is to be translated, and compiles what was.

    python src/catalogs.py update     bring the .po files up to date with the sources (needs Babel)
    python src/catalogs.py compile    make the .mo files that gpufix reads; the build does it too

Collected are the calls of ``t``, ``tn`` and ``mark`` (gpufix.language), what the templates mark, and the sentences of
the runbooks, the alerts, the remediators and the playbooks' task names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir, extract_from_file
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "gpufix"
LOCALE = PACKAGE / "locale"
KEYWORDS: dict[str, Any] = {"t": None, "tn": (1, 2), "mark": None}
SENTENCES = {
    "title", "summary", "access", "console", "ask", "label", "consequence", "why", "because", "risk", "irreversible",
    "if_late", "expect", "if_it_fails", "note", "means", "text", "without",
}  # fmt: skip
"""Keys of runbooks and data whose values are sentences for people."""


class CatalogsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the catalogs before a wheel, or an editable install, is made."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compile_all()


def po_files() -> list[Path]:
    return sorted(LOCALE.glob("*/LC_MESSAGES/gpufix.po"))


def compile_all() -> None:
    for path in po_files():
        with path.open("rb") as source:
            catalog = read_po(source, locale=path.parts[-3], domain="gpufix")
        with path.with_suffix(".mo").open("wb") as target:
            write_mo(target, catalog)


def collect() -> Catalog:
    """Everything that is to be translated, in the order of the sources."""
    catalog = Catalog(domain="gpufix", fuzzy=False, charset="utf-8")
    for file, message in _messages():
        catalog.add(message, locations=[(file, 0)])
    return catalog


def _messages() -> Iterator[tuple[str, str | tuple[str, ...]]]:
    found = extract_from_dir(
        PACKAGE, [("**.py", "python")], {}, keywords=KEYWORDS, comment_tags=("Translators:",), strip_comment_tags=True
    )
    for file, _, message, _, _ in sorted(found, key=lambda one: (one[0], one[1])):
        yield f"src/gpufix/{file}", message
    options = {"extensions": "jinja2.ext.i18n", "trim_blocks": "true", "lstrip_blocks": "true"}
    for path in sorted((PACKAGE / "data" / "templates").glob("*.j2")):
        for _, message, _, _ in extract_from_file("jinja2.ext.babel_extract", path, options=options):
            yield str(path.relative_to(ROOT)), message
    import yaml

    data = PACKAGE / "data"
    for path in (*sorted((ROOT / "runbooks").glob("*.yml")), data / "alerts.yml", data / "remediators.yml"):
        for sentence in _sentences(yaml.safe_load(path.read_text(encoding="utf-8"))):
            yield str(path.relative_to(ROOT)), sentence
    for path in sorted((ROOT / "playbooks").glob("*.yml")):
        for name in _names(yaml.safe_load(path.read_text(encoding="utf-8"))):
            yield str(path.relative_to(ROOT)), name


def _sentences(data: Any, wanted: bool = False) -> Iterator[str]:
    if isinstance(data, str) and wanted:
        yield data
    elif isinstance(data, list):
        for part in data:
            yield from _sentences(part, wanted)
    elif isinstance(data, dict):
        for key, part in data.items():
            yield from _sentences(part, key in SENTENCES)


def _names(data: Any) -> Iterator[str]:
    """Names of plays, tasks and blocks."""
    for part in data if isinstance(data, list) else []:
        if isinstance(part, dict):
            if isinstance(part.get("name"), str):
                yield part["name"]
            for key in ("pre_tasks", "tasks", "post_tasks", "handlers", "block", "rescue", "always"):
                yield from _names(part.get(key))


def update_all() -> None:
    template = collect()
    for path in po_files():
        with path.open("rb") as source:
            catalog = read_po(source, locale=path.parts[-3], domain="gpufix")
        # no guesses: a sentence that changed is translated anew
        catalog.update(template, no_fuzzy_matching=True, update_creation_date=False)
        catalog.obsolete.clear()
        with path.open("wb") as target:
            write_po(target, catalog, width=100, sort_output=False, include_lineno=False, omit_header=False)


if __name__ == "__main__":
    {"update": update_all, "compile": compile_all}[sys.argv[1]]()
