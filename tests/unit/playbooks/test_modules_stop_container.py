"""gpufix_stop_container: it stops vfio-manager and nothing else, through crictl or ctr; unknown is not none."""

from __future__ import annotations

import gpufix_stop_container
import pytest
from ansible.module_utils import gpufix_containers
from ansible.module_utils.gpufix_host import Host
from fakehost import FakeHost
from types_of_fixtures import RunModule

POD = "nvidia-vfio-manager-4scww"


@pytest.fixture
def ids(host: FakeHost) -> dict[str, str]:
    return {
        "sandbox": host.container(POD, "-"),
        "init": host.container(POD, "k8s-driver-manager", "EXITED"),
        "main": host.container(POD, "nvidia-vfio-manager"),
        "other": host.container("virt-launcher-a", "compute"),
        "like": host.container("my-nvidia-vfio-manager-x", "shell"),
    }


@pytest.mark.parametrize("tool", ["crictl", "ctr"])
def test_stops_one(host: FakeHost, run_module: RunModule, ids: dict[str, str], tool: str) -> None:
    if tool == "ctr":
        host.remove("crictl")
    preview = run_module("gpufix_stop_container", check=True)
    assert preview["changed"] is True
    assert preview["diff"]["before"] == f"{POD} nvidia-vfio-manager {ids['main'][:13]} RUNNING\n"
    assert preview["diff"]["after"] == f"{POD} nvidia-vfio-manager {ids['main'][:13]} EXITED\n"
    assert [one["id"] for one in preview["containers"]] == [ids["main"]]
    assert host.changes() == []
    result = run_module("gpufix_stop_container")
    assert result["stopped"] == [ids["main"]]
    assert host.changes() == [
        f"crictl stop --timeout 10 {ids['main']}"
        if tool == "crictl"
        else f"ctr -n k8s.io task kill -s SIGTERM {ids['main']}"
    ]
    again = run_module("gpufix_stop_container")
    assert again["changed"] is False
    assert again["msg"] == "no container of nvidia-vfio-manager- runs on this host"


def test_ctr_is_not_asked_about_sandboxes_and_those_that_do_not_run(
    host: FakeHost, run_module: RunModule, ids: dict[str, str]
) -> None:
    host.remove("crictl")
    dead = [host.container(f"job-{number}", "nvidia-vfio-manager", "EXITED") for number in range(3)]
    dead += [host.container("a-pod", "-")]  # a sandbox runs, and is nothing that could be stopped
    assert [one["id"] for one in run_module("gpufix_stop_container", check=True)["containers"]] == [ids["main"]]
    asked = {line.split()[-1] for line in host.calls("ctr") if "info" in line}
    assert ids["main"] in asked
    assert not asked & set(dead)


def test_sigkill_comes_after_the_grace(host: FakeHost, run_module: RunModule, ids: dict[str, str]) -> None:
    host.remove("crictl")
    host.state["unstoppable"] = ["SIGTERM"]
    result = run_module("gpufix_stop_container", grace=0)
    assert result["stopped"] == [ids["main"]]
    assert host.changes()[-1] == f"ctr -n k8s.io task kill -s SIGKILL {ids['main']}"


def test_one_that_runs_on_is_a_failure(
    host: FakeHost, run_module: RunModule, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpufix_stop_container, "PATIENCE", 0.0)
    host.state["unstoppable"] = ["SIGTERM", "SIGKILL"]
    result = run_module("gpufix_stop_container", grace=0)
    assert result["failed"] is True
    assert result["stopped"] == []
    assert "Not stopped for certain: nvidia-vfio-manager (" in result["msg"]


@pytest.mark.parametrize("check", [True, False])
def test_unknown_is_not_none(host: FakeHost, run_module: RunModule, check: bool) -> None:
    host.state["fail"] = {"crictl": "connection refused", "ctr": "ctr: failed to dial: connection refused"}
    result = run_module("gpufix_stop_container", check=check)
    assert result["failed"] is True
    assert result["msg"] == (
        "It is not known whether a container of nvidia-vfio-manager- runs: crictl: connection refused; "
        "ctr: failed to dial: connection refused"
    )
    host.remove("crictl")
    host.remove("ctr")
    host.environment()
    assert "crictl: not installed; ctr: not installed" in run_module("gpufix_stop_container")["msg"]


def test_an_empty_prefix_is_refused(run_module: RunModule) -> None:
    assert "every container" in run_module("gpufix_stop_container", name_prefix="")["msg"]


def test_the_kubelets_own_runtime_is_asked(host: FakeHost, run_module: RunModule, ids: dict[str, str]) -> None:
    host.state["units"]["kubelet.service"]["Environment"] = "EXTRA=--container-runtime-endpoint=unix:///run/own.sock"
    host.state["fail"] = {"crictl --runtime-endpoint unix:///run/own.sock ps": "unknown service runtime.v1"}
    result = run_module("gpufix_stop_container")
    assert result["changed"] is True
    assert host.changes() == [f"ctr --address /run/own.sock -n k8s.io task kill -s SIGTERM {ids['main']}"]


def test_k3s_has_its_own_socket(host: FakeHost, run_module: RunModule, ids: dict[str, str]) -> None:
    host.state["units"] = {"k3s.service": {"LoadState": "loaded", "ActiveState": "active"}}
    run_module("gpufix_stop_container")
    assert host.changes() == [
        f"crictl --runtime-endpoint unix:///run/k3s/containerd/containerd.sock stop --timeout 10 {ids['main']}"
    ]


def test_every_runtime_must_answer(host: FakeHost) -> None:
    host.write("run/containerd/containerd.sock", "")
    host.write("run/crio/crio.sock", "")
    host.container(POD, "nvidia-vfio-manager")
    host.state["fail"] = {"crictl --runtime-endpoint unix:///run/crio/crio.sock": "connection refused"}
    host.save()
    assert gpufix_containers.read_containers(Host(str(host.root))) == (None, "crictl: connection refused")


def test_docker_beside_an_empty_containerd_is_unknown(host: FakeHost) -> None:
    host.write("run/docker.sock", "")
    host.save()
    found, why = gpufix_containers.read_containers(Host(str(host.root)))
    assert found is None
    assert "Docker runs here" in why


@pytest.mark.parametrize("text", ["", "[]", "{}x", '{"items": [{}]}', '{"other": 1}'])
def test_answers_of_crictl_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        gpufix_containers.parse_crictl('{"containers": []}', text)
