"""Writes the screens in README.md and docs/*.md: after ``<!-- screen: COMMAND -->`` comes that command's output.

    python docs/make_screens.py           rewrite them
    python docs/make_screens.py --check   fail where one is not what the command prints now

Commands run from the repository's root with the gpufix that is installed beside this Python.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCREEN = re.compile(r"(<!-- screen: (?P<command>[^\n]+?) -->\n```text\n)(?P<body>(?:(?!```).*\n)*?)(```)")


def output(command: str) -> str:
    words = shlex.split(command)
    if words[0] != "gpufix":
        raise SystemExit(f"only gpufix is run here, not {command!r}")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return f"$ {command}\n{(done.stdout + done.stderr).rstrip()}"


def rewritten(text: str) -> str:
    return SCREEN.sub(lambda found: found[1] + output(found["command"]) + "\n" + found[4], text)


def main() -> int:
    stale = 0
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        before = path.read_text(encoding="utf-8")
        after = rewritten(before)
        if before == after:
            continue
        if "--check" in sys.argv[1:]:
            stale += 1
            name = str(path.relative_to(ROOT))
            sys.stderr.writelines(
                difflib.unified_diff(before.splitlines(True), after.splitlines(True), name, "now", n=1)
            )
        else:
            path.write_text(after, encoding="utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
