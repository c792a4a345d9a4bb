"""Credit: how a broker with free consumers gets messages of a distributed queue (H4).

A host whose consumers have room, but no messages, tells the other hosts how many messages it can
take, by filter. There, this becomes a subscription that is served after all local ones, and only
with messages that no local consumer can take. Its messages are not leased but in transit. Once they
are stored here, this broker owns them.

The room includes messages in transit: it is the subscription's backlog. It shrinks here with each
message that arrives, and there with each one that is answered. Answers and rooms keep their order,
so both brokers have the same number whenever nothing is in transit. The room is sent again when
half of it is used. It is taken back if messages arrive that no consumer here can take any more;
these become ready here. The subscription ends when no consumer here has its filter any more.
"""

from __future__ import annotations

from ..protocol.mesh_messages import HandOver, Room
from ..state.queue.broker import Broker
from ..state.queue.header import Subscription
from ..state.queue.queue import Queue
from .channel import say
from .facts import Credits, MeshFacts, born_of, entry_of, hosts_now
from .stand_ins import end_if_idle, subscription_of

Rooms = dict[str | None, int]  # by filter


def other_hosts(broker: Broker, facts: MeshFacts, queue: Queue) -> list[int]:
    """The other hosts of a distributed queue. A queue with quota 0 (S10) is separate at each
    host."""
    definition = queue.definition
    entry = entry_of(facts, definition.vpn, definition.name)
    if entry is None or queue.header.deleted or not definition.max_spool_usage:
        return []
    hosts = hosts_now(broker, facts, definition.vpn, definition.name, entry)
    return [number for number in hosts if number != broker.header.number]


def tell_room(broker: Broker, facts: MeshFacts) -> None:
    """At the end of a step, tell other hosts how much room the consumers here have."""
    limit, is_back = broker.limits.unconfirmed_records, False
    for peer in facts.peers.values():
        is_full = len(peer.unconfirmed) >= limit
        is_back = is_back or (peer.is_full and not is_full)
        peer.is_full = is_full
    for queue in (broker.queues if is_back else broker.touched).values():
        if queue.dropped or queue.wanted or queue.header.stands_for or queue.header.faulted:
            continue
        broker.at = queue
        hosts = other_hosts(broker, facts, queue)
        if not hosts:
            continue
        vpn, name = key = queue.definition.vpn, queue.definition.name
        told, rooms = facts.credits.rooms.get(key, {}), _rooms(queue)
        for host in hosts:
            if host in facts.peers and facts.peers[host].is_full:
                continue
            changed = _changed(queue, told.setdefault(host, {}), rooms)
            if changed:
                facts.credits_changed = True
                say(broker, facts, host, Room(vpn, name, changed, born_of(facts, vpn, name)))
        if any(told.values()):
            facts.credits.rooms[key] = told
        else:
            facts.credits.rooms.pop(key, None)
    broker.at = None


def _rooms(queue: Queue) -> Rooms:
    """How many more messages consumers here can take, by filter; filters without room included."""
    header, definition = queue.header, queue.definition
    left = 1 << 62
    if definition.max_backlog is not None:
        left = max(definition.max_backlog - header.leased, 0)
    if not header.egress:
        left = 0
    # The queue's remaining leases (B1) count for each filter, since any may have the matches.
    return {text: min(spare, left) for text, spare in queue.consumers.spare(definition).items()}


def _changed(queue: Queue, left: Rooms, rooms: Rooms) -> list[tuple[str | None, int | None]]:
    """Update what is left of the room that a host knows; returns the changes to send."""
    header = queue.header
    ready = header.depth - header.leased - header.delayed
    changed: list[tuple[str | None, int | None]] = []
    for text, room in rooms.items():
        before = left.get(text, 0)
        if (room and before < (room + 1) // 2) or (not room and before and ready):
            left[text] = room
            changed.append((text, room))
    for text in [text for text in left if text not in rooms]:
        del left[text]
        changed.append((text, None))
    return changed


def count_come(facts: MeshFacts, sender: int, message: HandOver, n: int) -> None:
    """Count granted messages that have come. Their owner counts them when they are answered."""
    left = facts.credits.rooms.get((message.vpn, message.queue), {}).get(sender, {})
    if not message.waiting and message.filter in left:
        left[message.filter] = max(left[message.filter] - n, 0)
        facts.credits_changed = True


def forget_all(broker: Broker, facts: MeshFacts) -> None:
    """Forget all rooms and refusals while the home is at rest. Brokers with room tell it again, to
    the new hosts."""
    for queue in broker.queues.values():
        for one in [] if queue.header.stands_for else list(queue.header.subscriptions):
            if one.broker in facts.peers:
                _end(queue, one)
                broker.touch(queue)
    facts.credits, facts.credits_changed = Credits(), True


def hear_room(broker: Broker, facts: MeshFacts, sender: int, message: Room) -> None:
    """Make or update the subscription of another host that has room. The other broker may not know
    yet that the queue was deleted."""
    queue = broker.find(message.vpn, message.queue)
    if queue is None or message.born != born_of(facts, message.vpn, message.queue):
        return
    for text, room in message.rooms:
        one = subscription_to(facts, queue, sender, text)
        if room is None:
            _end(queue, one)
        else:
            one.max_backlog, one.ending = room, ""
    queue.wanted = True
    broker.touch(queue)


def _end(queue: Queue, one: Subscription) -> None:
    """End another host's subscription: no consumer there has this filter any more."""
    one.max_backlog, one.ending = 0, "no room any more"
    end_if_idle(queue, one)


def forget(facts: MeshFacts, vpn: str, name: str) -> None:
    """Forget all rooms and refusals of a deleted queue."""
    facts.credits_changed = True
    facts.credits.rooms.pop((vpn, name), None)
    facts.credits.refused.pop((vpn, name), None)


def subscription_to(
    facts: MeshFacts, queue: Queue, sender: int, text: str | None = None
) -> Subscription:
    """The other broker's subscription with this filter, made at first use."""
    header = queue.header
    for one in header.subscriptions:
        if one.broker == sender and one.filter == text:
            return one
    name = f"#{sender}" if text is None else f"#{sender}/{text}"
    one = subscription_of(name, header.next_subscription, facts.peers[sender].name, sender, text)
    header.next_subscription += 1
    queue.consumers.add(one)
    return one
