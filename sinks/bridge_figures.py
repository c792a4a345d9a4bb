"""What is known of the bridges, as metrics: what waits, what is on its way, who holds it (H2).

A bridge may be held by any number of endpoints, and their names are the far end's: so many of them
as hold it for longest have series of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from . import metric_table as table

BRIDGES_MAX = 100  # with series of their own: those with most that waits
ENDPOINTS_MAX = 5  # of each


def bridge_families(bridges: Sequence[Mapping[str, Any]]) -> Iterator[Family]:
    """The metrics of bridges, as `describe_bridge` gives them."""
    most = sorted(bridges, key=lambda b: (-b.get("waiting", 0), b["vpn"], b["name"]))[:BRIDGES_MAX]
    for metric in table.of(table.BRIDGE):
        if metric.labels == table.BY_NAME["bridge_blocked_seconds"].labels:
            family: Any = GaugeMetricFamily(metric.family, metric.text, labels=metric.labels)
            for bridge in most:
                for one in bridge["blocked"][:ENDPOINTS_MAX]:
                    family.add_metric((*_place(bridge), one["endpoint"] or ""), one[metric.figure])
        else:
            kind = CounterMetricFamily if metric.kind == table.COUNTER else GaugeMetricFamily
            family = kind(metric.family, metric.text, labels=metric.labels)
            for bridge in most:
                value = _value(bridge, metric.figure)
                if value is not None:
                    family.add_metric(_place(bridge), value)
        yield family


def _place(bridge: Mapping[str, Any]) -> tuple[str, str, str]:
    """The broker that has its end, its VPN, its name."""
    broker = bridge["to"] if "://" in bridge["from"] else bridge["from"]
    return broker, bridge["vpn"], bridge["name"]


def _value(bridge: Mapping[str, Any], figure: str) -> float | None:
    """None: this end of a bridge has no such figure."""
    if figure == "state":
        return float(bridge["state"] == "waiting")
    if figure == "unanswered_s":
        return bridge[figure] or 0.0 if figure in bridge else None
    return bridge.get(figure)
