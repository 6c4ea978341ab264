"""What a report is made from, and what it says: plain data. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpufix.core.render.chain_figure import Figure
from gpufix.core.render.document import CauseLink, FoundCheck, PutAside
from gpufix.core.run_history import History
from gpufix.language import t
from gpufix.model import Diagnosis, Facts


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
