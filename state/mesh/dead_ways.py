"""Dead messages whose dead message queue is on another broker: the way there (X5, Q5).

    the broker of the queue             a broker that has the dead message queue
      │ a message dies: it is on the way        │
      │ DeadLetters ──────────────────────────▶ │ stored, under its id
      │ ◀──────────────────────────── DeadTaken │
      │ gone from the way, counted              │

The way is a local queue of the broker in which messages die, by the name `#dead/<name>`, made when
the first needs it. `dead` moves messages into it as it would into the dead message queue itself, so
they keep id, payload, headers and what they carry as dead messages. From there they are granted, as
those of a distributed queue are (`ownership`): one record at a time, so their order holds, and each
is at one end at least, and can be read at one at most.

What the other end says decides what is counted: `dead_lettered` where it is in the queue,
`discarded` where the queue is full, shut down or deleted, as on one broker. The queue in which it
died may have moved meanwhile; then its broker is told (`DeadCounted`). A queue that is about to
move, and a broker without room, send messages back: they wait, and are brought again, the first
alone until it goes through.

A message that dies into the same queue once more while it is on its way stands there already. The
names of the queues it died in are noted with it; those that were not said yet follow (X6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...definitions import QueueDefinition, parse_definition
from ...definitions.definition_values import DEAD_PREFIX
from ..commands import administration
from . import known_places
from .placement import LOCAL

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue

ROOM = 1 << 60  # bytes: what is on its way counts as stored, and is bounded by that


class DeadWay(msgspec.Struct, array_like=True):
    """One page of each way. to: where its last record went; better: where the other end said that
    it would be better brought; tries: how often the first was sent back; said: of each row on its
    way, in how many queues it had died."""

    to: int = -1
    better: int = -1
    tries: int = 0
    said: dict[int, int] = {}


def load(broker: Broker, way: Queue) -> DeadWay:
    """How far the way is; one that was never written down is at its beginning."""
    raw = broker.values.read(f"W/{way.number}")
    return DeadWay() if raw is None else msgspec.convert(raw, DeadWay)


def save(broker: Broker, way: Queue, page: DeadWay | None) -> None:
    """Write down how far the way is; None: it is no more."""
    broker.values.write(f"W/{way.number}", None if page is None else msgspec.to_builtins(page))


# ---------------------------------------------------------------- the way


def way_to(broker: Broker, vpn: str, name: str) -> Queue | None:
    """The way to a dead message queue that is elsewhere, or about to move, or to which others are
    still on their way; None: messages need none, or there is no such queue."""
    way = find(broker, vpn, name)
    if way is not None and way.header.depth:
        return way
    target = broker.find(vpn, name)
    # One of several brokers takes them here to its last moment, and passes them on itself.
    stays = target is not None and target.definition.type != LOCAL
    here = target is not None and (stays or not known_places.is_moving(target))
    if here or place_of(broker, vpn, name) is None:
        if way is not None:
            _close(broker, vpn, way)
        return None
    if way is None:
        way = administration.create(broker, vpn, _definition_of(vpn, name), way=name)
    return way


def find(broker: Broker, vpn: str, name: str) -> Queue | None:
    """The way to a dead message queue, or None where there is none now."""
    return broker.find(vpn, DEAD_PREFIX + name) if broker.header.ways else None


def _definition_of(vpn: str, name: str) -> QueueDefinition:
    given = {"name": name, "vpn": vpn, "message_type": "binary", "type": "LocalQueue"}
    own = DEAD_PREFIX + name
    return msgspec.structs.replace(
        parse_definition(given), name=own, underlying_topic=own, default_publish_target=own,
        max_spool_usage=ROOM,
    )  # fmt: skip


def place_of(broker: Broker, vpn: str, name: str, better: int = -1) -> int | None:
    """The number of a broker that has a queue; None: there is no such queue."""
    number, peers = broker.header.number, broker.header.peers
    if broker.find(vpn, name) is not None:
        return number
    gone = known_places.gone_to(broker, vpn, name)
    if gone is not None:
        return gone
    entry = known_places.find(broker, vpn, name)
    hosts = [host for host in entry.hosts if host in peers] if entry is not None else []
    if not hosts:
        return None
    return better if better in hosts else hosts[number % len(hosts)]


def _close(broker: Broker, vpn: str, way: Queue) -> None:
    """Nothing is in it."""
    save(broker, way, None)
    del broker.header.ways[way.number]
    administration.forget(broker, vpn, way)
    way.drop()


def close_all(broker: Broker) -> None:
    """This broker is to be removed: ways that are empty keep it from nothing."""
    for number in list(broker.header.ways):
        way = broker.queue(number)
        if way is not None and not way.header.depth:
            _close(broker, broker.vpn_of(way), way)


def waits_for(broker: Broker, number: int) -> bool:
    """Whether a broker has yet to say what it took of dead messages."""
    ways = (broker.queue(one) for one in broker.header.ways)
    return any(w is not None and w.header.moving and load(broker, w).to == number for w in ways)
