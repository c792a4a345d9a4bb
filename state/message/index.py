"""The ready index and the filters' indexes follow the states: the two ways in and out.

Not everything that is ready is in the index: a barrier waits on its own (O3), and of a partition
key only the message whose turn it is (O4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..rules.filters import look_at
from ..rules.lanes import LaneChange
from ..storage import Array

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue


def make_ready(broker: Broker, queue: Queue, seqs: Array) -> None:
    """Messages at these places have become ready."""
    if len(seqs):
        keys = queue.keys(seqs)
        queue.ready.add(keys)
        look_at(broker, queue, keys)
        queue.wanted = True


def follow_lanes(broker: Broker, queue: Queue, lanes: LaneChange) -> None:
    """Messages of lanes have changed: whose turn ended, and whose began (O4)."""
    leave, enter = lanes.settle()
    if len(leave):
        leave_ready(queue, leave)
    make_ready(broker, queue, enter)
    queue.wanted = True


def leave_ready(queue: Queue, seqs: Array) -> None:
    """Messages at these places are no longer ready."""
    keys = queue.keys(seqs)
    queue.ready.discard(keys)
    queue.filters.discard(keys)
