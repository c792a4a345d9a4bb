"""The active set of a deep queue: `target_queue_depth` (R5).

The active set is the first so many messages that are in the queue, in its order (O1), whatever
state they are in: a leased or a delayed one takes a place too. Nothing behind them is delivered,
browsed, or found by an expression; when one of them leaves, the next becomes active. What names a
message by its id reaches it all the same, and time does too: it is acknowledged, purged, expires.

The set is not kept: it ends at one key. Such a queue has neither priority nor barriers, so what
enters has a higher key than all that is there, and an active message stays active.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import nsmallest

from ..queue.queue import Queue
from ..storage.row import LOWEST
from ..storage.segments import Segment


def first_inactive(queue: Queue) -> int | None:
    """The key of the first message that is not active; None where all are. Where delayed messages
    are cold (`Queue.thaw_delayed`), as if all of them came first: it is not known which do."""
    limit = queue.definition.target_queue_depth
    if limit is None or queue.header.depth <= limit:
        return None
    limit -= queue.later.rows
    if limit < 0:
        return LOWEST
    live = sorted([row.key for row in queue.live.values()])
    passed = 0  # cold rows that come before
    for part in _parts(queue.cold.segments()):
        before = bisect_left(live, part[0].first)
        if before + passed > limit:
            break
        up_to = bisect_left(live, max(segment.last for segment in part))
        rows = sum(segment.rows for segment in part)
        if up_to + passed + rows > limit:
            return _nth_key(queue, limit - before - passed, live[before:up_to], part)
        passed += rows
    return live[limit - passed]


def _parts(segments: list[Segment]) -> list[list[Segment]]:
    """Segments that overlap stand together."""
    parts: list[list[Segment]] = []
    end = LOWEST
    for segment in segments:
        if segment.first > end:
            parts.append([])
        parts[-1].append(segment)
        end = max(end, segment.last)
    return parts


def _nth_key(queue: Queue, n: int, keys: list[int], part: list[Segment]) -> int:
    """The n-th of these keys and those of overlapping segments, from 0 on. No more are read than
    may have it."""
    for segment in part:
        if sum(key < segment.first for key in keys) > n:
            break
        keys += [row.key for row in queue.cold.read(segment)]
    return nsmallest(n + 1, keys)[-1]
