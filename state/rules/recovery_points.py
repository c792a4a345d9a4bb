"""From where on a queue takes in what is in its topics already (R2).

A topic that is new to the engine is read from its beginning, and a queue that has no state yet
takes what its recovery point lets in: everything (`epoch`), what was published since the queue was
created (`creation`), since its definition said so (`now`), since a time, or what gets a bookmark's
message id or a later one. A recorded state wins: the same definition once more changes nothing.
This is about records that plain producers write; whoever waits for an answer is never too early.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

from ..queue.queue import Queue

_COUNTER = (1 << 48) - 1  # of a message id; above it is the broker's number


def recovers(queue: Queue, published: int, next_counter: int) -> bool:
    """Whether a record enters that was published at this time, epoch ms, and would get an id with
    this counter."""
    point = queue.definition.recovery_point
    if point == "epoch":
        return True
    header = queue.header
    if point == "creation":
        return published >= header.created
    if point == "now":
        return published >= max(header.created, header.pointed)
    if point.isdecimal():
        return next_counter >= int(point) & _COUNTER
    return published >= _ms(point)


@lru_cache(maxsize=1_000)
def _ms(point: str) -> int:
    return round(datetime.fromisoformat(point).timestamp() * 1000)
