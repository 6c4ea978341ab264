"""``resume`` and ``undo`` as commands: which run is meant, and how its node is reached."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from gpufix import resuming, run_command, undoing
from gpufix.consents import Request
from gpufix.core.render.run_text import about_lines
from gpufix.core.runbook import Runbook
from gpufix.errors import ExitStatus
from gpufix.record import Listener
from gpufix.running import Result
from gpufix.runs import Run, newer_runs, require_own, run_to_resume, run_to_undo
from gpufix.runs_command import add_state_option, state_of
from gpufix.session import Session
from gpufix.ui import TerminalUi


def add_resume_options(parser: argparse.ArgumentParser) -> None:
    _which(parser, "the last unfinished one")
    run_command.add_answer_options(parser)
    add_state_option(parser)
    run_command.add_listener_options(parser)


def add_undo_options(parser: argparse.ArgumentParser) -> None:
    _which(parser, "the last one that changed something")
    parser.add_argument("--step", metavar="STEP", default="", help="undo this step only")
    parser.add_argument("--check", action="store_true", help="show the plan with its dry runs and change nothing")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    parser.add_argument("-q", "--quiet", action="store_true", help="no talk on stderr, errors only")
    add_state_option(parser)
    run_command.add_listener_options(parser)


def _which(parser: argparse.ArgumentParser, last: str) -> None:
    parser.add_argument(
        "run", metavar="RUN|NODE", nargs="?", help=f"a run's id, or a node: then {last} there (default: the only one)"
    )


def run(
    arguments: argparse.Namespace, session_of: Callable[[TerminalUi], Session], books: Sequence[Runbook]
) -> ExitStatus:
    """Raises GpufixError: status 2 for a run that there is not, 8 for one that still goes on."""
    state, resumes = state_of(arguments), arguments.command == "resume"
    meant = run_to_resume(state, arguments.run) if resumes else run_to_undo(state, arguments.run)
    require_own(meant)
    _fill_in(arguments, meant)

    def work(session: Session, request: Request, listeners: Sequence[Listener]) -> Result:
        newer = [(other.id, other.state) for other in newer_runs(state, meant)]
        session.ui.say(about_lines(meant.id, meant.state, meant.history, newer, session.ui.style))
        if resumes:
            return resuming.resume(session, request, meant, listeners)
        return undoing.undo(session, request, meant, arguments.step, listeners)

    return run_command.carry_out(arguments, session_of, books, work)


_NOT_ASKED_FOR: dict[str, Any] = {"answers": None, "overrides": [], "plan": None, "check": False, "save_answers": None}


def _fill_in(arguments: argparse.Namespace, meant: Run) -> None:
    """The node and how it was reached are the run's, unless this command says otherwise."""
    start = meant.history.start
    arguments.node = meant.node
    access = start.get("access")
    recorded = access if isinstance(access, dict) else {}
    inventory = recorded.get("inventory")
    if not arguments.inventory and isinstance(inventory, list):
        arguments.inventory = [one for one in inventory if isinstance(one, str)]
    for name in () if arguments.kubeconfig else ("kubeconfig", "context"):  # a context is one of its kubeconfig
        if not getattr(arguments, name) and isinstance(recorded.get(name), str):
            setattr(arguments, name, recorded[name] or None)
    if arguments.host is None and isinstance(start.get("host"), str) and start["host"] != meant.node:
        arguments.host = start["host"]
    for name, default in _NOT_ASKED_FOR.items():
        if not hasattr(arguments, name):
            setattr(arguments, name, default)
