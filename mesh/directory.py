"""The directory of a home's queues and their hosts (Q5, M1).

The first broker keeps it. Any other broker forwards definitions to the keeper. The keeper checks a
definition, numbers it, sends it to all others, and answers when all have confirmed. So a message
that is published after the answer finds the queue at any broker. If one refuses, all get the
definition back that the queue had before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from typing import Any

import msgspec

from ..definitions import (
    QueueDefinition,
    dead_message_ring,
    parse_definition,
    redefine,
    wrong_hosts,
)
from ..definitions.definition import defined_over, name_of, to_wire
from ..definitions.definition_values import ENDPOINT_PREFIX
from ..protocol import commands as c
from ..protocol.errors import ConfigError, LakequeueError, Problem, no_such_queue
from ..protocol.mesh_messages import Entries, HasMoved, Heard, SaidEntry, SaidTopic
from ..protocol.outputs import DirectoryEntry, Reply
from ..protocol.patterns import kind_of
from ..state.commands.administration import check_vpn, define, delete, owned, shutdown
from ..state.commands.topic_subscriptions import check_room, check_subscribed
from ..state.queue.broker import Broker
from ..state.queue.mesh_interface import LATER
from ..state.rules.routing import add_topic, drop_topic, forget_found, has_topic, set_topics
from . import credit, moves, stand_ins
from .channel import say
from .facts import (
    Before,
    Entry,
    MeshFacts,
    Peer,
    ReplyAddress,
    WaitingAnswer,
    entry_of,
    key_of,
)
from .queue_placement import QueuePlacement, check_move, needs_one_host

ENTRIES_MAX = 100  # in one record
# Applies a bridge's definition, or its deletion (None): VPN, endpoint's name, definition → how many
# messages waited for a deleted bridge.
ApplyBridge = Callable[[str, str, dict[str, Any] | None], int]

_encode = msgspec.msgpack.encode
_entry = msgspec.msgpack.Decoder(Entry)


# ---------------------------------------------------------------- the keeper


class Keeper:
    """Changes the directory; only one broker of the home does. apply_bridge: applies changes of
    bridges here."""

    def __init__(self, broker: Broker, facts: MeshFacts, apply_bridge: ApplyBridge) -> None:
        self._broker, self._facts, self._apply_bridge = broker, facts, apply_bridge
        self._placed: QueuePlacement | None = None  # made when the first queue is placed

    def define(self, vpn: str, command: c.Define) -> Any:
        """Define a queue, or define it again (Q9)."""
        identity = name_of(command.definition)
        before = None if identity is None else entry_of(self._facts, vpn, identity[1])
        mapping = command.definition
        if before is not None and not command.replace:
            mapping = defined_over(before.definition, mapping)
        mapping = owned(self._broker, None if before is None else before.definition, mapping)
        definition = parse_definition({"vpn": vpn, **mapping})
        self._check(vpn, definition)
        if before is None:
            topics = sorted(definition.subscriptions)
            if self._placed is None:
                self._placed = QueuePlacement(self._facts)
            entry = Entry(definition, self._placed.hosts(vpn, definition), topics)
        else:
            entry = self._again(before, definition)
            if entry == before and command.reply is None and not self._failed(entry):
                return None  # the configuration repeats it at each start
        old = Before(vpn, definition.name, None if before is None else before.definition)
        self._change(vpn, definition.name, entry, command, old=old)
        return LATER

    def enter_bridge(self, vpn: str, name: str, entry: Entry | None, command: c.Command) -> Any:
        """Enter a checked bridge. Its endpoint is a queue of the home, so messages published
        anywhere reach it. entry: None to delete it."""
        before = entry_of(self._facts, vpn, name)
        if entry is not None and before is not None:
            entry.made, entry.move, entry.born = before.made, before.move, before.born
        self._change(vpn, name, entry, command)
        return LATER

    def delete(self, vpn: str, command: c.Delete) -> Any:
        """Delete a queue at all its hosts (S7)."""
        self._stays(vpn, command.queue)
        self._change(vpn, command.queue, None, command)
        return LATER

    def move(self, vpn: str, command: c.MoveQueue) -> Any:
        """Begin to move a queue (`moves`)."""
        entry, name, facts = self._stays(vpn, command.queue), command.queue, self._facts
        check_move(entry.definition, command.broker, tuple(facts.brokers), facts.groups)
        to = facts.brokers[command.broker]
        if entry.hosts == [to]:
            return None
        number = facts.edition + 1
        facts.moves[key_of(vpn, name)] = _reply_address(command)
        self._change(vpn, name, msgspec.structs.replace(entry, move=number, moves_to=to), None)
        return LATER

    def moved(self, sender: int, message: HasMoved) -> None:
        """Finish a move: the queue is at its new host, or has stayed."""
        facts, key = self._facts, key_of(message.vpn, message.queue)
        entry = entry_of(facts, message.vpn, message.queue)
        if key not in facts.moves or entry is None or entry.move != message.move:
            return  # a repetition
        reply = facts.moves.pop(key)
        hosts = entry.hosts if message.error else [sender]
        there = msgspec.structs.replace(entry, hosts=hosts, moves_to=None)
        # The old host forwards messages that others still send there, so the answer need not wait.
        self._change(message.vpn, message.queue, there, reply, error=message.error, at_once=True)

    def subscribe_topic(self, vpn: str, command: c.SubscribeTopic) -> Any:
        """Add a topic subscription to a queue at all its hosts."""
        kind_of(command.topic)
        present = self._existing(vpn, command.queue).topics
        is_new = not has_topic(present, command.topic)
        if is_new:
            check_room(command.queue, len(present), [command.topic])
        self._change_topic(SaidTopic(vpn, command.queue, command.topic), command, is_new)
        return LATER

    def unsubscribe_topic(self, vpn: str, command: c.UnsubscribeTopic) -> Any:
        """Remove a topic subscription. Stored messages are still delivered (S7)."""
        present = self._existing(vpn, command.queue).topics
        check_subscribed(command.queue, present, command.topic)
        self._change_topic(SaidTopic(vpn, command.queue, command.topic, is_gone=True), command)
        return LATER

    def shutdown(self, vpn: str, command: c.Shutdown) -> Any:
        """Shut down or open a queue at all its hosts (H5). Clients tell each host; the first one
        has done it."""
        entry = self._existing(vpn, command.queue)
        changed = msgspec.structs.replace(
            entry, ingress=not command.ingress, egress=not command.egress
        )
        if changed == entry:
            return None
        self._change(vpn, command.queue, changed, command)
        return LATER

    def heard(self, sender: int, message: Heard) -> None:
        """Note that a broker knows the directory up to an edition, and send the answers that waited
        for it."""
        waiting = self._facts.waiting
        self._facts.peers[sender].confirmed = message.edition
        at = bisect_left(waiting, message.edition, key=_edition)
        if at < len(waiting) and waiting[at].edition == message.edition:
            one = waiting[at]
            if message.error and not one.error:
                name = self._facts.peers[sender].name
                one.error = f"broker {name!r} refuses, so nothing is changed: {message.error}"
            one.result = message.waited or one.result
        others = (self._facts.peers[number].confirmed for number in self._others())
        known_by_all = min(others, default=message.edition)
        answered = bisect_right(waiting, known_by_all, key=_edition)
        for one in waiting[:answered]:
            if not (one.error and self._take_back(one)):
                self._answer(one)
        del waiting[:answered]

    def _take_back(self, one: WaitingAnswer) -> bool:
        """Give all hosts of a queue the definition back that it had before a broker refused the new
        one, and answer then; returns whether this is necessary. If a later definition waits for its
        answer, it is the one to be taken back, if a broker refuses it too."""
        before, facts = one.before, self._facts
        entry = None if before is None else entry_of(facts, before.vpn, before.queue)
        if before is None or entry is None or entry.born > one.edition:
            return False  # it was deleted meanwhile
        key = before.vpn, before.queue
        for other in facts.waiting:
            its = other.before if other.edition > one.edition else None
            if its is not None and (its.vpn, its.queue) == key:
                other.before = before
                return False
        if before.definition is not None:
            entry = _defined(entry, before.definition)
        elif key_of(*key) in facts.moves:
            return False
        else:
            entry = None
        self._change(*key, entry, one.reply, error=one.error)
        return True

    def _others(self) -> list[int]:
        return sorted(set(self._facts.peers) - {self._broker.header.number})

    def _failed(self, entry: Entry) -> bool:
        """Whether the queue failed here. Defining it again repairs it."""
        queue = self._broker.find(entry.definition.vpn, entry.definition.name)
        return queue is not None and bool(queue.header.faulted)

    def _existing(self, vpn: str, queue: str) -> Entry:
        entry = entry_of(self._facts, vpn, queue)
        if entry is None:
            raise no_such_queue(queue, vpn)
        if entry.bridge is not None:
            raise ConfigError(
                f"queue: {queue!r} – is the endpoint of a bridge: you can browse it, purge it and "
                "shut it down; the engine removes it"
            )
        return entry

    def _stays(self, vpn: str, queue: str) -> Entry:
        """Like `_existing`, but raises LakequeueError for a queue that is moving."""
        entry = self._existing(vpn, queue)
        if key_of(vpn, queue) in self._facts.moves:
            raise LakequeueError(f"queue {queue!r}: is moving now, try again later")
        return entry

    def _check(self, vpn: str, definition: QueueDefinition) -> None:
        check_vpn(self._broker, vpn, definition)
        where, facts = f"queue {definition.name!r}", self._facts
        names = tuple(facts.brokers)
        found = wrong_hosts(definition, names, facts.groups, "allowed are the home's brokers")
        problems = [Problem(where, *one) for one in found]

        def target_of(name: str) -> str | None:
            entry = entry_of(facts, vpn, name)
            return None if entry is None else entry.definition.dead_message_queue

        ring = dead_message_ring(definition, target_of)  # X5
        if ring:
            problems.append(
                Problem(where, "dead_message_queue", definition.dead_message_queue, ring)
            )
        if problems:
            raise ConfigError(problems)

    def _again(self, before: Entry, new: QueueDefinition) -> Entry:
        old = before.definition
        problems = redefine(old, new)
        if len(before.hosts) > 1 and needs_one_host(new):
            key = "partition_key" if new.partition_key is not None else "barrier_expression"
            allowed = "needs one broker, but the queue has several: delete the queue first"
            problems.append(Problem(f"queue {new.name!r}", key, getattr(new, key), allowed))
        owner = new.initial_owner
        if owner is not None and self._facts.brokers[owner] not in before.hosts:
            names = ", ".join(n for n, at in self._facts.brokers.items() if at in before.hosts)
            allowed = f"must be a host of the existing queue: {names}"
            problems.append(Problem(f"queue {new.name!r}", "initial_owner", owner, allowed))
        if problems:
            raise ConfigError(problems)
        return _defined(before, new)

    def _change(
        self, vpn: str, name: str, entry: Entry | None, to: c.Command | ReplyAddress | None,
        result: bool | int | None = None, error: str = "", at_once: bool = False,
        old: Before | None = None,
    ) -> None:  # fmt: skip
        """Apply a change here, send it to the others, and answer when all have confirmed, or at
        once. to: the command to answer, or its reply address; old: see `WaitingAnswer.before`."""
        broker, facts = self._broker, self._facts
        before = entry_of(facts, vpn, name)
        if before is None and entry is not None:
            entry.made, entry.move, entry.born = broker.now, facts.edition + 1, facts.edition + 1
        waited = apply_entry(broker, facts, vpn, name, entry, self._apply_bridge)
        if self._placed is not None:
            self._placed.change(vpn, name, before, entry)
        if entry is None and name.startswith(ENDPOINT_PREFIX):
            result = waited
        reply = _reply_address(to) if isinstance(to, c.Command) else to
        facts.edition += 1
        self._emit_entry(vpn, name, entry)
        waiting = WaitingAnswer(facts.edition, reply, result, error, old)
        self._tell([wire_entry(vpn, name, entry)], None, waiting, at_once)

    def _change_topic(
        self, message: SaidTopic, command: c.Command, result: bool | None = None
    ) -> None:
        """Like `_change`, for one topic subscription of a queue that may have thousands."""
        apply_topic(self._broker, self._facts, message)
        self._facts.edition += 1
        waiting = WaitingAnswer(self._facts.edition, _reply_address(command), result)
        self._tell([], message, waiting)

    def _tell(
        self, entries: list[SaidEntry], topic: SaidTopic | None, waiting: WaitingAnswer,
        at_once: bool = False,
    ) -> None:  # fmt: skip
        """Send a change to the others, and answer."""
        broker, facts = self._broker, self._facts
        message = Entries(facts.edition, entries, facts.brokers, facts.groups, topic)
        for number in self._others():
            say(broker, facts, number, message)
        if self._others() and not at_once:
            if waiting.reply is not None or waiting.before is not None:
                facts.waiting.append(waiting)
        else:
            self._answer(waiting)

    def say_all(self, to: int) -> None:
        """Send the whole directory to a broker that may have lost changes."""
        facts = self._facts
        message = [
            wire_entry(vpn, name, entry) for vpn, entries in sorted(facts.entries.items())
            for name, entry in sorted(entries.items())
        ]  # fmt: skip
        for at in range(0, len(message), ENTRIES_MAX):
            part = message[at : at + ENTRIES_MAX]
            say(self._broker, facts, to, Entries(facts.edition, part, facts.brokers, facts.groups))

    def say_untold(self) -> None:
        """Publish to clients what has changed while the home was at rest (M4)."""
        untold, self._facts.untold = self._facts.untold, []
        for vpn, name in untold:
            self._emit_entry(vpn, name, entry_of(self._facts, vpn, name))

    def _emit_entry(self, vpn: str, name: str, entry: Entry | None) -> None:
        if name.startswith(ENDPOINT_PREFIX):  # no client uses it
            return
        names = {number: name for name, number in self._facts.brokers.items()}
        hosts = {} if entry is None else {names[number]: number for number in entry.hosts}
        kind, epoch = "" if entry is None else entry.definition.type, self._broker.header.epoch
        state = "" if entry is None else "there" if entry.moves_to is None else "moving"
        self._broker.emit(DirectoryEntry(vpn, name, hosts, kind, state, epoch, self._facts.edition))

    def _answer(self, waiting: WaitingAnswer) -> None:
        if waiting.reply is None:
            return
        error, kind = waiting.error or None, "LakequeueError" if waiting.error else None
        epoch = self._broker.header.epoch
        result = None if error else waiting.result
        self._broker.emit(Reply(*waiting.reply, result, error, kind, epoch=epoch))


# ---------------------------------------------------------------- all brokers


def _edition(waiting: WaitingAnswer) -> int:
    return waiting.edition


def _reply_address(command: c.Command) -> ReplyAddress | None:
    """The reply address of a command."""
    to = command.reply
    return None if to is None else (to.topic, to.partition, to.request)


def _defined(before: Entry, new: QueueDefinition) -> Entry:
    """A queue's entry with a new definition. Topics subscribed at run time stay."""
    gone = set(before.definition.subscriptions) - set(new.subscriptions)
    topics = set(before.topics) - gone | set(new.subscriptions)
    return msgspec.structs.replace(before, definition=new, topics=sorted(topics))


def wire_entry(vpn: str, name: str, entry: Entry | None) -> SaidEntry:
    """An entry in its form on the wire."""
    return SaidEntry(vpn, name, None if entry is None else _encode(entry))


def set_brokers(
    broker: Broker, facts: MeshFacts, brokers: dict[str, int], groups: dict[str, str]
) -> None:
    """Set the home's brokers."""
    if (facts.brokers, facts.groups) == (brokers, groups):
        return
    facts.brokers, facts.groups = dict(brokers), dict(groups)
    for name, number in brokers.items():
        if number != broker.header.number:
            facts.peers.setdefault(number, Peer(name, confirmed=facts.edition))
    forget_found(broker)


def without_bridges(vpn: str, name: str, bridge: dict[str, Any] | None) -> int:
    """The `ApplyBridge` of a broker without bridges."""
    return 0


def hear_entries(
    broker: Broker, facts: MeshFacts, sender: int, message: Entries, apply_bridge: ApplyBridge
) -> None:
    """Apply the keeper's changes, and confirm them."""
    set_brokers(broker, facts, message.brokers, message.groups)
    error, waited = "", 0
    for one in message.entries:
        entry = None if one.entry is None else _entry.decode(one.entry)
        try:
            waited += apply_entry(broker, facts, one.vpn, one.queue, entry, apply_bridge)
        except (LakequeueError, ValueError) as failed:
            error = str(failed)
            broker.event("definition_refused", one.vpn, one.queue, why=error)
    if message.topic is not None:
        apply_topic(broker, facts, message.topic)
    facts.edition = message.edition
    say(broker, facts, sender, Heard(message.edition, error, waited))


def apply_topic(broker: Broker, facts: MeshFacts, message: SaidTopic) -> None:
    """Apply one change of a queue's topic subscriptions, also to the queue if it is hosted here."""
    entry = entry_of(facts, message.vpn, message.queue)
    if entry is None:
        return  # its creation was lost: the whole directory will be sent again
    is_there = has_topic(entry.topics, message.topic)
    if is_there and message.is_gone:
        del entry.topics[bisect_left(entry.topics, message.topic)]
    elif not is_there and not message.is_gone:
        insort(entry.topics, message.topic)
    queue = broker.find(message.vpn, message.queue)
    if queue is not None and broker.header.number in entry.hosts:
        (drop_topic if message.is_gone else add_topic)(broker, queue, message.topic)
        if is_there == message.is_gone:
            event = "topic_unsubscribed" if message.is_gone else "topic_subscribed"
            broker.event(event, message.vpn, message.queue, topic=message.topic)
    facts.directory_changed = True
    forget_found(broker)


def apply_entry(
    broker: Broker, facts: MeshFacts, vpn: str, name: str, entry: Entry | None,
    apply_bridge: ApplyBridge = without_bridges,
) -> int:  # fmt: skip
    """Apply a queue's entry, also to the queue if it is hosted here; returns how many messages
    waited for a deleted bridge."""
    own, waited = broker.header.number, 0
    is_bridge = name.startswith(ENDPOINT_PREFIX)
    if is_bridge:
        waited = apply_bridge(vpn, name, None if entry is None else entry.bridge)
    here = broker.find(vpn, name)
    if entry is None:
        if here is not None and not is_bridge:
            delete(broker, vpn, c.Delete(queue=name))
        _forget(broker, facts, vpn, name)
        facts.entries.get(vpn, {}).pop(name, None)
    else:
        moves.keep_finished(broker, facts, vpn, name, entry)
        if own in entry.hosts and not is_bridge:
            define(broker, vpn, c.Define(definition=to_wire(entry.definition)))
            queue = broker.find(vpn, name)
            assert queue is not None
            set_topics(broker, queue, entry.topics)
            header = queue.header
            if (header.ingress, header.egress) != (entry.ingress, entry.egress):
                command = c.Shutdown(queue=name, ingress=not entry.ingress, egress=not entry.egress)
                shutdown(broker, vpn, queue, command)
        facts.entries.setdefault(vpn, {})[name] = entry
        moves.follow(broker, facts, vpn, name, entry)
        stand_ins.follow(broker, facts, vpn, name)
    broker.vpn_number(vpn)
    facts.directory_changed = True
    forget_found(broker)
    return waited


def _forget(broker: Broker, facts: MeshFacts, vpn: str, name: str) -> None:
    """Forget a deleted queue and the messages that waited for it (S7)."""
    facts.coming.pop(key_of(vpn, name), None)
    credit.forget(facts, vpn, name)
    queue = stand_ins.find(broker, vpn, name)
    if queue is not None:
        del facts.lanes[queue.number]
        facts.retries.pop(queue.number, None)
        delete(broker, vpn, c.Delete(queue=queue.definition.name))
