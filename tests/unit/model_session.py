"""A session over the model world of the order rules (order_model.py): what walks and unattended runs are tested on."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import order_model as model
import pytest
from order_model import Attempt, Faults, World

from gpufix.core.fold import PlayResult, TaskResult, Trouble
from gpufix.core.render.terminal import Style
from gpufix.model import Diagnosis, Evidence, Facts, Finding, Observation, Snapshot, Status
from gpufix.session import NoHold, Reading, read_remediators, read_runbooks
from gpufix.world.cluster import ClusterAccess
from gpufix.world.journal import JOURNAL, Journal, JournalError, state_folder
from gpufix.world.playbooks import Access
from gpufix.world.prompts import Option

(BOOK,) = read_runbooks()
REMEDIATORS = read_remediators()
STEP_OF = {
    **{step.playbook: step.id for step in BOOK.steps if step.playbook},
    "restore-labels.yml": "undo-relabel",
    "restore-swap.yml": "undo-disable-swap",
}
SICK = Finding("swap-on", Status.CONFIRMED, "swap", (Evidence("host/kubelet.journal:1", "swap"),))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Ui:
    """Answers questions with ``choose``; keeps what was said."""

    choose: Callable[[str, Sequence[str]], str]
    type_name: Callable[[], str] = lambda: model.NODE
    said: list[str] = field(default_factory=list)
    style: Style = field(default_factory=Style)

    def say(self, lines: Iterable[str]) -> None:
        self.said += lines

    def progress(self, text: str) -> None:
        pass

    def ask_choice(self, message: str, options: Sequence[Option], default: str) -> str:
        return self.choose(message, [option.value for option in options])

    def ask_text(self, message: str) -> str:
        return self.type_name()

    @property
    def text(self) -> str:
        return "\n".join(self.said)


class ModelSession:
    """Stands where Session stands, with the model for a world. ``meanwhile`` is asked before each look at it."""

    node = model.NODE
    host = model.NODE
    access = Access(("inventory",))
    cluster_access = ClusterAccess()
    lasts = True

    def __init__(
        self, world: World, ui: Ui, meanwhile: Callable[[World], World], ends: Callable[[Sequence[Any]], Any]
    ) -> None:
        self.world = world
        self.ui = ui
        self.clock = Clock()
        self.meanwhile = meanwhile
        self.ends = ends
        self.faults = Faults()
        self.fault = ""
        self.applied: list[str] = []
        self.finding = SICK
        self.shown: frozenset[int] | None = None
        self.runner = SimpleNamespace(kill=lambda: False)
        self.dry_runs: list[str] = []
        self.state = state_folder()
        self.holding = NoHold()
        self.remediators = REMEDIATORS

    def words(self, verb: str) -> str:
        return f"gpufix {verb} {model.NODE}"

    def access_data(self) -> dict[str, Any]:
        return {}

    @contextmanager
    def hold(self) -> Iterator[Any]:
        yield self.holding

    def connect(self) -> None:
        pass

    def facts(self) -> Facts:
        facts = model.read(self.world)
        node = facts.node.value
        assert node is not None
        gpu = "nvidia.com/gpu" if self.world.label == "container" else "nvidia.com/RTX"
        node = replace(node, allocatable={gpu: "1"}, capacity={gpu: "1"})
        vm = model_vm()
        return replace(facts, node=Observation.of(node), vms=Observation.of((vm,)))

    def read(self) -> Reading:
        self.world = self.meanwhile(self.world)
        return Reading(Snapshot(model.NODE, {}), self.facts(), Diagnosis(model.NODE, None, self.finding, ()))

    def run(self, playbook: str, host: str, variables: Mapping[str, Any], *, check: bool = False) -> PlayResult:
        step = STEP_OF[playbook]
        if check:
            self.dry_runs.append(step)
            returned = self._returned(step)
            return PlayResult(True, Trouble.NONE, "", (TaskResult(step, host, "m", changed=True, result=returned),))
        target = variables.get("gpufix_workload_config") or self.target
        shown = self._agreed_to(step, target)
        attempt = Attempt(step, target, shown=shown, back=_put_back(self.world, variables))
        possible = list(model.outcomes(self.world, attempt))
        whole = possible[-1]
        outcome = self.ends(possible)
        self.fault = self.fault or self.faults.of_step(self.world, outcome)
        self.world = outcome[0]
        self.applied.append(step)
        ok = outcome == whole
        return PlayResult(ok, Trouble.NONE if ok else Trouble.FAILED, "" if ok else "it broke half-way", ())

    target = "container"

    def _agreed_to(self, step: str, target: str) -> frozenset[int] | None:
        return frozenset(self.world.jobs) if target != "container" else None

    def _returned(self, step: str) -> dict[str, Any]:
        """What a dry run returns. Of disable-swap.yml: digests stand for the two states that fstab has here."""
        if step != "disable-swap":
            return {}
        fstab = self.world.fstab
        return {
            "fstab_sha256": FSTAB[fstab],
            "fstab_sha256_after": FSTAB[False],
            "backup": f"/etc/fstab.gpufix-{FSTAB[True][:12]}" if fstab else "",
            "units": [{"unit": "data.swap", "action": "mask"}] if self.world.native_unit else [],
            "services": [],
        }


FSTAB = {True: "a" * 64, False: "b" * 64}


def _put_back(world: World, variables: Mapping[str, Any]) -> World:
    """The world whose labels or swap an undo's variables put back; as it is where they are of no undo."""
    if "gpufix_vfio_manager" in variables:
        label = str(variables["gpufix_workload_config"]).replace("(absent)", "")
        return world._replace(label=label, deploy_vfio=variables["gpufix_vfio_manager"] == "true")
    if "gpufix_restore" in variables:
        material = json.loads(base64.b64decode(str(variables["gpufix_restore"])))
        fstab, native = material["fstab"] is not None, bool(material["units"])
        return world._replace(
            fstab=fstab or world.fstab, native_unit=native or world.native_unit,
            swap=bool(material["devices"]) or world.swap,
        )  # fmt: skip
    return world


class Killed(BaseException):
    """Stands for the process's death: nothing in gpufix may catch it and go on."""


class Death:
    """Kills at the ``at``-th line of a journal: before it is written, after, or in the middle of it (torn).

    Full: nobody is killed, but that line is written in part and from then on the disk is full.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, how: str) -> None:
        self.left, self.happened = at, False
        real = Journal.write

        def write(journal: Journal, event: str, **fields: Any) -> None:
            self.left -= 1
            if self.left == 0:
                self.happened = True
                if how != "before":
                    real(journal, event, **fields)
                if how in ("torn", "full"):
                    path = journal.folder / JOURNAL
                    path.write_bytes(path.read_bytes()[: -len(event) - 12])
            if self.happened and how == "full":
                raise JournalError(JOURNAL, OSError(28, "No space left on device"), "free space there")
            if self.happened:
                raise Killed  # a dead process writes no more
            real(journal, event, **fields)

        monkeypatch.setattr(Journal, "write", write)
        self.stop = lambda: monkeypatch.setattr(Journal, "write", real)


def model_vm() -> Any:
    from gpufix.model import VmFacts

    return VmFacts("default", "gpu-fedora", "ErrorUnschedulable", {"nvidia.com/RTX": 1})


def whole(possible: Sequence[Any]) -> Any:
    return possible[-1]


def calm(world: World) -> World:
    """The operator follows the label and nothing else happens."""
    if world.operator and world.deploy_vfio != (world.served == "vm-passthrough"):
        return next(after for after, _ in model.autonomous(world) if after.deploy_vfio != world.deploy_vfio)
    return world
