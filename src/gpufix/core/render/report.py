"""A draft of a postmortem: what a run's journal and the looks beside it say, as plain data for templates. Pure.

Every moment and duration is the journal's or a snapshot's own; nothing here knows what time it is. A journal is text
that somebody may have written: any field may be missing or of any shape, and every text is made safe to show (no
secret, nothing that a terminal or a page would obey). Escaping for a markup is the templates' part.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from gpufix.core.alerts import Alerts, as_rules
from gpufix.core.parse.times import parse_time
from gpufix.core.render.chain_figure import Figure, chain_figure
from gpufix.core.render.document import CauseLink, FoundCheck, PutAside, chain_of, put_aside_of, shown, shown_lines
from gpufix.core.render.terminal import Style, diff_lines, origin_words
from gpufix.core.run_history import History, Line, steps_of, unsettled
from gpufix.core.undo import BY_HAND, undo_id
from gpufix.core.verdict import Verdicts, judge
from gpufix.core.workload import raw_workload
from gpufix.language import t
from gpufix.model import AffectedVm, Diagnosis, Facts
from gpufix.text import duration, safe

_WIDE = Style(width=400)
_LONGEST = 1000
"""Characters of one text of the journal."""


@dataclass(frozen=True, slots=True)
class Look:
    """A snapshot beside the journal, read and judged. ``name`` is its folder: before, before-2, after, ..."""

    name: str
    facts: Facts
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class Undo:
    """An undo of the run that is told of."""

    id: str
    history: History


@dataclass(frozen=True, slots=True)
class Told:
    """All that a report is made from.

    ``state`` is that of ``gpufix runs``. ``last``: the newest look there is; ``at_end``: it was taken when the run
    ended. ``missing``: what could not be read beside the journal, and why. ``undone_by``: the undos of this run.
    ``undoes``: of an undo, the run that it undoes, where its journal is there; ``others``: the other undos of that one.
    ``lab``: it was made in a practice lab. ``resume``: the command that goes on with it.
    """

    id: str
    state: str
    history: History
    before: Look | None = None
    last: Look | None = None
    at_end: bool = False
    missing: tuple[tuple[str, str], ...] = ()
    undone_by: tuple[Undo, ...] = ()
    undoes: History | None = None
    others: tuple[Undo, ...] = ()
    lab: bool = False
    resume: str = "gpufix resume"


@dataclass(frozen=True, slots=True)
class Saying:
    """A sentence, by its id in report_words.j2, and the texts in it."""

    id: str
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Moment:
    """``at`` is a time in UTC; empty where the line has none that can be read."""

    at: str
    what: Saying


@dataclass(frozen=True, slots=True)
class VmImpact:
    """``now``: waiting | not waiting | gone | unknown, by the last look. ``lasted`` runs up to that look."""

    name: str
    status: str
    wants: str
    since: str
    lasted: str
    reason: str
    elsewhere: bool | None
    now: str


@dataclass(frozen=True, slots=True)
class Act:
    """One attempt at one step, or that a person (``who``) marked it as done ``by_hand``. ``began``: when it began to
    act; empty where it did not. ``end_known`` False: its process died, and what a later one found was not its end.

    ``diff`` was shown at its gate; ``applied_diff`` is what the playbook said that it changed, where that is another.
    """

    step: str
    outcome: str
    by_hand: bool
    text: str
    lasted: str
    end_known: bool
    began: str
    consent: str
    who: str
    destructive: bool
    attended: bool | None
    kills: str
    diff: str
    applied_diff: str
    applied: bool | None
    message: str
    backup: str
    irreversible: str


@dataclass(frozen=True, slots=True)
class Verification:
    """``node`` and ``vms`` as recorded at the run's end; ``recorded`` False: they were not. The rest is the look's."""

    recorded: bool
    node: str
    vms: str
    look: str
    as_of: str
    look_node: str
    look_vms: str
    checks: tuple[FoundCheck, ...]
    reboot: str
    reboot_proof: bool | None
    vms_text: str


@dataclass(frozen=True, slots=True)
class FollowUp:
    name: str
    needs: str
    source: str


@dataclass(frozen=True, slots=True)
class Report:
    """``cause_status`` is empty where no look says how sure the cause is."""

    run: str
    node: str
    state: str
    undo_of: str
    gpufix: str
    runbook: str
    digest: str
    made_at: str
    """The last moment in the journal: the draft is of that state."""
    status: str
    line: str
    closed: bool
    """It has no end of its own: somebody closed it, or its practice lab ended."""
    outdated: str
    """undone | partly-undone: how it stood at its end is not how it was left. Empty: no undo put anything back."""
    cause: str
    cause_status: str
    cause_summary: str
    top: tuple[Saying, ...]
    summary: tuple[Saying, ...]
    impact: tuple[Saying, ...]
    vms: tuple[VmImpact, ...]
    timeline: tuple[Moment, ...]
    chain: tuple[CauseLink, ...]
    figure: Figure
    put_aside: tuple[PutAside, ...]
    answers: tuple[tuple[str, str, str], ...]
    acts: tuple[Act, ...]
    again: tuple[str, ...]
    """Steps that whoever went on found done, and that ``acts`` has already."""
    verification: Verification
    remains: tuple[Saying, ...]
    unknown: tuple[Saying, ...]
    follow_ups: tuple[FollowUp, ...]
    no_metric: bool
    rules: str
    is_undo: bool
    """It has no chain of causes and no follow-ups."""
    lab: bool
    holders: tuple[Saying, ...]
    """What became of the processes that held the GPU before."""

    @property
    def footer(self) -> str:
        """Stands on every page of a PDF."""
        lab = " \u00b7 " + t("practice lab") if self.lab else ""
        return f"gpufix {self.gpufix}{lab} \u00b7 {self.run} \u00b7 {self.made_at}"


@dataclass(frozen=True, slots=True)
class _Attempt:
    """``process``: the line with which that began which began the attempt; ``ended_here``: it wrote the end too."""

    process: Line
    parts: dict[str, Line]
    ended_here: bool = False


def build_report(told: Told, alerts: Alerts, version: str) -> Report:
    """The draft for one run."""
    return _Builder(told, alerts, version).report()


class _Builder:
    def __init__(self, told: Told, alerts: Alerts, version: str) -> None:
        self.told, self.alerts, self.version = told, alerts, version
        self.history = told.history
        self.start = told.history.start
        self.end = told.history.end or {}
        self.last_end = told.history.last("run-end") or {}
        self.steps = steps_of(told.history)
        self.node = _word(self.start.get("node"))
        self.verdicts = self._judged()
        self.open = unsettled(self.steps) if told.state != "running" else ()

    def report(self) -> Report:
        told, before = self.told, self.told.before
        cause = before.diagnosis.root_cause if before is not None else None
        named = _word(self.start.get("root_cause"))
        undo = self.history.kind == "undo"  # what it puts back was somebody's choice: that is no cause of anything
        chain = chain_of(before.diagnosis) if before is not None and not undo else ()
        cause_id = named or (cause.id if cause is not None else "")
        following = () if undo else self.alerts.telling_of(cause_id)
        return Report(
            run=shown(told.id),
            node=self.node,
            state=told.state,
            undo_of=_word(self.start.get("undoes")) if self.history.kind == "undo" else "",
            gpufix=self.version,
            runbook=_word(self.start.get("runbook")),
            digest=_word(self.start.get("runbook_digest")),
            made_at=_at(self.history.lines[-1]) if self.history.lines else "",
            status=_word(self.last_end.get("exit_status")),
            line=_word(self.last_end.get("line")),
            closed=self.end.get("closed") is True,
            outdated=self._outdated(),
            cause=cause_id,
            cause_status=str(cause.status) if cause is not None and cause.id == cause_id else "",
            cause_summary=shown(cause.summary) if cause is not None and cause.id == cause_id else "",
            top=tuple(self._top()),
            summary=tuple(self._summary()),
            impact=tuple(self._impact()),
            vms=tuple(self._vms()),
            timeline=tuple(self._timeline()),
            chain=chain,
            figure=chain_figure([(link.title, link.status) for link in chain]),
            put_aside=put_aside_of(before.diagnosis) if before is not None and not undo else (),
            answers=tuple(self._answers()),
            acts=tuple(self._acts()),
            again=tuple(dict.fromkeys(self._again())),
            verification=self._verification(),
            remains=tuple(self._remains()),
            unknown=tuple(self._unknown()),
            follow_ups=tuple(FollowUp(one.name, t(one.needs), one.source) for one in following),
            no_metric=not undo and cause_id in self.alerts.no_metric,
            rules="" if undo else as_rules(following),
            is_undo=undo,
            lab=told.lab,
            holders=tuple(self._holders()),
        )  # fmt: skip

    def _outdated(self) -> str:
        if self.told.state == "undone":
            return "undone"
        return "partly-undone" if any(one.history.changed for one in self.told.undone_by) else ""

    def _judged(self) -> Verdicts | None:
        """Of the last look, as ``endings.reached`` has it: waiting is as announced once the node's label says so."""
        last = self.told.last
        if last is None:
            return None
        answers = _mapping(self.history.process.get("answers"))
        target = _word(_mapping(answers.get("target_workload")).get("value"))
        node = last.facts.node.value
        reached = node is not None and raw_workload(node) == target
        return judge(last.facts, last.diagnosis, target if reached else "")

    # --- what happened, in short ---

    def _top(self) -> Iterator[Saying]:
        if not self.start:
            yield Saying("no-start")
        if self.told.state in ("running", "unfinished", "stopped"):
            yield Saying(self.told.state, {"status": _word(self.last_end.get("exit_status")), "node": self.node})
        yield from self._undone()
        if self.end.get("closed") is True:
            yield Saying("closed", {"line": _word(self.end.get("line"))})
        if self.start and not self.history.changed:
            yield Saying("changed-nothing")

    def _undone(self) -> Iterator[Saying]:
        """What of it was put back, by the undos' own journals: an undo leaves alone what has no way back."""
        undos = self.told.undone_by
        if self.told.state == "undone" or undos:
            whole = "undone" if self.told.state == "undone" else "partly-undone"
            yield Saying(whole, {"by": ", ".join(shown(one.id) for one in undos)})
        acted, back = _acted(self.history), set().union(*(_put_back(one.history) for one in undos))
        if undos:
            put = [step for step in acted if step in back]
            yield Saying("put-back" if put else "put-back-nothing", {"steps": ", ".join(map(_word, put))})
            if stay := [step for step in acted if step not in back]:
                yield Saying("stays", {"steps": ", ".join(map(_word, stay))})
        for one in undos:
            if line := _word((one.history.last("run-end") or {}).get("line")):
                yield Saying("undo-ended", {"by": shown(one.id), "line": line})

    def _summary(self) -> Iterator[Saying]:
        began, ended = _time(self.start), _time(self.end) if self.end else None
        if self.start:
            yield Saying(
                "began",
                {"who": _word(self.start.get("who")) or "?", "at": _moment(began) or "?",
                 "runbook": _word(self.start.get("runbook")) or "?"},
            )  # fmt: skip
            attended = self.start.get("attended")
            if isinstance(attended, bool):
                yield Saying("attended" if attended else "unattended")
        resumed = len(self.history.all("resume"))
        if resumed:
            yield Saying("resumed", {"count": str(resumed)})
        if self.end:
            yield Saying("ended", {"at": _moment(ended) or "?", "status": _word(self.end.get("exit_status")) or "?"})
        if lasted := _between(began, ended):
            yield Saying("took", {"lasted": lasted})

    def _impact(self) -> Iterator[Saying]:
        before, last = self.told.before, self.told.last
        since = before.diagnosis.down_since if before is not None else None
        if before is None:
            yield Saying("impact-unknown")
            return
        if since is None:
            node = before.facts.node.value
            if node is not None and node.ready == "True":
                yield Saying("was-ready", {"look": before.name})
            else:
                yield Saying("down-since-unknown")
        else:
            yield Saying("down-since", {"at": _moment(since)})
        yield from self._until(since, last)

    def _until(self, since: datetime | None, last: Look | None) -> Iterator[Saying]:
        node = last.facts.node.value if last is not None else None
        if last is None or node is None or not node.ready:
            yield Saying("until-unknown")
            return
        as_of = _moment(last.diagnosis.as_of) or "?"
        if node.ready != "True":
            yield Saying("still-down", {"at": as_of, "lasted": _between(since, last.diagnosis.as_of) or "?"})
        elif since is not None and node.ready_since is not None and node.ready_since >= since:
            until = _moment(node.ready_since)
            yield Saying("down-until", {"at": until, "lasted": _between(since, node.ready_since)})
        elif since is not None:
            yield Saying("ready-by", {"at": as_of})

    def _vms(self) -> Iterator[VmImpact]:
        before, last = self.told.before, self.told.last
        first = before.diagnosis.affected if before is not None else ()
        later = {(vm.namespace, vm.name): vm for vm in last.diagnosis.affected} if last is not None else {}
        known = {(vm.namespace, vm.name) for vm in last.facts.vms.value or ()} if last is not None else set()
        for vm in first:
            key = (vm.namespace, vm.name)
            if key in later:
                now = "waiting"
            elif last is None or not last.facts.vms.known:
                now = "unknown"
            else:
                now = "not waiting" if key in known else "gone"
            still = later.pop(key, None)
            yield self._vm(vm, now, still)
        for vm in later.values():
            yield self._vm(vm, "waiting", vm)

    def _vm(self, vm: AffectedVm, now: str, still: AffectedVm | None) -> VmImpact:
        as_of = self.told.last.diagnosis.as_of if self.told.last is not None else None
        return VmImpact(
            name=shown(f"{vm.namespace}/{vm.name}"),
            status=shown(vm.status),
            wants=shown(", ".join(f"{name} x{count}" for name, count in sorted(vm.resources.items()))),
            since=_moment(vm.since),
            lasted=_between(vm.since, as_of) if now == "waiting" else "",
            reason=shown((still or vm).reason),
            elsewhere=vm.servable_elsewhere if vm.other_nodes else False,
            now=now,
        )

    # --- the timeline ---

    def _timeline(self) -> Iterator[Moment]:
        before, last = self.told.before, self.told.last
        if before is not None and before.diagnosis.down_since is not None:
            yield Moment(_moment(before.diagnosis.down_since), Saying("t-down"))
        node = last.facts.node.value if last is not None else None
        ready = node.ready_since if node is not None and node.ready == "True" else None
        began = _time(self.start)
        if ready is None or began is None or ready < began:
            ready = None
        deaths = self._deaths()
        for number, line in enumerate(self.history.lines):
            told = _told_of(line)
            at = _time(line)
            if told is not None:
                if ready is not None and at is not None and ready <= at:
                    yield Moment(_moment(ready), Saying("t-ready"))
                    ready = None
                yield Moment(_moment(at), told)
            if number in deaths:
                yield Moment(_moment(at), Saying("t-died"))
        if ready is not None:
            yield Moment(_moment(ready), Saying("t-ready"))

    # --- what was done ---

    def _answers(self) -> Iterator[tuple[str, str, str]]:
        for name, one in _mapping(self.start.get("answers")).items():
            given = _mapping(one)
            value = given.get("value") if given else one
            yield shown(str(name)), _word(value), _word(origin_words(_word(given.get("origin"))))

    def _acts(self) -> Iterator[Act]:
        """An attempt begins with its preview (or, in a broken journal, with what there is) and ends with its result.

        A look of a later process that has nothing to add is none: ``_again`` tells of those.
        """
        open_: dict[str, _Attempt] = {}
        for process, line in self._by_process():
            event = line["event"]
            if event not in ("preview", "consent", "intent", "applied", "step-result", "settled"):
                continue
            step = _word(line.get("step")) or "?"
            attempt = open_.get(step)
            if attempt is not None and (event in attempt.parts or _is_by_hand(line)):
                yield self._act(step, open_.pop(step))
                attempt = None
            if _is_by_hand(line):
                yield self._act(step, _Attempt(process, {event: line}))
                continue
            if attempt is None:
                if event == "settled" or self._adds_nothing(process, line):
                    continue  # the timeline tells it
                attempt = open_.setdefault(step, _Attempt(process, {}))
            attempt.parts[event] = line
            if event in ("step-result", "settled"):
                ended_here = event == "step-result" and attempt.process == process
                yield self._act(step, replace(open_.pop(step), ended_here=ended_here))
        for step, attempt in open_.items():
            yield self._act(step, attempt)

    def _by_process(self) -> Iterator[tuple[Line, Line]]:
        """Each line with that by which its process began."""
        process = self.start
        for line in self.history.lines:
            if line["event"] in ("run-start", "resume"):
                process = line
            yield process, line

    def _adds_nothing(self, process: Line, line: Line) -> bool:
        """Found done by whoever went on, in a step that the journal has as done already."""
        if process.get("event") != "resume" or line["event"] != "step-result" or line.get("outcome") != "no-op":
            return False
        earlier = itertools.takewhile(lambda one: one is not process, self.history.lines)
        return any(one.get("step") == line.get("step") and one.get("outcome") in ("done", "no-op") for one in earlier)

    def _again(self) -> Iterator[str]:
        for process, line in self._by_process():
            if self._adds_nothing(process, line):
                yield _word(line.get("step"))

    def _act(self, step: str, attempt: _Attempt) -> Act:
        parts, attended = attempt.parts, attempt.process.get("attended")
        consent, intent, applied = (parts.get(name) or {} for name in ("consent", "intent", "applied"))
        result = parts.get("step-result") or parts.get("settled") or {}
        previewed = _diff((parts.get("preview") or {}).get("tasks"))
        done = _diff(applied.get("tasks"))
        by_hand = _is_by_hand(result) if result else False
        lost = "" if result else "unknown" if intent else "not done"
        kills = consent.get("kills")
        return Act(
            step=step,
            outcome="by hand" if by_hand else lost or _word(result.get("outcome")) or "unknown",
            by_hand=by_hand,
            text=_word(result.get("text")),
            lasted=_between(_time(intent), _time(result)) if intent and attempt.ended_here else "",
            end_known=not intent or attempt.ended_here,
            began=_at(intent),
            consent=_word(consent.get("by")),
            who=_word((result if by_hand else consent).get("who")),
            destructive=consent.get("destructive") is True,
            attended=attended if isinstance(attended, bool) else None,
            kills=", ".join(map(_word, kills)) if isinstance(kills, list) else "",
            diff=previewed,
            applied_diff=done if done != previewed else "",
            applied=applied.get("ok") is True if applied else None,
            message=_word(applied.get("message")),
            backup=_word(applied.get("backup")),
            irreversible=_word(intent.get("irreversible")),
        )  # fmt: skip

    # --- how it stands ---

    def _verification(self) -> Verification:
        recorded = _mapping(self.end.get("verdicts"))
        last, judged = self.told.last, self.verdicts
        return Verification(
            recorded=bool(recorded),
            node=_word(recorded.get("node")),
            vms=_word(recorded.get("vms")),
            look=last.name if last is not None else "",
            as_of=_moment(last.diagnosis.as_of) if last is not None else "",
            look_node=str(judged.node.health) if judged else "",
            look_vms=str(judged.vms.health) if judged else "",
            checks=tuple(FoundCheck(shown(one.text), one.holds) for one in judged.node.checks) if judged else (),
            reboot=shown(judged.node.reboot_text) if judged else "",
            reboot_proof=judged.node.reboot_proof if judged else None,
            vms_text=shown(judged.vms.text) if judged else "",
        )

    def _remains(self) -> Iterator[Saying]:
        if self.told.state in ("unfinished", "stopped"):
            yield Saying("r-resume", {"command": shown(f"{self.told.resume} {self.told.id}")})
        yield from self._not_put_back()
        for step in self.open:
            yield Saying("r-unsettled", {"step": shown(step)})
        for one in self.steps:
            values = {"step": shown(one.step), "outcome": shown(one.outcome), "text": shown(one.text)}
            if one.outcome == "skipped":
                yield Saying("r-skipped", values)
            elif one.outcome not in ("done", "no-op", "left out", "unknown"):
                yield Saying("r-open", values)
        yield from (Saying("r-not-begun", {"step": step}) for step in self._not_begun())
        yield from self._labels_left()
        yield from self._backups()
        if self.verdicts is None or not self.told.at_end:
            yield Saying("r-no-look")
            return
        for check in self.verdicts.node.open_checks:
            yield Saying("r-check" if check.holds is False else "r-check-unknown", {"text": shown(check.text)})
        if not self.verdicts.node.reboot_proof:
            known = self.verdicts.node.reboot_proof is False
            text = shown(self.verdicts.node.reboot_text)
            recovered = self.history.kind == "recover" and self.told.state == "finished" and not self._came_short()
            of_node = ("r-node-reboot", "r-node-reboot-unknown")
            words = ("r-reboot", "r-reboot-unknown") if recovered else of_node
            yield Saying(words[0 if known else 1], {"text": text})
        for vm in self.verdicts.vms.waiting:
            why = shown(vm.reason)
            announced = "r-vm-announced" if self.verdicts.vms.announced else "r-vm"
            yield Saying(announced, {"vm": shown(f"{vm.namespace}/{vm.name}"), "why": why})

    def _came_short(self) -> bool:
        return self.last_end.get("exit_status") != 0

    def _not_put_back(self) -> Iterator[Saying]:
        """Of an undo: what the run did and no undo took back."""
        run = self.told.undoes
        if run is None or self.history.kind != "undo":
            return
        back = _put_back(self.history).union(*(_put_back(one.history) for one in self.told.others))
        for step in _acted(run):
            if step in back:
                continue
            first = next((line for line in run.all("intent") if str(line.get("step")) == step), {})
            by_hand = any(_is_by_hand(line) for line in run.all("settled", step))
            why = t(BY_HAND) if by_hand else _word(first.get("irreversible")).rstrip(".")
            yield Saying("r-stays-why" if why else "r-stays", {"step": _word(step), "why": why})

    def _holders(self) -> Iterator[Saying]:
        before, last = self.told.before, self.told.last
        if before is None or last is None or last is before:
            return
        later = last.facts.gpu_holders.value
        for one in before.facts.gpu_holders.value or ():
            values = {"pid": str(one.pid), "command": shown(one.command), "look": last.name}
            if later is None:
                yield Saying("h-unknown", values)
            else:
                same = any((other.pid, other.command) == (one.pid, one.command) for other in later)
                yield Saying("h-still" if same else "h-gone", values)

    def _backups(self) -> Iterator[Saying]:
        """A playbook that ended says what it made; of one that did not, only what it was about to make is known."""
        made = dict.fromkeys(_word(line.get("backup")) for line in self.history.all("applied"))
        yield from (Saying("r-backup", {"path": path}) for path in made if path)
        begun: dict[str, str] = {}
        maybe: dict[str, None] = {}
        for line in self.history.lines:
            step = _word(line.get("step"))
            if line["event"] == "intent":
                begun[step] = _word(_mapping(line.get("undo")).get("backup"))
                maybe[begun[step]] = None
            elif line["event"] == "applied" and line.get("ok") is True:
                maybe.pop(begun.get(step, ""), None)
        yield from (Saying("r-backup-maybe", {"path": path}) for path in maybe if path and path not in made)

    def _not_begun(self) -> Iterator[str]:
        plan = self.history.process.get("plan")
        come_to = {_word(line.get("step")) for line in self.history.lines if line["event"] != "settled"}
        for one in plan if isinstance(plan, list) else ():
            step, decision = _word(_mapping(one).get("step")), _mapping(one).get("decision")
            if step and step not in come_to and decision != "left out":
                yield step

    def _labels_left(self) -> Iterator[Saying]:
        """Labels that a step set out to change, and that are not what they were."""
        node = self.told.last.facts.node.value if self.told.last is not None and self.told.at_end else None
        if node is None:
            return
        first: dict[str, Any] = {}
        for line in self.history.all("intent"):
            for key, was in _mapping(_mapping(line.get("undo")).get("labels")).items():
                first.setdefault(str(key), was)
        for key, was in first.items():
            now = node.labels.get(key)
            if now != was:
                values = {"label": shown(key), "was": _label(was), "now": _label(now)}
                yield Saying("r-label", values)

    def _unknown(self) -> Iterator[Saying]:
        told, history = self.told, self.history
        if history.torn:
            yield Saying("u-torn")
        if history.broken:
            yield Saying("u-broken", {"lines": ", ".join(map(str, history.broken))})
        yield from (Saying("u-missing", {"what": shown(what), "why": shown(why)}) for what, why in told.missing)
        if died := self._deaths():
            yield Saying("u-died", {"count": str(len(died))})
        for step in self.open:
            yield Saying("u-step", {"step": shown(step)})
        if self._clock_went_back():
            yield Saying("u-clock")
        if any(_time(line) is None for line in history.lines):
            yield Saying("u-times")
        if self.start and told.last is not None and not told.at_end:
            yield Saying("u-no-end-look", {"look": told.last.name, "at": _moment(told.last.diagnosis.as_of) or "?"})
        for look in (told.before, told.last if told.last is not told.before else None):
            yield from self._unread(look) if look is not None else ()
        yield from self._always()

    def _always(self) -> Iterator[Saying]:
        """What no journal holds, and a postmortem needs: for people to write in."""
        if self.history.kind == "undo":
            yield Saying("u-why-undone")
            return
        before = self.told.before
        if before is None or before.diagnosis.down_since is None:
            yield Saying("u-began")
        swap = _word(self.start.get("root_cause")) == "swap-on"
        yield Saying("u-who-swap" if swap else "u-who")
        yield Saying("u-noticed")
        yield Saying("u-by-hand")

    def _unread(self, look: Look) -> Iterator[Saying]:
        for what, why in sorted(look.diagnosis.unread.items()):
            yield Saying("u-unread", {"look": look.name, "what": shown(what), "why": shown(why)})

    def _deaths(self) -> tuple[int, ...]:
        """After which lines (by their place) a process of this run ended without a word; the one that may still live
        is not counted. That a step was done by hand is written by whoever goes on, before his own beginning."""
        died, going = [], False
        for number, line in enumerate(self.history.lines):
            begins = line["event"] in ("run-start", "resume")
            if going and (begins or _is_by_hand(line)):
                died.append(number - 1)
            going = begins or (going and line["event"] != "run-end" and not _is_by_hand(line))
        if going and self.told.state != "running":
            died.append(len(self.history.lines) - 1)
        return tuple(died)

    def _clock_went_back(self) -> bool:
        times = [at for line in self.history.lines if (at := _time(line)) is not None]
        return any(later < earlier for earlier, later in itertools.pairwise(times))


def _acted(history: History) -> list[str]:
    """The steps that a run took, the newest first: by its playbooks, or by a person's hand."""
    steps = [line.get("step") for line in history.lines if line["event"] == "intent" or _is_by_hand(line)]
    return list(reversed(dict.fromkeys(str(step) for step in steps)))


def _is_by_hand(line: Line) -> bool:
    return line["event"] == "settled" and line.get("by_hand") is True


def _put_back(undo: History) -> set[str]:
    """The steps of the run that ``undo`` undid, or found undone."""
    over = {step.step for step in steps_of(undo) if step.outcome in ("done", "no-op")}
    return {step.removeprefix(undo_id("")) for step in over}


# --- one line of the journal -----------------------------------------------------------------------------------------


def _told_of(line: Line) -> Saying | None:
    """None for a line that tells nothing to a reader of the timeline."""
    event = line["event"]
    values = {name: _word(line.get(name)) or "?" for name in ("step", "who", "by", "outcome", "text")}
    if _is_by_hand(line):
        return Saying("t-by-hand" if line.get("who") else "t-by-hand-told", values)
    if event in ("run-start", "resume", "settled", "intent"):
        return Saying(f"t-{event}", values)
    if event == "preview":
        return Saying("t-preview", values)
    if event == "consent":
        return Saying("t-consent-destructive" if line.get("destructive") is True else "t-consent", values)
    if event == "applied":
        return Saying(
            "t-applied" if line.get("ok") is True else "t-broke", {**values, "text": _word(line.get("message"))}
        )
    if event == "step-result":
        return Saying("t-result", {**values, "text": _word(line.get("text"))})
    if event == "run-end":
        return Saying("t-end", {"status": _word(line.get("exit_status")) or "?", "text": _word(line.get("line"))})
    return None


def _diff(tasks: object) -> str:
    """What the tasks changed, as lines of a diff; empty where they tell of none."""
    lines: list[str] = []
    for task in tasks if isinstance(tasks, list) else ():
        records = _mapping(task).get("diffs")
        for record in records if isinstance(records, list) else ():
            if isinstance(record, Mapping):
                lines += [line.strip("\n") for line in diff_lines([record], _WIDE)]
    return shown_lines("\n".join(line.removeprefix("    ").removeprefix("  ") for line in lines))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _word(value: object) -> str:
    """A field of the journal as one line of text; empty for None."""
    if value is None:
        return ""
    return safe(shown(value if isinstance(value, str) else str(value)), limit=_LONGEST)


def _label(value: object) -> str:
    return t("(absent)") if value is None else _word(value)


def _time(line: Line) -> datetime | None:
    return parse_time(line.get("at"))


def _at(line: Line) -> str:
    return _moment(_time(line))


def _moment(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC" if at is not None else ""


def _between(since: datetime | None, until: datetime | None) -> str:
    """Empty where it is not known, or where a clock went back."""
    return duration(until - since) if since is not None and until is not None and until >= since else ""
