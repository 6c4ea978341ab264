"""A host whose files lie in a folder and whose tools are stand-ins (standin.py)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

SWAPS = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
MEMORY = (
    "MemTotal: 32000000 kB\nMemAvailable: 16000000 kB\nSwapTotal: 4194300 kB\n"
    "CommitLimit: 20000000 kB\nCommitted_AS: 2000000 kB\n"
)
FSTAB = (
    "UUID=0a0a0a0a-0000-4000-8000-000000000001 / ext4 errors=remount-ro 0 1\n"
    "/data/swap-backup /srv/swap ext4 defaults 0 2\n"
    "/swapfile none swap sw 0 0\n"
)
KUBELET = {
    "LoadState": "loaded",
    "ActiveState": "activating",
    "SubState": "auto-restart",
    "UnitFileState": "enabled",
    "FragmentPath": "/etc/systemd/system/kubelet.service",
    "ExecStart": "{ path=/usr/bin/kubelet ; argv[]=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml $EXTRA ; "
    "ignore_errors=no ; }",
    "Environment": '"EXTRA=--v=2 --node-ip=10.99.0.10"',
}
SWAPFILE_UNIT = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "What": "/swapfile",
    "FragmentPath": "/run/systemd/generator/swapfile.swap",
    "UnitFileState": "generated",
    "SourcePath": "/etc/fstab",
}


class FakeHost:
    """A host whose root is ``root`` and whose tools are stand-ins in ``bin``."""

    def __init__(self, root: Path, bin_folder: Path) -> None:
        self.root, self.bin = root, bin_folder
        self.state: dict[str, Any] = {
            "units": {"kubelet.service": dict(KUBELET), "swapfile.swap": dict(SWAPFILE_UNIT)},
            "containers": [],
            "fail": {},
            "hang": [],
            "after_stop": {},
            "after_start": {},
            "unstoppable": [],
        }
        self.write("proc/meminfo", MEMORY)
        self.write("proc/sys/vm/overcommit_memory", "0\n")
        self.write("etc/fstab", FSTAB)
        self.swap("/swapfile file 2097148 1024 -2")

    def write(self, name: str, text: str) -> Path:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def link(self, name: str, target: str) -> None:
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def read(self, name: str) -> str:
        return (self.root / name.lstrip("/")).read_text()

    def swap(self, *lines: str) -> None:
        self.write("proc/swaps", SWAPS + "".join(line + "\n" for line in lines))

    def container(self, pod: str, name: str, state: str = "RUNNING") -> str:
        identity = f"{len(self.state['containers']):064x}"
        self.state["containers"].append({"pod": pod, "container": name, "id": identity, "state": state})
        return identity

    def save(self) -> None:
        (self.root / "state.json").write_text(json.dumps(self.state))

    def now(self) -> dict[str, Any]:
        """The state as the tools left it."""
        loaded: dict[str, Any] = json.loads(self.read("state.json"))
        return loaded

    def calls(self, tool: str = "") -> list[str]:
        lines = self.read("calls").split("\n") if (self.root / "calls").exists() else []
        return [line for line in lines if line.startswith(tool) and line]

    def changes(self) -> list[str]:
        """The calls that change something."""
        reading = r"systemctl show|journalctl|dmesg|systemd-detect|crictl .*(ps|pods)|ctr .*(list|info)"
        return [line for line in self.calls() if not re.match(reading, line)]

    def remove(self, tool: str) -> None:
        (self.bin / tool).unlink()

    def environment(self) -> dict[str, str]:
        return {"STANDIN_ROOT": str(self.root)}
