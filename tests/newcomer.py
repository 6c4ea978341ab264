"""Plays the newcomer: runs tests/fresh_root.sh and answers the wizard of the README's first command with its defaults.

    python tests/newcomer.py

Prints what the newcomer sees and how long each command took. The exit status is the script's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pexpect

SCRIPT = Path(__file__).resolve().parent / "fresh_root.sh"
PATIENCE = 1800
"""Seconds: the install, and then all the tests."""


def main() -> int:
    child = pexpect.spawn(
        str(SCRIPT), env={**os.environ, "FRESH_ROOT_TTY": "1"}, encoding="utf-8", codec_errors="replace",
        timeout=PATIENCE, dimensions=(50, 120), echo=False,
    )  # fmt: skip
    child.logfile_read = sys.stdout
    recovered = False
    while True:
        asked = child.expect(
            [
                r"\(arrow keys, Enter\)",
                "Type the node's name to apply",
                "Recovered: omen2 is Ready and stays so",
                pexpect.EOF,
            ]
        )
        if asked == 3:
            break
        recovered |= asked == 2
        if asked < 2:
            child.send("\r" if asked == 0 else "omen2\r")
    child.close()
    if not recovered:
        sys.stdout.write("\nnewcomer: the first command did not recover the node\n")
    return int(child.exitstatus or 0) or int(not recovered) if child.signalstatus is None else 1


if __name__ == "__main__":
    sys.exit(main())
