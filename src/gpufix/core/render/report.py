"""A draft of a postmortem: what a run's journal and the looks beside it say, as plain data for templates. Pure.

Every moment and duration is the journal's or a snapshot's own; nothing here knows what time it is. A journal is text
that somebody may have written: any field may be missing or of any shape, and every text is made safe to show (no
secret, nothing that a terminal or a page would obey). Escaping for a markup is the templates' part.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from gpufix.core.alerts import Alerts, as_rules
from gpufix.core.render.attempts import acts_of, found_again
from gpufix.core.render.chain_figure import chain_figure
from gpufix.core.render.document import FoundCheck, chain_of, put_aside_of, shown
from gpufix.core.render.recorded import acted, at_of, between, is_by_hand, mapping, moment, put_back, time_of, word
from gpufix.core.render.report_parts import FollowUp, Look, Report, Saying, Told, Verification, VmImpact
from gpufix.core.render.terminal import origin_words
from gpufix.core.render.timeline import deaths_of, timeline_of
from gpufix.core.run_history import steps_of, unsettled
from gpufix.core.undo import BY_HAND
from gpufix.core.verdict import Verdicts, judge
from gpufix.core.workload import raw_workload
from gpufix.language import t
from gpufix.model import AffectedVm


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
        self.node = word(self.start.get("node"))
        self.verdicts = self._judged()
        self.open = unsettled(self.steps) if told.state != "running" else ()

    def report(self) -> Report:
        told, before = self.told, self.told.before
        cause = before.diagnosis.root_cause if before is not None else None
        named = word(self.start.get("root_cause"))
        undo = self.history.kind == "undo"  # what it puts back was somebody's choice: that is no cause of anything
        chain = chain_of(before.diagnosis) if before is not None and not undo else ()
        cause_id = named or (cause.id if cause is not None else "")
        following = () if undo else self.alerts.telling_of(cause_id)
        return Report(
            run=shown(told.id),
            node=self.node,
            state=told.state,
            undo_of=word(self.start.get("undoes")) if self.history.kind == "undo" else "",
            gpufix=self.version,
            runbook=word(self.start.get("runbook")),
            digest=word(self.start.get("runbook_digest")),
            made_at=at_of(self.history.lines[-1]) if self.history.lines else "",
            status=word(self.last_end.get("exit_status")),
            line=word(self.last_end.get("line")),
            closed=self.end.get("closed") is True,
            outdated=self._outdated(),
            cause=cause_id,
            cause_status=str(cause.status) if cause is not None and cause.id == cause_id else "",
            cause_summary=shown(cause.summary) if cause is not None and cause.id == cause_id else "",
            top=tuple(self._top()),
            summary=tuple(self._summary()),
            impact=tuple(self._impact()),
            vms=tuple(self._vms()),
            timeline=tuple(timeline_of(told)),
            chain=chain,
            figure=chain_figure([(link.title, link.status) for link in chain]),
            put_aside=put_aside_of(before.diagnosis) if before is not None and not undo else (),
            answers=tuple(self._answers()),
            acts=tuple(acts_of(self.history)),
            again=tuple(dict.fromkeys(found_again(self.history))),
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
        answers = mapping(self.history.process.get("answers"))
        target = word(mapping(answers.get("target_workload")).get("value"))
        node = last.facts.node.value
        reached = node is not None and raw_workload(node) == target
        return judge(last.facts, last.diagnosis, target if reached else "")

    # --- what happened, in short ---

    def _top(self) -> Iterator[Saying]:
        if not self.start:
            yield Saying("no-start")
        if self.told.state in ("running", "unfinished", "stopped"):
            yield Saying(self.told.state, {"status": word(self.last_end.get("exit_status")), "node": self.node})
        yield from self._undone()
        if self.end.get("closed") is True:
            yield Saying("closed", {"line": word(self.end.get("line"))})
        if self.start and not self.history.changed:
            yield Saying("changed-nothing")

    def _undone(self) -> Iterator[Saying]:
        """What of it was put back, by the undos' own journals: an undo leaves alone what has no way back."""
        undos = self.told.undone_by
        if self.told.state == "undone" or undos:
            whole = "undone" if self.told.state == "undone" else "partly-undone"
            yield Saying(whole, {"by": ", ".join(shown(one.id) for one in undos)})
        took, back = acted(self.history), set().union(*(put_back(one.history) for one in undos))
        if undos:
            put = [step for step in took if step in back]
            yield Saying("put-back" if put else "put-back-nothing", {"steps": ", ".join(map(word, put))})
            if stay := [step for step in took if step not in back]:
                yield Saying("stays", {"steps": ", ".join(map(word, stay))})
        for one in undos:
            if line := word((one.history.last("run-end") or {}).get("line")):
                yield Saying("undo-ended", {"by": shown(one.id), "line": line})

    def _summary(self) -> Iterator[Saying]:
        began, ended = time_of(self.start), time_of(self.end) if self.end else None
        if self.start:
            yield Saying(
                "began",
                {"who": word(self.start.get("who")) or "?", "at": moment(began) or "?",
                 "runbook": word(self.start.get("runbook")) or "?"},
            )  # fmt: skip
            attended = self.start.get("attended")
            if isinstance(attended, bool):
                yield Saying("attended" if attended else "unattended")
        resumed = len(self.history.all("resume"))
        if resumed:
            yield Saying("resumed", {"count": str(resumed)})
        if self.end:
            yield Saying("ended", {"at": moment(ended) or "?", "status": word(self.end.get("exit_status")) or "?"})
        if lasted := between(began, ended):
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
            yield Saying("down-since", {"at": moment(since)})
        yield from self._until(since, last)

    def _until(self, since: datetime | None, last: Look | None) -> Iterator[Saying]:
        node = last.facts.node.value if last is not None else None
        if last is None or node is None or not node.ready:
            yield Saying("until-unknown")
            return
        as_of = moment(last.diagnosis.as_of) or "?"
        if node.ready != "True":
            yield Saying("still-down", {"at": as_of, "lasted": between(since, last.diagnosis.as_of) or "?"})
        elif since is not None and node.ready_since is not None and node.ready_since >= since:
            until = moment(node.ready_since)
            yield Saying("down-until", {"at": until, "lasted": between(since, node.ready_since)})
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
            since=moment(vm.since),
            lasted=between(vm.since, as_of) if now == "waiting" else "",
            reason=shown((still or vm).reason),
            elsewhere=vm.servable_elsewhere if vm.other_nodes else False,
            now=now,
        )

    # --- what was asked, and how it stands ---

    def _answers(self) -> Iterator[tuple[str, str, str]]:
        for name, one in mapping(self.start.get("answers")).items():
            given = mapping(one)
            value = given.get("value") if given else one
            yield shown(str(name)), word(value), word(origin_words(word(given.get("origin"))))

    def _verification(self) -> Verification:
        recorded = mapping(self.end.get("verdicts"))
        last, judged = self.told.last, self.verdicts
        return Verification(
            recorded=bool(recorded),
            node=word(recorded.get("node")),
            vms=word(recorded.get("vms")),
            look=last.name if last is not None else "",
            as_of=moment(last.diagnosis.as_of) if last is not None else "",
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
        back = put_back(self.history).union(*(put_back(one.history) for one in self.told.others))
        for step in acted(run):
            if step in back:
                continue
            first = next((line for line in run.all("intent") if str(line.get("step")) == step), {})
            by_hand = any(is_by_hand(line) for line in run.all("settled", step))
            why = t(BY_HAND) if by_hand else word(first.get("irreversible")).rstrip(".")
            yield Saying("r-stays-why" if why else "r-stays", {"step": word(step), "why": why})

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
        made = dict.fromkeys(word(line.get("backup")) for line in self.history.all("applied"))
        yield from (Saying("r-backup", {"path": path}) for path in made if path)
        begun: dict[str, str] = {}
        maybe: dict[str, None] = {}
        for line in self.history.lines:
            step = word(line.get("step"))
            if line["event"] == "intent":
                begun[step] = word(mapping(line.get("undo")).get("backup"))
                maybe[begun[step]] = None
            elif line["event"] == "applied" and line.get("ok") is True:
                maybe.pop(begun.get(step, ""), None)
        yield from (Saying("r-backup-maybe", {"path": path}) for path in maybe if path and path not in made)

    def _not_begun(self) -> Iterator[str]:
        plan = self.history.process.get("plan")
        come_to = {word(line.get("step")) for line in self.history.lines if line["event"] != "settled"}
        for one in plan if isinstance(plan, list) else ():
            step, decision = word(mapping(one).get("step")), mapping(one).get("decision")
            if step and step not in come_to and decision != "left out":
                yield step

    def _labels_left(self) -> Iterator[Saying]:
        """Labels that a step set out to change, and that are not what they were."""
        node = self.told.last.facts.node.value if self.told.last is not None and self.told.at_end else None
        if node is None:
            return
        first: dict[str, Any] = {}
        for line in self.history.all("intent"):
            for key, was in mapping(mapping(line.get("undo")).get("labels")).items():
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
        if died := deaths_of(self.told):
            yield Saying("u-died", {"count": str(len(died))})
        for step in self.open:
            yield Saying("u-step", {"step": shown(step)})
        if self._clock_went_back():
            yield Saying("u-clock")
        if any(time_of(line) is None for line in history.lines):
            yield Saying("u-times")
        if self.start and told.last is not None and not told.at_end:
            yield Saying("u-no-end-look", {"look": told.last.name, "at": moment(told.last.diagnosis.as_of) or "?"})
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
        swap = word(self.start.get("root_cause")) == "swap-on"
        yield Saying("u-who-swap" if swap else "u-who")
        yield Saying("u-noticed")
        yield Saying("u-by-hand")

    def _unread(self, look: Look) -> Iterator[Saying]:
        for what, why in sorted(look.diagnosis.unread.items()):
            yield Saying("u-unread", {"look": look.name, "what": shown(what), "why": shown(why)})

    def _clock_went_back(self) -> bool:
        times = [at for line in self.history.lines if (at := time_of(line)) is not None]
        return any(later < earlier for earlier, later in itertools.pairwise(times))


def _label(value: object) -> str:
    return t("(absent)") if value is None else word(value)
