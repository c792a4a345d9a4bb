"""Settling: acknowledge, cancel, reject, renew, return (L1, L5–L11, L13, C7).

Acks name messages by id. The spool's message pages tell the places of these ids in the queue, so
a range of ids is one pass over columns. An ack that has no effect is counted and journaled (L8); an
ack for an id that this queue never held is kept for a while (L9).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..protocol.commands import Ack, Cancel, Reject, Renew, Returned, TransportAck
from ..protocol.errors import Reason
from ..protocol.ids import Ranges, format_ranges, make_id, parse_ranges
from . import deferred, transport
from .active_set import active_rows
from .broker import Broker
from .columns import NEVER, PAGE_BITS, Array
from .dead import bury
from .delivery import matching
from .lifecycle import LEASED
from .queue import Queue, QueuePage, Subscription

IGNORED_MAX = 10_000


def acknowledge(broker: Broker, queue: Queue, command: Ack) -> int:
    """Remove messages; returns how many went. Raises ValueError unless exactly one of ids, up_to
    and where says which (L13)."""
    _one_choice(command)
    subscription = queue.subscription(command.subscription)
    if command.received and subscription is not None:
        transport.confirm(subscription, command.received, broker.now)
    if command.where is not None:
        seqs = _where(broker, queue, command.where)
        return _remove(broker, queue, seqs, subscription, command.subscription)
    if command.up_to is not None:
        ranges = [(0, _one_id(command.up_to))]
    else:
        ranges = parse_ranges(command.ids or "")
    ids, seqs = broker.spool.held_by(ranges, queue.number)
    if command.up_to is not None:
        number = subscription.number if subscription else 0
        seqs = seqs[queue.gather(seqs, "holder") == number] if number else seqs[:0]
        return _remove(broker, queue, seqs, subscription, command.subscription)
    gone = _remove(broker, queue, seqs, subscription, command.subscription)
    wanted = sum(high - low + 1 for low, high in ranges)
    if len(ids) < wanted:
        _without_effect(broker, queue, ranges, ids, command.subscription)
    return gone


def has_arrived(broker: Broker, queue: Queue, command: TransportAck) -> None:
    """The client has what was sent up to a number (C1); an unknown subscription has ended."""
    subscription = queue.subscription(command.subscription)
    if subscription is not None:
        transport.confirm(subscription, command.received, broker.now)


def _one_choice(command: Ack) -> None:
    given = [n for n in ("ids", "up_to", "where") if getattr(command, n) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise ValueError(f"ack: {found} – exactly one of ids, up_to, where is given")


def _one_id(text: str) -> int:
    ranges = parse_ranges(text)
    if len(ranges) != 1 or ranges[0][0] != ranges[0][1]:
        raise ValueError(f"up_to: {text[:60]!r} – allowed is one message id, such as '17'")
    return ranges[0][1]


def _remove(
    broker: Broker, queue: Queue, seqs: Array, subscription: Subscription | None, name: str
) -> int:
    strict = queue.definition.leasing == "strict"
    number = subscription.number if subscription else 0
    total = 0
    for page, rows, _ in queue.rows(seqs):
        if strict:
            foreign = (page.state[rows] == LEASED) & (page.holder[rows] != number)
            _ignored(broker, queue, page.id[rows[foreign]], name, "leased to another")
            rows = rows[~foreign]
        ids = queue.remove(page, rows)
        broker.record("acknowledged", queue, ids.tolist(), subscription=name)
        broker.spool.release(queue.number, ids)
        total += len(rows)
    queue.count("acknowledged", total)
    return total


def _ignored(broker: Broker, queue: Queue, ids: Array, name: str, why: str) -> None:
    if len(ids):
        queue.count("ack_ignored", len(ids))
        broker.record("ack_ignored", queue, ids.tolist(), subscription=name, reason=why)


def _without_effect(
    broker: Broker, queue: Queue, ranges: Ranges, found: Array, name: str
) -> None:
    """Ids that the queue does not hold: gone already, or not come yet (L9).

    The first `IGNORED_MAX` of those that were given are looked up; of more nothing is said.
    """
    spool = broker.spool
    next_id = make_id(broker.header.number, spool.header.next_counter)
    given: list[Array] = []
    left = IGNORED_MAX
    for low, high in _gaps(ranges, sorted(found.tolist())):
        last = min(high, next_id - 1, low + left - 1)
        if low <= last:
            given.append(np.arange(low, last + 1, dtype=np.uint64))
            left -= last + 1 - low
        if high >= next_id:
            deferred.keep(broker, queue, max(low, next_id), high, name)
    if not given:
        return
    ids = np.concatenate(given)
    held = spool.were_held(ids, queue.number)
    _ignored(broker, queue, ids[held], name, "not in the queue")
    never = ids[~held]
    for run in np.split(never, np.flatnonzero(np.diff(never) > 1) + 1) if len(never) else ():
        deferred.keep(broker, queue, int(run[0]), int(run[-1]), name)


def _gaps(ranges: Ranges, held: list[int]) -> Iterator[tuple[int, int]]:
    """The ids in ranges that are not among some, as ranges; both ascending."""
    at = 0
    for first, high in ranges:
        low = first
        while at < len(held) and held[at] <= high:
            if low < held[at]:
                yield low, held[at] - 1
            low = held[at] + 1
            at += 1
        if low <= high:
            yield low, high


def _where(broker: Broker, queue: Queue, text: str) -> Array:
    """Places of all active messages for which an expression is true (L13, R5)."""
    found: list[Array] = []
    for page, rows in active_rows(queue):
        seqs = rows.astype(np.int64) + (page.number << PAGE_BITS)
        found.append(seqs[np.array(matching(broker, queue, seqs, text), bool)])
    return np.concatenate(found) if found else np.zeros(0, np.int64)


# ---------------------------------------------------------------- of leased messages


def _held(
    broker: Broker, queue: Queue, subscription: str, text: str
) -> list[tuple[QueuePage, Array]]:
    """Rows that this subscription leases, of these ids; others are passed over and counted."""
    holder = queue.subscription(subscription)
    ranges = parse_ranges(text)
    ids, seqs = broker.spool.held_by(ranges, queue.number)
    number = holder.number if holder else -1
    mine = queue.gather(seqs, "holder") == number
    _ignored(broker, queue, ids[~mine], subscription, "not leased to it")
    return [(page, rows) for page, rows, _ in queue.rows(seqs[mine])]


def cancel(broker: Broker, queue: Queue, command: Cancel) -> None:
    """Return messages, counting the cancel (L6), after a delay (L11)."""
    definition = queue.definition
    for page, rows in _held(broker, queue, command.subscription, command.ids):
        page.cancels[rows] += 1
        queue.count("canceled", len(rows))
        broker.record(
            "canceled", queue, page.id[rows].tolist(),
            counts=page.deliveries[rows].tolist(), subscription=command.subscription,
        )  # fmt: skip
        if definition.max_cancels:
            over = page.cancels[rows] >= definition.max_cancels
            bury(broker, queue, page, rows[over], Reason.MAX_CANCELS)
            rows = rows[~over]
        give_back(broker, queue, page, rows, delays=_delays(queue, page, rows, command.delay_ms))


def _delays(queue: Queue, page: QueuePage, rows: Array, asked: int | None) -> Array:
    """How long each canceled message waits, ms: as asked, or the queue's back-off (L11)."""
    if asked is not None:
        return np.full(len(rows), max(asked, 0), np.int64)
    definition = queue.definition
    base = definition.redelivery_delay_ms or 0
    delays = np.zeros(len(rows), np.int64)
    if not base:
        return delays
    most = definition.redelivery_delay_max_ms or NEVER >> 1
    for i, deliveries in enumerate(page.deliveries[rows].tolist()):
        exponent = min(deliveries - 1, 64)
        delays[i] = int(min(base * definition.redelivery_delay_multiplier**exponent, most))
    return delays


def give_back(
    broker: Broker, queue: Queue, page: QueuePage, rows: Array, delays: Array | None = None
) -> None:
    """Leased rows return to the queue, or expire where `max_deliveries` is reached (L5)."""
    most = queue.definition.max_deliveries
    if most:
        over = page.deliveries[rows] >= most
        bury(broker, queue, page, rows[over], Reason.MAX_DELIVERIES)
        rows = rows[~over]
        delays = None if delays is None else delays[~over]
    if not len(rows):
        return
    queue.unlease(page, rows)
    if delays is None or not delays.any():
        queue.put_back(page, rows)
        return
    for delay in np.unique(delays).tolist():
        these = rows[delays == delay]
        if delay:
            queue.delay(page, these, broker.now + delay)
        else:
            queue.put_back(page, these)
    queue.dispatch_wanted = True


def reject(broker: Broker, queue: Queue, command: Reject) -> None:
    """Messages go straight to the dead message queue, or are discarded (C7)."""
    for page, rows in _held(broker, queue, command.subscription, command.ids):
        bury(broker, queue, page, rows, Reason.REJECTED, command.reason)


def renew(broker: Broker, queue: Queue, command: Renew) -> dict[str, Any]:
    """Extend leases that the subscription holds; the new period counts from now (L10). A lease
    without end stays without end. Answers which were renewed, and for how long."""
    period = command.period_ms
    if period is None:
        period = queue.definition.lease_period_ms
    until = NEVER if period is None else broker.now + max(period, 1)
    renewed: list[int] = []
    for page, rows in _held(broker, queue, command.subscription, command.ids):
        page.until[rows] = np.where(page.until[rows] == NEVER, NEVER, until)
        page.dirty = True
        ids = page.id[rows].tolist()
        renewed += ids
        broker.record("renewed", queue, ids, subscription=command.subscription)
    return {"lease_ms": period, "renewed": format_ranges(renewed)}


def hand_back(broker: Broker, queue: Queue, command: Returned) -> None:
    """Messages that the client never showed to anyone return (C3)."""
    for page, rows in _held(broker, queue, command.subscription, command.ids):
        page.deliveries[rows] -= 1  # nobody has seen it: no attempt (L5)
        broker.record(
            "returned", queue, page.id[rows].tolist(), subscription=command.subscription
        )
        queue.count("returned", len(rows))
        give_back(broker, queue, page, rows)


def release_all(broker: Broker, queue: Queue, subscription: Subscription, why: str) -> None:
    """Everything that a subscription holds returns, in place (L1, C3)."""
    if not subscription.held:
        return
    queue.settle()
    for number in queue.directory.leased():
        page = queue.page(number)
        assert page is not None
        held = (page.state[: page.used] == LEASED) & (
            page.holder[: page.used] == subscription.number
        )
        rows = np.flatnonzero(held)
        if len(rows):
            ids = page.id[rows].tolist()
            broker.record("returned", queue, ids, subscription=subscription.id, reason=why)
            queue.count("returned", len(rows))
            give_back(broker, queue, page, rows)
