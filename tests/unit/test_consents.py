"""Runs without a person, over the model world: what is not consented to is not done, and is told before any change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from model_session import BOOK, ModelSession, Ui, calm, whole
from order_model import NODE, World

from gpufix import recovery, resources, results, running
from gpufix import walk as walk_module
from gpufix.consents import Request
from gpufix.core.answers import load_answers, override
from gpufix.core.answers_format import sample, saved
from gpufix.core.plan_data import Given, read_plan
from gpufix.core.render.plan_text import plan_data_lines
from gpufix.core.render.terminal import Style
from gpufix.core.verdict import VmHealth
from gpufix.errors import ExitStatus, GpufixError
from gpufix.model import Finding, Status
from gpufix.walk import Outcome

STEPS = ("relabel", "stop-vfio-manager", "disable-swap", "restart-kubelet")
CONSENTS: Mapping[str, Any] = {
    "relabel": "true", "stop-vfio-manager": NODE, "disable-swap": "true", "restart-kubelet": NODE,
}  # fmt: skip


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(walk_module, "POLL_SECONDS", 5.0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def never(message: str, options: Any) -> str:
    pytest.fail(f"a run without a person asked: {message}")


def session(world: World | None = None) -> ModelSession:
    return ModelSession(world or World(), Ui(never, lambda: pytest.fail("asked for text")), calm, whole)


def request(target: str = "container", plan: Mapping[str, Any] | None = None, **consents: str | None) -> Request:
    """The request of an answers file with these consents (underscores are dashes; None leaves one out)."""
    given = {**CONSENTS, **{name.replace("_", "-"): value for name, value in consents.items()}}
    lines = [f"  {step}: {value}" for step, value in given.items() if value is not None]
    text = f"version: 1\nrunbook: {BOOK.id}\nnode: {NODE}\nanswers:\n  target_workload: {target}\nconsent:\n"
    answers, book = load_answers(text + "\n".join(lines) + "\n", "answers.yml", [BOOK])
    values = {name: Given(one.value, str(one.origin)) for name, one in override(answers, [], book).items()}
    return Request([BOOK], answers, values, plan, who="tester@bench")


def refused(world: ModelSession, asked: Request) -> GpufixError:
    with pytest.raises(GpufixError) as caught:
        recovery.recover(world, asked)  # type: ignore[arg-type]
    assert world.applied == [], "nothing was changed"
    assert "\n" not in caught.value.message
    return caught.value


def made(world: ModelSession, asked: Request) -> dict[str, Any]:
    result = recovery.plan(world, asked)  # type: ignore[arg-type]
    assert world.applied == [] and result.made is not None
    return dict(result.made)


# --- consent ---------------------------------------------------------------------------------------------------------


def test_the_incident_is_recovered_with_nobody_asked(tmp_path: Path) -> None:
    world = session(World(old_kubelet=True))
    result = recovery.recover(world, request())  # type: ignore[arg-type]
    assert result.status is ExitStatus.OK, result.line
    assert world.applied == list(STEPS)
    assert world.world.jobs == {1} and world.fault == ""
    lines = [json.loads(line) for line in (Path(result.run) / "run.jsonl").read_text().splitlines()]
    consents = {line["step"]: line for line in lines if line["event"] == "consent"}
    assert consents["relabel"]["by"] == "answers.yml:7:12"
    assert consents["restart-kubelet"]["who"] == "tester@bench"
    start = next(line for line in lines if line["event"] == "run-start")
    assert start["answers"] == {"target_workload": {"value": "container", "origin": "answers.yml:5:20"}}
    assert start["attended"] is False


@pytest.mark.parametrize("step", STEPS)
def test_a_missing_consent_stops_before_any_change_and_is_named(step: str) -> None:
    error = refused(session(), request(**{step: None}))
    assert error.exit_status is ExitStatus.USAGE
    assert f"consent.{step} is missing in answers.yml" in error.message
    assert "gpufix answers" in error.hint


@pytest.mark.parametrize("step", STEPS)
def test_a_refused_consent_stops_before_any_change(step: str) -> None:
    error = refused(session(), request(**{step: "false"}))
    assert error.exit_status is ExitStatus.DECLINED
    assert f"consent.{step} is false" in error.message


@pytest.mark.parametrize("step", ["stop-vfio-manager", "restart-kubelet"])
def test_a_destructive_gate_wants_the_name_of_this_node(step: str) -> None:
    assert "it wants the node's name" in refused(session(), request(**{step: "true"})).message
    with pytest.raises(GpufixError, match="names 'omen3', but this file is for node"):
        request(**{step: "omen3"})


def test_all_missing_consents_are_named_at_once() -> None:
    error = refused(session(), request(**dict.fromkeys(STEPS, None)))
    assert all(f"consent.{step}" in error.message for step in STEPS)


def test_a_no_op_needs_no_consent() -> None:
    world = session(World("container", deploy_vfio=False, container=False))
    result = recovery.recover(world, request(relabel=None, stop_vfio_manager=None))  # type: ignore[arg-type]
    assert result.status is ExitStatus.OK
    assert world.applied == ["disable-swap", "restart-kubelet"]


def test_a_no_op_that_has_to_run_after_all_stops_at_its_gate() -> None:
    """Somebody sets the label back after the plan was made: the gate opens for a consent, and there is none."""
    world = session(World("container", deploy_vfio=False, container=False))
    reads = 0

    def meanwhile(now: World) -> World:
        nonlocal reads
        reads += 1
        return now._replace(label="vm-passthrough") if reads == 2 else now

    world.meanwhile = meanwhile
    world.clock.now = 100.0
    result = recovery.recover(world, request(relabel=None))  # type: ignore[arg-type]
    assert (result.status, world.applied) == (ExitStatus.USAGE, [])
    assert result.steps[-1].outcome is Outcome.NO_CONSENT
    assert "consent.relabel is missing" in result.line


def test_a_skip_that_a_later_step_needs_is_refused_before_any_change() -> None:
    error = refused(session(), request(disable_swap="skip"))
    assert "consent.disable-swap is skip" in error.message and "needs it" in error.message


def test_a_blocked_plan_is_not_begun() -> None:
    """In the wizard a person may still want the first steps; nobody is there to want them here."""
    error = refused(session(World(heavy=True)), request())
    assert error.exit_status is ExitStatus.BLOCKED
    assert "O3" in error.message and "disable-swap" in error.message


# --- towards passthrough: who dies -----------------------------------------------------------------------------------


def test_towards_passthrough_every_process_that_dies_is_listed() -> None:
    asked = request("vm-passthrough", relabel=NODE)
    world = session(World("vm-passthrough", container=False))
    assert "does not list who uses the GPU and dies" in refused(world, asked).message
    kills = f"{{consent: {NODE}, kills: [1]}}"
    listed = request("vm-passthrough", relabel=kills, disable_swap=kills, restart_kubelet=kills)
    again = session(World("vm-passthrough", container=False))
    result = recovery.recover(again, listed)  # type: ignore[arg-type]
    assert result.status is ExitStatus.OK, result.line


# --- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_is_data_of_the_published_schema_and_changes_nothing() -> None:
    world = session()
    plan = made(world, request())
    jsonschema.validate(plan, resources.plan_schema())
    assert (plan["complete"], plan["applyable"], plan["errored"]) == (True, True, False)
    assert plan["answers"]["target_workload"] == {"value": "container", "origin": "answers.yml:5:20"}
    assert [step["consent"] for step in plan["steps"]] == ["true", NODE, "true", NODE, ""]
    assert read_plan(json.dumps(plan), "plan.json", resources.plan_schema()) == plan
    shown = "\n".join(plan_data_lines(plan, Style()))
    assert "target_workload = container (from answers.yml:5:20)" in shown
    assert "complete, applyable" in shown
    assert "Consent given: consent.relabel (answers.yml:" in shown and "Consent wanted" not in shown
    skipped = {"relabel": {"kind": "skip", "origin": "answers.yml:7:12\x1b[2J"}}
    told = "\n".join(plan_data_lines({**plan, "consents_given": skipped}, Style()))
    assert "Skipped, by consent.relabel: skip (answers.yml:7:12\\x1b[2J)" in told


def test_complete_applyable_and_errored_are_three_facts() -> None:
    open_question = Request([BOOK])
    plan = made(session(), open_question)
    assert (plan["complete"], plan["applyable"], plan["errored"]) == (False, False, False)
    assert "answers.target_workload is not given" in plan["because"][0]
    blocked = made(session(World(heavy=True)), Request([BOOK], given=request().given))
    assert (blocked["complete"], blocked["applyable"], blocked["errored"]) == (True, False, False)


def test_the_plan_of_an_unmoved_world_is_applied_and_of_a_moved_one_refused() -> None:
    plan = made(session(), request())
    result = recovery.recover(session(), request(plan=plan))  # type: ignore[arg-type]
    assert result.status is ExitStatus.OK
    moved = refused(session(World("container", deploy_vfio=False)), request(plan=plan))
    assert moved.exit_status is ExitStatus.BLOCKED
    assert "workload_label: was vm-passthrough, is container" in moved.message


def test_a_plan_whose_step_is_decided_otherwise_is_stale_too() -> None:
    """How much memory is free is no fact of the plan, and it decides."""
    plan = made(session(), request())
    error = refused(session(World(heavy=True)), request(plan=plan))
    assert error.exit_status is ExitStatus.BLOCKED
    assert "the plan is stale, nothing was changed: disable-swap: was run, is blocked" in error.message


def test_a_consent_may_be_bound_to_a_plan() -> None:
    plan = made(session(), request())
    bound = dict.fromkeys(STEPS, f"{{consent: {NODE}, plan: '{plan['digest']}'}}")
    assert recovery.recover(session(), request(plan=plan, **bound)).status is ExitStatus.OK  # type: ignore[arg-type]
    other = dict.fromkeys(STEPS, f"{{consent: {NODE}, plan: 'sha256:{'0' * 64}'}}")
    assert "is bound to the plan sha256:000" in refused(session(), request(plan=plan, **other)).message
    assert "no plan to compare it with" in refused(session(), request(**bound)).message


def test_check_walks_everything_and_changes_nothing() -> None:
    world = session()
    asked = request()
    result = recovery.recover(world, Request([BOOK], asked.answers, asked.given, check=True))  # type: ignore[arg-type]
    assert (result.status, world.applied) == (ExitStatus.OK, [])
    assert world.dry_runs == list(STEPS)
    for consent, status in ((None, ExitStatus.USAGE), ("false", ExitStatus.DECLINED)):
        short = request(relabel=consent)
        result = recovery.recover(session(), Request([BOOK], short.answers, short.given, check=True))  # type: ignore[arg-type]
        assert result.status is status and "consent.relabel" in result.line


# --- broken plan files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: "", "not a plan"),
        (lambda text: text[:-20], "not valid JSON"),
        (lambda text: "[" * 100_000, "nested without end"),
        (lambda text: text.replace('"version": 1', f'"version": {"9" * 5000}'), "a number of too many digits"),
        (lambda text: "[]", "not a plan of gpufix"),
        (lambda text: '{"kind": "gpufix-result"}', "not a plan of gpufix"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "a plan of version 2; this gpufix reads version 1"),
        (lambda text: text.replace('"container"', '"vm-passthrough"', 1), "changed after it was made"),
        (lambda text: text.replace('"errored": false', '"errored": "no"'), "errored"),
        (lambda text: text.replace('"steps"', '"stepz"'), "steps"),
    ],
)
def test_a_broken_plan_file_is_one_line(change: Any, words: str) -> None:
    text = json.dumps(made(session(), request()))
    with pytest.raises(GpufixError) as caught:
        read_plan(change(text), "plan.json", resources.plan_schema())
    assert words in caught.value.message and "\n" not in caught.value.message
    assert caught.value.message.startswith("plan.json")


# --- results and saved answers ---------------------------------------------------------------------------------------


def test_a_result_is_data_of_the_published_schema() -> None:
    done = recovery.recover(session(), request())  # type: ignore[arg-type]
    data = results.result_as_data(done)
    jsonschema.validate(data, resources.result_schema())
    assert [step["outcome"] for step in data["steps"]] == ["done"] * 5
    assert data["root_cause_before"] == "swap-on"
    broken = results.error_as_data(NODE, GpufixError("token=abcdefgh is wrong", "mend it"))
    jsonschema.validate(broken, resources.result_schema())
    assert "abcdefgh" not in json.dumps(broken)


def test_what_a_person_answered_makes_the_same_run_again() -> None:
    ui = Ui(lambda message, options: "apply" if "apply" in options else "container")
    first = ModelSession(World(old_kubelet=True), ui, calm, whole)
    result = recovery.recover(first, Request([BOOK]))  # type: ignore[arg-type]
    values = {name: one.value for name, one in result.answers.items()}
    text = saved(BOOK, NODE, values, result.consents)
    answers, _ = load_answers(text, "saved.yml", [BOOK])
    given = {name: Given(one.value, str(one.origin)) for name, one in answers.answers.items()}
    second = session(World(old_kubelet=True))
    again = recovery.recover(second, Request([BOOK], answers, given))  # type: ignore[arg-type]
    assert again.status is ExitStatus.OK
    assert second.applied == first.applied


def test_the_untouched_sample_consents_to_nothing() -> None:
    answers, _ = load_answers(sample(BOOK, NODE), "sample.yml", [BOOK])
    given = {"target_workload": Given("container", "-a target_workload=container")}
    error = refused(session(), Request([BOOK], answers, given))
    assert error.exit_status is ExitStatus.DECLINED


# --- the wizard, over the same model ---------------------------------------------------------------------------------


def attended(world: World, choose: Any) -> ModelSession:
    return ModelSession(world, Ui(choose), calm, whole)


def test_a_walk_that_will_stop_says_so_before_its_first_gate() -> None:
    said: list[str] = []

    def choose(message: str, options: Any) -> str:
        if message == "relabel:":
            said.append(wizard.ui.text)
            return "quit"
        return "container"

    wizard = attended(World(heavy=True), choose)
    recovery.recover(wizard, Request([BOOK]))  # type: ignore[arg-type]
    assert "As it looks now this walk stops at disable-swap: O3" in " ".join(said[0].split())


def test_a_steps_time_is_without_the_time_its_gate_stood_open() -> None:
    def choose(message: str, options: Any) -> str:
        wizard.clock.now += 5000.0
        return "apply" if "apply" in options else "container"

    wizard = attended(World(old_kubelet=True), choose)
    result = recovery.recover(wizard, Request([BOOK]))  # type: ignore[arg-type]
    assert result.status is ExitStatus.OK
    assert all(step.seconds < 1000 for step in result.steps)


@pytest.mark.parametrize(("choice", "target"), [("quit", ""), ("apply", "container")])
def test_the_vms_are_as_announced_only_once_the_label_says_so(
    monkeypatch: pytest.MonkeyPatch, choice: str, target: str
) -> None:
    targets: list[str] = []
    real = running.judge

    def judge(facts: Any, diagnosis: Any, wanted: str = "") -> Any:
        targets.append(wanted)
        return real(facts, diagnosis, wanted)

    monkeypatch.setattr(running, "judge", judge)
    wizard = attended(World(), lambda message, options: choice if choice in options else "container")
    recovery.recover(wizard, Request([BOOK]))  # type: ignore[arg-type]
    assert targets[-1] == target


def test_a_node_that_does_not_survive_a_reboot_is_not_called_well() -> None:
    world = World("container", deploy_vfio=False, container=False, swap=False, kubelet="active")
    node = session(world)
    node.finding = Finding("healthy", Status.CONFIRMED, "nothing is wrong")
    result = recovery.recover(node, request())  # type: ignore[arg-type]
    assert (result.status, node.applied) == (ExitStatus.DECLINED, [])
    assert "is well now and does not survive a reboot: " in result.line
    assert "none is needed" not in node.ui.text
    node.world = world._replace(fstab=False)
    assert recovery.recover(node, request()).status is ExitStatus.OK  # type: ignore[arg-type]


def test_vms_that_are_not_known_are_not_counted_as_none() -> None:
    result = recovery.recover(session(World(old_kubelet=True)), request())  # type: ignore[arg-type]
    assert result.verdicts is not None
    at = datetime(2026, 12, 2, tzinfo=UTC)
    assert results.metrics_of(result, 1.0, at).vms_waiting is not None
    unknown = replace(result.verdicts, vms=replace(result.verdicts.vms, health=VmHealth.UNKNOWN))
    assert results.metrics_of(replace(result, verdicts=unknown), 1.0, at).vms_waiting is None
