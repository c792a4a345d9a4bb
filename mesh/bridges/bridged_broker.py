"""A broker with bridges: what `state` asks of whoever stands above it, answered (`MeshInterface`).

What concerns bridges is done here; all else is passed on to the home's other brokers, if there are
any. A broker without either is alone, and this says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ...definitions import DEFAULT_VPN
from ...definitions.bridge import BridgeDefinition, bridge_to_wire, parse_bridge
from ...definitions.definition_values import ENDPOINT_PREFIX
from ...protocol import commands as c
from ...protocol import mesh_envelope, topics
from ...protocol.bridges import BridgeReceipt, BridgeSend
from ...protocol.errors import LakequeueError
from ...protocol.home_bridges import COPIER_PREFIX, HomeAnswer, decode_copied, of_key
from ...protocol.messages import QUEUE_ALONE, Records
from ...state.commands.administration import peers
from ...state.commands.answers import reject_record
from ...state.limits import Budget
from ...state.queue.broker import Broker
from ...state.queue.broker_facts import RecordPosition
from ...state.queue.header import Subscription, Task
from ...state.queue.mesh_interface import LATER
from ...state.queue.queue import Queue
from ...state.storage.row import NEVER, Row
from ...state.storage.spool import Content
from ..mesh import Mesh
from . import bridge_commands, endpoint, far_end
from .bridge_facts import ELSEWHERE, BridgeFacts, Link, left
from .link import cross, forward_all, receipt, say_home, send_again, set_way

Meeting = Callable[[Broker], Mesh] | None


class BridgedBroker:
    """A broker with its bridges. others: the home's other brokers; None: it has met none; meeting:
    how it does, see `neighbours`."""

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
        """As it was packed."""
        return cls(broker, BridgeFacts.load(broker), others, meeting)

    def _with(self, others: Mesh) -> Mesh:
        """There are other brokers: their directory has all bridges, and says who carries them."""
        self._others = others
        self.commands = {**others.commands, **self._own}
        others.with_bridges(self._apply, self._send_again)
        for vpn, entries in others.facts.entries.items():
            for entry in entries.values():
                if entry.bridge is not None:  # a broker that is loaded is what it was
                    known = self.facts.definitions.setdefault(vpn, {})
                    known[entry.bridge["name"]] = entry.bridge
        others.handlers[BridgeSend.kind] = self._brought
        others.handlers[BridgeReceipt.kind] = self._answered
        others.failures[BridgeSend.kind] = lambda sender, sent: others.say(
            sender, far_end.across_failed(self.facts, sent, sender)
        )
        return others

    def _peers(self, vpn: str, command: c.Peers) -> None:
        """The home's brokers are these; it knows of none but itself yet."""
        if self._meeting is None or len(command.brokers) == 1:
            peers(self._broker, vpn, command)
        else:
            self._with(self._meeting(self._broker)).commands[c.Peers](vpn, command)

    # ------------------------------------------------------------ bridges come and go

    def _bridge(self, vpn: str, command: c.Bridge) -> Any:
        """Make one, or define it again; where there are other brokers, the keeper of their
        directory agrees to it."""
        others, name = self._others, command.definition.get("name")
        if others is None:
            new = bridge_commands.agree(self._broker, self.facts, vpn, command)
            self._apply(vpn, endpoint.endpoint_name(new.name), bridge_to_wire(new))
            return None
        known = isinstance(name, str) and name in self.facts.definitions.get(vpn, {})
        if command.replace or not known:  # it begins at the broker that is told
            given = {"from": self._broker.header.name, **command.definition}
            command = msgspec.structs.replace(command, definition=given)
        return others.kept(self._enter)(vpn, command)

    def _enter(self, vpn: str, command: c.Bridge) -> Any:
        others = self._others
        assert others is not None
        new = bridge_commands.agree(self._broker, self.facts, vpn, command)
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
        """What its carrier knows."""
        carrier = bridge_commands.find(self.facts, vpn, command.name).carrier
        if self._others is not None and carrier != self._broker.header.name:
            self._others.forward(vpn, command, self._others.facts.brokers[carrier])
            return LATER
        return bridge_commands.describe_bridge(self._broker, self.facts, vpn, command)

    def _apply(self, vpn: str, name: str, bridge: dict[str, Any] | None) -> int:
        """A bridge is so, or is gone: see `ApplyBridge`."""
        if bridge is None:
            return bridge_commands.end(
                self._broker, self.facts, vpn, name.removeprefix(ENDPOINT_PREFIX)
            )
        new = parse_bridge(bridge)
        bridge_commands.begin(self._broker, self.facts, new, self._number_of(new))
        return 0

    def _number_of(self, new: BridgeDefinition) -> int:
        """Of the broker that a bridge leads to."""
        if new.far_broker is None:
            return ELSEWHERE
        header, others = self._broker.header, self._others
        return header.number if others is None else others.facts.brokers[new.far_broker]

    def mark(self) -> None:
        """Write what changed since the last mark."""
        self.facts.mark(self._broker)
        if self._others is not None:
            self._others.mark()

    @property
    def brokers(self) -> tuple[str, ...]:
        """The names of all brokers of the home."""
        return (self._broker.header.name,) if self._others is None else self._others.brokers

    @property
    def groups(self) -> Mapping[str, str]:
        """The groups of those that are in one."""
        return {} if self._others is None else self._others.groups

    @property
    def keeps_directory(self) -> bool:
        """Whether brokers agree on where queues are, and say it."""
        return self._others is not None

    # ------------------------------------------------------------ a step

    def hear(self, records: Records, skipped: Mapping[RecordPosition, str]) -> None:
        """What other homes say, and this home's other brokers; what crosses to another VPN does."""
        if records:
            records = self._hear_homes(records, skipped)
        if self._others is not None:
            self._others.hear(records, skipped)
        elif records:
            self._hear_strangers(records, skipped)
        if self.facts.links:
            cross(
                self._broker, self.facts,
                lambda sent: far_end.bring_across(self._broker, self.facts, sent),
            )  # fmt: skip

    def _hear_homes(self, records: Records, skipped: Mapping[RecordPosition, str]) -> Records:
        """Hear what concerns bridges between homes; gives the rest."""
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
        place = records.topics[at], records.partitions[at], records.offsets[at]
        key, value = records.keys[at], records.values[at]
        broker.at, failed = place, skipped.get(place, "")
        vpn = next(iter(broker.header.vpns), DEFAULT_VPN)  # where what is refused is told
        kind = topics.split(place[0])
        try:
            if kind is not None and kind[1] == topics.BRIDGE_IN:
                vpn = kind[0]
                far_end.hear(broker, self.facts, vpn, place[1], value, failed)
            elif failed:
                raise ValueError(f"it failed: {failed}")
            else:
                self._copied(key or b"", value)
        except (LakequeueError, ValueError) as error:
            broker.event("bridge_refused", vpn, why=str(error))
            reject_record(broker, vpn, *place, key, value, str(error))

    def _copied(self, key: bytes, value: bytes | None) -> None:
        """What the engine, which copies between two homes, says to a bridge's near end. It comes in
        the broker's own topic, which nobody else writes, under the key of the bridge. Raises
        ValueError for what is none."""
        vpn, name = of_key(key)
        said = decode_copied(value)
        queue = self._broker.find(vpn, endpoint.endpoint_name(name))
        link = None if queue is None else self.facts.link_of(queue)
        if queue is None or link is None or link.to != ELSEWHERE:
            return  # the bridge was deleted meanwhile
        if not isinstance(said, HomeAnswer):
            set_way(self._broker, link, said.state, said.why)
        elif said.receipt.link == queue.number:
            receipt(self._broker, link, said.receipt)

    def _say(self, link: Link, sent: BridgeSend) -> None:
        """To another home, or to a broker of this one."""
        if link.to == ELSEWHERE:
            say_home(self._broker, link, sent)
        else:
            assert self._others is not None
            self._others.say(link.to, sent)

    def _brought(self, sender: int, sent: BridgeSend) -> None:
        """Another broker of the home brings messages for a VPN."""
        assert self._others is not None
        self._others.say(sender, far_end.bring_across(self._broker, self.facts, sent, sender))

    def _send_again(self, to: int) -> None:
        """What a broker was sent, or answered, may be lost."""
        for link in self.facts.links.values():
            if link.to == to:
                send_again(self._broker, link, self._say)

    def _answered(self, sender: int, answer: BridgeReceipt) -> None:
        link = self.facts.links.get(answer.link)
        if link is not None:  # else the bridge was deleted meanwhile
            receipt(self._broker, link, answer)

    def _hear_strangers(self, records: Records, skipped: Mapping[RecordPosition, str]) -> None:
        """Something stands in this broker's own topic, and it knows no other broker. What another
        home left there is passed over; with the first word of this one it meets its others."""
        broker = self._broker
        vpn = next(iter(broker.header.vpns), DEFAULT_VPN)
        for at in range(len(records)):
            broker.at = place = records.topics[at], records.partitions[at], records.offsets[at]
            why = "this home has one broker"
            try:
                is_own = mesh_envelope.decode(records.values[at]).epoch == broker.header.epoch
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
            reject_record(broker, vpn, *place, records.keys[at], records.values[at], why)
        broker.at = None

    def speak(self) -> None:
        """What is to be said now that all is delivered."""
        if self._others is not None:
            self._others.speak()
        if self.facts.links:
            forward_all(self._broker, self.facts, self._say)

    def deadline(self) -> int:
        """When a step is wanted, epoch ms, or NEVER."""
        return NEVER if self._others is None else self._others.deadline()

    def send(
        self, queue: Queue, subscription: Subscription, rows: list[Row], contents: list[Content]
    ) -> None:
        """Messages go to the broker whose subscription it is; links take theirs by themselves."""
        assert self._others is not None
        self._others.send(queue, subscription, rows, contents)

    def takes(self, vpn: str, command: Any) -> bool:
        """Whether a command about a queue is for another broker."""
        return self._others is not None and self._others.takes(vpn, command)

    def later(self, queue: Queue, command: Any, ids: list[int]) -> int:
        """A command means messages that are on their way. What a bridge has sent is not called
        back."""
        if self._others is None or self.facts.link_of(queue) is not None:
            return 0
        return self._others.later(queue, command, ids)

    def leave(self, queue: Queue, task: Task, budget: Budget) -> bool:
        """A queue goes to another broker."""
        assert self._others is not None
        return self._others.leave(queue, task, budget)

    # ------------------------------------------------------------ routes

    def target_of(self, vpn: str, to: str) -> str:
        """The topic of a destination that is no queue here."""
        return to if self._others is None else self._others.target_of(vpn, to)

    def with_others(self, vpn: str, to: str, own: list[Queue]) -> list[Queue]:
        """The queues in which a message is stored here. Nobody but its bridge puts something into
        an endpoint."""
        if to.removeprefix(QUEUE_ALONE).startswith(ENDPOINT_PREFIX):
            return []
        return own if self._others is None else self._others.with_others(vpn, to, own)

    def stand_in(self, vpn: str, name: str) -> Queue | None:
        """The queue in which messages wait here for one of another broker."""
        return None if self._others is None else self._others.stand_in(vpn, name)

    def wait(self, queue: Queue, rows: list[Row], to: str) -> None:
        """Messages are about to wait here."""
        link = self.facts.link_of(queue)
        if link is not None:
            endpoint.wait(link, rows, to)
        elif self._others is not None:
            self._others.wait(queue, rows, to)

    def left(self, queue: Queue, rows: list[Row]) -> None:
        """Messages have left a queue in which they waited."""
        link = self.facts.link_of(queue)
        if link is not None:
            left(link, rows)
        elif self._others is not None:
            self._others.left(queue, rows)

    def of_engine(self, queue: Queue) -> str:
        """What a queue is that clients do not fill."""
        if queue.definition.name.startswith(ENDPOINT_PREFIX) or self._others is None:
            return "the endpoint of a bridge"
        return self._others.of_engine(queue)

    def lanes(self, vpn: str) -> list[dict[str, Any]]:
        """What waits here for queues of other brokers; bridges are shown by themselves."""
        return [] if self._others is None else self._others.lanes(vpn)

    def of_record(self, vpn: str, topic: str, partition: int, own: list[Queue]) -> list[Queue]:
        """The queues for a record of a plain topic; bridges do not carry it."""
        queues = [queue for queue in own if not queue.header.stands_for]
        if self._others is None:
            return queues
        return self._others.of_record(vpn, topic, partition, queues)

    def why_waiting(self, queue: Queue) -> str | None:
        """Why messages wait for the far end."""
        link = self.facts.link_of(queue)
        if link is not None:
            held = sorted({one.endpoint or one.reason for one in link.held.values()})
            return f"held by {', '.join(held[:10])}" if held else None
        return None if self._others is None else self._others.why_waiting(queue)

    def reads(self, queue: Queue, partition: int) -> bool:
        """Whether this broker reads plain records for a queue (M5); bridges do not carry them."""
        if queue.header.stands_for:
            return False
        return self._others is None or self._others.reads(queue, partition)
