"""What holds without a person on the real node holds in the lab: the same tests, the other world."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from operator_hands import PATIENCE, Gpufix, Wizard
from unattended import *  # noqa: F403
from unattended import EDITS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "unattended.md"


def test_the_commands_of_docs_unattended_md(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand and in their order, with the sample filled in as the page says; those with an inventory are run on
    the real node by the tests of its own."""
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    commands = [line for block in (blocks[0], blocks[-1]) for line in block.splitlines()]
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    try:
        for command in commands:
            done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=PATIENCE, check=False)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            if command.startswith("gpufix answers"):
                text = Path("answers.yml").read_text()
                for old, new in EDITS.items():
                    text = text.replace(old, new)
                Path("answers.yml").write_text(text)
    finally:
        Gpufix([]).run("lab", "down")


def test_what_a_wizard_was_answered_is_kept_for_a_run_without_one(tmp_path: Path, state: Path) -> None:
    run = Wizard("lab", "recover", "--scenario", "label-already-set", "--save-answers", "answers.yml")
    run.answer("Who owns the GPU")
    run.gate("disable-swap")
    run.gate("restart-kubelet", name="omen2")
    assert run.end() == 0, run.text
    assert re.search(r"The CUDA job on the card \([^)]*\) is alive", run.text)
    text = Path("answers.yml").read_text()
    assert "disable-swap: true" in text and "restart-kubelet: omen2" in text and "relabel" not in text
    again = Gpufix([]).run("lab", "recover", "--scenario", "label-already-set", "--answers", "answers.yml", "-q")
    assert again.returncode == 0, again.stderr
    assert "Recovered: omen2" in again.stdout
