"""The door to Ansible, through the real ansible-runner: a dry run applies nothing, and nothing is left behind."""

from __future__ import annotations

import locale
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from gpufix.core.fold import Trouble, finish, fold
from gpufix.errors import GpufixError
from gpufix.world import playbooks
from gpufix.world.playbooks import Access, PlaybookRunner
from gpufix.world.runs import sweep

LOCAL = "omen2 ansible_connection=local ansible_python_interpreter={{ansible_playbook_python}}\n"
TOUCH = """
- hosts: omen2
  gather_facts: false
  tasks:
    - name: Write the file
      ansible.builtin.copy: {content: "x\\n", dest: "{{ gpufix_dest }}", mode: "0600"}
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlaybookRunner:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    inventory = tmp_path / "inventory"
    inventory.write_text(LOCAL)
    return PlaybookRunner(Access((str(inventory),)))


def play(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "play.yml"
    path.write_text(text)
    return path


def test_a_dry_run_shows_and_applies_nothing_and_the_run_after_it_applies(
    runner: PlaybookRunner, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    book = play(tmp_path, TOUCH)
    preview = finish(
        fold((run := runner.run(book, {"gpufix_dest": str(target)}, check=True)).events), run.return_code, "omen2"
    )
    assert preview.ok
    assert preview.changed
    assert preview.tasks[0].diffs[0]["after"] == "x\n"
    assert not target.exists()
    applied = finish(fold((run := runner.run(book, {"gpufix_dest": str(target)})).events), run.return_code, "omen2")
    assert applied.ok
    assert target.read_text() == "x\n"
    assert list((tmp_path / "scratch").iterdir()) == [], "ansible-runner's folder holds the environment; it must go"


def test_no_such_host_is_no_success(runner: PlaybookRunner, tmp_path: Path) -> None:
    run = runner.run(play(tmp_path, TOUCH.replace("hosts: omen2", "hosts: omen7")), {"gpufix_dest": "/nowhere"})
    assert finish(fold(run.events), run.return_code, "omen7").trouble is Trouble.NO_HOST


def test_template_marks_are_never_passed_on(runner: PlaybookRunner, tmp_path: Path) -> None:
    with pytest.raises(GpufixError, match="template marks"):
        runner.run(play(tmp_path, TOUCH), {"gpufix_dest": "{{ lookup('pipe', 'id') }}"})


def test_a_kill_ends_the_play_and_says_so(runner: PlaybookRunner, tmp_path: Path) -> None:
    began = time.monotonic()
    runner.kill = lambda: True
    book = play(tmp_path, "- hosts: omen2\n  gather_facts: false\n  tasks:\n    - ansible.builtin.command: sleep 60\n")
    assert runner.run(book, {}).killed
    assert time.monotonic() - began < 30


def test_a_broken_playbook_says_why(runner: PlaybookRunner, tmp_path: Path) -> None:
    run = runner.run(play(tmp_path, "- hosts: omen2\n  tasks:\n    - no_such_module:\n"), {})
    result = finish(fold(run.events), run.return_code, "omen2")
    assert not result.ok
    assert "no_such_module" in result.message


@pytest.mark.parametrize(
    ("config", "environment", "expected"),
    [
        (None, None, "True"),
        ("[defaults]\nhost_key_checking = False\n", None, "False"),
        ("[defaults]\nforks = 7\n", None, "True"),
        ("not an ini file", None, "True"),
        ("[defaults]\nhost_key_checking = False\n", "True", "True"),
    ],
)
def test_host_key_checking_is_the_operator_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str | None, environment: str | None, expected: str
) -> None:
    monkeypatch.delenv("ANSIBLE_HOST_KEY_CHECKING", raising=False)
    monkeypatch.setenv("ANSIBLE_CONFIG", str(tmp_path / "ansible.cfg"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    if config is not None:
        (tmp_path / "ansible.cfg").write_text(config)
    if environment is not None:
        monkeypatch.setenv("ANSIBLE_HOST_KEY_CHECKING", environment)
    assert playbooks.ansible_environment(10)["ANSIBLE_HOST_KEY_CHECKING"] == expected


def test_the_become_password_is_typed_and_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    inventory = tmp_path / "inventory"
    inventory.write_text(LOCAL)
    password = "s3cr3t-become-word"
    runner = PlaybookRunner(Access((str(inventory),), become_password=password))
    assert password not in repr(runner)
    seen: list[str] = []

    def look(event: object) -> None:
        for path in folder.rglob("*"):
            try:  # ansible-runner's own files come and go while they are looked at
                if path.is_file() and password.encode() in path.read_bytes():
                    seen.append(str(path))
            except FileNotFoundError:
                continue
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if password.encode() in process.read_bytes() and process.parent.name != str(os.getpid()):
                    seen.append(str(process))
            except OSError:
                continue

    run = runner.run(play(tmp_path, TOUCH), {"gpufix_dest": str(tmp_path / "t")}, on_event=look)
    assert run.return_code == 0
    assert seen == []
    assert list(folder.iterdir()) == []


WAITS = """
- hosts: omen2
  gather_facts: false
  tasks:
    - name: Wait for a word
      ansible.builtin.command: {cmd: "cat {{ gpufix_fifo }}"}
    - name: Say that it went on
      ansible.builtin.copy: {content: "x\\n", dest: "{{ gpufix_dest }}", mode: "0600"}
"""
IN_A_PROCESS = """
import sys, tempfile
from pathlib import Path
from gpufix.world.playbooks import Access, PlaybookRunner
tempfile.tempdir = sys.argv[1]
events = lambda event: print(event.get("event"), flush=True)
variables = {"gpufix_fifo": sys.argv[4], "gpufix_dest": sys.argv[5]}
PlaybookRunner(Access((sys.argv[2],))).run(Path(sys.argv[3]), variables, on_event=events)
"""


def ended(process: int) -> bool:
    """Whether a process that was killed is gone, or goes within a while."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    with os.fdopen(handle) as file:
        return bool(select.select([file], [], [], 30)[0])


def test_the_playbook_of_a_killed_gpufix_begins_no_further_task(runner: PlaybookRunner, tmp_path: Path) -> None:
    """Killed while a task was at work: ansible-playbook lives on, until the next gpufix starts and stops it."""
    scratch, fifo, target = tmp_path / "scratch", tmp_path / "fifo", tmp_path / "target"
    os.mkfifo(fifo)
    (inventory,) = runner.access.inventory
    names = [scratch, inventory, play(tmp_path, WAITS), fifo, target]
    gpufix = subprocess.Popen([sys.executable, "-c", IN_A_PROCESS, *map(str, names)], stdout=subprocess.PIPE, text=True)
    assert gpufix.stdout is not None
    for line in gpufix.stdout:
        if line.strip() == "runner_on_start":
            break
    with fifo.open("w"):  # opened by both: the task is at work
        gpufix.kill()
        gpufix.wait()
        (folder,) = scratch.iterdir()
        stopped = sweep()
        assert stopped
        assert all(ended(process) for process in stopped)
        assert not folder.exists()
    assert not target.exists()
    assert sweep() == []


@pytest.mark.parametrize("name", ["xx_XX.UTF-8", "C", "POSIX", ""])
def test_a_locale_that_ansible_refuses_is_no_node_that_does_not_answer(
    runner: PlaybookRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for variable in ("LC_ALL", "LC_CTYPE", "LANG", "LANGUAGE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("LC_ALL", name)
    book = tmp_path / "touch.yml"
    book.write_text(TOUCH)
    before = locale.setlocale(locale.LC_ALL)
    done = runner.run(book, {"gpufix_dest": str(tmp_path / "made")}, check=True)
    assert done.return_code == 0, done.events
    assert locale.setlocale(locale.LC_ALL) == before


def test_a_locale_that_works_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert "LC_ALL" not in playbooks.ansible_environment(10)
