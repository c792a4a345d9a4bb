"""A broker with bridges: what `core` asks of whoever stands above it, answered (`Beyond`).

What concerns bridges is done here; all else is passed on to the home's other brokers, if there are
any. A broker without either is alone, and this says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...core.commands.home import peers
from ...core.limits import Budget
from ...core.queue.beyond import Beyond
from ...core.queue.broker import Broker
from ...core.queue.broker_facts import Place
from ...core.queue.header import Subscription, Task
from ...core.queue.queue import Queue
from ...core.rules.answering import reject_record
from ...core.storage.row import NEVER, Row
from ...core.storage.spool import Content
from ...definitions import DEFAULT_VPN
from ...definitions.definition_values import ENDPOINT_PREFIX
from ...protocol import commands as c
from ...protocol import mesh, topics
from ...protocol.errors import LakequeueError
from ...protocol.home_bridges import COPIER_PREFIX, HomeAnswer, decode_copied, of_key
from ...protocol.messages import Records
from . import commands, door, endpoint
from .bridge_facts import ELSEWHERE, BridgeFacts, left
from .link import cross, forward_all, receipt, set_way

Meeting = Callable[[Broker], Beyond] | None


class Bridged:
    """A broker with its bridges. others: the home's other brokers; None: it has met none; meeting:
    how it does, see `met_brokers`."""

    def __init__(
        self, broker: Broker, facts: BridgeFacts, others: Beyond | None, meeting: Meeting = None
    ) -> None:
        self._broker, self.facts, self._others = broker, facts, others
        self._meeting = meeting
        self._own: dict[type, Callable[[str, Any], Any]] = {
            c.Bridge: lambda vpn, command: commands.bridge(broker, facts, vpn, command),
            c.DeleteBridge: lambda vpn, command: commands.delete_bridge(
                broker, facts, vpn, command
            ),
            c.DescribeBridge: lambda vpn, command: commands.describe_bridge(
                broker, facts, vpn, command
            ),
            c.Bridges: lambda vpn, command: commands.names(facts, vpn),
        }
        self.commands: Mapping[type, Callable[[str, Any], Any]] = (
            {c.Peers: self._peers, **self._own} if others is None
            else {**others.commands, **self._own}
        )  # fmt: skip

    @classmethod
    def load(cls, broker: Broker, others: Beyond | None = None, meeting: Meeting = None) -> Bridged:
        """As it was packed."""
        return cls(broker, BridgeFacts.load(broker), others, meeting)

    def _meet(self, meeting: Callable[[Broker], Beyond]) -> Beyond:
        """There are other brokers."""
        self._others = others = meeting(self._broker)
        self.commands = {**others.commands, **self._own}
        return others

    def _peers(self, vpn: str, command: c.Peers) -> None:
        """The home's brokers are these; it knows of none but itself yet."""
        if self._meeting is None or len(command.brokers) == 1:
            peers(self._broker, vpn, command)
        else:
            self._meet(self._meeting).commands[c.Peers](vpn, command)

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

    def hear(self, records: Records, skipped: Mapping[Place, str]) -> None:
        """What other homes say, and this home's other brokers; what crosses to another VPN does."""
        if records:
            records = self._hear_homes(records, skipped)
        if self._others is not None:
            self._others.hear(records, skipped)
        elif self._meeting is not None and any(map(self._is_of_home, records.values)):
            self._meet(self._meeting).hear(records, skipped)
        elif records:
            self._hear_strangers(records)
        if self.facts.links:
            cross(
                self._broker, self.facts,
                lambda sent: door.bring_across(self._broker, self.facts, sent),
            )  # fmt: skip

    def _hear_homes(self, records: Records, skipped: Mapping[Place, str]) -> Records:
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

    def _hear_home(self, records: Records, at: int, skipped: Mapping[Place, str]) -> None:
        broker = self._broker
        place = records.topics[at], records.partitions[at], records.offsets[at]
        key, value = records.keys[at], records.values[at]
        broker.at, failed = place, skipped.get(place, "")
        vpn = next(iter(broker.header.vpns), DEFAULT_VPN)  # where what is refused is told
        kind = topics.split(place[0])
        try:
            if kind is not None and kind[1] == topics.BRIDGE_IN:
                vpn = kind[0]
                door.hear(broker, self.facts, vpn, place[1], value, failed)
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
            set_way(self._broker, queue, link, said.state, said.why)
        elif said.receipt.link == queue.number:
            receipt(self._broker, link, said.receipt)

    def _is_of_home(self, value: bytes | None) -> bool:
        """Whether another broker of this home says it."""
        try:
            return mesh.decode(value).epoch == self._broker.header.epoch
        except ValueError:
            return False

    def _hear_strangers(self, records: Records) -> None:
        """Something stands in this broker's own topic, and there is no other broker. What another
        home left there is passed over."""
        broker = self._broker
        vpn = next(iter(broker.header.vpns), DEFAULT_VPN)
        for at in range(len(records)):
            broker.at = place = records.topics[at], records.partitions[at], records.offsets[at]
            try:
                if mesh.decode(records.values[at]).epoch != broker.header.epoch:
                    broker.count_refused(vpn, "other_home")
                    continue
                why = "this home has one broker"
            except ValueError as error:
                why = str(error)
            broker.event("mesh_refused", vpn, why=why)
            reject_record(broker, vpn, *place, records.keys[at], records.values[at], why)
        broker.at = None

    def speak(self) -> None:
        """What is to be said now that all is delivered."""
        if self._others is not None:
            self._others.speak()
        if self.facts.links:
            forward_all(self._broker, self.facts)

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
        if to.startswith(ENDPOINT_PREFIX):
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
