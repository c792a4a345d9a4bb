"""Acks that came before their message (L9).

An ack for an id that the queue never held is kept for `deferred_ack_expiration`; the message is
then removed on arrival, undelivered, and counts as acknowledged.
"""

from __future__ import annotations

import numpy as np

from .broker import Broker
from .queue import Queue

DEFERRED_MAX = 10_000


def keep(broker: Broker, queue: Queue, first: int, last: int, subscription: str) -> None:
    """Keep an ack for ids from ``first`` to ``last``."""
    header = queue.header
    if len(header.deferred) >= DEFERRED_MAX:
        return
    header.deferred.append([first, last, broker.now + queue.definition.deferred_ack_expiration_ms])
    broker.record("deferred_ack", queue, [first], subscription=subscription, reason=f"to {last}")


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


def remove_arrivals(broker: Broker, queue: Queue, seqs: list[int]) -> None:
    """Remove messages that have just arrived and were acknowledged before."""
    for seq in seqs:
        page, row = queue.row(seq)
        ids = queue.remove(page, np.array([row], np.intp))
        queue.count("acknowledged")
        broker.record("acknowledged", queue, ids.tolist(), reason="acknowledged early")
        broker.spool.release(queue.number, ids)
