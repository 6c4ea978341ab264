"""A healthy node is told positively, in each mode; a capture of it tells the same without cluster and host; and the
README's commands do what it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from node import CONTAINER, PASSTHROUGH, RealNode
from operator_hands import ENTER, Gpufix, Wizard

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mode", [CONTAINER, PASSTHROUGH])
def test_a_healthy_node_and_its_capture(cluster: RealNode, gpufix: Gpufix, tmp_path: Path, mode: str) -> None:
    cluster.reset(mode, vms=False)  # type: ignore[arg-type]
    data = gpufix.diagnose()
    assert (data["root_cause"]["id"], data["root_cause"]["status"]) == ("healthy", "confirmed"), data["root_cause"]
    assert {link["status"] for link in data["chain"]} == {"refuted"}
    assert all(link["evidence"] for link in data["chain"])
    assert data["verdicts"]["node"]["status"] == "well"
    assert data["runbook"] is None

    captured = tmp_path / f"realnode-{mode}-healthy"
    done = gpufix.run("capture", "omen2", "-o", str(captured))
    assert done.returncode == 0, done.stderr
    replayed = gpufix.run("diagnose", "omen2", "--snapshot", str(captured), "-o", "json", access=[])
    assert replayed.returncode == 0, replayed.stderr
    assert json.loads(replayed.stdout)["root_cause"] == gpufix_root(data, replayed.stdout)
    kubeconfig = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    secrets = [kubeconfig["users"][0]["user"]["client-key-data"][:60], "PRIVATE KEY-----\n"]
    for path in captured.rglob("*"):
        if path.is_file():
            text = path.read_text(errors="surrogateescape")
            assert not any(secret in text for secret in secrets), path
    if keep := os.environ.get("GPUFIX_KEEP_CAPTURES"):
        shutil.copytree(captured, Path(keep) / captured.name, dirs_exist_ok=True)


def gpufix_root(live: dict[str, object], replayed: str) -> object:
    """The live root cause, with the evidence of the capture: line numbers and times differ between two reads."""
    root = dict(live["root_cause"])  # type: ignore[call-overload]
    root["evidence"] = json.loads(replayed)["root_cause"]["evidence"]
    return root


def readme_commands() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"## On a real node\n\n```console\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return [line.split("  #")[0].strip() for line in block[1].splitlines()]


def test_the_readme_s_commands_on_a_real_node(
    cluster: RealNode, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.incident(CONTAINER)
    install, copy, *rest = readme_commands()
    assert install == "pip install ."  # what tests/wheel.sh does with the wheel
    shutil.copy(ROOT / "inventory.example", tmp_path)
    subprocess.run(copy, shell=True, check=True, cwd=tmp_path)
    shutil.copy(cluster.inventory, tmp_path / "inventory")  # "put your node in"
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for command in rest:
        words = command.split()
        if words[1] == "recover":
            run = Wizard(*words[1:])
            run.answer("Who owns the GPU", ENTER)
            run.gate("disable-swap")
            run.gate("restart-kubelet", name="omen2")
            assert run.end() == 0, run.text
        else:
            done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert (tmp_path / "incident" / "meta.yml").is_file()
    assert cluster.is_ready()


def test_ctrl_c_once_finishes_the_step_and_stops(cluster: RealNode, wizard: Callable[..., Wizard]) -> None:
    cluster.incident(CONTAINER)
    run = wizard()
    run.answer("Who owns the GPU")
    run.gate("disable-swap")
    run.expect("applying disable-swap.yml")
    run.child.sendintr()
    run.expect("Stopping after this step, as asked")
    assert run.end() == 130, run.text
    assert "The kubelet is stopped and stays stopped" in run.text
    assert cluster.unit_state().split("/")[0] in ("inactive", "failed")


def test_ctrl_c_at_a_gate_changes_nothing(cluster: RealNode, wizard: Callable[..., Wizard]) -> None:
    cluster.incident(CONTAINER)
    run = wizard()
    run.answer("Who owns the GPU")
    run.ask("disable-swap:")
    run.child.sendintr()
    assert run.end() == 130, run.text
    assert "Nothing was changed" in run.text
    cluster.stays_refused()


def test_ctrl_c_twice_kills_the_step_and_says_that_its_state_is_unknown(
    cluster: RealNode, wizard: Callable[..., Wizard], state: Path
) -> None:
    cluster.incident(CONTAINER)
    run = wizard()
    run.answer("Who owns the GPU")
    run.gate("disable-swap")
    run.expect("applying disable-swap.yml")
    run.child.sendintr()
    run.expect("Stopping after this step, as asked")
    run.child.sendintr()
    assert run.end() == 130, run.text
    assert "state unknown" in run.text or "stays stopped" in run.text
    (path,) = state.glob("gpufix/runs/*/run.jsonl")
    assert json.loads(path.read_text().splitlines()[-1])["event"] == "run-end"
