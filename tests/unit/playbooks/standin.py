"""Stands in for the tools of a host: runs under each tool's name, works on a folder that is the host's root.

The folder is named by STANDIN_ROOT. ``state.json`` in it holds systemd's units and the runtime's containers; swap is
``proc/swaps`` itself. Each call is added to ``calls``. ``fail`` maps a call to the words with which it fails,
``hang`` lists calls that never end. Tests that call ``answer`` in their own process save starting one.
"""

# pathlib takes longer to import than all the rest
# ruff: noqa: PTH103, PTH105, PTH108, PTH110, PTH114, PTH119, PTH120, PTH123, PTH211

import json
import os
import sys


class Standin:
    """One call of a tool. ``out`` and ``err`` are what it prints."""

    def __init__(self, root: str) -> None:
        self.root = root + "/"
        self.out: list = []
        self.err: list = []

    def read(self, name: str) -> str:
        with open(self.root + name, errors="replace") as stream:
            return stream.read()

    def write(self, name: str, text: str, mode: str = "w") -> None:
        with open(self.root + name, mode) as stream:
            stream.write(text)

    def answer(self, tool: str, arguments: list) -> int:
        call = " ".join([tool, *arguments])
        self.write("calls", call + "\n", "a")
        before = self.read("state.json")
        state = json.loads(before)
        for pattern, words in state["fail"].items():
            if call.startswith(pattern):
                self.err.append(words + "\n")
                return 1
        if any(call.startswith(pattern) for pattern in state["hang"]):
            import time

            time.sleep(60)
        code = getattr(self, "do_" + tool.replace("-", "_"))(state, arguments)
        after = json.dumps(state)
        if after != before:  # other tools run at the same time
            self.write("state.new", after)
            os.replace(self.root + "state.new", self.root + "state.json")
        return int(code)

    def do_systemctl(self, state: dict, arguments: list) -> int:
        units = state["units"]
        verb, rest = arguments[0], arguments[1:]
        if verb == "daemon-reload":
            fstab = self.read("etc/fstab") if os.path.exists(self.root + "etc/fstab") else ""
            lines = [line.split() for line in fstab.split("\n") if line[:1] != "#"]
            listed = [fields[0] for fields in lines if fields[2:3] == ["swap"]]
            for name in [name for name, unit in units.items() if unit.get("SourcePath") == "/etc/fstab"]:
                if units[name]["What"] not in listed:
                    del units[name]
            known = {
                unit.get("What") for unit in units.values() if not unit.get("FragmentPath", "").startswith("/etc/")
            }
            for what in [what for what in listed if what not in known]:
                name = what.strip("/").replace("/", "-") + ".swap"
                units.setdefault(name, self.generated(what, name))
            return 0
        names, properties = [], []
        while rest:
            word = rest.pop(0)
            if word == "-p":
                properties += rest.pop(0).split(",")
            elif not word.startswith("-"):
                names.append(word)
        if verb == "show":
            return self.show(units, names, properties)
        unit = units.get(names[0])
        if unit is None:
            self.err.append(f"Unit {names[0]} not loaded.\n")
            return 5
        if verb == "stop":
            unit.update(state["after_stop"] or {"ActiveState": "inactive", "SubState": "dead"})
        elif verb in ("start", "restart"):
            unit.update(state["after_start"] or {"ActiveState": "active", "SubState": "running"})
            if unit.get("makes") and unit["makes"] not in self.read("proc/swaps"):
                self.write("proc/swaps", unit["makes"] + " partition 100 0 100\n", "a")
        elif verb == "mask":
            path = self.root + "etc/systemd/system/" + names[0]
            if os.path.exists(path) and not os.path.islink(path):
                self.err.append(f"Failed to mask unit: File /etc/systemd/system/{names[0]} already exists.\n")
                return 1
            if not os.path.islink(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.symlink("/dev/null", path)
            if unit.get("LoadState") != "masked":
                unit["was"] = {key: unit.get(key, "") for key in ("LoadState", "UnitFileState", "FragmentPath")}
            unit.update({"LoadState": "masked", "UnitFileState": "masked", "FragmentPath": "/dev/null"})
        elif verb == "unmask":
            path = self.root + "etc/systemd/system/" + names[0]
            if os.path.islink(path):
                os.unlink(path)
            unit.update(unit.pop("was", {}))
        elif verb == "enable":
            unit["UnitFileState"] = "enabled-runtime" if "--runtime" in arguments else "enabled"
        elif verb == "disable":
            unit["UnitFileState"] = "disabled"
            if "--now" in arguments:
                unit.update({"ActiveState": "inactive", "SubState": "dead"})
                kept = [line for line in self.read("proc/swaps").split("\n") if unit.get("makes", "-none-") not in line]
                self.write("proc/swaps", "\n".join(kept))
        return 0

    def generated(self, what: str, name: str) -> dict:
        """A unit of systemd's fstab generator."""
        path = what.replace(" ", "\\040") + " "
        active = any(line.startswith(path) for line in self.read("proc/swaps").split("\n"))
        return {
            "LoadState": "loaded",
            "ActiveState": "active" if active else "inactive",
            "What": what,
            "FragmentPath": "/run/systemd/generator/" + name,
            "UnitFileState": "generated",
            "SourcePath": "/etc/fstab",
        }

    def show(self, units: dict, names: list, properties: list) -> int:
        blocks = []
        for name in names:
            found = [key for key in units if key.endswith(name[1:])] if name.startswith("*") else [name]
            for key in found:
                unit = {"Id": key, "LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead"}
                unit.update(units.get(key, {}))
                kept = {field: value for field, value in unit.items() if not properties or field in properties}
                blocks.append(
                    "".join(f"{field}={value}\n" for field, value in kept.items() if field not in ("makes", "was"))
                )
        self.out.append("\n".join(blocks))
        return 0

    def do_swapoff(self, state: dict, arguments: list) -> int:
        lines = self.read("proc/swaps").split("\n")
        kept = [line for line in lines if not line.startswith(arguments[0].replace(" ", "\\040") + " ")]
        if kept == lines:
            self.err.append(f"swapoff: {arguments[0]}: swapoff failed: Invalid argument\n")
            return 4
        self.write("proc/swaps", "\n".join(kept))
        return 0

    def do_swapon(self, state: dict, arguments: list) -> int:
        priority = int(arguments[1]) if arguments[0] == "-p" else None
        path = arguments[-1].replace(" ", "\\040")
        lines = [line for line in self.read("proc/swaps").split("\n") if line]
        if any(line.startswith(path + " ") for line in lines):
            self.err.append(f"swapon: {arguments[-1]}: swapon failed: Device or resource busy\n")
            return 255
        if priority is None:  # the kernel counts down from -2
            priority = -2 - sum(line.split()[4].startswith("-") for line in lines[1:])
        lines.append(f"{path} {state.get('areas', {}).get(arguments[-1], 'file 2097148')} 0 {priority}")
        self.write("proc/swaps", "\n".join(lines) + "\n")
        return 0

    def do_journalctl(self, state: dict, arguments: list) -> int:
        self.out.append(self.read("journal"))
        return 0

    def do_systemd_detect_virt(self, state: dict, arguments: list) -> int:
        self.out.append("none\n")
        return 1

    def do_dmesg(self, state: dict, arguments: list) -> int:
        self.out.append("[    0.000000] Linux version 6.8.0\n[    0.098821] DMAR: IOMMU enabled\n")
        return 0

    def do_crictl(self, state: dict, arguments: list) -> int:
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
            self.out.append(json.dumps({"items": items}) + "\n")
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
        self.out.append(json.dumps({"containers": items}) + "\n")
        return 0

    def do_ctr(self, state: dict, arguments: list) -> int:
        rest = arguments[arguments.index("k8s.io") + 1 :]
        if rest[:2] == ["containers", "list"]:
            kind = '"io.cri-containerd.kind"==container' in rest[-1]
            listed = [one["id"] for one in state["containers"] if not (kind and one["container"] == "-")]
            self.out.append("".join(one + "\n" for one in listed))
        elif rest[:2] == ["containers", "info"]:
            one = next(one for one in state["containers"] if one["id"] == rest[2])
            labels = {"io.kubernetes.pod.name": one["pod"], "io.cri-containerd.kind": "sandbox"}
            if one["container"] != "-":
                labels["io.cri-containerd.kind"] = "container"
                labels["io.kubernetes.container.name"] = one["container"]
            self.out.append(json.dumps({"ID": one["id"], "Labels": labels}) + "\n")
        elif rest[:2] == ["tasks", "list"]:
            self.out.append("TASK    PID    STATUS    \n")
            running = [one for one in state["containers"] if one["state"] != "EXITED"]
            self.out += [f"{one['id']}    1    {one['state']}\n" for one in running]
        elif rest[:2] == ["task", "kill"]:
            for one in state["containers"]:
                if one["id"] == rest[-1] and rest[3] not in state["unstoppable"]:
                    one["state"] = "STOPPED"
        return 0


def main() -> int:
    standin = Standin(os.environ["STANDIN_ROOT"])
    code = standin.answer(os.path.basename(sys.argv[0]), sys.argv[1:])
    sys.stdout.write("".join(standin.out))
    sys.stderr.write("".join(standin.err))
    return code


if __name__ == "__main__":
    sys.exit(main())
