"""The keeper of the directory: the first broker of the home changes it (Q5, Q9, M1).

Other brokers forward definitions to the keeper. The keeper checks a definition, numbers it, sends
it to all others, and answers when all have confirmed the record (`channel`). So a message that is
published after the answer finds the queue at any broker. The keeper's check is the only one, so it
needs only what the directory has: what other brokers store cannot refuse a definition.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import msgspec

from ..definitions import QueueDefinition, parse_definition, redefine
from ..definitions.definition import defined_over, name_of
from ..definitions.definition_values import ENDPOINT_PREFIX
from ..protocol import commands as c
from ..protocol.errors import ConfigError, LakequeueError, Problem, no_such_queue
from ..protocol.mesh_messages import (
    ChangedEntry,
    ChangedTopic,
    Entries,
    HasMoved,
    decode_body,
    encode_body,
)
from ..protocol.outputs import DirectoryEntry, Reply
from ..protocol.patterns import kind_of
from ..state.commands.administration import check_allowed, check_bookmark, check_number, owned
from ..state.commands.topic_subscriptions import check_room, check_subscribed
from ..state.queue.broker import Broker
from ..state.queue.mesh_interface import LATER
from ..state.rules.routing import has_topic
from .bridges.bridge_facts import BridgeFacts
from .channel import CHANNEL, say
from .directory import carry_out, change_topic, enter_entry, enter_topic, wire_entry
from .facts import (
    Entry,
    MeshFacts,
    Peer,
    ReplyAddress,
    WaitingAnswer,
    entry_of,
    keeper_of,
    key_of,
)
from .queue_placement import QueuePlacement, check_move, needs_one_host


class Keeper:
    """Changes the directory; only one broker of the home does."""

    def __init__(self, broker: Broker, facts: MeshFacts, bridges: BridgeFacts) -> None:
        self._broker, self._facts, self._bridges = broker, facts, bridges
        self._placed: QueuePlacement | None = None  # made when the first queue is placed
        self._waiting_bytes = sum(one.size for one in facts.waiting)

    def check_room(self) -> None:
        """Raise LakequeueError if too many changes wait to be confirmed."""
        facts, limits, waiting = self._facts, self._broker.limits, self._facts.waiting
        is_full = len(waiting) >= limits.unconfirmed_changes
        if waiting and (is_full or self._waiting_bytes >= limits.unconfirmed_bytes):
            late = [facts.peers[number] for number in self._others()]
            last = waiting[-1].edition
            names = ", ".join(repr(one.name) for one in late if self._known_edition(one) < last)
            raise LakequeueError(
                f"{len(waiting)} changes of queues wait until broker {names} confirms them, and no "
                "more may: start that broker or remove it from the home, then try again"
            )

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
            number = len(self._facts.entries.get(vpn, ()))
            check_number(self._broker, vpn, definition.name, number)
            topics = sorted(definition.subscriptions)
            if self._placed is None:
                self._placed = QueuePlacement(self._facts)
            entry = Entry(definition, self._placed.hosts(vpn, definition), topics)
            hosts = {self._facts.name_of(number): number for number in entry.hosts}
            check_bookmark(None, definition, hosts)
        else:
            entry = self._again(before, definition)
            if entry == before and command.reply is None and not self._failed(entry):
                return None  # the configuration repeats it at each start
        self._change(vpn, definition.name, entry, command)
        return LATER

    def enter_bridge(
        self, vpn: str, name: str, entry: Entry | None, command: c.Command,
        result: int | None = None,
    ) -> Any:  # fmt: skip
        """Enter a checked bridge. Its endpoint is a queue of the home, so messages published
        anywhere reach it. entry: None to delete it."""
        before = entry_of(self._facts, vpn, name)
        if entry is not None and before is not None:
            entry.made, entry.move, entry.born = before.made, before.move, before.born
        self._change(vpn, name, entry, command, result)
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
        """Finish a move: the queue is at its new host, or has stayed. Both hosts may have ended
        it. If it ends later, only its caller is answered."""
        facts = self._facts
        key, entry = key_of(message.vpn, message.queue), entry_of(facts, message.vpn, message.queue)
        if entry is None or entry.move != message.move or key not in facts.moves:
            return
        if message.is_late:
            self._answer(facts.moves[key], error=message.error)
            facts.moves[key] = None
            return
        reply = facts.moves.pop(key)
        hosts = entry.hosts if message.error else [sender]
        there = msgspec.structs.replace(entry, hosts=hosts, moves_to=None)
        self._change(message.vpn, message.queue, there, None)
        # The old host forwards messages that others still send there, so the answer need not wait.
        self._answer(reply, error=message.error)

    def subscribe_topic(self, vpn: str, command: c.SubscribeTopic) -> Any:
        """Add a topic subscription to a queue at all its hosts."""
        kind_of(command.topic)
        present = self._existing(vpn, command.queue).topics
        is_new = not has_topic(present, command.topic)
        if is_new:
            check_room(command.queue, len(present), [command.topic])
        self._change_topic(ChangedTopic(vpn, command.queue, command.topic), command, is_new)
        return LATER

    def unsubscribe_topic(self, vpn: str, command: c.UnsubscribeTopic) -> Any:
        """Remove a topic subscription. Stored messages are still delivered (S7)."""
        present = self._existing(vpn, command.queue).topics
        check_subscribed(command.queue, present, command.topic)
        self._change_topic(ChangedTopic(vpn, command.queue, command.topic, is_gone=True), command)
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

    def answer_confirmed(self) -> None:
        """Send the answers to the changes that all brokers have confirmed."""
        waiting = self._facts.waiting
        if not waiting:
            return
        known_by_all = self._facts.edition
        for number in self._others():
            self._broker.at = CHANNEL, number, 0
            peer = self._facts.peers[number]
            known_by_all = min(known_by_all, 0 if peer.is_stopped else self._known_edition(peer))
        self._broker.at = None
        answered = bisect_right(waiting, known_by_all, key=lambda one: one.edition)
        for one in waiting[:answered]:
            self._answer(one.reply, one.result)
        self._waiting_bytes -= sum(one.size for one in waiting[:answered])
        del waiting[:answered]

    def _known_edition(self, peer: Peer) -> int:
        """The last edition of the directory that another broker has confirmed."""
        for sent in peer.unconfirmed:
            message = decode_body(sent.kind, sent.body) if sent.kind == Entries.kind else None
            if isinstance(message, Entries):
                return message.edition - 1
        return self._facts.edition

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
        def targets_of(name: str) -> list[str | None]:
            entry = entry_of(self._facts, vpn, name)
            return [] if entry is None else [entry.definition.dead_message_queue]

        check_allowed(self._broker, vpn, definition, targets_of)

    def _again(self, before: Entry, new: QueueDefinition) -> Entry:
        """The entry of a queue that is defined again."""
        old, after = before.definition, _defined(before, new)
        added = sorted(set(after.topics) - set(before.topics))
        check_room(new.name, len(after.topics) - len(added), added)
        problems = redefine(old, new)
        if len(before.hosts) > 1 and needs_one_host(new):
            key = "partition_key" if new.partition_key is not None else "barrier_expression"
            allowed = "needs one broker, but the queue has several: delete the queue first"
            problems.append(Problem(f"queue {new.name!r}", key, getattr(new, key), allowed))
        if old.max_spool_usage and not new.max_spool_usage:  # a host would lose messages (S10)
            allowed = "cannot become 0 in a home of several brokers: delete the queue first"
            problems.append(Problem(f"queue {new.name!r}", "max_spool_usage", 0, allowed))
        owner = new.initial_owner
        if owner is not None and self._facts.brokers[owner] not in before.hosts:
            names = ", ".join(map(self._facts.name_of, before.hosts))
            allowed = f"must be a host of the existing queue: {names}"
            problems.append(Problem(f"queue {new.name!r}", "initial_owner", owner, allowed))
        if problems:
            raise ConfigError(problems)
        check_bookmark(old, new, {self._facts.name_of(number): number for number in before.hosts})
        return after

    def _change(
        self, vpn: str, name: str, entry: Entry | None, command: c.Command | None,
        result: int | None = None,
    ) -> None:  # fmt: skip
        """Send a change to the others, apply it here, and answer when all have confirmed."""
        broker, facts = self._broker, self._facts
        before = entry_of(facts, vpn, name)
        if before is None and entry is not None:
            entry.made, entry.move, entry.born = broker.now, facts.edition + 1, facts.edition + 1
        facts.edition += 1
        # First: what this broker says when it applies the change waits there for the change.
        self._tell([wire_entry(vpn, name, entry)], None, command, result)
        enter_entry(broker, facts, vpn, name, entry)
        carry_out(broker, facts, self._bridges, vpn, name)
        if self._placed is not None:
            self._placed.change(vpn, name, before, entry)
        self._emit_entry(vpn, name, entry)

    def _change_topic(
        self, message: ChangedTopic, command: c.Command, result: bool | None = None
    ) -> None:
        """Like `_change`, for one topic subscription of a queue that may have thousands."""
        enter_topic(self._broker, self._facts, message)
        change_topic(self._broker, message)
        self._facts.edition += 1
        self._tell([], message, command, result)

    def _tell(
        self, entries: list[ChangedEntry], topic: ChangedTopic | None, command: c.Command | None,
        result: bool | int | None,
    ) -> None:  # fmt: skip
        """Send a change to the others, and answer when all have confirmed."""
        broker, facts = self._broker, self._facts
        message = Entries(facts.edition, entries, facts.brokers, facts.groups, topic)
        for number in self._others():
            say(broker, facts, number, message)
        if command is None:  # of a move, which is answered at its end
            return
        reply = _reply_address(command)
        if self._others():
            waiting = WaitingAnswer(facts.edition, reply, result, len(encode_body(message)))
            self._waiting_bytes += waiting.size
            facts.waiting.append(waiting)
        else:
            self._answer(reply, result)

    def publish_directory(self) -> None:
        """Publish the whole directory to clients. The last records may be missing in Kafka, or
        those of a replaced worker, and what changed at rest was not published yet (M4)."""
        facts = self._facts
        if facts.brokers and keeper_of(facts) == self._broker.header.number:
            for (vpn, name), entry in sorted(facts.queues(), key=lambda one: one[0]):
                self._emit_entry(vpn, name, entry)

    def _emit_entry(self, vpn: str, name: str, entry: Entry | None) -> None:
        if name.startswith(ENDPOINT_PREFIX):  # no client uses it
            return
        numbers = () if entry is None else entry.hosts
        hosts = {self._facts.name_of(number): number for number in numbers}
        kind, epoch = "" if entry is None else entry.definition.type, self._broker.header.epoch
        state = "" if entry is None else "there" if entry.moves_to is None else "moving"
        self._broker.emit(DirectoryEntry(vpn, name, hosts, kind, state, epoch, self._facts.edition))

    def _answer(
        self, reply: ReplyAddress | None, result: bool | int | None = None, error: str = ""
    ) -> None:
        if reply is not None:
            kind, epoch = "LakequeueError" if error else None, self._broker.header.epoch
            self._broker.emit(Reply(*reply, result, error or None, kind, epoch=epoch))


def _reply_address(command: c.Command) -> ReplyAddress | None:
    """The reply address of a command."""
    to = command.reply
    return None if to is None else (to.topic, to.partition, to.request)


def _defined(before: Entry, new: QueueDefinition) -> Entry:
    """A queue's entry with a new definition. Topics subscribed at run time stay."""
    gone = set(before.definition.subscriptions) - set(new.subscriptions)
    topics = set(before.topics) - gone | set(new.subscriptions)
    return msgspec.structs.replace(before, definition=new, topics=sorted(topics))
