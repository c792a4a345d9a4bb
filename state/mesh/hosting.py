"""Which brokers host a queue (Q5). One function, so that whoever knows better says it here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...definitions import hosts_of
from .known_places import groups_of, names_of

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue


def other_hosts(broker: Broker, queue: Queue) -> list[int]:
    """The other brokers that host a distributed queue, by number (`definitions.hosts`), but for one
    that is being removed. None for a `LocalQueue`, and for one that keeps its last message only
    (S10), which is each broker's own."""
    d, peers = queue.definition, broker.header.peers
    if not peers or d.type == "LocalQueue" or not d.max_spool_usage:
        return []
    if d.type == "Queue" and not d.group:
        return [number for number in peers if number not in queue.header.without]
    hosting = hosts_of(d, tuple(names_of(broker)), groups_of(broker))
    without = queue.header.without
    return [n for n, peer in peers.items() if peer.name in hosting and n not in without]


def barrier_hosts(broker: Broker, queue: Queue) -> list[int]:
    """The other brokers for which a barrier waits: those, and one that is being removed, as long as
    it is there (`barrier_moves`)."""
    hosts, without = other_hosts(broker, queue), queue.header.without
    shared = queue.definition.type != "LocalQueue" and queue.definition.max_spool_usage
    if not without or not shared:
        return hosts
    return [n for n in broker.header.peers if n in hosts or n in without]


def all_hosts(broker: Broker, queue: Queue) -> list[int]:
    """All brokers that host a queue, this one among them, by number."""
    return sorted([broker.header.number, *other_hosts(broker, queue)])


def initial_owner(broker: Broker, queue: Queue) -> int | None:
    """The other broker that owns all messages of a `GroupLocalQueue` at first; None where that is
    this one, or none."""
    name = queue.definition.initial_owner
    if name is None or name == broker.header.name:
        return None
    return next((n for n, peer in broker.header.peers.items() if peer.name == name), None)
