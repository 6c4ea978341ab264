"""The marks of others on a node: which are known, what each means, and that each says where it is from."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots_for_tests import case, facts, listed, node

from gpufix.core.marks import Mark, load_remediators, marks_of
from gpufix.core.parse import parse_snapshot
from gpufix.core.render.mark_text import mark_lines
from gpufix.core.render.terminal import Style
from gpufix.core.signatures import SignatureError
from gpufix.model import Evidence, NodeFacts
from gpufix.session import read_remediators
from gpufix.text import safe

SIGNATURES = read_remediators()


def read(**parts: Any) -> NodeFacts:
    """A node of JSON, with ``labels``, ``annotations``, ``taints``, ``unschedulable`` and ``conditions``."""
    body = node()
    for part in ("labels", "annotations"):
        body["metadata"][part] = parts.get(part, {})
    body["spec"] = {key: parts[key] for key in ("taints", "unschedulable") if key in parts}
    body["status"].setdefault("conditions", []).extend(parts.get("conditions", []))
    found = facts(cluster_nodes=listed(body)).node.value
    assert found is not None
    return found


def taint(key: str, value: str = "", effect: str = "NoSchedule", added: str = "") -> dict[str, str]:
    entry = {"key": key, "value": value, "effect": effect, "timeAdded": added}
    return {name: text for name, text in entry.items() if text}


SENTINEL = "dgxc.nvidia.com/nvsentinel-state"
UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
SINCE = "2026-12-01T04:11:00Z"
KNOWN: dict[str, tuple[dict[str, Any], str, str, bool]] = {
    "to be deleted": (
        {"taints": [taint("ToBeDeletedByClusterAutoscaler", "1764663804")]},
        "cluster-autoscaler", "cluster-autoscaler is about to delete this node", True,
    ),
    "unneeded": (
        {"taints": [taint("DeletionCandidateOfClusterAutoscaler", "1764663804", "PreferNoSchedule")]},
        "cluster-autoscaler", "holds this node for unneeded", False,
    ),
    "karpenter": ({"taints": [taint("karpenter.sh/disrupted")]}, "Karpenter", "then deletes it", True),
    "karpenter of old": (
        {"taints": [taint("karpenter.sh/disruption", "disrupting")]}, "Karpenter", "then deletes it", True,
    ),
    "shut down": (
        {"taints": [taint("node.cloudprovider.kubernetes.io/shutdown")]}, "cloud provider", "is shut down", True,
    ),
    "self node remediation": (
        {"taints": [taint("remediation.medik8s.io/self-node-remediation")]},
        "Self Node Remediation", "is fencing this node", True,
    ),
    "self node remediation of old": (
        {"taints": [taint("medik8s.io/remediation", "self-node-remediation", "NoExecute")]},
        "Self Node Remediation", "is fencing this node", True,
    ),
    "fence agents": (
        {"taints": [taint("remediation.medik8s.io/fence-agents-remediation")]},
        "Fence Agents Remediation", "power cycle", True,
    ),
    "fence agents of old": (
        {"taints": [taint("medik8s.io/fence-agents-remediation", effect="NoExecute")]},
        "Fence Agents Remediation", "power cycle", True,
    ),
    "maintenance": ({"taints": [taint("medik8s.io/drain")]}, "Node Maintenance Operator", "NodeMaintenance", True),
    "out of service": (
        {"taints": [taint("node.kubernetes.io/out-of-service", "nodeshutdown", "NoExecute")]},
        "out-of-service", "deleted by force", True,
    ),
    "kured": (
        {"annotations": {"weave.works/kured-reboot-in-progress": SINCE}},
        "kured", f"has wanted to reboot this node since {SINCE}", True,
    ),
    "kured, renamed": (
        {"annotations": {"kured.dev/kured-reboot-in-progress": SINCE}}, "kured", "has wanted to reboot", True,
    ),
    "kured, before": (
        {"annotations": {"weave.works/kured-most-recent-reboot-needed": SINCE}}, "kured", f"at {SINCE}", False,
    ),
    "sentinel": ({"labels": {SENTINEL: "remediating"}}, "NVSentinel", "now at remediating", True),
    "sentinel, first": ({"labels": {SENTINEL: "quarantined"}}, "NVSentinel", "now at quarantined", True),
    "sentinel, last": ({"labels": {SENTINEL: "remediation-failed"}}, "NVSentinel", "with remediation-failed", False),
    "driver": ({"labels": {UPGRADE: "drain-required"}}, "GPU Operator", "now at drain-required", False),
    "driver, failed": ({"labels": {UPGRADE: "upgrade-failed"}}, "GPU Operator", "has failed", False),
    "kubevirt": ({"taints": [taint("kubevirt.io/drain", "draining")]}, "KubeVirt", "move the VMs off", False),
    "draino": ({"conditions": [{"type": "DrainScheduled", "status": "True"}]}, "Draino", "going to drain", False),
    "a cordon with a reason": (
        {"unschedulable": True, "labels": {"k8saas.nvidia.com/cordon-reason": "GPU-fatal-error-ruleset"}},
        "cordon", "the reason given is: GPU-fatal-error-ruleset", False,
    ),
    "a cordon since": (
        {"unschedulable": True, "taints": [taint("node.kubernetes.io/unschedulable", added=SINCE)]},
        "cordon", "cordoned since 2026-12-01 04:11:00 UTC by somebody", False,
    ),
    "a cordon": ({"unschedulable": True}, "cordon", "cordoned by somebody", False),
}  # fmt: skip


@pytest.mark.parametrize(("parts", "who", "words", "stops"), KNOWN.values(), ids=KNOWN)
def test_each_mark_is_told_with_the_text_that_says_so(parts: dict[str, Any], who: str, words: str, stops: bool) -> None:
    found = read(**parts)
    [mark] = marks_of(found, SIGNATURES)
    assert (mark.who, mark.stops) == (who, stops)
    assert words in mark.text
    assert "\n" not in mark.text
    assert mark.evidence.source.startswith("cluster/nodes.json omen2 ")
    assert mark.evidence.excerpt in found.raw


def test_every_signature_is_met_by_one_of_these_tests() -> None:
    met = set()
    for parts, *_ in KNOWN.values():
        for number, signature in enumerate(SIGNATURES):
            if any(mark.who == signature.who for mark in marks_of(read(**parts), (signature,))):
                met.add(number)
    assert met == set(range(len(SIGNATURES)))


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"labels": {UPGRADE: "upgrade-done"}},
        {"labels": {UPGRADE: "upgrade-required"}},
        {"labels": {"nvidia.com/gpu.workload.config": "container"}},
        {"labels": {"k8saas.nvidia.com/cordon-reason": "of a cordon that is over"}},
        {"taints": [taint("node.kubernetes.io/unreachable", effect="NoExecute"), taint("karpenter.sh/disruptedx")]},
        {"taints": [taint("karpenter.sh/disruption", "other")]},
        {"conditions": [{"type": "DrainScheduled", "status": "False"}]},
        {"annotations": {"weave.works/kured-node-lock": "{}"}},
    ],
)
def test_what_is_no_mark(parts: dict[str, Any]) -> None:
    assert marks_of(read(**parts), SIGNATURES) == ()


def test_those_that_stop_come_first() -> None:
    found = read(
        labels={UPGRADE: "drain-required"},
        annotations={"weave.works/kured-reboot-in-progress": SINCE, "kured.dev/kured-reboot-in-progress": SINCE},
        taints=[taint("DeletionCandidateOfClusterAutoscaler"), taint("karpenter.sh/disrupted")],
    )
    assert [(mark.who, mark.stops) for mark in marks_of(found, SIGNATURES)] == [
        ("Karpenter", True), ("kured", True), ("cluster-autoscaler", False), ("GPU Operator", False),
    ]  # fmt: skip


def test_a_cordon_that_a_mark_explains_is_not_told_again() -> None:
    found = read(unschedulable=True, labels={SENTINEL: "draining"})
    assert [mark.who for mark in marks_of(found, SIGNATURES)] == ["NVSentinel"]
    found = read(unschedulable=True, taints=[taint("karpenter.sh/disrupted")])
    assert [mark.who for mark in marks_of(found, SIGNATURES)] == ["Karpenter", "cordon"]


def test_a_real_node_has_none() -> None:
    found = parse_snapshot(case("trace-3a-ready")).node.value
    assert found is not None
    assert marks_of(found, SIGNATURES) == ()


@given(
    st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=3),
    st.sampled_from(["weave.works/kured-reboot-in-progress", "x"]),
    st.text(max_size=300),
    st.booleans(),
)
def test_whatever_stands_there_is_one_short_line(others: dict[str, str], key: str, value: str, cordoned: bool) -> None:
    found = NodeFacts("omen2", labels=others, annotations={**others, key: value}, unschedulable=cordoned)
    marks = marks_of(found, SIGNATURES)
    for mark in marks:
        assert len(mark.text) < 250
        assert len(mark.text.splitlines()) == 1
    for line in mark_lines(marks, Style(80)):
        assert safe(line) == line


def test_they_are_shown_as_words() -> None:
    marks = (
        Mark(
            "kured",
            "it reboots",
            Evidence("cluster/nodes.json omen2 annotation k", '"k": "\x1b[31m token=hunter2"'),
            True,
        ),
        Mark("KubeVirt", "it drains", Evidence("here", "there"), False),
    )
    lines = mark_lines(marks, Style(80))
    assert lines[:2] == ["Others at this node", "  stop: it reboots"]
    assert lines[3:] == ["  mind: it drains", "      here | there"]
    assert "\x1b" not in "".join(lines)
    assert "hunter2" not in "".join(lines)
    assert "\x1b[31;1mstop\x1b[0m" in "".join(mark_lines(marks, Style(80, colour=True)))
    assert mark_lines((), Style(80)) == []


def entry(**changes: Any) -> str:
    good = {"who": "w", "where": "taint", "key": "k", "stops": True, "says": "s", "source": "https://x"}
    return json.dumps({"version": 1, "marks": [{**good, **changes}]})


def test_each_signature_says_where_it_is_from() -> None:
    for signature in SIGNATURES:
        assert re.match(r"https://[a-z0-9.]+/\S+", signature.source)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not YAML"),
        ("[]", "version must be 1"),
        ('{"version": 1}', "marks must be a list"),
        ('{"version": 1, "marks": [3]}', "must be a mapping"),
        (entry(more=1), "unknown key more"),
        (entry(who=3), "who must be text"),
        (entry(says="a\nb"), "says must be text on one line"),
        (entry(where="spec"), "where must be one of"),
        (entry(source="a friend"), "source must be an address"),
        (entry(stops="yes"), "must be true or false"),
        (entry(cordoned=1), "must be true or false"),
        (entry(explains="all"), "explains can only be cordon"),
        (entry(key="("), "'('"),
        (entry(value=3), "a pattern must be text"),
    ],
)
def test_signatures_that_are_wrong(text: str, words: str) -> None:
    with pytest.raises(SignatureError) as caught:
        load_remediators(text)
    assert words in str(caught.value)
