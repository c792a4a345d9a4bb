"""The ready index and the filters' indexes follow the states: the two ways in and out.

Not everything that is ready is in the index: a barrier waits on its own (O3), and of a partition
key only the message whose turn it is (O4).

Where the order is not by place, what is stored and not in the ready index stands *aside*, in an
index of its own by the same keys, so that both together are the queue in its order (`looks`):

    aside = {keys of messages from `ordered_from` on} - ready index
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..rules.filters import note_ready
from ..rules.lanes import LaneChange
from ..storage import Array
from .table import GONE, READY

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue


def make_ready(broker: Broker, queue: Queue, seqs: Array) -> None:
    """Messages at these places have become ready."""
    if len(seqs):
        keys = queue.keys(seqs)
        queue.ready.add(keys)
        note_ready(queue, keys)
        queue.wanted = True


def follow_lanes(broker: Broker, queue: Queue, lanes: LaneChange) -> Array:
    """Messages of lanes have changed: whose turn ended, and whose began (O4); gives both."""
    leave, enter = lanes.settle()
    if len(leave):
        leave_ready(queue, leave)
    make_ready(broker, queue, enter)
    queue.wanted = True
    return np.concatenate((leave, enter))


def set_aside(queue: Queue, seqs: Array) -> None:
    """What became of these places has been done; those that are stored and not in the ready index
    stand aside."""
    if not queue.header.ordered:
        return
    seqs = seqs[seqs >= queue.header.ordered_from]
    if not len(seqs):
        return
    states = queue.gather(seqs, "state")
    out = (states != GONE) & (states != READY)
    if queue.barriers:
        out |= (states == READY) & (queue.gather(seqs, "barrier") != 0)
    if queue.header.keyed:
        seqs, first = np.unique(seqs, return_index=True)
        out = out[first] | _behind_others(queue, seqs)
    keys = queue.keys(seqs) if queue.aside or out.all() else []
    queue.aside.discard(keys)
    queue.aside.add(keys if out.all() else queue.keys(seqs[out]))


def _behind_others(queue: Queue, seqs: Array) -> Array:
    """Which of these are ready, and not the next of their key (O4)."""
    states, lanes = queue.gather(seqs, "state"), queue.gather(seqs, "lane")
    behind: Array = (states == READY) & (lanes != 0) & (queue.gather(seqs, "barrier") == 0)
    for at in np.flatnonzero(behind).tolist():
        behind[at] = queue.lanes.next_of(int(lanes[at])) != int(seqs[at])
    return behind


def leave_ready(queue: Queue, seqs: Array) -> None:
    """Messages at these places are no longer ready."""
    keys = queue.keys(seqs)
    queue.ready.discard(keys)
    queue.filters.discard(keys)
