"""The one exception that people are meant to see, and the exit statuses it can carry."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """Documented and stable (README, "Exit statuses")."""

    OK = 0
    """Recovered, or nothing to do; for diagnose: a diagnosis was made, whatever it found."""
    INTERNAL = 1
    USAGE = 2
    DECLINED = 3
    """The operator declined, or no runbook fits; with ``diagnose --exit-code``: the node is sick."""
    BLOCKED = 4
    STEP_FAILED = 5
    NOT_IN_TIME = 6
    UNREACHABLE = 7
    LOCKED = 8
    INTERRUPTED = 130


class GpufixError(Exception):
    """Something the operator can act on: one line that says what is wrong and where, and a hint that says what to do.

    Only ``cli`` turns it into text and an exit status. The message may quote hostile text; the printer makes it safe.
    """

    def __init__(self, message: str, hint: str = "", exit_status: ExitStatus = ExitStatus.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_status = exit_status
