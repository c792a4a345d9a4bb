"""Acks that came before their message (L9).

An ack for an id that the queue never held is kept for `deferred_ack_expiration`; the message is
then removed on arrival, undelivered, and counts as acknowledged. What does not fit is counted as
an ack without effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue


def keep(
    broker: Broker, queue: Queue, ranges: list[tuple[int, int]], subscription: str
) -> None:
    """Keep an ack for the ids of these ranges, as many as there is room for."""
    header = queue.header
    until = broker.now + queue.definition.deferred_ack_expiration_ms
    for at, (first, last) in enumerate(ranges):
        if header.deferred and header.deferred[-1][1:] == [first - 1, until]:
            header.deferred[-1][1] = last
        elif len(header.deferred) < broker.limits.early_acks:
            header.deferred.append([first, last, until])
        else:
            _ignore(broker, queue, ranges[at:], subscription)
            return
        broker.record(
            "deferred_ack", queue, [first], subscription=subscription, reason=f"to {last}"
        )


def _ignore(
    broker: Broker, queue: Queue, ranges: list[tuple[int, int]], subscription: str
) -> None:
    """There is no room for these: counted, and said once."""
    queue.count("ack_ignored", sum(last - first + 1 for first, last in ranges))
    broker.record(
        "ack_ignored", queue, [ranges[0][0]], subscription=subscription,
        reason=f"to {ranges[-1][1]}: more than {broker.limits.early_acks} acks wait for their "
               f"messages",
    )  # fmt: skip


def came_early(queue: Queue, number: int) -> bool:
    """Whether an ack for this id is waiting for it; it is used up."""
    deferred = queue.header.deferred
    for entry in deferred:
        if entry[0] <= number <= entry[1]:
            deferred.remove(entry)
            if entry[0] < number:
                deferred.append([entry[0], number - 1, entry[2]])
            if number < entry[1]:
                deferred.append([number + 1, entry[1], entry[2]])
            return True
    return False


def settle_arrivals(broker: Broker) -> None:
    """What follows when messages have got their rows: those that were acknowledged before they came
    go, and a queue with quota 0 keeps its last message only (L9, S10)."""
    from ..message import Event, apply
    from .last_value import keep_last

    early, broker.early = broker.early, []
    for queue, seq in early:
        apply(
            broker, queue, np.array([seq], np.int64), Event.ACKNOWLEDGE,
            reason="acknowledged early",
        )  # fmt: skip
    arrived, broker.arrived_in = broker.arrived_in, []
    for queue in {q.number: q for q in arrived}.values():
        keep_last(broker, queue)
