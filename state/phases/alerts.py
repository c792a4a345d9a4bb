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

from typing import Any

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


def rate(marks: Marks, now: int, index: int, level: int) -> float | None:
    """How fast a level grows per second. index: of the level in the marks."""
    if not marks or now <= marks[0][0]:
        return None
    elapsed_ms = min(now - marks[0][0], WINDOW_MS)
    return (level - marks[0][index + 1]) * 1000 / elapsed_ms


def mark(marks: Marks, now: int, *levels: int) -> None:
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
        vpns = {q.header.vpn_number for q in queues if not q.header.faulted}
        for number in sorted(header.vpns.values() if broker.reconfigured else vpns):
            _watch_vpn(broker, number)
    if header.vpns:
        _watch_broker(broker)


def _emit_alert(
    broker: Broker, what: str, over: bool, vpn: str, queue: str, level: int, limit: int,
    percent: float, marked: tuple[Marks, int], **more: Any,
) -> None:  # fmt: skip
    """Emit an alert. percent: the threshold that was crossed; marked: its marks, and the index of
    its level there."""
    share = round(level * 100 / limit, 1) if limit else 0.0
    details: dict[str, Any] = {
        **more, "level": level, "limit": limit, "percent": share, "threshold_percent": percent,
    }  # fmt: skip
    if over:
        marks, index = marked
        per_second = rate(marks, broker.now, index, level)
        left = time_to_react_s(limit, level, per_second)
        details["per_second"] = None if per_second is None else round(per_second, 3)
        details["time_to_react_s"] = None if left is None else round(left, 1)
    event = f"{what}_high" if over else f"{what}_cleared"
    broker.event(event, vpn, queue, **details)
    broker.emit(Alert(event, vpn, queue, broker.now, details))


# ---------------------------------------------------------------- queues and their flows


def level_of(queue: Queue) -> tuple[int, int, str, int]:
    """A queue's level, limit, unit and index in its marks: in bytes, or in messages if that limit
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
    level, limit, unit, index = level_of(queue)
    high, clear = d.spool_usage_high_percent, d.spool_usage_clear_percent
    before = header.usage_high
    over = before or level * 100 >= high * limit  # a cheap first test
    if over and before != (over := is_over(level, limit, high, clear, before)):
        header.usage_high = over
        _emit_alert(
            broker, "spool_usage", over, d.vpn, d.name, level, limit,
            high if over else clear, (header.marks, index), scope="queue", unit=unit,
        )  # fmt: skip
    most = d.delivered_unacked_high_percent * d.max_delivered_unacked_per_flow
    if header.flows_high or header.leased * 100 >= most:
        _watch_flows(broker, queue)
    mark(header.marks, broker.now, header.bytes, header.depth, header.leased)


def _watch_flows(broker: Broker, queue: Queue) -> None:
    """Watch the flows of consumers (`max_delivered_unacked_per_flow`, B4). A flow that has ended is
    no longer high."""
    header, d = queue.header, queue.definition
    limit = d.max_delivered_unacked_per_flow
    high, clear = d.delivered_unacked_high_percent, d.delivered_unacked_clear_percent
    consumers = queue.consumers
    flows = [(one.id, one.name, one.held) for one in consumers.unwatched(d)]
    flows += [(flow, flow, 0) for flow in header.flows_high if flow not in consumers.by_id]
    for flow, name, level in flows:
        before = flow in header.flows_high
        over = is_over(level, limit, high, clear, before)
        if over == before:
            continue
        if over:
            header.flows_high.append(flow)
        else:
            header.flows_high.remove(flow)
        _emit_alert(
            broker, "delivered_unacked", over, d.vpn, d.name, level, limit,
            high if over else clear, (header.marks, 2),
            scope="flow", subscription=flow, consumer=name,
        )  # fmt: skip


def _clear_all(broker: Broker, queue: Queue) -> None:
    """Clear the alerts of a deleted queue."""
    header, d = queue.header, queue.definition
    if header.usage_high:
        _emit_alert(
            broker, "spool_usage", False, d.vpn, d.name, 0, d.max_spool_usage,
            d.spool_usage_clear_percent, ([], 0), scope="queue", unit="bytes", why="deleted",
        )  # fmt: skip
    for flow in header.flows_high:
        _emit_alert(
            broker, "delivered_unacked", False, d.vpn, d.name, 0,
            d.max_delivered_unacked_per_flow, d.delivered_unacked_clear_percent, ([], 0),
            scope="flow", subscription=flow, why="deleted",
        )  # fmt: skip


# ---------------------------------------------------------------- VPNs and the broker


def _watch_vpn(broker: Broker, number: int) -> None:
    header = broker.header
    name = broker.vpn_name(number)
    limits = header.vpn_limits.get(name)
    key = f"vpn:{number}"
    if limits is None or (limits.max_spool_usage is None and key not in header.alerts):
        return
    level, limit = broker.spool.vpn_bytes.get(number, 0), limits.max_spool_usage or 0
    _watch_one(
        broker, key, "spool_usage", "vpn", name, level, limit,
        limits.spool_usage_high_percent, limits.spool_usage_clear_percent,
        (header.marks.setdefault(key, []), 0),
    )  # fmt: skip
    if limit:
        mark(header.marks[key], broker.now, level)
    else:
        del header.marks[key]


def _watch_broker(broker: Broker) -> None:
    header, system = broker.header, broker.header.system
    marks = header.marks.setdefault("broker", [])
    files, unacked = broker.spool.files_in_use(), broker.unacked
    if not header.alerts and (
        broker.spool.bytes * 100 < system.spool_usage_high_percent * system.max_spool_usage
        and files * 100 < system.spool_files_high_percent * system.max_spool_files
        and unacked * 100 < system.delivered_unacked_high_percent * system.max_delivered_unacked
    ):
        mark(marks, broker.now, broker.spool.bytes, files, unacked)
        return  # most often
    vpn = next(iter(header.vpns))  # its journal has the events of the whole broker
    _watch_one(
        broker, "spool_usage", "spool_usage", "broker", vpn,
        broker.spool.bytes, system.max_spool_usage,
        system.spool_usage_high_percent, system.spool_usage_clear_percent, (marks, 0),
    )  # fmt: skip
    _watch_one(
        broker, "spool_files", "spool_files", "broker", vpn,
        files, system.max_spool_files,
        system.spool_files_high_percent, system.spool_files_clear_percent, (marks, 1),
    )  # fmt: skip
    _watch_one(
        broker, "delivered_unacked", "delivered_unacked", "broker", vpn,
        unacked, system.max_delivered_unacked,
        system.delivered_unacked_high_percent, system.delivered_unacked_clear_percent, (marks, 2),
    )  # fmt: skip
    mark(marks, broker.now, broker.spool.bytes, files, unacked)


def _watch_one(
    broker: Broker, key: str, what: str, scope: str, vpn: str, level: int, limit: int,
    high: float, clear: float, marked: tuple[Marks, int],
) -> None:  # fmt: skip
    alerts = broker.header.alerts
    before = key in alerts
    over = is_over(level, limit, high, clear, before)
    if over == before:
        return
    if over:
        alerts.append(key)
    else:
        alerts.remove(key)
    percent = high if over else clear
    _emit_alert(broker, what, over, vpn, "", level, limit, percent, marked, scope=scope)
