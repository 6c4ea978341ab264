"""Stands in for the tools of a host: runs under each tool's name, works on a folder that is the host's root.

The folder is named by STANDIN_ROOT. ``state.json`` in it holds systemd's units and the runtime's containers; swap is
``proc/swaps`` itself. Each call is added to ``calls``. ``fail`` maps a call to the words with which it fails,
``hang`` lists calls that never end.
"""

# pathlib takes longer to import than all the rest
# ruff: noqa: PTH105, PTH110, PTH119, PTH123

import json  # few imports: a test starts it dozens of times
import os
import sys

ROOT = os.environ["STANDIN_ROOT"] + "/"


def read(name: str) -> str:
    with open(ROOT + name, errors="replace") as stream:
        return stream.read()


def write(name: str, text: str, mode: str = "w") -> None:
    with open(ROOT + name, mode) as stream:
        stream.write(text)


def main() -> int:
    tool, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
    call = " ".join([tool, *arguments])
    write("calls", call + "\n", "a")
    before = read("state.json")
    state = json.loads(before)
    for pattern, words in state["fail"].items():
        if call.startswith(pattern):
            print(words, file=sys.stderr)
            return 1
    if any(call.startswith(pattern) for pattern in state["hang"]):
        import time

        time.sleep(60)
    answer = globals()["do_" + tool.replace("-", "_")](state, arguments)
    after = json.dumps(state)
    if after != before:  # other tools run at the same time
        write("state.new", after)
        os.replace(ROOT + "state.new", ROOT + "state.json")
    return int(answer or 0)


def do_systemctl(state: dict, arguments: list) -> int:
    units = state["units"]
    verb, rest = arguments[0], arguments[1:]
    if verb == "daemon-reload":
        fstab = read("etc/fstab") if os.path.exists(ROOT + "etc/fstab") else ""
        listed = [line.split()[0] for line in fstab.split("\n") if line.split()[2:3] == ["swap"] and line[0] != "#"]
        for name in [name for name, unit in units.items() if unit.get("SourcePath") == "/etc/fstab"]:
            if units[name]["What"] not in listed:
                del units[name]
        return 0
    names, properties = [], []
    while rest:
        word = rest.pop(0)
        if word == "-p":
            properties += rest.pop(0).split(",")
        elif not word.startswith("-"):
            names.append(word)
    if verb == "show":
        return show(units, names, properties)
    unit = units.get(names[0])
    if unit is None:
        print(f"Unit {names[0]} not loaded.", file=sys.stderr)
        return 5
    if verb == "stop":
        unit.update(state["after_stop"] or {"ActiveState": "inactive", "SubState": "dead"})
    elif verb in ("start", "restart"):
        unit.update(state["after_start"] or {"ActiveState": "active", "SubState": "running"})
    elif verb == "mask":
        if os.path.exists(ROOT + "etc/systemd/system/" + names[0]):
            print(f"Failed to mask unit: File /etc/systemd/system/{names[0]} already exists.", file=sys.stderr)
            return 1
        unit.update({"LoadState": "masked", "UnitFileState": "masked", "FragmentPath": "/dev/null"})
    elif verb == "disable":
        unit["UnitFileState"] = "disabled"
        if "--now" in arguments:
            unit.update({"ActiveState": "inactive", "SubState": "dead"})
            kept = [line for line in read("proc/swaps").split("\n") if unit.get("makes", "-none-") not in line]
            write("proc/swaps", "\n".join(kept))
    return 0


def show(units: dict, names: list, properties: list) -> int:
    blocks = []
    for name in names:
        found = [key for key in units if key.endswith(name[1:])] if name.startswith("*") else [name]
        for key in found:
            unit = {"Id": key, "LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead"}
            unit.update(units.get(key, {}))
            kept = {field: value for field, value in unit.items() if not properties or field in properties}
            blocks.append("".join(f"{field}={value}\n" for field, value in kept.items() if field != "makes"))
    print("\n".join(blocks), end="")
    return 0


def do_swapoff(state: dict, arguments: list) -> int:
    lines = read("proc/swaps").split("\n")
    kept = [line for line in lines if not line.startswith(arguments[0].replace(" ", "\\040") + " ")]
    if kept == lines:
        print(f"swapoff: {arguments[0]}: swapoff failed: Invalid argument", file=sys.stderr)
        return 4
    write("proc/swaps", "\n".join(kept))
    return 0


def do_journalctl(state: dict, arguments: list) -> int:
    print(read("journal"), end="")
    return 0


def do_systemd_detect_virt(state: dict, arguments: list) -> int:
    print("none")
    return 1


def do_dmesg(state: dict, arguments: list) -> int:
    print("[    0.000000] Linux version 6.8.0\n[    0.098821] DMAR: IOMMU enabled")
    return 0


def do_crictl(state: dict, arguments: list) -> int:
    while arguments[0].startswith("-"):
        arguments = arguments[2:]
    if arguments[0] == "stop":
        for one in state["containers"]:
            if one["id"] == arguments[-1] and not state["unstoppable"]:
                one["state"] = "EXITED"
        return 0
    if arguments[0] == "pods":
        pods = [one for one in state["containers"] if one["container"] == "-"]
        items = [{"id": one["id"], "metadata": {"name": one["pod"]}, "state": "SANDBOX_READY"} for one in pods]
        print(json.dumps({"items": items}))
        return 0
    items = [
        {
            "id": one["id"],
            "podSandboxId": "box",
            "metadata": {"name": one["container"], "attempt": 0},
            "state": "CONTAINER_" + one["state"],
            "labels": {"io.kubernetes.pod.name": one["pod"], "io.kubernetes.container.name": one["container"]},
        }
        for one in state["containers"]
        if one["container"] != "-"
    ]
    print(json.dumps({"containers": items}))
    return 0


def do_ctr(state: dict, arguments: list) -> int:
    rest = arguments[arguments.index("k8s.io") + 1 :]
    if rest[:2] == ["containers", "list"]:
        print("".join(one["id"] + "\n" for one in state["containers"]), end="")
    elif rest[:2] == ["containers", "info"]:
        one = next(one for one in state["containers"] if one["id"] == rest[2])
        labels = {"io.kubernetes.pod.name": one["pod"], "io.cri-containerd.kind": "sandbox"}
        if one["container"] != "-":
            labels["io.cri-containerd.kind"] = "container"
            labels["io.kubernetes.container.name"] = one["container"]
        print(json.dumps({"ID": one["id"], "Labels": labels}))
    elif rest[:2] == ["tasks", "list"]:
        print("TASK    PID    STATUS    ")
        print(
            "".join(f"{one['id']}    1    {one['state']}\n" for one in state["containers"] if one["state"] != "EXITED")
        )
    elif rest[:2] == ["task", "kill"]:
        for one in state["containers"]:
            if one["id"] == rest[-1] and rest[3] not in state["unstoppable"]:
                one["state"] = "STOPPED"
    return 0


if __name__ == "__main__":
    sys.exit(main())
