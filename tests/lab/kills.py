"""kill -9 at random points: runs of gpufix over the practice lab that are killed again and again, and where they end.

A chain is one recovery, or the undo of one, from its begin to its end through as many deaths as its seed brings. Each
is held against a run of the same kind that nobody disturbed.

    python tests/lab/kills.py --kills 200 --seed 1          the short door (short_door.py), about half a second a kill
    python tests/lab/kills.py --real --kills 200 --seed 1   the real ansible-runner, about twelve seconds a kill
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kill_points import NODE, Killer

from gpufix.core.answers_format import sample
from gpufix.core.run_history import History, steps_of
from gpufix.lab import commands
from gpufix.lab.scenario import job_state
from gpufix.lab.server import Lab
from gpufix.lab.world import World, condition
from gpufix.runs import Run, list_runs
from gpufix.session import read_runbooks

LABEL, DEPLOY = "nvidia.com/gpu.workload.config", "nvidia.com/gpu.deploy.vfio-manager"
KINDS = {
    "before write": ("before-write",),
    "mid write": ("mid-write",),
    "after write": ("after-write",),
    "preview": ("preview",),
    "playbook": ("playbook",),
    "observe": ("observe",),
    "lock or snapshot": ("lock", "snapshot"),
}
"""Of points, by the first word of each."""
QUIET = 900.0
"""Seconds of the lab's time after which nothing is under way any more."""
_CONSENTS = {
    "  #target_workload: container\n": "  target_workload: container\n",
    "  relabel: false\n": "  relabel: true\n",
    "  stop-vfio-manager: false\n": f"  stop-vfio-manager: {NODE}\n",
    "  disable-swap: false\n": "  disable-swap: true\n",
    "  restart-kubelet: false\n": f"  restart-kubelet: {NODE}\n",
}
UNDONE_AT = "preview restart-kubelet.yml about to begin @ step-result disable-swap"
"""Where the recovery was left that is undone: swap is off, the kubelet held. So a job on the card may live on."""


@dataclass(frozen=True, slots=True)
class Door:
    """How playbooks run, and how fast time passes: ``pace`` the lab's, ``hurry`` gpufix's own."""

    real: bool
    pace: float
    hurry: float


SHORT, REAL = Door(False, 40.0, 10.0), Door(True, 20.0, 2.0)


@dataclass(slots=True)
class Chain:
    """What became of one. ``end`` and ``steps`` are those of its last run; ``broken``: the order rules that were."""

    seed: int
    undo: bool
    kills: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    """Kills of the recovery that is undone."""
    passed: list[str] = field(default_factory=list)
    """The points that its processes came by, each once."""
    resumes: int = 0
    status: int = -1
    states: list[str] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    """What its journal says was done, without times and names of processes."""
    broken: list[str] = field(default_factory=list)
    trouble: str = ""


class Watch:
    """Judges the lab by the order rules each time that something of it changes (O1, O2; and what may come of both)."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self._calls: int | None = None

    def __call__(self, world: World) -> None:
        machine, labels = world.machines[NODE], world.labels(NODE)
        found = []
        if machine.alive and (labels.get(LABEL) != "container" or DEPLOY in labels):
            found.append(f"O1: the kubelet lives with {labels.get(LABEL)}, {DEPLOY}={labels.get(DEPLOY)}")
        if machine.alive and any(one.name == "nvidia-vfio-manager" and one.running for one in machine.containers):
            found.append("O1: the kubelet lives beside a container of vfio-manager")
        if machine.alive and machine.swaps:
            found.append("O2: the kubelet lives with swap on")
        if job_state(machine) != "alive":
            found.append("the CUDA job is dead")
        self._calls = len(machine.calls) if self._calls is None else self._calls  # those of the history
        found += [f"vfio-manager: {call}" for call in machine.calls[self._calls :]]
        self.broken += [one for one in found if one not in self.broken]


@contextmanager
def incident(folder: Path, pace: float, watch: Watch) -> Iterator[Lab]:
    """The incident of the 112 days, with a job on the card, and ``watch`` over it."""
    with commands.running(folder, commands.find_scenario("incident"), pace) as lab:
        with lab.held():
            lab.world.rules = (*lab.world.rules, watch)
            lab.sandboxes = {NODE: lab.sandboxes[NODE]}  # nobody is at the disks of the other seven
        yield lab


def fingerprint(lab: Lab) -> dict[str, Any]:
    """What is left of it when nothing is under way any more. Only generated names and times are not in it."""
    with lab.held():
        world, machine = lab.world, lab.world.machines[NODE]
        world.advance(world.now + QUIET / world.pace)
        machine.reload_units()
        node = world.node(NODE)
        (lease,) = world.store.all("leases") or [{"spec": {}}]
        return {
            "labels": world.labels(NODE),
            "ready": condition(node, "Ready")["status"],
            "taints": sorted(f"{one['key']}:{one['effect']}" for one in node["spec"].get("taints", [])),
            "allocatable": node["status"]["allocatable"],
            "disk": dict(machine.disk),
            "folders": sorted(path.name for path in (lab.folder / "nodes" / NODE / "etc").iterdir()),
            "swaps": [(swap.path, swap.priority) for swap in machine.swaps],
            "swap at boot": machine.comes_back(),
            "kubelet": f"{machine.kubelet.active}/{machine.kubelet.sub}",
            "containers": sorted(Counter(one.name for one in machine.containers if one.running).items()),
            "drivers": [card.driver for card in machine.cards],
            "job": job_state(machine),
            "calls": list(machine.calls),
            "VMs": {
                vm["metadata"]["name"]: vm["status"]["printableStatus"] for vm in world.store.all("virtualmachines")
            },
            "held by a living process": _is_held(lease["spec"].get("holderIdentity") or ""),
            "unknown": lab.unknown,
        }


def _is_held(holder: str) -> bool:
    """A gpufix that is killed between its last line and the end leaves its lease behind; the next one sees that."""
    return bool(holder) and Path(f"/proc/{holder.split('/')[1]}").exists()


class Chains:
    """Runs chains in ``folder``, one after another. Use as a context manager."""

    def __init__(self, folder: Path, door: Door) -> None:
        self.folder, self.door = folder, door
        self._stack = ExitStack()
        self._count = 0
        folder.mkdir(parents=True, exist_ok=True)
        text = sample(read_runbooks()[0], NODE)
        for old, new in _CONSENTS.items():
            assert text.count(old) == 1
            text = text.replace(old, new)
        self._answers = folder / "answers.yml"
        self._answers.write_text(text)

    def __enter__(self) -> Chains:
        self._killer = self._stack.enter_context(Killer(self.folder / "gpufix.log"))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def run(self, seed: int, armed: Sequence[str] = (), *, undo: bool = False, before: Sequence[str] = ()) -> Chain:
        """One recovery, killed at each of the points ``armed`` that it comes by; or the undo of one, which was killed
        at the points ``before`` and at last at UNDONE_AT."""
        self._count += 1
        chain, watch = Chain(seed, undo), Watch()
        with incident(self.folder / f"lab-{self._count}", self.door.pace, watch) as lab:
            state = lab.folder / "state" / "gpufix"
            access = ["-i", str(lab.folder / "inventory.yml"), "--kubeconfig", str(lab.folder / "kubeconfig")]
            answers = ["--answers", str(self._answers), "-q"]
            recover, resume = ["recover", NODE, *access, *answers], ["resume", NODE, *answers]
            if undo:
                self._walk(chain, chain.before, state, recover, resume, [*before, UNDONE_AT], until=UNDONE_AT)
                self._walk(chain, chain.kills, state, ["undo", NODE], ["resume", NODE], armed)
            else:
                self._walk(chain, chain.kills, state, recover, resume, armed)
            self._judge(chain, lab, state, watch)
        return chain

    def _walk(
        self, chain: Chain, kills: list[str], state: Path, first: Sequence[str], resume: Sequence[str],
        armed: Sequence[str], until: str = "",
    ) -> None:  # fmt: skip
        """``first``, and whatever an operator types who finds it dead, to its end or to the point ``until``."""
        wanted, argv = list(armed), first
        while True:
            ended = self._killer.run(argv, wanted, real=self.door.real, hurry=self.door.hurry)
            chain.passed += [point for point in ended.passed if point not in chain.passed]
            chain.resumes += argv[0] == "resume"
            chain.status = ended.status
            if not ended.point or ended.point == until:
                return
            kills.append(ended.point)
            wanted.remove(ended.point)
            mine = [run for run in list_runs(state) if run.history.kind == first[0] and run.state != "unreadable"]
            if mine and (end := mine[-1].history.end) is not None:  # it died after its last line
                chain.status = int(end["exit_status"])
                return
            argv = resume if mine else first

    def _judge(self, chain: Chain, lab: Lab, state: Path, watch: Watch) -> None:
        chain.end = fingerprint(lab)
        chain.broken = watch.broken
        runs = list_runs(state)
        chain.states = [run.state for run in runs if run.state != "unreadable"]
        last = [run for run in runs if run.history.kind == ("undo" if chain.undo else "recover")][-1]
        # a playbook that outlived its gpufix may have its effect after the next one looked: found done, a no-op
        acted = {line.get("step") for line in last.history.all("intent")}
        chain.steps = {
            step.step: "done" if step.outcome == "no-op" and step.step in acted else step.outcome
            for step in steps_of(last.history)
        }
        chain.lines = _told(last.history)
        chain.trouble = _trouble(last)


def _told(history: History) -> list[str]:
    """The lines of a journal, without what is another in each run."""
    words = {}
    for line in history.lines:
        kept = {
            name: value for name, value in line.items()
            if name in ("event", "step", "outcome", "exit_status", "changes", "verdicts", "decision", "by", "undo")
        }  # fmt: skip
        kept |= {"by": Path(str(kept["by"])).name} if "by" in kept else {}  # each lab has its own folder
        if isinstance(kept.get("undo"), dict):  # each lab's node is another one
            kept["undo"] = {name: value for name, value in kept["undo"].items() if name != "node_uid"}
        words[json.dumps(kept, sort_keys=True)] = None
    return list(words)


def _trouble(run: Run) -> str:
    problems = [f"broken lines {run.history.broken}"] if run.history.broken else []
    numbers = [line["seq"] for line in run.history.lines]
    problems += [] if numbers == sorted(set(numbers)) else [f"numbers of lines {numbers}"]
    return "; ".join(problems)


def kind_of(point: str) -> str:
    return next(kind for kind, words in KINDS.items() if point.startswith(words))


def difference(chain: Chain, wanted: Chain) -> str:
    """In what ``chain`` ended otherwise than ``wanted``, the run that nobody disturbed; empty where in nothing."""
    found = [f"{what}: {value!r}, undisturbed {wanted.end.get(what)!r}"
             for what, value in chain.end.items() if value != wanted.end.get(what)]  # fmt: skip
    for what in ("status", "states", "steps"):
        if getattr(chain, what) != getattr(wanted, what):
            found.append(f"{what}: {getattr(chain, what)!r}, undisturbed {getattr(wanted, what)!r}")
    found += [*chain.broken, *([chain.trouble] if chain.trouble else [])]
    if not found:
        return ""
    return f"seed {chain.seed}, killed at {[*chain.before, *chain.kills]}: " + "; ".join(found)


class Study:
    """What chains are held against: the runs that nobody disturbs, and the points that there are to choose from."""

    def __init__(self, chains: Chains) -> None:
        self.undisturbed = {undo: chains.run(0, undo=undo) for undo in (False, True)}
        passed = self.undisturbed[False].passed
        self._before = passed[: passed.index(UNDONE_AT)]
        of_undo = [point for point in self.undisturbed[True].passed if "undo-" in point or point not in self._before]
        self._points = {
            False: [*passed, *_of_going_on(self.undisturbed[False])],
            True: [*of_undo, *_of_going_on(self.undisturbed[True])],
        }

    def run(self, chains: Chains, seed: int, kills: int) -> Chain:
        """A chain that is armed with so many points, as its seed says. Every fourth is an undo."""
        chance, undo, real = random.Random(seed), seed % 4 == 0, chains.door.real
        before = _drawn(chance, self._before, kills // 4, real) if undo else []
        return chains.run(seed, _drawn(chance, self._points[undo], kills, real), undo=undo, before=before)


def _drawn(chance: random.Random, points: Sequence[str], kills: int, real: bool) -> list[str]:
    """Of all kinds alike, some of them twice. ``real``: only such as there are through ansible-runner too, where nobody
    sees into the modules."""
    by_kind: dict[str, list[str]] = {}
    for point in points:
        if not (real and is_inside(point)):
            by_kind.setdefault(kind_of(point), []).append(point)
    return [chance.choice(by_kind[chance.choice(sorted(by_kind))]) for _ in range(kills)]


def _of_going_on(chain: Chain) -> list[str]:
    """The lines that only a run that is gone on with has."""
    lines = ["resume", *(f"settled {step}" for step in chain.steps)]
    return [f"{word} @ {line}" for word in ("before-write", "mid-write", "after-write") for line in lines]


def is_inside(point: str) -> bool:
    """A point in the middle of a module, or one where it outlives gpufix."""
    words = point.split(" @ ")[0].split()
    return (
        words[0] in ("preview", "playbook", "observe")
        and len(words) > 2
        and words[2] in ("before", "after", "outlives")
    )


def killed(chain: Chain) -> int:
    return len(chain.before) + len(chain.kills)


def counted(chains: Sequence[Chain]) -> Mapping[str, int]:
    """Kills by the kind of point; those of undo runs under ``undo``."""
    found: Counter[str] = Counter()
    for chain in chains:
        found.update(kind_of(point) for point in chain.before)
        found.update("undo" if chain.undo else kind_of(point) for point in chain.kills)
    return {kind: found[kind] for kind in (*KINDS, "undo")}


def summary(counts: Mapping[str, int], resumes: int, runs: int, through: str) -> str:
    told = ", ".join(f"{kind} {count}" for kind, count in counts.items())
    return f"kills through {through}: {sum(counts.values())} ({told}); {resumes} resumes of {runs} runs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="run playbooks through ansible-runner")
    parser.add_argument("--kills", type=int, default=200, help="so many at least (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="of the first chain (default: 1)")
    parser.add_argument("--each", type=int, default=12, help="points that a chain is armed with (default: 12)")
    given = parser.parse_args()
    began, done, wrong, seed = time.monotonic(), list[Chain](), 0, given.seed
    door = REAL if given.real else SHORT
    with tempfile.TemporaryDirectory(prefix="kills-") as folder, Chains(Path(folder), door) as chains:
        study = Study(chains)
        while sum(killed(chain) for chain in done) < given.kills:
            done.append(study.run(chains, seed, given.each))
            told = difference(done[-1], study.undisturbed[done[-1].undo])
            wrong += bool(told)
            passed = f"{time.monotonic() - began:.0f} s"
            print(f"chain {seed}: {killed(done[-1])} kills, {passed}: {told or 'the same end'}", flush=True)
            seed += 1
    through = "the real ansible-runner" if given.real else "the short door"
    resumes = sum(chain.resumes for chain in done)
    print(summary(counted(done), resumes, len(done), through))
    print(f"{len(done) - wrong} of {len(done)} runs came to the same end as one that nobody disturbed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
