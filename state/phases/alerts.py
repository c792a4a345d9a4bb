"""Alerts: a limit is near, and how much time is left to react (S9, S8, B4, S10).

Each watched level has a limit: spool usage of a queue, a VPN and the broker, spool files of the
broker, unacknowledged messages of a flow and of the broker. An alert is set when the level reaches
the high percentage of the limit, and cleared when it falls below the clear percentage. Between the
two it stays as it is, so it is not repeated. A step compares the levels of what it touched at its
end.

The time to react is the room below the limit, divided by the growth rate over the last 30 to 60 s.
Growth after a longer pause counts as growth within 60 s: a time that is too short is better than
one that is too long. It is None if the level does not grow or the rate is not known yet.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...definitions import QueueDefinition, SystemLimits, VpnLimits
from ...protocol.outputs import Alert
from ..queue.broker import Broker
from ..queue.queue import Queue

WINDOW_MS = 60_000

Marks = list[list[int]]  # at most two of [time, level, …], the older one first


def is_over(level: int, limit: int, high: float, clear: float, before: bool) -> bool:
    """Whether an alert is set. high, clear: percent of the limit. Without a limit it never is."""
    if limit <= 0 or level <= 0:
        return False
    return level * 100 >= (clear if before else high) * limit


def time_to_react_s(limit: int, level: int, per_second: float | None) -> float | None:
    """Seconds until a level reaches its limit at a rate; None if it does not grow."""
    if per_second is None or per_second <= 0:
        return None
    return max(limit - level, 0) / per_second


def rate(marks: Marks, now: int, column: int, level: int) -> float | None:
    """How fast a level grows per second. column: of the level in the marks."""
    if not marks or now <= marks[0][0]:
        return None
    elapsed_ms = min(now - marks[0][0], WINDOW_MS)
    return (level - marks[0][column + 1]) * 1000 / elapsed_ms


def mark(marks: Marks, now: int, levels: tuple[int, ...]) -> None:
    """Remember levels for `rate`, at most once per half window."""
    if not marks or now - marks[-1][0] >= WINDOW_MS // 2:
        marks.append([now, *levels])
        del marks[:-2]


def watch(broker: Broker, queues: list[Queue]) -> None:
    """Set and clear the alerts of everything that this step touched. queues: in order."""
    for queue in queues:
        if queue.header.faulted:
            continue
        broker.at = queue
        if queue.dropped or queue.header.deleted:
            _clear_all(broker, queue)
        else:
            _watch_queue(broker, queue)
    broker.at = None
    header = broker.header
    if header.vpn_limits:
        vpns = {q.definition.vpn for q in queues if not q.header.faulted}
        if broker.reconfigured:
            vpns = set(header.vpns)
        for name in sorted(vpns, key=header.vpns.__getitem__):
            _watch_vpn(broker, name)
    if header.vpns:
        _watch_broker(broker)


class Level(NamedTuple):
    """A watched level. settings: have its thresholds, in percent of the limit; marks, column: where
    its earlier values are."""

    what: str
    settings: QueueDefinition | SystemLimits | VpnLimits
    level: int
    limit: int
    marks: Marks
    column: int


def _compare(
    broker: Broker, one: Level, is_set: bool, vpn: str, queue: str = "", **more: Any
) -> bool:
    """Set or clear a level's alert if that is due; returns whether it is set now."""
    high = getattr(one.settings, f"{one.what}_high_percent")
    clear = getattr(one.settings, f"{one.what}_clear_percent")
    over = is_over(one.level, one.limit, high, clear, is_set)
    if over == is_set:
        return over
    details: dict[str, Any] = {
        **more, "level": one.level, "limit": one.limit,
        "percent": round(one.level * 100 / one.limit, 1) if one.limit else 0.0,
        "threshold_percent": high if over else clear,
    }  # fmt: skip
    if over:
        per_second = rate(one.marks, broker.now, one.column, one.level)
        left = time_to_react_s(one.limit, one.level, per_second)
        details["per_second"] = None if per_second is None else round(per_second, 3)
        details["time_to_react_s"] = None if left is None else round(left, 1)
    event = f"{one.what}_high" if over else f"{one.what}_cleared"
    broker.event(event, vpn, queue, **details)
    broker.emit(Alert(event, vpn, queue, broker.now, details))
    return over


def _compare_in(
    alerts: list[str], key: str, broker: Broker, one: Level, vpn: str, queue: str = "", **more: Any
) -> None:
    """Like `_compare`, for an alert that is set while its key is in a list."""
    before = key in alerts
    over = _compare(broker, one, before, vpn, queue, **more)
    if over and not before:
        alerts.append(key)
    elif before and not over:
        alerts.remove(key)


# ---------------------------------------------------------------- queues and their flows


def level_of(queue: Queue) -> tuple[int, int, str, int]:
    """A queue's level, limit, unit and column in its marks: in bytes, or in messages if that limit
    is nearer."""
    header = queue.header
    limit, most = header.definition.max_spool_usage, None
    if limit:
        most = header.definition.max_spool_messages
    if most is not None and header.depth * limit > header.bytes * most:
        return header.depth, most, "messages", 1
    return header.bytes, limit, "bytes", 0


def _watch_queue(broker: Broker, queue: Queue) -> None:
    header = queue.header
    d = header.definition
    level, limit, unit, column = level_of(queue)
    if header.usage_high or level * 100 >= d.spool_usage_high_percent * limit:  # a cheap first test
        usage = Level("spool_usage", d, level, limit, header.marks, column)
        header.usage_high = _compare(
            broker, usage, header.usage_high, d.vpn, d.name, scope="queue", unit=unit
        )
    most = d.delivered_unacked_high_percent * d.max_delivered_unacked_per_flow
    if header.flows_high or header.leased * 100 >= most:
        _watch_flows(broker, queue)
    mark(header.marks, broker.now, (header.bytes, header.depth, header.leased))


def _watch_flows(broker: Broker, queue: Queue) -> None:
    """Watch the flows of consumers (`max_delivered_unacked_per_flow`, B4). A flow that has ended is
    no longer high."""
    header, d, consumers = queue.header, queue.definition, queue.consumers
    limit = d.max_delivered_unacked_per_flow
    flows = [(one.id, one.name, one.held) for one in consumers.unwatched(d)]
    flows += [(flow, flow, 0) for flow in header.flows_high if flow not in consumers.by_id]
    for flow, name, held in flows:
        one = Level("delivered_unacked", d, held, limit, header.marks, 2)
        _compare_in(
            header.flows_high, flow, broker, one, d.vpn, d.name,
            scope="flow", subscription=flow, consumer=name,
        )  # fmt: skip


def _clear_all(broker: Broker, queue: Queue) -> None:
    """Clear the alerts of a deleted queue."""
    header, d = queue.header, queue.definition
    usage = Level("spool_usage", d, 0, d.max_spool_usage, [], 0)
    header.usage_high = _compare(
        broker, usage, header.usage_high, d.vpn, d.name, scope="queue", unit="bytes", why="deleted"
    )
    unacked = Level("delivered_unacked", d, 0, d.max_delivered_unacked_per_flow, [], 0)
    for flow in list(header.flows_high):
        _compare_in(
            header.flows_high, flow, broker, unacked, d.vpn, d.name,
            scope="flow", subscription=flow, why="deleted",
        )  # fmt: skip


# ---------------------------------------------------------------- VPNs and the broker


def _watch_vpn(broker: Broker, name: str) -> None:
    header = broker.header
    number = header.vpns[name]
    limits = header.vpn_limits.get(name)
    key = f"vpn:{number}"
    if limits is None or (limits.max_spool_usage is None and key not in header.alerts):
        return
    level, limit = broker.spool.vpn_bytes.get(number, 0), limits.max_spool_usage or 0
    marks = header.marks.setdefault(key, [])
    usage = Level("spool_usage", limits, level, limit, marks, 0)
    _compare_in(header.alerts, key, broker, usage, name, scope="vpn")
    if limit:
        mark(marks, broker.now, (level,))
    else:
        del header.marks[key]


def _watch_broker(broker: Broker) -> None:
    header, system = broker.header, broker.header.system
    marks = header.marks.setdefault("broker", [])
    levels = used, files, unacked = broker.spool.bytes, broker.spool.files_in_use(), broker.unacked
    if header.alerts or not (
        used * 100 < system.spool_usage_high_percent * system.max_spool_usage
        and files * 100 < system.spool_files_high_percent * system.max_spool_files
        and unacked * 100 < system.delivered_unacked_high_percent * system.max_delivered_unacked
    ):  # seldom
        vpn = next(iter(header.vpns))  # its journal has the events of the whole broker
        limits = system.max_spool_usage, system.max_spool_files, system.max_delivered_unacked
        names = "spool_usage", "spool_files", "delivered_unacked"
        for column, what in enumerate(names):
            one = Level(what, system, levels[column], limits[column], marks, column)
            _compare_in(header.alerts, what, broker, one, vpn, scope="broker")
    mark(marks, broker.now, levels)
