"""``gpufix report``: a draft of a postmortem from a run's journal and the snapshots beside it, and nothing else."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from gpufix import printing, resources, runs_command, workflow
from gpufix.core.alerts import load_alerts
from gpufix.core.render.pages import Templates, render
from gpufix.core.render.report import build_report
from gpufix.core.render.report_parts import Look, Report, Told, Undo
from gpufix.core.run_history import History
from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import spoken
from gpufix.runs import Run, find_run, list_runs

VERSION = 1
KIND = "gpufix-report"
TEMPLATES = {"md": "report.md.j2", "html": "report.html.j2", "pdf": "report.html.j2"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN|NODE", help="its id, or a node: then its last run")
    runs_command.add_state_option(parser)
    printing.add_options(parser)


def run(arguments: argparse.Namespace) -> ExitStatus:
    printing.check_options(arguments, KIND, "report")
    own, theirs = resources.template_texts(), printing.templates(arguments)
    state = runs_command.state_of(arguments)
    one = find_run(state, arguments.run)
    in_lab = hasattr(arguments, "words") or is_of_lab(state)
    report = make_report(one, list_runs(state), in_lab, runs_command.command_of(arguments, "resume"))
    if arguments.format == "json":
        data = {"version": VERSION, "kind": KIND, **asdict(report)}
        printing.write(arguments, json.dumps(data, indent=2) + "\n")
    else:
        printing.write_page(arguments, make_page(report, arguments.format, own, theirs), KIND)
    return ExitStatus.OK


def make_page(report: Report, form: str, own: Templates, theirs: Templates) -> str:
    """``report`` through the template of ``form``: md, html, or pdf (which is HTML too)."""
    return render(TEMPLATES[form], own, theirs, {"doc": report, "language": spoken()})


def is_of_lab(state: Path) -> bool:
    """Whether ``state`` is where a practice lab keeps its runs, as from within ``gpufix lab shell``."""
    try:
        return (state.parent.parent / LAB_MARK).is_file()
    except (OSError, ValueError):
        return False


LAB_MARK = "lab.json"
"""As gpufix.lab.server has it, whose import takes a while."""


def make_report(one: Run, runs: list[Run], lab: bool = False, resume: str = "gpufix resume") -> Report:
    """Of run ``one``; ``runs`` are all of its state folder. ``lab`` and ``resume``: as ``Told`` has them."""
    missing: list[tuple[str, str]] = []
    node = one.node
    before = _look(one.folder / "before", node, missing)
    name, at_end = last_look(one.history, {path.name for path in one.folder.iterdir() if path.is_dir()})
    last = before if name == "before" else _look(one.folder / name, node, missing)
    told = Told(
        one.id, one.state, one.history, before, last, at_end, tuple(missing),
        undone_by=_undos_of(one.id, runs),
        undoes=next((other.history for other in runs if one.of and other.id == one.of), None),
        others=tuple(other for other in _undos_of(one.of, runs) if one.of and other.id != one.id),
        lab=lab,
        resume=resume,
    )  # fmt: skip
    return build_report(told, load_alerts(resources.read_text("alerts.yml")), version("gpufix"))


def _undos_of(run: str, runs: list[Run]) -> tuple[Undo, ...]:
    return tuple(Undo(other.id, other.history) for other in runs if other.history.kind == "undo" and other.of == run)


def last_look(history: History, names: set[str]) -> tuple[str, bool]:
    """The folder of the newest snapshot of a run, and whether it is of its end.

    Each end but that of a run that is closed leaves one, ``after`` and then ``after-2``; each beginning too.
    """
    ends = [line for line in history.all("run-end") if not line.get("closed")]
    wanted = "after" if len(ends) < 2 else f"after-{len(ends)}"
    end = history.end
    if end is not None and not end.get("closed"):
        return wanted, True
    begun = [name for name in names if re.fullmatch(r"before(-\d{1,4})?", name)]
    return max(begun, key=_number, default="before"), False


def _number(name: str) -> int:
    return int(name.partition("-")[2] or 1)


def _look(folder: Path, node: str, missing: list[tuple[str, str]]) -> Look | None:
    try:
        reading = workflow.read_folder(folder, node)
    except GpufixError as error:
        missing.append((folder.name, error.message.replace(f"{folder}", folder.name)))
        return None
    return Look(folder.name, reading.facts, reading.diagnosis)
