"""Deadlines: expiry, ends of leases and delays, late transport acks (L4, L11, L12, X1–X3, C2).

All that is due is acted on at the start of delivery in every step, so no message goes out after
its time, and by ticks when nothing else happens. Expiry comes first: a message whose lease and
whose life end together has expired.
"""

from __future__ import annotations

import numpy as np

from ..protocol.errors import Reason
from .broker import Broker
from .dead import bury
from .delivery import send_again
from .lifecycle import DELAYED, GONE, LEASED
from .queue import Queue
from .settling import give_back


def act_on_deadlines(broker: Broker, queue: Queue) -> None:
    """Everything of this queue that is due by now."""
    now = broker.now
    header = queue.header
    if header.deferred:
        header.deferred = [d for d in header.deferred if d[2] > now]
    if header.scan_again:
        queue.dispatch_wanted = True
    queue.settle()
    for number in queue.directory.due(now):
        page = queue.page(number)
        assert page is not None
        used = page.used
        live = page.state[:used] != GONE
        expired = np.flatnonzero(live & (page.expires[:used] <= now))
        if len(expired):
            bury(broker, queue, page, expired, Reason.EXPIRED)
        over = page.until[:used] <= now
        ended = np.flatnonzero(over & (page.state[:used] == LEASED))
        if len(ended):
            queue.count("lease_ended", len(ended))
            broker.record("lease_ended", queue, page.id[ended].tolist())
            give_back(broker, queue, page, ended)
        ready = np.flatnonzero(over & (page.state[:used] == DELAYED))
        if len(ready):
            header.delayed -= len(ready)
            queue.put_back(page, ready)
            broker.record("ready", queue, page.id[ready].tolist())
        page.dirty = True
    send_again(broker, queue)
