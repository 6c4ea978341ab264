"""Arguments -> workflow. The only place where an error becomes an exit status."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from gettext import NullTranslations
from itertools import pairwise
from pathlib import Path

from gpufix import continue_command, report_command, run_command, runbook_command, runs_command, workflow
from gpufix.core.answers import NO_NAMES
from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import speaking, t
from gpufix.session import Reading, Session, read_runbooks
from gpufix.text import did_you_mean, safe
from gpufix.ui import TerminalUi, style_for
from gpufix.world import prompts
from gpufix.world.catalogs import catalog, wanted
from gpufix.world.cluster import ClusterAccess
from gpufix.world.playbooks import Access
from gpufix.world.runs import sweep

_DNS_1123 = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise GpufixError(message, f"see {self.prog} --help")


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: the look-up costs a tenth of a second."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"gpufix {version('gpufix')}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gpufix",
        description="Brings a dead GPU node back, step by step, without killing what still runs on its card.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)

    diagnose = commands.add_parser("diagnose", help="say why a node is dead, changing nothing")
    _node(diagnose)
    _access(diagnose)
    diagnose.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    diagnose.add_argument("--snapshot", metavar="DIR", type=Path, help="read this captured folder; no cluster, no host")
    diagnose.add_argument("--exit-code", action="store_true", help="exit with 3 unless the node is positively healthy")

    recover = commands.add_parser("recover", help="walk a node back to life, with a gate before each change")
    _node(recover)
    _access(recover)

    run_command.add_recover_options(recover)

    plan = commands.add_parser("plan", help="say every step that recover would take, with its dry run; changes nothing")
    _node(plan)
    _access(plan)
    run_command.add_plan_options(plan)

    resume = commands.add_parser("resume", help="go on with a run that stopped, or whose process died")
    _access(resume)
    continue_command.add_resume_options(resume)

    undo = commands.add_parser("undo", help="put back what a run changed, the newest step first")
    _access(undo)
    continue_command.add_undo_options(undo)

    show = commands.add_parser("show", help="show a plan that was written with plan --out")
    show.add_argument("file", metavar="FILE", type=Path)
    show.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")

    answers = commands.add_parser("answers", help="write a sample answers file, for a run without a person")
    answers.add_argument("runbook", metavar="RUNBOOK", nargs="?", help="default: the only one that there is")
    answers.add_argument("--node", metavar="NODE", dest="answers_node", help="fill in this node's name")
    answers.add_argument("--out", metavar="FILE", type=Path, help="write it there, to a new file (default: stdout)")
    answers.add_argument("--schema", action="store_true", help="print the JSON Schema of the file, for editors")

    runs_command.add_options(commands.add_parser("runs", help="what was run from here: list, show, prune"), _Parser)

    runbook = commands.add_parser("runbook", help="print a runbook to follow by hand, without gpufix; changes nothing")
    runbook.add_argument("node", metavar="NODE", nargs="?", help="for what is wrong with it (default: in general)")
    _access(runbook)
    runbook_command.add_options(runbook)

    report = commands.add_parser("report", help="a postmortem draft of a run, from its journal; reads nothing else")
    report_command.add_options(report)

    for command in (diagnose, recover, plan, answers, resume, undo, runbook):
        command.add_argument("--runbooks", metavar="DIR", type=Path, help="runbooks of your own instead of gpufix's")

    capture = commands.add_parser("capture", help="write what diagnose reads into a folder, without secrets")
    _node(capture)
    _access(capture)
    capture.add_argument("-o", "--output", metavar="DIR", type=Path, required=True, help="a new folder")
    for command in (diagnose, recover, plan, show, resume, undo, runbook, report):
        runs_command.add_language_option(command)
    _lab(commands.add_parser("lab", help="practise on a small model of the incident: no cluster, no root, no network"))
    return parser


def _lab(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="lab_command", metavar="COMMAND", required=True, parser_class=_Parser)
    recover = commands.add_parser("recover", help="start the lab, walk its node back to life, stop it")
    recover.add_argument("node", metavar="NODE", nargs="?", help="default: the scenario's node")
    run_command.add_recover_options(recover)
    resume = commands.add_parser("resume", help="go on with a run in the lab that is up")
    continue_command.add_resume_options(resume)
    undo = commands.add_parser("undo", help="put back what a run in the lab that is up has changed")
    continue_command.add_undo_options(undo)
    runs = commands.add_parser("runs", help="what was run in the lab: list, show, close, prune")
    runs_command.add_options(runs, _Parser)
    report = commands.add_parser("report", help="a postmortem draft of a run in the lab, from its journal")
    report_command.add_options(report)
    for command in (resume, undo, report):
        runs_command.add_language_option(command)
    up = commands.add_parser("up", help="start a lab that stays")
    serve = commands.add_parser("serve", help="be that lab, in the foreground")
    for command in (recover, up, serve):
        command.add_argument(
            "--scenario", metavar="NAME", help="see gpufix lab list, or a file of your own (default: incident)"
        )
        command.add_argument(
            "--pace",
            type=_pace,
            help="how many times as fast the lab's delays pass (default: 10)",
        )
    commands.add_parser("list", help="the scenarios")
    down = commands.add_parser("down", help="end the lab")
    status = commands.add_parser("status", help="say whether a lab is up and how its node does")
    shell = commands.add_parser("shell", help="a shell on the lab's node")
    runs_command.add_language_option(recover)
    runs_command.add_language_option(status)
    shell.add_argument("words", metavar="COMMAND", nargs=argparse.REMAINDER, help="run this instead of a shell")
    for command in (recover, resume, undo, runs, report, up, serve, down, status, shell):
        command.add_argument("--dir", type=Path, help="the lab's folder (default: gpufix/lab below XDG_STATE_HOME)")


def _pace(text: str) -> float:
    try:
        pace = float(text)
    except ValueError:
        pace = 0.0
    if not 0.1 <= pace <= 100:
        raise argparse.ArgumentTypeError("a number from 0.1 to 100")
    return pace


def _node(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="the node's name in Kubernetes")


def _access(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="the node's name in the inventory, where it is another one")
    parser.add_argument(
        "-i", "--inventory", action="append", default=[], help="Ansible inventory; default: what ansible.cfg says"
    )
    parser.add_argument("--kubeconfig", default="", help="default: KUBECONFIG, then ~/.kube/config")
    parser.add_argument("--context", default="", help="context of the kubeconfig")
    parser.add_argument(
        "-K", "--ask-become-pass", action="store_true", help="ask for the sudo password; it is never stored"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run gpufix. Returns the exit status; never raises for bad input."""
    words = list(argv) if argv is not None else sys.argv[1:]
    _say_what_can_be_said()
    with ExitStack() as language:
        return _guarded(words, language)


def _say_what_can_be_said() -> None:
    """A terminal, or a file, in an old encoding gets a "?" for what it has no letter for, and no run ends of that."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _guarded(words: Sequence[str], language: ExitStack) -> int:
    """From ``arguments`` on the language is the person's, for what ends a run too."""
    arguments: argparse.Namespace | None = None
    try:
        arguments = build_parser().parse_args(words)
        language.enter_context(speaking(_catalog(arguments)))
        return int(_run(arguments))
    except GpufixError as error:
        refused = error
    except (KeyboardInterrupt, prompts.Interrupted):
        refused = GpufixError(t("interrupted"), "", ExitStatus.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitStatus.OK)
    except Exception as error:
        if os.environ.get("GPUFIX_DEBUG"):
            traceback.print_exc()
        reason = safe(" ".join(str(error).split()), limit=300)
        refused = GpufixError(
            t("internal error: {kind}: {words}", kind=type(error).__name__, words=reason),
            t("This is a defect of gpufix. GPUFIX_DEBUG=1 shows where; the run's journal holds what was done."),
            ExitStatus.INTERNAL,
        )
    if _wants_json(words, arguments):
        named = [getattr(arguments, name, None) for name in ("node", "run")]
        run_command.answer_with(next((str(name) for name in named if name), ""), refused)
    _complain(refused)
    return int(refused.exit_status)


_PAGES = ("capture", "runbook", "report")
"""Commands whose -o names a file or a folder."""


def _wants_json(words: Sequence[str], arguments: argparse.Namespace | None) -> bool:
    """Whether the answer is JSON, also where ``words`` cannot be parsed as a whole."""
    command = next((word for word in words if word != "lab" and not word.startswith("-")), "")
    if command in _PAGES:
        return False
    if arguments is not None:
        return bool(getattr(arguments, "output", "") == "json")
    pairs = pairwise(words)
    return (
        "-ojson" in words
        or "--output=json" in words
        or any(option in ("-o", "--output") and value == "json" for option, value in pairs)
    )


def _catalog(arguments: argparse.Namespace) -> NullTranslations | None:
    """The person's; what programs read is in English, and so is what is written to be mailed or kept: a capture, whose
    reasons why something was not read are told apart by their words, and an answers file."""
    form = getattr(arguments, "format", getattr(arguments, "output", ""))  # where there is a format, output is a file
    if form == "json" or arguments.command in ("capture", "answers"):
        return None
    return catalog(getattr(arguments, "lang", None) or wanted(os.environ))


def _complain(error: GpufixError) -> None:
    sys.stderr.write(f"gpufix: {safe(error.message, limit=600)}\n")
    if error.hint:
        sys.stderr.write(f"  {safe(error.hint, limit=600)}\n")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "lab":
        return _run_lab(arguments)
    if arguments.command == "runs":
        return runs_command.run(arguments)
    if arguments.command == "report":
        return report_command.run(arguments)
    if arguments.command == "show":
        return run_command.show(arguments)
    if arguments.command == "answers":
        if arguments.answers_node is not None:
            _check_node_name(arguments.answers_node)
            if arguments.answers_node in NO_NAMES:
                raise GpufixError(
                    f"in an answers file {arguments.answers_node!r} is no node's name: it reads as a yes or a no",
                    "a node of this name cannot be recovered without a person",
                )
        return run_command.answers(arguments)
    if arguments.command in ("recover", "plan"):
        return _plan_or_recover(arguments)
    if arguments.command in ("resume", "undo"):
        arguments.node = arguments.run or ""
        return _go_on(arguments)
    if arguments.command == "runbook":
        return _print_runbook(arguments)
    _check_names(arguments)
    reading = _read(arguments)
    if arguments.command == "capture":
        workflow.capture(reading, arguments.output)
        sys.stderr.write(
            f"captured {arguments.node} into {arguments.output}: "
            f"{len(reading.snapshot.files)} files, {len(reading.snapshot.unread)} not read\n"
        )
        return ExitStatus.OK
    books = read_runbooks(arguments.runbooks)
    print(workflow.diagnosis_text(reading, books, style_for(sys.stdout), arguments.output == "json"))
    return ExitStatus.DECLINED if arguments.exit_code and workflow.sick(reading) else ExitStatus.OK


def _print_runbook(arguments: argparse.Namespace) -> ExitStatus:
    if arguments.node is not None:
        _check_names(arguments)
    runbook_command.check_options(arguments)
    books = read_runbooks(arguments.runbooks)
    return runbook_command.run(arguments, lambda: _read(arguments), books, arguments.host or arguments.node or "")


def _plan_or_recover(arguments: argparse.Namespace) -> ExitStatus:
    _check_names(arguments)
    books = read_runbooks(arguments.runbooks)  # a mistake in one is told before anything is asked or read
    run = run_command.recover if arguments.command == "recover" else run_command.plan
    return run(arguments, lambda ui: _session(arguments, ui), books)


def _go_on(arguments: argparse.Namespace) -> ExitStatus:
    books = read_runbooks(arguments.runbooks)

    def session_of(ui: TerminalUi) -> Session:
        _check_names(arguments)  # they are the journal's by now, where the command does not say them
        return _session(arguments, ui)

    return continue_command.run(arguments, session_of, books)


def _check_names(arguments: argparse.Namespace) -> None:
    _check_node_name(arguments.node)
    if arguments.host is not None:
        _check_host_name(arguments.host)


def _run_lab(arguments: argparse.Namespace) -> int:
    from gpufix.lab import commands as lab  # a fifth of a second that the other commands need not wait for

    if arguments.lab_command == "list":
        print("\n".join(lab.list_lines()))
        return ExitStatus.OK
    folder = (arguments.dir or lab.default_folder()).expanduser().resolve()
    pace = getattr(arguments, "pace", None) or lab.PACE
    if arguments.lab_command in lab.VERBS:
        try:
            return _run_in_lab(arguments, folder)
        except GpufixError as error:  # its hints name the commands as they are elsewhere
            hint = lab.in_lab(error.hint, folder)
            raise GpufixError(lab.in_lab(error.message, folder), hint, error.exit_status) from None
    if arguments.lab_command == "shell":
        return lab.shell(folder, arguments.words)
    if arguments.lab_command == "serve":
        lab.serve(folder, lab.find_scenario(arguments.scenario or "incident"), pace)
    elif arguments.lab_command == "up":
        print("\n".join(lab.up(folder, lab.find_scenario(arguments.scenario or "incident"), pace)))
    elif arguments.lab_command == "down":
        print("\n".join(lab.down(folder)))
    else:
        print("\n".join(lab.status_lines(folder)))
        return ExitStatus.OK if lab.is_up(folder) else ExitStatus.DECLINED
    return ExitStatus.OK


def _run_in_lab(arguments: argparse.Namespace, folder: Path) -> int:
    from gpufix.lab import commands as lab
    from gpufix.lab.server import environment

    if arguments.lab_command == "recover":
        return _recover_in_lab(arguments, folder)
    more = runs_command.state_words(arguments)
    arguments.words = {verb: lab.in_lab(f"gpufix {verb}", folder) + more for verb in lab.VERBS}
    arguments.state_dir = arguments.state_dir or lab.state_of(folder)
    if arguments.lab_command in ("runs", "report"):
        return runs_command.run(arguments) if arguments.lab_command == "runs" else report_command.run(arguments)
    arguments.command = arguments.lab_command
    node = lab.require_up(folder)
    os.environ.update(environment(folder, node))
    vars(arguments).update(node=arguments.run or "", host=None, inventory=[], kubeconfig="", context="")

    def session_of(ui: TerminalUi) -> Session:
        _check_names(arguments)
        return _lab_session(arguments, folder, ui, lasts=True)

    return continue_command.run(arguments, session_of, read_runbooks())


def _recover_in_lab(arguments: argparse.Namespace, folder: Path) -> ExitStatus:
    """The same walk as ``gpufix recover``, on a lab that lives as long as it, or on the one that is up."""
    from gpufix.lab import commands as lab
    from gpufix.lab.server import environment

    arguments.host = None
    attended = arguments.answers is None and not arguments.check
    if attended:
        prompts.check_terminal(
            t(
                "run it in a terminal; without one give --answers FILE (gpufix answers writes a sample), "
                "or drive the lab with gpufix lab up and gpufix lab shell COMMAND"
            )
        )
    if lab.is_up(folder):
        if arguments.scenario or arguments.pace:
            raise GpufixError(
                t("a practice lab is up in {folder} already", folder=folder),
                t(
                    "gpufix lab down ends it; without --scenario and --pace, gpufix lab recover walks the one that is "
                    "up"
                ),
            )
        arguments.node = arguments.node or lab.require_up(folder)
        _check_node_name(arguments.node)
        os.environ.update(environment(folder, arguments.node))
        return _walk_in_lab(arguments, folder, lasts=True)
    scenario = lab.find_scenario(arguments.scenario or "incident")
    arguments.node = arguments.node or scenario.node
    _check_node_name(arguments.node)
    with lab.running(folder, scenario, arguments.pace or lab.PACE) as practice:
        ui = run_command.ui_for(arguments, attended)
        title = safe(t("Practice lab, scenario {scenario}: {title}", scenario=scenario.id, title=t(scenario.title)))
        ui.say([*ui.style.wrap(ui.style.paint(title, "bold")), "", *ui.style.wrap(safe(t(scenario.summary)), 2), ""])
        status = _walk_in_lab(arguments, folder, lasts=False)
        ui.say(lab.epilogue(practice, status is ExitStatus.OK, ui.style))
    return status


def _walk_in_lab(arguments: argparse.Namespace, folder: Path, *, lasts: bool) -> ExitStatus:
    """``lasts``: the lab is there after the walk."""

    def session_of(ui: TerminalUi) -> Session:
        return _lab_session(arguments, folder, ui, lasts=lasts)

    return run_command.recover(arguments, session_of, read_runbooks())


def _lab_session(arguments: argparse.Namespace, folder: Path, ui: TerminalUi, *, lasts: bool) -> Session:
    from gpufix.lab import commands as lab

    words = {verb: lab.in_lab(f"gpufix {verb}", folder) for verb in lab.VERBS}
    state, host = runs_command.state_of(arguments), arguments.host or arguments.node
    return Session(arguments.node, host, Access(), ClusterAccess(), ui, state=state, words=words, lasts=lasts)


def _read(arguments: argparse.Namespace) -> Reading:
    if getattr(arguments, "snapshot", None) is not None:
        return workflow.read_folder(arguments.snapshot, arguments.node)
    session = _session(arguments, TerminalUi())
    reading = session.read()
    session.ui.progress("")
    workflow.require_one(reading)
    return reading


def _session(arguments: argparse.Namespace, ui: TerminalUi) -> Session:
    if stopped := sweep():
        print(
            t(
                "An earlier gpufix was killed, and its ansible-playbook was still running: it is stopped now "
                "(process {pids}). What it had begun on the host goes on there to its end.",
                pids=", ".join(map(str, stopped)),
            ),
            file=sys.stderr,
        )
    for inventory in arguments.inventory:
        if not inventory.endswith(",") and not Path(inventory).exists():
            raise GpufixError(t("no inventory {file}", file=repr(inventory)), _near_files(inventory))
    if arguments.kubeconfig and not Path(arguments.kubeconfig).expanduser().is_file():
        raise GpufixError(t("no kubeconfig {file}", file=repr(arguments.kubeconfig)), _near_files(arguments.kubeconfig))
    password = prompts.ask_password(t("sudo password on the node: ")) if arguments.ask_become_pass else None
    access = Access(tuple(_absolute(inventory) for inventory in arguments.inventory), password)
    kubeconfig = str(Path(arguments.kubeconfig).expanduser().resolve()) if arguments.kubeconfig else ""
    return Session(
        arguments.node,
        arguments.host or arguments.node,
        access,
        ClusterAccess(kubeconfig, arguments.context),
        ui,
        state=runs_command.state_of(arguments),
    )


def _absolute(inventory: str) -> str:
    return inventory if inventory.endswith(",") else str(Path(inventory).resolve())


def _near_files(path: str) -> str:
    folder = Path(path).expanduser().parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return did_you_mean(Path(path).name, names) if names else f"there is no folder {folder}"


def _check_node_name(name: str) -> None:
    if not _DNS_1123.fullmatch(name):
        raise GpufixError(
            f"{name!r} is no node name",
            "a node is named in lower-case letters, digits, '-' and '.' (DNS-1123), such as omen2",
        )


def _check_host_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.:-]{0,250}[A-Za-z0-9_])?", name):
        raise GpufixError(f"{name!r} is no inventory host name", "give one host, not a pattern")


if __name__ == "__main__":
    sys.exit(main())
