"""The card: PCI functions with their drivers, and who holds its device files. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from gpufix.core.parse.source import Unreadable, lines
from gpufix.language import t
from gpufix.model import Evidence, GpuCard, GpuHolder, Observation, PciFunction

_COUNT = re.compile(r"#\s*NVIDIA PCI functions:\s*(\d+)")
_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$")
_LSPCI = re.compile(
    r"(?P<address>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) .*?\[(?P<pci_class>[0-9a-f]{4})\]: .*"
    r"\[(?P<vendor>[0-9a-f]{4}):(?P<device>[0-9a-f]{4})\]"
)
_DRIVER = re.compile(r"\s+Kernel driver in use: (\S+)")
_GROUP = re.compile(r"\s+IOMMU [Gg]roup:? (\d+)")
_MEMBER = re.compile(
    r"^(?:.*iommu_groups/|\s*(?:IOMMU )?(?:[Gg]roup )?)(?P<group>\d+)\b.*?"
    r"(?P<address>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])",
    re.MULTILINE,
)
_SCANNED = re.compile(r"#\s*scanned (\d+) process\w*, unreadable (\d+)")


def parse_pci_drivers(path: str, text: str) -> Observation[tuple[PciFunction, ...]]:
    """gpufix's own listing of sysfs. Raises Unreadable when its count and its lines disagree: it was cut short."""
    count: int | None = None
    found: list[PciFunction] = []
    for line in lines(path, text):
        stated = _COUNT.match(line.excerpt)
        if stated:
            count = int(stated.group(1))
        elif line.excerpt.strip() and not line.excerpt.startswith("#"):
            found.append(_function(line))
    if count is None or count != len(found):
        raise Unreadable(
            t("{path}: says {said} NVIDIA functions and lists {listed}", path=path, said=count, listed=len(found))
        )
    return Observation.of(tuple(found), *(line for function in found for line in function.evidence))


def _function(line: Evidence) -> PciFunction:
    address, *pairs = line.excerpt.split()
    fields = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if not _ADDRESS.match(address) or "vendor" not in fields or "class" not in fields:
        raise Unreadable(t("{line}: not a PCI function: {text}", line=line.source, text=repr(line.excerpt[:80])))
    group = _none(fields.get("group", ""))
    members = tuple(part for part in _none(fields.get("group_members", "")).split(",") if part)
    return PciFunction(
        address, _hex(fields["vendor"]), _hex(fields.get("device", "")), _hex(fields["class"]),
        _none(fields.get("driver", "")), group, "group" in fields, members, (line,),
    )  # fmt: skip


def _none(word: str) -> str:
    return "" if word in ("-", "none", "(null)") else word


def _hex(word: str) -> str:
    return word.lower().removeprefix("0x")


def parse_lspci(path: str, text: str) -> Observation[tuple[PciFunction, ...]]:
    """``lspci -Dnnk``. No "driver in use" line means that none is bound."""
    found: list[PciFunction] = []
    for line in lines(path, text):
        head = _LSPCI.match(line.excerpt)
        if head:
            address = head["address"].lower()
            address = address if address.count(":") == 2 else f"0000:{address}"
            found.append(PciFunction(address, head["vendor"], head["device"], head["pci_class"], "", evidence=(line,)))
            continue
        driver, group = _DRIVER.match(line.excerpt), _GROUP.match(line.excerpt)
        if found and (driver or group):
            last = found.pop()
            found.append(
                PciFunction(
                    last.address, last.vendor, last.device, last.pci_class,
                    driver.group(1) if driver else last.driver, group.group(1) if group else last.group,
                    bool(group) or last.group_known, evidence=(*last.evidence, line),
                )
            )  # fmt: skip
    if not found:
        raise Unreadable(t("{path}: no line of lspci -Dnnk in it", path=path))
    return Observation.of(tuple(found))


def with_groups(functions: tuple[PciFunction, ...], listing: str) -> tuple[PciFunction, ...]:
    """``functions`` with their IOMMU groups, from a listing that names group and function on one line."""
    groups = {match["address"]: match["group"] for match in _MEMBER.finditer(listing)}
    if not groups:
        return functions
    return tuple(
        one if one.group_known else replace(one, group=groups.get(one.address, ""), group_known=True)
        for one in functions
    )


def gpu_cards(pci: Observation[tuple[PciFunction, ...]]) -> Observation[tuple[GpuCard, ...]]:
    """The NVIDIA display functions among ``pci``: classes 0x0300 and 0x0302 (and the rest of 0x03)."""
    if pci.value is None:
        return Observation.missing(pci.unknown)
    cards = [function for function in pci.value if function.is_nvidia_gpu]
    evidence = tuple(line for card in cards for line in card.evidence)
    found = tuple(GpuCard(card.address, card.device, card.pci_class, card.driver, card.group) for card in cards)
    return Observation(found, evidence or pci.evidence)


_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})")
_VM = re.compile(r"qemu|cloud-hyperv|virt-launcher|firecracker|crosvm")
_DISPLAY = re.compile(
    r"Xorg|Xwayland|gnome-shell|kwin|sddm|gdm|lightdm|plasmashell|weston|sway|mutter|cinnamon|labwc|X$"
)
_DAEMON = re.compile(
    r"nvidia-persiste|nvidia-smi|dcgm|nv-hostengine|nvidia-device-p|gpu-feature-dis|nvidia-powerd|nvidia-topologyd"
    r"|nvidia-fabricm|systemd-logind|nvidia-mig-mana|nvtop|thermald|prometheus-dcgm"
)


def parse_gpu_holders(path: str, text: str) -> Observation[tuple[GpuHolder, ...]]:
    """Who has the card's device files open. Unknown as soon as one process could not be looked into: never "free"."""
    scanned: re.Match[str] | None = None
    found: list[GpuHolder] = []
    evidence: list[Evidence] = []
    for line in lines(path, text):
        scanned = _SCANNED.match(line.excerpt) or scanned
        fields = line.excerpt.split("\t")
        if not line.excerpt.strip() or line.excerpt.startswith("#"):
            continue
        if fields[0] == "unreadable":
            why = t("{line}: process {process} could not be looked into", line=line.source, process=fields[1:2])
            return Observation(None, (line,), why)
        if len(fields) < 3 or not fields[0].isdecimal():
            raise Unreadable(
                t("{line}: not a line about a process: {text}", line=line.source, text=repr(line.excerpt[:80]))
            )
        found.append(_holder([*fields, ""]))
        evidence.append(line)
    if scanned is None:
        raise Unreadable(t("{path}: does not say how many processes were scanned", path=path))
    if int(scanned.group(2)):
        why = t("{path}: {n} processes could not be looked into", path=path, n=scanned.group(2))
        return Observation.missing(why)
    return Observation.of(tuple(found), *_header(path, text), *evidence)


def _header(path: str, text: str) -> tuple[Evidence, ...]:
    """The comment lines of a file: what a listing says about itself."""
    return tuple(line for line in lines(path, text) if line.excerpt.startswith("#"))


def _holder(fields: list[str]) -> GpuHolder:
    pid, command, devices, cgroup = fields[:4]
    files = tuple(part for part in devices.split(",") if part)
    pod = _POD.search(cgroup)
    return GpuHolder(int(pid), command, files, pod.group(1).replace("_", "-") if pod else "", _kind(command, files))


def _kind(command: str, files: tuple[str, ...]) -> str:
    """What a process is to the card. What is not known for sure is ``cuda`` or ``unknown``: both refuse a rebind."""
    if any(name.startswith("/dev/vfio/") and name != "/dev/vfio/vfio" for name in files) or _VM.search(command):
        return "vm"
    if _DAEMON.search(command):
        return "daemon"
    if _DISPLAY.search(command):
        return "display"
    if any(re.match(r"/dev/nvidia(\d+|-uvm(-tools)?)$", name) for name in files):
        return "cuda"
    if files and all(name.startswith("/dev/dri/") for name in files):
        return "display"
    return "unknown"
