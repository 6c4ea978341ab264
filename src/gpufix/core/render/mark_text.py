"""The marks of others on a node, as lines for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpufix.core.marks import Mark
from gpufix.core.render.terminal import Style, compact
from gpufix.language import t
from gpufix.text import redact, safe


def mark_lines(marks: Sequence[Mark], style: Style) -> list[str]:
    """Each mark in words, with the text on the node that says so; nothing where there is none."""
    if not marks:
        return []
    lines = [style.paint(t("Others at this node"), "bold")]
    for mark in marks:
        word = style.paint(t("stop"), "red", "bold") if mark.stops else style.paint(t("mind"), "yellow")
        lines += style.wrap(f"{word}: {safe(redact(mark.text))}", 2, 4)
        evidence = f"{mark.evidence.source} | {compact(redact(mark.evidence.excerpt))}"
        lines.append(style.paint(style.clip(evidence, 6), "dim"))
    return lines
