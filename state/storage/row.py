"""A message in one queue, in memory and in the store.

The live object is also the stored form: one `encode` writes a page of a thousand rows. A message
that matched three queues has three rows with the same id. Its content is stored once, in the spool.

The order of the fields is the layout of the pages, because `array_like` reads by position. Add a
new field before `extras`, with a default, and never remove one.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import msgspec

NEVER = 1 << 62  # a time that never comes
TTL_OVER = 0  # instead of the end of the publisher's TTL, which does not count any more (X5)
LOWEST = -(1 << 191)  # below every key
HIGHEST = 1 << 191  # above every key

GONE, READY, LEASED, DELAYED = 0, 1, 2, 3
MOVING = 4  # sent to another broker, which has not confirmed it yet

IN_MEMORY = 0  # the block number of a content that is in no block yet
NO_KEY = -1  # the key length if the key is None; an empty key has length 0


class Row(msgspec.Struct, array_like=True, gc=False):
    """One message in one queue. Times are in milliseconds since 1970."""

    seq: int  # its number in this queue, in order of arrival
    id: int
    size: int  # as quotas count it: payload plus application headers (Q8)
    entered: int  # when it entered this queue
    time: int  # when it was published
    ttl_ends: int = NEVER  # the end of the publisher's TTL, or TTL_OVER
    expires: int = NEVER  # by the queue's model
    priority: int = 4  # the publisher's, 0–255
    dmq: bool = True  # whether it may go to a dead message queue
    level: int = 0  # from the queue's priority expression, up to 2^64-1; higher comes first
    generation: int = 0  # how many barriers entered before it (O3)
    lane: int = 0  # from its partition key; 0: none (O4)
    barrier: bool = False
    state: int = READY
    until: int = NEVER  # the end of its lease or of its delay
    holder: int = 0  # the number of the subscription that leases it
    deliveries: int = 0
    cancels: int = 0
    number: int = 0  # of its latest delivery, or of the record that grants it to another broker
    # Where its content is in the spool, and the bytes of its parts. Set by `Spool.write_to_blocks`.
    block: int = IN_MEMORY
    index: int = 0  # in the block
    length: int = 0  # of the payload
    key_length: int = NO_KEY
    header_length: int = 0
    # The number of its content in the spool: its id, unless it came from another broker.
    stored: int = 0
    extras: dict[str, Any] | None = None  # for dead and for edited messages, see `rules.edits`

    @property
    def due(self) -> int:
        """When its time to live, its lease or its delay ends, whichever is first."""
        return min(self.expires, self.until)

    @property
    def key(self) -> int:
        """Its position in delivery order: the smallest key is first."""
        return by_key(self)


def by_key(row: Row) -> int:
    """The order of ready rows: by generation, then the highest level, then the earliest arrival.

    `seq` and `level` have 64 bits each, so the parts of the integer do not overlap.
    """
    if row.level or row.generation:
        return (row.generation << 128) - (row.level << 64) + row.seq
    return row.seq


def by_until(row: Row) -> int:
    """The order of delayed rows: by due time, then by arrival."""
    return row.until << 64 | row.seq


by_arrival = attrgetter("seq")  # the order of arrival


def follow(rows: Iterable[Row], last: int) -> bool:
    """Whether rows are in order behind this key, and are ready, without lanes and barriers."""
    for row in rows:
        key = by_key(row) if row.level or row.generation else row.seq
        if key <= last or row.state != READY or row.lane or row.barrier:
            return False
        last = key
    return True
