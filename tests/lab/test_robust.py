"""The lab lives through whatever is done to it, and reaches nothing of the machine that it runs on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from labnode import scenario_of

from gpufix.core.lease import NAMESPACE, Holder, lease_name, taken
from gpufix.errors import ExitStatus, GpufixError
from gpufix.lab import commands
from gpufix.lab.server import Lab, read_mark
from gpufix.lab.tools import TOOLS
from gpufix.world.journal import operator, process_mark


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.chdir(tmp_path)
    with commands.running(tmp_path / "lab", scenario_of("wait: 1min"), 10.0) as lab:
        yield lab


def shell(lab: Lab, command: str) -> subprocess.CompletedProcess[str]:
    """As in gpufix lab shell, with bash where it is there."""
    return subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=lab.folder / "nodes" / lab.node,
        env=commands.shell_environment(lab.folder, lab.node),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def patch(lab: Lab, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    token = (lab.folder / "token").read_text()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
    request = urllib.request.Request(lab.api.url + path, json.dumps(body).encode(), headers, method="PATCH")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


# --- nothing of this machine is reached ------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_every_tool_in_the_shell_is_the_labs_own(lab: Lab, tool: str) -> None:
    found = shell(lab, f"command -v {tool}").stdout.strip()
    assert Path(found).is_relative_to(lab.folder)


def test_sudo_runs_the_labs_tools_and_no_other(lab: Lab) -> None:
    assert shell(lab, "sudo systemctl is-active kubelet").stdout == "active\n"
    done = shell(lab, "sudo touch /tmp/x")
    assert done.returncode == 1 and "root here already" in done.stderr
    assert shell(lab, "mkswap /dev/null").returncode == 1
    assert lab.unknown == []


def lease(folder: Path, body: dict[str, Any] | None, method: str) -> dict[str, Any]:
    """The lease of the lab's node: read (no ``body``), made or written over."""
    url = f"{read_mark(folder)['url']}/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    headers = {"Authorization": f"Bearer {(folder / 'token').read_text()}", "Content-Type": "application/json"}
    where = url if method == "POST" else f"{url}/{lease_name('omen2')}"
    data = json.dumps(body).encode() if body is not None else None
    with urllib.request.urlopen(urllib.request.Request(where, data, headers, method=method), timeout=20) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def test_down_does_not_take_the_lab_from_a_run_that_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder, now = tmp_path / "lab", datetime(2026, 12, 2, tzinfo=UTC)
    commands.up(folder, commands.find_scenario("incident"), 10.0)
    try:
        me = Holder(operator(), os.getpid(), "key", process_mark(os.getpid()), run="20261202-1")
        held = lease(folder, taken("omen2", me, now), "POST")
        with pytest.raises(GpufixError, match=f"is in use by .*process {os.getpid()}, run 20261202-1") as caught:
            commands.down(folder)
        assert caught.value.exit_status is ExitStatus.LOCKED
        assert commands.is_up(folder)
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as gone:
            dead = Holder(operator(), gone.pid, "key", process_mark(gone.pid))
        lease(folder, taken("omen2", dead, now, held), "PUT")
        assert commands.down(folder) == ["The practice lab is down."], "one that was killed uses it no more"
    finally:
        if commands.is_up(folder):
            os.kill(int(read_mark(folder)["pid"]), signal.SIGTERM)


@pytest.mark.parametrize("name", ["a:b", "a\nb", "a\x1bb"])
def test_a_folder_whose_name_would_break_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(GpufixError, match="no ':' and no control character"):
        commands.up(tmp_path / name, scenario_of(), 10.0)
    assert list(tmp_path.iterdir()) == []


def test_an_open_shell_keeps_its_stand_ins_while_a_lab_is_built_anew(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    with commands.running(folder, scenario_of(), 10.0):
        pass
    swapoff = folder / "nodes" / "omen2" / "usr" / "bin" / "swapoff"
    assert swapoff.exists()
    with pytest.raises(GpufixError, match="swapon"), commands.running(folder, scenario_of("run: swapon /no"), 10.0):
        pass
    assert swapoff.exists()
    assert subprocess.run([swapoff, "-a"], capture_output=True, check=False).returncode != 0, "the lab is down"
    with commands.running(folder, scenario_of(), 10.0) as lab:
        assert shell(lab, "swapoff -a").returncode == 0


def test_all_of_it_lies_in_the_folder(tmp_path: Path) -> None:
    with commands.running(tmp_path / "lab", scenario_of(), 10.0):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["lab"]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(GpufixError, match="is no practice lab"):
        commands.up(mine, scenario_of(), 10.0)
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"], "not even a lock is left there"


def test_journals_of_runs_outlive_the_next_lab(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    with commands.running(folder, scenario_of(), 10.0):
        run = folder / "state" / "gpufix" / "runs" / "one"
        run.mkdir(parents=True)
    with commands.running(folder, scenario_of(), 10.0):
        assert run.is_dir(), "its folder was named to a person"


def test_a_proxy_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with commands.running(tmp_path / "lab", scenario_of(), 10.0) as lab:
        assert commands.is_up(lab.folder)
        env = commands.shell_environment(lab.folder, lab.node)
        done = subprocess.run(
            [sys.executable, "-m", "gpufix", "diagnose", "omen2", "-o", "json"],
            env=env, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert json.loads(done.stdout)["unread"] == [] or "cluster" not in str(json.loads(done.stdout)["unread"])


# --- it lives on -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/apis/nvidia.com/v1/clusterpolicies/cluster-policy", {"spec": {"sandboxWorkloads": "x"}}),
        ("/apis/apps/v1/namespaces/gpu-operator/daemonsets/nvidia-vfio-manager", {"spec": {"template": None}}),
        ("/apis/kubevirt.io/v1/namespaces/default/virtualmachines/gpu-fedora", {"spec": None}),
    ],
)
def test_a_patch_that_the_model_cannot_live_with_is_refused_and_put_back(lab: Lab, path: str, body: Any) -> None:
    with lab.held():
        before = {kind: list(lab.store.all(kind)) for kind in ("clusterpolicies", "daemonsets", "virtualmachines")}
    status, answer = patch(lab, path, body)
    assert status == 422 and "cannot hold this object" in answer["message"]
    with lab.held():
        after = {kind: list(lab.store.all(kind)) for kind in before}
    for kind, items in after.items():
        for item, old in zip(items, before[kind], strict=True):
            item["metadata"].pop("resourceVersion"), old["metadata"].pop("resourceVersion")
            assert item == old
    assert commands.is_up(lab.folder), "one bad patch does not end the lab"
    assert shell(lab, "systemctl is-active kubelet").stdout == "active\n"
    assert patch(lab, "/api/v1/nodes/omen2", {"metadata": {"labels": {"a": "b"}}})[0] == 200


@pytest.mark.parametrize("command", ["lspci -s 01:00.0", "free -h", "dmesg -T", "reboot --halt"])
def test_what_a_tool_would_print_otherwise_is_not_modelled_and_noted(lab: Lab, command: str) -> None:
    done = shell(lab, command)
    assert done.returncode == 64 and "does not model" in done.stderr
    assert lab.unknown == [f"omen2: {command}"]


def test_a_pipe_in_the_place_of_fstab_hangs_nothing(lab: Lab) -> None:
    assert shell(lab, "rm etc/fstab && mkfifo etc/fstab && systemctl is-active kubelet").stdout == "active\n"
    assert shell(lab, "rm etc/fstab && ln -s /dev/zero etc/fstab && systemctl is-active kubelet").stdout == "active\n"


def test_a_name_that_no_disk_takes_is_one_line(lab: Lab) -> None:
    done = shell(lab, "systemctl mask " + "a" * 300 + ".swap")
    assert done.returncode == 1 and "File name too long" in done.stderr
    assert shell(lab, "systemctl is-active kubelet").stdout == "active\n"


def test_bytes_that_are_no_text_leave_no_credentials_behind(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    with commands.running(folder, scenario_of(), 10.0) as lab:
        shell(lab, "systemctl frobnicate \"$(printf '\\377')\"")
        assert lab.unknown
    assert not (folder / "token").exists() and not (folder / "kubeconfig").exists()
    assert "frobnicate" in (folder / "unknown.log").read_text()


def test_a_unit_that_is_a_link_is_not_masked(lab: Lab) -> None:
    command = "mkdir -p data && printf '[Swap]\\nWhat=/x\\n' > data/x.swap"
    shell(lab, f"{command} && ln -s ../../../data/x.swap etc/systemd/system/x.swap && systemctl daemon-reload")
    with lab.held():
        assert lab.world.machines["omen2"].disk["/etc/systemd/system/x.swap"].startswith("[Swap]")


def test_a_shell_killed_by_a_signal_has_the_shells_status(lab: Lab) -> None:
    assert commands.shell(lab.folder, ["kill -9 $$"]) == 137
    assert commands.shell(lab.folder, ["--", "exit 3"]) == 3


def test_the_output_of_a_tool_may_be_cut_off(lab: Lab) -> None:
    done = shell(lab, "journalctl | head -1")
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert os.environ.get("GPUFIX_LAB") == str(lab.folder)
