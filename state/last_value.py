"""Queues that keep only the last message: quota 0 (S10).

Each message that enters takes the place of the one before, whatever state that is in. A holder
keeps what it has been given, gets no notice, and its later ack has no effect, as with a message
that expires (X3). What is replaced is not dead: it goes to no dead message queue. Of several
messages that enter in one step only the last stays.
"""

from __future__ import annotations

import numpy as np

from .broker import Broker
from .lifecycle import GONE
from .queue import Queue


def keep_last(broker: Broker, queue: Queue) -> None:
    """Remove all but the last message of a queue whose quota is 0."""
    if queue.definition.max_spool_usage or queue.header.depth < 2:
        return
    queue.settle()
    pages = list(queue.directory.live())
    last = pages[-1]
    for number in pages:
        page = queue.page(number)
        assert page is not None
        rows = np.flatnonzero(page.state[: page.used] != GONE)
        if number == last:
            rows = rows[:-1]
        if len(rows):
            ids = queue.remove(page, rows)
            queue.count("replaced", len(rows))
            broker.record("replaced", queue, ids.tolist())
            broker.spool.release(queue.number, ids)
