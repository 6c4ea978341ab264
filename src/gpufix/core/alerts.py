"""Alerts that would have told of an incident earlier: examples for Prometheus, read from data. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import yaml


@dataclass(frozen=True, slots=True)
class Alert:
    """An alerting rule. ``lasts``: its ``for``. ``causes`` empty: of any. ``source`` says what is measured."""

    name: str
    expr: str
    lasts: str
    needs: str
    source: str
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Alerts:
    """``no_metric``: root causes that no widely used metric tells of."""

    all: tuple[Alert, ...]
    no_metric: frozenset[str]

    def telling_of(self, cause: str) -> tuple[Alert, ...]:
        """Those for any incident, and those for root cause ``cause``."""
        return tuple(one for one in self.all if not one.causes or cause in one.causes)


def load_alerts(text: str) -> Alerts:
    """The text of alerts.yml. Raises KeyError or ValueError where it is not as that file says: a defect of gpufix."""
    data = yaml.safe_load(text)
    if data["version"] != 1:
        raise ValueError(f"alerts of version {data['version']}")
    alerts = (
        Alert(one["alert"], one["expr"], one["for"], one["needs"], one["source"], tuple(one.get("causes", ())))
        for one in data["alerts"]
    )
    return Alerts(tuple(alerts), frozenset(data["no_metric"]))


def as_rules(alerts: tuple[Alert, ...]) -> str:
    """A file of Prometheus' alerting rules. Nothing of the incident is in it: it is for every node."""
    rules = [{"alert": one.name, "expr": one.expr, "for": one.lasts} for one in alerts]
    data = {"groups": [{"name": "gpufix-examples", "rules": rules}]}
    return str(yaml.safe_dump(data, sort_keys=False, width=1000)).rstrip("\n")
