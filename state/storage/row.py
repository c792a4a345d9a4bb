"""A message in one queue, as it lives in memory and as it is stored.

The live object is its stored form: a page of a thousand rows is one `encode`. A message that
matched three queues has three rows with the same id; its content is stored once, in the spool.

Fields have an order, which is the layout of the pages. Add new ones before `extras`, with a
default, and never take one away: `array_like` reads by position.
"""

from __future__ import annotations

from typing import Any

import msgspec

NEVER = 1 << 62  # a time that does not come
LOWEST = -(1 << 191)  # before all keys
HIGHEST = 1 << 191  # behind all keys

GONE, READY, LEASED, DELAYED = 0, 1, 2, 3
MOVING = 4  # sent to another broker, which has not said yet that it has it

IN_MEMORY = 0  # the block of a content that is in no block yet
NO_KEY = -1  # the length of a key that is None; an empty key is another thing


class Row(msgspec.Struct, array_like=True, gc=False):
    """One message in one queue. Times are in milliseconds since 1970."""

    seq: int  # its number in this queue: the order of arrival
    id: int
    size: int  # as quotas count it: payload and application headers (Q8)
    entered: int  # when it entered this queue
    time: int  # when it was published
    ttl_ends: int = NEVER  # the end of the publisher's TTL
    expires: int = NEVER  # by the queue's model
    priority: int = 4  # the publisher's, 0–255
    dmq: bool = True  # whether it may become a dead message
    level: int = 0  # by the queue's priority expression, up to 2^64-1; higher comes first
    generation: int = 0  # how many barriers stand before it (O3)
    lane: int = 0  # by its partition key; 0: none (O4)
    barrier: bool = False
    state: int = READY
    until: int = NEVER  # the end of its lease or of its delay
    holder: int = 0  # the number of the subscription that leases it
    deliveries: int = 0
    cancels: int = 0
    number: int = 0  # of its latest delivery
    # Where its content lies in the spool, and the bytes of its parts. Set when it is settled.
    block: int = IN_MEMORY
    index: int = 0  # in the block
    length: int = 0  # of the payload
    key_length: int = NO_KEY
    header_length: int = 0
    stored: int = 0  # its content's number in the spool: the id, unless it came from another broker
    extras: dict[str, Any] | None = None  # of dead and of edited messages

    @property
    def due(self) -> int:
        """When something happens to it by itself: its life, its lease or its delay ends."""
        return min(self.expires, self.until)

    @property
    def key(self) -> int:
        """Its place in delivery order: the smaller one comes first."""
        return by_key(self)


def by_key(row: Row) -> int:
    """The order of ready rows.

    Generations part the order, a higher level comes first, then who came first. `seq` and `level`
    have 64 bits each, so no part reaches into the next.
    """
    if row.level or row.generation:
        return (row.generation << 128) - (row.level << 64) + row.seq
    return row.seq


def by_until(row: Row) -> int:
    """The order of delayed rows; of those that are due together, the first to arrive."""
    return row.until << 64 | row.seq
