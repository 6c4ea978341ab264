"""Asks a person. The only importer of questionary. Knows nothing of runbooks: it shows choices and brings one back."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import t

MIN_COLUMNS = 60
"""Narrower than this, diffs and prompts wrap until they cannot be read."""

if TYPE_CHECKING:  # a tenth of a second that only questions need
    from prompt_toolkit.application import Application


@dataclass(frozen=True, slots=True)
class Option:
    value: str
    label: str


class Interrupted(Exception):
    """Ctrl-C, Ctrl-D or SIGTERM at a prompt."""


def check_terminal(unattended: str) -> None:
    """Raises GpufixError (status 2) where no person can be asked; ``unattended`` names the way that needs none."""
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):  # None: it was closed
        raise GpufixError(t("no terminal: the wizard has nobody to ask"), unattended)
    if os.environ.get("TERM", "") == "dumb":
        raise GpufixError(t("TERM=dumb: this terminal cannot show the wizard"), unattended)
    columns = shutil.get_terminal_size().columns
    if columns < MIN_COLUMNS:
        raise GpufixError(
            t("the terminal is {columns} columns wide; the wizard needs {least}", columns=columns, least=MIN_COLUMNS),
            t("make it wider and run this again"),
        )


def _forget_keys() -> None:
    """Throw away what was typed before the question stood there: a key pressed while a step ran is no consent."""
    from prompt_toolkit.application.current import get_app_session
    from prompt_toolkit.input.typeahead import clear_typeahead

    clear_typeahead(get_app_session().input)
    with suppress(termios.error, OSError, ValueError):  # no terminal: then nobody types
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


@contextmanager
def _ended_by_sigterm(application: Application[Any]) -> Iterator[None]:
    """SIGTERM is as Ctrl-C while a question stands: nothing is under way that could be brought to its end first, and to
    die of it would leave the terminal without echo. Raises Interrupted for all of them.

    The question is told to end by its own loop. An exception out of the handler may come up anywhere in it, also where
    prompt_toolkit takes it for a defect and leaves the terminal as it is.
    """

    heard: list[bool] = []

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not cut the tidying up short
        heard.append(True)
        if application.loop is None:
            raise KeyboardInterrupt  # it does not stand yet, or not any more
        application.loop.call_soon_threadsafe(leave)

    def leave() -> None:
        if application.future is not None and not application.future.done():
            application.exit(exception=KeyboardInterrupt())

    mine = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, end) if mine else None
    try:
        yield
        if heard:  # the question was answered in the same moment: to be told to end counts for more
            raise KeyboardInterrupt
    except (KeyboardInterrupt, EOFError):
        raise Interrupted from None
    finally:
        if mine:
            signal.signal(signal.SIGTERM, before)


def ask_choice(message: str, options: Sequence[Option], default: str) -> str:
    """The value of the chosen option. Raises Interrupted."""
    import questionary

    _forget_keys()
    choices = [questionary.Choice(option.label, value=option.value) for option in options]
    question = questionary.select(
        message, choices=choices, default=default, qmark="?", instruction=t("(arrow keys, Enter)")
    )
    with _ended_by_sigterm(question.application):
        answer = question.unsafe_ask()
    return str(answer)


def ask_text(message: str) -> str:
    """A line of text. Raises Interrupted."""
    import questionary

    _forget_keys()
    question = questionary.text(message, qmark="?")
    with _ended_by_sigterm(question.application):
        answer = question.unsafe_ask()
    return str(answer).strip()


def ask_password(message: str) -> str:
    """A password, typed without echo and kept in memory only. Raises GpufixError without a terminal."""
    try:
        if sys.stdin is None or not sys.stdin.isatty():  # getpass would read it from a pipe, with a warning
            raise EOFError
        return getpass.getpass(message)
    except (EOFError, OSError):
        raise GpufixError(
            t("no terminal to type the password on"),
            t("use passwordless sudo for an unattended run"),
            ExitStatus.USAGE,
        ) from None
    except KeyboardInterrupt:
        raise Interrupted from None
