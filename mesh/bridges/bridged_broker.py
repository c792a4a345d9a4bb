"""A broker with its bridges and its mesh: the implementation of `MeshInterface`.

It handles what concerns bridges, and passes everything else on to the mesh, if there is one.
Without either, it answers for a single broker.

A broker meets the other brokers of its home when the engine names them (`Peers`) or when one of
them writes to it. So it follows from the inputs, and a replay meets them in the same step. A home
with one broker loads nothing of the mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from ...definitions import DEFAULT_VPN
from ...definitions.bridge import BridgeDefinition, bridge_to_wire, parse_bridge
from ...definitions.definition_values import ENDPOINT_PREFIX
from ...protocol import commands as c
from ...protocol import mesh_messages, topics
from ...protocol.errors import LakequeueError
from ...protocol.home_bridges import COPIER_PREFIX, HomeAnswer, decode_copied, of_key
from ...protocol.mesh_messages import BridgeReceipt, BridgeSend
from ...protocol.messages import QUEUE_ALONE, Records
from ...state.commands.administration import peers
from ...state.commands.answers import reject_record
from ...state.limits import Budget
from ...state.queue.broker import Broker
from ...state.queue.broker_facts import RecordPosition
from ...state.queue.header import Subscription, Task
from ...state.queue.mesh_interface import LATER, MeshInterface
from ...state.queue.queue import Queue
from ...state.storage.row import NEVER, Row
from ...state.storage.spool import Content
from ..facts import PAGE
from ..mesh import Mesh
from . import bridge_commands, endpoint, far_end
from .bridge_facts import ELSEWHERE, BridgeFacts, Link, left
from .link import cross, forward_all, receipt, say_home, send_again, set_connection_state

Meeting = Callable[[Broker], Mesh] | None


class BridgedBroker:
    """A broker with its bridges. others: the mesh, None if it has met no other broker; meeting:
    makes the mesh at the first meeting, see `load_mesh`."""

    def __init__(
        self, broker: Broker, facts: BridgeFacts, others: Mesh | None, meeting: Meeting = None
    ) -> None:
        self._broker, self.facts = broker, facts
        self._others: Mesh | None = None
        self._meeting = meeting
        self._own: dict[type, Callable[[str, Any], Any]] = {
            c.Bridge: self._bridge,
            c.DeleteBridge: self._delete,
            c.DescribeBridge: self._describe,
            c.Bridges: lambda vpn, command: bridge_commands.names(facts, vpn),
        }
        self.commands: Mapping[type, Callable[[str, Any], Any]] = {
            c.Peers: self._peers, **self._own
        }  # fmt: skip
        if others is not None:
            self._with(others)

    @classmethod
    def load(
        cls, broker: Broker, others: Mesh | None = None, meeting: Meeting = None
    ) -> BridgedBroker:
        """The bridges from the broker's pages."""
        return cls(broker, BridgeFacts.load(broker), others, meeting)

    def _with(self, others: Mesh) -> Mesh:
        """Use a mesh. Its directory has all bridges and their carriers."""
        self._others = others
        self.commands = {**others.commands, **self._own}
        others.with_bridges(self._apply, self._send_again)
        for vpn, entries in others.facts.entries.items():
            for entry in entries.values():
                if entry.bridge is not None:  # a broker that is loaded knows them already
                    definitions = self.facts.definitions.setdefault(vpn, {})
                    definitions[entry.bridge["name"]] = entry.bridge
        others.handlers[BridgeSend.kind] = self._brought
        others.handlers[BridgeReceipt.kind] = self._answered
        others.failures[BridgeSend.kind] = lambda sender, sent: others.say(
            sender, far_end.across_failed(self.facts, sent, sender)
        )
        return others

    def _peers(self, vpn: str, command: c.Peers) -> None:
        """Set the home's brokers; the broker has met none yet."""
        if self._meeting is None or len(command.brokers) == 1:
            peers(self._broker, vpn, command)
        else:
            self._with(self._meeting(self._broker)).commands[c.Peers](vpn, command)

    # ------------------------------------------------------------ definitions of bridges

    def _bridge(self, vpn: str, command: c.Bridge) -> Any:
        """Define a bridge. With other brokers, the keeper of the directory does it."""
        others, name = self._others, command.definition.get("name")
        if others is None:
            new = bridge_commands.check_definition(self._broker, self.facts, vpn, command)
            self._apply(vpn, endpoint.endpoint_name(new.name), bridge_to_wire(new))
            return None
        exists = isinstance(name, str) and name in self.facts.definitions.get(vpn, {})
        if command.replace or not exists:  # by default it begins at this broker
            given = {"from": self._broker.header.name, **command.definition}
            command = msgspec.structs.replace(command, definition=given)
        return others.kept(self._enter)(vpn, command)

    def _enter(self, vpn: str, command: c.Bridge) -> Any:
        others = self._others
        assert others is not None
        new = bridge_commands.check_definition(self._broker, self.facts, vpn, command)
        entry = endpoint.entry_of(new, others.facts.brokers)
        return others.enter_bridge(vpn, entry.definition.name, entry, command)

    def _delete(self, vpn: str, command: c.DeleteBridge) -> Any:
        name = endpoint.endpoint_name(command.name)
        if self._others is None:
            bridge_commands.find(self.facts, vpn, command.name)
            return self._apply(vpn, name, None)
        return self._others.kept(self._enter_end)(vpn, command)

    def _enter_end(self, vpn: str, command: c.DeleteBridge) -> Any:
        assert self._others is not None
        bridge_commands.find(self.facts, vpn, command.name)
        name = endpoint.endpoint_name(command.name)
        return self._others.enter_bridge(vpn, name, None, command)

    def _describe(self, vpn: str, command: c.DescribeBridge) -> Any:
        """Describe a bridge, at its carrier."""
        carrier = bridge_commands.find(self.facts, vpn, command.name).carrier
        if self._others is not None and carrier != self._broker.header.name:
            self._others.forward(vpn, command, self._others.facts.brokers[carrier])
            return LATER
        return bridge_commands.describe_bridge(self._broker, self.facts, vpn, command)

    def _apply(self, vpn: str, name: str, bridge: dict[str, Any] | None) -> int:
        """Apply a bridge's definition or deletion, see `ApplyBridge`."""
        if bridge is None:
            return bridge_commands.end(
                self._broker, self.facts, vpn, name.removeprefix(ENDPOINT_PREFIX)
            )
        new = parse_bridge(bridge)
        bridge_commands.begin(self._broker, self.facts, new, self._number_of(new))
        return 0

    def _number_of(self, new: BridgeDefinition) -> int:
        """The number of the broker that a bridge leads to."""
        if new.far_broker is None:
            return ELSEWHERE
        header, others = self._broker.header, self._others
        return header.number if others is None else others.facts.brokers[new.far_broker]

    def mark(self) -> None:
        """Write what has changed since the last mark."""
        self.facts.mark(self._broker)
        if self._others is not None:
            self._others.mark()

    @property
    def brokers(self) -> tuple[str, ...]:
        """The names of the home's brokers."""
        return (self._broker.header.name,) if self._others is None else self._others.brokers

    @property
    def groups(self) -> Mapping[str, str]:
        """The group of each broker that is in one."""
        return {} if self._others is None else self._others.groups

    @property
    def keeps_directory(self) -> bool:
        """Whether the brokers keep the directory of queues themselves."""
        return self._others is not None

    # ------------------------------------------------------------ a step

    def hear(self, records: Records, skipped: Mapping[RecordPosition, str]) -> None:
        """Read records of other homes and of this home's brokers; hand over to other VPNs."""
        if records:
            records = self._hear_homes(records, skipped)
        if self._others is not None:
            self._others.hear(records, skipped)
        elif records:
            self._hear_strangers(records, skipped)
        if self.facts.links:
            cross(self._broker, self.facts, partial(self._bring_here, skipped))

    def _bring_here(
        self, skipped: Mapping[RecordPosition, str], sent: BridgeSend, position: RecordPosition
    ) -> BridgeReceipt:
        """Store messages for another VPN of this broker, or answer that it failed."""
        broker, why = self._broker, skipped.get(position)
        if why is None:
            return far_end.bring_across(broker, self.facts, sent)
        broker.event("bridge_refused", sent.vpn, why=f"it failed: {why}")
        return far_end.across_failed(self.facts, sent, broker.header.number)

    def _hear_homes(self, records: Records, skipped: Mapping[RecordPosition, str]) -> Records:
        """Handle the records of bridges between homes; returns the others."""
        rest = Records()
        for at in range(len(records)):
            topic, key = records.topics[at], records.keys[at] or b""
            if topic.endswith(f".{topics.BRIDGE_IN}") or key.startswith(COPIER_PREFIX):
                self._hear_home(records, at, skipped)
            else:
                for name in Records.__slots__:
                    getattr(rest, name).append(getattr(records, name)[at])
        self._broker.at = None
        return rest

    def _hear_home(self, records: Records, at: int, skipped: Mapping[RecordPosition, str]) -> None:
        broker = self._broker
        position = records.topics[at], records.partitions[at], records.offsets[at]
        key, value = records.keys[at], records.values[at]
        broker.at, failed = position, skipped.get(position, "")
        vpn = next(iter(broker.header.vpns), DEFAULT_VPN)  # gets the events of refused records
        kind = topics.split(position[0])
        try:
            if kind is not None and kind[1] == topics.BRIDGE_IN:
                vpn = kind[0]
                far_end.hear(broker, self.facts, vpn, position[1], value, failed)
            elif failed:
                raise ValueError(f"it failed: {failed}")
            else:
                self._copied(key or b"", value)
        except (LakequeueError, ValueError) as error:
            broker.event("bridge_refused", vpn, why=str(error))
            reject_record(broker, vpn, *position, key, value, str(error))

    def _copied(self, key: bytes, value: bytes | None) -> None:
        """Handle a record of the copying engine for a bridge's near end. It comes in the broker's
        own topic, to which nobody else writes, under the bridge's key. Raises ValueError for a
        malformed record."""
        vpn, name = of_key(key)
        message = decode_copied(value)
        queue = self._broker.find(vpn, endpoint.endpoint_name(name))
        link = None if queue is None else self.facts.link_of(queue)
        if queue is None or link is None or link.to != ELSEWHERE:
            return  # the bridge was deleted
        if not isinstance(message, HomeAnswer):
            set_connection_state(self._broker, link, message.state, message.why)
        elif message.receipt.link == queue.number:
            receipt(self._broker, link, message.receipt)

    def _say(self, link: Link, sent: BridgeSend) -> None:
        """Send to another home, or to a broker of this one."""
        if link.to == ELSEWHERE:
            say_home(self._broker, link, sent)
        else:
            assert self._others is not None
            self._others.say(link.to, sent)

    def _brought(self, sender: int, sent: BridgeSend) -> None:
        """Take messages for a VPN from another broker of the home, and answer."""
        assert self._others is not None
        self._others.say(sender, far_end.bring_across(self._broker, self.facts, sent, sender))

    def _send_again(self, to: int) -> None:
        """Repeat to a broker what bridges have in transit: it may be lost, or its answer."""
        for link in self.facts.links.values():
            if link.to == to:
                send_again(self._broker, link, self._say)

    def _answered(self, sender: int, answer: BridgeReceipt) -> None:
        link = self.facts.links.get(answer.link)
        if link is not None:  # else the bridge was deleted
            receipt(self._broker, link, answer)

    def _hear_strangers(self, records: Records, skipped: Mapping[RecordPosition, str]) -> None:
        """Handle records in this broker's mesh topic before it has met another broker. It skips
        records of other homes; with the first one of its own home it meets the others."""
        broker = self._broker
        vpn = next(iter(broker.header.vpns), DEFAULT_VPN)
        for at in range(len(records)):
            broker.at = position = records.topics[at], records.partitions[at], records.offsets[at]
            why = "this home has one broker"
            try:
                is_own = mesh_messages.decode(records.values[at]).epoch == broker.header.epoch
            except ValueError as error:
                is_own, why = True, str(error)
            else:
                if is_own and self._meeting is not None:
                    rest = Records(*(getattr(records, name)[at:] for name in Records.__slots__))
                    self._with(self._meeting(broker)).hear(rest, skipped)
                    break
            if not is_own:
                broker.count_refused(vpn, "other_home")
                continue
            broker.event("mesh_refused", vpn, why=why)
            reject_record(broker, vpn, *position, records.keys[at], records.values[at], why)
        broker.at = None

    def speak(self) -> None:
        """Write to other brokers and homes at the end of a step."""
        if self._others is not None:
            self._others.speak()
        if self.facts.links:
            forward_all(self._broker, self.facts, self._say)

    def deadline(self) -> int:
        """When the mesh needs a step, epoch ms, or NEVER."""
        return NEVER if self._others is None else self._others.deadline()

    def send(
        self, queue: Queue, subscription: Subscription, rows: list[Row], contents: list[Content]
    ) -> None:
        """See `MeshInterface`. Links fetch their messages themselves."""
        assert self._others is not None
        self._others.send(queue, subscription, rows, contents)

    def forward_command(self, vpn: str, command: Any) -> bool:
        """See `MeshInterface`."""
        return self._others is not None and self._others.forward_command(vpn, command)

    def forward_for_moving(self, queue: Queue, command: Any, ids: list[int]) -> int:
        """See `MeshInterface`. Messages that a bridge has sent cannot be called back."""
        if self._others is None or self.facts.link_of(queue) is not None:
            return 0
        return self._others.forward_for_moving(queue, command, ids)

    def leave(self, queue: Queue, task: Task, budget: Budget) -> bool:
        """See `MeshInterface`."""
        assert self._others is not None
        return self._others.leave(queue, task, budget)

    # ------------------------------------------------------------ routes

    def target_of(self, vpn: str, to: str) -> str:
        """See `MeshInterface`."""
        return to if self._others is None else self._others.target_of(vpn, to)

    def with_others(self, vpn: str, to: str, own: list[Queue]) -> list[Queue]:
        """See `MeshInterface`. Clients cannot publish to an endpoint directly."""
        if to.removeprefix(QUEUE_ALONE).startswith(ENDPOINT_PREFIX):
            return []
        return own if self._others is None else self._others.with_others(vpn, to, own)

    def stand_in(self, vpn: str, name: str) -> Queue | None:
        """See `MeshInterface`."""
        return None if self._others is None else self._others.stand_in(vpn, name)

    def prepare_stand_in(self, queue: Queue, rows: list[Row], to: str) -> None:
        """See `MeshInterface`."""
        link = self.facts.link_of(queue)
        if link is not None:
            endpoint.prepare(link, rows, to)
        elif self._others is not None:
            self._others.prepare_stand_in(queue, rows, to)

    def left(self, queue: Queue, rows: list[Row]) -> None:
        """See `MeshInterface`."""
        link = self.facts.link_of(queue)
        if link is not None:
            left(link, rows)
        elif self._others is not None:
            self._others.left(queue, rows)

    def of_engine(self, queue: Queue) -> str:
        """See `MeshInterface`."""
        if queue.definition.name.startswith(ENDPOINT_PREFIX) or self._others is None:
            return "the endpoint of a bridge"
        return self._others.of_engine(queue)

    def lanes(self, vpn: str) -> list[dict[str, Any]]:
        """See `MeshInterface`. Bridges have descriptions of their own."""
        return [] if self._others is None else self._others.lanes(vpn)

    def of_record(self, vpn: str, topic: str, partition: int, own: list[Queue]) -> list[Queue]:
        """See `MeshInterface`. Bridges do not carry plain records."""
        queues = [queue for queue in own if not queue.header.stands_for]
        if self._others is None:
            return queues
        return self._others.of_record(vpn, topic, partition, queues)

    def why_waiting(self, queue: Queue) -> str | None:
        """See `MeshInterface`."""
        link = self.facts.link_of(queue)
        if link is not None:
            held = sorted({one.endpoint or one.reason for one in link.held.values()})
            return f"held by {', '.join(held[:10])}" if held else None
        return None if self._others is None else self._others.why_waiting(queue)

    def reads(self, queue: Queue, partition: int) -> bool:
        """See `MeshInterface`. Bridges do not carry plain records."""
        if queue.header.stands_for:
            return False
        return self._others is None or self._others.reads(queue, partition)


# ---------------------------------------------------------------- loading


def load_mesh(broker: Broker) -> MeshInterface:
    """A broker's `MeshInterface`, from its pages."""
    has_met = broker.store.get(PAGE) is not None
    return BridgedBroker.load(broker, Mesh.load(broker) if has_met else None, Mesh.load)
