"""The walk itself, over the model world of the order rules: any answers at the gates, any failure half-way, the
operator, systemd and other people acting in between. What it says is true, and it never does harm."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import order_model as model
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_session import BOOK, ModelSession, Ui, calm, whole
from order_model import World

from gpufix import walk as walk_module
from gpufix.core.fold import PlayResult
from gpufix.core.observations import observe
from gpufix.errors import GpufixError
from gpufix.gate import PromptApprover
from gpufix.model import Evidence, Facts, Finding, GpuCard, NodeFacts, Observation, Status
from gpufix.record import Record
from gpufix.session import Reading
from gpufix.walk import Outcome, StepResult, Walker
from gpufix.world.interrupts import Interrupts
from gpufix.world.journal import Journal


def go(
    session: ModelSession, tmp_path: Path, target: str = "container"
) -> tuple[list[StepResult], list[dict[str, Any]]]:
    session.target = target
    number = len(list(tmp_path.iterdir()))
    journal = Journal.create(tmp_path / f"run{number}")
    walker = Walker(
        session,
        BOOK,
        {"target_workload": target},
        {"swap-on": "confirmed"},
        Record(journal),
        Interrupts(),
        session.read(),
        PromptApprover("tester"),
    )  # type: ignore[arg-type]
    results = []
    for step in BOOK.steps:
        results.append(walker.walk(step))
        if not results[-1].outcome.goes_on:
            break
    journal.close()
    lines = [json.loads(line) for line in (journal.folder / "run.jsonl").read_text().splitlines()]
    return results, lines


def apply_all(message: str, options: Sequence[str]) -> str:
    return "apply"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_module, "POLL_SECONDS", 5.0)


def test_the_incident_is_walked_to_its_end(tmp_path: Path) -> None:
    session = ModelSession(World(old_kubelet=True), Ui(apply_all), calm, whole)
    results, _ = go(session, tmp_path)
    assert [result.outcome for result in results] == [Outcome.DONE] * 5
    assert session.world.kubelet == "active"
    assert session.world.jobs == {1}, "the CUDA job lives on"
    assert session.fault == ""


def test_a_no_op_asks_nothing_and_says_why(tmp_path: Path) -> None:
    asked: list[str] = []

    def choose(message: str, options: Sequence[str]) -> str:
        asked.append(message)
        return "apply"

    session = ModelSession(World("container", deploy_vfio=False, container=False), Ui(choose), calm, whole)
    results, _ = go(session, tmp_path)
    assert [result.outcome for result in results] == [
        Outcome.NOOP,
        Outcome.NOOP,
        Outcome.DONE,
        Outcome.DONE,
        Outcome.DONE,
    ]
    assert asked == ["disable-swap:", "restart-kubelet:"]
    assert "node.workload_config is container" in results[0].text
    assert "vfio_manager.running is false" in results[1].text


@pytest.mark.parametrize("at", ["relabel", "stop-vfio-manager", "disable-swap", "restart-kubelet"])
def test_quitting_applies_nothing_from_there_on(tmp_path: Path, at: str) -> None:
    session = ModelSession(
        World(), Ui(lambda message, options: "quit" if message == f"{at}:" else "apply"), calm, whole
    )
    results, lines = go(session, tmp_path)
    assert results[-1].outcome is Outcome.QUIT
    assert results[-1].step == at
    assert at not in session.applied
    assert not any(line["event"] == "intent" and line["step"] == at for line in lines)


def test_the_world_moving_while_the_gate_stands_open_is_seen(tmp_path: Path) -> None:
    """Somebody sets the label back while the last gate waits for an answer: the start is blocked, not done."""
    session = ModelSession(World(), Ui(apply_all), calm, whole)

    def choose(message: str, options: Sequence[str]) -> str:
        if message == "restart-kubelet:":
            session.world = session.world._replace(label="vm-passthrough", operator=False)
        return "apply"

    session.ui.choose = choose
    results, _ = go(session, tmp_path)
    assert results[-1].outcome is Outcome.BLOCKED
    assert "vm-passthrough" in results[-1].text
    assert "restart-kubelet" not in session.applied


def test_a_relabel_is_bound_to_the_label_that_its_gate_showed(tmp_path: Path) -> None:
    """Somebody relabels while the gate stands open: the playbook is told what was shown, and refuses."""
    session = ModelSession(World(), Ui(apply_all), calm, whole)
    seen: list[Mapping[str, Any]] = []
    real_run = session.run

    def run(playbook: str, host: str, variables: Mapping[str, Any], *, check: bool = False) -> PlayResult:
        seen.append(variables)
        return real_run(playbook, host, variables, check=check)

    def choose(message: str, options: Sequence[str]) -> str:
        session.world = session.world._replace(label="nonsense")
        return "apply"

    session.run = run  # type: ignore[method-assign]
    session.ui.choose = choose
    go(session, tmp_path)
    assert seen[1]["gpufix_expect_workload_config"] == "vm-passthrough"


def test_a_new_gpu_process_while_the_gate_stands_open_blocks_passthrough(tmp_path: Path) -> None:
    session = ModelSession(World(), Ui(apply_all), calm, whole)

    def choose(message: str, options: Sequence[str]) -> str:
        if message == "restart-kubelet:":
            session.world = session.world._replace(jobs=session.world.jobs | {77})
        return "apply"

    session.ui.choose = choose
    results, _ = go(session, tmp_path, "vm-passthrough")
    assert results[-1].outcome is Outcome.BLOCKED
    assert "77" in results[-1].text


def test_a_wrong_name_leads_back_to_the_gate(tmp_path: Path) -> None:
    names = iter(["omen3", "", model.NODE, model.NODE])
    session = ModelSession(World(), Ui(apply_all, lambda: next(names)), calm, whole)
    results, _ = go(session, tmp_path)
    assert results[-1].outcome is Outcome.DONE
    assert "'omen3' is not 'omen2'" in session.ui.text


def test_a_kubelet_that_dies_of_something_else_ends_the_wait(tmp_path: Path) -> None:
    session = ModelSession(
        World(swap=False, fstab=False, deploy_vfio=False, container=False, label="container"),
        Ui(apply_all),
        calm,
        whole,
    )
    real_run = session.run

    def run(playbook: str, host: str, variables: Mapping[str, Any], *, check: bool = False) -> PlayResult:
        result = real_run(playbook, host, variables, check=check)
        if not check:
            session.world = session.world._replace(kubelet="auto-restart")
            evidence = Evidence("host/kubelet.journal:9", "unknown flag: --no-such-flag")
            session.finding = Finding("kubelet-flag-removed", Status.CONFIRMED, "An unknown flag.", (evidence,))
        return result

    session.run = run  # type: ignore[method-assign]
    results, _ = go(session, tmp_path)
    assert results[-1].outcome is Outcome.FAILED
    assert "dies again, now of kubelet-flag-removed" in results[-1].text
    assert "--no-such-flag" in results[-1].text


def test_a_post_condition_that_does_not_come_is_late_and_says_what_is_open(tmp_path: Path) -> None:
    session = ModelSession(World(), Ui(apply_all), lambda world: world._replace(deploy_vfio=True), whole)
    results, _ = go(session, tmp_path)
    assert results[-1].outcome is Outcome.LATE
    assert "node.vfio_manager_label is true" in results[-1].text


def test_a_kubelet_restarted_during_the_watch_has_not_been_stable(tmp_path: Path) -> None:
    session = ModelSession(model_healthy(), Ui(apply_all), calm, whole)
    pids = iter([*range(100, 108), *[200] * 1000])
    real_facts = session.facts

    def facts() -> Facts:
        found = real_facts()
        assert found.unit.value is not None
        return replace(found, unit=Observation.of(replace(found.unit.value, main_pid=next(pids))))

    session.facts = facts  # type: ignore[method-assign]
    results, _ = go(session, tmp_path)
    assert results[-1].outcome is Outcome.DONE
    stable = next(step for step in BOOK.steps if step.id == "verify").stable_for
    assert session.clock.now >= 6 * walk_module.POLL_SECONDS + stable


def model_healthy() -> World:
    return World("container", deploy_vfio=False, container=False, kubelet="active", swap=False, fstab=False)


@pytest.mark.parametrize(
    ("at_read", "words"), [(2, "nothing of it was done"), (3, "it was begun, and what it has done is not known")]
)
def test_a_world_that_vanishes_in_the_middle_is_told_as_it_is(tmp_path: Path, at_read: int, words: str) -> None:
    """The node object is deleted, or the inventory's file is gone: reading raises instead of coming back unknown."""
    session = ModelSession(World(), Ui(apply_all), calm, whole)
    real_read, reads = session.read, iter(range(1, 100))

    def read() -> Reading:
        if next(reads) > at_read:
            raise GpufixError("the cluster has no node 'omen2'", "")
        return real_read()

    session.read = read  # type: ignore[method-assign]
    results, lines = go(session, tmp_path)
    assert results[-1].outcome is Outcome.FAILED
    assert "the cluster has no node 'omen2'" in results[-1].text
    assert words in results[-1].text
    assert lines[-1]["event"] == "step-result"
    assert session.applied == ([] if at_read == 2 else ["relabel"])


def test_a_gate_that_stood_open_is_followed_by_a_fresh_look_at_the_next_step(tmp_path: Path) -> None:
    session = ModelSession(World("container", deploy_vfio=False, container=False), Ui(apply_all), calm, whole)
    journal = Journal.create(tmp_path / "run")
    first = session.read()
    session.world = session.world._replace(label="vm-passthrough", deploy_vfio=True, operator=False)
    walker = Walker(
        session,
        BOOK,
        {"target_workload": "container"},
        {"swap-on": "confirmed"},
        Record(journal),
        Interrupts(),
        first,
        PromptApprover("tester"),
    )  # type: ignore[arg-type]
    assert walker.walk(BOOK.steps[0]).outcome is Outcome.DONE, "not a no-op on the strength of an old reading"
    journal.close()


def test_the_journal_stops_the_run_when_it_cannot_be_written(tmp_path: Path) -> None:
    session = ModelSession(World(), Ui(apply_all), calm, whole)
    journal = Journal.create(tmp_path / "run")
    journal.close()
    walker = Walker(
        session,
        BOOK,
        {"target_workload": "container"},
        {"swap-on": "confirmed"},
        Record(journal),
        Interrupts(),
        session.read(),
        PromptApprover("tester"),
    )  # type: ignore[arg-type]
    with pytest.raises(GpufixError, match="journal cannot be written"):
        walker.walk(BOOK.steps[0])
    assert session.applied == []


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_walk_is_harmless_and_says_what_is_so(tmp_path: Path, data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(model.TARGETS))
    start = World(
        label=data.draw(st.sampled_from(model.HAND_LABELS)),
        deploy_vfio=data.draw(st.booleans()),
        container=data.draw(st.booleans()),
        operator=data.draw(st.booleans()),
        old_kubelet=data.draw(st.booleans()),
        heavy=data.draw(st.booleans()),
        fstab=data.draw(st.booleans()),
        native_unit=data.draw(st.booleans()),
    )

    def meanwhile(world: World) -> World:
        for _ in range(data.draw(st.integers(0, 2))):
            if data.draw(st.integers(0, 3)):
                return calm(world)
            moves = [after for _, after in model.by_hand(world)]
            moves += [after for after, _ in model.autonomous(world)]
            world = data.draw(st.sampled_from(moves))
        return world

    def ends(possible: Sequence[Any]) -> Any:
        return possible[-1] if data.draw(st.integers(0, 3)) else data.draw(st.sampled_from(list(possible)))

    ui = Ui(
        lambda message, options: data.draw(st.sampled_from([*options, "apply"])),
        lambda: data.draw(st.sampled_from([model.NODE, "x"])),
    )
    session = ModelSession(start, ui, meanwhile, ends)
    results, lines = go(session, tmp_path, target)

    assert session.fault == "", f"{session.fault}; {results}"
    for result in results:
        assert result.text
    intents = [line["step"] for line in lines if line["event"] == "intent"]
    consents = [line["step"] for line in lines if line["event"] == "consent"]
    assert session.applied == intents, "what was applied was on record before, and nothing else was"
    assert set(intents) <= set(consents)
    if results[-1].step == "verify" and results[-1].outcome is Outcome.DONE:
        facts = session.facts()
        assert observe("kubelet.running", facts).value is True
        assert observe("swap.active", facts).value is False


def test_the_model_session_reads_like_the_real_one() -> None:
    """The stand-in must not drift: it offers what the walker uses of Session."""
    from gpufix.session import Session

    for name in ("read", "run"):
        assert callable(getattr(Session, name))
        assert callable(getattr(ModelSession, name))
    assert isinstance(model.read(World()).node.value, NodeFacts)
    assert GpuCard is not None
