"""Queues that keep only the last message: quota 0 (S10).

Each message that enters takes the place of the one before, whatever state that is in. A holder
keeps what it has been given, gets no notice, and its later ack has no effect, as with a message
that expires (X3). What is replaced is not dead: it goes to no dead message queue. Of several
messages that enter in one step only the last stays.
"""

from __future__ import annotations

import numpy as np

from ..broker import Broker
from ..message import Event, apply
from ..queue import Queue


def keep_last(broker: Broker, queue: Queue) -> None:
    """Remove all but the last message of a queue whose quota is 0."""
    if queue.definition.max_spool_usage or queue.header.depth < 2:
        return
    seqs = np.concatenate([rows.astype(np.int64) + p.base for p, rows in queue.live_rows()])
    apply(broker, queue, seqs[:-1], Event.REPLACE)
