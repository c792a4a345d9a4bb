"""Acks that came before their message (L9).

An ack for an id that the queue never held is kept for `deferred_ack_expiration`; the message is
then removed on arrival, undelivered, and counts as acknowledged. What does not fit is counted as
an ack without effect.
"""

from __future__ import annotations

from ..limits import Budget
from ..queue.broker import Broker
from ..queue.change import apply
from ..queue.queue import Queue
from ..queue.table import Event
from ..storage.id_ranges import IdRange
from ..storage.row import Row

WHY = "acknowledged early"


def keep(broker: Broker, queue: Queue, ranges: list[tuple[int, int]], subscription: str) -> None:
    """Keep an ack for the ids of these ranges, as many as there is room for. What was kept for the
    same ids before is replaced."""
    until = broker.now + queue.definition.deferred_ack_expiration_ms
    for at, (first, last) in enumerate(ranges):
        broker.touch(queue)
        if not queue.early.put(first, last, until, broker.limits.early_acks):
            _ignore(broker, queue, ranges[at:], subscription)
            return
        broker.record(
            "deferred_ack", queue, [first], subscription=subscription, reason=f"to {last}"
        )


def _ignore(broker: Broker, queue: Queue, ranges: list[tuple[int, int]], subscription: str) -> None:
    """There is no room for these: counted, and said once."""
    queue.count("ack_ignored", sum(last - first + 1 for first, last in ranges))
    broker.record(
        "ack_ignored", queue, [ranges[0][0]], subscription=subscription,
        reason=f"to {ranges[-1][1]}: more than {broker.limits.early_acks} acks wait for their "
               f"messages",
    )  # fmt: skip


def settle_arrival(broker: Broker, queue: Queue, row: Row) -> None:
    """A message that has entered goes at once, if it was acknowledged before it came."""
    if queue.early.ranges and _came_early(broker, queue, row.id):
        apply(broker, queue, [row], Event.ACKNOWLEDGE, reason=WHY)


def will_leave(queue: Queue, number: int, now: int) -> bool:
    """Whether a message with this id would go at once: then it is no barrier for anybody."""
    found = queue.early.find(number) if queue.early.ranges else None
    return found is not None and found.until > now


def _came_early(broker: Broker, queue: Queue, number: int) -> bool:
    """Whether an ack for this id is waiting for it; it is used up. Where there is no room for both
    parts of its range, the ids before are given up: new ones are above."""
    found = queue.early.find(number)
    if found is None:
        return False
    rest = [
        IdRange(found.first, number - 1, found.until), IdRange(number + 1, found.last, found.until)
    ]  # fmt: skip
    rest = [one for one in rest if one.first <= one.last]
    if len(queue.early) - 1 + len(rest) > broker.limits.early_acks:
        _ignore(broker, queue, [(rest[0].first, rest[0].last)], "")
        del rest[0]
    queue.early.exchange([found], rest)
    return found.until > broker.now


def forget(queue: Queue, now: int, budget: Budget) -> None:
    """What has waited for too long is no longer kept; as much as the budget allows."""
    if queue.early.next_end() > now:
        return
    over = queue.early.over(now, budget.rows)
    queue.early.exchange(over, [])
    queue.dirty = True
    budget.take(len(over))
