"""Removals right after a message has entered: early acks (L9) and a quota of 0 (S10).

Early acks. The queue keeps an ack for an unknown id for `deferred_ack_expiration`. When the message
arrives, it is removed undelivered and counts as acknowledged. If there is no room for an ack, it
counts as an ack without effect.

Quota 0. The queue keeps only its last message. Each new message replaces the one before, in any
state. A consumer that leases the old message is not told, and its ack has no effect, as after an
expiry (X3). A replaced message is not dead: it goes to no dead message queue. A message in transit
to another broker is not replaced, since that broker may have it. If it is refused there, it returns
to its position here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..queue.broker import Broker
from ..queue.change import apply
from ..queue.queue import Queue
from ..queue.table import Event
from ..storage.row import MOVING, Row, by_arrival

WHY = "acknowledged early"


def keep_early_acks(
    broker: Broker, queue: Queue, ranges: Sequence[Sequence[int]], subscription: str
) -> None:
    """Keep an ack for as many of these ids as there is room for. It replaces earlier acks."""
    until = broker.now + queue.definition.deferred_ack_expiration_ms
    for at, (first, last) in enumerate(ranges):
        broker.touch(queue)
        if not queue.early.put(first, last, until, broker.limits.early_acks):
            _ignore(broker, queue, ranges[at:], subscription)
            return
        broker.record(
            "deferred_ack", queue, [first], subscription=subscription, reason=f"to {last}"
        )


def _ignore(
    broker: Broker, queue: Queue, ranges: Sequence[Sequence[int]], subscription: str
) -> None:
    """Count acks for which there is no room, and journal them once. Each range counts as one ack:
    it may name any number of ids that will never exist."""
    queue.count("ack_ignored", len(ranges))
    broker.record(
        "ack_ignored", queue, [ranges[0][0]], subscription=subscription,
        reason=f"to {ranges[-1][1]}: more than {broker.limits.early_acks} acks wait for their "
               f"messages",
    )  # fmt: skip


def apply_early_ack(broker: Broker, queue: Queue, row: Row) -> None:
    """Remove a message that has just entered if its ack came before it, and use up that ack. If
    only one of the two remaining parts of its range has room, the upper one stays: new ids are
    there."""
    found = queue.early.find(row.id) if queue.early.ranges else None
    if found is None:
        return
    parts = found._replace(last=row.id - 1), found._replace(first=row.id + 1)
    rest = [one for one in parts if one.first <= one.last]
    if len(rest) == 2 and len(queue.early) >= broker.limits.early_acks:
        _ignore(broker, queue, [(rest[0].first, rest[0].last)], "")
        del rest[0]
    queue.early.replace(found, rest)
    if found.until > broker.now:
        apply(broker, queue, [row], Event.ACKNOWLEDGE, reason=WHY)


def will_leave(queue: Queue, number: int, now: int) -> bool:
    """Whether an early ack will remove a message with this id at once. Then it is no barrier."""
    found = queue.early.find(number) if queue.early.ranges else None
    return found is not None and found.until > now


# ---------------------------------------------------------------- last value


def keep_last(broker: Broker, queue: Queue, order: Callable[[Row], Any] = by_arrival) -> None:
    """Remove all but the last message of a queue with quota 0. order: the sort key that decides
    which is last; by default the order of entry."""
    if queue.definition.max_spool_usage or queue.header.depth < 2:
        return
    for runs in (queue.cold, queue.later):  # the last one of a deep queue may have stayed cold
        for segment in list(runs.segments()):
            queue.thaw(runs, segment, runs.read(segment), [])
    here = [row for row in queue.live.values() if row.state != MOVING]
    here.sort(key=order)
    apply(broker, queue, here[:-1], Event.REPLACE)
