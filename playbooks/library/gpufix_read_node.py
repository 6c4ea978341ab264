#!/usr/bin/python
# Copyright the gpufix authors. SPDX-License-Identifier: Apache-2.0
"""Reads the host side of a gpufix snapshot."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gpufix_read_node
short_description: Read what a diagnosis of a GPU node needs from the host
description:
  - Reads the kubelet's unit, journal and configuration, swap and what makes it, the containers that run, the PCI
    devices and who uses the GPU, in one round trip and in parallel.
  - Changes nothing, and does the same in check mode.
  - What cannot be read is named with the reason; it is never an empty text. What is not there on this host says
    C(not installed).
  - Passwords and tokens are taken out before the text leaves the host.
version_added: "0.1.0"
options:
  unit:
    description:
      - The systemd unit that runs the kubelet. Found when it is not given.
    type: str
    default: ""
  host_root:
    description:
      - The folder that stands for C(/). For practice hosts and tests.
    type: path
    default: /
  timeout:
    description:
      - Seconds that each tool may take.
    type: int
    default: 10
author:
  - The gpufix authors
attributes:
  check_mode:
    description: Reads the same in check mode.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
"""

EXAMPLES = r"""
- name: Read the node
  gpufix_read_node:
  register: gpufix_node_read
"""

RETURN = r"""
files:
  description: Name of the snapshot file to its raw text.
  returned: always
  type: dict
  sample: {boot_id: "0e5b7bd6-6f5f-4b0e-9f4e-5f0ad2f0e1a4\n"}
unread:
  description: Name of the snapshot file to the reason that it could not be read.
  returned: always
  type: dict
  sample: {nvidia_smi: "nvidia-smi: not installed"}
unit:
  description: The unit that runs the kubelet, empty when none was found.
  returned: always
  type: str
  sample: kubelet.service
virt:
  description: What C(systemd-detect-virt --container) says; C(none) on a machine or a virtual machine.
  returned: always
  type: str
  sample: none
swap_services:
  description: Installed services that make swap, each with its enablement, one a line.
  returned: always
  type: str
  sample: "zramswap.service enabled\n"
"""

import os
import re
import threading
import time
from typing import Any, Callable, Dict, List, Set, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufix_busy import read_busy
from ansible.module_utils.gpufix_containers import read_containers
from ansible.module_utils.gpufix_host import Host, Text, in_child, show_blocks
from ansible.module_utils.gpufix_kubelet import Kubelet, read_kubelet, trim_journal
from ansible.module_utils.gpufix_redact import redact
from ansible.module_utils.gpufix_swaps import SERVICES, parse_services

Part = Dict[str, Text]

NVIDIA = "0x10de"
PCI = "/sys/bus/pci/devices"
_ZRAM_CONFIG = (
    "/usr/lib/systemd/zram-generator.conf",
    "/usr/local/lib/systemd/zram-generator.conf",
    "/etc/systemd/zram-generator.conf",
    "/run/systemd/zram-generator.conf",
)
_KERNEL_WORDS = re.compile(
    r"nvrm|xid|nvidia|nouveau|vfio|iommu|dmar|amd-vi|10de|swap|out of memory|oom-kill|BAR \d|bootfb|simplefb|pcieport",
    re.IGNORECASE,
)


def trim_kernel_log(text: str, newest: int = 400) -> str:
    """Pure. The newest lines, and from before them those on the GPU, the IOMMU, swap and memory."""
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    first = max(0, len(lines) - newest)
    return "".join(
        line + "\n" for index, line in enumerate(lines) if index >= first or index < 3 or _KERNEL_WORDS.search(line)
    )


class Reader:
    """Each ``read_*`` method returns some files of the snapshot; they run at the same time."""

    def __init__(self, host: Host, unit: str) -> None:
        self.host = host
        self.unit = unit

    def tool(self, name: str, command: List[str]) -> Part:
        done = self.host.run(command)
        if done.why:
            return {name: Text(None, done.why)}
        if not done.out.strip():
            return {name: Text(None, f"{command[0]}: it said nothing")}
        return {name: Text(done.out)}

    # --- the kubelet ---

    def read_kubelet(self) -> Part:
        kubelet = read_kubelet(self.host, self.unit)
        containers: Part = {}
        asking = threading.Thread(target=lambda: containers.update(self.containers(kubelet)), daemon=True)
        asking.start()
        files = {
            "unit": Text(kubelet.unit.name),
            "kubelet.show": kubelet.show,
            "kubelet_flags": kubelet.flags,
            "kubelet_config": kubelet.config,
            "kubelet_config_d": kubelet.config_d,
            "kubelet.journal": self.journal(kubelet),
        }
        asking.join(4 * self.host.timeout)
        files.update(containers or {"containers": Text(None, "the runtime gave no answer")})
        return files

    def journal(self, kubelet: Kubelet) -> Text:
        if not kubelet.unit.name:
            return Text(None, kubelet.unit.why)
        done = self.host.run(["journalctl", "-u", kubelet.unit.name, "-o", "short-iso", "--no-pager", "-n", "5000"])
        if done.why:
            return Text(None, done.why)
        text = trim_journal(done.out)
        if not [line for line in text.split("\n") if line and not line.startswith("-- ")]:
            return Text(None, "journalctl: {}".format(text.strip() or "no entries for " + kubelet.unit.name))
        return Text(text)

    def containers(self, kubelet: Kubelet) -> Part:
        found, why = read_containers(self.host, kubelet.unit.name, kubelet.endpoint)
        if found is None:
            return {"containers": Text(None, why)}
        lines = [container.line() for container in found] or ["# the runtime knows no container of Kubernetes"]
        return {"containers": Text("".join(line + "\n" for line in lines))}

    # --- swap and memory ---

    def read_files(self) -> Part:
        paths = {
            "proc_swaps": "/proc/swaps",
            "proc_meminfo": "/proc/meminfo",
            "overcommit": "/proc/sys/vm/overcommit_memory",
            "fstab": "/etc/fstab",
            "boot_id": "/proc/sys/kernel/random/boot_id",
            "cmdline": "/proc/cmdline",
        }
        files = {name: self.host.read(path) for name, path in paths.items()}
        if files["fstab"].text == "":
            files["fstab"] = Text("# gpufix: /etc/fstab is an empty file\n")
        return files

    def read_swap_units(self) -> Part:
        properties = (
            "Id,What,FragmentPath,ActiveState,UnitFileState,SourcePath"  # SourcePath: /etc/fstab, for fstab's own
        )
        done = self.host.run(["systemctl", "show", "*.swap", "--all", "-p", properties])
        if done.why:
            return {"swap_units": Text(None, done.why)}
        return {"swap_units": Text(done.out if done.out.strip() else "# systemd knows no swap unit\n")}

    def read_swap_services(self) -> Part:
        done = self.host.run(["systemctl", "show"] + list(SERVICES) + ["-p", "Id,LoadState,ActiveState,UnitFileState"])
        if done.why:
            return {"swap_services": Text(None, done.why)}
        services = parse_services(show_blocks(done.out))
        return {"swap_services": Text("".join(f"{service.name} {service.enabled}\n" for service in services))}

    def read_zram(self) -> Part:
        lines = []
        try:
            names = [name for name in self.host.names("/sys/block") if name.startswith("zram")]
        except OSError as error:
            return {"zram": Text(None, f"/sys/block: {error.strerror or error}")}
        for name in names:
            size = self.host.word(f"/sys/block/{name}/disksize") or "unknown"
            if size != "0":  # the driver makes a device of no size when it is loaded
                lines.append(f"/dev/{name} disksize={size}")
        for path in _ZRAM_CONFIG:
            for config in [path] + self._drop_ins(path + ".d"):
                if not self.host.exists(config):
                    continue
                content = self.host.read(config)
                if content.text is None:
                    return {"zram": content}
                lines += [f"# file: {config}"] + content.text.rstrip("\n").split("\n")
        if not lines:
            return {"zram": Text(None, "not installed: no zram device is set up and there is no zram-generator.conf")}
        return {"zram": Text("".join(line + "\n" for line in lines))}

    def _drop_ins(self, folder: str) -> List[str]:
        try:
            return [folder + "/" + name for name in self.host.names(folder) if name.endswith(".conf")]
        except OSError:
            return []

    # --- the machine ---

    def read_busy(self) -> Part:
        return {"busy": read_busy(self.host)}

    def read_virt(self) -> Part:
        done = self.host.run(["systemd-detect-virt", "--container"])
        word = done.out.strip()  # "none" comes with status 1
        return {"virt": Text(word) if word else Text(None, done.why or "systemd-detect-virt: it said nothing")}

    def read_kernel_log(self) -> Part:
        part = self.tool("dmesg", ["dmesg"])
        text = part["dmesg"].text
        return part if text is None else {"dmesg": Text(trim_kernel_log(text))}

    def read_lspci(self) -> Part:
        return self.tool("lspci", ["lspci", "-Dnnk"])

    def read_nvidia_smi(self) -> Part:
        return self.tool("nvidia_smi", ["nvidia-smi"])

    def read_pci(self) -> Part:
        host = self.host
        groups = Text(None, "")
        try:
            lines = []
            for group in sorted(host.names("/sys/kernel/iommu_groups"), key=lambda name: (len(name), name)):
                members = host.names(f"/sys/kernel/iommu_groups/{group}/devices")
                lines += [f"{group} {member}" for member in members]
            count = len({line.split()[0] for line in lines})
            groups = Text("".join(line + "\n" for line in [f"# IOMMU groups: {count}"] + lines))
        except OSError as error:
            groups = Text(None, f"/sys/kernel/iommu_groups: {error.strerror or error}")
        try:
            functions = nvidia_functions(host)
            lines = [f"# NVIDIA PCI functions: {len(functions)}"]
            lines += [pci_line(host, address) for address in functions]
            drivers = Text("".join(line + "\n" for line in lines))
        except OSError as error:
            drivers = Text(None, f"{PCI}: {error.strerror or error}")
        return {"iommu_groups": groups, "pci_drivers": drivers}


def nvidia_functions(host: Host) -> List[str]:
    """Addresses of all PCI functions made by NVIDIA. Raises OSError."""
    found = []
    for address in host.names(PCI):
        vendor = host.read(f"{PCI}/{address}/vendor")
        if vendor.text is None:
            raise OSError(0, vendor.why)
        if vendor.text.strip() == NVIDIA:
            found.append(address)
    return found


def pci_line(host: Host, address: str) -> str:
    folder = f"{PCI}/{address}"

    def word(name: str) -> str:
        return re.sub(r"^0x", "", host.word(f"{folder}/{name}")) or "-"

    override = word("driver_override")
    group = host.link_name(folder + "/iommu_group")
    members = ",".join(host.names(folder + "/iommu_group/devices")) if group else "-"
    return "{} vendor={} device={} class={} driver={} override={} group={} group_members={}".format(
        address,
        word("vendor"),
        word("device"),
        word("class"),
        host.link_name(folder + "/driver") or "-",
        "-" if override == "(null)" else override,
        group or "-",
        members or "-",
    )


# --- who uses the GPU -----------------------------------------------------------------------------


def gpu_devices(host: Host) -> Set[str]:
    """The device files that belong to an NVIDIA function besides /dev/nvidia*: its DRM nodes and its VFIO group."""
    devices: Set[str] = set()
    for address in nvidia_functions(host):
        folder = f"{PCI}/{address}"
        for kind, place in (("drm", "/dev/dri/"), ("vfio-dev", "/dev/vfio/devices/")):
            try:
                names = host.names(f"{folder}/{kind}")
            except OSError:
                continue
            devices.update(place + name for name in names if re.match(r"(card|renderD|vfio)\d+$", name))
        group = host.link_name(folder + "/iommu_group")
        if group:
            devices.add("/dev/vfio/" + group)
    return devices


def is_gpu_device(path: str, devices: Set[str]) -> bool:
    return path in devices or bool(
        re.match(r"/dev/nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset|-caps/.+|-nvlink|-nvswitch.*)$", path)
    )


def scan_holders(host: Host) -> str:
    """The processes with a GPU device open, through all of /proc. One that ends meanwhile is none."""
    try:
        devices = gpu_devices(host)
    except OSError as error:
        raise OSError(error.errno, f"which device files are the GPU's is not known: {PCI}: {error.strerror}") from None
    scanned = 0
    holders: List[str] = []
    unreadable: List[str] = []
    for pid in sorted((name for name in host.names("/proc") if name.isdigit()), key=int):
        try:
            found = _open_devices(host, pid, devices)
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            scanned += 1
            unreadable.append("unreadable\t" + pid)
            continue
        scanned += 1
        if found:
            holders.append("\t".join((pid, _command(host, pid), ",".join(sorted(found)), _cgroup(host, pid))))
    head = f"# scanned {scanned} processes, unreadable {len(unreadable)}"
    return "".join(line + "\n" for line in [head] + holders + unreadable)


def _open_devices(host: Host, pid: str, devices: Set[str]) -> Set[str]:
    folder = host.path(f"/proc/{pid}/fd")
    found: Set[str] = set()
    for number in os.listdir(folder):
        try:
            target = os.readlink(os.path.join(folder, number))
        except FileNotFoundError:
            continue  # closed since it was listed
        target = re.sub(r" \(deleted\)$", "", target)
        if is_gpu_device(target, devices):
            found.add(target)
    if found:
        return found  # its maps say no more, and reading those of a process that hangs in the driver can hang
    with open(host.path(f"/proc/{pid}/maps"), "rb") as stream:
        maps = stream.read()
    if b" /dev/" in maps:
        for match in re.finditer(rb" (/dev/[^\n]+)", maps):
            target = re.sub(r" \(deleted\)$", "", match.group(1).decode("utf-8", "replace"))
            if is_gpu_device(target, devices):
                found.add(target)
    return found


def _command(host: Host, pid: str) -> str:
    """The program's name: whole where the kernel's 15 characters are the start of it. Never its arguments."""
    short = host.word(f"/proc/{pid}/comm")
    try:
        first = host.read_bytes(f"/proc/{pid}/cmdline").split(b"\0")[0].decode("utf-8", "replace")
    except OSError:
        first = ""
    whole = os.path.basename(first)
    name = whole if short and whole.startswith(short) and " " not in whole else short
    return re.sub(r"\s+", " ", name) or "?"


def _cgroup(host: Host, pid: str) -> str:
    """The control group: of version 2, else systemd's own, else the longest."""
    best = "-"
    for line in (host.read(f"/proc/{pid}/cgroup").text or "").split("\n"):
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        if parts[1] in ("", "name=systemd") and parts[2] != "/":
            return parts[2].replace("\t", " ")
        if len(parts[2]) > len(best) or best == "-":
            best = parts[2].replace("\t", " ")
    return best


# --- all of it ------------------------------------------------------------------------------------

NAMES = {
    "read_kubelet": (
        "unit",
        "kubelet.show",
        "kubelet_flags",
        "kubelet_config",
        "kubelet_config_d",
        "kubelet.journal",
        "containers",
    ),
    "read_files": ("proc_swaps", "proc_meminfo", "overcommit", "fstab", "boot_id", "cmdline"),
    "read_swap_units": ("swap_units",),
    "read_swap_services": ("swap_services",),
    "read_zram": ("zram",),
    "read_busy": ("busy",),
    "read_virt": ("virt",),
    "read_kernel_log": ("dmesg",),
    "read_lspci": ("lspci",),
    "read_nvidia_smi": ("nvidia_smi",),
    "read_pci": ("iommu_groups", "pci_drivers"),
}


def read_node(host: Host, unit: str) -> Tuple[Dict[str, str], Dict[str, str]]:
    """All files of the snapshot's host side, redacted, and the reasons of those that could not be read."""
    reader = Reader(host, unit)
    results: Part = {}
    lock = threading.Lock()

    def work(names: Tuple[str, ...], read: Callable[[], Part]) -> None:
        try:
            part = read()
        except Exception as error:  # one part that breaks must not take the others with it
            part = {name: Text(None, f"{type(error).__name__}: {error}") for name in names}
        with lock:
            for name, text in part.items():
                results[name] = Text(redact(text.text), "") if text.text is not None else Text(None, redact(text.why))

    threads = [
        threading.Thread(target=work, args=(names, getattr(reader, method)), daemon=True)
        for method, names in NAMES.items()
    ]
    end = time.monotonic() + 5 * host.timeout
    # forks, so it comes before the threads; its own time limit is one tool's
    holders = _Fork(host)
    for thread in threads:
        thread.start()
    results["gpu_holders"] = holders.result()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    files: Dict[str, str] = {}
    unread: Dict[str, str] = {}
    with lock:
        for name in [name for names in NAMES.values() for name in names] + ["gpu_holders"]:
            text = results.get(name, Text(None, f"not finished in {5 * host.timeout:g} s"))
            if text.text is None:
                unread[name] = text.why or "could not be read"
            else:
                files[name] = text.text
    return files, unread


class _Fork:
    """The scan of /proc in a child process, which can be left behind when it hangs."""

    def __init__(self, host: Host) -> None:
        self._finish = in_child(lambda: scan_holders(host), host.timeout)

    def result(self) -> Text:
        text, why = self._finish()
        return Text(None, why) if text is None else Text(text)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "default": ""},
            "host_root": {"type": "path", "default": "/"},
            "timeout": {"type": "int", "default": 10},
        },
        supports_check_mode=True,
    )
    host = Host(module.params["host_root"], float(module.params["timeout"]))
    files, unread = read_node(host, module.params["unit"])
    unit = files.pop("unit", "")
    unread.pop("unit", None)
    answer: Dict[str, Any] = {
        "changed": False,
        "files": files,
        "unread": unread,
        "unit": unit,
        "virt": files.get("virt", ""),
        "swap_services": files.get("swap_services", ""),
    }
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
