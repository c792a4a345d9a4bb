"""The active set of a deep queue: `target_queue_depth` (R5).

The active set is the first so many messages that are in the queue, in its order (O1), whatever
state they are in: a leased or a delayed one takes a place too. Nothing behind them is delivered,
browsed, or found by an expression; when one of them leaves, the next becomes active. What names a
message by its id reaches it all the same, and time does too: it is acknowledged, purged, expires.

The set is not kept anywhere: it ends at one place, which the page directory gives without reading
more than one page, however deep the queue is. Without priority (they exclude each other) no message
enters in front of others, so an active message stays active, unless the limit is lowered (Q9).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..message.pages import QueuePage
from ..message.table import GONE
from ..queue import Queue
from ..storage import Array


def first_inactive(queue: Queue) -> int | None:
    """The place of the first message that is not active; None where all are."""
    limit = queue.definition.target_queue_depth
    if limit is None or queue.header.depth <= limit:
        return None
    queue.settle()
    number, nth = queue.directory.find(limit)
    page = queue.page(number)
    assert page is not None
    live = np.flatnonzero(page.state[: page.used] != GONE)
    return (number << queue.bits) + int(live[nth])


def active_rows(queue: Queue, start: int = 0) -> Iterator[tuple[QueuePage, Array]]:
    """Pages with their rows that hold an active message, from a place on, in order."""
    end = first_inactive(queue)
    for page, rows in queue.live_rows(start):
        base = page.base
        if end is not None and base >= end:
            return
        yield page, rows if end is None else rows[rows < end - base]
