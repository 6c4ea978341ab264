"""Every scenario, walked with every default and every consent: it ends as its own file says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from operator_hands import ENTER, PATIENCE, QUIT, Gpufix, Wizard

from gpufix.errors import GpufixError
from gpufix.lab import commands
from gpufix.lab.scenario import Scenario
from gpufix.lab.server import Lab

SCENARIOS = {one.id: one for one in commands.scenarios()}
DESTRUCTIVE = ("stop-vfio-manager", "restart-kubelet")


@pytest.fixture
def lab_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the lab will be; with a home and a temporary folder of its own, to see what is left there."""
    for name, folder in (("XDG_STATE_HOME", "state"), ("HOME", "home"), ("TMPDIR", "tmp")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "state" / "gpufix" / "lab"


def walk(run: Wizard, scenario: Scenario) -> int:
    """Answer whatever is asked: the defaults, the node's name, and quit where the scenario says so."""
    while True:
        found = run.child.expect(
            [r"[^\n]*\(arrow keys, Enter\)", "Type the node's name to apply", pexpect.EOF], timeout=PATIENCE
        )
        run.seen += [run.child.before, run.child.after if found < 2 else ""]
        if found == 2:
            run.child.close()
            return int(run.child.exitstatus if run.child.exitstatus is not None else -1)
        quits = bool(scenario.expect.quit_at) and f"{scenario.expect.quit_at}:" in run.child.after
        run.child.send("omen2" + ENTER if found == 1 else QUIT if quits else ENTER)


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_scenario_ends_as_its_file_says(name: str, lab_folder: Path) -> None:
    scenario = SCENARIOS[name]
    machine = [Path("/etc/fstab")]
    if "GPUFIX_OTHERS_SWAP" not in os.environ:  # set where something else on this machine turns swap on and off
        machine.append(Path("/proc/swaps"))
    before = [path.read_bytes() for path in machine if path.exists()]
    run = Wizard("lab", "recover", "--scenario", name)
    status = walk(run, scenario)
    assert status == scenario.expect.recover, run.text
    assert f"Root cause: {scenario.expect.root_cause}" in run.text
    job = re.search(r"The CUDA job on the card \([^)]*\) is (\w+)", run.text)
    assert (job[1] if job else "none") == scenario.expect.job
    assert "gpufix recover omen2 -i inventory" in run.text, "what a real recovery needs next"
    assert not (lab_folder / "unknown.log").exists(), (lab_folder / "unknown.log").read_text()
    assert not (lab_folder / "token").exists(), "no credential is left"
    assert not (lab_folder / "kubeconfig").exists()
    assert [path.read_bytes() for path in machine if path.exists()] == before, "this machine's own fstab and swap"
    for folder in (Path.home(), Path(os.environ["TMPDIR"])):
        assert list(folder.iterdir()) == [], "nothing outside the lab's folder is touched"
    assert {path.name for path in lab_folder.parent.iterdir()} == {"lab"}


def test_the_rest_of_the_files_say_what_to_try() -> None:
    assert {
        "incident",
        "label-already-set",
        "too-little-memory",
        "swap-from-a-unit",
        "another-reason",
        "wrong-order",
    } <= set(SCENARIOS)
    assert {"no-operator", "healthy", "job-killed", "old-kubelet"} <= set(SCENARIOS)
    assert all(one.title and one.summary for one in SCENARIOS.values())


# --- by hand ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def wrong_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.chdir(tmp_path)
    with commands.running(tmp_path / "lab", SCENARIOS["wrong-order"], 10.0) as lab:
        yield lab
        assert lab.unknown == []


def shell(lab: Lab, command: str, capfd: pytest.CaptureFixture[str]) -> str:
    capfd.readouterr()
    commands.shell(lab.folder, [command])
    return capfd.readouterr().out


def test_the_wrong_order_by_hand_kills_the_job_and_diagnose_tells_it(
    wrong_order: Lab, capfd: pytest.CaptureFixture[str]
) -> None:
    lab = wrong_order
    assert "python3" in shell(lab, "nvidia-smi", capfd)
    assert shell(lab, "systemctl is-active cuda-train", capfd) == "active\n"
    shell(lab, "swapoff -a; systemctl restart kubelet", capfd)
    for _look in range(600):
        if shell(lab, "systemctl is-active cuda-train", capfd) == "failed\n":
            break
    assert shell(lab, "systemctl is-active cuda-train", capfd) == "failed\n"
    assert "No devices were found" in shell(lab, "nvidia-smi", capfd)
    assert "non-zero usage count" in shell(lab, "dmesg", capfd)
    done = Gpufix([]).run("diagnose", "omen2", "-o", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert any("taken from the nvidia driver while a process used it" in warning for warning in told["warnings"])
    assert any("host/dmesg" in warning for warning in told["warnings"])


# --- up, down and mistakes -------------------------------------------------------------------------------------------


def test_up_status_shell_recover_and_down(lab_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gpufix = Gpufix([])
    none = gpufix.run("lab", "status")
    assert "No practice lab is up" in none.stdout and none.returncode == 3
    up = gpufix.run("lab", "up", "--scenario", "too-little-memory")
    assert up.returncode == 0, up.stderr
    try:
        told = gpufix.run("lab", "status")
        status = told.stdout
        assert told.returncode == 0
        assert "omen2: Ready=Unknown, kubelet activating, swap on" in status
        again = gpufix.run("lab", "up")
        assert again.returncode == 2
        assert "is up in" in again.stderr and "gpufix lab down" in again.stderr
        seen = gpufix.run("lab", "shell", "swapon --show; cat etc/fstab; echo $KUBECONFIG")
        assert "/swapfile" in seen.stdout and "/swapfile none swap sw 0 0" in seen.stdout
        assert gpufix.run("lab", "shell", "exit 7").returncode == 7
        diagnosed = gpufix.run("lab", "shell", "gpufix diagnose omen2 -o json")
        assert json.loads(diagnosed.stdout)["root_cause"]["id"] == "swap-on"
        paced = Wizard("lab", "recover", "--pace", "20")
        assert paced.end() == 2 and "without --scenario and --pace" in paced.text
        run = Wizard("lab", "recover")
        assert walk(run, SCENARIOS["too-little-memory"]) == 4, run.text
        assert "container" in gpufix.run("lab", "status").stdout, "the relabel was done before swap was looked at"
    finally:
        assert "down" in gpufix.run("lab", "down").stdout
    assert "No practice lab is up" in gpufix.run("lab", "down").stdout


def test_down_does_not_end_the_lab_of_a_walk(wrong_order: Lab) -> None:
    with pytest.raises(GpufixError, match="belongs to a gpufix lab recover that runs"):
        commands.down(wrong_order.folder)
    assert commands.is_up(wrong_order.folder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lab", "recover"], ["no terminal", "gpufix lab shell"]),
        (["lab", "up", "--scenario", "incidnet"], ["no scenario 'incidnet'", "incident"]),
        (["lab", "up", "--scenario", "missing.yml"], ["missing.yml"]),
        (["lab", "up", "--pace", "0"], ["--pace"]),
        (["lab", "shell"], ["no practice lab is up", "gpufix lab up"]),
        (["lab", "up", "--dir", "mine"], ["exists and is no practice lab"]),
        (["lab"], ["required"]),
    ],
)
def test_a_mistake_is_one_line_and_a_hint(arguments: list[str], words: list[str], lab_folder: Path) -> None:
    mine = Path("mine")
    mine.mkdir()
    (mine / "lab.json").write_text('{"results": "somebody else\'s"}')
    (mine / "thesis.txt").write_text("years of work")
    done = Gpufix([]).run(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 2, done.stderr
    assert (mine / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 1\nhistroy: []\n", ["own.yml:2", "unknown key 'histroy'", "history"]),
        ("history:\n  - wiat: 3min\n", ["own.yml:2", "unknown key 'wiat'", "wait"]),
        ("history:\n  - wait: 3 minutes\n", ["own.yml:2", "wait"]),
        ("history:\n  - run: swapoff /nowhere\n", ["own.yml:2: history, step 1 (run)", "swapoff: /nowhere"]),
        ("history:\n  - wait: 800000d\n", ["own.yml: history:", "too long"]),
        ("history:\n  - write: {path: /etc/fstab/x, text: a}\n", ["/etc/fstab/x: "]),
        ("history:\n  - write: {path: /etc/x, text: link}\n", ["step 1 (write)", "own word"]),
        ("history:\n  - run: fdisk -l\n", ["step 1 (run)", "does not model: fdisk -l"]),
        ("node: omen9\nhistory: []\n", ["no node 'omen9'", "omen2"]),
        ("history: [\n", ["own.yml:", "not valid YAML"]),
    ],
)
def test_a_scenario_with_a_mistake_names_the_place(text: str, words: list[str], lab_folder: Path) -> None:
    whole = "id: own\ntitle: t\nsummary: s\nexpect: {root_cause: healthy, recover: 0, job: none}\n"
    head = "" if text.startswith("version") else "version: 1\n"
    text = text.replace("\n", "\n", 1)
    Path("own.yml").write_text(text + head + whole if not text.startswith("history: [") else text)
    done = Gpufix([]).run("lab", "up", "--scenario", "own.yml")
    assert done.returncode in (1, 2), done.stdout
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr


def test_a_scenario_is_added_by_writing_one_file(lab_folder: Path) -> None:
    Path("own.yml").write_text(
        "version: 1\nid: own\ntitle: t\nsummary: s\nexpect: {root_cause: swap-on, recover: 0, job: none}\n"
        "history:\n  - wait: 3min\n  - swapfile: {path: /s, size_gib: 1, used_mib: 1}\n  - run: swapon /s\n"
        "  - run: systemctl restart kubelet\n  - wait: 2min\n"
    )
    gpufix = Gpufix([])
    up = gpufix.run("lab", "up", "--scenario", "own.yml")
    try:
        assert up.returncode == 0, up.stderr
        diagnosed = gpufix.run("lab", "shell", "gpufix diagnose omen2 -o json")
        assert json.loads(diagnosed.stdout)["root_cause"]["id"] == "swap-on", diagnosed.stderr
    finally:
        gpufix.run("lab", "down")


def test_the_commands_of_docs_lab_md(lab_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those "by hand", as they stand and in their order; the walks of the page are walked above."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "lab.md").read_text(encoding="utf-8")
    block = re.search(r"## By hand\n\n```console\n(.*?)```", page, re.DOTALL)
    assert block is not None
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    commands_there = block[1].splitlines()
    try:
        for command in commands_there:
            done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=PATIENCE, check=False)
            expected = 3 if "systemctl status" in command else 0  # as systemctl says it of a unit that is not active
            assert done.returncode == expected, f"{command}\n{done.stdout}{done.stderr}"
    finally:
        Gpufix([]).run("lab", "down")
    assert commands_there[-1] == "gpufix lab down"
