"""A broker with its bridges: a `Mesh` that knows bridges as well.

It handles what concerns bridges, and leaves everything else to the mesh, whose directory is empty
while the broker is the only one of its home.

A broker meets the other brokers of its home when the engine names them (`Peers`) or when one of
them writes to it. So it follows from the inputs, and a replay meets them in the same step. Until
then it has no pages of a mesh, and the queues' commands are its own.
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
from ...protocol.errors import LakequeueError, no_such_queue
from ...protocol.home_bridges import COPIER_PREFIX, HomeAnswer, decode_copied, of_key
from ...protocol.mesh_messages import BridgeReceipt, BridgeSend
from ...protocol.messages import QUEUE_ALONE, Records
from ...state.commands.answers import reject_record
from ...state.queue.broker import Broker
from ...state.queue.broker_facts import RecordPosition
from ...state.queue.mesh_interface import LATER
from ...state.queue.queue import Queue
from ...state.storage.row import NEVER, Row
from ..facts import PAGE, MeshFacts, load_facts
from ..mesh import Mesh
from ..queue_placement import check_move
from . import bridge_commands, endpoint, far_end
from .bridge_facts import ELSEWHERE, BridgeFacts, Link, left
from .link import cross, forward_all, receipt, say_home, send_again, set_connection_state


class BridgedBroker(Mesh):
    """A broker with its bridges. bridges: what it knows of them; has_met: whether it has met
    another broker of its home."""

    def __init__(
        self, broker: Broker, bridges: BridgeFacts, facts: MeshFacts, has_met: bool
    ) -> None:  # fmt: skip
        super().__init__(broker, facts)
        self.bridges, self.has_met = bridges, has_met
        self._own: dict[type, Callable[[str, Any], Any]] = {
            c.Bridge: self._bridge,
            c.DeleteBridge: self._delete,
            c.DescribeBridge: self._describe,
            c.Bridges: lambda vpn, command: bridge_commands.names(bridges, vpn),
        }
        self._of_home = self.commands  # once it has met others
        alone: dict[type, Callable[[str, Any], Any]] = {
            c.Peers: self._meet_peers, c.MoveQueue: self._stay
        }  # fmt: skip
        self.commands = {**(self._of_home if has_met else alone), **self._own}
        for vpn, entries in facts.entries.items():
            for entry in entries.values():
                if entry.bridge is not None:  # a broker that is loaded knows them already
                    bridges.definitions.setdefault(vpn, {})[entry.bridge["name"]] = entry.bridge
        self.handlers[BridgeSend.kind] = self._brought
        self.handlers[BridgeReceipt.kind] = self._answered
        self.failures[BridgeSend.kind] = lambda sender, sent: self.say(
            sender, far_end.across_failed(bridges, sent, sender)
        )

    @classmethod
    def load(cls, broker: Broker) -> BridgedBroker:
        """The bridges and the mesh from the broker's pages."""
        has_met = broker.store.get(PAGE) is not None
        return cls(broker, BridgeFacts.load(broker), load_facts(broker.store), has_met)

    def _meet(self) -> None:
        """Meet the other brokers of the home."""
        self.has_met = True
        self.commands = {**self._of_home, **self._own}

    def _meet_peers(self, vpn: str, command: c.Peers) -> None:
        """Set the home's brokers; the broker has met none yet."""
        if len(command.brokers) == 1:
            self.check_own_number(command)
        else:
            self._meet()
            self.commands[c.Peers](vpn, command)

    def _stay(self, vpn: str, command: c.MoveQueue) -> None:
        """Refuse to move a queue: there is no other broker."""
        queue = self._broker.find(vpn, command.queue)
        if queue is None:
            raise no_such_queue(command.queue, vpn)
        check_move(queue.definition, command.broker, (self._broker.header.name,), {})

    # ------------------------------------------------------------ definitions of bridges

    def _bridge(self, vpn: str, command: c.Bridge) -> Any:
        """Define a bridge. With other brokers, the keeper of the directory does it."""
        if not self.has_met:
            new = bridge_commands.check_definition(self._broker, self.bridges, vpn, command)
            self._apply_bridge(vpn, endpoint.endpoint_name(new.name), bridge_to_wire(new))
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

    def _delete(self, vpn: str, command: c.DeleteBridge) -> Any:
        if not self.has_met:
            bridge_commands.find(self.bridges, vpn, command.name)
            return self._apply_bridge(vpn, endpoint.endpoint_name(command.name), None)
        return self.kept(self._enter_end)(vpn, command)

    def _enter_end(self, vpn: str, command: c.DeleteBridge) -> Any:
        bridge_commands.find(self.bridges, vpn, command.name)
        name = endpoint.endpoint_name(command.name)
        return self._keeper.enter_bridge(vpn, name, None, command)

    def _describe(self, vpn: str, command: c.DescribeBridge) -> Any:
        """Describe a bridge, at its carrier."""
        carrier = bridge_commands.find(self.bridges, vpn, command.name).carrier
        if self.has_met and carrier != self._broker.header.name:
            self.forward(vpn, command, self.facts.brokers[carrier])
            return LATER
        return bridge_commands.describe_bridge(self._broker, self.bridges, vpn, command)

    def _apply_bridge(self, vpn: str, name: str, bridge: dict[str, Any] | None) -> int:
        """Apply a bridge's definition or deletion, see `ApplyBridge`."""
        if bridge is None:
            bridge_name = name.removeprefix(ENDPOINT_PREFIX)
            return bridge_commands.end(self._broker, self.bridges, vpn, bridge_name)
        new = parse_bridge(bridge)
        bridge_commands.begin(self._broker, self.bridges, new, self._number_of(new))
        return 0

    def _number_of(self, new: BridgeDefinition) -> int:
        """The number of the broker that a bridge leads to."""
        if new.far_broker is None:
            return ELSEWHERE
        header = self._broker.header
        return self.facts.brokers[new.far_broker] if self.has_met else header.number

    def mark(self) -> None:
        """Write what has changed since the last mark."""
        self.bridges.mark(self._broker)
        if self.has_met:
            super().mark()

    @property
    def keeps_directory(self) -> bool:
        return self.has_met

    # ------------------------------------------------------------ a step

    def hear(self, records: Records, skipped: Mapping[RecordPosition, str]) -> None:
        """Read records of other homes and of this home's brokers; hand over to other VPNs."""
        if records.topics:
            records = self._hear_homes(records, skipped)
            if not self.has_met and any(map(self._is_of_home, records.values)):
                self._meet()
        if records.topics or self.has_met:  # most brokers are alone, and most steps hear nothing
            super().hear(records, skipped)
        if self.bridges.links:
            cross(self._broker, self.bridges, partial(self._bring_here, skipped))

    def _bring_here(
        self, skipped: Mapping[RecordPosition, str], sent: BridgeSend, position: RecordPosition
    ) -> BridgeReceipt:
        """Store messages for another VPN of this broker, or answer that it failed."""
        broker, why = self._broker, skipped.get(position)
        if why is None:
            return far_end.bring_across(broker, self.bridges, sent)
        broker.event("bridge_refused", sent.vpn, why=f"it failed: {why}")
        return far_end.across_failed(self.bridges, sent, broker.header.number)

    def _is_of_home(self, value: bytes | None) -> bool:
        """Whether a record is from a broker of this home."""
        try:
            return mesh_messages.decode(value).epoch == self._broker.header.epoch
        except ValueError:
            return False

    def _hear_homes(self, records: Records, skipped: Mapping[RecordPosition, str]) -> Records:
        """Handle the records of bridges between homes; returns the others."""
        rest = Records()
        for at in range(len(records)):
            topic, key = records.topics[at], records.keys[at] or b""
            if topic.endswith(f".{topics.BRIDGE_IN}") or key.startswith(COPIER_PREFIX):
                self._hear_home(records, at, skipped)
            else:
                for name in Records.__struct_fields__:
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
                far_end.hear(broker, self.bridges, vpn, position[1], value, failed)
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
        link = None if queue is None else self.bridges.link_of(queue)
        if queue is None or link is None or link.to != ELSEWHERE:
            return  # the bridge was deleted
        if not isinstance(message, HomeAnswer):
            set_connection_state(self._broker, link, message.state, message.why)
        elif message.receipt.link == queue.number:
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

    def _repeat_all(self, to: int) -> None:
        """Repeat to a broker also what bridges have in transit: it may be lost, or its answer."""
        super()._repeat_all(to)
        for link in self.bridges.links.values():
            if link.to == to:
                send_again(self._broker, link, self._say_over)

    def _answered(self, sender: int, answer: BridgeReceipt) -> None:
        link = self.bridges.links.get(answer.link)
        if link is not None:  # else the bridge was deleted
            receipt(self._broker, link, answer)

    def deadline(self) -> int:
        return super().deadline() if self.has_met else NEVER

    def speak(self) -> None:
        """Write to other brokers and homes at the end of a step."""
        if self.has_met:
            super().speak()
        if self.bridges.links:
            forward_all(self._broker, self.bridges, self._say_over)

    def forward_command(self, vpn: str, command: Any) -> bool:
        """See `MeshInterface`."""
        return self.has_met and super().forward_command(vpn, command)

    def forward_for_moving(self, queue: Queue, command: Any, ids: list[int]) -> int:
        """See `MeshInterface`. Messages that a bridge has sent cannot be called back."""
        if self.bridges.link_of(queue) is not None:
            return 0
        return super().forward_for_moving(queue, command, ids)

    # ------------------------------------------------------------ routes and endpoints

    def with_others(self, vpn: str, to: str, own: list[Queue]) -> list[Queue]:
        """See `MeshInterface`. Clients cannot publish to an endpoint directly."""
        if to.removeprefix(QUEUE_ALONE).startswith(ENDPOINT_PREFIX):
            return []
        return super().with_others(vpn, to, own)

    def prepare_stand_in(self, queue: Queue, rows: list[Row], to: str) -> None:
        link = self.bridges.link_of(queue)
        if link is not None:
            endpoint.prepare(link, rows, to)
        else:
            super().prepare_stand_in(queue, rows, to)

    def left(self, queue: Queue, rows: list[Row]) -> None:
        link = self.bridges.link_of(queue)
        if link is not None:
            left(link, rows)
        else:
            super().left(queue, rows)

    def of_engine(self, queue: Queue) -> str:
        if queue.definition.name.startswith(ENDPOINT_PREFIX):
            return "the endpoint of a bridge"
        return super().of_engine(queue)

    def of_record(self, vpn: str, topic: str, partition: int, own: list[Queue]) -> list[Queue]:
        """See `MeshInterface`. Bridges do not carry plain records."""
        queues = [queue for queue in own if not queue.header.stands_for]
        return super().of_record(vpn, topic, partition, queues) if self.has_met else queues

    def why_waiting(self, queue: Queue) -> str | None:
        link = self.bridges.link_of(queue)
        if link is None:
            return super().why_waiting(queue)
        held = sorted({one.endpoint or one.reason for one in link.held.values()})
        return f"held by {', '.join(held[:10])}" if held else None

    def reads(self, queue: Queue, partition: int) -> bool:
        """See `MeshInterface`. Bridges do not carry plain records."""
        return not queue.header.stands_for and super().reads(queue, partition)
