"""Metrics of queues and bridges: the most important ones by name, the others as a sum.

An engine may have ten thousand queues, and Prometheus keeps a series for each name it ever saw. So
only some queues have series of their own: half of them the deepest, half those with the most
traffic since the last snapshot. The others are `_other`. A counter must never decrease, so `_other`
keeps the counts of a queue that gets series of its own.

Any number of endpoints may block a bridge (H2), and the other home chooses their names. Those that
have blocked it longest have series.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from . import metric_table as table

BRIDGES_MAX = 100  # bridges that have series: those with the most waiting messages
ENDPOINTS_MAX = 5  # per bridge


Rows = Iterable[tuple[tuple[str, ...], Mapping[str, Any]]]  # labels, and figures by name


def _family(metric: table.Metric, numbers: Mapping[tuple[str, ...], float]) -> Family:
    kind = CounterMetricFamily if metric.kind == table.COUNTER else GaugeMetricFamily
    family = kind(metric.family, metric.text, labels=metric.labels)
    for labels, number in numbers.items():
        family.add_metric(labels, number)
    return family


def _families(metrics: Iterable[table.Metric], rows: Rows) -> Iterator[Family]:
    """A family for each metric: its figure in each row that has it."""
    found = list(rows)
    for metric in metrics:
        known = ((labels, row.get(metric.figure)) for labels, row in found)
        yield _family(metric, {labels: n for labels, n in known if n is not None})


def bridge_families(bridges: Sequence[Mapping[str, Any]]) -> Iterator[Family]:
    """The metrics of bridges. bridges: as `describe_bridge` returns them."""
    most = sorted(bridges, key=lambda b: (-b.get("waiting", 0), b["vpn"], b["name"]))[:BRIDGES_MAX]
    metrics = table.of(table.BRIDGE)
    yield from _families(
        (m for m in metrics if "endpoint" not in m.labels),
        ((_place(bridge), _of_bridge(bridge)) for bridge in most),
    )
    yield from _families(
        (m for m in metrics if "endpoint" in m.labels),
        (
            ((*_place(bridge), one["endpoint"] or ""), one)
            for bridge in most for one in bridge["blocked"][:ENDPOINTS_MAX]
        ),
    )  # fmt: skip


def _place(bridge: Mapping[str, Any]) -> tuple[str, str, str]:
    """A bridge's broker, VPN and name."""
    broker = bridge["to"] if "://" in bridge["from"] else bridge["from"]
    return broker, bridge["vpn"], bridge["name"]


def _of_bridge(bridge: Mapping[str, Any]) -> dict[str, Any]:
    figures = {**bridge, "state": float(bridge["state"] == "waiting")}
    if "unanswered_s" in bridge:
        figures["unanswered_s"] = bridge["unanswered_s"] or 0.0
    return figures


OTHER = "_other"
LANES_MAX = 20  # lanes that have series, per broker and VPN
QueueKey = tuple[str, str, str]  # broker, VPN, queue
_Counts = dict[tuple[str, str], int]  # figure and reason → how many

_LEVELS = [m for m in table.of(table.QUEUE) if m.kind == table.GAUGE and m.figure != "blocked"]
_TOTALS = [m for m in table.of(table.QUEUE) if m.kind == table.COUNTER and m.figure != "refused"]
_BLOCKED, _REFUSED = table.BY_NAME["queue_blocked"], table.BY_NAME["queue_refused_messages"]


@dataclass(slots=True)
class Look:
    """One snapshot of the engine's queues and limits.

    queues: as `describe` returns them, with `broker` if it is not the first one. usage: of each VPN
    of each broker. seconds: the time that it took. time: epoch s. bridges: as `describe_bridge`
    returns them. missing: brokers and VPNs that did not answer, with the reasons.
    """

    queues: list[Mapping[str, Any]] = field(default_factory=list)
    usage: list[Mapping[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    time: float = 0.0
    bridges: list[Mapping[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


class QueueFigures:
    """The metrics of queues. most: the number of queues with series of their own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._named: frozenset[QueueKey] = frozenset()
        self._counts: dict[QueueKey, _Counts] = {}
        self._other: dict[QueueKey, _Counts] = {}
        self._look = Look()
        self._families: list[Family] = []
        self._lock = threading.Lock()

    def place(self, broker: str, vpn: str, queue: str) -> QueueKey:
        """The labels of a queue. Before the first snapshot each queue has its own."""
        place = broker, vpn, queue
        known = self._look.usage and place not in self._named
        return (broker, vpn, OTHER) if known else place

    def seen(self, look: Look) -> None:
        """Set the figures from a snapshot."""
        broker = _broker_of(look)
        found = {(str(q.get("broker", broker)), q["vpn"], q["name"]): q for q in look.queues}
        counts = {place: _counted(queue) for place, queue in found.items()}
        answered = {(usage["broker"]["name"], usage["vpn"]["name"]) for usage in look.usage}
        # Keep the counts of queues whose broker did not answer, or they would be counted twice.
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
        """Add a queue's counts since the last snapshot to `_other`. All counts of a queue that is
        new, or was deleted and defined again, are added."""
        before = self._counts.get(place, {})
        if any(now.get(key, 0) < n for key, n in before.items()):
            before = {}
        sums = self._other.setdefault((*place[:2], OTHER), defaultdict(int))
        for key, n in now.items():
            sums[key] += n - before.get(key, 0)

    # ------------------------------------------------------------ as metrics

    def families(self) -> Iterator[Family]:
        """The metrics of the last snapshot; none before the first. `seen` builds them, so a scrape
        is cheap."""
        yield from self._families

    def _made(self, look: Look) -> Iterator[Family]:
        broker, named = _broker_of(look), self._named
        shown: dict[QueueKey, list[Mapping[str, Any]]] = {}
        for queue in look.queues:
            place = str(queue.get("broker", broker)), queue["vpn"], queue["name"]
            key = place if place in named else (*place[:2], OTHER)
            shown.setdefault(key, []).append(queue)
        dead = _dead(look.queues)
        yield from _families(
            _LEVELS,
            ((p, _joined([_levels(q, dead) for q in queues])) for p, queues in shown.items()),
        )
        every = [(place, queue) for place, queues in shown.items() for queue in queues]
        # the label is the part before the colon in "faulted: …"
        reasons = ((*p, q["blocked"].partition(":")[0]) for p, q in every if q["blocked"])
        yield _family(_BLOCKED, Counter(reasons))
        counts = {place: now for place, now in self._counts.items() if place in named} | self._other
        yield from _families(
            _TOTALS,
            ((p, {figure: n for (figure, _), n in found.items()}) for p, found in counts.items()),
        )
        yield _family(_REFUSED, {
            (*place, reason): n
            for place, found in counts.items() for (_, reason), n in found.items() if reason
        })  # fmt: skip
        yield from bridge_families(look.bridges)
        yield from _limits(look)
        alerts = Counter[tuple[str, ...]](dict.fromkeys(_alerts(look), 1))
        alerts.update((*place, name) for place, queue in every for name in queue["alerts"])
        yield _family(table.BY_NAME["alert"], alerts)
        yield _family(table.BY_NAME["queues"], Counter(place[:2] for place, _ in every))
        single = {
            "queue_series": len(named), "look_seconds": look.seconds, "look_time_seconds": look.time
        }  # fmt: skip
        for name, number in single.items():
            yield _family(table.BY_NAME[name], {(): number})


def _broker_of(look: Look) -> str:
    return str(look.usage[0]["broker"]["name"]) if look.usage else "broker-0"


def _counted(queue: Mapping[str, Any]) -> _Counts:
    counters = queue["counters"]
    out: _Counts = {(m.figure, ""): counters.get(m.figure, 0) for m in _TOTALS}
    for name in ("rejected", "discarded_on_entry"):
        for reason, n in (counters.get(name) or {}).items():
            out[_REFUSED.figure, reason] = out.get((_REFUSED.figure, reason), 0) + n
    return out


def _dead(queues: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """The queues that are the dead message queue of others."""
    return {(q["vpn"], dmq) for q in queues if (dmq := q["definition"].get("dead_message_queue"))}


def _levels(queue: Mapping[str, Any], dead: set[tuple[str, str]]) -> dict[str, float]:
    return {
        **{metric.figure: queue.get(metric.figure) or 0 for metric in _LEVELS},
        "consumers": len(queue["consumers"]),
        "dead": queue["depth"] if (queue["vpn"], queue["name"]) in dead else 0,
        "max_spool_usage": queue["definition"]["max_spool_usage"] or 0,
    }


def _joined(queues: list[dict[str, float]]) -> dict[str, float]:
    """Combine the figures of several queues."""
    joined = {figure: sum(queue[figure] for queue in queues) for figure in queues[0]}
    return joined | {"oldest_age_s": max(queue["oldest_age_s"] for queue in queues)}


def _limits(look: Look) -> Iterator[Family]:
    """The lanes whose messages have waited longest for queues at other brokers, then levels and
    limits of brokers and VPNs."""
    each = {(usage["broker"]["name"], usage["vpn"]["name"]): usage for usage in look.usage}
    lanes = (
        ((*place, lane["queue"], lane["to"]), {**lane, "for_s": lane["for_s"] or 0.0})
        for place, usage in each.items() for lane in usage.get("lanes", ())[:LANES_MAX]
    )  # fmt: skip
    yield from _families(table.of(table.LANES), lanes)
    brokers = {place[:1]: usage["broker"] for place, usage in each.items()}
    yield from _families(table.of(table.USAGE_BROKER), brokers.items())
    vpns = {place: usage["vpn"] for place, usage in each.items()}
    refused = table.BY_NAME["vpn_refused_messages"]
    levels = (metric for metric in table.of(table.USAGE_VPN) if metric is not refused)
    yield from _families(levels, vpns.items())
    yield _family(
        refused,
        {(*place, why): n for place, vpn in vpns.items() for why, n in vpn["refused"].items()},
    )


def _alerts(look: Look) -> Iterator[tuple[str, str, str, str]]:
    for usage in look.usage:
        broker, vpn = usage["broker"], usage["vpn"]
        yield from ((broker["name"], "", "", name) for name in broker["alerts"])
        yield from ((broker["name"], vpn["name"], "", name) for name in vpn["alerts"])
