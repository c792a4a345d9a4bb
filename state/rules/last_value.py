"""Queues that keep only the last message: quota 0 (S10).

Each message that enters takes the place of the one before, whatever state that is in. A holder
keeps what it has been given, gets no notice, and its later ack has no effect, as with a message
that expires (X3). What is replaced is not dead: it goes to no dead message queue. Of several
messages that enter in one step only the last stays.

Of a distributed queue each host keeps its own. What a broker that is removed gives is one of two
then: the one that was stored later stays, by the clocks of the two brokers, and this broker's own
where they say the same.
"""

from __future__ import annotations

import numpy as np

from ..broker import Broker
from ..message import MOVING, Event, apply
from ..queue import Queue
from ..storage import Array


def keep_last(broker: Broker, queue: Queue) -> None:
    """Remove all but the last message of a queue whose quota is 0."""
    if queue.definition.max_spool_usage or queue.header.depth < 2:
        return
    apply(broker, queue, _here(queue)[:-1], Event.REPLACE)


def keep_latest(broker: Broker, queue: Queue) -> None:
    """The same, by when messages entered a broker: some have come from another one."""
    if queue.definition.max_spool_usage or queue.header.depth < 2:
        return
    seqs = _here(queue)
    if len(seqs) < 2:
        return
    stays = int(queue.gather(seqs, "entered").argmax())  # of equals the first, which was here
    apply(broker, queue, np.delete(seqs, stays), Event.REPLACE)


def _here(queue: Queue) -> Array:
    """The places of its messages, but for those that are on their way to another broker."""
    found = [
        rows[p.state[rows] != MOVING].astype(np.int64) + p.base for p, rows in queue.live_rows()
    ]
    return np.concatenate(found)
