"""Runs without a person, on the real node and in the practice lab alike: one body of tests, two worlds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
from operator_hands import Gpufix, Wizard, journal
from recoveries import CONTAINER, GPU, PASSTHROUGH, WORKLOAD_CONFIG, Node

from gpufix import resources

Start = Callable[..., Wizard]
EDITS = {
    "  #target_workload: container\n": "  target_workload: container\n",
    "  relabel: false\n": "  relabel: true\n",
    "  stop-vfio-manager: false\n": "  stop-vfio-manager: omen2\n",
    "  disable-swap: false\n": "  disable-swap: true\n",
    "  restart-kubelet: false\n": "  restart-kubelet: omen2\n",
}
"""What a person changes in the sample by hand."""


def edited_sample(gpufix: Gpufix, path: Path) -> Path:
    done = gpufix.run("answers", "--node", "omen2", access=[])
    assert done.returncode == 0, done.stderr
    text = done.stdout
    for old, new in EDITS.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    path.write_text(text)
    return path


def test_the_incident_is_recovered_unattended_from_an_edited_sample(
    cluster: Node, gpufix: Gpufix, wizard: Start, access: list[str], state: Path, tmp_path: Path
) -> None:
    cluster.incident(PASSTHROUGH)
    answers = str(edited_sample(gpufix, tmp_path / "answers.yml"))
    plan = tmp_path / "plan.json"
    done = gpufix.run("plan", "omen2", "--answers", answers, "--out", str(plan), "-o", "json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    jsonschema.validate(made, resources.plan_schema())
    assert (made["complete"], made["applyable"], made["errored"]) == (True, True, False)
    states = {step["id"]: step["preview"]["state"] for step in made["steps"]}
    assert states == {
        "relabel": "changed", "stop-vfio-manager": "changed", "disable-swap": "changed",
        "restart-kubelet": "predicted", "verify": "none",
    }  # fmt: skip
    assert "+#/swapfile none swap sw 0 0" in gpufix.run("show", str(plan), access=[]).stdout
    assert cluster.labels()[WORKLOAD_CONFIG] == PASSTHROUGH, "a plan changes nothing"
    assert cluster.active_swaps()

    events, metrics = tmp_path / "events.jsonl", tmp_path / "gpufix.prom"
    run = wizard(  # in a terminal, where it could ask
        *access, "--answers", answers, "--plan", str(plan), "--events", str(events), "--metrics-file", str(metrics)
    )
    assert run.end() == 0, run.text
    assert "arrow keys" not in run.text and "Type the node's name" not in run.text, "nobody is asked"
    assert "Recovered: omen2 is Ready and stays so" in run.text
    assert cluster.is_ready() and cluster.allocatable(GPU) == 1
    assert cluster.calls("unbind") == []
    assert cluster.read("/etc/fstab") == cluster.fstab_fixed
    told = [json.loads(line) for line in events.read_text().splitlines()]
    schema = json.loads(resources.read_text("events.schema.json"))
    for event in told:
        jsonschema.validate(event, schema)
    assert told[-1]["event"] == "run-end" and told[-1]["exit_status"] == 0
    assert any("vm-passthrough -> container" in line for line in told[-1]["changes"])
    assert 'gpufix_recover_success{node="omen2",runbook="revive-kubelet-swap"} 1' in metrics.read_text()
    consents = {line["step"]: line["by"] for line in journal(state) if line["event"] == "consent"}
    assert all(by.startswith(f"{answers}:") for by in consents.values()) and len(consents) == 4

    again = gpufix.run("recover", "omen2", "--answers", answers, "--plan", str(plan), "-o", "json", "-q")
    assert again.returncode == 4
    stale = json.loads(again.stdout)
    jsonschema.validate(stale, resources.result_schema())
    assert "workload_label: was vm-passthrough, is container" in stale["line"]
    assert "swaps: was /swapfile" in stale["line"]


def test_a_stale_plan_is_refused_by_name_and_a_consent_is_not_assumed(
    cluster: Node, gpufix: Gpufix, tmp_path: Path
) -> None:
    cluster.incident(CONTAINER)
    answers = edited_sample(gpufix, tmp_path / "answers.yml")
    plan = tmp_path / "plan.json"
    assert gpufix.run("plan", "omen2", "--answers", str(answers), "--out", str(plan), "-q").returncode == 0
    short = tmp_path / "short.yml"
    short.write_text(answers.read_text().replace("  restart-kubelet: omen2\n", ""))
    refused = gpufix.run("recover", "omen2", "--answers", str(short), "--plan", str(plan))
    assert refused.returncode == 2
    assert "consent.restart-kubelet is missing in" in refused.stderr
    assert cluster.active_swaps() and cluster.unit_state() != "inactive/dead", "nothing was changed"

    moves: list[tuple[str, Callable[[], Any]]] = [
        ("fstab", lambda: cluster.inside("echo '# seen by nobody' >> etc/fstab || echo '# x' >> /etc/fstab")),
        ("workload_label", lambda: cluster.relabel(PASSTHROUGH)),
        ("kubelet_unit", lambda: cluster.inside("systemctl stop kubelet")),
        ("swaps", lambda: cluster.inside("swapoff -a")),
    ]
    names: list[str] = []
    for name, move in moves:
        move()
        names.append(name)
        stale = gpufix.run("recover", "omen2", "--answers", str(answers), "--plan", str(plan))
        assert stale.returncode == 4, stale.stderr
        assert "the plan is stale, nothing was changed" in stale.stderr
        assert all(f"{one}: was " in stale.stderr for one in names), stale.stderr
