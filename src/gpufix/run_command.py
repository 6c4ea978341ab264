"""``plan``, ``recover``, ``show`` and ``answers`` as commands: their options, the files they take, what they print.

Stdout holds only the answer when nobody sits at the prompt; the talk is on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpufix import planning, recovery, resources
from gpufix.consents import Request
from gpufix.core.answers import (
    DEFAULT,
    Answers,
    consent_problem,
    file_problem,
    load_answers,
    missing_answers,
    missing_problem,
    override,
)
from gpufix.core.answers_format import answers_schema, sample, saved
from gpufix.core.plan import surely_destructive
from gpufix.core.plan_data import Given, read_plan
from gpufix.core.render.metrics import metrics_text
from gpufix.core.render.plan_text import plan_data_lines
from gpufix.core.runbook import Runbook
from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import mark, t
from gpufix.record import Listener, Notifying, Streaming
from gpufix.results import error_as_data, metrics_of, result_as_data
from gpufix.running import Result
from gpufix.runs_command import add_state_option
from gpufix.session import Session, read_runbooks
from gpufix.text import did_you_mean, safe
from gpufix.ui import TerminalUi, style_for
from gpufix.world import prompts
from gpufix.world.events import EventStream
from gpufix.world.files import check_new, check_replaceable, replace_file, write_new
from gpufix.world.journal import operator
from gpufix.world.metrics import check_metrics_file, write_metrics
from gpufix.world.notify import Notifier

_WITHOUT_A_PERSON = {
    "resume": mark("--answers FILE (gpufix answers writes a sample)"),
    "undo": mark("--check to see the plan only: nothing is undone without a person"),
}
"""What a command offers where nobody can be asked; any other than these has both."""


def without_a_person(arguments: argparse.Namespace) -> str:
    both = mark("--answers FILE (gpufix answers writes a sample), or --check to see the plan only")
    return t("give {options}", options=t(_WITHOUT_A_PERSON.get(arguments.command, both)))


# --- options ---------------------------------------------------------------------------------------------------------


def add_answer_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--answers", metavar="FILE", type=Path, help="answers and consents of a run without a person (gpufix answers)"
    )
    parser.add_argument(
        "-a",
        metavar="KEY=VALUE",
        dest="overrides",
        action="append",
        default=[],
        help="answer a question; wins over the file",
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    parser.add_argument("-q", "--quiet", action="store_true", help="no talk on stderr, errors only")


def add_recover_options(parser: argparse.ArgumentParser) -> None:
    add_answer_options(parser)
    add_state_option(parser)
    parser.add_argument(
        "--plan", metavar="FILE", type=Path, help="refuse if the world has moved since this plan was made"
    )
    parser.add_argument("--check", action="store_true", help="make the plan with its dry runs and change nothing")
    parser.add_argument(
        "--save-answers",
        metavar="FILE",
        type=Path,
        help="write the answers given here, for the same run without a person",
    )
    add_listener_options(parser)


def add_listener_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", metavar="FILE", help="a JSON line for each change of state; - is stdout")
    parser.add_argument(
        "--notify", metavar="URL", help="post to this webhook at start, at each open gate and at the end"
    )
    parser.add_argument(
        "--metrics-file", metavar="FILE", type=Path, help="write a Prometheus textfile at the end (*.prom)"
    )


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    add_answer_options(parser)
    parser.add_argument("--out", metavar="FILE", type=Path, help="write the plan there too, for recover --plan")


# --- files -----------------------------------------------------------------------------------------------------------


def request_from(arguments: argparse.Namespace, books: Sequence[Runbook]) -> Request:
    """Everything that the command's files say, checked before anything of the cluster is read.

    Raises GpufixError (status 2) for the first mistake.
    """
    answers, book = _answers_file(arguments, books)
    file = getattr(arguments, "plan", None)
    plan = _plan_file(file, arguments.node, arguments.host) if file is not None else None
    book = book or _book_of(plan["runbook"]["id"] if plan is not None else None, arguments.overrides, books)
    answered = override(answers, arguments.overrides, book) if book is not None else {}
    given = {name: Given(one.value, str(one.origin)) for name, one in answered.items()}
    if plan is not None:
        given = _with_plan(given, plan, str(file), answers is None)
    if answers is not None and book is not None and arguments.command == "recover":
        left = [question for question in missing_answers(book, answered) if question.id not in given]
        if problem := missing_problem(left, answers.file):
            raise GpufixError(problem, f"gpufix answers {book.id} shows the choices and what they mean")
        _require_names(answers, book, arguments.node, {name: one.value for name, one in given.items()})
    return Request(books, answers, given, plan, getattr(arguments, "check", False), operator())


def _require_names(answers: Answers, book: Runbook, node: str, values: Mapping[str, str]) -> None:
    """A plain ``true`` for a step that is destructive whatever is found can be told without the cluster."""
    for step in book.steps:
        consent = answers.consents.get(step.id)
        if consent is not None and consent.kind == "yes" and not consent.node and surely_destructive(step, values):
            problem = consent_problem(True, step.id, node, replace(consent, plan=""), None, answers.file)
            raise GpufixError(problem or "", f"gpufix answers {book.id} --node {node} shows what each step does")


def _answers_file(arguments: argparse.Namespace, books: Sequence[Runbook]) -> tuple[Answers | None, Runbook | None]:
    if arguments.answers is None:
        return None, None
    file = str(arguments.answers)
    answers, book = load_answers(resources.read_file(arguments.answers), file, books)
    if problem := file_problem(answers, book.id, arguments.node):
        raise GpufixError(problem, f"gpufix answers {book.id} --node {arguments.node} writes a sample for this one")
    return answers, book


def _plan_file(file: Path, node: str, host: str | None) -> dict[str, Any]:
    plan = read_plan(resources.read_file(file), str(file), resources.plan_schema())
    for name, wanted in (("node", node), ("host", host or node)):
        if plan[name] != wanted:
            raise GpufixError(
                f"{file} is a plan for {name} {plan[name]}, not for {wanted}", "give the plan of this one"
            )
    return plan


def _book_of(named: str | None, overrides: Sequence[str], books: Sequence[Runbook]) -> Runbook | None:
    """The runbook that -a is read against before the diagnosis is known: the plan's, else one that asks this."""
    if named is not None:
        return next((book for book in books if book.id == named), None)
    asked = {word.partition("=")[0] for word in overrides}
    asking = [book for book in books if asked <= {question.id for question in book.questions}]
    return (asking or list(books))[0] if overrides else None


def _with_plan(given: dict[str, Given], plan: dict[str, Any], file: str, attended: bool) -> dict[str, Given]:
    """The plan's answers too. One that says otherwise is refused: it would be another plan."""
    for name, answer in plan["answers"].items():
        if name in given and given[name].value != answer["value"]:
            raise GpufixError(
                f"{given[name].origin}: {name} is {given[name].value}, but {file} was made for {answer['value']}",
                "make a new plan with these answers: gpufix plan NODE --answers FILE --out FILE",
            )
        if attended or answer["origin"] != str(DEFAULT):  # without a person, what nobody answered stays open
            given.setdefault(name, Given(answer["value"], f"{file}, {answer['origin']}"))
    return given


def check_options(arguments: argparse.Namespace) -> None:
    """Raises GpufixError (status 2) for options that do not go together."""
    alone = arguments.answers is not None or arguments.check
    asked = [
        name
        for name, given in (
            ("-o json", arguments.output == "json"),
            ("--events -", arguments.events == "-"),
            ("--quiet", arguments.quiet),
        )
        if given
    ]
    if asked and not alone:
        raise GpufixError(f"{asked[0]} leaves no room for a wizard", without_a_person(arguments))
    if arguments.output == "json" and arguments.events == "-":
        raise GpufixError("-o json and --events - both want stdout", "give --events a file")
    if alone and getattr(arguments, "ask_become_pass", False):
        raise GpufixError(
            "--ask-become-pass would ask, and nobody is there to answer",
            "let this user run sudo without a password, or name it in the inventory (ansible-vault)",
        )
    if arguments.save_answers is not None:
        if alone:
            raise GpufixError("--save-answers saves what a person answers", "leave it out with --answers and --check")
        check_new(arguments.save_answers, "--save-answers")
    if arguments.metrics_file is not None:
        check_metrics_file(arguments.metrics_file)
    _check_files_apart(arguments)


_WRITTEN = ("events", "save_answers", "metrics_file", "out")
_READ = ("answers", "plan", "kubeconfig", "inventory")


def _check_files_apart(arguments: argparse.Namespace) -> None:
    """Raises GpufixError (status 2) where what is written would be a file that another option reads or writes."""
    seen: dict[str, str] = {}
    for name in (*_READ, *_WRITTEN):
        given = getattr(arguments, name, None) or []
        for path in given if isinstance(given, list) else [given]:
            if str(path) == "-" or (name == "inventory" and str(path).endswith(",")):
                continue
            option, real = "--" + name.replace("_", "-"), os.path.realpath(path)
            if name in _WRITTEN and real in seen:
                raise GpufixError(f"{option} and {seen[real]} are the same file, {path}", "give each a file of its own")
            seen.setdefault(real, option)
    if arguments.events not in (None, "-"):
        _check_events_file(Path(arguments.events))


def _check_events_file(path: Path) -> None:
    """Events are appended to a file of events, and to nothing else."""
    try:
        if not path.is_file() or path.stat().st_size == 0:
            return
        with path.open("rb") as stream:
            begins = stream.read(6)
    except OSError as error:
        raise GpufixError(f"--events {path}: {error.strerror}", "give another file") from None
    if begins != b'{"v": ':
        raise GpufixError(f"--events {path}: it exists and holds no events", "give a new file, or one of events")


def _out(text: str) -> bool:
    """Print ``text``. A reader that went away, or a full disk, changes nothing of how the run ended: True unless the
    text was lost for another reason than the reader's."""
    if sys.stdout is None:
        return False
    try:
        print(text)
        sys.stdout.flush()
        return True
    except OSError as error:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in its buffer goes nowhere
        if not isinstance(error, BrokenPipeError):
            told = t("standard output: {why}", why=error.strerror)
            sys.stderr.write(f"gpufix: {told}\n")
        return isinstance(error, BrokenPipeError)


def answer_with(node: str, error: GpufixError) -> None:
    """Where the answer is JSON, a refusal is the answer."""
    _out(json.dumps(error_as_data(node, error), indent=2))


# --- commands --------------------------------------------------------------------------------------------------------


Work = Callable[[Session, Request, Sequence[Listener]], Result]


def recover(
    arguments: argparse.Namespace, session_of: Callable[[TerminalUi], Session], books: Sequence[Runbook]
) -> ExitStatus:
    return carry_out(arguments, session_of, books, recovery.recover)


def carry_out(
    arguments: argparse.Namespace, session_of: Callable[[TerminalUi], Session], books: Sequence[Runbook], work: Work
) -> ExitStatus:
    """Do ``work``, and leave behind what was asked for, however it ends."""
    check_options(arguments)
    attended = arguments.answers is None and not arguments.check
    if attended:
        prompts.check_terminal(
            t("run it in a terminal; without one {what_to_do}", what_to_do=without_a_person(arguments))
        )
    request = request_from(arguments, books)
    notifier = Notifier(arguments.notify) if arguments.notify else None
    ui = ui_for(arguments, attended)
    session = session_of(ui)
    stream = EventStream.open(arguments.events)
    listeners: list[Listener] = [Streaming(stream)]
    if notifier is not None:
        listeners.append(Notifying(notifier, arguments.node))
    began = time.monotonic()
    try:
        result = work(session, request, listeners)
        if not result.run:
            _tell_end(listeners, int(result.status), result.line)
    except GpufixError as error:
        _tell_end(listeners, int(error.exit_status), error.message)
        failed = Result(arguments.node, error.exit_status, error.message)
        _write_metrics(arguments, failed, time.monotonic() - began)
        raise
    except (KeyboardInterrupt, prompts.Interrupted):
        _tell_end(listeners, int(ExitStatus.INTERRUPTED), t("interrupted before the first change"))
        raise
    finally:
        ui.progress("")
        stream.close()
        if notifier is not None:
            notifier.close()
        troubles = [*(notifier.troubles if notifier is not None else ()), *([stream.broken] if stream.broken else [])]
        for trouble in troubles:
            sys.stderr.write(f"gpufix: {safe(trouble)}\n")
    _leave_behind(arguments, session, request, result, time.monotonic() - began)
    _print(arguments, result)
    if arguments.events == "-" and result.status is not ExitStatus.OK:
        sys.stderr.write(f"gpufix: {safe(result.line, limit=600)}\n")
    return result.status


def _tell_end(listeners: Sequence[Listener], status: int, line: str) -> None:
    for listener in listeners:
        listener.event("run-end", {"exit_status": status, "line": line, "verdicts": {}, "changes": []})


def _leave_behind(
    arguments: argparse.Namespace, session: Session, request: Request, result: Result, seconds: float
) -> None:
    _write_metrics(arguments, result, seconds)
    if arguments.save_answers is not None and result.run:
        book = next(book for book in request.books if book.id == result.runbook)
        values = {name: one.value for name, one in result.answers.items()}
        notes = [
            f"The answers and consents of the run {Path(result.run).name}, which ended with status {result.status:d}."
        ]
        text = saved(book, session.node, values, result.consents, notes)
        try:
            write_new(arguments.save_answers, text)
            told = t("the answers given are in {file}", file=arguments.save_answers)
            sys.stderr.write(f"gpufix: {told}\n")
        except OSError as error:  # how the run ended stays as it is
            told = t(
                "--save-answers {file}: {why}; the run's journal has the answers",
                file=arguments.save_answers,
                why=error.strerror,
            )
            sys.stderr.write(f"gpufix: {safe(told)}\n")


def _write_metrics(arguments: argparse.Namespace, result: Result, seconds: float) -> None:
    if arguments.metrics_file is None:
        return
    text = metrics_text(metrics_of(result, seconds, planning.now()))
    if trouble := write_metrics(arguments.metrics_file, text):
        sys.stderr.write(f"gpufix: {trouble}\n")


def _print(arguments: argparse.Namespace, result: Result) -> None:
    if arguments.output == "json":
        data = result.made if result.made is not None else result_as_data(result)
        _out(json.dumps(data, indent=2))
    elif arguments.events != "-":
        lines = [*result.lines, *(["", result.line] if result.made is not None else [])]
        _out("\n".join(lines[1:] if lines and not lines[0] and arguments.quiet else lines))


def ui_for(arguments: argparse.Namespace, attended: bool) -> TerminalUi:
    return TerminalUi() if attended else TerminalUi(out=sys.stderr, quiet=arguments.quiet, answer=sys.stdout)


def plan(
    arguments: argparse.Namespace, session_of: Callable[[TerminalUi], Session], books: Sequence[Runbook]
) -> ExitStatus:
    if arguments.out is not None:
        check_replaceable(arguments.out, "--out", '"gpufix-plan"', "plan")
    arguments.events = None
    _check_files_apart(arguments)
    request = request_from(arguments, books)
    ui = ui_for(arguments, attended=False)
    try:
        result = recovery.plan(session_of(ui), request)
    finally:
        ui.progress("")
    if arguments.out is not None and result.made is not None:
        _keep(replace_file, arguments.out, json.dumps(result.made, indent=2) + "\n")
    _print(arguments, result)
    return result.status


def _keep(write: Callable[[Path, str], None], path: Path, text: str) -> None:
    try:
        write(path, text)
    except OSError as error:
        raise GpufixError(f"--out {path}: {error.strerror}", "give another file") from None


def show(arguments: argparse.Namespace) -> ExitStatus:
    data = read_plan(resources.read_file(arguments.file), str(arguments.file), resources.plan_schema())
    text = (
        json.dumps(data, indent=2)
        if arguments.output == "json"
        else "\n".join(plan_data_lines(data, style_for(sys.stdout)))
    )
    return ExitStatus.OK if _out(text) else ExitStatus.USAGE


def answers(arguments: argparse.Namespace) -> ExitStatus:
    books = read_runbooks(arguments.runbooks, as_written=True)  # the file is in English, whoever writes it
    named = arguments.runbook
    if named is None and len(books) > 1:
        raise GpufixError("which runbook?", "there is: " + ", ".join(book.id for book in books))
    book = next((book for book in books if named in (None, book.id)), None)
    if book is None:
        raise GpufixError(f"no runbook {named!r}", did_you_mean(named, [one.id for one in books]))
    if arguments.out is not None:
        check_new(arguments.out, "--out")
    if arguments.schema:
        text = json.dumps(answers_schema(book), indent=2, ensure_ascii=False) + "\n"
    else:
        text = sample(book, arguments.answers_node)
    if arguments.out is None:
        return ExitStatus.OK if _out(text.removesuffix("\n")) else ExitStatus.USAGE
    _keep(write_new, arguments.out, text)
    return ExitStatus.OK
