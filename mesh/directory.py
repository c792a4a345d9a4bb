"""The directory of a home's queues and their hosts, as each broker has it (Q5, M1).

The first broker keeps it (`keeper`), and sends each change to all others.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import msgspec

from ..definitions.bridge import parse_bridge
from ..definitions.definition_values import ENDPOINT_PREFIX
from ..protocol import commands as c
from ..protocol.mesh_messages import ChangedEntry, ChangedTopic, Entries
from ..state.commands.administration import apply_definition, delete_withdrawn, shutdown
from ..state.queue.broker import Broker
from ..state.rules.routing import change_topics, forget_found, has_topic, set_topics, withdraw
from . import credit, moves, stand_ins
from .bridges import bridge_commands
from .bridges.bridge_facts import BridgeFacts
from .channel import ask_for_early
from .facts import Entry, MeshFacts, Peer, entry_of, hosts_now

_encode = msgspec.msgpack.encode
_entry = msgspec.msgpack.Decoder(Entry)


def wire_entry(vpn: str, name: str, entry: Entry | None) -> ChangedEntry:
    """An entry in its form on the wire."""
    return ChangedEntry(vpn, name, None if entry is None else _encode(entry))


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
    broker: Broker, facts: MeshFacts, bridges: BridgeFacts, sender: int, message: Entries
) -> None:
    """Apply the keeper's changes. Changes that failed here come again, maybe after later ones: what
    counts is the directory of now."""
    is_late = message.edition <= facts.edition
    if not is_late:
        enter(broker, facts, message)
    for one in message.entries:
        if one.entry is None:
            _delete(broker, facts, one.vpn, one.queue)
        carry_out(broker, facts, bridges, one.vpn, one.queue)
    topic = message.topic
    if topic is not None and is_late:
        carry_out(broker, facts, bridges, topic.vpn, topic.queue)
    elif topic is not None:
        change_topic(broker, topic)


def enter(broker: Broker, facts: MeshFacts, message: Entries) -> None:
    """Enter changes into the directory, which no definition can make fail. So it is the same at all
    brokers, and messages about its edition need not wait for a broker that fails to do more."""
    set_brokers(broker, facts, message.brokers, message.groups)
    for one in message.entries:
        entry = None if one.entry is None else _entry.decode(one.entry)
        enter_entry(broker, facts, one.vpn, one.queue, entry)
    if message.topic is not None:
        enter_topic(broker, facts, message.topic)
    facts.edition = message.edition
    ask_for_early(broker, facts)


def enter_entry(
    broker: Broker, facts: MeshFacts, vpn: str, name: str, entry: Entry | None
) -> None:  # fmt: skip
    """Enter a queue's new entry. None: it was deleted."""
    known = entry_of(facts, vpn, name)
    if entry is None:
        facts.entries.get(vpn, {}).pop(name, None)
        _withdraw(broker, facts, vpn, name)
    else:
        if known is not None and (known.move, known.moves_to) == (entry.move, None):
            entry.moves_to = None  # called back here, and the keeper will know
        facts.entries.setdefault(vpn, {})[name] = entry
        if entry.moves_to is None:
            moves.expect_no_more(broker, facts, vpn, name)
    broker.vpn_number(vpn)
    facts.directory_changed = True
    forget_found(broker)


def enter_topic(broker: Broker, facts: MeshFacts, message: ChangedTopic) -> None:
    """Enter one change of a queue's topic subscriptions."""
    topics, topic = facts.entries[message.vpn][message.queue].topics, message.topic
    is_there = has_topic(topics, topic)
    if is_there and message.is_gone:
        del topics[bisect_left(topics, topic)]
    elif not is_there and not message.is_gone:
        insort(topics, topic)
    facts.directory_changed = True
    forget_found(broker)


def change_topic(broker: Broker, message: ChangedTopic) -> None:
    """Make an entered change of topic subscriptions at the queue, if it is hosted here."""
    queue = broker.find(message.vpn, message.queue)
    if queue is None or has_topic(queue.header.topics, message.topic) != message.is_gone:
        return
    gone, new = ([message.topic], []) if message.is_gone else ([], [message.topic])
    change_topics(broker, queue, gone, new)
    event = "topic_unsubscribed" if message.is_gone else "topic_subscribed"
    broker.event(event, message.vpn, message.queue, topic=message.topic)


def carry_out(
    broker: Broker, facts: MeshFacts, bridges: BridgeFacts, vpn: str, name: str
) -> None:  # fmt: skip
    """Do what a queue's entry says, if the queue is hosted here, moves here, or has messages that
    wait here."""
    own, entry = broker.header.number, entry_of(facts, vpn, name)
    if entry is None:
        bridge = name.removeprefix(ENDPOINT_PREFIX)
        if bridge != name and bridge in bridges.definitions.get(vpn, {}):
            bridge_commands.end(broker, bridges, vpn, bridge)
        _delete(broker, facts, vpn, name)
        return
    if entry.bridge is not None:
        new = parse_bridge(entry.bridge)
        bridge_commands.begin(broker, bridges, new, facts.brokers, entry.born)
    elif own in hosts_now(broker, facts, vpn, name, entry):
        queue = apply_definition(broker, entry.definition)
        set_topics(broker, queue, entry.topics)
        header = queue.header
        if (header.ingress, header.egress) != (entry.ingress, entry.egress):
            command = c.Shutdown(queue=name, ingress=not entry.ingress, egress=not entry.egress)
            shutdown(broker, queue, command)
    if entry.moves_to == own:
        moves.expect(broker, facts, vpn, name, entry)
    stand_ins.follow(broker, facts, vpn, name)
    forget_found(broker)


def _withdraw(broker: Broker, facts: MeshFacts, vpn: str, name: str) -> None:
    """Let nothing find a deleted queue any more, nor the messages that wait for it (S7)."""
    credit.forget(facts, vpn, name)
    here = None if name.startswith(ENDPOINT_PREFIX) else broker.find(vpn, name)
    for queue in (here, stand_ins.find(broker, vpn, name)):
        if queue is not None:
            facts.lanes.pop(queue.number, None)
            facts.retries.pop(queue.number, None)
            withdraw(broker, queue)
            queue.header.deleted = True
            broker.touch(queue)
            facts.withdrawn.append(queue.number)


def _delete(broker: Broker, facts: MeshFacts, vpn: str, name: str) -> None:
    """Delete what was withdrawn under this name."""
    for queue in [broker.queues[number] for number in facts.withdrawn]:
        was = queue.header.stands_for or queue.definition.name
        if (queue.definition.vpn, was) == (vpn, name):
            delete_withdrawn(broker, queue)
            facts.withdrawn.remove(queue.number)
