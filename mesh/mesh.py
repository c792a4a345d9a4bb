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
from ..protocol.errors import LakequeueError, Moved, no_such_queue
from ..protocol.home_bridges import COPIER_PREFIX, OPEN, HomeAnswer, decode_copied, of_key
from ..protocol.mesh_messages import (
    Answer,
    BridgeReceipt,
    BridgeSend,
    Come,
    Entries,
    Forward,
    HandOver,
    HasMoved,
    MeshMessage,
    Room,
    decode_body,
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
from ..state.storage.blocks import Content
from ..state.storage.row import NEVER, Row
from . import channel, credit, directory, failures, handover, in_transit_commands, moves, stand_ins
from .bridges import bridge_commands, endpoint, far_end
from .bridges.bridge_facts import ELSEWHERE, BridgeFacts, Link
from .bridges.link import forward_all, receipt, send_to_home, set_connection_state, with_messages
from .channel import HeardMessage
from .facts import (
    PAGE,
    MeshFacts,
    Sent,
    entry_of,
    hosts_now,
    keeper_of,
    load_facts,
    mark_facts,
)
from .keeper import Keeper
from .queue_placement import check_move
from .routes import Routes

Commands = dict[type, Callable[[str, Any], Any]]

# Instead of a topic: the records of a broker to itself, and records that failed earlier.
OWN, KEPT = "#own", "#kept"


class Mesh(Routes):
    """The other brokers, and the bridges."""

    def __init__(self, broker: Broker, facts: MeshFacts, bridges: BridgeFacts) -> None:
        super().__init__(broker, facts, bridges)
        self._keeper = Keeper(broker, facts, bridges)
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
            Entries.kind: partial(directory.hear_entries, broker, facts, bridges),
            Forward.kind: self._forwarded,
            Come.kind: partial(moves.may_come, broker, facts),
            HasMoved.kind: self._keeper.moved,
            BridgeSend.kind: self._brought,
            BridgeReceipt.kind: self._answered,
        }
        self._kept: list[HeardMessage] = []  # records that failed earlier, to be read in this step
        self._skipped: Mapping[RecordPosition, str] = {}  # of this step, see `Batch`

    @classmethod
    def load(cls, broker: Broker) -> Mesh:
        """The mesh from the broker's pages; empty if it has met no other broker."""
        return cls(broker, load_facts(broker.store), BridgeFacts.load(broker))

    def mark(self) -> None:
        """Write what has changed since the last mark."""
        self.bridges.mark(self._broker)
        if not self._is_alone or self._broker.store.get(PAGE) is not None:
            mark_facts(self._broker.store, self.facts)

    @property
    def commands(self) -> Commands:
        """See `MeshInterface`."""
        return self._of_home if self.keeps_directory else self._alone

    @property
    def brokers(self) -> tuple[str, ...]:
        """The names of the home's brokers."""
        return tuple(self.facts.brokers)

    @property
    def groups(self) -> Mapping[str, str]:
        """The group of each broker that is in one."""
        return self.facts.groups

    @property
    def _is_alone(self) -> bool:
        """Whether it has met no broker, said nothing to itself, and kept nothing: most brokers, in
        each step."""
        facts = self.facts
        return not (facts.brokers or facts.peers or facts.failed or self._kept)

    # ------------------------------------------------------------ a step

    def hear(self, records: Records, skipped: Mapping[RecordPosition, str]) -> None:
        """Read records of the others, of other homes and its own, and retry refused lanes."""
        facts = self.facts
        if self._is_alone and not records.topics:
            return
        self._skipped = skipped
        channel.stop_failed(self._broker, facts, self._vpn, skipped)
        kept, self._kept = self._kept, []
        for at, one in enumerate(kept):
            self._hear_record((KEPT, 0, at), None, None, one)
        positions = zip(records.topics, records.partitions, records.offsets, strict=True)
        for position, key, value in zip(positions, records.keys, records.values, strict=True):
            self._hear_record(position, key, value)
        for sent in channel.take_own(self._broker, facts):
            self._hear_record((OWN, 0, sent.number), None, sent.body, sent)
        self._broker.at = None
        self._keeper.answer_confirmed()
        stand_ins.retry(self._broker, facts)

    @property
    def _vpn(self) -> str:
        """The VPN that gets the events of refused records."""
        return next(iter(self._broker.header.vpns), DEFAULT_VPN)

    def _hear_record(
        self, position: RecordPosition, key: bytes | None, value: bytes | None,
        own: Sent | HeardMessage | None = None,
    ) -> None:  # fmt: skip
        """Handle one record. own: what this broker said to itself, or kept."""
        broker, failed = self._broker, self._skipped.get(position, "")
        vpn, event, heard = self._vpn, "bridge_refused", None
        kind, is_copied = topics.split(position[0]), False
        again = f"#{position[0]}", *position[1:]  # where the handling of its failure fails
        if kind is not None and kind[1] == topics.BRIDGE_IN:
            vpn = kind[0]  # whatever its key: other homes write here
        elif (key or b"").startswith(COPIER_PREFIX):
            is_copied = True
        else:
            event = "mesh_refused"
            if failed:
                again = channel.CHANNEL, self._sender(value, own), 0
        broker.at = again if failed else position
        try:
            if event == "mesh_refused":
                heard = self._read(value, own)
            elif again in self._skipped:
                raise ValueError(f"it failed: {failed}")
            elif is_copied:
                heard = self._copied(key or b"", value, failed)
            else:
                far_end.receive(broker, self.bridges, vpn, position[1], value, failed)
            if heard is not None:
                self._handle(heard, failed, is_stopped=again in self._skipped)
        except (LakequeueError, ValueError) as error:
            broker.event(event, vpn, why=str(error))
            reject_record(broker, vpn, *position, key, value, str(error))
            if heard is not None:
                failures.handle(broker, self.facts, self.bridges, heard, error)

    def _handle(self, heard: HeardMessage, failed: str, is_stopped: bool) -> None:
        """Let a record do what it says, or keep it."""
        if is_stopped or failures.must_wait(self.facts, heard.message):
            failures.keep(self._broker, self.facts, heard, "an earlier record failed")
        elif failed:
            raise ValueError(f"it failed: {failed}")
        else:
            self.handlers[heard.message.kind](heard.sender, heard.message)

    def _sender(self, value: bytes | None, own: Sent | HeardMessage | None) -> int:
        if isinstance(own, HeardMessage):
            return own.sender
        return channel.sender_of(value) if own is None else self._broker.header.number

    def _read(self, value: bytes | None, own: Sent | HeardMessage | None) -> HeardMessage | None:
        if own is None:
            return channel.hear(self._broker, self.facts, self._vpn, value)
        if isinstance(own, HeardMessage):
            return own
        number = self._broker.header.number
        return HeardMessage(number, self._repeat(number, own, Budget(len(own.ids))))

    def _repeat(self, to: int, sent: Sent, budget: Budget) -> MeshMessage:
        """Make a record's message again, unless its queue failed."""
        broker, message = self._broker, decode_body(sent.kind, sent.body)
        link = self.bridges.link(message.link) if isinstance(message, BridgeSend) else None
        queue = None if link is None else broker.queues[link.queue]
        if isinstance(message, HandOver) and sent.ids:
            queue = stand_ins.source_of(broker, message)
        if queue is None:
            return message
        if queue.header.faulted or queue.number in self.facts.left_out:
            return failures.leave_out(self.facts, queue, to, sent)
        before, broker.at = broker.at, queue
        if isinstance(message, HandOver):
            message = stand_ins.with_messages(broker, queue, to, message, sent.ids, budget)
        elif isinstance(message, BridgeSend) and link is not None:
            message = with_messages(broker, link, message, budget)
        broker.at = before
        return message

    def speak(self) -> None:
        """Write to other brokers and homes at the end of a step."""
        if self.facts.peers:
            credit.tell_room(self._broker, self.facts)
        if self.bridges.links:
            forward_all(self._broker, self.bridges, self._say_over)
        if self.facts.peers:
            moves.tell_faulted(self._broker, self.facts)
            channel.repeat_all(self._broker, self.facts, self._repeat)
            if self.facts.left_out:
                failures.send_left_out(self._broker, self.facts)
            channel.synchronize(self._broker, self.facts)

    def deadline(self) -> int:
        """When the mesh needs a step, epoch ms, or NEVER."""
        facts = self.facts
        if self._is_alone:
            return NEVER
        retry_at = min(facts.retries.values(), default=NEVER)
        return min(retry_at, channel.deadline(self._broker, facts))

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

    def say(self, to: int, message: MeshMessage) -> None:
        """Send a message to another broker."""
        channel.say(self._broker, self.facts, to, message)

    # ------------------------------------------------------------ commands

    def _peers(self, vpn: str, command: c.Peers) -> None:
        """Set the home's brokers."""
        if len(command.brokers) > 1 or self.keeps_directory:
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
        if not self.keeps_directory:
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
            return shutdown(self._broker, queue, command)
        entry = entry_of(self.facts, vpn, command.queue)
        if entry is not None and entry.bridge is not None and self.forward_command(vpn, command):
            return LATER
        return self.kept(self._keeper.shutdown)(vpn, command)

    def forward(self, vpn: str, command: c.Command, to: int) -> None:
        """Forward a client's command to the broker that answers it. Raises LakequeueError if that
        broker is away, and too many wait for it."""
        peer = self.facts.peers.get(to)
        if peer is not None and len(peer.unconfirmed) >= self._broker.limits.unconfirmed_records:
            raise LakequeueError(
                f"broker {peer.name!r} has not confirmed {len(peer.unconfirmed)} records, and gets "
                "no more commands: start it, or try again later"
            )
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
        if not self.keeps_directory:
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
        """Delete a bridge. Its carrier counts what waits, and the keeper of the directory deletes
        it."""
        carrier = bridge_commands.find(self.bridges, vpn, command.name).carrier
        if not self.keeps_directory:
            return bridge_commands.end(self._broker, self.bridges, vpn, command.name)
        if command.waited is None and carrier != self._broker.header.name:
            self.forward(vpn, command, self.facts.brokers[carrier])
            return LATER
        if command.waited is None:
            queue = self._broker.find(vpn, endpoint.endpoint_name(command.name))
            waited = 0 if queue is None else queue.header.depth
            command = msgspec.structs.replace(command, waited=waited)
        return self.kept(self._enter_end)(vpn, command)

    def _enter_end(self, vpn: str, command: c.DeleteBridge) -> Any:
        bridge_commands.find(self.bridges, vpn, command.name)
        name = endpoint.endpoint_name(command.name)
        return self._keeper.enter_bridge(vpn, name, None, command, command.waited)

    def _describe_bridge(self, vpn: str, command: c.DescribeBridge) -> Any:
        """Describe a bridge, at its carrier."""
        carrier = bridge_commands.find(self.bridges, vpn, command.name).carrier
        if self.keeps_directory and carrier != self._broker.header.name:
            self.forward(vpn, command, self.facts.brokers[carrier])
            return LATER
        return bridge_commands.describe_bridge(self._broker, self.bridges, vpn, command)

    def engine_begins(self) -> None:
        """See `MeshInterface`."""
        self._kept += failures.begin_again(self._broker, self.facts)
        bridge_commands.publish_ends(self._broker, self.bridges)
        self._keeper.publish_directory()

    def _copied(self, key: bytes, value: bytes | None, failed: str) -> HeardMessage | None:
        """Handle a record of the copying engine for a bridge's near end. It comes in the broker's
        own topic, to which nobody else writes, under the bridge's key. failed: why it must be
        skipped, or empty. Returns the receipt in an answer. Raises ValueError for a malformed
        record."""
        vpn, name = of_key(key)
        message = decode_copied(value)
        broker = self._broker
        queue = broker.find(vpn, endpoint.endpoint_name(name))
        link = None if queue is None else self.bridges.links.get(queue.number)
        if isinstance(message, HomeAnswer) and failed:
            return HeardMessage(broker.header.number, message.receipt)
        if failed:
            raise ValueError(f"it failed: {failed}")
        if link is None or link.to != ELSEWHERE:  # the bridge was deleted: the engine may not know
            bridge_commands.publish_end(broker, vpn, name, None)
        elif not isinstance(message, HomeAnswer):
            set_connection_state(broker, link, message.state, message.why)
        elif message.receipt.link == link.number:
            set_connection_state(broker, link, OPEN, "")  # the far end refused it before
            return HeardMessage(broker.header.number, message.receipt)
        return None

    def _say_over(self, link: Link, sent: BridgeSend) -> None:
        """Send to another home, or to a broker of this one, maybe this broker itself."""
        if link.to == ELSEWHERE:
            send_to_home(self._broker, link, sent)
        else:
            self.say(link.to, sent)

    def _brought(self, sender: int, sent: BridgeSend) -> None:
        """Take messages for a VPN from a broker of the home, and answer."""
        self.say(sender, far_end.bring_across(self._broker, self.bridges, sent))

    def _answered(self, sender: int, answer: BridgeReceipt) -> None:
        link = self.bridges.link(answer.link)
        if link is not None:
            receipt(self._broker, link, answer)
