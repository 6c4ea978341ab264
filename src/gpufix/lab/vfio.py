"""The card, vfio-manager's hands on it, and the plugins that offer it. Pure.

FACTS 0.2: vfio-manager's init container gives up while nvidia-smi works on the host, so nothing is rebound then; a main
container that is begun again has no such guard. 0.3: its preStop unbinds from any driver. 0.4: taking a card that is
in use may hang in the driver; the model takes the worse of the two, as the incident's own report does: the job dies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpufix.lab.machine import Card, Machine
from gpufix.lab.operands import DEPLOY
from gpufix.lab.world import World

NVIDIA, VFIO = "nvidia", "vfio-pci"
CONTAINER_OPERANDS = (
    "gpu-feature-discovery",
    "nvidia-container-toolkit-daemonset",
    "nvidia-dcgm-exporter",
    "nvidia-device-plugin-daemonset",
    "nvidia-operator-validator",
)
START_SECONDS = {
    "nvidia-vfio-manager": 5.0,
    "nvidia-container-toolkit-daemonset": 8.0,
    "nvidia-sandbox-validator": 8.0,
    "nvidia-device-plugin-daemonset": 15.0,
    "nvidia-sandbox-device-plugin-daemonset": 15.0,
    "nvidia-operator-validator": 25.0,
    "virt-launcher": 4.0,
}
"""Seconds from a pod's sandbox to its main container. Measured: all of them run within 40 s (FACTS 9)."""

Offer = Callable[[World, str, str, int], None]


class Init(NamedTuple):
    """What a pod's init containers come to. ``waits`` empty: they are through. ``retry`` in seconds."""

    waits: str = ""
    retry: float = 5.0
    failed: bool = False


def init_containers(world: World, machine: Machine, app: str) -> Init:
    """Validations wait for the driver they need; vfio-manager's guard fails where the driver is in use by the host."""
    if app == "nvidia-vfio-manager" and machine.gpu_on(NVIDIA):
        world.set_labels(machine.name, {f"{DEPLOY}driver": "pre-installed"})
        return Init("CrashLoopBackOff", 60.0, failed=True)
    if app in CONTAINER_OPERANDS and not machine.gpu_on(NVIDIA):
        return Init("PodInitializing")
    if app.startswith("nvidia-sandbox-") and not machine.gpu_on(VFIO):
        return Init("PodInitializing")
    return Init()


def manage(world: World, machine: Machine, verb: str) -> None:
    """/bin/vfio-manage.sh ``bind --all`` or ``unbind --all``: every NVIDIA function, whatever driver it is on."""
    machine.calls.append(f"{verb} --all")
    target = VFIO if verb == "bind" else ""
    for card in machine.cards:
        if card.driver != target:
            _take(world, machine, card)
            card.driver = target
            if target:
                machine.says(
                    world.now, f"vfio-pci {card.address}: vgaarb: VGA decodes changed: olddecodes=none,decodes=none"
                )


def _take(world: World, machine: Machine, card: Card) -> None:
    users = machine.users("/dev/nvidia" if card.driver == NVIDIA else f"/dev/vfio/{card.group}")
    if not card.is_gpu or not users:
        return
    if card.driver == NVIDIA:
        machine.says(world.now, f"NVRM: Attempting to remove device {card.address} with non-zero usage count!")
    for process in users:
        kill(world, machine, process.pid)


def kill(world: World, machine: Machine, pid: int) -> None:
    """A process dies, and systemd says so of its unit."""
    process = machine.processes.pop(pid)
    unit = machine.units.get(process.unit)
    if unit is not None:
        unit.active, unit.sub, unit.result, unit.pid = "failed", "failed", "signal", 0
        machine.log(world.now, unit.name, "systemd", f"{unit.name}: Main process exited, code=killed, status=9/KILL")
        machine.log(world.now, unit.name, "systemd", f"{unit.name}: Failed with result 'signal'.")


def resources(machine: Machine, app: str) -> dict[str, int]:
    """What the plugin of this DaemonSet offers of the card as it is bound now. One function is one device."""
    if app == "nvidia-device-plugin-daemonset":
        return {"nvidia.com/gpu": len(machine.gpus) if machine.gpu_on(NVIDIA) else 0}
    if app == "nvidia-sandbox-device-plugin-daemonset":
        counts: dict[str, int] = {}
        for card in machine.cards:
            name = resource_name(card)
            counts[name] = counts.get(name, 0) + (card.driver == VFIO)
        return counts
    return {}


def resource_name(card: Card) -> str:
    """kubevirt-gpu-device-plugin's rule (FACTS 3): the pci.ids name uppercased, [ ] stripped, blanks to underscores."""
    kept = "".join(c for c in card.text.upper().replace(" ", "_") if c.isalnum() or c in "_.")
    return f"nvidia.com/{kept}"


def register(world: World, machine: Machine, app: str, offer: Offer) -> None:
    """A plugin has started and registers what it enumerates: once, at its start (FACTS 3)."""
    for name, amount in resources(machine, app).items():
        offer(world, machine.name, name, amount)


def withdraw(world: World, machine: Machine, app: str, offer: Offer) -> None:
    """A plugin has gone: the kubelet keeps its resources with 0."""
    for name in resources(machine, app):
        offer(world, machine.name, name, 0)
