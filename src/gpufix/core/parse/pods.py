"""Pods: what they ask for, where they are, what they wait for. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpufix.core.parse.cluster import condition, each, mapping, objects, text, texts
from gpufix.core.parse.jsonraw import Item, read_items
from gpufix.core.parse.times import parse_time
from gpufix.model import Observation, PodFacts, Toleration

_QUANTITY = re.compile(r"(\d+)(k|M|G|Ki|Mi|Gi)?$")
_FACTOR = {"k": 1000, "M": 1000**2, "G": 1000**3, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}


def quantity(value: Any) -> int:
    """A whole Kubernetes quantity: ``"1"``, ``"1k"``. 0 for what is none."""
    match = _QUANTITY.match(text(value))
    return int(match.group(1)) * _FACTOR.get(match.group(2), 1) if match else 0


def parse_pods(path: str, content: str) -> Observation[tuple[PodFacts, ...]]:
    """The pods of ``kubectl get pods -o json``."""
    return Observation.of(each(read_items(path, content), _pod))


def _pod(item: Item) -> PodFacts | None:
    metadata, spec, status = (mapping(item.value.get(part)) for part in ("metadata", "spec", "status"))
    name = text(metadata.get("name"))
    if not name:
        return None
    scheduled = condition(status, "PodScheduled")
    return PodFacts(
        namespace=text(metadata.get("namespace")),
        name=name,
        node=text(spec.get("nodeName")),
        phase=text(status.get("phase")),
        labels=texts(metadata.get("labels")),
        ready=text(condition(status, "Ready").get("status")),
        scheduled=text(scheduled.get("status")),
        scheduled_since=parse_time(scheduled.get("lastTransitionTime")),
        scheduled_message=text(scheduled.get("message")),
        deleting="deletionTimestamp" in metadata,
        requests=_requests(spec),
        node_selector=texts(spec.get("nodeSelector")),
        waiting=tuple(_waiting(status)),
        tolerations=tuple(_toleration(entry) for entry in objects(spec.get("tolerations"))),
        created=parse_time(metadata.get("creationTimestamp")),
        raw=item.raw,
    )


def _requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """Extended resources: those with a domain in their name. For these a limit alone is a request too."""
    asked: dict[str, int] = {}
    for container in objects(spec.get("containers")):
        resources = mapping(container.get("resources"))
        merged = {**mapping(resources.get("limits")), **mapping(resources.get("requests"))}
        for name, amount in merged.items():
            if "/" in name and quantity(amount):
                asked[name] = asked.get(name, 0) + quantity(amount)
    for container in objects(spec.get("initContainers")):
        for name, amount in mapping(mapping(container.get("resources")).get("limits")).items():
            if "/" in name and quantity(amount) > asked.get(name, 0):
                asked[name] = quantity(amount)
    return asked


def _waiting(status: Mapping[str, Any]) -> list[str]:
    """Why containers do not run: ``CrashLoopBackOff``, ``Init:CrashLoopBackOff``, ``Error``."""
    reasons: list[str] = []
    for key, prefix in (("initContainerStatuses", "Init:"), ("containerStatuses", "")):
        for container in objects(status.get(key)):
            state = mapping(container.get("state"))
            waits = text(mapping(state.get("waiting")).get("reason"))
            ended = mapping(state.get("terminated"))
            if waits:
                reasons.append(prefix + waits)
            elif ended and ended.get("exitCode") not in (0, None):
                reasons.append(prefix + (text(ended.get("reason")) or "Error"))
    return reasons


def _toleration(entry: Mapping[str, Any]) -> Toleration:
    operator = text(entry.get("operator")) or "Equal"
    return Toleration(text(entry.get("key")), operator, text(entry.get("value")), text(entry.get("effect")))
