"""Acks that came before their message (L9).

An ack for an id that the queue never held is kept for `deferred_ack_expiration`; the message is
then removed on arrival, undelivered, and counts as acknowledged. What does not fit is counted as
an ack without effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..storage import IdRange

if TYPE_CHECKING:
    from ..broker import Broker
    from ..limits import Budget
    from ..queue import Queue


def keep(broker: Broker, queue: Queue, ranges: list[tuple[int, int]], subscription: str) -> None:
    """Keep an ack for the ids of these ranges, as many as there is room for. What was kept for the
    same ids before is replaced."""
    until = broker.now + queue.definition.deferred_ack_expiration_ms
    for at, (first, last) in enumerate(ranges):
        if not queue.early.put(first, last, until, broker.limits.early_acks):
            _ignore(broker, queue, ranges[at:], subscription)
            return
        broker.record(
            "deferred_ack", queue, [first], subscription=subscription, reason=f"to {last}"
        )


def take_over(broker: Broker, queue: Queue, ranges: list[list[int]]) -> None:
    """Acks that came early where the queue was are kept here."""
    for first, last, until in ranges:
        queue.early.put(first, last, until, broker.limits.early_acks)


def _ignore(broker: Broker, queue: Queue, ranges: list[tuple[int, int]], subscription: str) -> None:
    """There is no room for these: counted, and said once."""
    queue.count("ack_ignored", sum(last - first + 1 for first, last in ranges))
    broker.record(
        "ack_ignored", queue, [ranges[0][0]], subscription=subscription,
        reason=f"to {ranges[-1][1]}: more than {broker.limits.early_acks} acks wait for their "
               f"messages",
    )  # fmt: skip


def came_early(broker: Broker, queue: Queue, number: int) -> bool:
    """Whether an ack for this id is waiting for it; it is used up. Where there is no room for both
    parts of its range, the ids before are given up: new ones are above."""
    found = queue.early.find(number)
    if found is None:
        return False
    first, last, until = found.first, found.last, found.until
    rest = [IdRange(first, number - 1, until), IdRange(number + 1, last, until)]
    rest = [one for one in rest if one.first <= one.last]
    if len(queue.early) - 1 + len(rest) > broker.limits.early_acks:
        _ignore(broker, queue, [(rest[0].first, rest[0].last)], "")
        del rest[0]
    queue.early.exchange([found], rest)
    return until > broker.now


def forget(queue: Queue, now: int, budget: Budget) -> None:
    """What has waited for too long is no longer kept; as much as the budget allows."""
    if queue.early.next_end() > now:
        return
    over = queue.early.over(now, budget.rows)
    queue.early.exchange(over, [])
    budget.take(len(over))


def settle_arrivals(broker: Broker) -> None:
    """What follows when messages have got their rows: those that were acknowledged before they came
    go, and a queue with quota 0 keeps its last message only (L9, S10)."""
    early, broker.early = broker.early, []
    arrived, broker.arrived_in = broker.arrived_in, []
    last_only = {q.number: q for q in arrived if not q.definition.max_spool_usage}
    if not (early or last_only):  # as ever, and an import is not free
        return
    from ..message import Event, apply
    from .last_value import keep_last

    for queue, seq in early:
        apply(
            broker, queue, np.array([seq], np.int64), Event.ACKNOWLEDGE,
            reason="acknowledged early",
        )  # fmt: skip
    for queue in last_only.values():
        keep_last(broker, queue)
