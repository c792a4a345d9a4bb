"""Messages with the same partition key go out one at a time, in order (O4).

The value of a queue's `partition_key` gives a message its *lane* as it enters; NULL gives none.
Of each lane one message at most may be next: one that is under way (leased, delayed, or given out
before and back again), else the first in the queue's order. Only that one stands in the ready
index, and only while it is ready; so a lane whose message is held, delayed or retried holds back
nothing but itself, and neither filters, fairness, priority nor barriers need to know of lanes.

All messages of lanes stand in an index of their own, by lane, then those under way first, then in
the queue's order: so the next one is the first key of its lane. Pages are small, for lanes that
change in a step lie anywhere in it.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from ..header import QueueHeader
from ..limits import Limits
from ..message.table import GONE, READY
from ..storage import Array, ReadyIndex, Store
from .order import PRIORITY_MAX

if TYPE_CHECKING:
    from ..queue import Queue

LANE_BITS = 52
LEAF_KEYS = 256
SEQ_BITS = 42
_GENERATION_BITS = 32
_SHIFT = 1 + _GENERATION_BITS + 64 + SEQ_BITS  # of a lane in its keys
_COLUMNS = ("lane", "state", "deliveries", "generation", "priority")


def lane_key(
    lane: int, state: int, deliveries: int, generation: int, priority: int, seq: int
) -> int:
    """The key of a message in the index of lanes."""
    key = (lane << 1) + (state == READY and not deliveries)
    assert generation < 1 << _GENERATION_BITS
    assert seq < 1 << SEQ_BITS
    key = (key << _GENERATION_BITS) + generation
    return (((key << 64) + PRIORITY_MAX - priority) << SEQ_BITS) + seq


class Lanes(ReadyIndex):
    """The index of lanes of a queue."""

    def __init__(self, store: Store, prefix: str, header: QueueHeader, limits: Limits) -> None:
        small = min(limits.leaf_keys, LEAF_KEYS)
        super().__init__(store, prefix, header.lanes, header.next_lane_page, limits, small)
        self._header = header

    def next_of(self, lane: int) -> int | None:
        """The place of the message that is next in a lane, or None."""
        key = next(self.scan(lane << _SHIFT, (lane + 1) << _SHIFT), None)
        return None if key is None else key & ((1 << SEQ_BITS) - 1)

    def places(self, lane: int, most: int) -> list[int]:
        """The first places of a lane, the next one first."""
        keys = self.scan(lane << _SHIFT, (lane + 1) << _SHIFT)
        return [key & ((1 << SEQ_BITS) - 1) for key in islice(keys, most)]

    def length(self, lane: int) -> int:
        """How many messages a lane has; reads one page per level."""
        return self.count_before((lane + 1) << _SHIFT) - self.count_before(lane << _SHIFT)

    def flush(self) -> None:
        """Write what changed."""
        super().flush()
        self._header.lanes = self.directory()
        self._header.next_lane_page = self.pages


class LaneChange:
    """Messages of lanes before and after something happened to them; `settle` tells whose turn
    ended and whose began."""

    def __init__(self, queue: Queue, seqs: Array, new: bool = False) -> None:
        lanes = queue.gather(seqs, "lane")
        self._queue = queue
        self._seqs = seqs[lanes != 0]
        self._lanes = sorted(set(lanes.tolist()) - {0})
        self._keys = [] if new else self._live_keys()
        self._next = {lane: self._ready_next(lane) for lane in self._lanes}

    def _live_keys(self) -> list[int]:
        columns = [self._queue.gather(self._seqs, name).tolist() for name in _COLUMNS]
        rows = zip(*columns, self._seqs.tolist(), strict=True)
        return sorted(lane_key(*row) for row in rows if row[1] != GONE)

    def _ready_next(self, lane: int) -> int | None:
        seq = self._queue.lanes.next_of(lane)
        if seq is None:
            return None
        page, row = self._queue.row(seq)
        return seq if page.state[row] == READY else None

    def settle(self) -> tuple[Array, Array]:
        """Places that leave the ready index, and places that enter it."""
        index = self._queue.lanes
        index.discard(self._keys)
        index.add(self._live_keys())
        leave: list[int] = []
        enter: list[int] = []
        for lane in self._lanes:
            before, after = self._next[lane], self._ready_next(lane)
            if before != after:
                leave += [before] if before is not None else []
                enter += [after] if after is not None else []
        return np.array(leave, np.int64), np.array(enter, np.int64)
