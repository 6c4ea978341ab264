"""What is left on disk after a recovery, a kill, a resume and an undo; and the lab's own commands for these."""

from __future__ import annotations

import base64
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from labnode import NODE, LabNode
from operator_hands import ENTER, PATIENCE, QUIT, Gpufix, Wizard, journal
from recoveries import PASSTHROUGH, WHO, WORKLOAD_CONFIG

PASSWORD = "xyzzy-become-word-5"
KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIMade4UpMade4UpMade4UpMade4Up\n-----END EC PRIVATE KEY-----\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a temporary folder of its own, to see all that is left there."""
    for name in ("HOME", "TMPDIR"):
        (tmp_path / name.lower()).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    return tmp_path / "home"


def with_a_key(kubeconfig: Path, path: Path) -> str:
    """Write a kubeconfig to ``path`` that has a client's key too. The token that stands in it."""
    data: dict[str, Any] = json.loads(kubeconfig.read_text())
    user = data["users"][0]["user"]
    user["client-key-data"] = base64.b64encode(KEY.encode()).decode()
    user["client-certificate-data"] = base64.b64encode(b"a certificate").decode()
    path.write_text(json.dumps(data))
    return str(user["token"])


def test_no_secret_is_left_on_disk(cluster: LabNode, state: Path, home: Path, tmp_path: Path) -> None:
    cluster.incident(PASSTHROUGH)
    mine = tmp_path / "kubeconfig-of-a-person"
    token = with_a_key(cluster.kubeconfig, mine)
    said: list[str] = []

    def start(verb: str) -> Wizard:
        run = Wizard(verb, NODE, "-i", str(cluster.inventory), "--kubeconfig", str(mine), "-K")
        run.expect("sudo password on the node: ")
        run.child.send(PASSWORD + ENTER)
        return run

    run = start("recover")
    run.answer(WHO)
    run.gate("relabel")
    run.gate("stop-vfio-manager", name=NODE)
    run.gate("disable-swap")
    cluster.until(lambda: any(one["event"] == "intent" and one["step"] == "disable-swap" for one in journal(state)),
                  "the step to begin", PATIENCE)  # fmt: skip
    run.child.kill(signal.SIGKILL)
    run.expect_end(PATIENCE)
    said.append(run.text)

    run = start("resume")
    run.answer("The run ")
    # what was begun may have come to its end on the host by itself
    run.expect(r"(disable-swap|restart-kubelet):[^\n]*\(arrow keys, Enter\)")
    if run.seen[-1].startswith("disable-swap"):
        run.child.send(ENTER)
        run.ask("restart-kubelet:")
    run.child.send(QUIT)
    assert run.end() == 3, run.text
    said.append(run.text)

    run = start("undo")
    run.gate("undo-disable-swap", name=NODE)
    run.gate("undo-relabel", name=NODE)
    assert run.end() == 0, run.text
    said.append(run.text)
    assert cluster.labels()[WORKLOAD_CONFIG] == PASSTHROUGH
    assert "The kubelet is stopped and swap is on" in " ".join(run.text.split())

    cluster.stop()
    secrets = {
        "the sudo password": PASSWORD,
        "the token": token,
        "the key": "Made4UpMade4Up",
        "the key, as the kubeconfig has it": base64.b64encode(KEY.encode()).decode()[:60],
    }
    for name, secret in secrets.items():
        assert all(secret not in text for text in said), f"{name} was shown"
        for path in tmp_path.rglob("*"):
            if path.is_file() and not path.is_symlink() and path != mine:
                assert secret.encode() not in path.read_bytes(), f"{name} is left in {path}"
    assert [path for path in (tmp_path / "tmpdir").iterdir() if path.name.startswith("gpufix")] == []


def test_a_run_in_the_lab_is_gone_on_with_undone_and_shown_by_the_lab_s_own_commands(
    state: Path, home: Path, tmp_path: Path
) -> None:
    lab = tmp_path / "my lab"
    gpufix: Callable[..., Any] = lambda *words: Gpufix([]).run("lab", *words)  # noqa: E731 - it only shortens
    here = ("--dir", str(lab))
    told = gpufix("resume", *here)
    assert told.returncode == 2 and "no practice lab is up" in told.stderr
    assert gpufix("up", *here).returncode == 0
    try:
        run = Wizard("lab", "recover", *here)
        run.answer(WHO)
        run.gate("relabel")
        run.gate("stop-vfio-manager", QUIT)
        assert run.end() == 3
        assert f"gpufix lab resume --dir '{lab}' looks again and goes on from here." in " ".join(run.text.split())
        listed = json.loads(gpufix("runs", *here, "list", "-o", "json").stdout)
        assert [one["state"] for one in listed] == ["stopped"]
        assert Gpufix([]).run("runs", "list").stdout == "no runs\n", "it is not among one's own"

        run = Wizard("lab", "resume", *here)
        run.answer(f"The run {listed[0]['run']}:")
        run.gate("stop-vfio-manager", QUIT)
        assert run.end() == 3, run.text

        run = Wizard("lab", "undo", *here)
        run.gate("undo-relabel", name=NODE)
        assert run.end() == 0, run.text
        shown = gpufix("runs", *here, "show", NODE).stdout
        assert re.search(r"began +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", shown)
        assert "undone" in gpufix("runs", *here, "list").stdout
        nothing = gpufix("undo", *here, NODE, "--check")
        assert nothing.returncode == 2
        assert f"is an undo itself: gpufix lab recover --dir '{lab}' {NODE} is the way back" in nothing.stderr

        run = Wizard("lab", "recover", *here)
        run.answer(WHO)
        run.gate("relabel")
        run.gate("stop-vfio-manager", QUIT)
        assert run.end() == 3
    finally:
        assert gpufix("down", *here).returncode == 0
    states = [one["state"] for one in json.loads(gpufix("runs", *here, "list", "-o", "json").stdout)]
    assert states == ["undone", "finished", "finished"], "a run ends with its lab"
    assert "# " in gpufix("report", *here, listed[0]["run"]).stdout
    assert gpufix("runs", *here, "prune", "--keep", "0").stdout.endswith("3 pruned\n")
