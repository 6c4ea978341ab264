"""One node under care: how it is read and how playbooks run on it. Sequencing only; deciding is the core's."""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from gpufix import resources
from gpufix.core.diagnose import Signatures, diagnose, load_signatures
from gpufix.core.fold import PlayResult, Trouble, explain, finish, fold, progress
from gpufix.core.marks import MarkSignature, load_remediators
from gpufix.core.observations import OBSERVATIONS
from gpufix.core.parse import parse_snapshot
from gpufix.core.render.terminal import Style
from gpufix.core.runbook import Runbook, load_runbook, spoken
from gpufix.errors import ExitStatus, GpufixError
from gpufix.language import mark, t
from gpufix.lock import Lock
from gpufix.model import ROOT_CAUSES, Diagnosis, Facts, Snapshot
from gpufix.text import did_you_mean, redact, safe
from gpufix.world.cluster import Cluster, ClusterAccess, api_error, read_cluster
from gpufix.world.host import READ_NODE, default_inventory, inventory_hosts
from gpufix.world.journal import state_folder
from gpufix.world.playbooks import Access, PlaybookRunner
from gpufix.world.prompts import Option
from gpufix.world.snapshots import read_live

Variables = Mapping[str, str | int | bool]


class Ui(Protocol):
    """Where a workflow talks and asks. ``progress`` replaces its own last line; an empty text clears it."""

    style: Style

    def say(self, lines: Iterable[str]) -> None: ...

    def progress(self, text: str) -> None: ...

    def ask_choice(self, message: str, options: Sequence[Option], default: str) -> str: ...

    def ask_text(self, message: str) -> str: ...


class Clock(Protocol):
    """Seconds that only go forward, and waiting."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class Hold(Protocol):
    """One operator's hold on a node. ``words``: what it rests on, for the record."""

    @property
    def words(self) -> str: ...

    def name_run(self, run: str) -> None: ...

    def fence(self, step: str) -> None:
        """Right before a change. Raises GpufixError: status 8 when the node is another's, 7 when that is not known."""


class NoHold:
    words = "none"

    def name_run(self, run: str) -> None:
        pass

    def fence(self, step: str) -> None:
        pass


class NodeGone(GpufixError):
    """The cluster has no node of this name (status 2)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the world, read and judged."""

    snapshot: Snapshot
    facts: Facts
    diagnosis: Diagnosis
    host_trouble: Trouble = Trouble.NONE
    """Why the host could not be read at all, for code: the reason in words is in the person's language."""


def read_signatures() -> Signatures:
    return load_signatures(resources.read_text("signatures.yml"))


def read_remediators() -> tuple[MarkSignature, ...]:
    return load_remediators(resources.read_text("remediators.yml"))


def judge_snapshot(snapshot: Snapshot, signatures: Signatures) -> Reading:
    facts = parse_snapshot(snapshot)
    return Reading(snapshot, facts, diagnose(facts, signatures))


def read_runbooks(folder: Path | None = None, *, as_written: bool = False) -> list[Runbook]:
    """All runbooks, gpufix's or those in ``folder``, checked. Raises GpufixError (status 2) naming file and line.

    gpufix's speak the language of the person unless ``as_written``; those in ``folder`` are their owner's words.
    """
    schema, playbooks = resources.runbook_schema(), resources.playbook_names()
    books = []
    for path in resources.runbook_paths(folder):
        text = resources.read_file(path)
        book = load_runbook(
            text,
            file=str(path),
            schema=schema,
            observations=list(OBSERVATIONS),
            findings=ROOT_CAUSES,
            playbooks=playbooks,
        )
        book = replace(book, digest=hashlib.sha256(text.encode()).hexdigest())
        books.append(book if as_written or folder is not None else spoken(book))
    return books


class Session:
    """Reads ``node`` from its cluster and, as ``host`` of the inventory, from the machine itself."""

    def __init__(
        self,
        node: str,
        host: str,
        access: Access,
        cluster_access: ClusterAccess,
        ui: Ui,
        *,
        clock: Clock = time,
        state: Path | None = None,
        words: Mapping[str, str] | None = None,
        lasts: bool = True,
    ) -> None:
        """``state``: the folder that holds the journals of runs. ``words``: by which command a person does what
        ``gpufix VERB NODE`` does elsewhere. ``lasts``: the node is there after this walk, to be gone on with."""
        self.state = state if state is not None else state_folder()
        self._words = words or {}
        self.lasts = lasts
        self.node = node
        self.host = host
        self.access = access
        self.cluster_access = cluster_access
        self.ui = ui
        self.clock = clock
        self.runner = PlaybookRunner(access)
        self.signatures = read_signatures()
        self.remediators = read_remediators()
        self._cluster: Cluster | None = None
        self._host_trouble = Trouble.NONE

    def words(self, verb: str) -> str:
        """The command that a person is told to use."""
        usual = self.state in (state_folder(), state_folder().resolve())
        where = "" if usual else f" --state-dir {shlex.quote(str(self.state))}"
        return self._words.get(verb, f"gpufix {verb} {self.node}") + where

    def access_data(self) -> dict[str, Any]:
        """How the node was reached, for going on with a run later: paths and names, and no secret."""
        return {
            "inventory": list(self.access.inventory),
            "kubeconfig": self.cluster_access.kubeconfig or "",
            "context": self.cluster_access.context or "",
        }

    @contextmanager
    def hold(self) -> Iterator[Hold]:
        """The node is held for this process while in the block. Raises GpufixError: status 8 while another has it."""
        lock = Lock(self.cluster, self.node, clock=self.clock, say=self.ui.progress)
        try:
            lock.acquire()
            self.ui.progress("")
            if lock.why_none:
                told = t("No lock, so nobody else is kept out: {why}", why=lock.why_none)
                self.ui.say(["", *self.ui.style.wrap(safe(told), 0, 2)])
            elif lock.took_over:
                told = t("Taken over from: {holder}", holder=lock.took_over)
                self.ui.say(["", *self.ui.style.wrap(safe(told), 0, 2)])
            yield lock
        finally:
            lock.release()

    def connect(self) -> None:
        """Load the kubeconfig. Raises GpufixError (status 2) when there is none or it cannot be used."""
        self._cluster = self._cluster or Cluster(self.cluster_access)

    @property
    def cluster(self) -> Cluster:
        self.connect()
        assert self._cluster is not None
        return self._cluster

    def read(self) -> Reading:
        """A fresh look at both sides. Raises GpufixError for a node or a host that does not exist; whatever merely
        could not be read becomes unknown."""
        snapshot = self._checked(read_live(self.node, self._read_cluster, self._read_host))
        return replace(judge_snapshot(snapshot, self.signatures), host_trouble=self._host_trouble)

    def _read_cluster(self) -> tuple[dict[str, str], dict[str, str]]:
        if missing := self.cluster_access.missing():
            return {}, {"cluster": missing}
        return read_cluster(self.cluster, self.node)

    def _read_host(self) -> tuple[dict[str, str], dict[str, str]]:
        result = self.run(READ_NODE, self.host, {"gpufix_host": self.host}, show=False)
        self._host_trouble = result.trouble
        if result.trouble is Trouble.NO_HOST:
            return {}, {"host": t(NO_SUCH_HOST)}
        if not result.ok:
            return {}, {"host": explain(result, self.host)}
        files, unread = result.returned("files"), result.returned("unread")
        if not isinstance(files, Mapping) or not isinstance(unread, Mapping):
            return {}, {"host": t("reading {host} brought nothing back", host=self.host)}
        return (
            {f"host/{name}": redact(str(text)) for name, text in files.items()},
            {f"host/{name}": str(reason) for name, reason in unread.items()},
        )

    def _checked(self, snapshot: Snapshot) -> Snapshot:
        nodes = parse_snapshot(snapshot).nodes
        if nodes.value is not None and self.node not in (names := [node.name for node in nodes.value]):
            told = t("the cluster has no node {node}", node=repr(self.node))
            raise NodeGone(told, did_you_mean(self.node, names))
        if self._host_trouble is Trouble.NO_HOST:
            where = ", ".join(self.access.inventory) or default_inventory()
            if not where:
                raise GpufixError(
                    t("no inventory: Ansible does not know where the node is"), t("give one with -i FILE")
                )
            hint = did_you_mean(self.host, inventory_hosts(self.access))
            way = t("Give the inventory with -i, and --host where it calls the node by another name.")
            told = t("no host {host} in {inventory}", host=repr(self.host), inventory=where)
            raise GpufixError(told, f"{hint} {way}".strip())
        return snapshot

    def run(
        self, playbook: str, host: str, variables: Variables, *, check: bool = False, show: bool = True
    ) -> PlayResult:
        """Run one playbook; with ``show``, say each task as it begins. ``host`` is who must have been processed."""

        def say(event: Mapping[str, object]) -> None:
            if line := progress(event):
                self.ui.progress(line)

        run = self.runner.run(resources.playbook_path(playbook), variables, check=check, on_event=say if show else None)
        if run.killed:
            return PlayResult(
                False,
                Trouble.KILLED,
                t("killed while it ran; what it had done by then is not known"),
                fold(run.events).tasks,
            )
        return finish(fold(run.events), run.return_code, host)


NO_SUCH_HOST = mark("the inventory has no such host")


def unread_side(reading: Reading) -> str | None:
    """Why one of the two sides could not be read at all; None when both were."""
    unread = reading.snapshot.unread
    return unread.get("cluster") or unread.get("cluster/nodes.json") or unread.get("host")


def require_both(reading: Reading) -> None:
    """Raises GpufixError (status 7) when a side could not be read: a recovery never acts on half a picture."""
    reason = unread_side(reading)
    if reason is not None:
        of_host = reason == reading.snapshot.unread.get("host")
        raise host_error(reason, reading.host_trouble) if of_host else api_error(reason)


def host_error(reason: str, trouble: Trouble) -> GpufixError:
    """The error of a recovery whose host cannot be read, with the hint that fits the reason."""
    words = reason.lower()
    if trouble is Trouble.BECOME:
        hint = t("give --ask-become-pass, or let this user run sudo without a password")
    elif "permission denied" in words or "host key" in words:
        hint = t("the host answers but does not let you in: check the user, the key and known_hosts of your inventory")
    elif "could not resolve" in words:
        hint = t("set ansible_host for it in your inventory")
    else:
        hint = t("see that the host is powered on and answers on SSH, then run this again; nothing was changed")
    return GpufixError(reason, hint, ExitStatus.UNREACHABLE)
