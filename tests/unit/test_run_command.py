"""The commands of a run without a person, over the model world: each exit status, what is on stdout and on stderr,
and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from model_session import BOOK, STEP_OF, ModelSession, Ui, calm, whole
from order_model import NODE, World

from gpufix import cli, resources
from gpufix import walk as walk_module
from gpufix.core.answers_format import sample
from gpufix.core.fold import PlayResult
from gpufix.core.plan_data import digest_of
from gpufix.errors import ExitStatus
from gpufix.model import Observation, Snapshot
from gpufix.session import Reading

FILLED = {
    "  #target_workload: container": "  target_workload: container",
    "  relabel: false": "  relabel: true",
    "  stop-vfio-manager: false": f"  stop-vfio-manager: {NODE}",
    "  disable-swap: false": "  disable-swap: true",
    "  restart-kubelet: false": f"  restart-kubelet: {NODE}",
}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(walk_module, "POLL_SECONDS", 5.0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    text = sample(BOOK, NODE)
    for old, new in FILLED.items():
        assert text.count(old + "\n") == 1
        text = text.replace(old + "\n", new + "\n")
    Path("answers.yml").write_text(text)


Run = Callable[..., int]


@pytest.fixture
def world() -> ModelSession:
    def asked(*_: Any) -> str:
        pytest.fail("somebody was asked")

    return ModelSession(World(), Ui(asked, lambda: pytest.fail("asked for text")), calm, whole)


@pytest.fixture
def run(world: ModelSession, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``gpufix ...``; the session's doors are the model's, all the rest is real."""

    def session_of(arguments: Any, ui: Any) -> ModelSession:
        world.ui = ui
        return world

    monkeypatch.setattr(cli, "_session", session_of)
    return lambda *words: cli.main([str(word) for word in words])


RECOVER = ("recover", NODE, "--answers", "answers.yml")


# --- every exit status that a run can have (8 comes with the lock) ---------------------------------------------------


def half(world: ModelSession) -> None:
    world.ends = lambda possible: possible[0] if len(possible) > 1 else possible[-1]


def late(world: ModelSession) -> None:
    world.meanwhile = lambda now: now._replace(deploy_vfio=True)


def interrupted(world: ModelSession) -> None:
    real = world.run

    def run(playbook: str, host: str, variables: Any, *, check: bool = False) -> PlayResult:
        if not check and STEP_OF[playbook] == "relabel":
            os.kill(os.getpid(), signal.SIGINT)
        return real(playbook, host, variables, check=check)

    world.run = run  # type: ignore[method-assign]


def unreachable(world: ModelSession) -> None:
    real = world.read

    def read() -> Reading:
        seen = real()
        return Reading(Snapshot(NODE, {}, {"host": "ssh: no route to host"}), seen.facts, seen.diagnosis)

    world.read = read  # type: ignore[method-assign]


def defect(world: ModelSession) -> None:
    world.read = lambda: 1 / 0  # type: ignore[assignment,method-assign,return-value]


def unedited(world: ModelSession) -> None:
    Path("answers.yml").write_text(sample(BOOK, NODE))


def declined(world: ModelSession) -> None:
    Path("answers.yml").write_text(Path("answers.yml").read_text().replace("relabel: true", "relabel: false"))


def heavy(world: ModelSession) -> None:
    world.world = World(heavy=True)


@pytest.mark.parametrize(
    ("happens", "status", "words", "changed"),
    [
        (lambda world: None, ExitStatus.OK, "Recovered: omen2", True),
        (defect, ExitStatus.INTERNAL, "internal error: ZeroDivisionError", False),
        (unedited, ExitStatus.USAGE, "answers.target_workload is not answered", False),
        (declined, ExitStatus.DECLINED, "consent.relabel is false", False),
        (heavy, ExitStatus.BLOCKED, "O3", False),
        (half, ExitStatus.STEP_FAILED, "it broke half-way", True),
        (late, ExitStatus.NOT_IN_TIME, "node.vfio_manager_label", True),
        (unreachable, ExitStatus.UNREACHABLE, "no route to host", False),
        (interrupted, ExitStatus.INTERRUPTED, "stopped after relabel, as asked", True),
    ],
)
def test_each_exit_status_of_recover(
    run: Run, world: ModelSession, capsys: pytest.CaptureFixture[str],
    happens: Callable[[ModelSession], None], status: ExitStatus, words: str, changed: bool,
) -> None:  # fmt: skip
    happens(world)
    assert run(*RECOVER) == status
    told = capsys.readouterr()
    assert words in told.out + told.err
    assert bool(world.applied) is changed
    assert "Traceback" not in told.err


@pytest.mark.parametrize("happens", [lambda world: None, heavy, declined, unreachable, half])
def test_json_is_all_of_stdout(
    run: Run, world: ModelSession, capsys: pytest.CaptureFixture[str], happens: Callable[[ModelSession], None]
) -> None:
    happens(world)
    status = run(*RECOVER, "-o", "json")
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, resources.result_schema())
    assert data["exit_status"] == status


# --- plan, show ------------------------------------------------------------------------------------------------------


def test_a_plan_is_saved_shown_and_applied(run: Run, world: ModelSession, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", NODE, "--answers", "answers.yml", "--out", "plan.json") == 0
    printed = capsys.readouterr().out
    assert "complete, applyable" in printed and world.applied == []
    assert stat.S_IMODE(Path("plan.json").stat().st_mode) == 0o600
    assert run("show", "plan.json") == 0
    shown = capsys.readouterr().out
    assert shown.strip() in printed, "the same object, the same view"
    assert run("show", "plan.json", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(Path("plan.json").read_text())
    assert run(*RECOVER, "--plan", "plan.json", "-q") == 0
    assert world.applied == ["relabel", "stop-vfio-manager", "disable-swap", "restart-kubelet"]
    told = capsys.readouterr()
    assert told.err == "", "quiet"
    assert told.out.startswith("What was done")
    assert run(*RECOVER, "--plan", "plan.json") == ExitStatus.BLOCKED, "the world has moved, by the run itself"
    assert "the plan is stale" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("happens", "status"), [(lambda world: None, 0), (heavy, 4), (unreachable, 7), (defect, 1), (declined, 0)]
)
def test_the_exit_status_of_plan(
    run: Run, world: ModelSession, happens: Callable[[ModelSession], None], status: int
) -> None:
    happens(world)
    assert run("plan", NODE, "--answers", "answers.yml") == status
    assert world.applied == []


def test_a_plan_without_answers_says_what_is_open(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", NODE, "-o", "json") == 0
    plan = json.loads(capsys.readouterr().out)
    jsonschema.validate(plan, resources.plan_schema())
    assert not plan["complete"]
    assert plan["answers"]["target_workload"]["origin"] == "the runbook's default"
    assert run("plan", NODE, "-a", "target_workload=container", "-o", "json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["complete"] and again["answers"]["target_workload"]["origin"] == "-a target_workload=container"


def test_an_override_wins_over_the_file_and_says_so(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    other = ("-a", "target_workload=vm-passthrough", "--check", "-o", "json")
    assert run(*RECOVER, *other) == 2
    assert "consent.relabel is true, but the step is destructive" in capsys.readouterr().out, "for this answer it is"
    text = Path("answers.yml").read_text()
    Path("answers.yml").write_text(text.replace("  relabel: true", f"  relabel: {NODE}"))
    assert run(*RECOVER, *other) == 2
    plan = json.loads(capsys.readouterr().out)
    assert plan["answers"]["target_workload"]["origin"] == "-a target_workload=vm-passthrough"
    missing = " ".join(plan["consents_missing"])
    assert "kills in answers.yml does not list who uses the GPU and dies: 1 (python3)" in missing


def rebooting(world: ModelSession) -> None:
    """kured is at the node: it stops a run without a person. NVSentinel, which has given up, does not."""
    real = world.read

    def read() -> Reading:
        seen = real()
        node = seen.facts.node.value
        assert node is not None
        marks = {"weave.works/kured-reboot-in-progress": "2026-12-01T04:11:00Z"}
        labels = {**node.labels, "dgxc.nvidia.com/nvsentinel-state": "remediation-failed"}
        marked = replace(node, annotations=marks, labels=labels)
        return Reading(seen.snapshot, replace(seen.facts, node=Observation.of(marked)), seen.diagnosis)

    world.read = read  # type: ignore[method-assign]


def test_a_plan_tells_who_else_is_at_the_node(
    run: Run, world: ModelSession, capsys: pytest.CaptureFixture[str]
) -> None:
    rebooting(world)
    assert run("plan", NODE, "--out", "plan.json") == 0, "a person may decide to go on"
    printed = capsys.readouterr().out
    shown = printed.split("Others at this node\n", 1)[1]
    assert shown.lstrip().startswith("stop: kured has wanted to reboot") and "\n  mind: NVSentinel" in shown
    assert "Without a person" not in printed
    plan = json.loads(Path("plan.json").read_text())
    jsonschema.validate(plan, resources.plan_schema())
    assert [(mark["who"], mark["stops"]) for mark in plan["marks"]] == [("kured", True), ("NVSentinel", False)]
    assert "weave.works/kured-reboot-in-progress" in plan["marks"][0]["evidence"]["excerpt"]

    stops = "Without a person it stops before its first change: somebody else is at omen2: kured has wanted to reboot"
    assert run("plan", NODE, "--answers", "answers.yml", "--out", "plan.json") == 0
    printed = " ".join(capsys.readouterr().out.split())
    begins = "- a run without a person does not begin: kured has wanted to reboot"
    assert stops in printed and begins in printed
    assert run("show", "plan.json") == 0
    assert begins in " ".join(capsys.readouterr().out.split())
    assert run(*RECOVER, "--check") == ExitStatus.BLOCKED, "as the run itself ends"
    assert stops in " ".join(capsys.readouterr().out.split())
    assert run(*RECOVER) == ExitStatus.BLOCKED
    assert "somebody else is at omen2: kured has wanted to reboot" in capsys.readouterr().err
    assert world.applied == []


def test_a_plan_tells_where_each_consent_was_given(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("answers.yml").read_text()
    Path("answers.yml").write_text(text.replace("  disable-swap: true\n", "  disable-swap: skip\n"))
    given = {
        step: f"answers.yml:{number}:{line.index(': ') + 3}"
        for number, line in enumerate(Path("answers.yml").read_text().splitlines(), 1)
        for step in ("relabel", "stop-vfio-manager", "disable-swap", "restart-kubelet")
        if line.startswith(f"  {step}: ")
    }
    assert run("plan", NODE, "--answers", "answers.yml") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"Consent given: consent.relabel ({given['relabel']})" in printed
    assert "Consent wanted unattended: consent.disable-swap: true" in printed, "a skip that a later step does not allow"
    Path("answers.yml").write_text(text)
    assert run("plan", NODE, "--answers", "answers.yml", "-o", "json") == 0
    plan = json.loads(capsys.readouterr().out)
    jsonschema.validate(plan, resources.plan_schema())
    assert plan["consents_given"] == {step: {"kind": "yes", "origin": origin} for step, origin in given.items()}
    assert run("plan", NODE, "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["consents_given"] == {}


def test_a_plan_of_before_these_were_told_reads_as_it_did(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", NODE, "--answers", "answers.yml", "--out", "plan.json", "-q") == 0
    plan = json.loads(Path("plan.json").read_text())
    del plan["marks"], plan["consents_given"]
    Path("plan.json").write_text(json.dumps({**plan, "digest": digest_of(plan)}))
    capsys.readouterr()
    assert run("show", "plan.json") == 0
    shown = capsys.readouterr().out
    assert "Others at this node" not in shown and "Consent wanted unattended: consent.relabel: true" in shown


def test_a_plan_is_written_over_a_plan_and_over_nothing_else(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", NODE, "--out", "plan.json", "-q") == 0
    assert run("plan", NODE, "--out", "plan.json", "-q") == 0
    Path("thesis.txt").write_text("years of work")
    assert run("plan", NODE, "--out", "thesis.txt") == 2
    assert Path("thesis.txt").read_text() == "years of work"


# --- what is left behind ---------------------------------------------------------------------------------------------


def test_events_metrics_and_no_secret(run: Run, world: ModelSession, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*RECOVER, "--events", "events.jsonl", "--metrics-file", "gpufix.prom", "-q") == 0
    events = [json.loads(line) for line in Path("events.jsonl").read_text().splitlines()]
    schema = json.loads(resources.read_text("events.schema.json"))
    for event in events:
        jsonschema.validate(event, schema)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    names = [event["event"] for event in events if event.get("step") in (None, "relabel")]
    assert names == [
        "diagnosis", "plan", "run-start", "step-start", "preview", "consent", "intent", "applied", "step-result",
        "run-end",
    ]  # fmt: skip
    assert 'gpufix_recover_exit_status{node="omen2",runbook="revive-kubelet-swap"} 0' in Path("gpufix.prom").read_text()


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A real HTTP server, and what was posted to it."""
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/services/SECRET", posted
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_hears_of_start_and_end(run: Run, webhook: tuple[str, list[dict[str, Any]]]) -> None:
    url, posted = webhook
    assert run(*RECOVER, "--notify", url, "-q") == 0
    assert [one["event"] for one in posted] == ["started", "finished"]
    assert posted[-1]["verdicts"]["node"] == "well" and "vms" in posted[-1]["verdicts"]
    assert "Recovered: omen2" in posted[-1]["text"]
    written = "".join(path.read_text() for path in Path("state").rglob("*") if path.is_file())
    assert "SECRET" not in written


def test_a_webhook_that_is_not_there_fails_nothing(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*RECOVER, "--notify", "http://127.0.0.1:1/services/SECRET", "-q") == 0
    told = capsys.readouterr().err
    assert "notify http://127.0.0.1" in told and "SECRET" not in told


def test_events_on_stdout_are_all_of_it(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*RECOVER, "--events", "-") == 0
    assert [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()][-1] == "run-end"
    assert run(*RECOVER, "--check", "--events", "-") == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (plan,) = [one["plan"] for one in told if one["event"] == "plan"]
    jsonschema.validate(plan, resources.plan_schema())


def test_a_refused_run_ends_in_the_stream_too(run: Run, world: ModelSession) -> None:
    heavy(world)
    assert run(*RECOVER, "--events", "events.jsonl", "--metrics-file", "gpufix.prom") == 4
    assert 'gpufix_recover_exit_status{node="omen2",runbook=""} 4' in Path("gpufix.prom").read_text()
    last = json.loads(Path("events.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["exit_status"]) == ("run-end", 4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-o", "json", "--events", "-"), "both want stdout"),
        (("-K",), "nobody is there to answer"),
        (("--save-answers", "new.yml"), "what a person answers"),
        (("--metrics-file", "gpufix.txt"), ".prom"),
        (("--events", "no/such/folder"), "--events no/such/folder"),
        (("--notify", "ftp://example.com/T0/SECRET"), "neither http:// nor https://"),
        (("-a", "target_workload"), "'=' is missing"),
        (("--plan", "missing.json"), "missing.json"),
        (("--plan", "answers.yml"), "not a plan"),
    ],
)
def test_options_that_do_not_go_together(
    run: Run, world: ModelSession, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert run(*RECOVER, *words) == 2
    told = capsys.readouterr()
    assert said in told.err and "SECRET" not in told.err
    assert world.applied == [] and world.dry_runs == []
    assert len(told.err.splitlines()) <= 2


@pytest.mark.parametrize("words", [("-o", "json"), ("--quiet",), ("--events", "-")])
def test_a_wizard_has_stdout_for_itself(run: Run, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert run("recover", NODE, *words) == 2
    assert "no room for a wizard" in capsys.readouterr().err


def test_answers_for_another_node_are_refused_before_anything_is_read(
    run: Run, world: ModelSession, capsys: pytest.CaptureFixture[str]
) -> None:
    world.read = lambda: pytest.fail("the cluster was read")  # type: ignore[method-assign]
    assert run("recover", "omen3", "--answers", "answers.yml") == 2
    assert "answers.yml:11:7: these are answers for node omen2" in capsys.readouterr().err


def test_a_plain_yes_to_a_destructive_step_is_told_before_anything_is_read(
    run: Run, world: ModelSession, capsys: pytest.CaptureFixture[str]
) -> None:
    world.read = lambda: pytest.fail("the cluster was read")  # type: ignore[method-assign]
    text = Path("answers.yml").read_text()
    Path("answers.yml").write_text(text.replace(f"stop-vfio-manager: {NODE}", "stop-vfio-manager: true"))
    assert run(*RECOVER) == 2
    assert "consent.stop-vfio-manager is true, but the step is destructive" in capsys.readouterr().err


def test_a_failed_run_says_why_on_stderr_where_stdout_is_for_events(
    run: Run, world: ModelSession, capsys: pytest.CaptureFixture[str]
) -> None:
    half(world)
    assert run(*RECOVER, "--events", "-", "-q") == 5
    assert capsys.readouterr().err.startswith("gpufix: Not recovered: relabel")


def test_the_sample_and_its_schema(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("answers", "--node", NODE) == 0
    assert capsys.readouterr().out == sample(BOOK, NODE)
    assert run("answers", BOOK.id, "--schema") == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(capsys.readouterr().out))
    assert run("answers", "revive-kubelet-swop") == 2
    assert "did you mean revive-kubelet-swap" in capsys.readouterr().err


# --- what a breaker found --------------------------------------------------------------------------------------------


def test_a_plan_made_on_a_default_is_no_plan_for_another_answer(
    run: Run, world: ModelSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", NODE, "--out", "plan.json", "-q") == 0
    digest = json.loads(Path("plan.json").read_text())["digest"]
    text = Path("answers.yml").read_text().replace("target_workload: container", "target_workload: vm-passthrough")
    for step in ("relabel: true", f"stop-vfio-manager: {NODE}", "disable-swap: true", f"restart-kubelet: {NODE}"):
        name = step.partition(":")[0]
        text = text.replace(f"  {step}", f"  {name}: {{consent: {NODE}, plan: '{digest}', kills: [1]}}")
    Path("answers.yml").write_text(text)
    for more in ((), ("--check",)):
        assert run(*RECOVER, "--plan", "plan.json", *more) == 2
        assert "target_workload is vm-passthrough, but plan.json was made for container" in capsys.readouterr().err
    assert world.applied == []


def test_a_plan_of_one_runbook_is_no_plan_for_another(
    run: Run, world: ModelSession, capsys: pytest.CaptureFixture[str]
) -> None:
    (original,) = resources.runbook_paths()
    books = Path("books")
    books.mkdir()
    (books / "zz.yml").write_text(original.read_text())
    milder = (
        original.read_text()
        .replace(f"id: {BOOK.id}", "id: aa-other")
        .replace("destructive: true", "destructive: false")
    )
    assert run("plan", NODE, "--answers", "answers.yml", "--out", "plan.json", "--runbooks", "books", "-q") == 0
    (books / "aa.yml").write_text(milder)
    answers = Path("answers.yml").read_text().replace(f"runbook: {BOOK.id}", "runbook: aa-other")
    Path("answers.yml").write_text(answers)
    assert run(*RECOVER, "--plan", "plan.json", "--runbooks", "books") == 4
    assert f"the plan is of the runbook {BOOK.id}" in capsys.readouterr().err
    Path("answers.yml").write_text(answers.replace(f"restart-kubelet: {NODE}", "restart-kubelet: true"))
    assert run(*RECOVER, "--runbooks", "books") == 2
    assert "restart-kubelet is true, but the step is destructive" in capsys.readouterr().err, "whatever a runbook says"
    assert world.applied == []


@pytest.mark.parametrize(
    "words", [("recover", NODE, "--answers", "missing.yml", "-o", "json"), ("plan", "Bad Name", "-o", "json")]
)
def test_a_reader_that_went_away_changes_no_exit_status(words: tuple[str, ...]) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "gpufix", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    assert child.wait(60) == 2
    assert "missing.yml" in (told := child.stderr.read()) or "no node name" in told
    child.stderr.close()


def test_a_full_disk_behind_stdout_changes_no_exit_status() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gpufix", "recover", NODE, "--answers", "missing.yml", "-o", "json"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "missing.yml" in done.stderr and "No space left" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--events", "answers.yml"),
        ("--events", "x.prom", "--metrics-file", "x.prom"),
        ("--events", "thesis.txt"),
        ("--metrics-file", "a" * 300 + ".prom"),
    ],
)
def test_no_file_is_written_over(
    run: Run, world: ModelSession, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    Path("thesis.txt").write_text("years of work")
    before = Path("answers.yml").read_text()
    assert run(*RECOVER, *words) == 2
    assert len(capsys.readouterr().err.splitlines()) <= 2
    assert Path("answers.yml").read_text() == before and Path("thesis.txt").read_text() == "years of work"
    assert world.dry_runs == []


@pytest.mark.parametrize(
    "words", [("--out", "a" * 300), ("--out", "no/plan.json"), ("--out", "/dev/full"), ("--out", ".")]
)
def test_a_plan_that_cannot_be_kept_is_told_first(
    run: Run, capsys: pytest.CaptureFixture[str], world: ModelSession, words: tuple[str, ...]
) -> None:
    assert run("plan", NODE, *words) == 2
    assert capsys.readouterr().err.startswith("gpufix: --out")
    assert world.dry_runs == []


@pytest.mark.parametrize(
    "words",
    [
        ("recover", NODE, "--answers", "missing.yml"),
        ("recover", "Bad Name", "--answers", "answers.yml"),
        ("recover", NODE, "--answers", "answers.yml", "-a", "x"),
        ("recover", NODE, "--answers", "answers.yml", "--notify", "ftp://x"),
        ("recover", NODE, "--answers", "answers.yml", "--events", "no/such/folder"),
        ("recover", NODE, "--answers", "/dev/zero"),
        ("plan", NODE, "--answers", "missing.yml"),
        ("plan", NODE, "--out", "."),
    ],
)
def test_a_refusal_is_json_too(run: Run, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert run(*words, "-o", "json") == 2
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, resources.result_schema())
    assert data["error"] is True and data["exit_status"] == 2 and data["line"]


def test_no_password_is_read_from_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", NODE, "-K", "-o", "json"]) == 2
    assert "no terminal to type the password on" in capsys.readouterr().err


def test_a_node_that_reads_as_a_yes_is_told_at_the_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["answers", "--node", "true"]) == 2
    assert "reads as a yes or a no" in capsys.readouterr().err
