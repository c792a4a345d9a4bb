"""Credit: how a broker with free consumers gets messages of a distributed queue (H4).

A host whose consumers have room, and which has no messages for them, tells the other hosts how many
messages it can take, by filter. There, this becomes a subscription like any other, but it is served
after all local ones, and only with messages that no local consumer can take. Its messages are not
leased but in transit. When they are stored here, this broker owns them.

The room is a total that only grows, so messages in transit count once: the subscription may take
what was granted and not used. The room is sent again when half of it is used. It is taken back if
messages come that no consumer here can take any more; these are ready here, for whoever has room.
Zero means that no consumer here has this filter any more: both sides forget their counts, and
neither counts the messages in transit.
"""

from __future__ import annotations

from typing import Any

from ..protocol.mesh_messages import Room
from ..state.queue.broker import Broker
from ..state.queue.header import Subscription
from ..state.queue.queue import Queue
from ..state.rules.fairness import backlog_of
from .channel import say
from .facts import Credit, MeshFacts, born_of, credit_key, entry_of, is_of_queue, key_of
from .stand_ins import FRAMING, end_if_idle

Rooms = dict[str | None, int]


def other_hosts(broker: Broker, facts: MeshFacts, queue: Queue) -> list[int]:
    """The other hosts of a distributed queue. A queue with quota 0 (S10) is separate at each
    host."""
    definition = queue.definition
    entry = entry_of(facts, definition.vpn, definition.name)
    if entry is None or queue.header.deleted or not definition.max_spool_usage:
        return []
    return [number for number in entry.hosts if number != broker.header.number]


def tell_room(broker: Broker, facts: MeshFacts) -> None:
    """At the end of a step, tell other hosts how much room the consumers here have."""
    for queue in broker.touched.values():
        if queue.dropped or queue.wanted or queue.header.stands_for:
            continue
        hosts = other_hosts(broker, facts, queue)
        if not hosts:
            continue
        rooms = _rooms(queue)
        header = queue.header
        ready = header.depth - header.leased - header.delayed
        for host in hosts:
            changed = _changed(broker, facts, queue, host, rooms, ready)
            if changed:
                vpn, name = broker.vpn_of(queue), queue.definition.name
                say(broker, facts, host, Room(vpn, name, changed, born_of(facts, vpn, name)))
        key = key_of(broker.vpn_of(queue), queue.definition.name)
        if facts.filters.get(key, []) != list(rooms):
            facts.credits_changed = True
            facts.filters[key] = list(rooms)
            if not rooms:
                del facts.filters[key]


def ask_again(broker: Broker, facts: MeshFacts, host: int) -> None:
    """Forget all credits at a host, which is told `Heard.again` (`forget_lent`), and send the
    consumers' room again."""
    for queue in broker.queues.values():
        if queue.header.stands_for or host not in other_hosts(broker, facts, queue):
            continue
        vpn, name = broker.vpn_of(queue), queue.definition.name
        for text in facts.filters.get(key_of(vpn, name), []):
            facts.asked.pop(credit_key(host, vpn, name, text), None)
        queue.wanted = True
        broker.touch(queue)
    facts.credits_changed = True


def _rooms(queue: Queue) -> Rooms:
    """How many more messages consumers here can take, by filter; filters without room included."""
    header, definition = queue.header, queue.definition
    rooms: Rooms = {}
    left = 1 << 62
    if definition.max_backlog is not None:
        left = max(definition.max_backlog - header.leased, 0)
    for one in header.subscriptions:
        if one.broker is not None or one.ending:
            continue
        room = max(backlog_of(definition, one) - one.held, 0) if header.egress else 0
        # The queue's remaining leases (B1) count for each filter, since any may have the matches.
        rooms[one.filter] = min(rooms.get(one.filter, 0) + room, left)
    return rooms


def _changed(
    broker: Broker, facts: MeshFacts, queue: Queue, host: int, rooms: Rooms, ready: int
) -> list[tuple[str | None, int]]:
    """Update the credits at a host; returns the changes to send."""
    vpn, name = broker.vpn_of(queue), queue.definition.name
    changed: list[tuple[str | None, int]] = []
    before = facts.filters.get(f"{vpn}/{name}", [])
    for text in (*rooms, *(text for text in before if text not in rooms)):
        key = credit_key(host, vpn, name, text)
        credit = facts.asked.get(key)
        room = rooms.get(text, 0)
        if credit is None:
            if not room:
                continue
            credit = facts.asked[key] = Credit()
        out = credit.granted - credit.used
        if text not in rooms:
            credit.granted = 0
        elif room and out < (room + 1) // 2:
            credit.granted = credit.used + room
        elif not room and out > 0 and ready:
            credit.granted = credit.used
        else:
            continue
        if not credit.granted:  # both forget it
            del facts.asked[key]
        changed.append((text, credit.granted))
    facts.credits_changed = facts.credits_changed or bool(changed)
    return changed


def hear_room(broker: Broker, facts: MeshFacts, sender: int, message: Room) -> None:
    """Make or update the subscription of another host that has room. That host may know a queue
    that this broker has yet to make, or not know yet that one was deleted."""
    entry = entry_of(facts, message.vpn, message.queue)
    born = facts.edition if entry is None else entry.born
    if message.born > born:
        facts.early_rooms.append((sender, message))
        return
    queue = broker.find(message.vpn, message.queue)
    if queue is None or message.born < born:
        return
    facts.credits_changed = True
    for text, granted in message.granted:
        one = _subscription(facts, queue, sender, text)
        key = credit_key(sender, message.vpn, message.queue, text)
        if not granted:
            facts.lent.pop(key, None)
            _end(queue, one)
            continue
        credit = facts.lent.setdefault(key, Credit())
        credit.granted, one.ending = granted, ""
        one.max_backlog = max(granted - credit.used, 0)
    queue.wanted = True
    broker.touch(queue)


def forget_lent(broker: Broker, facts: MeshFacts, host: int) -> None:
    """Forget all credits of a host that has forgotten them too (`ask_again`). The word that ended
    one may be lost, and the next one counts from zero."""
    for queue in broker.queues.values():
        vpn, name = broker.vpn_of(queue), queue.definition.name
        for one in list(queue.header.subscriptions):
            key = credit_key(host, vpn, name, one.filter)
            if one.broker == host and facts.lent.pop(key, None) is not None:
                _end(queue, one)
                broker.touch(queue)
    facts.credits_changed = True


def _end(queue: Queue, one: Subscription) -> None:
    """End another host's subscription: no consumer there has this filter any more."""
    one.max_backlog, one.ending = 0, "no room any more"
    end_if_idle(queue, one)


def hear_early(broker: Broker, facts: MeshFacts) -> None:
    """Handle the rooms for queues that this broker did not know before."""
    early, facts.early_rooms = facts.early_rooms, []
    for sender, message in early:
        hear_room(broker, facts, sender, message)


def forget(facts: MeshFacts, vpn: str, name: str) -> None:
    """Forget all credits and refusals of a deleted queue."""
    facts.credits_changed = True
    facts.filters.pop(key_of(vpn, name), None)
    credits: dict[str, Any]
    for credits in (facts.asked, facts.lent, facts.refusing):
        for key in [one for one in credits if is_of_queue(one, vpn, name)]:
            del credits[key]


def _subscription(facts: MeshFacts, queue: Queue, sender: int, text: str | None) -> Subscription:
    """The other broker's subscription with this filter, made at first use."""
    header = queue.header
    for one in header.subscriptions:
        if one.broker == sender and one.filter == text:
            return one
    one = Subscription(
        id=f"#{sender}" if text is None else f"#{sender}/{text}", number=header.next_subscription,
        name=facts.peers[sender].name, session="", topic="", partition=0, framing=FRAMING,
        removes_on_send=False, filter=text, max_backlog=0, broker=sender,
    )  # fmt: skip
    header.next_subscription += 1
    header.subscriptions.append(one)
    return one
