"""The chain of causes: five links from the root cause to the VMs, and the causes that were put aside. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpufix.core.evidence import INSTANCES, PODS, VMS, ready_of, scheduled_of, taints_of, unit_lines, vm_of
from gpufix.core.findings import TITLES
from gpufix.core.gpu_stack import StackState
from gpufix.core.kubelet_causes import swap_is_on, swap_lines
from gpufix.core.situation import DOWN, Kubelet, Situation
from gpufix.core.vms import VmState
from gpufix.language import t
from gpufix.model import AffectedVm, Alternative, Evidence, Finding, Link, Status


def build_chain(
    situation: Situation, root: Finding, stack: StackState, vms: VmState, affected: tuple[AffectedVm, ...]
) -> tuple[Link, ...]:
    """The five links, always in this order: cause, kubelet, node, GPU, VMs."""
    return (
        _first(situation, root),
        _kubelet(situation, root),
        _node(situation),
        Link("gpu-stack-gone", t("the GPU cannot be had"), stack.status, stack.detail, stack.evidence),
        _vms(vms, affected),
    )


def _first(situation: Situation, root: Finding) -> Link:
    if root.id == "healthy":
        status, detail, evidence = judge_swap(situation)
        return Link("swap-on", t(TITLES["swap-on"]), status, detail, evidence)
    status = Status.CONFIRMED if root.status is Status.CONFIRMED else Status.UNKNOWN
    return Link(root.id, t(TITLES[root.id]) if root.id in TITLES else root.id, status, root.summary, root.evidence)


def judge_swap(situation: Situation) -> tuple[Status, str, tuple[Evidence, ...]]:
    """Whether swap stands in the kubelet's way, where it has not been named the cause: refuted, or not known."""
    facts, worded = situation.facts, situation.worded
    devices = ", ".join(device.path for device in swap_is_on(situation))
    if facts.swaps.value == ():
        return Status.REFUTED, t("swap is off"), swap_lines(situation)
    if situation.kubelet is Kubelet.RUNNING and facts.unit.known:
        detail = t("the kubelet runs")
        if devices:
            detail = t("swap is on ({devices}), and the kubelet runs with it", devices=devices)
        return Status.REFUTED, detail, (*unit_lines(facts), *facts.swaps.evidence[1:])
    if worded is not None and worded.fatal is not None:
        return (
            Status.REFUTED,
            t("swap is not what ended the kubelet's last start, {source} is", source=worded.fatal.source),
            (worded.fatal,),
        )
    if devices and facts.swap_allowed.value is True:
        evidence = (*swap_lines(situation), *facts.swap_allowed.evidence)
        detail = t("swap is on ({devices}), and the kubelet's configuration allows it", devices=devices)
        return Status.REFUTED, detail, evidence
    if devices:
        return (
            Status.UNKNOWN,
            t("swap is on ({devices}); nothing shows that the kubelet was refused for it", devices=devices),
            swap_lines(situation),
        )
    return Status.UNKNOWN, t("whether swap is on is not known: {reason}", reason=facts.swaps.unknown), ()


def _kubelet(situation: Situation, root: Finding) -> Link:
    facts, state = situation.facts, situation.kubelet
    refused = root.id == "swap-on"
    title = t("the kubelet refuses to start") if refused else t("the kubelet is down")
    lines = unit_lines(facts, "ActiveState", "SubState", "Result", "NRestarts")
    if not lines and situation.starts:
        lines = situation.starts[-1].lines[-1:]
    details = {
        Kubelet.RUNNING: t("the kubelet runs"),
        Kubelet.STARTING: t("a start is under way"),
        Kubelet.CRASH_LOOP: t("systemd starts it again and again ({how})", how=_restarts(situation)),
        Kubelet.FAILED: t("it has failed and is not started again"),
        Kubelet.STOPPED: t("its unit is stopped"),
        Kubelet.UNKNOWN: t(
            "the kubelet's unit was not read: {reason}", reason=facts.unit.unknown or t("its state says nothing")
        ),
    }
    dying = state is Kubelet.STARTING and root.status is Status.CONFIRMED and root.id != "healthy"
    if state in DOWN or dying:
        status = Status.CONFIRMED
    else:
        status = Status.REFUTED if state is Kubelet.RUNNING else Status.UNKNOWN
    words = situation.worded.fatal if situation.worded is not None and status is Status.CONFIRMED else None
    return Link("kubelet-down", title, status, details[state], (*lines, *([words] if words else [])))


def _restarts(situation: Situation) -> str:
    unit = situation.unit
    if unit is None:
        return t("its last start failed")
    state = f"{unit.active_state}/{unit.sub_state}"
    return t("{state}, {n} restarts", state=state, n=unit.restarts) if unit.restarts else state


def _node(situation: Situation) -> Link:
    title, node = t("the node is not Ready"), situation.node
    if node is None:
        return Link("node-not-ready", title, Status.UNKNOWN, situation.facts.node.unknown)
    ready, taints = ready_of(node), taints_of(node, *situation.lifecycle_taints) if situation.lifecycle_taints else ()
    if not node.ready:
        return Link("node-not-ready", title, Status.UNKNOWN, t("the node has no Ready condition"), (ready,))
    if node.ready != "True":
        return Link(
            "node-not-ready", title, Status.CONFIRMED, f"Ready={node.ready}: {node.ready_message}", (ready, *taints)
        )
    if situation.kubelet in DOWN or situation.stale:
        detail = t("Ready=True is what the kubelet last reported, and stale")
        return Link("node-not-ready", title, Status.UNKNOWN, detail, (ready,))
    if taints:
        names = ", ".join(sorted(set(situation.lifecycle_taints)))
        detail = t("Ready=True, but the taint {taint} still stands", taint=names)
        return Link("node-not-ready", title, Status.UNKNOWN, detail, (ready, *taints))
    detail = t("Ready=True, and no taint of a node that is not")
    return Link("node-not-ready", title, Status.REFUTED, detail, (ready,))


def _vms(vms: VmState, affected: tuple[AffectedVm, ...]) -> Link:
    name, title = "vms-unschedulable", t("VMs cannot run")
    if affected:
        names = ", ".join(vm.name for vm in affected)
        return Link(name, title, Status.CONFIRMED, names, tuple(line for vm in affected for line in vm.evidence))
    if not vms.known:
        return Link(name, title, Status.UNKNOWN, vms.unknown)
    if vms.demands:
        evidence = [vm_of(demand.vm) for demand in vms.demands if demand.vm is not None]
        evidence += [scheduled_of(demand.launcher) for demand in vms.demands if demand.launcher is not None]
        return Link(name, title, Status.REFUTED, t("no VM waits for this node's GPU"), tuple(evidence))
    detail = t("no VM that is meant to run asks for a device ({files})", files=f"{VMS}, {INSTANCES}, {PODS}")
    return Link(name, title, Status.UNKNOWN if not vms.sources else Status.REFUTED, detail, vms.sources)


# --- what was put aside ----------------------------------------------------------------------------------------------


def put_aside(situation: Situation, root: Finding) -> tuple[Alternative, ...]:
    """The other causes that something pointed to, and what speaks against each."""
    found: dict[str, Alternative] = {}
    for alternative in (*_swap_aside(situation, root), *_words_aside(situation), *_states_aside(situation)):
        if alternative.id != root.id:
            found.setdefault(alternative.id, alternative)
    return tuple(found.values())


def _swap_aside(situation: Situation, root: Finding) -> Iterator[Alternative]:
    if root.id in ("healthy", "swap-on"):
        return
    status, detail, evidence = judge_swap(situation)
    yield Alternative("swap-on", status, detail, evidence)


def _words_aside(situation: Situation) -> Iterator[Alternative]:
    """Known failures that the journal speaks of, and which did not end the newest start that spoke."""
    worded, signatures = situation.worded, situation.signatures
    if worded is None or worded.fatal is None:
        return
    for start in reversed(situation.starts):
        if start is not worded and start.fatal is not None:
            hit = signatures.match("fatal", [start.fatal], start.lines, situation.holds)
            if hit is not None:
                by = t(
                    "an earlier start ended so ({earlier}), the newest that spoke by {newest}",
                    earlier=start.fatal.source,
                    newest=worded.fatal.source,
                )
                yield Alternative(hit.signature.id, Status.REFUTED, by, (worded.fatal,))
    for signature in signatures.at("noise"):
        for line in worded.lines:
            if line is not worded.fatal and signature.found_in(line.excerpt):
                by = t(
                    "{line} speaks of it, but what ended the start is {fatal}",
                    line=line.source,
                    fatal=worded.fatal.source,
                )
                yield Alternative(signature.id, Status.REFUTED, by, (worded.fatal, line))
                break


def _states_aside(situation: Situation) -> Iterator[Alternative]:
    """A node that is not Ready could have a dead host or a stopped kubelet: the unit's state says otherwise."""
    facts = situation.facts
    if situation.node is None or situation.ready or not facts.unit.known:
        return
    state = unit_lines(facts)
    yield Alternative("host-unreachable", Status.REFUTED, t("the host was read"), state)
    if situation.kubelet in (Kubelet.RUNNING, Kubelet.CRASH_LOOP):
        runs = situation.kubelet is Kubelet.RUNNING
        by = t("the kubelet runs") if runs else t("the kubelet is started again and again")
        yield Alternative("kubelet-stopped", Status.REFUTED, by, state)
