"""Scenarios: what has happened to the practice cluster, as data (data/scenarios/*.yml). Pure.

A history is acted out on the model from a healthy cluster on, so that its end follows from the same rules as all else.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpufix.core.checked_yaml import load_checked
from gpufix.errors import GpufixError
from gpufix.lab import cluster, kubelet, kubevirt
from gpufix.lab.controllers import NAMESPACE
from gpufix.lab.machine import Machine, Process, Unit
from gpufix.lab.tools import run_tool
from gpufix.lab.world import World
from gpufix.model import ROOT_CAUSES
from gpufix.text import did_you_mean

JOB = "cuda-train.service"
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a walk with every default and every consent comes to. ``job``: alive | dead | none."""

    root_cause: str
    recover: int
    job: str
    quit_at: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """``history`` holds single-keyed mappings, oldest first; see data/scenario.schema.json for each."""

    id: str
    title: str
    summary: str
    node: str
    kubelet: str
    tries: tuple[str, ...]
    history: tuple[Mapping[str, Any], ...]
    expect: Expectation
    file: str = ""
    places: tuple[str, ...] = ()
    """File and line of each step of the history."""


def load_scenario(text: str, file: str, schema: Mapping[str, Any]) -> Scenario:
    """The scenario in ``text``. Raises GpufixError (status 2) with ``file:line:column`` for every mistake in it."""
    data, marks = load_checked(text, file, schema, "scenario")
    expect = Expectation(**data["expect"])
    if expect.root_cause not in ROOT_CAUSES:
        mark = marks["expect", "root_cause"]
        message = f"{file}:{mark.line}:{mark.column}: no root cause {expect.root_cause!r}"
        raise GpufixError(message, did_you_mean(expect.root_cause, ROOT_CAUSES))
    return Scenario(
        id=data["id"],
        title=" ".join(data["title"].split()),
        summary=" ".join(data["summary"].split()),
        node=data.get("node", cluster.TARGET),
        kubelet=data.get("kubelet", "v1.34.4"),
        tries=tuple(data.get("try", ())),
        history=tuple(data["history"]),
        places=tuple(f"{file}:{mark.line}" for mark in (marks["history", n] for n in range(len(data["history"])))),
        expect=expect,
        file=file,
    )


def seconds(text: str) -> int:
    """``3min`` -> 180."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    return int(number) * _SECONDS[text[len(number) :]]


def act_out(scenario: Scenario, now: float, pace: float) -> World:
    """The world at ``now``, after the scenario's history. Its time runs at ``pace`` from then on only.

    Raises GpufixError (status 2), naming the step of the history, where one cannot be done.
    """
    length = sum(seconds(step[key]) for step in scenario.history for key in step if key in ("wait", "skip"))
    try:
        world = cluster.build(now - length, 1.0, scenario.kubelet)
    except (OverflowError, ValueError, OSError):
        raise GpufixError(f"{scenario.file}: history: {length} s of it are too long", "mend the scenario") from None
    if scenario.node not in world.machines:
        known = ", ".join(world.machines)
        raise GpufixError(f"{scenario.file}: there is no node {scenario.node!r} in the lab", f"there are {known}")
    for number, step in enumerate(scenario.history, start=1):
        ((verb, value),) = step.items()
        try:
            _ACTIONS[verb](world, world.machines[scenario.node], value)
        except (LookupError, ValueError, ArithmeticError, TypeError) as error:
            raise GpufixError(
                f"{scenario.places[number - 1]}: history, step {number} ({verb}): {error}", "mend the scenario"
            ) from None
        world.settle()
    if world.unknown:
        raise GpufixError(f"{scenario.file}: the lab does not model {world.unknown[0]}", "mend the scenario")
    world.hurry(pace)
    return world


def job_state(machine: Machine) -> str:
    """What became of the CUDA job: alive | dead | none."""
    unit = machine.units.get(JOB)
    return "none" if unit is None else "alive" if unit.active == "active" else "dead"


# --- what can have happened ------------------------------------------------------------------------------------------


def _wait(world: World, machine: Machine, value: str) -> None:
    world.advance(world.now + seconds(value))


def _skip(world: World, machine: Machine, value: str) -> None:
    world.skip(seconds(value))
    for one in world.machines.values():
        if one.kubelet.sub == "auto-restart":
            one.kubelet.restarts += int(seconds(value) / kubelet.RESTART_SEC)
        elif one.alive:
            kubelet.beat(world, one)
    kubevirt.heartbeat(world)


def _run(world: World, machine: Machine, value: str) -> None:
    result = run_tool(world, machine.name, shlex.split(value))
    if result.code:
        raise ValueError(f"{value}: {' '.join((result.err or result.out).split())}")


def _swapfile(world: World, machine: Machine, value: Mapping[str, Any]) -> None:
    size, used = int(value["size_gib"] * 1024 * 1024), int(value["used_mib"] * 1024)
    machine.swap_files[value["path"]] = (size - 4, used)  # the header takes a page


def _append(world: World, machine: Machine, value: Mapping[str, str]) -> None:
    machine.disk[value["path"]] = machine.disk.get(value["path"], "") + value["text"]


def _write(world: World, machine: Machine, value: Mapping[str, str]) -> None:
    if value["text"] in ("masked", "link"):
        raise ValueError(f"the text {value['text']!r} is the lab's own word for a link")
    machine.disk[value["path"]] = value["text"]


def _remove(world: World, machine: Machine, value: str) -> None:
    machine.disk.pop(value)


def _label(world: World, machine: Machine, value: dict[str, str | None]) -> None:
    world.set_labels(machine.name, value)


def _operator(world: World, machine: Machine, value: str) -> None:
    world.operator = value == "running"
    if not world.operator:
        for pod in list(world.store.all("pods")):
            if pod["metadata"].get("labels", {}).get("app") == "gpu-operator":
                world.store.remove("pods", pod["metadata"]["name"], NAMESPACE)


def _start_vm(world: World, machine: Machine, value: str) -> None:
    cluster.set_run_strategy(world, value, "Always")


def _stop_vm(world: World, machine: Machine, value: str) -> None:
    cluster.set_run_strategy(world, value, "Halted")


def _card(world: World, machine: Machine, value: str) -> None:
    """A person writes to sysfs. A card that a VM or a job uses stays where it is: they would have waited for it."""
    if machine.users():
        raise ValueError(f"the card is in use by {machine.users()[0].command}")
    for card in machine.cards:
        audio = "snd_hda_intel" if value == "nvidia" else value
        card.driver = "" if value == "none" else value if card.is_gpu else audio


def _job(world: World, machine: Machine, value: str) -> None:
    if not machine.gpu_on("nvidia"):
        raise ValueError("the card is not on the nvidia driver")
    pid = machine.new_pid()
    devices = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")
    machine.units[JOB] = Unit(JOB, "CUDA training", "active", "running", enabled=False, pid=pid, since=world.now)
    machine.processes[pid] = Process(pid, value, devices, f"/system.slice/{JOB}", JOB)
    machine.log(world.now, JOB, "systemd", f"Started {JOB} - CUDA training.")


def _stop_container(world: World, machine: Machine, value: str) -> None:
    found = [one.id for one in machine.containers if one.name == value and one.running]
    if not found:
        raise ValueError(f"no container {value} runs")
    _run(world, machine, f"crictl stop {found[0]}")


def _memory(world: World, machine: Machine, value: Mapping[str, float]) -> None:
    if "available_gib" in value:
        machine.available = int(value["available_gib"] * 1024 * 1024)
    machine.overcommit = int(value.get("overcommit", machine.overcommit))


_ACTIONS: dict[str, Callable[[World, Machine, Any], None]] = {
    "wait": _wait, "skip": _skip, "run": _run, "swapfile": _swapfile, "append": _append, "write": _write,
    "remove": _remove, "label": _label, "operator": _operator, "start-vm": _start_vm, "stop-vm": _stop_vm,
    "card": _card, "job": _job, "stop-container": _stop_container, "memory": _memory,
}  # fmt: skip
