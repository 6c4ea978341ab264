"""gpufix_kubelet_unit, and how the kubelet's unit and its arguments are found."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils import gpufix_kubelet
from ansible.module_utils.gpufix_host import Host
from fakehost import FakeHost
from types_of_fixtures import RunModule


@pytest.mark.parametrize(
    ("active", "sub", "acts"),
    [
        ("activating", "auto-restart", True),
        ("activating", "auto-restart-queued", True),
        ("active", "running", True),
        ("failed", "failed", False),
        ("inactive", "dead", False),
    ],
)
def test_held(host: FakeHost, run_module: RunModule, active: str, sub: str, acts: bool) -> None:
    host.state["units"]["kubelet.service"].update(ActiveState=active, SubState=sub)
    preview = run_module("gpufix_kubelet_unit", check=True, state="held")
    assert preview["changed"] is acts
    assert host.changes() == []
    result = run_module("gpufix_kubelet_unit", state="held")
    assert (result["unit"], result["before"], result["changed"]) == ("kubelet.service", f"{active}/{sub}", acts)
    if acts:
        assert preview["diff"]["before"] == f"{active}/{sub}\n"
        assert preview["diff"]["after"] == "inactive/dead\n"
        assert preview["diff"]["before_header"] == "kubelet.service, ActiveState/SubState"
        assert result["after"] == "inactive/dead"
        assert host.changes() == ["systemctl stop kubelet.service"]
    else:
        assert result["msg"] == f"kubelet.service is {active}/{sub} and systemd will not start it by itself"
        assert host.changes() == []


def test_restarted(host: FakeHost, run_module: RunModule) -> None:
    preview = run_module("gpufix_kubelet_unit", check=True, state="restarted")
    assert preview["commands"] == ["systemctl reset-failed kubelet.service", "systemctl restart kubelet.service"]
    assert preview["diff"]["after"] == "active/running\n"
    assert host.changes() == []
    result = run_module("gpufix_kubelet_unit", state="restarted")
    assert (result["before"], result["after"]) == ("activating/auto-restart", "active/running")
    assert result["unit_file_state"] == "enabled"
    assert host.changes() == preview["commands"]
    again = run_module("gpufix_kubelet_unit", check=True, state="restarted")
    assert again["diff"]["after"] == "active/running, started anew\n"
    assert run_module("gpufix_kubelet_unit", state="started")["changed"] is False


def test_a_reset_that_has_nothing_to_reset_is_no_failure(host: FakeHost, run_module: RunModule) -> None:
    host.state["fail"] = {"systemctl reset-failed": "Unit kubelet.service not loaded."}
    assert run_module("gpufix_kubelet_unit", state="started")["after"] == "active/running"


@pytest.mark.parametrize(
    ("state", "change", "reason"),
    [
        ("restarted", {"after_start": {"ActiveState": "failed", "SubState": "failed"}}, "is failed/failed right after"),
        (
            "restarted",
            {"fail": {"systemctl restart": "Job failed."}},
            "systemctl restart kubelet.service: systemctl: Job",
        ),
        ("held", {"after_stop": {"ActiveState": "active", "SubState": "running"}}, "something starts it"),
        ("held", {"fail": {"systemctl show": "Failed to connect to bus"}}, "Failed to connect to bus"),
        ("held", {"units": {}}, "looked for kubelet.service, k3s-agent.service"),
    ],
)
def test_failures(
    host: FakeHost,
    run_module: RunModule,
    state: str,
    change: dict[str, Any],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpufix_kubelet_unit.HOLD_PATIENCE", 0.0)
    host.state.update(change)
    result = run_module("gpufix_kubelet_unit", state=state)
    assert result["failed"] is True
    assert reason in result["msg"]


def test_a_masked_unit_is_not_started_not_even_in_a_dry_run(host: FakeHost, run_module: RunModule) -> None:
    host.state["units"]["kubelet.service"].update(LoadState="masked", UnitFileState="masked")
    result = run_module("gpufix_kubelet_unit", check=True, state="restarted")
    assert result["failed"] is True
    assert "systemctl unmask kubelet.service" in result["msg"]


def unit(name: str, load: str = "loaded", active: str = "inactive", state: str = "disabled") -> dict[str, str]:
    return {"Id": name + ".service", "LoadState": load, "ActiveState": active, "UnitFileState": state}


@pytest.mark.parametrize(
    ("blocks", "chosen"),
    [
        ([unit("kubelet"), unit("k3s", active="active")], "k3s.service"),
        ([unit("k3s", state="enabled"), unit("kubelet", state="enabled")], "kubelet.service"),
        ([unit("kubelet"), unit("k3s", load="not-found")], "kubelet.service"),
        ([unit("kubelet", load="masked"), unit("rke2-agent")], "rke2-agent.service"),
        ([unit("kubelet", load="masked")], "kubelet.service"),
        ([unit("kubelet", active="failed"), unit("k3s", state="enabled")], "kubelet.service"),
        ([unit("kubelet", load="not-found")], ""),
    ],
)
def test_which_unit(blocks: list[dict[str, str]], chosen: str) -> None:
    assert gpufix_kubelet.choose_unit(blocks, list(gpufix_kubelet.UNITS)).name == chosen


def test_a_unit_that_is_named(host: FakeHost) -> None:
    host.state["units"]["own.service"] = {"LoadState": "loaded"}
    host.save()
    assert gpufix_kubelet.find_unit(Host(str(host.root)), "own").name == "own.service"
    assert "looked for other.service" in gpufix_kubelet.find_unit(Host(str(host.root)), "other").why


# --- the arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"A=--x --y" B=1', {"A": "--x --y", "B": "1"}),
        ("A=--x\\x20--y B=1", {"A": "--x --y", "B": "1"}),
        ("A=--x --y B=1", {"A": "--x --y", "B": "1"}),
        ("", {}),
    ],
)
def test_environment_of_every_systemd(text: str, expected: dict[str, str]) -> None:
    assert gpufix_kubelet.parse_environment(text) == expected


def test_environment_file() -> None:
    text = "# no\n;no\nA=\"--x=1 --y\"\nB='$A'\nC=--z \\\n--w\nnothing\n D = e \n"
    assert gpufix_kubelet.parse_environment_file(text) == {"A": "--x=1 --y", "B": "$A", "C": "--z --w", "D": "e"}


def test_arguments_as_kubeadm_makes_them(host: FakeHost) -> None:
    host.state["units"]["kubelet.service"].update(
        FragmentPath="/lib/systemd/system/kubelet.service",
        DropInPaths="/etc/systemd/system/kubelet.service.d/10-kubeadm.conf",
        ExecStart="{ path=/usr/bin/kubelet ; argv[]=/usr/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $GONE "
        "--root-dir=${ROOT} ; ignore_errors=no ; start_time=[n/a] ; }",
        Environment="KUBELET_CONFIG_ARGS=--config=/etc/k.yaml ROOT=/var/lib/k",
        EnvironmentFiles="/var/lib/kubelet/kubeadm-flags.env (ignore_errors=yes)\n"
        "EnvironmentFiles=/etc/default/kubelet (ignore_errors=yes)",
    )
    host.write("var/lib/kubelet/kubeadm-flags.env", 'KUBELET_KUBEADM_ARGS="--fail-swap-on=false --token=abc"\n')
    host.write("etc/k.yaml", "failSwapOn: false\n")
    host.save()
    kubelet = gpufix_kubelet.read_kubelet(Host(str(host.root)))
    assert kubelet.flags.text is not None
    assert kubelet.flags.text.split("\n") == [
        "# /etc/default/kubelet: No such file or directory",
        "# $GONE is not set",
        "# from /etc/systemd/system/kubelet.service.d/10-kubeadm.conf",
        "--config=/etc/k.yaml",
        "# from /var/lib/kubelet/kubeadm-flags.env",
        "--fail-swap-on=false",
        "--token=abc",
        "# from /etc/systemd/system/kubelet.service.d/10-kubeadm.conf",
        "--root-dir=/var/lib/k",
        "",
    ]
    assert kubelet.config.text == "failSwapOn: false\n"
    assert kubelet.config_d.text == "# the kubelet is started without --config-dir\n"


def test_drop_in_folder(host: FakeHost) -> None:
    host.state["units"]["kubelet.service"]["Environment"] = "EXTRA=--config-dir=/etc/kubelet.d"
    host.save()
    assert gpufix_kubelet.read_kubelet(Host(str(host.root))).config_d.why == "/etc/kubelet.d: No such file or directory"
    host.write("etc/kubelet.d/20-b.conf", "b: 1")
    host.write("etc/kubelet.d/10-a.conf", "a: 1\n")
    host.write("etc/kubelet.d/note.txt", "no")
    assert gpufix_kubelet.read_kubelet(Host(str(host.root))).config_d.text == (
        "# file: /etc/kubelet.d/10-a.conf\na: 1\n# file: /etc/kubelet.d/20-b.conf\nb: 1\n"
    )


def test_k3s_hands_its_arguments_on(host: FakeHost) -> None:
    host.state["units"] = {
        "k3s-agent.service": {
            "LoadState": "loaded",
            "ActiveState": "active",
            "FragmentPath": "/etc/systemd/system/k3s-agent.service",
            "ExecStart": "{ path=/k3s ; "
            "argv[]=/k3s agent --token SECRET --kubelet-arg=v=4 --kubelet-arg max-pods=5 ; flags= ; ",
        }
    }
    host.write(
        "etc/rancher/k3s/config.yaml", 'kubelet-arg:\n  - "fail-swap-on=false" # why\n# x\n  - v=2\nnode-name: a\n'
    )
    host.write("var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf", "failSwapOn: false\n")
    host.save()
    kubelet = gpufix_kubelet.read_kubelet(Host(str(host.root)))
    assert "# from /etc/rancher/k3s/config.yaml\n--fail-swap-on=false\n--v=2\n" in (kubelet.flags.text or "")
    assert "agent\n--token\n<redacted>\n--kubelet-arg=v=4\n" in (kubelet.flags.text or "")
    assert "# from --kubelet-arg\n--v=4\n--max-pods=5\n" in (kubelet.flags.text or "")
    assert "failSwapOn: false" in (kubelet.config_d.text or "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kubelet-arg: ['a=1', \"b=2\"]\n", ["--a=1", "--b=2"]),
        ("kubelet-arg: fail-swap-on=false\n", ["--fail-swap-on=false"]),
        ("kubelet-arg+:\n- a=1\ntoken: x\n- b=2\n", ["--a=1"]),
        ("node-label:\n- a=1\n", []),
    ],
)
def test_kubelet_args(text: str, expected: list[str]) -> None:
    assert gpufix_kubelet.kubelet_args(text) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: b\ncontainerRuntimeEndpoint: unix:///run/x.sock # here\n", "unix:///run/x.sock"),
        ('{"containerRuntimeEndpoint": "unix:///run/y.sock"}', "unix:///run/y.sock"),
        ('containerRuntimeEndpoint: ""\n', ""),
        ("failSwapOn: true\n", ""),
    ],
)
def test_one_value_of_a_configuration(text: str, value: str) -> None:
    assert gpufix_kubelet.config_value(text, "containerRuntimeEndpoint") == value
