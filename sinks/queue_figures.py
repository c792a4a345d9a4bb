"""Metrics of queues and bridges: the most important ones by name, the others as a sum.

An engine may have ten thousand queues, and Prometheus keeps a series for each name it ever saw. So
only some queues have series of their own: half of them the deepest, half those with the most
traffic since the look before. The others are `_other`. A counter must never fall. So `_other` grows
by what its queues counted while they were in it, and a queue that gets its own name takes nothing
away.

Any number of endpoints may block a bridge (H2), and the other home names them. Those that block it
longest have series.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    """A figure of a bridge; None if this end does not have it."""
    if figure == "state":
        return float(bridge["state"] == "waiting")
    if figure == "unanswered_s":
        return bridge[figure] or 0.0 if figure in bridge else None
    return bridge.get(figure)


OTHER = "_other"
LANES_MAX = 20  # of each broker and VPN, with series of their own
QueueKey = tuple[str, str, str]  # broker, VPN, queue
_Counts = dict[tuple[str, str], int]  # metric and reason → how many

_LEVELS = [m for m in table.of(table.QUEUE) if m.kind == table.GAUGE and m.figure != "blocked"]
_TOTALS = [m for m in table.of(table.QUEUE) if m.kind == table.COUNTER and m.figure != "refused"]
_BLOCKED, _REFUSED = table.BY_NAME["queue_blocked"], table.BY_NAME["queue_refused_messages"]


@dataclass(slots=True)
class Look:
    """One look at the engine.

    queues: as `describe` returns them, with `broker` if it is not the first one. usage: of each VPN
    of each broker. seconds: how long it took. time: epoch s. bridges: as `describe_bridge` gives
    them. missing: brokers and VPNs that did not answer, and why.
    """

    queues: list[Mapping[str, Any]] = field(default_factory=list)
    usage: list[Mapping[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    time: float = 0.0
    bridges: list[Mapping[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


class QueueFigures:
    """The metrics of queues. most: how many have series of their own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._named: frozenset[QueueKey] = frozenset()
        self._counts: dict[QueueKey, _Counts] = {}
        self._other: dict[QueueKey, _Counts] = {}
        self._look = Look()
        self._families: list[Family] = []
        self._lock = threading.Lock()

    def place(self, broker: str, vpn: str, queue: str) -> QueueKey:
        """The labels of a queue. Before the first look each has its own."""
        place = broker, vpn, queue
        known = self._look.usage and place not in self._named
        return (broker, vpn, OTHER) if known else place

    def seen(self, look: Look) -> None:
        """Take the figures of a look."""
        broker = _broker_of(look)
        found = {(str(q.get("broker", broker)), q["vpn"], q["name"]): q for q in look.queues}
        counts = {place: _counted(queue) for place, queue in found.items()}
        answered = {(usage["broker"]["name"], usage["vpn"]["name"]) for usage in look.usage}
        # Keep the counts of queues that did not answer this time, or they would count again later.
        unseen = {p: known for p, known in self._counts.items() if p[:2] not in answered}
        with self._lock:
            self._named = self._choose(found, counts)
            for place, now in counts.items():
                if place not in self._named:
                    self._add(place, now)
            self._counts, self._look = unseen | counts, look
            self._families = list(self._made(look)) if look.usage else []

    def _choose(
        self, found: Mapping[QueueKey, Mapping[str, Any]], counts: Mapping[QueueKey, _Counts]
    ) -> frozenset[QueueKey]:
        able = [place for place in found if place[2] != OTHER]
        if len(able) <= self._most:
            return frozenset(able)

        def moved(place: QueueKey) -> int:
            before = self._counts.get(place, {})
            return sum(n - before.get(key, 0) for key, n in counts[place].items())

        deepest = sorted(able, key=lambda p: (-found[p]["depth"], p))[: (self._most + 1) // 2]
        busiest = sorted(set(able) - set(deepest), key=lambda p: (-moved(p), p))
        return frozenset(deepest + busiest[: self._most - len(deepest)])

    def _add(self, place: QueueKey, now: _Counts) -> None:
        """Add to `_other` what a queue counted since the last look. A queue that is new, or was
        deleted and defined again, counts completely."""
        before = self._counts.get(place, {})
        if any(now.get(key, 0) < n for key, n in before.items()):
            before = {}
        sums = self._other.setdefault((*place[:2], OTHER), defaultdict(int))
        for key, n in now.items():
            sums[key] += n - before.get(key, 0)

    # ------------------------------------------------------------ as metrics

    def families(self) -> Iterator[Family]:
        """The metrics of the last look; none before the first. They are built with the look, so a
        scrape is cheap."""
        yield from self._families

    def _made(self, look: Look) -> Iterator[Family]:
        broker, named = _broker_of(look), self._named
        shown: dict[QueueKey, list[Mapping[str, Any]]] = {}
        for queue in look.queues:
            place = str(queue.get("broker", broker)), queue["vpn"], queue["name"]
            key = place if place in named else (*place[:2], OTHER)
            shown.setdefault(key, []).append(queue)
        yield from _levels(shown, _dead(look.queues))
        yield _blocked(shown)
        own = {place: counts for place, counts in self._counts.items() if place in named}
        yield from _totals(own | self._other)
        yield from bridge_families(look.bridges)
        yield from _lanes(look)
        yield from _limits(look)
        yield _alerts(look, shown)
        yield GaugeMetricFamily(*_named("queue_series"), value=len(named))
        yield GaugeMetricFamily(*_named("look_seconds"), value=look.seconds)
        yield GaugeMetricFamily(*_named("look_time_seconds"), value=look.time)
        yield _defined(shown)


def _broker_of(look: Look) -> str:
    return str(look.usage[0]["broker"]["name"]) if look.usage else "broker-0"


def _counted(queue: Mapping[str, Any]) -> _Counts:
    counters = queue["counters"]
    out: _Counts = {(m.name, ""): counters.get(m.figure, 0) for m in _TOTALS}
    for name in ("rejected", "discarded_on_entry"):
        for reason, n in (counters.get(name) or {}).items():
            out[_REFUSED.name, reason] = out.get((_REFUSED.name, reason), 0) + n
    return out


def _dead(queues: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """The queues that are the dead message queue of others."""
    return {(q["vpn"], dmq) for q in queues if (dmq := q["definition"].get("dead_message_queue"))}


def _named(name: str) -> tuple[str, str]:
    metric = table.BY_NAME[name]
    return metric.family, metric.text


def _gauge(metric: table.Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.family, metric.text, labels=metric.labels)


def _level(metric: table.Metric, queue: Mapping[str, Any], dead: set[tuple[str, str]]) -> float:
    match metric.figure:
        case "consumers":
            return len(queue["consumers"])
        case "dead":
            return queue["depth"] if (queue["vpn"], queue["name"]) in dead else 0
        case "max_spool_usage":
            return queue["definition"]["max_spool_usage"] or 0
        case figure:
            return queue[figure] or 0


def _levels(
    shown: Mapping[QueueKey, list[Mapping[str, Any]]], dead: set[tuple[str, str]]
) -> Iterator[Family]:
    for metric in _LEVELS:
        family = _gauge(metric)
        join = max if metric.figure == "oldest_age_s" else sum
        for place, queues in shown.items():
            family.add_metric(place, join(_level(metric, queue, dead) for queue in queues))
        yield family


def _blocked(shown: Mapping[QueueKey, list[Mapping[str, Any]]]) -> Family:
    family, numbers = _gauge(_BLOCKED), dict[tuple[str, ...], int]()
    for place, queues in shown.items():
        for reason in filter(None, (queue["blocked"] for queue in queues)):
            key = (*place, reason.partition(":")[0])  # "faulted: …" says more, for people
            numbers[key] = numbers.get(key, 0) + 1
    for labels, n in numbers.items():
        family.add_metric(labels, n)
    return family


def _totals(counts: Mapping[QueueKey, _Counts]) -> Iterator[Family]:
    for metric in (*_TOTALS, _REFUSED):
        family = CounterMetricFamily(metric.family, metric.text, labels=metric.labels)
        for place, found in counts.items():
            for (name, reason), n in found.items():
                if name == metric.name:
                    family.add_metric((*place, reason) if metric is _REFUSED else place, n)
        yield family


def _lanes(look: Look) -> Iterator[Family]:
    """Messages that wait at brokers for queues of others; the lanes that wait longest have
    series."""
    each = {(usage["broker"]["name"], usage["vpn"]["name"]): usage for usage in look.usage}
    for metric in table.of(table.LANES):
        family = _gauge(metric)
        for (broker, vpn), usage in each.items():
            for lane in usage.get("lanes", ())[:LANES_MAX]:
                family.add_metric(
                    (broker, vpn, lane["queue"], lane["to"]), lane[metric.figure] or 0.0
                )
        yield family


def _limits(look: Look) -> Iterator[Family]:
    brokers = {usage["broker"]["name"]: usage["broker"] for usage in look.usage}
    for metric in table.of(table.USAGE_BROKER):
        family = _gauge(metric)
        for name, broker in brokers.items():
            family.add_metric((name,), broker[metric.figure])
        yield family
    for metric in table.of(table.USAGE_VPN):
        if metric.figure == "refused":
            continue
        family = _gauge(metric)
        for usage in look.usage:
            name, vpn = usage["broker"]["name"], usage["vpn"]
            if vpn[metric.figure] is not None:
                family.add_metric((name, vpn["name"]), vpn[metric.figure])
        yield family
    refused = table.BY_NAME["vpn_refused_messages"]
    counter = CounterMetricFamily(refused.family, refused.text, labels=refused.labels)
    for usage in look.usage:
        for reason, n in usage["vpn"]["refused"].items():
            counter.add_metric((usage["broker"]["name"], usage["vpn"]["name"], reason), n)
    yield counter


def _alerts(look: Look, shown: Mapping[QueueKey, list[Mapping[str, Any]]]) -> Family:
    family, numbers = _gauge(table.BY_NAME["alert"]), dict[tuple[str, ...], int]()
    for usage in look.usage:
        broker, vpn = usage["broker"], usage["vpn"]
        numbers |= {(broker["name"], "", "", name): 1 for name in broker["alerts"]}
        numbers |= {(broker["name"], vpn["name"], "", name): 1 for name in vpn["alerts"]}
    for place, queues in shown.items():
        for name in (name for queue in queues for name in queue["alerts"]):
            numbers[(*place, name)] = numbers.get((*place, name), 0) + 1
    for labels, n in numbers.items():
        family.add_metric(labels, n)
    return family


def _defined(shown: Mapping[QueueKey, list[Mapping[str, Any]]]) -> Family:
    family, numbers = _gauge(table.BY_NAME["queues"]), dict[tuple[str, str], int]()
    for (broker, vpn, _), queues in shown.items():
        numbers[broker, vpn] = numbers.get((broker, vpn), 0) + len(queues)
    for labels, n in numbers.items():
        family.add_metric(labels, n)
    return family
