"""The kubelet: when it refuses to start, and what it does while it lives. Pure.

FACTS: it reads /proc/swaps once, at start, and any line after the header fails it (4); kubeadm's unit has
Restart=always and RestartSec=10 (4); after a restart extended resources are 0 until plugins register (5); Ready comes
seconds before the last taint goes (9); containers go on without it (9).
"""

from __future__ import annotations

import re
from functools import partial

from gpufix.lab import vfio
from gpufix.lab.machine import CONFIG, FLAGS, KUBELET, Container, Machine, Unit
from gpufix.lab.operands import OPERANDS, app_of, main_container
from gpufix.lab.store import Object
from gpufix.lab.world import World, set_condition, stamp

RESTART_SEC = 10.0
SPEAKS_AFTER = 1.0
"""Seconds from the start to the first status."""
HEARTBEAT = 300.0
"""A status that does not change is posted every 5 min (nodeStatusReportFrequency); the lease goes on in between."""
REGISTERS_AFTER = 3.0
"""Seconds in which a plugin that runs on has found the kubelet's new socket (FACTS 5: 0 until re-registration)."""
GONE_AFTER = 3.0
"""Seconds in which pods with a deletion mark are gone (FACTS 9)."""
_KNOWN_FLAGS = (
    "config", "config-dir", "kubeconfig", "bootstrap-kubeconfig", "container-runtime-endpoint", "node-ip", "root-dir",
    "hostname-override", "fail-swap-on", "v", "node-labels", "cgroup-driver", "pod-infra-container-image",
)  # fmt: skip
_HEALTHY = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}


# --- starting and stopping, as systemd asks for it -------------------------------------------------------------------


def start(world: World, machine: Machine) -> None:
    """What systemd's start of the unit does: the process begins, and is gone again at once where it refuses."""
    unit = machine.kubelet
    world.cancel(f"restart/{machine.name}")
    if unit.active == "active":
        return
    unit.pid, unit.since = machine.new_pid(), world.now
    _systemd(world, machine, "Started kubelet.service - kubelet: The Kubernetes Node Agent.")
    refusal = refuses(machine)
    if not refusal:
        unit.active, unit.sub, unit.result = "active", "running", "success"
        _says(world, machine, "I", f'server.go:212] "Kubelet version" kubeletVersion="{machine.kubelet_version}"')
        world.cancel(f"dead/{machine.name}")
        world.later(SPEAKS_AFTER, f"alive/{machine.name}/speaks", partial(_first_status, world, machine))
        return
    for level, text in refusal:
        _says(world, machine, level, text)
    unit.active, unit.sub, unit.result, unit.exit_status = "activating", "auto-restart", "exit-code", 1
    _systemd(world, machine, "kubelet.service: Main process exited, code=exited, status=1/FAILURE")
    _systemd(world, machine, "kubelet.service: Failed with result 'exit-code'.")
    world.later(RESTART_SEC, f"restart/{machine.name}", partial(_restart, world, machine))


def stop(world: World, machine: Machine) -> None:
    """systemctl stop: the process ends, the containers go on, and systemd starts nothing by itself."""
    unit = machine.kubelet
    world.cancel(f"restart/{machine.name}")
    if unit.active == "active":
        _die(world, machine)
    if unit.active != "inactive":
        _systemd(world, machine, "Stopped kubelet.service - kubelet: The Kubernetes Node Agent.")
    unit.active, unit.sub, unit.result, unit.restarts, unit.pid = "inactive", "dead", "success", 0, 0


def _restart(world: World, machine: Machine) -> None:
    machine.kubelet.restarts += 1
    counter = f"kubelet.service: Scheduled restart job, restart counter is at {machine.kubelet.restarts}."
    _systemd(world, machine, counter)
    start(world, machine)


def _die(world: World, machine: Machine) -> None:
    world.cancel(f"alive/{machine.name}")
    world.cancel(f"pod/{machine.name}/")
    machine.pods.clear()
    machine.adopted = False


def _systemd(world: World, machine: Machine, text: str) -> None:
    machine.log(world.now, KUBELET, "systemd", text)


def _says(world: World, machine: Machine, level: str, text: str) -> None:
    clock = stamp(world.now)
    head = f"{level}{clock[5:7]}{clock[8:10]} {clock[11:19]}.000000 {machine.kubelet.pid:7d} "
    first, *rest = text.split("\n")
    machine.log(world.now, KUBELET, "kubelet", head + first, machine.kubelet.pid)
    for line in rest:
        machine.log(world.now, KUBELET, "kubelet", line, machine.kubelet.pid)


# --- whether it starts -----------------------------------------------------------------------------------------------


def refuses(machine: Machine) -> list[tuple[str, str]]:
    """The klog lines (level, text) with which this kubelet would die at a start now; none: it would live.

    Wordings as in FACTS 4 and 9; kubelets up to 1.30 word the refusal of swap in another way.
    """
    for argument in arguments(machine):
        name = re.match(r"--?([a-z0-9-]+)", argument)
        if name is None or name[1] not in _KNOWN_FLAGS:
            word = argument.split("=")[0]
            return [_fatal(machine, f"failed to parse kubelet flag: unknown flag: {word}")]
    if CONFIG not in machine.disk:
        told = (
            f"failed to load kubelet config file, path: {CONFIG}, error: failed to load Kubelet config file {CONFIG}, "
        )
        return [_fatal(machine, f'{told}error failed to read kubelet config file \\"{CONFIG}\\", error: open {CONFIG}: '
                                "no such file or directory")]  # fmt: skip
    if not machine.swaps or allows_swap(machine):
        return []
    if machine.minor < 22:
        listed = " ".join(f"{swap.path} {swap.kind} {swap.size} {swap.used} {swap.priority}" for swap in machine.swaps)
        told = "failed to run Kubelet: running with swap on is not supported, please disable swap! or set "
        told += f"--fail-swap-on flag to false. /proc/swaps contained: [Filename Type Size Used Priority {listed}]"
        return [("F", f"server.go:265] {told}")]
    table = "\n".join(f"\t{line}" for line in proc_swaps(machine).splitlines())
    return [
        ("I", f'swap_util.go:115] "Swap is on" /proc/swaps contents=<\n{table}\n >'),
        _fatal(machine, "failed to run Kubelet: running with swap on is not supported, please disable swap or set "
                        "--fail-swap-on flag to false"),
    ]  # fmt: skip


def _fatal(machine: Machine, text: str) -> tuple[str, str]:
    return ("F", f"server.go:198] {text}") if machine.minor < 22 else ("E", f'run.go:72] "command failed" err="{text}"')


def arguments(machine: Machine) -> list[str]:
    """The flags: those of the unit, then KUBELET_KUBEADM_ARGS and KUBELET_EXTRA_ARGS."""
    match = re.search(r'^KUBELET_KUBEADM_ARGS="?(.*?)"?\s*$', machine.disk.get(FLAGS, ""), re.MULTILINE)
    more = [*(match[1].split() if match else []), *machine.extra_args.split()]
    return [f"--config={CONFIG}", "--kubeconfig=/etc/kubernetes/kubelet.conf", *more]


def allows_swap(machine: Machine) -> bool:
    """failSwapOn, with the flag over the file (FACTS 4)."""
    for argument in arguments(machine):
        if argument.startswith("--fail-swap-on"):
            return argument.endswith("=false")
    return bool(re.search(r"^failSwapOn:\s*false\s*$", machine.disk.get(CONFIG, ""), re.MULTILINE))


def proc_swaps(machine: Machine) -> str:
    """/proc/swaps as the kernel prints it."""
    lines = ["Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority"]
    lines += [f"{s.path:<40}{s.kind:<16}{s.size}\t\t{s.used}\t\t{s.priority}" for s in machine.swaps]
    return "\n".join(lines) + "\n"


# --- the node's status -----------------------------------------------------------------------------------------------


def _first_status(world: World, machine: Machine) -> None:
    """Registers, with extended resources at 0, then takes its pods up again."""
    node = world.node(machine.name)
    for amounts in (node["status"]["allocatable"], node["status"]["capacity"]):
        amounts.update({name: "0" for name in amounts if name.startswith("nvidia.com/")})
    node["status"]["nodeInfo"]["bootID"] = machine.boot_id
    _report(world, node)
    world.put("nodes", node)
    machine.adopted = True
    adopt(world, machine)
    beat(world, machine)


def beat(world: World, machine: Machine) -> None:
    node = world.node(machine.name)
    _report(world, node)
    world.put("nodes", node)
    world.later(HEARTBEAT, f"alive/{machine.name}/beat", partial(beat, world, machine))


def _report(world: World, node: Object) -> None:
    now = world.stamp
    for kind, (reason, message) in _HEALTHY.items():
        set_condition(node["status"], kind, "False", now, reason=reason, message=message, lastHeartbeatTime=now)
    message = "kubelet is posting ready status"
    set_condition(node["status"], "Ready", "True", now, reason="KubeletReady", message=message, lastHeartbeatTime=now)


def offer(world: World, node_name: str, resource: str, amount: int) -> None:
    """What a device plugin registers; one that has gone leaves its resource behind with 0."""
    node = world.node(node_name)
    for amounts in (node["status"]["allocatable"], node["status"]["capacity"]):
        if amount or resource in amounts:
            amounts[resource] = str(amount)
    world.put("nodes", node)


# --- pods ------------------------------------------------------------------------------------------------------------


def adopt(world: World, machine: Machine) -> None:
    """The pods that the node had before. One that has to go is stopped; a main container that ended begins again.

    FACTS 0.3 and 9, measured: an old pod that the node's labels do not want any more is refused at admission and its
    container stopped without preStop by 1.34.4; 1.20.2 runs the preStop. A main container that is begun again does not
    pass its init container's guards (0.2).
    """
    for pod in world.pods_on(machine.name):
        uid, mine = pod["metadata"]["uid"], containers_of(machine, pod)
        marked = "deletionTimestamp" in pod["metadata"]
        if uid in machine.pods:
            continue
        if marked or (mine and not _wanted_here(world, machine, pod)):
            begin_stop(world, machine, pod, hook=machine.minor < 34)
        elif not mine:
            _begin_anew(world, pod)
        else:
            _go_on(world, machine, pod, mine)


def _go_on(world: World, machine: Machine, pod: Object, mine: list[Container]) -> None:
    """Take a pod up again where it was: in its init containers, with a main container that ended, or running."""
    uid = pod["metadata"]["uid"]
    main = next((one for one in mine if one.name == main_container(pod)), None)
    if main is None:
        machine.pods[uid] = "starting"
        world.later(1.0, _key(machine, pod), partial(_try_start, world, machine, pod))
        return
    machine.pods[uid] = "running"
    if main.running:
        again = partial(vfio.register, world, machine, app_of(pod), offer)
        world.later(REGISTERS_AFTER, _key(machine, pod), again)
    else:
        main.running = True
        _main_begins(world, machine, pod)
    mark_ready(world, pod)


def _begin_anew(world: World, pod: Object) -> None:
    """After a reboot there is nothing left of a pod's containers: init containers run again, a VM's pod has failed."""
    metadata = pod["metadata"]
    if app_of(pod) == "virt-launcher":
        world.store.remove("pods", metadata["name"], metadata["namespace"])
        world.store.remove("virtualmachineinstances", metadata["labels"]["vm.kubevirt.io/name"], metadata["namespace"])
    elif app_of(pod) in OPERANDS:
        pod["status"]["phase"] = "Pending"
        world.put("pods", pod)


def _wanted_here(world: World, machine: Machine, pod: Object) -> bool:
    labels = world.labels(machine.name)
    return all(labels.get(key) == value for key, value in pod["spec"].get("nodeSelector", {}).items())


def sync(world: World) -> None:
    """Rule: living kubelets begin pods that are new to them and end those with a deletion mark."""
    pods = world.pods_by_node()
    for machine in world.machines.values():
        if not machine.adopted or not pods.get(machine.name):
            continue
        for pod in pods[machine.name]:
            doing = machine.pods.get(pod["metadata"]["uid"], "")
            if "deletionTimestamp" in pod["metadata"]:
                if doing != "stopping":
                    begin_stop(world, machine, pod, hook=True)
            elif not doing and pod["status"].get("phase") == "Pending":
                machine.pods[pod["metadata"]["uid"]] = "starting"
                _try_start(world, machine, pod, first=True)


def begin_stop(world: World, machine: Machine, pod: Object, *, hook: bool) -> None:
    """Stop a pod's containers, with the preStop hook or without, and forget the pod when they are gone."""
    uid = pod["metadata"]["uid"]
    world.cancel(_key(machine, pod))
    machine.pods[uid] = "stopping"
    main = next((one for one in containers_of(machine, pod) if one.name == "nvidia-vfio-manager"), None)
    if hook and main is not None and main.running:
        vfio.manage(world, machine, "unbind")
    world.later(GONE_AFTER, _key(machine, pod), partial(_gone, world, machine, pod))


def _gone(world: World, machine: Machine, pod: Object) -> None:
    uid = pod["metadata"]["uid"]
    machine.containers = [one for one in machine.containers if one.uid != uid]
    machine.processes = {pid: one for pid, one in machine.processes.items() if one.pod != uid}
    machine.pods.pop(uid, None)
    vfio.withdraw(world, machine, app_of(pod), offer)
    world.store.remove("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])


def _try_start(world: World, machine: Machine, pod: Object, first: bool = False) -> None:
    """Begin a pod: its sandbox, its init containers (which may wait or fail), then its main container."""
    if first:
        machine.containers.append(_container(world, pod, "-"))
        delay = vfio.START_SECONDS.get(app_of(pod), 8.0)
        world.later(delay, _key(machine, pod), partial(_try_start, world, machine, pod))
        return
    current = world.store.get("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])
    if current is None:
        return
    verdict = vfio.init_containers(world, machine, app_of(pod))
    if verdict.waits:
        _show_waiting(world, current, verdict)
        world.later(verdict.retry, _key(machine, pod), partial(_try_start, world, machine, pod))
        return
    machine.containers.append(_container(world, pod, main_container(pod)))
    machine.pods[pod["metadata"]["uid"]] = "running"
    _main_begins(world, machine, current)
    mark_ready(world, current)


def _main_begins(world: World, machine: Machine, pod: Object) -> None:
    if app_of(pod) == "nvidia-vfio-manager":
        vfio.manage(world, machine, "bind")
    vfio.register(world, machine, app_of(pod), offer)


def mark_ready(world: World, pod: Object) -> None:
    """The pod's status with all its containers running."""
    now, status = world.stamp, pod["status"]
    for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"):
        set_condition(status, kind, "True", now)
    for one in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        one.update(ready=True, state={"running": {"startedAt": now}})
    for one in status.get("initContainerStatuses", []):
        one.update(state={"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": now}})
    status["phase"] = "Running"
    world.put("pods", pod)


def _show_waiting(world: World, pod: Object, verdict: vfio.Init) -> None:
    now, status = world.stamp, pod["status"]
    set_condition(status, "PodReadyToStartContainers", "True", now)
    for kind in ("Initialized", "Ready", "ContainersReady"):
        set_condition(
            status,
            kind,
            "False",
            now,
            reason="ContainersNotReady" if kind != "Initialized" else "ContainersNotInitialized",
        )
    for one in status.get("initContainerStatuses", []):
        one.update(
            ready=False,
            state={"waiting": {"reason": verdict.waits}} if verdict.failed else {"running": {"startedAt": now}},
        )
        if verdict.failed:
            one["restartCount"] = one.get("restartCount", 0) + 1
    world.put("pods", pod)


def _key(machine: Machine, pod: Object) -> str:
    return f"pod/{machine.name}/{pod['metadata']['uid']}"


def _container(world: World, pod: Object, name: str) -> Container:
    world.serial += 1
    identity = f"{world.serial * 2654435761 % 2**64:016x}" * 4
    return Container(identity, pod["metadata"]["name"], pod["metadata"]["uid"], name)


def containers_of(machine: Machine, pod: Object) -> list[Container]:
    return [one for one in machine.containers if one.uid == pod["metadata"]["uid"]]


def new_unit() -> Unit:
    return Unit(KUBELET, "kubelet: The Kubernetes Node Agent")
