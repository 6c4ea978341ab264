"""Causes that stand in the host: the bus, the IOMMU, and which driver has the card. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpufix.core import workload
from gpufix.core.evidence import allocatable_of, instance_of
from gpufix.core.findings import Candidate, candidate
from gpufix.core.gpu_case import Case
from gpufix.core.gpu_stack import gpu_resources
from gpufix.core.parse.jsonraw import cut_member
from gpufix.core.parse.pods import quantity
from gpufix.language import t
from gpufix.model import Evidence, PciFunction, Status

_JOINS_GROUP = re.compile(
    r"(?P<address>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): Adding to iommu group (?P<group>\d+)"
)
_FROM_BOOT = re.compile(r"\[ +0\.000000\]")
_HARMLESS = frozenset({"", "vfio-pci", "pci-stub", "pcieport"})
"""Drivers that leave an IOMMU group viable (torvalds/linux drivers/vfio/vfio_iommu_type1.c, vfio_main.c)."""


def fell_off_bus(case: Case) -> Candidate | None:
    """The kernel saw the card vanish since this boot. Where the node still offers a GPU it may be another one."""
    log = case.situation.facts.kernel_log.value or ()
    hit = case.situation.signatures.match("kernel", log, log, frozenset(), "gpu-fell-off-bus")
    dead = [card for card in case.gpus if card.evidence and card.evidence[0].excerpt.endswith("(rev ff)")]
    if hit is None and not dead:
        return None
    names = gpu_resources(case.node)
    offered = [name for name in names if quantity(case.node.allocatable.get(name, "0"))]
    said = (*((hit.line,) if hit else ()), *(card.evidence[0] for card in dead))
    summary = t("the GPU's registers read as all ones ({line})", line=said[0].source)
    if hit:
        summary = t("the kernel says that the GPU has fallen off the bus ({line})", line=said[0].source)
    status = Status.CONFIRMED if hit and (dead or not offered) else Status.SUSPECTED
    evidence = (*said, *(allocatable_of(case.node, name) for name in names))
    return candidate("gpu-fell-off-bus", status, summary, *evidence)


def iommu_off(case: Case) -> Candidate | None:
    """No IOMMU, no passthrough. That ``intel_iommu=on`` is not on the command line is no proof: AMD needs none."""
    if not _wants_passthrough(case):
        return None
    facts = case.situation.facts
    if facts.iommu_groups.value == ():
        summary = t("the host has no IOMMU group at all: the IOMMU is off")
        counted = facts.iommu_groups.evidence
        status = Status.CONFIRMED if counted else Status.SUSPECTED  # an empty listing can be one that failed
        return candidate("iommu-off", status, summary, *counted, *_driver_lines(case))
    ungrouped = [card for card in case.gpus if card.group_known and not card.group]
    if ungrouped:
        summary = t("{address} is in no IOMMU group: the IOMMU is off", address=ungrouped[0].address)
        return candidate("iommu-off", Status.CONFIRMED, summary, *ungrouped[0].evidence)
    log = facts.kernel_log.value or ()
    if not log or not _FROM_BOOT.match(log[0].excerpt) or any(_JOINS_GROUP.search(line.excerpt) for line in log):
        return None
    refused = case.situation.signatures.match("kernel", log, log, frozenset(), "iommu-off")
    if refused is not None:
        summary = t("vfio-pci refuses the card, and the kernel has put no device into an IOMMU group: the IOMMU is off")
        return candidate("iommu-off", Status.CONFIRMED, summary, refused.line, *facts.cmdline.evidence)
    summary = t("the kernel's log of this boot puts no device into an IOMMU group")
    return candidate("iommu-off", Status.SUSPECTED, summary, *facts.cmdline.evidence)


def group_shared(case: Case) -> Candidate | None:
    """QEMU finds the group not viable: another function of it is still with a driver of the host."""
    signatures = case.situation.signatures
    stuck = {(vm.namespace, vm.name) for vm in case.vms.stuck}
    for line in _said_of_vms(case, stuck):
        hit = signatures.match("vm", [line], (), frozenset(), "iommu-group-shared")
        if hit is None:
            continue
        group = hit.groups.get("group", "?")
        summary = t("IOMMU group {group} is not viable", group=group)
        holders = [other for other in _of_group(case, hit.groups.get("group", "")) if other.driver not in _HARMLESS]
        bound = [card for card in case.gpus if card.driver == "vfio-pci"]
        if not holders or not bound:
            return candidate("iommu-group-shared", Status.SUSPECTED, summary, line)
        summary = t(
            "IOMMU group {group} is not viable: {address} is with {driver}, the GPU itself with vfio-pci",
            group=group,
            address=holders[0].address,
            driver=holders[0].driver,
        )
        lines = [part for function in (*holders, *bound) for part in function.evidence]
        return candidate("iommu-group-shared", Status.CONFIRMED, summary, line, *lines)
    return None


def bound_to_nouveau(case: Case) -> Candidate | None:
    """The open driver of the distribution has taken the card before anyone else could."""
    return _bound_to(case, "nouveau", "gpu-bound-to-nouveau")


def not_bound_to_vfio(case: Case) -> Candidate | None:
    """Passthrough is wanted and another driver has the card, or none."""
    if case.mode not in ("", workload.VM_PASSTHROUGH):
        return None
    found = _bound_to(case, "nvidia", "gpu-not-bound-to-vfio")
    loose = [card for card in case.gpus if not card.driver]
    if found is not None or not case.mode or not case.missing or not loose or len(loose) != len(case.gpus):
        return found
    summary = t(
        "no driver has the GPU at {address}, and {resource} is not offered",
        address=loose[0].address,
        resource=case.missing[0],
    )
    return candidate("gpu-not-bound-to-vfio", Status.SUSPECTED, summary, *loose[0].evidence)


def _bound_to(case: Case, driver: str, id: str) -> Candidate | None:
    bound = [card for card in case.gpus if card.driver == driver]
    if not bound or not case.missing:
        return None
    summary = t(
        "the GPU at {address} is with {driver}, so the node offers no {resource}",
        address=bound[0].address,
        driver=driver,
        resource=case.missing[0],
    )
    evidence = (*bound[0].evidence, allocatable_of(case.node, case.missing[0]))
    sure = driver == "nouveau" or case.mode == workload.VM_PASSTHROUGH
    return candidate(id, Status.CONFIRMED if sure else Status.SUSPECTED, summary, *evidence)


def _wants_passthrough(case: Case) -> bool:
    """Where the node is labelled for containers, that comes before anything passthrough would need of the machine."""
    if case.mode not in ("", workload.VM_PASSTHROUGH):
        return False
    if case.lacking_passthrough:
        return True
    offered = workload.workload_resources(case.node.allocatable, workload.VM_PASSTHROUGH)
    return case.mode == workload.VM_PASSTHROUGH and not any(offered.values())


def _driver_lines(case: Case) -> tuple[Evidence, ...]:
    return tuple(line for card in case.gpus for line in card.evidence)


def _said_of_vms(case: Case, stuck: set[tuple[str, str]]) -> Iterator[Evidence]:
    """What KubeVirt says of the VMs whose pod is here and which do not run: their instances, their events."""
    for demand in case.vms.demands:
        if (demand.namespace, demand.name) in stuck and demand.vm is not None:
            yield instance_of(demand.vm)
    for event in case.situation.facts.events.value or ():
        if (event.namespace, event.name) in stuck:
            raw = cut_member(event.raw, "message")
            yield Evidence(f"cluster/events.json {event.kind}/{event.name} {event.reason}", raw or event.message)


def _of_group(case: Case, group: str) -> list[PciFunction]:
    """The functions of an IOMMU group: by lspci or sysfs, else by the kernel's log."""
    facts = case.situation.facts
    logged = {
        match["address"]
        for line in facts.kernel_log.value or ()
        if (match := _JOINS_GROUP.search(line.excerpt)) and match["group"] == group
    }
    logged |= {member for card in case.gpus if card.group == group for member in card.group_members}
    return [function for function in facts.pci.value or () if function.group == group or function.address in logged]
