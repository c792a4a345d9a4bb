"""The other brokers of a home and its bridges, as one broker sees them: implements
`MeshInterface`.

A broker is a client of the others. Every message that crosses belongs to a queue here and is given
to a subscription of the other broker: messages that wait for its queue (`stand_ins`), and messages
of a distributed queue for its consumers (`credit`). The other broker stores the message and
confirms it (`handover`); then it is removed here. A producer's receipt does not wait for any of
that (M2).

A broker that is alone has the same class, with nothing in it but its bridges, and the queues'
commands are its own. It has no pages of a mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from ..definitions import DEFAULT_VPN
from ..protocol import commands as c
from ..protocol import topics
from ..protocol.errors import ConfigError, LakequeueError, Moved, no_such_queue
from ..protocol.home_bridges import COPIER_PREFIX, OPEN, HomeAnswer, decode_copied, of_key
from ..protocol.mesh_messages import (
    Answer,
    BridgeReceipt,
    BridgeSend,
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
from ..protocol.messages import Records
from ..protocol.signing import Speaker
from ..state.commands.administration import shutdown
from ..state.commands.answers import reject_record
from ..state.commands.dispatch import INSPECTIONS, TOLERANT
from ..state.commands.intake import carry_out
from ..state.commands.permissions import NEEDS, check_level, queue_of
from ..state.limits import Budget
from ..state.queue.broker import Broker
from ..state.queue.broker_facts import RecordPosition
from ..state.queue.header import Subscription, Task
from ..state.queue.mesh_interface import LATER
from ..state.queue.queue import Queue
from ..state.rules.routing import has_topic
from ..state.storage.row import NEVER, Row
from ..state.storage.spool import Content
from . import channel, credit, directory, handover, in_transit_commands, moves, stand_ins
from .bridges import bridge_commands, endpoint, far_end
from .bridges.bridge_facts import ELSEWHERE, BridgeFacts, Link
from .bridges.link import cross, forward_all, receipt, say_home, send_again, set_connection_state
from .facts import MeshFacts, entry_of, hosts_now, keeper_of, load_facts, mark_facts
from .keeper import Keeper
from .queue_placement import check_move
from .routes import Routes

Commands = dict[type, Callable[[str, Any], Any]]


class Mesh(Routes):
    """The other brokers, and the bridges."""

    def __init__(self, broker: Broker, facts: MeshFacts, bridges: BridgeFacts) -> None:
        super().__init__(broker, facts, bridges)
        self._keeper = Keeper(broker, facts, bridges)
        # In this step: brokers to which everything was repeated; what was lost from them since.
        self._repeated: set[int] = set()
        self._lost: dict[int, int] = {}
        self._alone: Commands = {
            c.Peers: self._peers,
            c.MoveQueue: self._move,
            c.Bridge: self._bridge,
            c.DeleteBridge: self._delete_bridge,
            c.DescribeBridge: self._describe_bridge,
            c.Bridges: lambda vpn, command: bridge_commands.names(bridges, vpn),
        }
        self._of_home: Commands = {
            **self._alone,
            c.Define: self.kept(self._keeper.define),
            c.Delete: self.kept(self._keeper.delete),
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
            BridgeSend.kind: self._brought,
            BridgeReceipt.kind: self._answered,
        }
        self.failures: dict[str, Callable[[int, Any], None]] = {
            HandOver.kind: partial(handover.failed, broker, facts),
            Carry.kind: partial(moves.failed, broker, facts),
            BridgeSend.kind: lambda sender, sent: self.say(
                sender, far_end.across_failed(bridges, sent, sender)
            ),
        }
        for (vpn, _), entry in facts.queues():
            if entry.bridge is not None:  # a broker that is loaded knows them already
                bridges.definitions.setdefault(vpn, {})[entry.bridge["name"]] = entry.bridge

    @classmethod
    def load(cls, broker: Broker) -> Mesh:
        """The mesh from the broker's pages; empty if it has met no other broker."""
        facts = load_facts(broker.store)
        moves.know_as_moving(broker, facts)
        return cls(broker, facts, BridgeFacts.load(broker))

    def mark(self) -> None:
        """Write what has changed since the last mark."""
        self.bridges.mark(self._broker)
        if self.has_met:
            mark_facts(self._broker.store, self.facts)

    @property
    def commands(self) -> Commands:
        """See `MeshInterface`."""
        return self._of_home if self.has_met else self._alone

    @property
    def brokers(self) -> tuple[str, ...]:
        """The names of the home's brokers."""
        return tuple(self.facts.brokers)

    @property
    def groups(self) -> Mapping[str, str]:
        """The group of each broker that is in one."""
        return self.facts.groups

    @property
    def keeps_directory(self) -> bool:
        """See `MeshInterface`."""
        return self.has_met

    # ------------------------------------------------------------ a step

    def hear(self, records: Records, skipped: Mapping[RecordPosition, str]) -> None:
        """Read records of the others and of other homes, retry refused lanes, and hand over to
        other VPNs."""
        if records.topics or self.has_met:  # most brokers are alone, and most steps hear nothing
            if self.facts.rejoined:
                self._greet()
            self._keeper.say_untold()
            for sender in sorted(self.facts.peers):
                self._ask_for_skipped(sender)
            for at in range(len(records)):
                self._hear_record(records, at, skipped)
            self._broker.at = None
            for sender in sorted(self._lost):
                self._repeat_all(sender)
            self._repeated.clear()
            self._end_moves()
            stand_ins.retry(self._broker, self.facts)
        if self.bridges.links:
            cross(self._broker, self.bridges, partial(self._bring_here, skipped))

    def _hear_record(
        self, records: Records, at: int, skipped: Mapping[RecordPosition, str]
    ) -> None:
        """Handle one record. A record of this home's brokers that fails is answered, so that no
        message stays in transit for ever."""
        broker, key, value = self._broker, records.keys[at], records.values[at]
        broker.at = position = records.topics[at], records.partitions[at], records.offsets[at]
        vpn = next(iter(broker.header.vpns), DEFAULT_VPN)  # gets the events of refused records
        kind, event, heard = topics.split(position[0]), "mesh_refused", None
        failed = skipped.get(position, "")
        try:
            if kind is not None and kind[1] == topics.BRIDGE_IN:
                vpn, event = kind[0], "bridge_refused"
                far_end.hear(broker, self.bridges, vpn, position[1], value, failed)
            elif (key or b"").startswith(COPIER_PREFIX):
                event = "bridge_refused"
                if failed:
                    raise ValueError(f"it failed: {failed}")
                self._copied(key or b"", value)
            elif (heard := channel.hear(broker, self.facts, vpn, value)) is not None:
                if heard.lost:
                    self._missed(heard.sender, heard.lost)
                if heard.message is None:
                    self._ask_for_skipped(heard.sender)
                    raise ValueError(heard.why)
                if failed:
                    raise ValueError(f"it failed: {failed}")
                self.handlers[heard.message.kind](heard.sender, heard.message)
        except (LakequeueError, ValueError) as error:
            broker.event(event, vpn, why=str(error))
            reject_record(broker, vpn, *position, key, value, str(error))
            if heard is not None and heard.message and heard.message.kind in self.failures:
                self.failures[heard.message.kind](heard.sender, heard.message)

    def speak(self) -> None:
        """Write to other brokers and homes at the end of a step."""
        if self.facts.peers:
            credit.tell_room(self._broker, self.facts)
        if self.bridges.links:
            forward_all(self._broker, self.bridges, self._say_over)

    def deadline(self) -> int:
        """When the mesh needs a step, epoch ms, or NEVER."""
        facts = self.facts
        if not self.has_met:
            return NEVER
        if facts.untold or facts.rejoined:
            return 1
        asked = (p.ask_at for p in facts.peers.values() if p.skipped)
        return min([*facts.retries.values(), *asked], default=NEVER)

    def _greet(self) -> None:
        """Write to all others after this broker was rebuilt. Its last records may be lost with the
        old Kafka; the others notice the gap in the numbers (`channel`)."""
        facts, own = self.facts, self._broker.header.number
        facts.rejoined = False
        for number in sorted(facts.peers):
            self.say(number, Heard(facts.edition))
        if facts.brokers and keeper_of(facts) == own:  # the directory topics may be new and empty
            facts.untold = sorted(queue for queue, _ in facts.queues())

    def _missed(self, sender: int, number: int) -> None:
        """Handle lost records of another broker. They may have been answers, so both brokers repeat
        everything unconfirmed: at the first loss, before anything else is answered, and at the end
        of the step for all others, or repetitions that lose records would never end."""
        self.facts.peers[sender].is_behind = True
        self._lost[sender] = number
        if sender not in self._repeated:
            self._repeat_all(sender)

    def _ask_for_skipped(self, sender: int) -> None:
        """Treat skipped records as lost, unless that was done in the last minute."""
        peer, now = self.facts.peers[sender], self._broker.now
        if peer.skipped and peer.ask_at <= now:
            peer.ask_at = now + channel.ASK_AGAIN_MS
            self._missed(sender, peer.skipped[-1])

    def _heard(self, sender: int, message: Heard) -> None:
        peer = self.facts.peers[sender]
        if message.again:  # what was skipped comes again too
            peer.is_behind, peer.skipped = False, []
            credit.end_all(self._broker, sender)
        if message.missed > peer.again:
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
        """Repeat everything unconfirmed to a broker: messages, credits, the directory, and what
        bridges have in transit to it."""
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
        for link in self.bridges.links.values():
            if link.to == to:
                send_again(broker, link, self._say_over)

    def leave(self, queue: Queue, task: Task, budget: Budget) -> bool:
        """See `MeshInterface`."""
        return moves.leave(self._broker, self.facts, queue, task, budget)

    def forward_for_moving(self, queue: Queue, command: Any, ids: list[int]) -> int:
        """See `MeshInterface`. Messages that a bridge has sent cannot be called back."""
        if queue.number in self.bridges.links:
            return 0
        return in_transit_commands.keep(self._broker, self.facts, queue, command, ids)

    def send(
        self, queue: Queue, subscription: Subscription, rows: list[Row], contents: list[Content]
    ) -> None:
        """See `MeshInterface`."""
        stand_ins.send(self._broker, self.facts, queue, subscription, rows, contents)

    def _hear_entries(self, sender: int, message: Entries) -> None:
        directory.hear_entries(self._broker, self.facts, sender, message, self.bridges)
        self._tables.clear()  # the edition does not grow if one before it was lost
        credit.hear_early(self._broker, self.facts)

    def say(self, to: int, message: MeshMessage) -> None:
        """Send a message to another broker."""
        channel.say(self._broker, self.facts, to, message)

    # ------------------------------------------------------------ commands

    def _peers(self, vpn: str, command: c.Peers) -> None:
        """Set the home's brokers. Raises ConfigError unless this is one of them."""
        header = self._broker.header
        own = command.brokers.get(header.name)
        if own != header.number:
            raise ConfigError(
                f"brokers: {header.name!r} with number {own} – it has number {header.number}"
            )
        if len(command.brokers) > 1 or self.has_met:
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
        if not self.has_met:
            queue = broker.find(vpn, command.queue)
            if queue is None:
                raise no_such_queue(command.queue, vpn)
            return check_move(queue.definition, command.broker, (broker.header.name,), {})
        entry = entry_of(facts, vpn, command.queue)
        is_back = entry is not None and entry.moves_to is not None
        if entry is None or not is_back or facts.brokers.get(command.broker) != entry.hosts[0]:
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
        self.say(to, Forward(vpn, c.encode_command(command), client, admin))

    def _forwarded(self, sender: int, message: Forward) -> None:
        """Carry out a command that another broker forwards."""
        command = c.decode_command(message.command)
        signed = message.client or message.admin
        speaker = Speaker(message.client, "", message.admin) if signed else None
        carry_out(self._broker, message.vpn, command, speaker)

    def forward_command(self, vpn: str, command: Any) -> bool:
        """See `MeshInterface`. A command without a reply was sent before the queue moved: it is
        forwarded, or waits if the queue is leaving. The sender of any other must ask there."""
        broker, facts, name = self._broker, self.facts, command.queue
        if not facts.entries or not moves.is_away(broker, facts, vpn, name):
            return False
        queue = broker.find(vpn, name)
        if type(command) in TOLERANT or (queue is not None and type(command) in INSPECTIONS):
            return False
        if command.reply is None and moves.waits_behind_move(facts, vpn, command):
            return False
        there = hosts_now(broker, facts, vpn, name, facts.entries[vpn][name])
        hosts = {broker: number for broker, number in facts.brokers.items() if number in there}
        if command.reply is None:
            self.forward(vpn, command, min(hosts.values()))
            return True
        names = ", ".join(map(repr, hosts))
        raise Moved(f"queue {name!r} of VPN {vpn!r} is on broker {names}", hosts)

    # ------------------------------------------------------------ bridges

    def _bridge(self, vpn: str, command: c.Bridge) -> Any:
        """Define a bridge. With other brokers, the keeper of the directory does it."""
        if not self.has_met:
            new = bridge_commands.check_definition(self._broker, self.bridges, vpn, command)
            bridge_commands.begin(self._broker, self.bridges, new, self.facts.brokers)
            return None
        name = command.definition.get("name")
        exists = isinstance(name, str) and name in self.bridges.definitions.get(vpn, {})
        if command.replace or not exists:  # by default it begins at this broker
            given = {"from": self._broker.header.name, **command.definition}
            command = msgspec.structs.replace(command, definition=given)
        return self.kept(self._enter)(vpn, command)

    def _enter(self, vpn: str, command: c.Bridge) -> Any:
        new = bridge_commands.check_definition(self._broker, self.bridges, vpn, command)
        entry = endpoint.entry_of(new, self.facts.brokers)
        return self._keeper.enter_bridge(vpn, entry.definition.name, entry, command)

    def _delete_bridge(self, vpn: str, command: c.DeleteBridge) -> Any:
        if not self.has_met:
            bridge_commands.find(self.bridges, vpn, command.name)
            return bridge_commands.end(self._broker, self.bridges, vpn, command.name)
        return self.kept(self._enter_end)(vpn, command)

    def _enter_end(self, vpn: str, command: c.DeleteBridge) -> Any:
        bridge_commands.find(self.bridges, vpn, command.name)
        return self._keeper.enter_bridge(vpn, endpoint.endpoint_name(command.name), None, command)

    def _describe_bridge(self, vpn: str, command: c.DescribeBridge) -> Any:
        """Describe a bridge, at its carrier."""
        carrier = bridge_commands.find(self.bridges, vpn, command.name).carrier
        if self.has_met and carrier != self._broker.header.name:
            self.forward(vpn, command, self.facts.brokers[carrier])
            return LATER
        return bridge_commands.describe_bridge(self._broker, self.bridges, vpn, command)

    def _bring_here(
        self, skipped: Mapping[RecordPosition, str], sent: BridgeSend, position: RecordPosition
    ) -> BridgeReceipt:
        """Store messages for another VPN of this broker, or answer that it failed."""
        broker, why = self._broker, skipped.get(position)
        if why is None:
            return far_end.bring_across(broker, self.bridges, sent)
        broker.event("bridge_refused", sent.vpn, why=f"it failed: {why}")
        return far_end.across_failed(self.bridges, sent, broker.header.number)

    def engine_begins(self) -> None:
        """See `MeshInterface`."""
        bridge_commands.publish_ends(self._broker, self.bridges)
        self._keeper.say_several_hosts()

    def _copied(self, key: bytes, value: bytes | None) -> None:
        """Handle a record of the copying engine for a bridge's near end. It comes in the broker's
        own topic, to which nobody else writes, under the bridge's key. Raises ValueError for a
        malformed record."""
        vpn, name = of_key(key)
        message = decode_copied(value)
        queue = self._broker.find(vpn, endpoint.endpoint_name(name))
        link = None if queue is None else self.bridges.links.get(queue.number)
        if link is None or link.to != ELSEWHERE:  # the bridge was deleted: the engine may not know
            if vpn in self._broker.header.vpns:
                bridge_commands.publish_end(self._broker, vpn, name, None)
            return
        if not isinstance(message, HomeAnswer):
            set_connection_state(self._broker, link, message.state, message.why)
        elif message.receipt.link == link.number:
            set_connection_state(self._broker, link, OPEN, "")  # the far end refused it before
            receipt(self._broker, link, message.receipt)

    def _say_over(self, link: Link, sent: BridgeSend) -> None:
        """Send to another home, or to a broker of this one."""
        if link.to == ELSEWHERE:
            say_home(self._broker, link, sent)
        else:
            self.say(link.to, sent)

    def _brought(self, sender: int, sent: BridgeSend) -> None:
        """Take messages for a VPN from another broker of the home, and answer."""
        self.say(sender, far_end.bring_across(self._broker, self.bridges, sent, sender))

    def _answered(self, sender: int, answer: BridgeReceipt) -> None:
        link = self.bridges.links.get(answer.link)
        if link is not None:  # else the bridge was deleted
            receipt(self._broker, link, answer)
