"""What it means when the host could not be read: dead, or only not reached from here. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from gpufix.core.evidence import condition_of, ready_of
from gpufix.core.findings import Candidate, candidate, unknown
from gpufix.core.parse.jsonraw import cut_member
from gpufix.core.situation import Kubelet, Situation
from gpufix.language import t
from gpufix.model import Evidence, NodeFacts, Status

_KUBELET_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


def why_unread(situation: Situation) -> Candidate | None:
    """The cause when no file of the host is there and the node is not Ready; None when the host was read."""
    facts, node = situation.facts, situation.node
    if not facts.host_unread or situation.kubelet is not Kubelet.UNKNOWN:
        return None
    if node is None:
        return unknown(
            t(
                "neither the host ({host}) nor the node ({node}) was read",
                host=facts.host_unread,
                node=facts.node.unknown,
            )
        )
    if situation.ready:
        return None
    ready = ready_of(node)
    if not facts.host_asked:
        return unknown(t("the node is not Ready, and nobody asked the host why"), ready)
    means = situation.signatures.what_unread_means(facts.host_unread)
    if means == "answers":
        return unknown(t("the host answers and could not be read: {reason}", reason=facts.host_unread), ready)
    if means == "not-asked":
        why = t("the host was not reached by a fault of name or inventory: {reason}", reason=facts.host_unread)
        return unknown(why, ready)
    if not _all_unknown(node):
        why = t(
            "the host could not be read ({reason}), yet its kubelet reported: {message}",
            reason=facts.host_unread,
            message=node.ready_message,
        )
        return unknown(why, ready)
    alive = list(signs_of_life(situation))
    if alive:
        why = t("the kubelet has stopped reporting, but the host lives: it has written to the cluster since")
        return unknown(why, ready, *alive)
    others = [condition_of(node, kind) for kind in _KUBELET_CONDITIONS[1:] if kind in node.conditions]
    summary = t("the host does not answer ({reason}) and its kubelet has stopped reporting", reason=facts.host_unread)
    status = Status.CONFIRMED if means == "silent" and _life_was_looked_for(situation) else Status.SUSPECTED
    return candidate("host-unreachable", status, summary, ready, *others)


def _all_unknown(node: NodeFacts) -> bool:
    return (
        all(node.conditions.get(kind, "Unknown") == "Unknown" for kind in _KUBELET_CONDITIONS)
        and node.ready == "Unknown"
    )


def _life_was_looked_for(situation: Situation) -> bool:
    """A heartbeat that cannot be dated is neither fresh nor old."""
    node = situation.node
    if node is None or situation.facts.as_of is None or node.ready_since is None:
        return False
    beat = node.kubevirt_heartbeat
    return beat is None or beat <= node.ready_since or not _fresh(situation)


def _fresh(situation: Situation) -> bool:
    node, as_of = situation.node, situation.facts.as_of
    if node is None or as_of is None or node.kubevirt_heartbeat is None:
        return False
    limit = timedelta(seconds=situation.signatures.thresholds["heartbeat_fresh_seconds"])
    return as_of - node.kubevirt_heartbeat <= limit


def signs_of_life(situation: Situation) -> Iterator[Evidence]:
    """What the host has written to the cluster after its kubelet fell silent: virt-handler's heartbeat, events.

    A beat from before the node became Unknown proves nothing: host and kubelet may have died together.
    """
    node = situation.node
    if node is None or node.ready_since is None:
        return
    if node.kubevirt_heartbeat is not None and node.kubevirt_heartbeat > node.ready_since and _fresh(situation):
        raw = cut_member(node.raw, "metadata", "annotations", "kubevirt.io/heartbeat")
        yield Evidence(f"cluster/nodes.json {node.name} heartbeat", raw or node.kubevirt_heartbeat.isoformat())
    for event in situation.facts.events.value or ():
        if event.host == node.name and event.at is not None and event.at > node.ready_since:
            yield Evidence(
                f"cluster/events.json {event.kind}/{event.name}", cut_member(event.raw, "message") or event.message
            )
            return
