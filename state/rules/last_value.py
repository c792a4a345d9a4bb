"""Queues that keep only the last message: quota 0 (S10).

Each message that enters takes the place of the one before, whatever state that is in. A holder
keeps what it has been given, gets no notice, and its later ack has no effect, as with a message
that expires (X3). What is replaced is not dead: it goes to no dead message queue.
"""

from __future__ import annotations

from ..queue.broker import Broker
from ..queue.change import apply
from ..queue.queue import Queue
from ..queue.table import Event


def keep_last(broker: Broker, queue: Queue) -> None:
    """Remove all but the last message of a queue whose quota is 0. Such a queue has no cold rows
    but those of the time before its quota was 0, and then a definition has checked its depth."""
    if queue.definition.max_spool_usage or queue.header.depth < 2:
        return
    rows = sorted(queue.live.values(), key=lambda row: row.seq)
    apply(broker, queue, rows[:-1], Event.REPLACE)
