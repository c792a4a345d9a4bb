"""The parts of a connection that `Runner` needs, on the naive model: the scenarios run on it
too."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lakequeue.protocol.errors import LeaseLost, Rejected
from reference.model import Delivery, Entry, Model, Refused, Subscription


class Connection:
    """A fresh broker with its only producer, administrator and engine."""

    def __init__(self) -> None:
        self.model = Model()
        self.consumers: list[Consumer] = []

    def producer(self) -> "Connection":
        return self

    def admin(self) -> "Connection":
        return self

    @property
    def engine(self) -> "Connection":
        return self

    def pump(self) -> None:
        self.model.check()
        for consumer in self.consumers:
            consumer.pump()

    def advance(self, duration: str) -> None:
        self.model.advance(duration)
        self.pump()

    def restart(self) -> None:
        self.model = copy.deepcopy(self.model)

    def send(self, to: str, payload: bytes, **options: Any) -> "Receipt":
        try:
            number = self.model.publish(to, payload, **options)
        except Refused as nack:
            raise Rejected(nack.reason, nack.queue) from None
        self.pump()
        return Receipt(str(number))

    def consumer(self, queue: str, **options: Any) -> "Consumer":
        consumer = Consumer(self, queue, **options)
        self.consumers.append(consumer)
        self.pump()
        return consumer

    def define(self, definition: dict[str, Any]) -> None:
        known = self.model.queues.get(definition["name"])
        whole = (known.definition if known else {}) | definition
        self.model.define({key: value for key, value in whole.items() if value is not None})
        self.pump()

    def delete(self, queue: str) -> None:
        self.model.delete(queue)

    def subscribe_topic(self, queue: str, topic: str) -> None:
        self.model.subscribe_topic(queue, topic)

    def unsubscribe_topic(self, queue: str, topic: str) -> None:
        self.model.unsubscribe_topic(queue, topic)

    def redrive(self, queue: str, ids: list[str] | None = None) -> "Redriven":
        before = self.model.queues[queue].counters["redriven"]
        why = self.model.redrive(queue, None if ids is None else [int(i) for i in ids])
        self.pump()
        return Redriven(self.model.queues[queue].counters["redriven"] - before, why)

    def describe(self, queue: str) -> dict[str, Any]:
        inner = self.model.queues[queue]
        bound = self.model.bound_to(inner)
        consumers = [{"name": s.name, "held": inner.held(s)} for s in bound]
        return self.model.describe(queue) | {"consumers": consumers, "counters": {}}

    def browse(self, queue: str, state: str | None = None) -> list["Message"]:
        active = self.model.queues[queue].active()
        return [Message(e, None, e.deliveries) for e in active if state in (None, e.state)]


@dataclass
class Receipt:
    message_id: str


@dataclass
class Redriven:
    moved: int
    why: dict[str, int]


class Message:
    """A delivery, or an entry that was browsed."""

    def __init__(self, entry: Entry, consumer: "Consumer | None", count: int) -> None:
        self.id, self.headers, self.is_barrier = str(entry.id), entry.headers, entry.is_barrier
        self.delivery_count, self.redelivered = count, count > 1
        self.consumer = consumer
        self.settled = False

    def ack(self) -> None:
        assert self.consumer is not None
        self.consumer.ack_message(self)

    def cancel(self, delay: str | None = None) -> None:
        self._settle("cancel", delay)

    def reject(self, reason: str = "") -> None:
        self._settle("reject", reason)

    def _settle(self, how: str, *more: Any) -> None:
        assert self.consumer is not None
        self.settled = True
        connection = self.consumer.connection
        getattr(connection.model, how)(self.consumer.flow, int(self.id), *more)
        connection.pump()

    def renew(self, period: str) -> None:
        assert self.consumer is not None
        model = self.consumer.connection.model
        if not model.renew(self.consumer.flow, int(self.id), period):
            raise LeaseLost(self.id)


class Consumer:
    def __init__(
        self, connection: Connection, queue: str, ack_mode: str, max_backlog: int | None,
        name: str, filter: str | None = None, priority: int = 0,
    ) -> None:  # fmt: skip
        self.connection, self.queue, self.ack_mode, self.name = connection, queue, ack_mode, name
        self.number = connection.model.subscribe(
            queue, name, max_backlog or 1, filter, ack_mode == "no_ack", priority
        ).number
        self.inbox: list[Message] = []
        self.received: list[Message] = []

    @property
    def model(self) -> Model:
        return self.connection.model

    @property
    def flow(self) -> Subscription:
        """Looked up by number, as a restart replaces every object."""
        known = (s for s in self.model.subscriptions if s.number == self.number)
        return next(known, Subscription(self.number, self.name, self.queue, 1))

    def pump(self) -> None:
        flow = self.flow
        taken: list[Delivery] = list(flow.inbox)
        flow.inbox = []
        self.inbox += [Message(d.entry, self, d.count) for d in taken]

    def receive(self, timeout: float = 0) -> Message | None:
        if not self.inbox:
            return None
        message = self.inbox.pop(0)
        self.received.append(message)
        if self.ack_mode == "auto":
            self._ack_one(message)
        return message

    def _ack_one(self, message: Message) -> None:
        if not message.is_barrier:
            self.ack(ids=[message.id])

    def ack_message(self, message: Message) -> None:
        """CLIENT: all that it holds up to this one, except messages settled otherwise."""
        if self.ack_mode != "client":
            held = self.model.queues[self.queue].find(int(message.id))
            if not message.is_barrier and (held is None or held.holder is not self.flow):
                raise LeaseLost(message.id)
            self._ack_one(message)
            return
        until = self.received.index(message) + 1
        counted = [m for m in self.received[:until] if not m.settled]
        entries = [self.model.queues[self.queue].find(int(m.id)) for m in counted]
        held_ids = [e.id for e in entries if e is not None and e.holder is self.flow]
        self.ack(ids=[str(i) for i in held_ids])

    def ack(
        self, ids: Iterable[str] | str | None = None, up_to: str | None = None,
        where: str | None = None,
    ) -> None:  # fmt: skip
        if ids is not None:
            self.model.acknowledge(self.flow, list(numbers(ids)))
        if up_to is not None:
            self.model.acknowledge_up_to(self.flow, int(up_to))
        if where is not None:
            self.model.acknowledge_where(self.flow, where)
        self.connection.pump()

    def set_max_backlog(self, backlog: int) -> None:
        self.model.set_backlog(self.flow, backlog)
        self._hand_back(backlog)
        self.connection.pump()

    def _hand_back(self, backlog: int) -> None:
        """L5: unread messages beyond a smaller backlog are returned."""
        self.pump()
        queue = self.model.queues[self.queue]
        held = {str(e.id) for e in queue.entries if e.holder is self.flow}
        waiting = [m for m in self.inbox if not m.is_barrier and m.id in held]
        with self.model.joined():
            for message in waiting[max(backlog - (len(held) - len(waiting)), 0) :]:
                self.inbox.remove(message)
                self.model.hand_back(self.flow, int(message.id))

    def kill(self) -> None:
        self.model.kill(self.flow)

    def close(self) -> None:
        if self.flow in self.model.subscriptions:
            self.model.set_backlog(self.flow, 0)
            self._hand_back(0)
        self.model.unsubscribe(self.flow)
        self.connection.pump()


def numbers(ids: Iterable[str] | str) -> Iterable[int]:
    """`"1-3,7"` or a list of ids."""
    for part in ids.split(",") if isinstance(ids, str) else ids:
        first, _, last = str(part).partition("-")
        yield from range(int(first), int(last or first) + 1)
