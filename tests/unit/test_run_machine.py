"""Whole runs in any order and with any fate: begun, killed, failed, gone on with, skipped, undone, while somebody else
works on the node by hand. Nobody's job dies of it, nothing is said that is not so, and undoing restores the start."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import order_model as model
import pytest
from exact_session import FSTAB, REST, SWAP_LINE, ExactSession, Fate, Hearing, Host
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from model_session import BOOK, Death, Killed, Ui
from order_model import NODE, World

from gpufix import recovery, resuming, runs, undoing
from gpufix import walk as walk_module
from gpufix.consents import Request
from gpufix.core.run_history import read_history
from gpufix.errors import ExitStatus, GpufixError
from gpufix.runs import list_runs, run_to_resume, run_to_undo
from gpufix.world.journal import JOURNAL, JournalError
from gpufix.world.prompts import Interrupted

ASKED = Request([BOOK], who="tester@bench")
STEPS = ("relabel", "stop-vfio-manager", "disable-swap", "restart-kubelet")


def _fstab(edit: Callable[[str], str]) -> Callable[[Host], None]:
    return lambda host: host.edit_fstab(edit(host.fstab))


def _world(**changes: Any) -> Callable[[Host], None]:
    def change(host: Host) -> None:
        host.world = host.world._replace(promised=False, **changes)

    return change


def _kubelet_start(host: Host) -> None:
    host.world = dict(model.by_hand(host.world))["kubelet started"]


HANDS: Mapping[str, tuple[str, Callable[[Host], None]]] = {
    "labels passthrough": ("label", _world(label="vm-passthrough")),
    "labels container": ("label", _world(label="container")),
    "takes the label off": ("label", _world(label="")),
    "labels nonsense": ("label", _world(label="nonsense")),
    "turns swap on": ("swap", _world(swap=True)),
    "turns swap off": ("swap", _world(swap=False, heavy=False)),
    "adds a swap line": ("swap", _fstab(lambda text: text + "/other none swap sw 0 0\n")),
    "comments swap out": ("swap", _fstab(FSTAB.comment_swap)),
    "adds a mount": ("swap", _fstab(lambda text: text + "UUID=2 /data xfs defaults 0 2\n")),
    "makes a swap unit": ("swap", _world(native_unit=True)),
    "starts the kubelet": ("kubelet", _kubelet_start),
    "stops the kubelet": ("kubelet", _world(kubelet="inactive")),
    "starts a job": ("job", lambda host: _world(jobs=host.world.jobs | {2})(host)),
}
"""What somebody does by hand, and what of the node is touched by it."""

DECISIONS = ("go",) * 24 + ("quit", "skip", "details", "ctrl-c", "undo", "close", "new", "done", *HANDS)
"""What a person does at a question. One that somebody's hand came before is answered with yes."""

_AT, _HOW, _PART = st.integers(1, 9), st.sampled_from(("before", "half", "after")), st.integers(0, 4)
KILLS = st.one_of(
    st.builds(Fate, st.sampled_from(("run", "run", "read", "fence")), _AT, _HOW, _PART),
    st.builds(Fate, st.just("line"), st.integers(1, 26), st.sampled_from(("before", "after", "torn", "full"))),
)
FATES = st.one_of(
    *[st.just(Fate())] * 4,
    KILLS,
    st.builds(Fate, st.just("fails"), st.integers(1, 4), _HOW, _PART),
    st.builds(Fate, st.sampled_from(("unread", "lost", "ctrl-c")), _AT, _HOW),
)
SAID = st.one_of(st.just([]), st.just([]), st.lists(st.sampled_from(DECISIONS), max_size=8))


@dataclass
class Start:
    """A run, seen from outside: what the node was when it began, and what others have touched since."""

    world: World
    fstab: str
    touched: set[str] = field(default_factory=set)


class Whole(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = Path(tempfile.mkdtemp(prefix="gpufix-machine-"))
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(runs, "process_began", lambda pid: "")  # the process of every journal here is dead
        for module in (walk_module, resuming):
            self.patch.setattr(module, "POLL_SECONDS", 5.0)
        self.host = Host(World(), SWAP_LINE + REST)
        self.starts: dict[str, Start] = {}

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.state)

    @initialize(
        label=st.sampled_from(("vm-passthrough", *model.HAND_LABELS)),
        fstab=st.booleans(),
        fate=st.one_of(FATES, KILLS),
        decisions=SAID,
        **{name: st.booleans() for name in ("container", "operator", "old_kubelet", "native_unit")},
    )
    def begin(self, label: str, fstab: bool, fate: Fate, decisions: list[str], **world: bool) -> None:
        """The node dies, and somebody begins to mend it."""
        deploy = label == "vm-passthrough" or world["container"]
        self.host.world = World(label=label, deploy_vfio=deploy, **world)
        self.host.edit_fstab((SWAP_LINE if fstab else "") + REST)
        self.recover(fate=fate, towards="container", decisions=decisions)

    # --- what happens ---

    @rule(hand=st.sampled_from(sorted(HANDS)))
    def somebody(self, hand: str) -> None:
        what, act = HANDS[hand]
        act(self.host)
        self._touch(what)

    @rule(pick=st.integers(0, 4))
    def something_happens(self, pick: int) -> None:
        happenings = model.autonomous(self.host.world)
        before = self.host.world
        self.host.world = happenings[pick % len(happenings)][0]
        if before.swap != self.host.world.swap:
            self._touch("swap")

    def _touch(self, what: str) -> None:
        for start in self.starts.values():
            start.touched.add(what)

    @rule(
        fate=FATES,
        towards=st.sampled_from(("container", "container", "vm-passthrough")),
        decisions=SAID,
    )
    def recover(self, fate: Fate, towards: str, decisions: list[str]) -> None:
        self._process("recover", fate, towards, decisions, lambda one, heard: recovery.recover(one, ASKED, [heard]))

    @precondition(lambda self: any(run.is_open for run in list_runs(self.state)))
    @rule(fate=FATES, decisions=SAID)
    def resume(self, fate: Fate, decisions: list[str]) -> None:
        self._process("resume", fate, "container", decisions, self._resume)

    @precondition(lambda self: any(run.history.changed and run.state != "undone" for run in list_runs(self.state)))
    @rule(fate=FATES, only=st.sampled_from(("", "", "", "relabel", "disable-swap")), decisions=SAID)
    def undo(self, fate: Fate, only: str, decisions: list[str]) -> None:
        self._process(
            "undo", fate, "container", decisions,
            lambda one, heard: undoing.undo(one, ASKED, run_to_undo(self.state, NODE), only, [heard]),
        )  # fmt: skip

    def _resume(self, one: Any, heard: Any) -> Any:
        return resuming.resume(one, ASKED, run_to_resume(self.state, NODE), [heard])

    # --- one process of gpufix ---

    def _process(
        self, what: str, fate: Fate, target: str, decisions: list[str], work: Callable[[Any, Any], Any]
    ) -> None:
        heard = Hearing(lambda name, fields: self._hear(one, name, fields))
        one = ExactSession(self.host, Ui(self._answers(target, decisions)), fate, heard)
        one.state = self.state
        one.target = target
        before = {run.id: run.history.seq for run in list_runs(self.state)}
        death = Death(self.patch, fate.at if fate.what == "line" else 0, fate.how)
        ended = "killed"
        try:
            result = work(one, heard)
        except GpufixError as error:
            ended = f"error {error.exit_status:d}"
            assert error.message and "\n" not in error.message + error.hint
            assert not one.applied or isinstance(error, JournalError), (
                "a change is followed by a result, not by an error"
            )
        except (Killed, Interrupted, KeyboardInterrupt) as end:
            assert not isinstance(end, Killed) or fate.what in ("read", "run", "fence", "line")
        else:
            assert result.line and "\n" not in result.line
            ended = f"status {result.status:d}"
            self._check_end(result)
        finally:
            death.stop()
            event(f"{what}: {ended}")
        assert one.fault == "", (one.fault, one.applied)
        self._check_journals(before)

    def _answers(self, target: str, decisions: list[str]) -> Callable[[str, Sequence[str]], str]:
        left = iter(decisions)

        def decide(message: str, options: Sequence[str]) -> str:
            decision = next(left, "go")
            if decision in HANDS:
                self.somebody(decision)
            if decision == "ctrl-c":
                raise Interrupted
            if decision in options:
                return decision
            return next(one for one in ("apply", "on", target, *options) if one in options)

        return decide

    # --- what must be so ---

    def _hear(self, one: ExactSession, name: str, fields: Mapping[str, Any]) -> None:
        """What is said, held against the world at that moment."""
        world = self.host.world
        if name == "run-start":
            self.starts.setdefault(str(fields["run"]), Start(world, self.host.fstab))
        if name in ("step-result", "settled") and fields["outcome"] in ("done", "no-op"):
            assert self._is_so(fields["step"], one), (fields, world)

    def _is_so(self, step: str, one: ExactSession) -> bool:
        world = self.host.world
        if step == "relabel":
            return bool(world.label) and (world.label != "container" or not world.deploy_vfio)
        return {
            "stop-vfio-manager": not world.container,
            "disable-swap": not (world.swap or world.native_unit or FSTAB.swap_lines(self.host.fstab)),
            "restart-kubelet": world.kubelet == "active",
            "verify": world.kubelet == "active" and not world.swap,
        }.get(step, True)

    def _check_journals(self, before: Mapping[str, int]) -> None:
        for run in list_runs(self.state):
            history = read_history((run.folder / JOURNAL).read_text())
            assert run.state != "unreadable" or not history.lines
            assert history.damage == "", run.folder
            assert history.seq >= before.get(run.id, 0), "what is on record stays so"

    def _check_end(self, result: Any) -> None:
        if not result.run:
            return
        run = next(run for run in list_runs(self.state) if str(run.folder) == result.run)
        if result.status is ExitStatus.OK and run.history.kind == "recover":
            assert self.host.world.kubelet == "active" and not self.host.world.swap
        if result.status is ExitStatus.OK and run.history.kind == "undo" and not run.history.start.get("only"):
            self._check_start_is_restored(run.of)

    def _check_start_is_restored(self, of: str) -> None:
        start, world = self.starts[of], self.host.world
        if "label" not in start.touched:
            assert world.label == start.world.label
        if "swap" not in start.touched:
            assert self.host.fstab == start.fstab
            assert (world.swap, world.native_unit) == (start.world.swap, start.world.native_unit)


TestWholeRuns = Whole.TestCase
TestWholeRuns.settings = settings(
    derandomize=True, max_examples=int(os.environ.get("GPUFIX_RUN_EXAMPLES", "100")), stateful_step_count=8,
    deadline=None,
)  # fmt: skip
