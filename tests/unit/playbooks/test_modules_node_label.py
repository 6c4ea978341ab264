"""gpufix_node_label against a small API over HTTP."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nodeapi import DEPLOY, WORKLOAD, NodeApi
from types_of_fixtures import RunModule

Label = Callable[..., dict[str, Any]]


@pytest.fixture
def label(run_module: RunModule, api: NodeApi, tmp_path: Path) -> Label:
    def run(**arguments: Any) -> dict[str, Any]:
        values = {"node": "omen2", "kubeconfig": api.kubeconfig(tmp_path), **arguments}
        return run_module("gpufix_node_label", **values)

    return run


@pytest.fixture
def slept(label: Label, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made: none of them in these tests."""
    pauses: list[float] = []
    monkeypatch.setattr(importlib.import_module("gpufix_node_label"), "sleep", pauses.append)
    return pauses


def test_dry_run_on_the_server(api: NodeApi, label: Label) -> None:
    result = label(check=True, labels={WORKLOAD: "container"})
    assert result["changed"] is True
    assert result["diff"] == {
        "before_header": "node omen2 labels",
        "after_header": "node omen2 labels",
        "before": f"{WORKLOAD}: vm-passthrough\n",
        "after": f"{WORKLOAD}: container\n",
    }
    [(query, body)] = api.patches()
    assert "dryRun=All" in query
    assert body == {"metadata": {"resourceVersion": "100", "labels": {WORKLOAD: "container"}}}
    assert api.labels[WORKLOAD] == "vm-passthrough"


def test_apply_and_again(api: NodeApi, label: Label) -> None:
    result = label(labels={WORKLOAD: "container"})
    assert result["before"] == {WORKLOAD: "vm-passthrough", DEPLOY: "true"}
    assert result["after"] == {WORKLOAD: "container", DEPLOY: "true"}
    assert result["uid"] == "11111111-2222-3333-4444-555555555555"
    assert api.labels[WORKLOAD] == "container"
    assert "dryRun" not in api.patches()[0][0]
    again = label(labels={WORKLOAD: "container"})
    assert (again["changed"], again["msg"]) == (False, "the labels are so already")
    assert len(api.patches()) == 1


def test_removal(api: NodeApi, label: Label) -> None:
    result = label(labels={DEPLOY: None})
    assert (result["diff"]["before"], result["diff"]["after"]) == (f"{DEPLOY}: true\n", "")
    assert DEPLOY not in api.labels
    assert label(labels={DEPLOY: None})["changed"] is False


def test_it_only_reads_without_labels(api: NodeApi, label: Label) -> None:
    result = label()
    assert (result["changed"], result["after"]) == (False, {WORKLOAD: "vm-passthrough", DEPLOY: "true"})
    assert api.patches() == []


def test_a_heartbeat_in_between_is_tried_again(api: NodeApi, label: Label) -> None:
    api.heartbeats = 2
    assert label(labels={WORKLOAD: "container"})["changed"] is True
    assert len(api.patches()) == 3
    api.heartbeats = 99
    result = label(labels={WORKLOAD: "vm-vgpu"})
    assert "changes all the time" in result["msg"]


@pytest.mark.parametrize(
    ("expect", "words"),
    [({WORKLOAD: "container"}, "is vm-passthrough now and was container"), ({WORKLOAD: None}, "and was not set")],
)
@pytest.mark.parametrize("check", [True, False])
def test_a_label_that_moved_since_the_preview(
    api: NodeApi, label: Label, expect: dict[str, Any], words: str, check: bool
) -> None:
    result = label(check=check, labels={WORKLOAD: "vm-vgpu"}, expect=expect)
    assert result["failed"] is True
    assert words in result["msg"]
    assert api.patches() == []


def test_a_node_that_was_made_again(api: NodeApi, label: Label) -> None:
    result = label(labels={WORKLOAD: "container"}, require_uid="other")
    assert "deleted and made again" in result["msg"]
    assert api.patches() == []


@pytest.mark.parametrize(
    ("refuse", "words"),
    [
        ({"GET": 403}, "Not allowed to get node omen2: nodes is forbidden"),
        ({"PATCH": 403}, "Not allowed to patch node omen2: nodes is forbidden"),
        (
            {"GET": 401},
            "The API server refuses the credentials of this kubeconfig (nodes is forbidden: cannot get): log in again",
        ),
        ({"GET": 500}, "refused to get node omen2: 500"),
        ({"PATCH": 503}, "refused to patch node omen2: 503 nodes is forbidden: cannot patch"),
    ],
)
def test_refusals(api: NodeApi, label: Label, slept: list[float], refuse: dict[str, int], words: str) -> None:
    api.refuse = refuse
    result = label(check=True, labels={WORKLOAD: "container"})
    assert result["failed"] is True
    assert words in result["msg"]
    assert "\n" not in result["msg"]
    assert "Traceback" not in str(result)


def test_no_such_node(label: Label) -> None:
    assert "There is no node other in the cluster at http://127.0.0.1" in label(node="other")["msg"]


@pytest.mark.parametrize("login", ["", "lab:hunter2@"])
def test_unreachable(run_module: RunModule, api: NodeApi, tmp_path: Path, login: str) -> None:
    kubeconfig = api.kubeconfig(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        text = Path(kubeconfig).read_text()
        port = free.getsockname()[1]
    text = text.replace(text.split("127.0.0.1:")[1].split('"')[0], str(port))
    Path(kubeconfig).write_text(text.replace("//127.0.0.1", f"//{login}127.0.0.1"))
    result = run_module("gpufix_node_label", node="omen2", kubeconfig=kubeconfig)
    assert result["failed"] is True
    assert "hunter2" not in result["msg"]
    assert f"The API server http://127.0.0.1:{port} cannot be reached" in result["msg"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"context": "nope"}, "nope"), ({"kubeconfig": "/nonexistent/config"}, "/nonexistent/config")],
)
def test_kubeconfigs_that_are_wrong(label: Label, arguments: dict[str, str], words: str) -> None:
    result = label(**arguments)
    assert result["failed"] is True
    assert result["msg"].startswith("Kubeconfig ")
    assert words in result["msg"]


@pytest.mark.parametrize("fault", ["429", "500", "502", "503", "504", "reset"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_read_gets_over_what_passes(api: NodeApi, label: Label, slept: list[float], fault: str, times: int) -> None:
    api.faults = [("GET", fault)] * times
    assert label(labels={WORKLOAD: "container"})["changed"] is True
    assert slept == [1.0] * times
    assert len(api.patches()) == 1


@pytest.mark.parametrize(("said", "pauses"), [("4", [4.0]), ("0", [1.0]), ("soon", [1.0])])
def test_the_server_says_how_long_to_wait(
    api: NodeApi, label: Label, slept: list[float], said: str, pauses: list[float]
) -> None:
    api.faults = [("GET", f"429/{said}")]
    assert label()["changed"] is False
    assert slept == pauses


@pytest.mark.parametrize("verb", ["GET", "PATCH"])
def test_one_that_wants_to_be_left_alone_is(api: NodeApi, label: Label, slept: list[float], verb: str) -> None:
    api.faults = [(verb, "503/3600")]
    result = label(labels={WORKLOAD: "container"})
    assert "503 not now (it asks to wait 3600 s)" in result["msg"]
    assert slept == []


def test_a_read_that_is_silent_is_not_asked_for_longer(api: NodeApi, label: Label, slept: list[float]) -> None:
    api.faults = [("GET", "silent")]
    result = label(timeout=1)
    assert "timed out" in result["msg"]
    assert "object at" not in result["msg"]
    assert len(api.requests) == 1


@pytest.mark.parametrize("fault", ["429", "500", "503", "reset"])
@pytest.mark.parametrize("check", [True, False])
def test_a_patch_that_was_not_done_is_done_after_another_look(
    api: NodeApi, label: Label, slept: list[float], fault: str, check: bool
) -> None:
    api.faults = [("PATCH", fault)]
    result = label(check=check, labels={WORKLOAD: "container"}, expect={WORKLOAD: "vm-passthrough"})
    assert (result["changed"], result["after"][WORKLOAD]) == (True, "container")
    assert [verb for verb, *_ in api.requests] == ["GET", "PATCH", "GET", "PATCH"]


def test_a_patch_of_which_only_the_answer_was_lost_was_done(api: NodeApi, label: Label, slept: list[float]) -> None:
    api.faults = [("PATCH", "lost")]
    result = label(labels={WORKLOAD: "container", DEPLOY: None}, expect={WORKLOAD: "vm-passthrough"})
    assert "failed" not in result
    assert (result["changed"], result["before"][WORKLOAD], result["after"]) == (
        True, "vm-passthrough", {WORKLOAD: "container"},
    )  # fmt: skip
    assert result["diff"]["after"] == f"{WORKLOAD}: container\n"
    assert len(api.patches()) == 1, "it is not sent twice"


def test_a_patch_that_is_lost_again_and_again_says_what_is_not_known(
    api: NodeApi, label: Label, slept: list[float]
) -> None:
    api.refuse = {"PATCH": 500}
    result = label(labels={WORKLOAD: "container"})
    assert "500" in result["msg"]
    assert result["msg"].endswith("whether the labels were changed is not known")
    assert len(api.patches()) == 3
    api.requests.clear()
    api.refuse = {"PATCH": 429}
    assert "not known" not in label(labels={WORKLOAD: "container"})["msg"]


def test_after_a_lost_patch_what_another_did_is_not_overwritten(
    api: NodeApi, label: Label, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("gpufix_node_label")
    monkeypatch.setattr(module, "sleep", lambda seconds: api.labels.update({WORKLOAD: "vm-vgpu"}))
    api.faults = [("PATCH", "lost")]
    result = label(labels={WORKLOAD: "container"}, expect={WORKLOAD: "vm-passthrough"})
    assert "is vm-vgpu now and was vm-passthrough in the preview; whether the labels were changed" in result["msg"]
    assert api.labels[WORKLOAD] == "vm-vgpu"
