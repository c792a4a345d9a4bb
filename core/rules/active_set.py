"""The active set of a deep queue: `target_queue_depth` (R5).

The active set is the first so many messages that are in the queue, in its order (O1), whatever
state they are in: a leased or a delayed one takes a place too. Nothing behind them is delivered,
browsed, or found by an expression; when one of them leaves, the next becomes active. What names a
message by its id reaches it all the same, and time does too: it is acknowledged, purged, expires.

The set is not kept: it ends at one place. Such a queue has neither priority nor barriers, so its
order is by place, its cold rows are in that order, and an active message stays active.
"""

from __future__ import annotations

from heapq import nsmallest

from ..queue.queue import Queue

SEQ_MASK = (1 << 64) - 1  # of a key without a level: what is left is the place


def first_inactive(queue: Queue) -> int | None:
    """The place of the first message that is not active; None where all are."""
    limit = queue.definition.target_queue_depth
    if limit is None or queue.header.depth <= limit:
        return None
    live = sorted(row.seq for row in queue.live.values())
    passed = 0  # cold rows that come before
    for segment in queue.cold.segments():
        first, last = segment.first & SEQ_MASK, segment.last & SEQ_MASK
        before = _below(live, first)
        if before + passed > limit:
            break
        within = _below(live, last) - before
        if before + passed + segment.rows + within > limit:
            rows = [row.seq for row in queue.cold.read(segment)]
            inside = [seq for seq in live if first <= seq <= last]
            return nsmallest(limit - before - passed + 1, rows + inside)[-1]
        passed += segment.rows
    return live[limit - passed]


def _below(live: list[int], place: int) -> int:
    return sum(seq < place for seq in live)
