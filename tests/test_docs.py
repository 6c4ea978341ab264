"""README and docs say what is so: screens are what the commands print, commands exist, links lead somewhere."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpufix.cli import build_parser
from gpufix.errors import ExitStatus

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_screen_is_what_its_command_prints() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make_screens.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"run python docs/make_screens.py\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.splitlines():
                found += [
                    (page.name, part.split("#")[0].strip()) for part in line.split("&&") if part.split("#")[0].strip()
                ]
    return found


@pytest.mark.parametrize(("page", "command"), commands(), ids=lambda value: value[:40])
def test_every_command_in_the_docs_is_one_that_can_be_run(page: str, command: str) -> None:
    """Parses; what they do is run elsewhere: the README's in CI as they stand, those of a real node in tests/e2e."""
    words = shlex.split(command)
    name = Path(words[0]).name
    if name == "gpufix":
        build_parser().parse_args(words[1:])
    elif name in ("run", "build_kubernetes.sh", "realnode.sh", "old-kubelet.sh"):
        assert (ROOT / words[0]).is_file()
    elif name.startswith("python") and words[1].endswith(".py"):
        assert (ROOT / words[1]).is_file()
    elif name == "ansible-playbook":
        assert (ROOT / next(word for word in words if word.startswith("playbooks/"))).is_file()
    else:
        assert name in ("python3", "pip", "pytest", "cp"), f"{page}: {command}"


def test_the_readme_lists_the_exit_statuses_that_there_are() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = {int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert listed == {int(status) for status in ExitStatus}


def test_nothing_names_a_machine() -> None:
    for path in _own_files():
        if path.is_file() and path.stat().st_size < 500_000:
            text = path.read_text(encoding="utf-8", errors="ignore")
            for word in ("/" + "work/", "/" + "root/.pyenv", "." + "library/"):
                assert word not in text, f"{path.relative_to(ROOT)} names {word}"


def _own_files() -> list[Path]:
    """What git has and would take; in an unpacked archive, or where there is no git: all but what installing leaves."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "ls-files", "-coz", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return [ROOT / name for name in listed.split("\0") if name]
    left = {".git", ".venv", "__pycache__", ".pytest_cache", ".hypothesis", "build", "dist"}
    files = [path for path in ROOT.rglob("*") if not left & set(path.relative_to(ROOT).parts)]
    assert len(files) > 100
    return files


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_is_closed(page: Path) -> None:
    fences = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("```")]
    assert all(fence == "```" for fence in fences[1::2])
    assert len(fences) % 2 == 0
