"""The directory of a home's queues and their hosts, as each broker has it (Q5, M1).

The first broker keeps it (`keeper`), and sends each change to all others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from contextlib import suppress

import msgspec

from ..definitions.bridge import parse_bridge
from ..definitions.definition_values import ENDPOINT_PREFIX
from ..protocol import commands as c
from ..protocol.mesh_messages import Entries, SaidEntry, SaidTopic
from ..state.commands.administration import apply_definition, delete, shutdown
from ..state.queue.broker import Broker
from ..state.rules.routing import change_topics, forget_found, has_topic, set_topics
from . import credit, moves, stand_ins
from .bridges import bridge_commands
from .bridges.bridge_facts import BridgeFacts
from .facts import Entry, MeshFacts, Peer, entry_of, hosts_now

_encode = msgspec.msgpack.encode
_entry = msgspec.msgpack.Decoder(Entry)


def wire_entry(vpn: str, name: str, entry: Entry | None) -> SaidEntry:
    """An entry in its form on the wire."""
    return SaidEntry(vpn, name, None if entry is None else _encode(entry))


def set_brokers(
    broker: Broker, facts: MeshFacts, brokers: dict[str, int], groups: dict[str, str]
) -> None:
    """Set the home's brokers. A late instruction may still name a removed one."""
    brokers = {name: number for name, number in brokers.items() if number not in facts.removed}
    if (facts.brokers, facts.groups) == (brokers, groups):
        return
    facts.brokers, facts.groups = brokers, dict(groups)
    for name, number in brokers.items():
        if number != broker.header.number:
            facts.peers.setdefault(number, Peer(name))
    forget_found(broker)


def hear_entries(
    broker: Broker, facts: MeshFacts, message: Entries, bridges: BridgeFacts
) -> None:  # fmt: skip
    """Apply the keeper's changes."""
    set_brokers(broker, facts, message.brokers, message.groups)
    for one in message.entries:
        entry = None if one.entry is None else _entry.decode(one.entry)
        apply_entry(broker, facts, bridges, one.vpn, one.queue, entry)
    if message.topic is not None:
        apply_topic(broker, facts, message.topic)
    facts.edition = message.edition


def enter_only(broker: Broker, facts: MeshFacts, message: Entries) -> None:
    """Enter changes that could not be applied because of an error; nothing else has changed. The
    directory is the same at all brokers, and messages about its edition need not wait. A queue that
    is hosted here is as before, until it is defined again; one that is to move here stays."""
    set_brokers(broker, facts, message.brokers, message.groups)
    for one in message.entries:
        entries = facts.entries.setdefault(one.vpn, {})
        if one.entry is None:
            entries.pop(one.queue, None)
        else:
            with suppress(msgspec.DecodeError):  # it may be what failed
                entries[one.queue] = entry = _entry.decode(one.entry)
                moves.follow_failed(broker, facts, one.vpn, one.queue, entry)
    topic = message.topic
    changed = None if topic is None else entry_of(facts, topic.vpn, topic.queue)
    if topic is not None and changed is not None:
        _enter_topic(changed, topic)
    facts.edition, facts.directory_changed = message.edition, True
    forget_found(broker)


def _enter_topic(entry: Entry, message: SaidTopic) -> bool:
    """Change a queue's topic subscriptions in the directory. Whether the topic was there."""
    is_there = has_topic(entry.topics, message.topic)
    if is_there and message.is_gone:
        del entry.topics[bisect_left(entry.topics, message.topic)]
    elif not is_there and not message.is_gone:
        insort(entry.topics, message.topic)
    return is_there


def apply_topic(broker: Broker, facts: MeshFacts, message: SaidTopic) -> None:
    """Apply one change of a queue's topic subscriptions, also to the queue if it is hosted here."""
    is_there = _enter_topic(facts.entries[message.vpn][message.queue], message)
    queue = broker.find(message.vpn, message.queue)
    if queue is not None:
        if has_topic(queue.header.topics, message.topic) == message.is_gone:
            gone, new = ([message.topic], []) if message.is_gone else ([], [message.topic])
            change_topics(broker, queue, gone, new)
        if is_there == message.is_gone:
            event = "topic_unsubscribed" if message.is_gone else "topic_subscribed"
            broker.event(event, message.vpn, message.queue, topic=message.topic)
    facts.directory_changed = True
    forget_found(broker)


def apply_entry(
    broker: Broker, facts: MeshFacts, bridges: BridgeFacts, vpn: str, name: str, entry: Entry | None
) -> None:
    """Apply a queue's entry, also to the queue if it is hosted here."""
    own = broker.header.number
    is_bridge = name.startswith(ENDPOINT_PREFIX)
    if is_bridge and entry is None:
        bridge_commands.end(broker, bridges, vpn, name.removeprefix(ENDPOINT_PREFIX))
    elif entry is not None and entry.bridge is not None:
        bridge = parse_bridge(entry.bridge)
        bridge_commands.begin(broker, bridges, bridge, facts.brokers, entry.born)
    here = broker.find(vpn, name)
    if entry is None:
        if here is not None and not is_bridge:
            delete(broker, vpn, c.Delete(queue=name))
        _forget(broker, facts, vpn, name)
        facts.entries.get(vpn, {}).pop(name, None)
    else:
        if not is_bridge and own in hosts_now(broker, facts, vpn, name, entry):
            queue = apply_definition(broker, entry.definition)
            set_topics(broker, queue, entry.topics)
            header = queue.header
            if (header.ingress, header.egress) != (entry.ingress, entry.egress):
                command = c.Shutdown(queue=name, ingress=not entry.ingress, egress=not entry.egress)
                shutdown(broker, queue, command)
        known = entry_of(facts, vpn, name)
        if known is not None and (known.move, known.moves_to) == (entry.move, None):
            entry.moves_to = None  # called back here, and the keeper will know
        facts.entries.setdefault(vpn, {})[name] = entry
        moves.follow(broker, facts, vpn, name, entry)
        stand_ins.follow(broker, facts, vpn, name)
    broker.vpn_number(vpn)
    facts.directory_changed = True
    forget_found(broker)


def _forget(broker: Broker, facts: MeshFacts, vpn: str, name: str) -> None:
    """Forget a deleted queue and the messages that waited for it (S7)."""
    credit.forget(facts, vpn, name)
    queue = stand_ins.find(broker, vpn, name)
    if queue is not None:
        del facts.lanes[queue.number]
        facts.retries.pop(queue.number, None)
        delete(broker, vpn, c.Delete(queue=queue.definition.name))
