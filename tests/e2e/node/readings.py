"""What an object of the API says. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]


def ready_condition(node: Object | None) -> Object:
    conditions = (node or {}).get("status", {}).get("conditions", [])
    return next((it for it in conditions if it["type"] == "Ready"), {})


def ready_status(node: Object | None) -> str:
    """Give the status of the condition Ready: True, False, Unknown, or "" where there is none."""
    return str(ready_condition(node).get("status", ""))


def heartbeat(node: Object | None) -> float:
    """Give the Unix time at which the kubelet last spoke for the node, 0 for never."""
    text = ready_condition(node).get("lastHeartbeatTime")
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp() if text else 0.0


def taints(node: Object | None) -> set[tuple[str, str]]:
    """Give the taints as (key, effect)."""
    return {(taint["key"], taint["effect"]) for taint in (node or {}).get("spec", {}).get("taints", [])}


def app_of(pod: Object) -> str:
    return str(pod["metadata"].get("labels", {}).get("app", ""))


def is_going(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_over(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Failed", "Succeeded")


def is_running(pod: Object) -> bool:
    ready = any(it["type"] == "Ready" and it["status"] == "True" for it in pod["status"].get("conditions", []))
    return ready and pod["status"].get("phase") == "Running" and not is_going(pod)
