"""The tools of a practice host, acting on its model: what systemctl, swapoff, crictl and the others would do and print.

Pure: a command line in, status and text out. What is not modelled says so, and is noted in ``World.unknown``.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from fnmatch import fnmatch
from typing import NamedTuple

from gpufix.lab import cluster, kubelet
from gpufix.lab.machine import FSTAB, KUBELET, UNITS, Line, Machine, Unit, unit_of
from gpufix.lab.world import World


class ToolResult(NamedTuple):
    """What a tool ended with: its status, standard output and standard error."""

    code: int = 0
    out: str = ""
    err: str = ""


class NotModelled(Exception):
    """A use of a tool that the lab has no answer to."""


def run_tool(world: World, node: str, argv: list[str]) -> ToolResult:
    """Run ``argv`` on the host of ``node``. Never raises for what is asked: status 64 where it is not modelled."""
    machine, name = world.machines[node], argv[0].rpartition("/")[2]
    try:
        if name not in TOOLS:
            raise NotModelled
        result = TOOLS[name](world, machine, argv[1:])
    except NotModelled:
        world.unknown.append(f"{node}: {shlex.join(argv)}")
        return ToolResult(64, "", f"{name}: the practice lab does not model: {shlex.join([name, *argv[1:]])}\n")
    world.settle()
    return result


def _split(arguments: list[str], with_value: str = "") -> tuple[dict[str, str], list[str]]:
    """Options and words; after ``--`` all are words. ``with_value``: the options, blank-separated, whose next word is
    their value."""
    options: dict[str, str] = {}
    words: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            words += rest
            break
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        name, equals, value = word.partition("=")
        if not equals and name in with_value.split() and rest:
            value = rest.pop(0)
        options[name] = f"{options[name]},{value}" if name in options and value else value
    return options, words


def _only(options: dict[str, str], known: str) -> None:
    if set(options) - set(known.split()):
        raise NotModelled


def _exactly(arguments: list[str], *known: list[str]) -> None:
    """For a tool whose options would change what it prints: any other way to call it is not modelled."""
    if arguments not in known:
        raise NotModelled


# --- systemctl -------------------------------------------------------------------------------------------------------


def _systemctl(world: World, machine: Machine, arguments: list[str]) -> ToolResult:
    options, words = _split(arguments, "-p --property -t --type --state")
    _only(
        options,
        "-p --property --all -a --now --no-pager --type -t -q --quiet --value -l --full --no-legend --state --failed",
    )
    verb, names = (words[0], words[1:]) if words else ("list-units", [])
    if verb == "show":
        return _show(machine, names, options)
    if verb == "daemon-reload":
        machine.reload_units()
        return ToolResult()
    if verb == "list-units":
        return _list_units(machine, options, names)
    if verb not in _VERBS or not names:
        raise NotModelled
    results = [_VERBS[verb](world, machine, _full_name(name), options) for name in names]
    return ToolResult(
        max(one.code for one in results), "".join(one.out for one in results), "".join(one.err for one in results)
    )


def _full_name(name: str) -> str:
    """A unit's whole name. One that is a path would lead out of the node's folder."""
    if "/" in name:
        raise NotModelled
    return name if name.endswith((".service", ".swap", ".target")) else f"{name}.service"


def _show(machine: Machine, names: list[str], options: dict[str, str]) -> ToolResult:
    wanted = [one for one in (options.get("-p") or options.get("--property") or "").split(",") if one]
    blocks = []
    for name in names or [KUBELET]:
        if "*" in name:
            units = [unit for unit in (*_swap_units(machine), *machine.units) if fnmatch(unit, name)]
            blocks += [properties(machine, unit) for unit in dict.fromkeys(units)]
        else:
            blocks.append(properties(machine, _full_name(name)))
    lines = []
    for block in blocks:
        chosen = {key: value for key, value in block.items() if not wanted or key in wanted}
        form = "{1}" if "--value" in options else "{0}={1}"
        lines.append("".join(form.format(key, value) + "\n" for key, value in chosen.items()))
    return ToolResult(0, "\n".join(lines))


def properties(machine: Machine, name: str) -> dict[str, str]:
    """``systemctl show`` of a unit, in systemd's names."""
    if name.endswith(".swap"):
        return _swap_properties(machine, name)
    unit = machine.units.get(name)
    if unit is None:
        return {
            "Id": name,
            "LoadState": "not-found",
            "ActiveState": "inactive",
            "SubState": "dead",
            "UnitFileState": "",
        }
    masked = machine.masked(name)
    state = "masked" if masked else "enabled" if unit.enabled else "disabled"
    found = {
        "Id": name, "Names": name, "Description": unit.description, "LoadState": "masked" if masked else "loaded",
        "ActiveState": unit.active, "SubState": unit.sub, "UnitFileState": state, "Result": unit.result,
        "NRestarts": str(unit.restarts), "MainPID": str(unit.pid if unit.active == "active" else 0),
        "ExecMainStatus": str(unit.exit_status if unit.result != "success" else 0),
        "ActiveEnterTimestamp": _when(unit.since), "StateChangeTimestamp": _when(unit.since),
        "FragmentPath": "/dev/null" if masked else f"{UNITS}/{name}", "DropInPaths": "",
    }  # fmt: skip
    if name == KUBELET:
        line = "/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml --kubeconfig=/etc/kubernetes/kubelet.conf"
        line += " $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS"
        found.update({
            "Restart": "always", "RestartUSec": "10s", "Type": "simple",
            "Environment": f'"KUBELET_EXTRA_ARGS={machine.extra_args}"' if machine.extra_args else "",
            "EnvironmentFiles": "/var/lib/kubelet/kubeadm-flags.env (ignore_errors=yes)",
            "ExecStart": f"{{ path=/usr/bin/kubelet ; argv[]={line} ; ignore_errors=no ; }}",
        })  # fmt: skip
    return found


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%a %Y-%m-%d %H:%M:%S UTC") if at else ""


def _swap_units(machine: Machine) -> list[str]:
    """The .swap units that systemd knows: generated, native, and those of areas that are just on."""
    names = [unit_of(path) for path in machine.generated] + [unit.name for unit in machine.native]
    names += [unit_of(swap.path) for swap in machine.swaps]
    return sorted(dict.fromkeys(names))


def _swap_properties(machine: Machine, name: str) -> dict[str, str]:
    active = any(unit_of(swap.path) == name for swap in machine.swaps)
    what = next((path for path in [*machine.generated, *(s.path for s in machine.swaps)] if unit_of(path) == name), "")
    native = next((unit for unit in machine.native if unit.name == name), None)
    found = {
        "Id": name, "LoadState": "loaded", "ActiveState": "active" if active else "inactive",
        "SubState": "active" if active else "dead", "What": what, "FragmentPath": "", "SourcePath": "",
        "UnitFileState": "", "Documentation": "",
    }  # fmt: skip
    if native is not None:
        state = "enabled" if native.enabled else "disabled"
        found.update(What=native.what, FragmentPath=f"{UNITS}/{name}", UnitFileState=state)
    elif any(unit_of(path) == name for path in machine.generated):
        found.update(FragmentPath=f"/run/systemd/generator/{name}", SourcePath=FSTAB, UnitFileState="generated")
        found.update(Documentation="man:fstab(5) man:systemd-fstab-generator(8)")
    if machine.masked(name):
        found.update(LoadState="masked", FragmentPath="/dev/null", UnitFileState="masked")
    elif not found["FragmentPath"] and not active:
        found.update(LoadState="not-found")
    return found


def _list_units(machine: Machine, options: dict[str, str], patterns: list[str]) -> ToolResult:
    kind = options.get("--type") or options.get("-t") or ""
    names = [name for name in (*machine.units, *_swap_units(machine)) if name.endswith(f".{kind}") or not kind]
    names = [name for name in names if not patterns or any(fnmatch(name, _full_name(pattern)) for pattern in patterns)]
    rows = [properties(machine, name) for name in names]
    if "--failed" in options:
        rows = [row for row in rows if row["ActiveState"] == "failed"]
    lines = [f"  {r['Id']:<28} {r['LoadState']:<10} {r['ActiveState']:<11} {r['SubState']}\n" for r in rows]
    return ToolResult(0, "".join(lines) + ("" if "--no-legend" in options else f"\n{len(rows)} loaded units listed.\n"))


def _known(machine: Machine, name: str, verb: str) -> Unit | ToolResult:
    unit = machine.units.get(name)
    if unit is None:
        return ToolResult(5, "", f"Failed to {verb} {name}: Unit {name} not found.\n")
    return unit


def _start(world: World, machine: Machine, name: str, options: dict[str, str], again: bool = False) -> ToolResult:
    if name.endswith(".swap"):
        path = properties(machine, name)["What"]
        why = machine.swap_on(path) if path else "not found"
        return ToolResult(1, "", f"Failed to start {name}: {why}\n") if why else ToolResult()
    unit = _known(machine, name, "restart" if again else "start")
    if isinstance(unit, ToolResult):
        return unit
    if machine.masked(name):
        return ToolResult(1, "", f"Failed to start {name}: Unit {name} is masked.\n")
    if name == KUBELET:
        if again:
            kubelet.stop(world, machine)
        kubelet.start(world, machine)
        return ToolResult()
    raise NotModelled


def _restart(world: World, machine: Machine, name: str, options: dict[str, str]) -> ToolResult:
    return _start(world, machine, name, options, again=True)


def _stop(world: World, machine: Machine, name: str, options: dict[str, str]) -> ToolResult:
    if name.endswith(".swap"):
        why = machine.swap_off(properties(machine, name)["What"])
        return ToolResult(1, "", f"Failed to stop {name}: {why}\n") if why else ToolResult()
    unit = _known(machine, name, "stop")
    if isinstance(unit, ToolResult):
        return unit
    if name == KUBELET:
        kubelet.stop(world, machine)
        return ToolResult()
    for process in [one for one in machine.processes.values() if one.unit == name]:
        del machine.processes[process.pid]
    unit.active, unit.sub, unit.pid = "inactive", "dead", 0
    return ToolResult()


def _mask(world: World, machine: Machine, name: str, options: dict[str, str]) -> ToolResult:
    """A link to /dev/null in /etc/systemd/system, which fails where a unit's own file lies there."""
    path = f"{UNITS}/{name}"
    if machine.disk.get(path, "masked") != "masked":
        return ToolResult(1, "", f"Failed to mask unit: File '{path}' already exists.\n")
    machine.disk[path] = "masked"
    return ToolResult(0, "", f"Created symlink '{path}' → '/dev/null'.\n")


def _unmask(world: World, machine: Machine, name: str, options: dict[str, str]) -> ToolResult:
    if machine.masked(name):
        del machine.disk[f"{UNITS}/{name}"]
    return ToolResult()


def _enable(world: World, machine: Machine, name: str, options: dict[str, str]) -> ToolResult:
    return _set_enabled(machine, name, True)


def _disable(world: World, machine: Machine, name: str, options: dict[str, str]) -> ToolResult:
    if "--now" in options:
        _stop(world, machine, name, options)
    return _set_enabled(machine, name, False)


def _set_enabled(machine: Machine, name: str, enabled: bool) -> ToolResult:
    if name.endswith(".swap"):
        link = f"{UNITS}/swap.target.wants/{name}"
        machine.disk.pop(link, None)
        if enabled:
            machine.disk[link] = "link"
        machine.reload_units()  # enable and disable end with a daemon-reload
        return ToolResult()
    unit = _known(machine, name, "enable" if enabled else "disable")
    if isinstance(unit, ToolResult):
        return unit
    unit.enabled = enabled
    return ToolResult()


def _reset_failed(world: World, machine: Machine, name: str, options: dict[str, str]) -> ToolResult:
    unit = machine.units.get(name)
    if unit is None or unit.active != "failed":
        return ToolResult()
    unit.active, unit.sub, unit.result = "inactive", "dead", "success"
    return ToolResult()


def _is_active(world: World, machine: Machine, name: str, options: dict[str, str]) -> ToolResult:
    state = properties(machine, name)["ActiveState"]
    return ToolResult(0 if state == "active" else 3, "" if "-q" in options else f"{state}\n")


def _is_enabled(world: World, machine: Machine, name: str, options: dict[str, str]) -> ToolResult:
    state = properties(machine, name)["UnitFileState"] or "not-found"
    return ToolResult(0 if state in ("enabled", "generated") else 1, f"{state}\n")


def _status(world: World, machine: Machine, name: str, options: dict[str, str]) -> ToolResult:
    shown = properties(machine, name)
    if shown["LoadState"] == "not-found":
        return ToolResult(4, "", f"Unit {name} could not be found.\n")
    lines = [
        f"● {name} - {shown.get('Description') or shown.get('What', '')}",
        f"     Loaded: {shown['LoadState']} ({shown['FragmentPath']}; {shown['UnitFileState']})",
        f"     Active: {shown['ActiveState']} ({shown['SubState']}) since {shown.get('ActiveEnterTimestamp', '')}",
        "",
        *(_journal_line(machine, line, "short") for line in [one for one in machine.journal if one.unit == name][-10:]),
    ]
    return ToolResult(0 if shown["ActiveState"] == "active" else 3, "\n".join(lines) + "\n")


_VERBS: dict[str, Callable[[World, Machine, str, dict[str, str]], ToolResult]] = {
    "start": _start, "stop": _stop, "restart": _restart, "status": _status, "mask": _mask, "unmask": _unmask,
    "enable": _enable, "disable": _disable, "reset-failed": _reset_failed, "is-active": _is_active,
    "is-enabled": _is_enabled,
}  # fmt: skip


# --- journal and kernel log ------------------------------------------------------------------------------------------


def _journalctl(world: World, machine: Machine, arguments: list[str]) -> ToolResult:
    options, words = _split(arguments, "-u --unit -o --output -n --lines")
    _only(options, "-u --unit -o --output -n --lines --no-pager -b -k --dmesg -e -q --quiet -x -xe -xeu")
    if "-xeu" in options and words:
        options["-u"] = words.pop(0)
    if words:
        raise NotModelled
    if "-k" in options or "--dmesg" in options:
        return _dmesg(world, machine, [])
    units = [_full_name(name) for name in (options.get("-u") or options.get("--unit") or "").split(",") if name]
    count = int(options.get("-n") or options.get("--lines") or 1000)
    form = options.get("-o") or options.get("--output") or "short"
    lines = [line for line in machine.journal if not units or line.unit in units][-count:]
    return ToolResult(0, "".join(_journal_line(machine, line, form) + "\n" for line in lines) or "-- No entries --\n")


def _journal_line(machine: Machine, line: Line, form: str) -> str:
    if form == "cat":
        return line.text
    at = datetime.fromtimestamp(line.at, UTC)
    when = at.strftime("%Y-%m-%dT%H:%M:%S+0000") if form == "short-iso" else at.strftime("%b %d %H:%M:%S")
    return f"{when} {machine.name} {line.who}[{line.pid}]: {line.text}"


def _dmesg(world: World, machine: Machine, arguments: list[str]) -> ToolResult:
    _exactly(arguments, [])
    head = "[    0.000000] Command line: BOOT_IMAGE=/vmlinuz-6.12.0 root=/dev/vg0/root ro intel_iommu=on iommu=pt\n"
    return ToolResult(0, head + "".join(f"[{uptime:12.6f}] {text}\n" for uptime, text in machine.kernel))


# --- swap and memory -------------------------------------------------------------------------------------------------


def _swapoff(world: World, machine: Machine, arguments: list[str]) -> ToolResult:
    options, words = _split(arguments)
    _only(options, "-a --all -v")
    paths = [swap.path for swap in machine.swaps] if {"-a", "--all"} & set(options) else words
    refusals = [why for why in (machine.swap_off(path) for path in paths) if why]
    if {"-a", "--all"} & set(options):
        code = 0 if not refusals else 32 if len(refusals) == len(paths) else 64
    else:
        code = 0 if not refusals else 2 if "Cannot allocate memory" in refusals[0] else 4  # swapoff(8)
    return ToolResult(code, "", "".join(f"{why}\n" for why in refusals))


def _swapon(world: World, machine: Machine, arguments: list[str]) -> ToolResult:
    options, words = _split(arguments, "-p --priority")
    _only(options, "-a --all -s --summary --show --noheadings -v -p --priority")
    asked = options.get("-p") or options.get("--priority") or ""
    if {"-p", "--priority"} & set(options) and not (asked.isascii() and asked.isdigit() and int(asked) < 32768):
        raise NotModelled  # swapon takes a negative one for none at all
    if {"-a", "--all"} & set(options):
        machine.reload_units()
        words = [path for path in machine.comes_back() if all(swap.path != path for swap in machine.swaps)]
    elif not words:
        rows = [f"{s.path} {s.kind:<9} {s.size // 1024}M {s.used // 1024}M {s.priority:>4}\n" for s in machine.swaps]
        return ToolResult(0, "NAME TYPE SIZE USED PRIO\n" + "".join(rows) if rows else "")
    refusals = [why for why in (machine.swap_on(path, int(asked) if asked else None) for path in words) if why]
    return ToolResult(255 if refusals else 0, "", "".join(f"{why}\n" for why in refusals))


def _free(world: World, machine: Machine, arguments: list[str]) -> ToolResult:
    _exactly(arguments, [], ["-m"])
    size, used = (sum(getattr(swap, name) for swap in machine.swaps) for name in ("size", "used"))
    rows = [("Mem:", machine.memory, machine.memory - machine.available), ("Swap:", size, used)]
    lines = [
        f"{name:<6}{total // 1024:>12}{taken // 1024:>12}{(total - taken) // 1024:>12}\n" for name, total, taken in rows
    ]
    return ToolResult(0, f"{'':<6}{'total MiB':>12}{'used':>12}{'available':>12}\n" + "".join(lines))


# --- the card --------------------------------------------------------------------------------------------------------


def _nvidia_smi(world: World, machine: Machine, arguments: list[str]) -> ToolResult:
    """Works only while the card is on the nvidia driver: vfio-manager's guard asks the same (FACTS 0.2)."""
    if arguments:
        raise NotModelled
    if not machine.cards:
        raise NotModelled
    if not machine.gpu_on("nvidia"):
        return ToolResult(6, "No devices were found\n")
    rows = ["| NVIDIA-SMI 575.57.08    Driver Version: 575.57.08    CUDA Version: 12.9 |"]
    rows += [f"| {i}  NVIDIA {c.text.partition('[')[2].rstrip(']')}  {c.address} |" for i, c in enumerate(machine.gpus)]
    rows += ["| Processes: GPU  PID  Type  Process name |"]
    users = machine.users("/dev/nvidia")
    rows += [f"|    0  {one.pid}  C  {one.command} |" for one in users] or ["|  No running processes found |"]
    return ToolResult(0, "\n".join(rows) + "\n")


def _lspci(world: World, machine: Machine, arguments: list[str]) -> ToolResult:
    _exactly(arguments, [], ["-Dnnk"], ["-nnk"], ["-nn"], ["-k"])
    lines = ["0000:00:00.0 Host bridge [0600]: Intel Corporation Device [8086:a700] (rev 01)"]
    for card in machine.cards:
        kind = "VGA compatible controller [0300]" if card.is_gpu else "Audio device [0403]"
        lines.append(f"{card.address} {kind}: NVIDIA Corporation {card.text} [10de:{card.device}] (rev a1)")
        lines += [f"\tKernel driver in use: {card.driver}"] if card.driver else []
        lines.append(
            "\tKernel modules: nvidiafb, nouveau, nvidia_drm, nvidia"
            if card.is_gpu
            else "\tKernel modules: snd_hda_intel"
        )
    return ToolResult(0, "\n".join(lines) + "\n")


# --- containers ------------------------------------------------------------------------------------------------------


def _crictl(world: World, machine: Machine, arguments: list[str]) -> ToolResult:
    options, words = _split(arguments, "--runtime-endpoint -r -o --output --timeout -t --name")
    _only(options, "--runtime-endpoint -r -o --output --timeout -t -a --all -q --quiet --name")
    verb, names = (words[0], words[1:]) if words else ("", [])
    if verb == "stop" and names:
        return _stop_containers(world, machine, names)
    if verb not in ("ps", "pods") or names:
        raise NotModelled
    found = [one for one in machine.containers if (one.name == "-") == (verb == "pods")]
    if "-a" not in options and "--all" not in options and verb == "ps":
        found = [one for one in found if one.running]
    if (options.get("-o") or options.get("--output")) == "json":
        return ToolResult(0, _crictl_json(machine, verb))
    if {"-q", "--quiet"} & set(options):
        return ToolResult(0, "".join(f"{one.id}\n" for one in found))
    rows = [f"{one.id[:13]}  {'Running' if one.running else 'Exited':<8} {one.name:<34} {one.pod}\n" for one in found]
    return ToolResult(0, f"{'CONTAINER':<13}  {'STATE':<8} {'NAME':<34} POD\n" + "".join(rows))


def _crictl_json(machine: Machine, verb: str) -> str:
    if verb == "pods":
        items = [
            {"id": one.id, "metadata": {"name": one.pod, "uid": one.uid},
             "state": "SANDBOX_READY" if one.running else "SANDBOX_NOTREADY"}
            for one in machine.containers if one.name == "-"
        ]  # fmt: skip
        return json.dumps({"items": items})
    sandboxes = {one.uid: one.id for one in machine.containers if one.name == "-"}
    containers = [
        {"id": one.id, "podSandboxId": sandboxes.get(one.uid, ""), "metadata": {"name": one.name},
         "state": "CONTAINER_RUNNING" if one.running else "CONTAINER_EXITED",
         "labels": {"io.kubernetes.pod.name": one.pod, "io.kubernetes.pod.uid": one.uid,
                    "io.kubernetes.container.name": one.name}}
        for one in machine.containers if one.name != "-"
    ]  # fmt: skip
    return json.dumps({"containers": containers})


def _stop_containers(world: World, machine: Machine, names: list[str]) -> ToolResult:
    """Through the runtime: no hook runs (FACTS 0.3). A living kubelet sees it end, and begins it again."""
    for name in names:
        found = next((one for one in machine.containers if name and one.id.startswith(name)), None)
        if found is None:
            return ToolResult(
                1, "", f'E stop container "{name}": rpc error: code = NotFound desc = could not find container\n'
            )
        found.running = False
        if machine.alive:
            machine.pods.pop(found.uid, None)
            kubelet.adopt(world, machine)
    return ToolResult(0, "".join(f"{name}\n" for name in names))


# --- the machine -----------------------------------------------------------------------------------------------------


def _detect_virt(world: World, machine: Machine, arguments: list[str]) -> ToolResult:
    return ToolResult(1, "none\n")


def _reboot(world: World, machine: Machine, arguments: list[str]) -> ToolResult:
    _exactly(arguments, [], ["-f"])
    cluster.boot(world, machine)
    return ToolResult(0, f"{machine.name} has rebooted.\n")


def _sudo(world: World, machine: Machine, arguments: list[str]) -> ToolResult:
    """One is root here already. Without this, sudo would run this machine's own tools."""
    if not arguments or arguments[0] not in TOOLS:
        return ToolResult(1, "", "sudo: on this practice host, only for its own tools; one is root here already\n")
    return TOOLS[arguments[0]](world, machine, arguments[1:])


def _refused(world: World, machine: Machine, arguments: list[str]) -> ToolResult:
    return ToolResult(1, "", "not on this practice host, and this machine's own is not run from here\n")


_OF_THE_MACHINE = ("halt", "init", "kexec", "mkswap", "modprobe", "poweroff", "rmmod", "service", "shutdown", "telinit")
"""What a hand types in such a night and would reach the machine that the lab runs on."""
TOOLS: dict[str, Callable[[World, Machine, list[str]], ToolResult]] = {
    "systemctl": _systemctl, "journalctl": _journalctl, "dmesg": _dmesg, "swapoff": _swapoff, "swapon": _swapon,
    "free": _free, "nvidia-smi": _nvidia_smi, "lspci": _lspci, "crictl": _crictl,
    "systemd-detect-virt": _detect_virt, "reboot": _reboot, "sudo": _sudo, **dict.fromkeys(_OF_THE_MACHINE, _refused),
}  # fmt: skip
"""The stand-ins that every practice host has."""
