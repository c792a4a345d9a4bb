"""What goes on reaching a queue that has moved to another broker: its trail (Q5, H1–H3).

Two things come to a broker and not to a queue: what bridges bring to it, and the records that plain
Kafka producers write to a topic that it reads. A queue that is moved takes neither along. How far
the topic was read, and what is on its way over a bridge, is known at one broker alone, and two that
each took a part would have to agree on every partition and every lane where the one ends and the
other begins.

So both stay where they are: at the queue's *base*, the broker where it was made. In the step in
which the queue leaves it, an endpoint takes its place there, the *trail*, which takes just that:
what bridges bring for the queue, and the plain records that it takes. A link of the trail's own
brings it after the queue, as any bridge would: in order, once, held back while the queue is full or
on its way. So each message is taken in once, by the base, whatever moves when.

- A queue that is not at its base takes nothing from bridges that end where it is, and no plain
  records there.
- What its topics bring otherwise is offered to it where it is (`mesh.topic_routes`), except by who
  has a bridge to its base: from there the message comes over the bridge.
- Where the queue is at its base again, the trail is first emptied into it, and then gone.
- Until then the base hears from the queue's broker which topics it takes (`QueueTakes`).
- Where the base is removed from the home, the queue's broker is its base from then on. So who is
  removed takes plain records until it is as far as all were who heard of that, and says where it
  ends (`mesh.last_reading`); what comes behind that is put aside there, in case it stays, and at
  the queue's broker, in case it goes, which takes none that is before (`resuming`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...definitions import QueueDefinition, parse_definition, to_wire
from ...definitions.bridge import NONE
from ...definitions.definition_values import MOVED_PREFIX
from ...protocol.outputs import Capture
from ...protocol.queue_moves import Adopted, QueueTakes, TrailReads
from ..commands import administration
from ..commands.topic_subscriptions import add, remove, topics_of
from ..mesh import known_places
from ..mesh.partitions import last_said
from ..mesh.saying import say
from ..mesh.topic_routes import changed, changed_capture, kind_of_topics
from ..routing import add_route, drop_route
from . import link as links
from . import resuming
from .bases import base_of, is_based_at

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue

LOCAL = "LocalQueue"


def trail_of(broker: Broker, vpn: str, name: str) -> Queue | None:
    """The trail of a queue that was made here; None: it is here, and was never away, or it was not
    made here."""
    return broker.find(vpn, MOVED_PREFIX + name) if broker.header.trails else None


# ---------------------------------------------------------------- at the base


def leave(broker: Broker, queue: Queue, topics: list[str]) -> None:
    """A queue leaves this broker, and nobody finds it here any more: if it was made here, its trail
    takes its place."""
    points = resuming.points(broker, queue)
    resuming.keep(broker, queue, {})
    header, definition = queue.header, queue.definition
    if base_of(broker, queue) != broker.header.number:
        return
    vpn, name = definition.vpn, definition.name
    trail = trail_of(broker, vpn, name)
    if trail is None:
        trail = administration.create(broker, vpn, _definition_of(definition), NONE)
        broker.header.trails[trail.number] = name
        endpoint = trail.definition.name
        links.save(broker, trail.number, links.Link(vpn, endpoint, 0, "", NONE, queue=name))
        add_route(broker, trail.definition, trail.number)
        add(broker, vpn, trail, topics)
    _follow(broker, trail, definition, topics)
    trail.header.created, trail.header.pointed = header.created, header.pointed
    resuming.keep(broker, trail, points)
    if header.plain:
        reads(broker, trail)


def _definition_of(queue: QueueDefinition) -> QueueDefinition:
    """A trail takes everything; the queue looks at it as it comes there."""
    given = {
        "name": queue.name, "vpn": queue.vpn, "message_type": "binary", "type": LOCAL,
        "max_message_size": "11MB",
    }  # fmt: skip
    return msgspec.structs.replace(
        parse_definition(given), name=MOVED_PREFIX + queue.name,
        underlying_topic=queue.underlying_topic, recovery_point=queue.recovery_point,
        default_publish_target=queue.default_publish_target,
    )  # fmt: skip


def _follow(broker: Broker, trail: Queue, definition: QueueDefinition, topics: list[str]) -> None:
    """The queue is this, and takes these topics, from now on."""
    vpn, new = definition.vpn, _definition_of(definition)
    if trail.definition != new:
        drop_route(broker, trail.definition, trail.number)
        trail.header.definition = new
        add_route(broker, new, trail.number)
    remove(broker, vpn, trail, sorted({*topics_of(broker, trail)} - {*topics}))
    add(broker, vpn, trail, topics)


def reads(broker: Broker, trail: Queue) -> None:
    """Plain records have come for the queue; so this broker has to stay."""
    from ..mesh.keepership import to_keeper

    if not trail.header.plain:
        trail.header.plain = True
        vpn, name = broker.vpn_of(trail), broker.header.trails[trail.number]
        to_keeper(broker, TrailReads(vpn, name))


def base_reads(broker: Broker, vpn: str, queue: Queue) -> None:
    """The first plain record comes for a queue that is here: its base, where that is here, stays,
    wherever the queue goes."""
    from ..mesh.keepership import to_keeper

    if broker.header.peers and is_based_at(broker, queue, (broker.header.number,)):
        to_keeper(broker, TrailReads(vpn, queue.definition.name))


def arrived(broker: Broker, vpn: str, queue: Queue) -> None:
    """A queue has come here; perhaps it is at its base again."""
    trail = trail_of(broker, vpn, queue.definition.name)
    if trail is not None:
        queue.header.plain |= trail.header.plain
        resuming.keep(broker, queue, resuming.points(broker, trail))
        trail.wanted = True
        close_if_done(broker, trail)


def close_if_done(broker: Broker, trail: Queue) -> None:
    """A trail goes when the queue is here and has all that it held."""
    vpn, name = broker.vpn_of(trail), broker.header.trails[trail.number]
    queue = broker.find(vpn, name)
    if (
        queue is not None
        and not known_places.is_moving(queue)
        and not (trail.header.depth or trail.header.unread)
    ):
        _close(broker, vpn, trail)


def _close(broker: Broker, vpn: str, trail: Queue) -> None:
    """Nothing is in it."""
    resuming.keep(broker, trail, {})
    links.forget(broker, trail.number)
    administration.forget(broker, vpn, trail)
    trail.drop()


def idle(broker: Broker) -> set[int]:
    """Trails that hold nothing: those keep a broker that is to be removed from nothing. They stay,
    for the broker may."""
    found = ((number, broker.queue(number)) for number in broker.header.trails)
    return {number for number, trail in found if trail is not None and not trail.header.depth}


def deleted(broker: Broker, vpn: str, name: str) -> None:
    """A queue is gone, wherever it was (S7)."""
    trail = trail_of(broker, vpn, name)
    if trail is not None:
        from ...protocol import commands as c

        links.forget(broker, trail.number)
        administration.delete(broker, vpn, trail, c.Delete(queue=trail.definition.name))


def hear_takes(broker: Broker, sender: int, said: QueueTakes) -> None:
    """The queue's broker says what it is now."""
    trail = trail_of(broker, said.vpn, said.queue)
    if trail is not None:
        definition = parse_definition({"vpn": said.vpn, **said.definition})
        _follow(broker, trail, definition, said.topics)


# ---------------------------------------------------------------- where the queue is


def tell_base(broker: Broker, vpn: str, queue: Queue) -> None:
    """Say to a queue's base what it is now."""
    if not broker.header.peers or queue.definition.type != LOCAL:
        return
    base, definition = base_of(broker, queue), queue.definition
    topics = topics_of(broker, queue)
    if base in broker.header.peers:
        say(broker, base, QueueTakes(vpn, definition.name, to_wire(definition), topics))
        return
    trail = trail_of(broker, vpn, definition.name)
    if trail is not None:
        _follow(broker, trail, definition, topics)


def adopt(broker: Broker, gone: list[int]) -> None:
    """These brokers are no longer of the home; the base of a queue that was made there is where it
    is. None of them is on its way: while its base is removed a queue does not move."""
    from ..mesh.captures import begin_to_read
    from ..mesh.keepership import to_keeper

    for vpn in sorted(broker.header.vpns):
        for name in broker.queue_names(vpn):
            queue = broker.find(vpn, name)
            if queue is None or queue.header.base not in gone:
                continue
            queue.header.base, captured = -1, queue.definition.underlying_topic
            resuming.keep(broker, queue, last_said(broker, queue))
            topics = topics_of(broker, queue)
            for topic in topics:
                changed(broker, vpn, kind_of_topics(topic), topic)
            changed_capture(broker, vpn, name, captured)
            broker.emit(Capture(captured))
            begin_to_read(broker, vpn, queue, topics)
            to_keeper(broker, Adopted(vpn, name, broker.header.number))
