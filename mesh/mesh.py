"""The other brokers of a home, as one of them sees them: implements `MeshInterface`.

A broker is a client of the others. Every message that crosses belongs to a queue here and is given
to a subscription of the other broker: messages that wait for its queue (`stand_ins`), and messages
of a distributed queue for its consumers (`credit`). The other broker stores the message and
confirms it (`handover`); then it is removed here. A producer's receipt does not wait for any of
that (M2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..definitions.definition_values import ENDPOINT_PREFIX
from ..protocol import commands as c
from ..protocol.errors import ConfigError, LakequeueError, Moved
from ..protocol.mesh_messages import (
    Answer,
    Carry,
    Come,
    Entries,
    Forward,
    HandOver,
    HasMoved,
    Heard,
    MeshMessage,
    Room,
)
from ..protocol.messages import QUEUE_ALONE, Records
from ..protocol.signing import Speaker
from ..state.commands.administration import shutdown
from ..state.commands.dispatch import INSPECTIONS, TOLERANT
from ..state.commands.intake import carry_out
from ..state.commands.permissions import NEEDS, check_level, queue_of
from ..state.limits import Budget
from ..state.queue.broker import Broker
from ..state.queue.broker_facts import RecordPosition
from ..state.queue.header import Subscription, Task
from ..state.queue.mesh_interface import LATER, MeshInterface
from ..state.queue.queue import Queue
from ..state.rules.edits import TRANSIT
from ..state.rules.routing import TopicTable, has_topic
from ..state.storage.row import NEVER, Row
from ..state.storage.spool import Content
from . import credit, directory, handover, in_transit_commands, moves, stand_ins
from .channel import hear, say
from .facts import Entry, MeshFacts, entry_of, keeper_of, load_facts, mark_facts
from .keeper import Keeper


class _HomeTable(TopicTable):
    """The topics of a VPN's queues at all brokers, by one edition of the directory. Queues are
    numbered by their index in `listed`."""

    def __init__(self, edition: int, listed: list[tuple[str, Entry]]) -> None:
        super().__init__(
            (at, entry.definition, entry.topics) for at, (_, entry) in enumerate(listed)
        )
        self.edition, self.listed = edition, listed


class Mesh(MeshInterface):
    """The other brokers. facts: what this broker knows about them."""

    def __init__(self, broker: Broker, facts: MeshFacts) -> None:
        self._broker, self.facts = broker, facts
        self._keeper = Keeper(broker, facts, self._apply_bridge)
        self._tables: dict[str, _HomeTable] = {}  # by VPN
        # In this step: brokers to which everything was repeated; what was lost from them since.
        self._repeated: set[int] = set()
        self._lost: dict[int, int] = {}
        self._forwarded_by: int | None = None  # the command that is being carried out
        self.commands = {
            c.Peers: self._peers,
            c.Define: self.kept(self._keeper.define),
            c.Delete: self.kept(self._keeper.delete),
            c.MoveQueue: self._move,
            c.Shutdown: self._shutdown,
            c.SubscribeTopic: self.kept(self._keeper.subscribe_topic),
            c.UnsubscribeTopic: self._unsubscribe_topic,
        }
        self.handlers: dict[str, Callable[[int, Any], None]] = {
            HandOver.kind: partial(handover.handed_over, broker, facts),
            Answer.kind: partial(stand_ins.answered, broker, facts),
            Room.kind: partial(credit.hear_room, broker, facts),
            Entries.kind: self._hear_entries,
            Heard.kind: self._heard,
            Forward.kind: self._forwarded,
            Come.kind: partial(moves.may_come, broker, facts),
            Carry.kind: partial(moves.carried, broker, facts),
            HasMoved.kind: self._keeper.moved,
        }
        self.failures: dict[str, Callable[[int, Any], None]] = {
            HandOver.kind: partial(handover.failed, broker, facts)
        }

    @classmethod
    def load(cls, broker: Broker) -> Mesh:
        """The mesh from the broker's pages; empty if it has met no other broker."""
        return cls(broker, load_facts(broker.store))

    def mark(self) -> None:
        """Write what has changed since the last mark."""
        mark_facts(self._broker.store, self.facts)

    @property
    def brokers(self) -> tuple[str, ...]:
        """The names of the home's brokers."""
        return tuple(self.facts.brokers)

    @property
    def groups(self) -> Mapping[str, str]:
        """The group of each broker that is in one."""
        return self.facts.groups

    # ------------------------------------------------------------ a step

    def hear(self, records: Records, skipped: Mapping[RecordPosition, str]) -> None:
        """Read records of the others, and retry refused lanes."""
        if self.facts.rejoined:
            self._greet()
        self._keeper.say_untold()
        hear(self._broker, self.facts, records, skipped, self.handlers, self.failures, self._missed)
        for sender in sorted(self._lost):
            self._repeat_all(sender)
        self._repeated.clear()
        self._end_moves()
        stand_ins.retry(self._broker, self.facts)

    def speak(self) -> None:
        """Write to the others at the end of a step."""
        if self.facts.peers:
            credit.tell_room(self._broker, self.facts)

    def deadline(self) -> int:
        """When the mesh needs a step, epoch ms, or NEVER."""
        return 1 if self.facts.untold or self.facts.rejoined else stand_ins.next_retry(self.facts)

    def _greet(self) -> None:
        """Write to all others after this broker was rebuilt. Its last records may be lost with the
        old Kafka; the others notice the gap in the numbers (`channel`)."""
        facts, own = self.facts, self._broker.header.number
        facts.rejoined = False
        for number in sorted(facts.peers):
            self.say(number, Heard(facts.edition))
        if facts.brokers and keeper_of(facts) == own:  # the directory topics may be new and empty
            facts.untold = [(v, name) for v in sorted(facts.entries) for name in facts.entries[v]]

    def _missed(self, sender: int, number: int) -> None:
        """Handle lost records of another broker. They may have been answers, so both brokers repeat
        everything unconfirmed: at the first loss, before anything else is answered, and at the end
        of the step for all others. If each loss were answered, repetitions that lose records would
        be followed by ever more."""
        self.facts.peers[sender].is_behind = True
        self._lost[sender] = number
        if sender not in self._repeated:
            self._repeat_all(sender)

    def _heard(self, sender: int, message: Heard) -> None:
        if message.again:
            self.facts.peers[sender].is_behind = False
            credit.end_all(self._broker, self.facts, sender)
        if message.missed > self.facts.peers[sender].again:
            self._repeat_all(sender)
        self._keeper.heard(sender, message)

    def _end_moves(self) -> None:
        """Enter moves that ended at the keeper into the directory."""
        ended, self.facts.ended = self.facts.ended, []
        for one in ended:
            try:
                self._keeper.moved(self._broker.header.number, one)
            except (LakequeueError, ValueError) as error:
                self._broker.event("mesh_refused", one.vpn, why=str(error))

    def _repeat_all(self, to: int) -> None:
        """Repeat everything unconfirmed to a broker: messages, credits, the directory."""
        broker, facts, own = self._broker, self.facts, self._broker.header.number
        facts.peers[to].again = facts.peers[to].said
        self._repeated.add(to)
        self.say(to, Heard(facts.edition, missed=self._lost.pop(to, 0), again=True))
        if to != own:
            moves.expect_again(broker, facts, to)
            if facts.brokers and keeper_of(facts) == own:
                self._keeper.say_all(to)
            itself = facts.peers.get(own)
            if itself is not None and itself.said > itself.heard:  # what it wrote to itself may be
                self.say(own, Heard(facts.edition))  # lost too, and the next record shows it
        stand_ins.send_again(broker, facts, to)
        credit.tell_again(broker, facts, to)

    def left(self, queue: Queue, rows: list[Row]) -> None:
        if not queue.header.depth:
            stand_ins.emptied(self._broker, self.facts, queue)

    def leave(self, queue: Queue, task: Task, budget: Budget) -> bool:
        has_left = moves.leave(self._broker, self.facts, queue, task, budget)
        if has_left:
            self._keeper.hosts_changed()
        return has_left

    def forward_for_moving(self, queue: Queue, command: Any, ids: list[int]) -> int:
        return in_transit_commands.keep(self._broker, self.facts, queue, command, ids)

    def send(
        self, queue: Queue, subscription: Subscription, rows: list[Row], contents: list[Content]
    ) -> None:
        stand_ins.send(self._broker, self.facts, queue, subscription, rows, contents)

    def _hear_entries(self, sender: int, message: Entries) -> None:
        directory.hear_entries(self._broker, self.facts, sender, message, self._apply_bridge)
        self._tables.clear()  # the edition does not grow if one before it was lost
        credit.hear_early(self._broker, self.facts)

    def _apply_bridge(self, vpn: str, name: str, bridge: dict[str, Any] | None) -> int:
        """Apply a bridge's definition or deletion, see `ApplyBridge`; `BridgedBroker` does it."""
        return 0

    def say(self, to: int, message: MeshMessage) -> None:
        """Send a message to another broker."""
        say(self._broker, self.facts, to, message)

    # ------------------------------------------------------------ commands

    def check_own_number(self, command: c.Peers) -> None:
        """Raise ConfigError unless the list of brokers has this one, with its number."""
        header = self._broker.header
        own = command.brokers.get(header.name)
        if own != header.number:
            raise ConfigError(
                f"brokers: {header.name!r} with number {own} – it has number {header.number}"
            )

    def _peers(self, vpn: str, command: c.Peers) -> None:
        """Set the home's brokers. Raises ConfigError unless this is one of them."""
        self.check_own_number(command)
        directory.set_brokers(self._broker, self.facts, command.brokers, command.groups)

    def kept(self, carry_out: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
        """A handler for a command that the keeper of the directory carries out."""

        def handler(vpn: str, command: Any) -> Any:
            """Carry out the command as the keeper; forward it as any other broker."""
            facts, own = self.facts, self._broker.header.number
            keeper = keeper_of(facts) if facts.brokers else own
            if keeper != own:
                self.forward(vpn, command, keeper)
                return LATER
            self._keeper.check_room()
            speaker, needed = self._broker.speaker, NEEDS.get(type(command))
            if speaker is not None and needed is not None:  # the queue may be on another broker
                name = queue_of(command)
                entry = entry_of(facts, vpn, name)
                if entry is not None:
                    check_level(speaker, name, entry.definition, needed)
            return carry_out(vpn, command)

        return handler

    def _move(self, vpn: str, command: c.MoveQueue) -> Any:
        """Move a queue. Moving it to where it is calls back a move that has not begun."""
        broker, facts, own = self._broker, self.facts, self._broker.header.number
        entry = entry_of(facts, vpn, command.queue)
        is_back = entry is not None and entry.moves_to is not None
        if entry is None or not is_back or facts.brokers.get(command.broker) != entry.hosts[0]:
            if facts.brokers and self._forwarded_by == keeper_of(facts):
                # The keeper believes that the queue may be called back: the record that it has
                # come, or stays, may be lost, and the next one shows it.
                self.say(keeper_of(facts), Heard(facts.edition))
                raise LakequeueError(f"queue {command.queue!r}: is moving now, try again later")
            return self.kept(self._keeper.move)(vpn, command)
        if entry.hosts[0] != own:
            self.forward(vpn, command, entry.hosts[0])
            return LATER
        moves.stay(broker, facts, vpn, command.queue, entry)
        self._end_moves()
        return None

    def _unsubscribe_topic(self, vpn: str, command: c.UnsubscribeTopic) -> Any:
        """Remove a topic subscription. Clients tell each host; the first one has done it."""
        entry = entry_of(self.facts, vpn, command.queue)
        done = entry is not None and not has_topic(entry.topics, command.topic)
        if entry is not None and done and self._broker.header.number != entry.hosts[0]:
            return None
        return self.kept(self._keeper.unsubscribe_topic)(vpn, command)

    def _shutdown(self, vpn: str, command: c.Shutdown) -> Any:
        """Shut down a queue at all hosts, or a stand-in here."""
        queue = self._broker.find(vpn, command.queue)
        if queue is not None and queue.header.stands_for:
            return shutdown(self._broker, vpn, queue, command)
        entry = entry_of(self.facts, vpn, command.queue)
        if entry is not None and entry.bridge is not None and self.forward_command(vpn, command):
            return LATER
        return self.kept(self._keeper.shutdown)(vpn, command)

    def forward(self, vpn: str, command: c.Command, to: int) -> None:
        """Forward a client's command to the broker that answers it."""
        who = self._broker.speaker
        client, admin = ("", False) if who is None else (who.client, who.admin)
        say(self._broker, self.facts, to, Forward(vpn, c.encode_command(command), client, admin))

    def _forwarded(self, sender: int, message: Forward) -> None:
        """Carry out a command that another broker forwards."""
        command = c.decode_command(message.command)
        speaker = (
            Speaker(message.client, "", message.admin) if message.client or message.admin else None
        )
        self._forwarded_by = sender
        carry_out(self._broker, message.vpn, command, speaker)
        self._forwarded_by = None

    def forward_command(self, vpn: str, command: Any) -> bool:
        """See `MeshInterface`. A command without a reply was sent before the queue moved, so it is
        forwarded; the sender of any other command must ask there."""
        broker, facts, name = self._broker, self.facts, command.queue
        if not moves.is_away(facts, broker.header.number, vpn, name):
            return False
        queue = broker.find(vpn, name)
        if type(command) in TOLERANT or (queue is not None and type(command) in INSPECTIONS):
            return False
        hosts = moves.where(facts, vpn, name)
        if command.reply is None:
            self.forward(vpn, command, min(hosts.values()))
            return True
        names = ", ".join(map(repr, hosts))
        raise Moved(f"queue {name!r} of VPN {vpn!r} is on broker {names}", hosts)

    # ------------------------------------------------------------ routes

    def target_of(self, vpn: str, to: str) -> str:
        """The topic of a destination that is not a queue here."""
        entry = entry_of(self.facts, vpn, to)
        return to if entry is None else entry.definition.default_publish_target

    def with_others(self, vpn: str, to: str, own: list[Queue]) -> list[Queue]:
        """The queues that store a message here: own ones, and stand-ins for queues elsewhere."""
        facts = self.facts
        if to.startswith(QUEUE_ALONE):
            name = to.removeprefix(QUEUE_ALONE)
            entry = entry_of(facts, vpn, name)
            matched = [] if entry is None else [(name, entry)]
        else:
            here = self._broker.find(vpn, to)
            topic = (
                self.target_of(vpn, to) if here is None
                else here.definition.default_publish_target
            )  # fmt: skip
            matched = self._matching(vpn, topic)
        return self._stored_here(vpn, matched, own)

    def _stored_here(
        self, vpn: str, matched: list[tuple[str, Entry]], own: list[Queue]
    ) -> list[Queue]:
        """Own queues, and the stand-ins for matched queues that are elsewhere."""
        facts, number = self.facts, self._broker.header.number
        found = {queue.definition.name: queue for queue in own}
        for name, entry in matched:
            if stand_ins.target(self._broker, facts, vpn, name, entry) != number:
                found[name] = stand_ins.stand_in(self._broker, facts, vpn, name)
            else:  # messages from when the queue was elsewhere may still wait here: go behind them
                waiting = stand_ins.find(self._broker, vpn, name)
                if waiting is not None and waiting.header.depth:
                    found[name] = waiting
        return sorted(found.values(), key=lambda queue: queue.number)

    def stand_in(self, vpn: str, name: str) -> Queue | None:
        """The stand-in for a queue of another broker."""
        if entry_of(self.facts, vpn, name) is None:
            return None
        return stand_ins.stand_in(self._broker, self.facts, vpn, name)

    @property
    def keeps_directory(self) -> bool:
        return True

    def prepare_stand_in(self, queue: Queue, rows: list[Row], to: str) -> None:
        """See `MeshInterface`. A delayed message crosses at once and waits at the other broker. A
        bridge's endpoint also needs the destination, since its lanes are there."""
        ends_there = (queue.header.stands_for or "").startswith(ENDPOINT_PREFIX)
        for row in rows:
            if row.until != NEVER or ends_there:
                row.until, row.extras = NEVER, {TRANSIT: {"until": row.until, "to": to}}

    def of_engine(self, queue: Queue) -> str:
        return f"where messages wait for queue {queue.header.stands_for!r} of another broker"

    def lanes(self, vpn: str) -> list[dict[str, Any]]:
        return stand_ins.shown(self._broker, self.facts, vpn)

    def of_record(self, vpn: str, topic: str, partition: int, own: list[Queue]) -> list[Queue]:
        """See `MeshInterface`. Each queue that captures the topic has its own reader. Queues that
        only subscribe to it get the record once, from the reader of the oldest capturing queue,
        wherever they are. If another reader of that queue had the record, so have they."""
        table = self._table(vpn)
        names = {table.listed[at][0] for at in table.captured.find(topic)}
        found = [
            queue for queue in own
            if queue.definition.name in names and self.reads(queue, partition)
        ]  # fmt: skip
        entries = self.facts.entries.get(vpn, {})
        first = min(names, key=lambda name: (entries[name].made, name), default=None)
        by_name = {queue.definition.name: queue for queue in own}
        if first not in by_name or not self.reads(by_name[first], partition):
            return found
        listening = [table.listed[at] for at in sorted(table.subscribed.find(topic))]
        rest = [
            (name, entry) for name, entry in listening if name not in names and not entry.bridge
        ]  # fmt: skip
        mine = [by_name[name] for name, _ in rest if name in by_name]
        return found + self._stored_here(vpn, rest, mine)

    def why_waiting(self, queue: Queue) -> str | None:
        lane = self.facts.lanes.get(queue.number)
        if lane is None or not lane.why:
            return None
        return f"held by {queue.header.stands_for}: {lane.why}"

    def reads(self, queue: Queue, partition: int) -> bool:
        """Whether this broker reads plain records of this partition for a queue (M5)."""
        entry = entry_of(self.facts, queue.definition.vpn, queue.definition.name)
        if entry is None:
            return True
        owner, hosts = entry.definition.initial_owner, entry.hosts
        reader = hosts[partition % len(hosts)] if owner is None else self.facts.brokers[owner]
        return reader == self._broker.header.number

    def _matching(self, vpn: str, topic: str) -> list[tuple[str, Entry]]:
        """The home's queues that take messages published to a topic."""
        table = self._table(vpn)
        return [table.listed[at] for at in sorted(table.find(topic))]

    def _table(self, vpn: str) -> _HomeTable:
        table = self._tables.get(vpn)
        if table is None or table.edition != self.facts.edition:
            listed = sorted(self.facts.entries.get(vpn, {}).items())
            table = self._tables[vpn] = _HomeTable(self.facts.edition, listed)
        return table
