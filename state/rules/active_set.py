"""The active set of a deep queue: `target_queue_depth` (R5).

The active set is the first ``target_queue_depth`` messages in the queue's order (O1), leased and
delayed ones included. Inactive messages are not delivered, browsed, or found by an expression. When
an active message leaves, the next one becomes active. Ids and deadlines reach inactive messages
too: they can be acknowledged, purged, and expire.

The set is not stored: it ends at a key. The queue has no priorities and no barriers, so a new
message has the highest key, and an active message stays active.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import nsmallest

from ..queue.queue import Queue
from ..storage.row import LOWEST
from ..storage.segments import Segment


def first_inactive(queue: Queue, ready: int | None = None) -> int | None:
    """The key of the first inactive message; None if all are active. The order of cold delayed
    messages is unknown, so they count as the first (`Queue.thaw_delayed`).

    ready: only so many of the first ready messages matter. Before these there are at most the
    leased and the delayed ones, so most often they are active, which is known at once.
    """
    header = queue.header
    limit = header.definition.target_queue_depth
    if limit is None or header.depth <= limit:
        return None
    if ready is not None and header.leased + header.delayed + ready <= limit:
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
    """Groups of overlapping segments."""
    parts: list[list[Segment]] = []
    end = LOWEST
    for segment in segments:
        if segment.first > end:
            parts.append([])
        parts[-1].append(segment)
        end = max(end, segment.last)
    return parts


def _nth_key(queue: Queue, n: int, keys: list[int], part: list[Segment]) -> int:
    """The n-th smallest key (from 0) of these keys and of the rows in overlapping segments. Reads
    only the segments that may have it."""
    for segment in part:
        if sum(key < segment.first for key in keys) > n:
            break
        keys += [row.key for row in queue.cold.read(segment)]
    return nsmallest(n + 1, keys)[-1]
