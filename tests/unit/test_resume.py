"""Going on with a run and undoing it, over the model world: killed anywhere, it ends as if it had not been."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_session import BOOK, SICK, Death, Killed, ModelSession, Ui, calm, whole
from order_model import NODE, World

from gpufix import recovery, resuming, runs, undoing
from gpufix import walk as walk_module
from gpufix.consents import Request
from gpufix.core.answers import load_answers
from gpufix.core.answers_format import sample
from gpufix.core.fold import PlayResult, Trouble
from gpufix.core.plan_data import Given
from gpufix.core.render.run_text import about_lines, standing_lines
from gpufix.core.render.terminal import Style
from gpufix.core.run_history import read_history, steps_of
from gpufix.errors import ExitStatus, GpufixError
from gpufix.model import Facts, Observation
from gpufix.runs import Run, find_run, list_runs, newer_runs, open_run, run_to_resume, run_to_undo, to_prune
from gpufix.session import NodeGone
from gpufix.world.journal import JOURNAL, Journal, state_folder

INCIDENT = World()
ASKED = Request([BOOK], who="tester@bench")
Choose = Callable[[str, Sequence[str]], str]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(walk_module, "POLL_SECONDS", 5.0)
    monkeypatch.setattr(runs, "process_began", lambda pid: "")  # the process of every journal here is dead
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def choose(**wanted: str) -> Choose:
    """Applies everything; ``wanted`` maps a word of the question to another choice."""

    def decide(message: str, options: Sequence[str]) -> str:
        for word, choice in wanted.items():
            if word.replace("_", "-") in message and choice in options:
                return choice
        return next(one for one in ("apply", "on", "container", *options) if one in options)

    return decide


def session(world: World, decide: Choose | None = None, meanwhile: Callable[[World], World] = calm) -> ModelSession:
    return ModelSession(world, Ui(decide or choose()), meanwhile, whole)


def recover(one: ModelSession, request: Request = ASKED) -> Any:
    return recovery.recover(one, request)  # type: ignore[arg-type]


def resume(one: ModelSession, run: Run | None = None, request: Request = ASKED) -> Any:
    return resuming.resume(one, request, run or run_to_resume(state_folder(), NODE))  # type: ignore[arg-type]


def undo(one: ModelSession, only: str = "") -> Any:
    return undoing.undo(one, ASKED, run_to_undo(state_folder(), NODE), only)  # type: ignore[arg-type]


def lines_of(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / JOURNAL).read_text().splitlines()]


def killed(monkeypatch: pytest.MonkeyPatch, event: str, step: str = "", world: World = INCIDENT) -> ModelSession:
    """A session whose recovery was killed right after ``event`` of ``step`` was on disk."""
    real = Journal.write

    def write(journal: Journal, name: str, **fields: Any) -> None:
        real(journal, name, **fields)
        if name == event and step in ("", fields.get("step")):
            raise Killed

    one = session(world)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Journal, "write", write)
        recover(one)
    return one


# --- killed anywhere, the end is the same ----------------------------------------------------------------------------


def undisturbed() -> tuple[World, int]:
    one = session(INCIDENT)
    result = recover(one)
    assert result.status is ExitStatus.OK
    (run,) = list_runs(state_folder())
    return one.world, len(lines_of(run))


LINES = 23
"""Of the journal of a whole recovery; the test below holds it to that."""


def test_a_whole_recovery_has_as_many_lines_as_are_tried_here() -> None:
    assert undisturbed()[1] == LINES


@pytest.mark.parametrize("how", ["before", "after", "torn"])
@pytest.mark.parametrize("at", range(1, LINES + 1))
def test_killed_at_any_line_of_the_journal_and_resumed(monkeypatch: pytest.MonkeyPatch, at: int, how: str) -> None:
    one = session(INCIDENT)
    death = Death(monkeypatch, at, how)
    with pytest.raises(Killed):
        recover(one)
    death.stop()
    assert one.fault == ""
    left = list_runs(state_folder())
    if not left or left[0].state in ("unreadable", "finished"):  # it died before its first line, or with its last
        assert at in (1, LINES)
        result = recover(one)
        assert result.status is ExitStatus.OK
    else:
        assert [run.state for run in left] == ["unfinished"]
        result = resume(one)
        assert result.status is ExitStatus.OK, result.line
        (run,) = list_runs(state_folder())
        assert run.state == "finished" and run.history.broken == ()
        numbers = [line["seq"] for line in read_history((run.folder / JOURNAL).read_text()).lines]
        assert numbers == sorted(set(numbers))
        assert "unknown" not in {step.outcome for step in steps_of(run.history)}
    assert one.fault == ""
    end = one.world
    again = session(INCIDENT)
    assert recover(again).status is ExitStatus.OK
    assert end == again.world


@pytest.mark.parametrize("at", range(1, 12))
def test_an_undo_killed_anywhere_and_resumed_restores_the_start(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    one = session(INCIDENT)
    recover(one)
    death = Death(monkeypatch, at, "after")
    with suppress(Killed):
        undo(one)
    death.stop()
    assert death.happened, "an undo of both steps has at least 11 lines"
    last = list_runs(state_folder())[-1]
    result = resume(one, last) if last.is_open and last.history.kind == "undo" else undo(one)
    assert result.status is ExitStatus.OK, result.line
    assert (one.world.label, one.world.swap, one.world.fstab) == (INCIDENT.label, INCIDENT.swap, INCIDENT.fstab)
    assert one.fault == ""


def test_a_resumed_resume_goes_on_too(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "intent", "disable-swap")
    death = Death(monkeypatch, 4, "after")
    with pytest.raises(Killed):
        resume(one)
    death.stop()
    assert resume(one).status is ExitStatus.OK
    (run,) = list_runs(state_folder())
    assert [line["event"] for line in run.history.lines].count("resume") == 2


@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_a_resume_that_dies_in_its_own_first_line_leaves_no_broken_one(
    monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    one = session(INCIDENT)
    death = Death(monkeypatch, 12, "torn")
    with pytest.raises(Killed):
        recover(one)
    death.stop()
    for _ in range(deaths):
        death = Death(monkeypatch, 1, "torn")
        with pytest.raises(Killed):
            resume(one)
        death.stop()
    assert resume(one).status is ExitStatus.OK
    (run,) = list_runs(state_folder())
    assert run.history.broken == () and not run.history.torn


def test_a_line_that_is_broken_in_the_middle_of_a_journal_is_still_told() -> None:
    lines = ['{"v": 1, "seq": 1, "event": "run-start"}', '{"v": 1, "se', '{"v": 1, "seq": 2, "event": "consent"}']
    assert read_history("\n".join([*lines, '{"v": 1, "seq": 3, "event": "resume"}', ""])).broken == (2,)


# --- what is begun and has no result is settled by looking ----------------------------------------------------------


def test_an_intent_without_a_result_is_settled_by_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "applied", "relabel")
    result = resume(one)
    assert result.status is ExitStatus.OK
    assert "relabel            done: found done: node.workload_config is container" in one.ui.text
    (run,) = list_runs(state_folder())
    (settled,) = run.history.all("settled")
    assert (settled["step"], settled["outcome"]) == ("relabel", "done")


def test_what_an_undo_began_is_settled_by_looking_too(monkeypatch: pytest.MonkeyPatch) -> None:
    one = session(INCIDENT)
    recover(one)
    real = Journal.write

    def write(journal: Journal, name: str, **fields: Any) -> None:
        if name == "applied":
            raise Killed
        real(journal, name, **fields)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Journal, "write", write)
        undo(one)
    assert one.applied[-1] == "undo-disable-swap"
    assert resume(one).status is ExitStatus.OK
    assert one.applied.count("undo-disable-swap") == 1
    last = list_runs(state_folder())[-1]
    assert [(line["step"], line["outcome"]) for line in last.history.all("settled")] == [("undo-disable-swap", "done")]
    assert {step.step: step.outcome for step in steps_of(last.history)} == {
        "undo-disable-swap": "done", "undo-relabel": "done",
    }  # fmt: skip


@pytest.mark.parametrize("go_on", ["resume", "undo"])
def test_what_still_runs_on_the_host_is_waited_for_before_anything_is_undone(
    monkeypatch: pytest.MonkeyPatch, go_on: str
) -> None:
    one = killed(monkeypatch, "step-result", "disable-swap")
    if go_on == "resume":
        real = Journal.write

        def write(journal: Journal, name: str, **fields: Any) -> None:
            real(journal, name, **fields)
            if name == "intent":
                raise Killed

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(Journal, "write", write)
            undo(one)
    left, seen, through = [3], one.facts, one.run  # looks at which it still runs

    def facts() -> Facts:
        left[0] -= 1
        return replace(seen(), busy=Observation.of("gpufix_swap (process 7)")) if left[0] >= 0 else seen()

    def run(*arguments: Any, **options: Any) -> Any:
        assert left[0] < 0, "no playbook is run beside it"
        return through(*arguments, **options)

    monkeypatch.setattr(one, "facts", facts)
    monkeypatch.setattr(one, "run", run)
    done = resume(one) if go_on == "resume" else undo(one)
    assert done.status is ExitStatus.OK, done.line
    assert start(one.world) == start(INCIDENT)


def test_a_step_that_had_no_effect_is_found_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "intent", "disable-swap")
    assert resume(one).status is ExitStatus.OK
    assert "disable-swap       not done: found not done: swap.active is true" in one.ui.text


def test_the_world_is_believed_over_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "step-result", "disable-swap")
    one.world = one.world._replace(swap=True, label="vm-passthrough", deploy_vfio=True)
    result = resume(one)
    assert result.status is ExitStatus.OK
    assert one.applied.count("relabel") == 2 and one.applied.count("disable-swap") == 2
    assert one.fault == ""


def test_a_kubelet_that_was_started_gets_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "applied", "restart-kubelet")
    looks = iter(range(100))

    def slowly(world: World) -> World:
        return world._replace(kubelet="auto-restart" if next(looks) < 3 else "active")

    one.meanwhile = slowly
    assert resume(one).status is ExitStatus.OK
    assert one.applied.count("restart-kubelet") == 1, "it came up, so it is not started once more"


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (
            {"kubelet": "inactive"},
            (
                "The kubelet is held: stopped (kubelet), and the node stays dead until it is started.",
                "Swap is on (/swapfile): a kubelet that is started now dies of it.",
                "Swap comes back at boot: fstab:",
            ),
        ),
        (
            {"kubelet": "inactive", "swap": False, "fstab": False},
            ("The kubelet is held", "Swap is off.", "Swap does not come back at boot"),
        ),
        ({"kubelet": "auto-restart"}, ("systemd starts it again and again", "Swap is on", "Swap comes back at boot")),
        ({"kubelet": "active", "swap": False}, ("The kubelet runs", "Swap is off.", "Swap comes back at boot")),
    ],
)
def test_what_a_step_left_half_done_is_told(
    monkeypatch: pytest.MonkeyPatch, left: dict[str, Any], told: tuple[str, ...]
) -> None:
    one = killed(monkeypatch, "intent", "disable-swap")
    one.world = one.world._replace(**left)
    one.ui.choose = choose(**{"The run": "quit"})
    one.ui.said.clear()
    assert resume(one).status is ExitStatus.DECLINED
    said = " ".join(one.ui.text.partition("What stands there now")[2].split())
    for sentence in told:
        assert sentence in said


def test_a_stopped_undo_says_what_stands_too() -> None:
    one = stopped_undo()
    one.ui.said.clear()
    one.ui.choose = choose(**{"The run": "quit"})
    resume(one)
    assert "Swap is on (/swapfile)" in one.ui.text


def test_what_stands_and_cannot_be_read_is_called_unknown() -> None:
    nothing = replace(
        session(INCIDENT).facts(), unit=Observation.missing("no systemctl"), swaps=Observation.missing("no /proc"),
        fstab_swap=Observation.missing("no fstab"), swap_services=Observation.missing("no services"),
    )  # fmt: skip
    _, *lines = standing_lines(nothing, Style(width=200))
    assert all("is not known" in line for line in lines) and len(lines) == 3


# --- what a person may choose ----------------------------------------------------------------------------------------


def test_recover_offers_the_unfinished_run_and_goes_on_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "step-result", "disable-swap")
    asked: list[tuple[str, list[str]]] = []

    def decide(message: str, options: Sequence[str]) -> str:
        asked.append((message, list(options)))
        return choose()(message, options)

    one.ui.choose = decide
    assert recover(one).status is ExitStatus.OK
    (run,) = list_runs(state_folder())
    assert asked[0] == (f"The run {run.id}:", ["on", "undo", "close", "new", "quit"])
    assert [message for message, _ in asked[1:]] == ["restart-kubelet:"], "what is done, and the answers, are not asked"
    assert "Unfinished:" in one.ui.text


def test_a_new_run_closes_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "step-result", "relabel")
    one.ui.choose = choose(The_run="new", **{"The run": "new"})
    assert recover(one).status is ExitStatus.OK
    first, second = list_runs(state_folder())
    assert (first.state, second.state) == ("finished", "finished")
    assert first.history.end and first.history.end["closed"] is True


@pytest.mark.parametrize(("choice", "state", "status"), [("quit", "unfinished", 3), ("close", "finished", 3)])
def test_quit_leaves_it_open_and_close_ends_it(
    monkeypatch: pytest.MonkeyPatch, choice: str, state: str, status: int
) -> None:
    one = killed(monkeypatch, "step-result", "relabel")
    before = one.world
    one.ui.choose = choose(**{"The run": choice})
    result = resume(one)
    assert (result.status, one.world) == (status, before)
    assert list_runs(state_folder())[0].state == state


def test_undo_is_offered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "step-result", "disable-swap")
    one.ui.choose = choose(**{"The run": "undo"})
    result = recover(one)
    assert result.status is ExitStatus.OK, result.line
    assert one.world.swap and one.world.fstab and one.world.label == "vm-passthrough"
    assert [run.state for run in list_runs(state_folder())] == ["undone", "finished"]


def test_done_by_hand_is_believed_only_where_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "intent", "disable-swap")
    answers = iter(["done", "done", "on"])
    looks: list[World] = []

    def decide(message: str, options: Sequence[str]) -> str:
        if "The run" not in message:
            return choose()(message, options)
        choice = next(answers)
        if len(looks) == 1:  # by now somebody has done it by hand
            one.world = one.world._replace(swap=False, fstab=False, kubelet="inactive")
        looks.append(one.world)
        return choice

    one.ui.choose = decide
    assert resume(one).status is ExitStatus.OK
    assert "disable-swap is not done: swap.active is true, wanted false" in one.ui.text
    assert "marked done by hand by tester@bench" in one.ui.text
    assert one.applied.count("disable-swap") == 0


def by_hand(one: ModelSession, then: str) -> Choose:
    """Somebody turns swap off and edits fstab by hand, marks that done, and chooses ``then``."""
    answers = iter(["done", then])

    def decide(message: str, options: Sequence[str]) -> str:
        if not message.startswith("The run"):
            return choose()(message, options)
        one.world = one.world._replace(swap=False, fstab=False, kubelet="inactive")
        return next(answers)

    return decide


def test_the_plan_after_a_mark_is_of_the_node_as_it_is_then(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "intent", "disable-swap")
    one.ui.choose = by_hand(one, "on")
    assert resume(one).status is ExitStatus.OK
    plan = one.ui.text.rpartition("Plan: ")[2]
    assert "3  no-op     disable-swap" in plan and "run       disable-swap" not in plan


@pytest.mark.parametrize("then", ["undo", "quit", "on"])
def test_undoing_leaves_what_was_done_by_hand_and_goes_on(monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    one = killed(monkeypatch, "intent", "disable-swap")
    one.ui.choose = by_hand(one, then)
    result = resume(one)
    (settled,) = list_runs(state_folder())[0].history.all("settled", "disable-swap")
    assert settled["by_hand"] is True and settled["outcome"] == "done", "on record, whatever was chosen next"
    one.ui.choose = choose()
    if then != "undo":
        result = undo(one)
    assert result.status is ExitStatus.OK, result.line
    assert one.applied[-1] == "undo-relabel" and "undo-disable-swap" not in one.applied
    assert (one.world.label, one.world.swap) == (INCIDENT.label, False)
    assert "Not undone, and stays as it is: " in result.line and "disable-swap" in result.line
    assert "disable-swap       stays as it is: it was done by hand" in one.ui.text
    assert list_runs(state_folder())[0].state == "undone"


def test_a_step_that_was_never_begun_and_done_by_hand_stays_too() -> None:
    one = session(INCIDENT, choose(disable_swap="quit"))
    assert recover(one).status is ExitStatus.DECLINED
    one.ui.choose = by_hand(one, "undo")
    result = resume(one)
    assert result.status is ExitStatus.OK, result.line
    assert "disable-swap       stays as it is: it was done by hand" in one.ui.text
    assert any("disable-swap" in line and "stays as it is" in line for line in result.lines)


def test_what_was_applied_as_a_whole_is_undone_though_a_person_saw_it_done() -> None:
    """It was too slow for its gate, and a person marked it later: all of it is gpufix's own."""
    one = session(INCIDENT)
    seen = one.facts
    late = [True]

    def facts() -> Facts:
        hides = late[0] and "disable-swap" in one.applied
        return replace(seen(), swaps=Observation.missing("not yet")) if hides else seen()

    one.facts = facts  # type: ignore[method-assign]
    assert recover(one).status is ExitStatus.NOT_IN_TIME
    late[0] = False
    one.ui.choose = by_hand(one, "undo")
    result = resume(one)
    assert result.status is ExitStatus.OK, result.line
    assert one.applied[-2:] == ["undo-disable-swap", "undo-relabel"]
    assert start(one.world) == start(INCIDENT)


def test_what_gpufix_did_again_after_a_mark_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "intent", "disable-swap")
    one.ui.choose = by_hand(one, "quit")
    resume(one)
    one.world = one.world._replace(swap=True, fstab=True, kubelet="auto-restart")
    one.ui.choose = choose()
    assert resume(one).status is ExitStatus.OK
    assert one.applied.count("disable-swap") == 1
    assert undo(one).status is ExitStatus.OK
    assert start(one.world) == start(INCIDENT)


@pytest.mark.parametrize(
    ("kubelet", "told"),
    [
        ("active", "Swap is on, so omen2 is dead again from the kubelet's next start on, a reboot too."),
        ("inactive", "The kubelet is stopped and swap is on: omen2 is dead until gpufix recover omen2 mends it."),
        (
            "auto-restart",
            "The kubelet dies of swap again and again: omen2 is dead until gpufix recover omen2 mends it.",
        ),
    ],
)
def test_the_end_of_an_undo_says_what_the_node_is_left_as(kubelet: str, told: str) -> None:
    one = session(INCIDENT)
    recover(one)
    one.world = one.world._replace(kubelet=kubelet)
    assert undo(one, "disable-swap").line.endswith(told)


def test_the_end_of_an_undo_says_that_a_held_kubelet_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "step-result", "disable-swap")
    told = "The kubelet is stopped: omen2 is dead until gpufix recover omen2 starts it in the right order."
    assert undo(one, "relabel").line.endswith(told)


def test_an_undo_that_cannot_be_tried_names_the_way_to_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    one = session(INCIDENT)
    recover(one)
    run = list_runs(state_folder())[0]
    through = one.run

    def refused(playbook: str, *arguments: Any, check: bool = False, **options: Any) -> Any:
        if playbook == "restore-swap.yml" and check:
            return PlayResult(False, Trouble.FAILED, "/etc/fstab was edited since", ())
        return through(playbook, *arguments, check=check, **options)

    monkeypatch.setattr(one, "run", refused)
    result = undo(one)
    assert result.status is ExitStatus.STEP_FAILED
    assert f"The others can be undone one by one: gpufix undo {run.id} --step STEP." in result.line
    assert undo(one, "relabel").status is ExitStatus.OK


def test_a_step_that_failed_or_was_declined_can_be_gone_on_with() -> None:
    one = session(INCIDENT, choose(disable_swap="quit"))
    assert recover(one).status is ExitStatus.DECLINED
    (run,) = list_runs(state_folder())
    assert run.state == "stopped"
    one.ui.choose = choose()
    assert resume(one).status is ExitStatus.OK
    assert [run.state for run in list_runs(state_folder())] == ["finished"]


def test_what_the_run_changed_before_it_was_gone_on_with_counts_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "step-result", "disable-swap")
    one.ui.choose = choose(**{"restart-kubelet": "quit"})
    result = resume(one)
    assert result.status is ExitStatus.DECLINED
    assert "Nothing was changed" not in result.line
    assert "The kubelet is stopped and stays stopped until restart-kubelet has run: gpufix resume" in result.line
    (run,) = list_runs(state_folder())
    assert (run.history.end or {})["line"] == result.line


def test_an_undo_that_is_gone_on_with_counts_what_it_changed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    one = session(INCIDENT)
    recover(one)
    one.ui.choose = choose(**{"undo-relabel": "quit"})
    assert undo(one).status is ExitStatus.DECLINED
    result = resume(one)
    assert result.status is ExitStatus.DECLINED
    assert "Nothing was changed" not in result.line


def test_a_run_that_changed_nothing_is_not_offered() -> None:
    one = session(INCIDENT, choose(relabel="quit"))
    assert recover(one).status is ExitStatus.DECLINED
    assert open_run(state_folder(), NODE, "") is None


# --- without a person ------------------------------------------------------------------------------------------------


def answered(tmp_path: Path, target: str = "container") -> Request:
    text = sample(BOOK, NODE).replace("  #target_workload: container", f"  target_workload: {target}")
    for step in ("relabel", "disable-swap"):
        text = text.replace(f"  {step}: false", f"  {step}: true")
    for step in ("stop-vfio-manager", "restart-kubelet"):
        text = text.replace(f"  {step}: false", f"  {step}: {NODE}")
    path = tmp_path / "answers.yml"
    path.write_text(text)
    answers, _ = load_answers(text, str(path), [BOOK])
    return Request([BOOK], answers, {"target_workload": Given(target, f"{path}:4:20")}, who="cron@bench")


def test_unattended_the_same_run_goes_on_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = killed(monkeypatch, "intent", "disable-swap")
    assert recover(one, answered(tmp_path)).status is ExitStatus.OK
    (run,) = list_runs(state_folder())
    assert run.history.process["who"] == "cron@bench"


def test_unattended_other_answers_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = killed(monkeypatch, "intent", "disable-swap")
    before = one.world
    with pytest.raises(GpufixError, match="is unfinished and was begun with container") as caught:
        recover(one, answered(tmp_path, "vm-passthrough"))
    assert caught.value.exit_status is ExitStatus.BLOCKED
    assert one.world == before


def test_unattended_a_run_for_something_else_is_not_gone_on_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = killed(monkeypatch, "step-result", "relabel")
    one.finding = replace(SICK, id="client-cert-expired")
    with pytest.raises(GpufixError, match="what ails the node now is client-cert-expired"):
        recover(one, answered(tmp_path))
    one.ui.choose = choose(**{"The run": "undo"})
    assert resume(one).status is ExitStatus.OK, "undoing does not ask what ails the node"


def test_answers_for_another_runbook_do_not_open_its_gates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = killed(monkeypatch, "intent", "disable-swap")
    request = answered(tmp_path)
    assert request.answers is not None
    other = replace(request, answers=replace(request.answers, runbook_id="another"))
    with pytest.raises(GpufixError, match="what was given is for the runbook another") as caught:
        recover(one, other)
    assert caught.value.exit_status is ExitStatus.BLOCKED and one.world.swap


def test_a_plan_is_not_walked_as_part_of_an_unfinished_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = killed(monkeypatch, "intent", "disable-swap")
    monkeypatch.setattr(recovery, "_require_unmoved", lambda *_: None)
    with pytest.raises(GpufixError, match="a plan is for a run of its own"):
        recover(one, replace(answered(tmp_path), plan={"digest": "d", "runbook": {"id": BOOK.id}}))
    assert one.world.swap


def test_a_run_that_somebody_else_ended_meanwhile_is_not_written_on(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "step-result", "relabel")
    seen = run_to_resume(state_folder(), NODE)
    assert resume(one, seen).status is ExitStatus.OK
    with pytest.raises(GpufixError, match="is finished by now: somebody else went on with it") as caught:
        resume(one, seen)
    assert caught.value.exit_status is ExitStatus.LOCKED


# --- undo ------------------------------------------------------------------------------------------------------------


def start(one: World) -> tuple[Any, ...]:
    return one.label, one.deploy_vfio, one.swap, one.fstab, one.native_unit


@pytest.mark.parametrize(
    "world",
    [INCIDENT, World(native_unit=True), World(fstab=False), World(label="", default="container", deploy_vfio=False)],
)
def test_undoing_a_whole_run_restores_the_start(world: World) -> None:
    one = session(world)
    assert recover(one).status is ExitStatus.OK
    one.applied.clear()
    result = undo(one)
    assert result.status is ExitStatus.OK, result.line
    assert start(one.world) == start(world)
    assert one.applied == ["undo-disable-swap", "undo-relabel"], "the newest first"
    assert one.fault == ""
    assert [run.state for run in list_runs(state_folder())] == ["undone", "finished"]
    with pytest.raises(GpufixError, match="nothing to undo"):
        undo(one)


def test_the_gate_of_an_undo_says_that_the_node_dies_again() -> None:
    one = session(INCIDENT)
    recover(one)
    one.ui.said.clear()
    undo(one)
    assert "after a restart or a reboot this node is dead again" in " ".join(one.ui.text.split())
    assert "restart-kubelet    stays as it is: A kubelet that has started cannot be unstarted" in one.ui.text
    assert "stop-vfio-manager  stays as it is" in one.ui.text


def test_one_step_can_be_undone_alone() -> None:
    one = session(INCIDENT)
    recover(one)
    assert undo(one, "disable-swap").status is ExitStatus.OK
    assert one.world.swap and one.world.label == "container"
    assert [run.state for run in list_runs(state_folder())] == ["finished", "finished"]
    with pytest.raises(GpufixError, match="did nothing in a step 'disable-swp'") as caught:
        undo(one, "disable-swp")
    assert "disable-swap" in caught.value.hint
    with pytest.raises(GpufixError, match=r"nothing of the run .* can be undone: restart-kubelet: A kubelet"):
        undo(one, "restart-kubelet")


def test_undoing_towards_passthrough_asks_who_dies() -> None:
    one = session(INCIDENT)
    recover(one)
    one.ui.said.clear()
    undo(one)
    told = one.ui.text
    assert told.count("These processes use the GPU and die") == 1, "at the label's gate, not at that of swap"


def test_undoing_puts_vfio_manager_s_label_back_only_with_a_list_of_who_dies() -> None:
    """No workload label and a default of container, but no operator that would take the deploy label off again."""
    one = session(World(label="", operator=False))
    assert recover(one).status is ExitStatus.OK
    one.ui.said.clear()
    assert undo(one).status is ExitStatus.OK
    assert "These processes use the GPU and die" in one.ui.text
    assert one.world.deploy_vfio and one.fault == ""


def test_a_job_that_came_after_the_gate_stops_the_undo() -> None:
    one = session(INCIDENT)
    recover(one)

    def decide(message: str, options: Sequence[str]) -> str:
        if message == "undo-relabel:":
            one.world = one.world._replace(jobs=frozenset({1, 2}))
        return choose()(message, options)

    one.ui.choose = decide
    result = undo(one)
    assert result.status is ExitStatus.BLOCKED
    assert "GPU processes nobody agreed to: 2" in result.line
    assert one.world.label == "container" and one.fault == ""


def test_the_first_attempt_says_what_the_start_was(monkeypatch: pytest.MonkeyPatch) -> None:
    one = session(INCIDENT)
    one.ends = lambda possible: possible[min(1, len(possible) - 2)] if len(possible) > 2 else possible[-1]  # no fstab
    one.ui.choose = choose()
    assert recover(one).status is not ExitStatus.OK
    one.ends = whole
    assert resume(one).status is ExitStatus.OK
    assert undo(one).status is ExitStatus.OK
    assert start(one.world) == start(INCIDENT)


def test_a_label_that_somebody_set_since_is_left_alone() -> None:
    one = session(INCIDENT)
    recover(one)
    one.world = one.world._replace(label="nonsense")
    one.applied.clear()
    result = undo(one)
    assert result.status is ExitStatus.OK
    assert one.applied == ["undo-disable-swap"] and one.world.label == "nonsense"
    assert "left as container and is nonsense by now: somebody changed it since" in " ".join(one.ui.text.split())


def test_the_operators_own_label_is_not_called_undone() -> None:
    one = session(World(label="container", deploy_vfio=True, operator=False))
    recover(one)
    assert "relabel" in one.applied and not one.world.deploy_vfio
    result = undo(one)
    assert result.line.startswith("Undone: undo-disable-swap."), result.line
    assert "was container before; only nvidia.com/gpu.deploy.vfio-manager was taken off" in " ".join(
        one.ui.text.split()
    )
    assert not one.world.deploy_vfio


def test_what_a_later_attempt_put_off_is_put_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    one = session(INCIDENT)
    one.ends = lambda possible: possible[min(1, len(possible) - 2)] if len(possible) > 2 else possible[-1]
    assert recover(one).status is not ExitStatus.OK
    one.ends = whole
    one.world = one.world._replace(native_unit=True)  # somebody installs one between the attempts
    assert resume(one).status is ExitStatus.OK
    assert not one.world.native_unit
    assert undo(one).status is ExitStatus.OK
    assert one.world.native_unit


@pytest.mark.parametrize(
    "swap",
    [
        {"swapon": None},
        {"swapon": ["/swapfile"]},
        {"swapon": [{"device": 1, "priority": -2}]},
        {"swapon": [{"device": "/swapfile"}]},
        {"units": 5},
        {"units": ["data.swap"]},
        {"services": None},
        {"backup": None},
    ],
)
def test_swap_material_of_another_shape_is_left(swap: dict[str, Any]) -> None:
    one = session(INCIDENT)
    recover(one)
    (run,) = list_runs(state_folder())
    lines = lines_of(run)
    next(line for line in lines if line["event"] == "intent" and line["step"] == "disable-swap")["undo"].update(swap)
    (run.folder / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
    one.applied.clear()
    assert undo(one).status is ExitStatus.OK
    assert one.applied == ["undo-relabel"]
    assert "its journal does not hold swap as it was" in " ".join(one.ui.text.split())


def test_fstab_edited_between_two_attempts_is_left_to_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "intent", "disable-swap")
    (run,) = list_runs(state_folder())
    assert resume(one).status is ExitStatus.OK
    text = (run.folder / JOURNAL).read_text()
    before, _, after = text.rpartition('"fstab_sha256": "' + "a" * 64)
    (run.folder / JOURNAL).write_text(before + '"fstab_sha256": "' + "c" * 64 + after)
    result = undo(one)
    assert result.status is ExitStatus.OK
    assert "somebody edited /etc/fstab between two attempts at it" in " ".join(one.ui.text.split())
    assert not one.world.swap, "the labels are undone, swap is not"


def test_a_label_that_somebody_sets_while_its_undo_is_under_way_stays() -> None:
    one = session(INCIDENT)
    recover(one)

    def decide(message: str, options: Sequence[str]) -> str:
        if message == "undo-relabel:":
            one.world = one.world._replace(label="nonsense")
        return choose()(message, options)

    one.ui.choose = decide
    result = undo(one)
    assert result.status is ExitStatus.BLOCKED
    assert "node.workload_config is nonsense, wanted container" in result.line
    assert one.world.label == "nonsense"


def test_a_label_set_between_two_attempts_is_left_to_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "intent", "relabel")
    one.world = one.world._replace(label="nonsense")
    assert resume(one).status is ExitStatus.OK
    assert undo(one).status is ExitStatus.OK
    assert "between two attempts at it: set it by hand" in " ".join(one.ui.text.split())
    assert one.world.label == "container" and one.world.swap


def test_undoing_never_trusts_another_node_of_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    one = session(INCIDENT)
    recover(one)
    (run,) = list_runs(state_folder())
    text = (run.folder / JOURNAL).read_text().replace('"node_uid": ""', '"node_uid": "of-another-cluster"', 1)
    (run.folder / JOURNAL).write_text(text)
    with pytest.raises(GpufixError, match="was on another node of this name") as caught:
        undo(one)
    assert caught.value.exit_status is ExitStatus.BLOCKED
    assert recover(session(INCIDENT)).status is ExitStatus.OK, "and recover does not offer it"


def test_an_older_run_is_undone_after_the_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one = session(INCIDENT)
    recover(one)
    first = list_runs(state_folder())[0]
    one.world = INCIDENT
    recover(one)
    with pytest.raises(GpufixError, match="after the run"):
        run_to_undo(state_folder(), first.id)
    undo(one)
    assert run_to_undo(state_folder(), NODE).id == first.id


def test_check_shows_the_plan_of_an_undo_and_changes_nothing() -> None:
    one = session(INCIDENT)
    recover(one)
    before = one.world
    result = undoing.undo(one, Request([BOOK], check=True), run_to_undo(state_folder(), NODE))  # type: ignore[arg-type]
    assert result.made is not None and one.world == before
    assert [step["id"] for step in result.made["steps"]] == ["undo-disable-swap", "undo-relabel"]
    assert len(list_runs(state_folder())) == 1


# --- an undo that stopped --------------------------------------------------------------------------------------------


def stopped_undo() -> ModelSession:
    """After a recovery and an undo of it that was left at the gate of the labels: swap is on, the node about to die."""
    one = session(INCIDENT)
    recover(one)
    one.ui.choose = choose(undo_relabel="quit")
    assert undo(one).status is ExitStatus.DECLINED
    assert [run.state for run in list_runs(state_folder())] == ["finished", "stopped"]
    return one


def test_a_stopped_undo_does_not_keep_the_node_from_being_recovered() -> None:
    one = stopped_undo()
    offered: list[Sequence[str]] = []

    def decide(message: str, options: Sequence[str]) -> str:
        if message.startswith("The run"):
            offered.append(options)
            return "new"
        return choose()(message, options)

    one.ui.choose = decide
    one.world = one.world._replace(kubelet="auto-restart")
    result = recover(one)
    assert result.status is ExitStatus.OK, result.line
    assert offered == [["on", "close", "new", "quit"]]
    assert [run.state for run in list_runs(state_folder())] == ["finished", "finished", "finished"]


def test_a_stopped_undo_is_gone_on_with_closed_or_left() -> None:
    one = stopped_undo()
    one.ui.choose = choose(**{"The run": "quit"})
    assert resume(one).status is ExitStatus.DECLINED
    assert run_to_resume(state_folder(), NODE).history.kind == "undo"
    one.ui.choose = choose()
    assert resume(one).status is ExitStatus.OK
    assert start(one.world) == start(INCIDENT)
    assert [run.state for run in list_runs(state_folder())] == ["undone", "finished"]


def test_an_undo_whose_run_is_gone_can_only_be_closed() -> None:
    one = stopped_undo()
    of, _ = list_runs(state_folder())
    of.folder.rename(of.folder.parent.parent / "elsewhere")
    one.applied.clear()
    one.ui.choose = lambda message, options: options[0]
    result = resume(one)
    assert "is closed: what it did stays as it is" in result.line and one.applied == []
    assert f"the run {of.id}, which it undoes, is gone" in " ".join(one.ui.text.split())


def test_an_undo_that_another_one_finished_is_over() -> None:
    one = stopped_undo()
    one.ui.choose = choose()
    assert undo(one).status is ExitStatus.OK
    assert [run.state for run in list_runs(state_folder())] == ["undone", "finished", "finished"]
    assert open_run(state_folder(), NODE, "") is None


# --- a journal that cannot be relied on ------------------------------------------------------------------------------


def damaged(run: Run, how: str) -> None:
    path = run.folder / JOURNAL
    lines = path.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if '"event": "intent"' in line)
    if how == "broken":
        lines[at] = lines[at][:40]
    elif how == "newer":
        lines[at] = lines[at].replace('"v": 1', '"v": 2')
    elif how == "missing":
        del lines[at]
    elif how == "doubled":
        lines.insert(at, lines[at])
    else:
        lines[at], lines[at + 1] = lines[at + 1], lines[at]
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("broken", r"its journal is damaged: line \d+ cannot be read"),
        ("newer", "its journal was written by a newer gpufix"),
        ("missing", "are missing, doubled or out of their order"),
        ("doubled", "are missing, doubled or out of their order"),
        ("swapped", "are missing, doubled or out of their order"),
    ],
)
def test_nothing_is_undone_or_gone_on_with_by_a_damaged_journal(
    monkeypatch: pytest.MonkeyPatch, how: str, told: str
) -> None:
    one = killed(monkeypatch, "step-result", "disable-swap")
    (run,) = list_runs(state_folder())
    damaged(run, how)
    one.applied.clear()
    with pytest.raises(GpufixError, match=told) as caught:
        undo(one)
    assert caught.value.exit_status is ExitStatus.BLOCKED
    offered: list[Sequence[str]] = []
    one.ui.choose = lambda message, options: offered.append(options) or "quit"  # type: ignore[func-returns-value]
    assert resume(one).status is ExitStatus.DECLINED
    assert offered == [["close", "quit"]]
    assert one.applied == []


def test_a_resume_that_was_cut_off_in_its_first_line_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    killed(monkeypatch, "step-result", "relabel")
    (run,) = list_runs(state_folder())
    for _ in range(2):
        with (run.folder / JOURNAL).open("a") as journal:
            journal.write('{"v": 1, "seq": 7, "event": "res\n')
    (run.folder / JOURNAL).write_bytes((run.folder / JOURNAL).read_bytes()[:-1])
    assert find_run(state_folder(), run.id).history.damage == "", "died twice, each time in the first line"
    Journal.reopen(run.folder, run.history.seq).write("resume", pid=1)
    assert find_run(state_folder(), run.id).history.damage == ""


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({}, "does not say what was answered to target_workload"),
        ([], "does not say what was answered to target_workload"),
        ({"target_workload": {"value": "nonsense"}}, "'nonsense', which its journal has for target_workload"),
        ({"target_workload": None}, "'None', which its journal has for target_workload"),
    ],
)
def test_answers_that_the_runbook_does_not_know_change_nothing(
    monkeypatch: pytest.MonkeyPatch, answers: object, told: str
) -> None:
    one = killed(monkeypatch, "step-result", "relabel")
    (run,) = list_runs(state_folder())
    lines = lines_of(run)
    lines[0]["answers"] = answers
    (run.folder / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
    one.applied.clear()
    one.ui.choose = choose(**{"The run": "quit"})
    assert resume(one).status is ExitStatus.DECLINED
    assert told in " ".join(one.ui.text.split())
    assert one.applied == []


# --- one at a time ---------------------------------------------------------------------------------------------------


def test_a_run_whose_process_lives_is_not_taken_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "step-result", "relabel")
    (run,) = list_runs(state_folder())
    monkeypatch.setattr(runs, "process_began", lambda pid: run.history.process["pid_began"])
    for find in (run_to_resume, run_to_undo):
        with pytest.raises(GpufixError, match=r"is going on: tester@bench \(process \d+\)") as caught:
            find(state_folder(), NODE)
        assert caught.value.exit_status is ExitStatus.LOCKED
    assert one.world.label == "container"


def test_a_journal_has_one_writer(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "run")
    journal.write("run-start", node=NODE)
    with pytest.raises(GpufixError, match="is being written by another process") as caught:
        Journal.reopen(tmp_path / "run", 1)
    assert caught.value.exit_status is ExitStatus.LOCKED
    journal.close()
    again = Journal.reopen(tmp_path / "run", 1)
    again.write("resume")
    again.close()
    assert [line["seq"] for line in read_history((tmp_path / "run" / JOURNAL).read_text()).lines] == [1, 2]


def test_what_happened_while_the_lock_was_waited_for_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "intent", "relabel")

    @contextmanager
    def hold() -> Iterator[Any]:
        one.clock.sleep(30)
        one.world = one.world._replace(label="container", deploy_vfio=False)  # the other one's step came to its end
        yield one.holding

    monkeypatch.setattr(one, "hold", hold)
    resume(one)
    (run,) = list_runs(state_folder())
    assert [line["outcome"] for line in run.history.all("settled", "relabel")] == ["done"]


def test_a_hold_that_was_lost_stops_the_next_change() -> None:
    one = session(INCIDENT)

    class Lost:
        words = "lease"

        def name_run(self, run: str) -> None: ...

        def fence(self, step: str) -> None:
            if step == "disable-swap":
                raise GpufixError("omen2 was taken over by jane@other", "", ExitStatus.LOCKED)

    one.holding = Lost()  # type: ignore[assignment]
    result = recover(one)
    assert result.status is ExitStatus.LOCKED
    assert "taken over by jane@other; nothing of it was done" in result.line
    assert one.applied == ["relabel", "stop-vfio-manager"]


# --- which run is meant ----------------------------------------------------------------------------------------------


def test_what_cannot_be_gone_on_with_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GpufixError, match="no run 'omen2'"):
        run_to_resume(state_folder(), NODE)
    with pytest.raises(GpufixError, match="which run") as caught:
        run_to_resume(state_folder(), None)
    assert "none is unfinished" in caught.value.hint
    one = killed(monkeypatch, "step-result", "relabel")
    assert run_to_resume(state_folder(), None).state == "unfinished"
    resume(one)
    with pytest.raises(GpufixError, match="has ended: there is nothing to go on with"):
        run_to_resume(state_folder(), NODE)


def test_a_node_means_its_unfinished_run_not_one_that_came_to_nothing() -> None:
    one = session(INCIDENT, choose(disable_swap="quit"))
    recover(one)
    one.ui.choose = choose(undo="quit")
    assert undo(one).status is ExitStatus.DECLINED
    first, last = list_runs(state_folder())
    assert (first.state, last.state) == ("stopped", "finished")
    assert run_to_resume(state_folder(), NODE).id == first.id
    with pytest.raises(GpufixError, match="has ended"):
        run_to_resume(state_folder(), last.id)


def test_a_newer_run_that_cannot_be_read_is_not_passed_over_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    one = session(INCIDENT)
    recover(one)
    first = list_runs(state_folder())[0]
    lost = first.folder.with_name("20991231T000000Z-omen2-1-2")
    lost.mkdir()
    (lost / "run.jsonl").write_text("")
    other = first.folder.with_name("20991231T000000Z-omen3-1")
    other.mkdir()
    (other / "run.jsonl").write_text("")
    with pytest.raises(GpufixError, match="has ended") as refused:
        run_to_resume(state_folder(), NODE)
    assert refused.value.exit_status is ExitStatus.BLOCKED
    assert refused.value.hint == f"a newer run of this node cannot be read: {lost}"
    assert [run.id for run in newer_runs(state_folder(), run_to_undo(state_folder(), NODE))] == [lost.name]


def test_the_clock_says_nothing_of_which_run_is_the_last() -> None:
    one = session(INCIDENT)
    recover(one)
    first = list_runs(state_folder())[0]
    first.folder.rename(first.folder.with_name("20991231T000000Z-omen2-1"))  # the clock was ahead then
    one.world = INCIDENT
    recover(one)
    assert [run.number for run in list_runs(state_folder())] == [1, 2]
    assert run_to_undo(state_folder(), NODE).number == 2


def test_prune_leaves_what_can_be_gone_on_with() -> None:
    one = session(INCIDENT, choose(disable_swap="quit"))
    recover(one)
    assert to_prune(list_runs(state_folder()), 0) == []
    one.ui.choose = choose(**{"The run": "new"})
    recover(one)
    assert [run.number for run in to_prune(list_runs(state_folder()), 0)] == [1, 2]


def test_one_rule_says_which_run_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a node and without, the same one is chosen: the newest that can be gone on with."""
    one = killed(monkeypatch, "step-result", "relabel")
    as_of(list_runs(state_folder())[0], node_uid="of-the-node-before")
    assert run_to_resume(state_folder(), None).id == run_to_resume(state_folder(), NODE).id
    one.ui.choose = choose(disable_swap="quit")
    one.world = INCIDENT
    assert recover(one).status is ExitStatus.DECLINED
    first, second = list_runs(state_folder())
    assert (first.state, second.state) == ("unfinished", "stopped")
    for named in (None, NODE):
        assert run_to_resume(state_folder(), named).id == second.id
        assert run_to_undo(state_folder(), named).id == second.id
    as_of(first, node="omen9")
    for find in (run_to_resume, run_to_undo):
        with pytest.raises(GpufixError, match="which run") as caught:
            find(state_folder(), None)
        assert first.id in caught.value.hint and second.id in caught.value.hint


def as_of(run: Run, **start: Any) -> None:
    """Change the first line of a journal."""
    first, *rest = lines_of(run)
    (run.folder / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in [{**first, **start}, *rest]))


def test_undoing_an_older_run_says_that_it_is_not_the_newest() -> None:
    one = session(INCIDENT)
    recover(one)
    one.world = INCIDENT
    recover(one)
    first, second = list_runs(state_folder())
    assert newer_runs(state_folder(), second) == []
    undo(one)
    run = run_to_undo(state_folder(), NODE)
    assert run.id == first.id
    newer = [(other.id, other.state) for other in newer_runs(state_folder(), run)]
    assert newer[0] == (second.id, "undone")
    told = about_lines(run.id, run.state, run.history, newer, Style(width=300))
    assert told[0].startswith(f"Run {first.id} on omen2: revive-kubelet-swap, begun 2") and " UTC by tester@" in told[0]
    assert told[1] == "  It acted in: relabel, stop-vfio-manager, disable-swap, restart-kubelet."
    assert f"! It is not the newest run on omen2. After it came: {second.id} (undone)" in told[2]


# --- a node that is gone ---------------------------------------------------------------------------------------------


def gone(monkeypatch: pytest.MonkeyPatch, how: str) -> ModelSession:
    """After a recovery that was killed; then the node was deleted, and perhaps made anew."""
    one = killed(monkeypatch, "step-result", "relabel")
    if how == "made anew":
        as_of(list_runs(state_folder())[0], node_uid="of-the-node-before")
        return one

    def read() -> Any:
        raise NodeGone("the cluster has no node 'omen2'", "there is: omen1")

    monkeypatch.setattr(one, "read", read)
    return one


@pytest.mark.parametrize("how", ["deleted", "made anew"])
@pytest.mark.parametrize("choice", ["close", "quit"])
def test_a_run_of_a_node_that_is_gone_can_be_closed_and_pruned(
    monkeypatch: pytest.MonkeyPatch, how: str, choice: str
) -> None:
    one = gone(monkeypatch, how)
    before, asked = one.world, list[Sequence[str]]()
    one.ui.choose = lambda message, options: asked.append(options) or choice  # type: ignore[func-returns-value]
    result = resume(one)
    assert (result.status, one.world, asked) == (ExitStatus.DECLINED, before, [["quit", "close"]])
    assert "It cannot be gone on with: the " in one.ui.text
    (run,) = list_runs(state_folder())
    assert run.state == ("finished" if choice == "close" else "unfinished")
    assert [one.id for one in to_prune([run], 0)] == ([run.id] if choice == "close" else [])


@pytest.mark.parametrize(("how", "status"), [("deleted", 2), ("made anew", 4)])
def test_without_a_person_the_way_to_close_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str, status: int
) -> None:
    one = gone(monkeypatch, how)
    (run,) = list_runs(state_folder())
    for go_on in (lambda: resume(one, request=answered(tmp_path)), lambda: undo(one)):
        with pytest.raises(GpufixError) as caught:
            go_on()
        assert caught.value.exit_status == status
        assert f"gpufix runs close {run.id} ends it" in caught.value.hint
    assert find_run(state_folder(), run.id).state == "unfinished"


# --- the lock comes first --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["recover", "resume", "recover again"])
def test_a_held_lock_is_told_before_the_diagnosis(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    one = killed(monkeypatch, "step-result", "relabel") if verb != "recover" else session(INCIDENT)
    one.ui.said.clear()

    @contextmanager
    def hold() -> Iterator[Any]:
        raise GpufixError("omen2 is being recovered by jane@other", "let that run end", ExitStatus.LOCKED)
        yield

    monkeypatch.setattr(one, "hold", hold)
    with pytest.raises(GpufixError, match="is being recovered by jane@other") as caught:
        resume(one) if verb == "resume" else recover(one)
    assert caught.value.exit_status is ExitStatus.LOCKED
    assert one.ui.said == []


def test_no_lock_is_asked_for_where_nothing_is_to_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = session(INCIDENT)
    one.finding = replace(SICK, id="client-cert-expired")
    monkeypatch.setattr(one, "hold", lambda: pytest.fail("asked for"))
    assert recover(one).status is ExitStatus.DECLINED
