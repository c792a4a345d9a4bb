"""The base of a queue: the broker where it was made (`trails`).

What bridges lead to that broker is for the queue wherever it is, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ...definitions.definition_values import MOVED_PREFIX

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue

LOCAL = "LocalQueue"


def base_of(broker: Broker, queue: Queue) -> int:
    """The number of the broker where a queue was made."""
    base = queue.header.base
    return broker.header.number if base < 0 else base


def is_based_at(broker: Broker, queue: Queue, bases: Collection[int]) -> bool:
    """Whether it is a local queue that was made at one of these brokers."""
    return queue.definition.type == LOCAL and base_of(broker, queue) in bases


def of_base(broker: Broker, queues: list[Queue]) -> list[Queue]:
    """Of these, the ones that take what comes to this broker and to no queue: those that were made
    here, or their trails where they have one; of trails there is each with its queue's topics."""
    header = broker.header
    followed = {
        (broker.vpn_of(q), header.trails[q.number]) for q in queues if q.number in header.trails
    }
    return [
        queue for queue in queues
        if queue.definition.type != LOCAL
        or queue.number in header.links
        or (base_of(broker, queue) == header.number and not _has_trail(broker, queue, followed))
    ]  # fmt: skip


def _has_trail(broker: Broker, queue: Queue, followed: set[tuple[str, str]]) -> bool:
    if not broker.header.trails:
        return False
    vpn, name = broker.vpn_of(queue), queue.definition.name
    return (vpn, name) in followed or broker.find(vpn, MOVED_PREFIX + name) is not None


def read_here(broker: Broker, queues: list[Queue]) -> list[Queue]:
    """Of the queues that capture a plain record, those for which this broker reads it: their base
    does that, and where that is no longer of the home, the broker where they are."""
    based = of_base(broker, queues)
    known = {broker.header.number, *broker.header.peers}
    return [queue for queue in queues if queue in based or base_of(broker, queue) not in known]


def may_be_left(broker: Broker, queue: Queue) -> bool:
    """Whether a queue that is here was made at a broker that is being removed: what that one has
    not read when it ends, it reads no more."""
    parting, header = broker.header.parting, queue.header
    if queue.definition.type != LOCAL or queue.number in broker.header.links:
        return False
    leaver = parting is not None and parting.told and header.base == parting.number
    return leaver or bool(header.unread)
