"""Deaths are counted when it is known what became of the message (X5).

By the queue in which it died, wherever that is by then. See `dead_ways`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...protocol.dead_letters import DeadCounted
from ...protocol.journal import Segment
from . import known_places
from .saying import say

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue


def counted(broker: Broker, sender: int, said: DeadCounted) -> None:
    """Messages that died in a queue have arrived, or are lost. While it moves, some of its deaths
    are counted at its old broker, some at its new one. A queue that was defined anew since has
    nothing to do with those of the one before."""
    queue = broker.find(said.vpn, said.queue)
    n = min(0 if queue is None else _open_deaths(queue), len(said.ids))
    ids, others = said.ids[:n], said.ids[n:]
    if queue is not None and ids:
        event = "discarded" if said.lost else "dead_lettered"
        queue.count(event, n)
        reason = said.why if said.lost else said.dead_message_queue
        write_down(broker, event, said.vpn, said.queue, ids, reason)
    to = _other_end(broker, said, queue) if others else None
    if to is not None:
        say(broker, to, msgspec.structs.replace(said, ids=others))


def _open_deaths(queue: Queue) -> int:
    """How many messages have died here of which it is not counted what became of them."""
    n = queue.header.counters.get
    dead = n("expired", 0) + n("consumer_rejected", 0)
    return max(dead - n("dead_lettered", 0) - n("discarded", 0), 0)


def _other_end(broker: Broker, said: DeadCounted, queue: Queue | None) -> int | None:
    """The other broker that has a queue, or has it too, as it moves."""
    if queue is not None and not queue.header.arriving:
        return queue.header.leaving[0] if queue.header.leaving else None
    gone = known_places.went_to(broker, said.vpn, said.queue)
    entry = known_places.find(broker, said.vpn, said.queue)
    hosts = [gone] if gone is not None else entry.hosts if entry is not None else []
    return next((host for host in hosts if host in broker.header.peers), None)


def write_down(
    broker: Broker, event: str, vpn: str, queue: str, ids: list[int], reason: str
) -> None:
    """Into the journal, by ids as they are known."""
    broker.journal.segments.append(Segment(event, vpn, queue, ids, reason=reason))
