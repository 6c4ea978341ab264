"""The model session with the fstab of a real host and with doors that break: what the machine of whole runs acts on.

fstab is bytes, edited by the project's own module, and the playbooks refuse what the real ones refuse: a world that is
not the one that was previewed. The world outlives each session, as a node outlives each process of gpufix.
"""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import order_model as model
from model_session import STEP_OF, Killed, ModelSession, Ui, calm
from order_model import Faults, World

from gpufix.core.diagnose import Diagnosis
from gpufix.core.fold import PlayResult, Trouble
from gpufix.errors import ExitStatus, GpufixError
from gpufix.model import Facts, FstabLine, Observation, Snapshot
from gpufix.resources import fstab_module
from gpufix.session import Reading

FSTAB = fstab_module()
SWAP_LINE = "/swapfile none swap sw 0 0\n"
REST = "UUID=1 / ext4 defaults 0 1\n/data/swap /srv/swap ext4 ro 0 2\n# swap was here\n"


@dataclass
class Host:
    """What stays when gpufix's process is gone: the world, fstab to the byte, and the backups beside it."""

    world: World
    fstab: str
    backups: dict[str, str] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    set_labels: set[str] = field(default_factory=set)
    """The labels that gpufix itself has set: one that somebody else sets to the same cannot be told from them."""

    def edit_fstab(self, text: str) -> None:
        self.fstab = text
        self.world = self.world._replace(fstab=bool(FSTAB.swap_lines(text)))


@dataclass(frozen=True)
class Fate:
    """What befalls one process of gpufix. ``at``: the how manieth call of the door named by ``what`` it is.

    ``what``: read | run | fence (killed there; ``how`` is before its effect, after it or in the middle of it), fails (a
    playbook), unread (from then on a side cannot be read), lost (the node is another operator's), ctrl-c (a playbook).
    """

    what: str = ""
    at: int = 0
    how: str = "before"
    part: int = 0
    """Of a playbook that fails, or is killed in the middle: which of its ways; 0 is before any effect."""


@dataclass
class Hearing:
    """Listens to a run, as a stream of events does. ``told`` is called with each event."""

    told: Callable[[str, Mapping[str, Any]], None] = lambda event, fields: None
    last: tuple[str, str] = ("", "")
    kills: dict[str, frozenset[int]] = field(default_factory=dict)

    def event(self, event: Any, fields: dict[str, Any]) -> None:
        self.last = str(event), str(fields.get("step", ""))
        if event == "consent":
            self.kills[str(fields["step"])] = frozenset(fields["kills"])
        self.told(str(event), fields)


@dataclass
class Holding:
    """The hold on the node; ``fence`` is asked before each change."""

    fence: Callable[[str], None]
    words: str = "lease"

    def name_run(self, run: str) -> None:
        pass


class ExactSession(ModelSession):
    """One process of gpufix on ``host``."""

    def __init__(self, host: Host, ui: Ui, fate: Fate, hearing: Hearing) -> None:
        super().__init__(host.world, ui, calm, lambda possible: possible[-1])
        self.there = host
        self.faults = host.faults
        self.fate = fate
        self.hearing = hearing
        self.calls = {"read": 0, "run": 0, "fence": 0, "fails": 0}
        self.dead = False
        self.holding = Holding(self._fence)  # type: ignore[assignment]

    # the world is the host's own
    @property
    def world(self) -> World:  # type: ignore[override]
        return self.there.world

    @world.setter
    def world(self, world: World) -> None:
        if hasattr(self, "there"):
            self.there.world = world

    # --- the doors ---

    def _door(self, name: str, work: Callable[[], Any]) -> Any:
        assert not self.dead, "a dead process touches nothing"
        self.calls[name] += 1
        dies = self.fate.what == name and self.fate.at == self.calls[name]
        if dies and self.fate.how == "before":
            self.dead = True
            raise Killed
        done = work()
        if dies:
            self.dead = True
            raise Killed
        return done

    def read(self) -> Reading:
        return self._door("read", self._read)  # type: ignore[no-any-return]

    def _read(self) -> Reading:
        reading = super().read()
        if self.fate.what == "unread" and self.calls["read"] >= self.fate.at:
            blind = frozenset(model.HOST if self.fate.how == "before" else model.CLUSTER)
            why = {"host" if self.fate.how == "before" else "cluster": "it does not answer"}
            facts = replace(reading.facts, **dict.fromkeys(blind, model.UNREAD))
            unknown = Diagnosis(model.NODE, None, reading.diagnosis.root_cause, ())
            return Reading(Snapshot(model.NODE, {}, why), facts, unknown)
        return reading

    def facts(self) -> Facts:
        lines = tuple(FstabLine(number, text) for number, text in FSTAB.swap_lines(self.there.fstab))
        return replace(super().facts(), fstab_swap=Observation.of(lines))

    words_of_lock = "lease"

    def _fence(self, step: str) -> None:
        self._door("fence", lambda: None)
        if self.fate.what == "lost" and self.calls["fence"] >= self.fate.at:
            raise GpufixError("the lease of omen2 is held by jane@other now", "", ExitStatus.LOCKED)

    # --- playbooks ---

    def run(self, playbook: str, host: str, variables: Mapping[str, Any], *, check: bool = False) -> PlayResult:
        return self._door("run", lambda: self._run(playbook, host, variables, check))  # type: ignore[no-any-return]

    def _run(self, playbook: str, host: str, variables: Mapping[str, Any], check: bool) -> PlayResult:
        step = STEP_OF[playbook]
        if self.fate.what == "ctrl-c" and self.calls["run"] == self.fate.at:
            signal.raise_signal(signal.SIGINT)
        if why := self._refusal(step, variables):
            return PlayResult(False, Trouble.FAILED, f"{why}; nothing was done", ())
        if check:
            return super().run(playbook, host, variables, check=True)
        assert self.hearing.last == ("intent", step), "what is begun is on record before"
        self.calls["fails"] += 1
        fails = self.fate.what == "fails" and self.calls["fails"] == self.fate.at
        half = self.fate.what == "run" and self.fate.how == "half" and self.calls["run"] == self.fate.at
        self.ends = self._ending if fails or half else _last
        before = self.world
        done = super().run(playbook, host, variables)
        if fails:
            done = PlayResult(False, Trouble.FAILED, "it broke", ())
        self._write_fstab(step, before, variables)
        if step == "undo-relabel":
            assert before.label in self.there.set_labels, "a label that somebody else has set is not undone"
        if step in ("relabel", "undo-relabel"):
            self.there.set_labels.add(self.world.label)
        return done

    def _ending(self, possible: Any) -> Any:
        return (self.world, "") if self.fate.part == 0 else possible[min(self.fate.part, len(possible)) - 1]

    def _agreed_to(self, step: str, target: str) -> frozenset[int] | None:
        return self.hearing.kills[step]

    def _write_fstab(self, step: str, before: World, variables: Mapping[str, Any]) -> None:
        if before.fstab and not self.world.fstab:
            self.there.backups[_backup(self.there.fstab)] = self.there.fstab
            self.there.fstab = FSTAB.comment_swap(self.there.fstab)
        elif step == "undo-disable-swap" and self.world.fstab and not before.fstab:
            self.there.fstab = self.there.backups[_material(variables)["fstab"]["backup"]]

    def _refusal(self, step: str, variables: Mapping[str, Any]) -> str:
        """Why the playbook does nothing: the world is not the one that was previewed, or that gpufix left."""
        now = {
            "gpufix_expect_fstab_sha256": _sha(self.there.fstab),
            "gpufix_expect_swaps_sha256": _sha(str(self.world.swap)),
            "gpufix_expect_state_sha256": _sha(self.there.fstab + str(self.world.swap)),
            "gpufix_expect_workload_config": self.world.label,
        }
        if moved := [name for name, value in now.items() if name in variables and _plain(variables[name]) != value]:
            return f"{moved[0]} is another one now than it was in the preview"
        fstab = _material(variables)["fstab"] if step == "undo-disable-swap" else None
        if fstab is not None and _sha(self.there.fstab) not in (fstab["sha256"], fstab["sha256_after"]):
            return "/etc/fstab was edited since gpufix left it, so it is not put back"
        return ""

    def _returned(self, step: str) -> dict[str, Any]:
        text, after = self.there.fstab, FSTAB.comment_swap(self.there.fstab)
        digests = {"fstab_sha256": _sha(text), "swaps_sha256": _sha(str(self.world.swap))}
        if step == "undo-disable-swap":
            return {"state_sha256": _sha(text + str(self.world.swap))}
        if step != "disable-swap":
            return {}
        return {
            **digests,
            "fstab_sha256_after": _sha(after),
            "backup": _backup(text) if after != text else "",
            "devices": [{"path": "/swapfile", "priority": -2}] if self.world.swap else [],
            "units": [{"unit": "data.swap", "action": "mask"}] if self.world.native_unit else [],
            "services": [],
        }


def _last(possible: Any) -> Any:
    return possible[-1]


def _plain(value: Any) -> str:
    return str(value).replace("(absent)", "")


def _sha(text: str) -> str:
    digest: str = FSTAB.sha256(text.encode())
    return digest


def _backup(text: str) -> str:
    return f"/etc/fstab.gpufix-{_sha(text)[:12]}"


def _material(variables: Mapping[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(base64.b64decode(str(variables["gpufix_restore"])))
    return data
