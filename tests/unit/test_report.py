"""The postmortem draft: made of a journal and the looks beside it, whatever became of the run, and honest."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import html5lib
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_lint import complaints
from model_session import BOOK, ModelSession, Ui, calm, whole
from order_model import NODE, World
from snapshots_for_tests import CASES, case, diagnosis

from gpufix import cli, recovery, report_command, resources, resuming, runs, undoing
from gpufix import walk as walk_module
from gpufix.consents import Request
from gpufix.core.alerts import as_rules, load_alerts
from gpufix.core.parse import parse_snapshot
from gpufix.core.render.pages import render
from gpufix.core.render.report import build_report
from gpufix.core.render.report_parts import Look, Report, Saying, Told, Undo
from gpufix.core.render.run_text import run_as_data, run_row
from gpufix.core.run_history import read_history
from gpufix.language import speaking
from gpufix.model import ROOT_CAUSES, GpuHolder, Observation
from gpufix.runs import find_run, list_runs, run_to_resume, run_to_undo
from gpufix.world.catalogs import catalog
from gpufix.world.journal import JOURNAL, Journal, state_folder

ASKED = Request([BOOK], who="tester@bench")
ALERTS = load_alerts(resources.read_text("alerts.yml"))
DEAD, RECOVERED = CASES / "trace-1-kubelet-dead", CASES / "trace-6-container-mode-vms-waiting"


class Killed(BaseException):
    """Stands for the process's death."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(walk_module, "POLL_SECONDS", 5.0)
    monkeypatch.setattr(runs, "process_began", lambda pid: "")  # the process of every journal here is dead
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def session(choice: Callable[[str], str] = lambda message: "apply", ends: Any = whole) -> ModelSession:
    def choose(message: str, options: Any) -> str:
        wanted = choice(message)
        return next(one for one in (wanted, "apply", "on", "container", *options) if one in options)

    return ModelSession(World(), Ui(choose), calm, ends)


def recover(one: ModelSession) -> Path:
    return Path(recovery.recover(one, ASKED).run)  # type: ignore[arg-type]


def killed(monkeypatch: pytest.MonkeyPatch, event: str, step: str) -> ModelSession:
    real, one = Journal.write, session()

    def write(journal: Journal, name: str, **fields: Any) -> None:
        real(journal, name, **fields)
        if (name, fields.get("step")) == (event, step):
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Journal, "write", write)
        recover(one)
    return one


def with_looks(folder: Path, before: Path | None = DEAD, after: Path | None = RECOVERED) -> Path:
    """Put real captures in the place of the model's empty snapshots."""
    for name, source in (("before", before), ("after", after)):
        shutil.rmtree(folder / name, ignore_errors=True)
        if source is not None:
            shutil.copytree(source, folder / name)
    return folder


def made(folder: Path) -> Report:
    one = find_run(state_folder(), folder.name)
    return report_command.make_report(one, list_runs(state_folder()))


def ids(sayings: Any) -> list[str]:
    return [one.id for one in sayings]


def page(report: Report, form: str = "md") -> str:
    return report_command.make_page(report, form, resources.template_texts(), {})


def read(report: Report, form: str) -> str:
    text = page(report, form)
    if form == "html":
        found = "".join(html5lib.parse(text, namespaceHTMLElements=False).itertext())
    else:
        found = "\n".join(
            "".join(child.content for child in token.children) if token.children else token.content
            for token in MarkdownIt("commonmark").parse(text)
        )
    return " ".join(found.split())


def rewrite(folder: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    path = folder / JOURNAL
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a minute from noon of a day long gone."""
    return [{**line, "at": f"2020-01-02T12:{number:02}:00.000000Z"} for number, line in enumerate(lines)]


# --- what became of the run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["md", "html"])
def test_a_run_that_recovered(form: str) -> None:
    folder = with_looks(recover(session()))
    report = made(folder)
    text = read(report, form)
    assert report.state == "finished"
    assert report.top == ()
    for words in (
        "swap-on", "swap is on (/swapfile)", "tester@bench", "at its gate", "a person at the gate", "destructive",
        "default/gpu-fedora", "still waiting at the last look", "running with swap on is not supported",
        "as was announced before the first gate", "Who or what turned swap on", "node_memory_SwapTotal_bytes > 0",
        "The node stopped being Ready", "There is no way back", "As the run recorded it at its end: node well",
    ):  # fmt: skip
        assert words in text, words
    steps = [act.step for act in report.acts]
    assert steps == [step.id for step in BOOK.steps]
    for section in ("Summary", "Impact", "Timeline", "What was done", "Verification", "What remains"):
        assert section in text


def test_what_became_of_the_processes_that_held_the_gpu() -> None:
    holder = GpuHolder(2231, "python3", ("/dev/nvidia0",), "", "cuda")
    folder = with_looks(recover(session()))
    history = find_run(state_folder(), folder.name).history

    def told(after: Observation[tuple[GpuHolder, ...]]) -> Report:
        looks = []
        for name, source, held in (("before", DEAD, Observation((holder,))), ("after", RECOVERED, after)):
            facts = replace(parse_snapshot(case(source.name)), gpu_holders=held)
            looks.append(Look(name, facts, diagnosis(case(source.name))))
        return build_report(Told(folder.name, "finished", history, *looks, True), ALERTS, "1")

    for after, words in (
        (Observation((holder,)), "still holds it."),
        (Observation((replace(holder, command="other"),)), "does not hold it any more."),
        (Observation.unread(), "still holds it was not read."),
    ):
        report = told(after)
        assert len(report.holders) == 1
        for form in ("md", "html"):
            assert words in read(report, form)
            assert "2231 (python3), which held the GPU before" in read(report, form)


def test_evidence_that_is_left_out_is_counted() -> None:
    report = made(with_looks(recover(session())))
    report = replace(report, chain=tuple(replace(link, more=7) for link in report.chain))
    for form in ("md", "html"):
        assert read(report, form).count("7 more in the snapshot") == len(report.chain) > 0


def test_where_an_answer_came_from_is_told_in_the_readers_words() -> None:
    folder = recover(session())
    assert made(folder).answers == (("target_workload", "container", "the prompt"),)
    with speaking(catalog("ko")):
        assert made(folder).answers == (("target_workload", "container", "프롬프트"),)


def test_durations_are_the_journals_own(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = with_looks(recover(session()))
    rewrite(folder, times)
    report = made(folder)
    lines = (folder / JOURNAL).read_text().splitlines()
    minutes = len(lines) - 1
    assert Saying("took", {"lasted": f"{minutes} min"}) in report.summary
    assert report.made_at == f"2020-01-02 12:{minutes:02}:00 UTC"
    acted = [act for act in report.acts if act.began]
    assert acted
    assert {act.lasted for act in acted} == {"2 min"}
    assert page(report) == page(made(folder))
    text = page(report)
    monkeypatch.setattr("gpufix.planning.now", None)
    assert page(made(folder)) == text, "the same at any time"


def test_since_when_and_until_when_come_from_the_looks() -> None:
    report = made(with_looks(recover(session())))
    said = {one.id: one.values for one in report.impact}
    assert set(said) == {"down-since", "down-until"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", said["down-until"]["at"])
    assert said["down-until"]["lasted"]
    still = made(with_looks(recover(session()), after=DEAD))
    for form in ("md", "html"):
        text = read(still, form)
        assert "open: the node is not Ready" in text
        assert "does not survive a reboot: swap comes back at boot" in text
        assert "does not hold" not in text
    assert "still-down" in ids(still.impact)
    assert {"r-check", "r-reboot"} <= set(ids(still.remains))


def test_a_step_that_failed() -> None:
    report = made(with_looks(recover(session(ends=lambda possible: possible[0]))))
    assert report.state == "stopped"
    assert ids(report.top)[0] == "stopped"
    (failed,) = [act for act in report.acts if act.outcome == "failed"]
    assert failed.applied is False
    assert failed.message == "it broke half-way"
    assert {"r-resume", "r-open", "r-not-begun"} <= set(ids(report.remains))
    assert "r-reboot" not in ids(report.remains), "nothing was recovered"
    for form in ("md", "html"):
        assert "This is a draft of an unfinished run" in read(report, form)
        assert "Its playbook failed: it broke half-way" in read(report, form)


def test_a_run_that_was_declined() -> None:
    report = made(recover(session(lambda message: "quit")))
    assert report.state == "finished"
    assert "changed-nothing" in ids(report.top)
    assert [act.outcome for act in report.acts] == ["quit"]
    assert report.acts[0].consent == ""
    assert len([one for one in report.remains if one.id == "r-not-begun"]) == len(BOOK.steps) - 1


def with_backup(line: dict[str, Any], path: str) -> dict[str, Any]:
    return {**line, "undo": {**(line["undo"] or {}), "backup": path}} if line["event"] == "intent" else line


def test_a_run_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed(monkeypatch, "intent", "disable-swap")
    (one,) = list_runs(state_folder())
    report = made(with_looks(one.folder, after=None))
    assert ids(report.top)[0] == "unfinished"
    assert "r-unsettled" in ids(report.remains)
    assert {"u-died", "u-step", "u-no-end-look"} <= set(ids(report.unknown))
    assert report.acts[-1].outcome == "unknown"
    assert (report.acts[-1].lasted, report.acts[-1].end_known) == ("", False)
    backup = report.acts[-1].backup or "/etc/fstab.gpufix-backup"
    rewrite(one.folder, lambda lines: [with_backup(line, backup) for line in lines])
    assert Saying("r-backup-maybe", {"path": backup}) in made(one.folder).remains
    assert not report.verification.recorded
    assert "r-check" not in ids(report.remains), "a look from before the run says nothing of what remains"
    for form in ("md", "html"):
        assert "This run is unfinished: its process died." in read(report, form)
        assert "Whether disable-swap had an effect" in read(report, form)


def test_a_run_that_was_killed_twice_and_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    one = killed(monkeypatch, "intent", "disable-swap")
    real = Journal.write

    def write(journal: Journal, name: str, **fields: Any) -> None:
        real(journal, name, **fields)
        if name == "consent":
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Journal, "write", write)
        resuming.resume(one, ASKED, run_to_resume(state_folder(), NODE))  # type: ignore[arg-type]
    resuming.resume(one, ASKED, run_to_resume(state_folder(), NODE))  # type: ignore[arg-type]
    (run,) = list_runs(state_folder())
    report = made(with_looks(run.folder))
    assert report.state == "finished"
    assert Saying("resumed", {"count": "2"}) in report.summary
    assert Saying("u-died", {"count": "2"}) in report.unknown
    assert len([moment for moment in report.timeline if moment.what.id == "t-resume"]) == 2
    assert any(moment.what.id == "t-settled" for moment in report.timeline)
    assert len([moment for moment in report.timeline if moment.what.id == "t-died"]) == 2
    where = [moment.what.id for moment in report.timeline]
    assert [where[number + 1] for number, told in enumerate(where) if told == "t-died"] == ["t-resume", "t-resume"]
    assert report.verification.look == "after"
    assert "r-unsettled" not in ids(report.remains)
    (cut,) = [act for act in report.acts if act.began and not act.end_known]
    assert cut.lasted == ""
    assert all(act.lasted for act in report.acts if act.began and act.end_known)
    assert report.again
    assert not set(report.again) & {act.step for act in report.acts if act.outcome == "no-op" and act.began}
    seen = [act.step for act in report.acts if act.outcome in ("done", "no-op")]
    assert len(seen) == len(set(seen)), "what was found done again is told in one line"
    for form in ("md", "html"):
        text = read(report, form)
        assert "its end is not on record" in text
        assert f"Nothing to do, again: {', '.join(report.again)}." in text
        assert "The process of the run died after this line" in text


def test_a_step_that_a_person_marked_as_done(monkeypatch: pytest.MonkeyPatch) -> None:
    killed(monkeypatch, "intent", "disable-swap")
    folder = list_runs(state_folder())[0].folder
    mark = {"v": 1, "event": "settled", "step": "disable-swap", "outcome": "done", "by_hand": True}
    told = {"text": "marked done by hand by ann@desk; swap is off", "who": "ann@desk"}
    rewrite(folder, lambda lines: times([*lines, {**mark, **told}, {**lines[0], "event": "resume"}]))
    report = made(folder)
    assert [(act.outcome, act.who, act.by_hand) for act in report.acts[-2:]] == [
        ("unknown", "tester@bench", False),
        ("by hand", "ann@desk", True),
    ]
    where = [moment.what.id for moment in report.timeline]
    assert where[-5:] == ["t-intent", "t-died", "t-by-hand", "t-resume", "t-died"]
    assert Saying("u-died", {"count": "2"}) in report.unknown
    for form in ("md", "html"):
        text = read(report, form)
        assert "disable-swap: done by hand" in text
        assert "disable-swap: done by hand, marked by ann@desk: marked done by hand by ann@desk; swap is off" in text


def test_a_run_that_was_undone_and_its_undo() -> None:
    one = session()
    folder = recover(one)
    undo = Path(undoing.undo(one, ASKED, run_to_undo(state_folder(), NODE)).run)  # type: ignore[arg-type]
    report = made(folder)
    assert report.top[0] == Saying("undone", {"by": undo.name})
    assert {"put-back", "stays", "undo-ended"} <= set(ids(report.top))
    said = {one.id: one.values for one in report.top}
    back = set(said["put-back"]["steps"].split(", "))
    assert back == {act.step.removeprefix("undo-") for act in made(undo).acts}
    assert back.isdisjoint(said["stays"]["steps"].split(", "))
    assert "restart-kubelet" in said["stays"]["steps"]
    assert said["undo-ended"]["line"].startswith("Undone: ")
    for form in ("md", "html"):
        text = read(report, form)
        assert "State: undone. Recovered" not in text
        assert text.count("At this run's end, before it was undone:") == 3
        assert f"At this run's end, before it was undone: {report.line}" in text
    told = made(undo)
    assert told.undo_of == folder.name
    assert told.outdated == ""
    assert (told.is_undo, told.chain, told.follow_ups, told.rules) == (True, (), (), "")
    stay = [one.values["step"] for one in told.remains if one.id in ("r-stays", "r-stays-why")]
    assert ", ".join(stay) == said["stays"]["steps"]
    told = made(with_looks(undo, after=DEAD))
    assert "r-node-reboot" in ids(told.remains)
    for form in ("md", "html"):
        text = read(told, form)
        assert "What would have told of it earlier" not in text
        assert "The chain of causes" not in text
        assert "The node would not survive a reboot: swap comes back at boot" in text
        assert "The recovery does not survive" not in text
        assert "restart-kubelet was not put back" in text
        assert ".." not in text
    assert "u-why-undone" in ids(told.unknown)
    assert folder.name in read(told, "html")
    assert read(told, "md").startswith("Postmortem draft, an undo: omen2")


def test_a_run_that_was_closed() -> None:
    """Not by an operator, where its practice lab ended: the words are those of whoever closed it."""
    folder = recover(session(ends=lambda possible: possible[0]))
    line = runs.close(find_run(state_folder(), folder.name), "the practice lab, which has ended")
    report = made(folder)
    assert (report.state, report.closed) == ("finished", True)
    assert Saying("closed", {"line": line}) in report.top
    for form in ("md", "html"):
        text = read(report, form)
        assert f"This run was closed before its end. {line}" in text
        assert "State: closed." in text
        assert "by an operator" not in text
    one = find_run(state_folder(), folder.name)
    assert run_row(one.id, one.state, one.history)[2] == "closed"
    assert run_as_data(one.id, "", one.state, one.history)["state"] == "finished"


def test_a_step_that_was_skipped_remains() -> None:
    report = made(recover(session(lambda message: "skip" if "stop-vfio" in message else "apply")))
    skipped = [act.step for act in report.acts if act.outcome == "skipped"]
    assert bool(skipped) == ("r-skipped" in ids(report.remains))


# --- what is not known -----------------------------------------------------------------------------------------------


def test_without_its_snapshots_it_says_so() -> None:
    report = made(with_looks(recover(session()), None, None))
    assert [one.values["what"] for one in report.unknown if one.id == "u-missing"] == ["before", "after"]
    assert ids(report.impact) == ["impact-unknown", "until-unknown"][: len(report.impact)]
    assert {"u-began"} <= set(ids(report.unknown))
    assert "r-no-look" in ids(report.remains)
    assert report.chain == ()
    text = read(report, "html")
    assert "there is no readable snapshot from before" in text
    assert str(state_folder()) not in page(report), "the operator's own paths are nobody's business"


def test_a_snapshot_of_another_node_is_not_taken(tmp_path: Path) -> None:
    folder = with_looks(recover(session()))
    (folder / "before" / "meta.yml").write_text("node: other\n")
    report = made(folder)
    assert "u-missing" in ids(report.unknown)
    assert report.chain == ()


def test_what_a_look_did_not_read_is_said() -> None:
    folder = with_looks(recover(session()))
    (folder / "before" / "host" / "proc_swaps").unlink()
    unread = [{"what": "host/proc_swaps", "why": "it was not allowed"}]
    (folder / "before" / "meta.yml").write_text(yaml.safe_dump({"node": NODE, "unread": unread}))
    assert "it was not allowed" in read(made(folder), "md")


def test_a_torn_and_a_broken_line_are_named() -> None:
    folder = recover(session())
    lines = (folder / JOURNAL).read_text().splitlines(keepends=True)
    (folder / JOURNAL).write_text(lines[0] + "{broken\n" + "".join(lines[1:4]) + lines[4][:20])
    report = made(folder)
    assert {"u-torn", "u-broken"} <= set(ids(report.unknown))
    assert "Lines of the journal that cannot be read: 2." in read(report, "md")


@pytest.mark.parametrize("text", ["", "{", "\n\n", '{"v": 1, "event": "run-end"}\n'])
def test_a_journal_without_a_beginning(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = recover(session())
    (folder / JOURNAL).write_text(text)
    for form in ("md", "html"):
        assert cli.main(["report", folder.name, "--format", form]) == 0
        assert "has no beginning that can be read" in capsys.readouterr().out


def test_cut_off_anywhere_it_is_still_a_draft() -> None:
    folder = with_looks(recover(session()))
    path = folder / JOURNAL
    data = path.read_bytes()
    for end in range(0, len(data), max(1, len(data) // 15)):
        path.write_bytes(data[:end])
        report = made(folder)
        assert report.state != "finished"
        assert ids(report.top)
        page(report)


def test_a_clock_that_went_back_is_said() -> None:
    folder = recover(session())
    rewrite(folder, lambda lines: [*times(lines)[:-1], {**lines[-1], "at": "2020-01-01T00:00:00Z"}])
    report = made(folder)
    assert "u-clock" in ids(report.unknown)
    assert "took" not in ids(report.summary)
    rewrite(folder, lambda lines: [{**line, "at": None} for line in lines])
    assert "u-times" in ids(made(folder).unknown)


# --- hostile text ----------------------------------------------------------------------------------------------------

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp; **bold** [x](javascript:alert(3)) ![y](http://z/) "
    "`code` {{ 7*7 }} %(x)s {% for %} https://evil.example | ~~gone~~ $x$ <!-- \x1b[2J \u202e\n# heading\n- item\n```\n"
)


def poisoned(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: poisoned(part, name) for name, part in value.items()}
    if isinstance(value, list):
        return [poisoned(part) for part in value]
    return HOSTILE if isinstance(value, str) and key not in ("event", "at", "kind") else value


def hostile() -> Report:
    folder = with_looks(recover(session()))
    text = (folder / JOURNAL).read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    diffs = [{"before": "x\ny\n", "after": HOSTILE}, {"prepared": HOSTILE}]
    for line in lines:
        if line["event"] in ("preview", "applied"):
            line["tasks"] = [{"changed": True, "diffs": diffs}]
    history = read_history("".join(json.dumps(poisoned(line)) + "\n" for line in lines))
    look = evil(Look("before", parse_snapshot(case(DEAD.name)), diagnosis(case(DEAD.name))))
    missing = ((HOSTILE, HOSTILE),)
    return build_report(
        Told(HOSTILE, "unfinished", history, look, look, True, missing, (Undo(HOSTILE, history),)), ALERTS, "1"
    )


def evil(look: Look) -> Look:
    found = look.diagnosis
    chain = tuple(
        replace(one, title=f"1. {HOSTILE}", detail=f"# {HOSTILE}",
                evidence=tuple(replace(proof, source=HOSTILE, excerpt=f"```\n{HOSTILE}") for proof in one.evidence))
        for one in found.chain
    )  # fmt: skip
    found = replace(
        found,
        root_cause=replace(found.root_cause, summary=HOSTILE),
        chain=chain,
        alternatives=tuple(replace(one, by=HOSTILE) for one in found.alternatives),
        affected=tuple(replace(one, name=HOSTILE, status=HOSTILE, reason=f"- {HOSTILE}") for one in found.affected),
        unread={HOSTILE: HOSTILE},
    )
    return replace(look, diagnosis=found)


def test_hostile_text_is_only_text_in_html() -> None:
    text = page(hostile(), "html")
    html5lib.HTMLParser(strict=True).parse(text)  # raises at the first mistake
    tree = html5lib.parse(text, namespaceHTMLElements=False)
    assert [element.tag for element in tree.iter() if element.tag in ("script", "img", "iframe", "b")] == []
    assert not [name for element in tree.iter() for name in element.attrib if name.startswith("on")]
    assert {href for element in tree.iter() for href in [element.get("href", "#")] if href[0] != "#"} == set()
    assert "".join(tree.itertext()).count("<script>alert(1)</script>") > 20
    assert "{{ 7*7 }}" in "".join(tree.itertext())
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.dev
def test_the_markdown_passes_a_linter(tmp_path: Path) -> None:
    one = session()
    folder = recover(one)
    undo = Path(undoing.undo(one, ASKED, run_to_undo(state_folder(), NODE)).run)  # type: ignore[arg-type]
    held = (Saying("h-still", {"pid": "1", "command": "x"}),)
    reports = {
        "undone": replace(made(with_looks(folder)), holders=held, lab=True, again=("a", "b")),
        "undo": made(with_looks(undo)),
        "recovered": made(with_looks(recover(session()))),
        "no-looks": made(recover(session())),
        "hostile": hostile(),
    }
    assert complaints({name: page(report) for name, report in reports.items()}, tmp_path) == []


def test_hostile_text_is_only_text_in_markdown() -> None:
    parser = MarkdownIt("gfm-like")
    assert parser.linkify is not None
    parser.linkify.set({"fuzzy_link": False, "fuzzy_email": False})
    report = hostile()
    text = page(report)
    tokens = parser.parse(text)
    inline = [child for token in tokens for child in token.children or ()]
    bad = {"html_block", "html_inline", "image", "link_open", "s_open"}
    assert {token.type for token in (*tokens, *inline)} & bad == set()
    headings = [token for token in tokens if token.type == "heading_open"]
    assert len(headings) == 1 + 9 + len(report.acts)
    assert "{{ 7*7 }}" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_secrets_do_not_reach_the_draft() -> None:
    folder = recover(session())
    secret = "mount -o password=hunter2 token: hunter3 Bearer hunter4hunter4"
    rewrite(
        folder,
        lambda lines: [
            {
                **line,
                **{key: secret for key in ("text", "line", "by", "who", "message", "backup") if key in line},
                **({"tasks": [{"diffs": [{"before": "a\n", "after": f"{secret}\n"}]}]} if "tasks" in line else {}),
            }
            for line in lines
        ],
    )
    report = made(folder)
    for text in (page(report), page(report, "html"), json.dumps(asdict(report))):
        assert "hunter" not in text
        assert "(redacted)" in text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    ["step", "who", "by", "outcome", "text", "at", "tasks", "verdicts", "plan", "answers", "undo", "kills", "ok",
     "exit_status", "closed", "destructive", "attended", "node", "root_cause", "backup", "kind", "undoes", "seq",
     "by_hand"]
)  # fmt: skip
events = st.sampled_from(
    ["run-start", "resume", "settled", "preview", "consent", "intent", "applied", "step-result", "run-end", "new"]
)
states = st.sampled_from(["running", "unfinished", "stopped", "finished", "undone", "unreadable"])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(events, st.dictionaries(names, json_values, max_size=6)), max_size=8), states)
def test_lines_of_any_shape_make_a_draft(lines: list[tuple[str, dict[str, Any]]], state: str) -> None:
    text = "".join(json.dumps({**fields, "v": 1, "event": event}) + "\n" for event, fields in lines)
    report = build_report(Told("run", state, read_history(text)), ALERTS, "1")
    for form in ("md", "html"):
        render(f"report.{form}.j2", resources.template_texts(), {}, {"doc": report, "language": "en"})


# --- words and alerts ------------------------------------------------------------------------------------------------


def test_every_saying_has_words() -> None:
    folder = Path(resources.__file__).parent / "core" / "render"
    source = "".join((folder / name).read_text(encoding="utf-8") for name in ("report.py", "timeline.py"))
    words = resources.template_texts()["report_words.j2"][0]
    told = set(re.findall(r'one\.id == "([a-z-]+)"', words))
    made = set(re.findall(r'"((?:[rtu]-)[a-z-]+)"', source)) | set(re.findall(r'Saying\(\s*"([a-z-]+)"', source))
    made |= {
        "t-run-start",
        "t-resume",
        "t-settled",
        "t-intent",
        "h-still",
        "h-gone",
        "h-unknown",
        "running",
        "unfinished",
        "stopped",
        "undone",
    }
    made |= {"partly-undone", "attended", "unattended", "put-back", "put-back-nothing"}
    assert made == told


def test_each_root_cause_has_an_alert_or_is_said_to_have_none() -> None:
    covered = {cause for alert in ALERTS.all for cause in alert.causes}
    assert covered | ALERTS.no_metric == set(ROOT_CAUSES)
    assert not covered & ALERTS.no_metric
    names = {alert.name for alert in ALERTS.telling_of("swap-on")}
    assert names == {"NodeNotReady", "VirtualMachineInErrorForLong", "KubeletNotStaying", "SwapIsOn"}
    for alert in ALERTS.all:
        assert alert.source.startswith("https://")
        rules = yaml.safe_load(as_rules((alert,)))
        assert rules["groups"][0]["rules"] == [{"alert": alert.name, "expr": alert.expr, "for": alert.lasts}]
        assert alert.expr.count("(") == alert.expr.count(")")


def test_where_no_metric_tells_of_the_cause_it_says_so() -> None:
    folder = recover(session())
    rewrite(folder, lambda lines: [{**lines[0], "root_cause": "iommu-off"}, *lines[1:]])
    report = made(folder)
    assert "No widely used metric tells of iommu-off itself" in read(report, "md")
    assert "u-who" in ids(report.unknown)
