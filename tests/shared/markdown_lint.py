"""What a Markdown linter says of pages that gpufix printed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def complaints(pages: Mapping[str, str], folder: Path) -> list[str]:
    """One line for each thing that the linter has against ``pages`` (name -> text). It is of the dev extra."""
    from pymarkdown import api

    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    linter = api.PyMarkdownApi().set_boolean_property("plugins.md013.enabled", False)
    linter.set_boolean_property("plugins.md051.enabled", False)  # of links within a page, which these have none of
    linter.set_boolean_property("extensions.markdown-tables.enabled", True)
    result = linter.scan_path(str(folder))
    return [
        *(f"{one.scan_file}:{one.line_number}: {one.rule_id} {one.rule_description}" for one in result.scan_failures),
        *map(str, result.pragma_errors),
    ]
