"""``gpufix runs``: the runs that this user made here, from their journals."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from gpufix.core.render.run_text import run_as_data, run_lines, run_row, table_lines
from gpufix.core.render.terminal import Style
from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import LANGUAGES, mark, t
from gpufix.runs import Run, close, find_run, list_runs, prune, require_own, run_to_close, to_prune
from gpufix.text import safe
from gpufix.ui import style_for
from gpufix.world import prompts
from gpufix.world.journal import operator, state_folder
from gpufix.world.prompts import Option

KEEP = 10


def add_state_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        type=Path,
        help="where the journals of runs are kept (default: gpufix below XDG_STATE_HOME)",
    )


def state_of(arguments: argparse.Namespace) -> Path:
    """Raises GpufixError (status 2) for a --state-dir that names no place."""
    given: Path | None = getattr(arguments, "state_dir", None)
    if given is None:
        return state_folder()
    try:
        return given.expanduser().resolve()
    except (OSError, RuntimeError) as error:  # ~nobody-here; a symbolic link that leads to itself
        raise GpufixError(f"--state-dir {given}: {error}", "give another folder") from None


def add_language_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lang", choices=LANGUAGES, help="the language for people (default: the locale's)")


def add_options(parser: argparse.ArgumentParser, parser_class: type[argparse.ArgumentParser]) -> None:
    commands = parser.add_subparsers(dest="runs_command", metavar="COMMAND", required=True, parser_class=parser_class)
    listing = commands.add_parser("list", help="all runs, oldest first")
    listing.add_argument("--node", metavar="NODE", dest="of_node", default="", help="of this node only")
    show = commands.add_parser("show", help="what the journal of a run says")
    show.add_argument("run", metavar="RUN|NODE", help="its id, or a node: then its last run")
    pruning = commands.add_parser("prune", help="take away old finished runs; what is not finished stays")
    pruning.add_argument("--keep", type=_count, default=KEEP, help=f"of each node (default: {KEEP})")
    pruning.add_argument("--dry-run", action="store_true", help="say what would go, and leave it")
    closing = commands.add_parser(
        "close", help="end a run that cannot be gone on with: its node is gone, or another one"
    )
    closing.add_argument("run", metavar="RUN|NODE", help="its id, or a node: then its only unfinished run")
    closing.add_argument("-y", "--yes", action="store_true", help="close it without asking")
    for command in (listing, show, pruning, closing):
        add_state_option(command)
        add_language_option(command)
        command.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")


def command_of(arguments: argparse.Namespace, verb: str) -> str:
    """By which command a person does ``verb`` with these runs; ``arguments.words`` says where it is another one."""
    words: Mapping[str, str] = getattr(arguments, "words", {})
    return words.get(verb, f"gpufix {verb}{state_words(arguments)}")


def state_words(arguments: argparse.Namespace) -> str:
    """What a command needs besides to find these runs: nothing where they are in the usual place."""
    given = getattr(arguments, "state_dir", None)
    return f" --state-dir {shlex.quote(str(given))}" if given is not None else ""


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise argparse.ArgumentTypeError("a whole number, 0 or more")
    return int(text)


def run(arguments: argparse.Namespace) -> ExitStatus:
    as_json, style, state = arguments.output == "json", style_for(sys.stdout), state_of(arguments)
    if arguments.runs_command == "show":
        one = find_run(state, arguments.run)
        if as_json:
            print(json.dumps(_data(one), indent=2))
        else:
            print(
                "\n".join(
                    run_lines(one.id, str(one.folder), one.state, one.history, style, command_of(arguments, "resume"))
                )
            )
        return ExitStatus.OK
    if arguments.runs_command == "list":
        runs = list_runs(state, arguments.of_node)
        if as_json:
            print(json.dumps([_data(one) for one in runs], indent=2))
        elif runs:
            print("\n".join(table_lines([run_row(one.id, one.state, one.history) for one in runs], style)))
        else:
            print(t("no runs"))
        return ExitStatus.OK
    if arguments.runs_command == "close":
        return _close(arguments, state, style)
    gone = to_prune(list_runs(state), arguments.keep)
    if not arguments.dry_run:
        prune(gone)
    if as_json:
        print(json.dumps({"version": 1, "pruned": [one.id for one in gone], "dry_run": arguments.dry_run}, indent=2))
    else:
        told = t("{n} would be pruned", n=len(gone)) if arguments.dry_run else t("{n} pruned", n=len(gone))
        print("\n".join([*(one.id for one in gone), told]))
    return ExitStatus.OK


def _close(arguments: argparse.Namespace, state: Path, style: Style) -> ExitStatus:
    one, as_json = run_to_close(state, arguments.run), arguments.output == "json"
    require_own(one)
    if not arguments.yes:
        if as_json:
            raise GpufixError("-o json leaves no room for a question", "give --yes")
        prompts.check_terminal("run it in a terminal; without one give --yes")
        resume = command_of(arguments, "resume")
        print("\n".join([*run_lines(one.id, str(one.folder), one.state, one.history, style, resume), ""]))
        half_way = t("If it only stopped half-way, {command} is what you want.", command=resume)
        print("\n".join(style.wrap(f"{t(CLOSING)} {half_way}")))
        options = [Option("keep", t("leave it as it is")), Option("close", t("close it: what it did stays as it is"))]
        if prompts.ask_choice(t("The run {run}:", run=one.id), options, "keep") == "keep":
            print(t("Left as it is. Nothing was changed."))
            return ExitStatus.DECLINED
    line = close(one, operator())
    print(json.dumps(_data(find_run(state, one.id)), indent=2) if as_json else "\n".join(style.wrap(safe(line))))
    return ExitStatus.OK


CLOSING = mark(
    "Its node is not looked at. A run that is closed is not offered any more and cannot be gone on with; what it "
    "changed can still be undone while the node is there."
)


def _data(one: Run) -> dict[str, object]:
    return run_as_data(one.id, str(one.folder), one.state, one.history)
