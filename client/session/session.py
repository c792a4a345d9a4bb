"""A session with the engine: one inbox for replies and deliveries, one partition of receipts, one
name.

The session's heartbeats keep its subscriptions alive (C3). It knows consumers and producers only as
listeners, to deliveries and receipts. `requests` sends commands.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Protocol

import msgspec

from ...protocol import LakequeueError, NotConnected, Timeout, commands
from ...protocol.duties import do_every
from ...protocol.errors import Moved
from ...protocol.signing import Credentials
from ...protocol.wire import FRAMING
from .requests import IDLE_LOOK_FOR_OTHERS_S, LOOK_AGAIN_S, Answer, BrokerRequests
from .runner import Runner, Threads
from .transport import Record, Transport

__all__ = ["Answer", "Consuming", "Producing", "Session"]

HEARTBEAT_S = 4.0
# Unrequested replies, about a subscription.
ENDED = "Ended"  # the engine has ended it
BACKLOG = "Backlog"  # the queue's definition has changed its terms


class Consuming(Protocol):
    """A listener to one subscription: `Consumer`, which says what these do."""

    queue: str

    @property
    def broker(self) -> int | None: ...
    def on_record(self, record: Record) -> None: ...
    def on_end(self, why: str) -> None: ...
    def on_terms(self, terms: Answer) -> None: ...
    def tick(self) -> None: ...
    def due(self) -> int | None: ...
    def subscribe(self) -> None: ...
    def stop(self) -> None: ...
    def close_by(self, until: float) -> None: ...


class Producing(Protocol):
    """A listener to receipts: `Producer`, which says what these do."""

    def on_receipt(self, value: Answer) -> None: ...
    def retransmit(self, now_s: float) -> None: ...
    def send_gathered(self) -> None: ...
    def close(self, timeout: float) -> None: ...


class Session(BrokerRequests):
    """One session. Its runner calls `receive`, `upkeep` and `beat`; all other methods may be called
    from any thread."""

    def __init__(
        self, transport: Transport, vpn: str, client_name: str, runner: Runner | None = None,
        number: int = 0, credentials: Credentials | None = None,
    ) -> None:  # fmt: skip
        super().__init__(transport, vpn, client_name, runner or Threads(), number, credentials)
        self._consumers: dict[str, Consuming] = {}
        self._producing: dict[str, list[Producing]] = {}  # by their ids
        self._hooks: dict[Consuming, Callable[[], None]] = {}
        self.is_silent = False  # the engine did not answer the last close
        self._binding: set[Consuming] = set()  # consumers that are being bound again
        self._arrived: deque[Record] = deque()  # not handed to their listeners yet
        self._follow: set[Consuming] = set()  # consumers whose queue moved, or session was lost
        self._last_heartbeat = time.monotonic()
        self._heartbeat_s = HEARTBEAT_S
        self.runner.start(self)

    # ------------------------------------------------------------ who listens

    def attach_consumer(self, subscription: str, consumer: Consuming) -> None:
        """Send deliveries of this subscription to this consumer; its earlier subscriptions are
        forgotten."""
        for name in [n for n, c in list(self._consumers.items()) if c is consumer]:
            self._forget(name)
        self._consumers[subscription] = consumer

    def detach_consumer(self, subscription: str, consumer: Consuming) -> None:
        """Stop deliveries to this consumer."""
        self._forget(subscription)
        self._follow.discard(consumer)
        self._hooks.pop(consumer, None)

    def _forget(self, subscription: str) -> None:
        self._consumers.pop(subscription, None)
        self.runner.ended(subscription)

    def attach_producer(self, producer_id: str, producer: Producing) -> None:
        """Send receipts for this producer id to this producer too; several may share an id."""
        with self.changed:
            self._producing[producer_id] = [*self._producing.get(producer_id, ()), producer]

    def detach_producer(self, producer_id: str, producer: Producing) -> None:
        """Stop receipts to this producer."""
        with self.changed:
            others = [p for p in self._producing.get(producer_id, ()) if p is not producer]
            self._producing[producer_id] = others
            if not others:
                del self._producing[producer_id]

    def _producers(self) -> list[Producing]:
        return [one for same in list(self._producing.values()) for one in same]

    def on_delivery(self, consumer: Consuming, hook: Callable[[], None]) -> None:
        """Call ``hook`` whenever something may have been delivered."""
        self._hooks[consumer] = hook

    def heartbeat_within(self, timeout_s: float) -> None:
        """Send heartbeats at least three times within the engine's timeout."""
        self._heartbeat_s = min(HEARTBEAT_S, timeout_s / 3)

    # ------------------------------------------------------------ duties, called by the runner

    def receive(self, timeout_s: float) -> None:
        """Hand what arrives within ``timeout_s`` to its listeners."""
        arrived = self._arrived
        arrived.extend(self._transport.poll(0 if arrived else timeout_s))
        if arrived:
            duties = (partial(self._dispatch, record) for record in self._take_arrived())
            do_every((lambda: do_every(duties), self.wake, self._call_hooks))

    def _call_hooks(self) -> None:
        do_every(list(self._hooks.values()))

    def _take_arrived(self) -> Iterator[Record]:
        """The records in their order. A listener that waits for an answer leads to `receive` again,
        which takes what is left here before anything newer."""
        with suppress(IndexError):  # another thread may take the last one, on memory://
            while self._arrived:
                yield self._arrived.popleft()

    def _dispatch(self, record: Record) -> None:
        name = (record.key or b"").decode("utf-8", "replace")
        if record.topic == self.inbox.topic:
            framing = next((v for k, v in record.headers if k == FRAMING), b"")
            if framing == b"reply":
                on_answer = self._asked.pop(name, None)
                answer = msgspec.json.decode(record.value or b"")
                if on_answer is not None:
                    self.is_silent = False
                    on_answer(answer)
                elif name in self._consumers and answer["kind"] == ENDED:
                    self._consumers[name].on_end(answer["result"]["ended"])
                elif name in self._consumers and answer["kind"] == BACKLOG:
                    self._consumers[name].on_terms(answer["result"])
            elif framing == b"batch" and name in self._consumers:
                self._consumers[name].on_record(record)
        elif record.topic == self._directory:
            self._read_directory_record(record)
        elif producers := self._producing.get(name):
            receipt = msgspec.json.decode(record.value or b"")
            do_every(partial(producer.on_receipt, receipt) for producer in producers)

    def _read_directory_record(self, record: Record) -> None:
        """Read a directory record; consumers of a queue that moved follow it."""
        name = self._where.take(record.key, record.value)
        for consumer in list(self._consumers.values()) if name is not None else ():
            # A consumer that is binding finds the queue itself. A bound one has lost what it
            # held, even if the queue comes back before this is acted on.
            if consumer.queue == name:
                self.follow_if_gone(consumer)

    def follow_if_gone(self, consumer: Consuming) -> None:
        """Let a consumer follow if its broker does not host the queue any more. If it still does,
        the consumer stays, with what it holds."""
        hosts = self._where.hosts_of(consumer.queue).values()
        at, to = consumer.broker, self.broker_of(consumer.queue)
        if at is not None and at not in (hosts or (to,)):
            self._follow.add(consumer)

    def _meet_others(self) -> None:
        super()._meet_others()
        for consumer in list(self._consumers.values()):
            self.follow_if_gone(consumer)

    def upkeep(self) -> None:
        """Rebind consumers whose subscription was lost, send acks and renewals that are due, send
        unanswered messages again."""
        if self._alone and self._consumers:  # their queue may move to a broker that is new
            with suppress(NotConnected):
                self._is_alone(IDLE_LOOK_FOR_OTHERS_S)
        if self._follow:
            due = self._follow - self._binding  # the others follow later
            left = [c for c in list(self._consumers.values()) if c in due]
            self._follow.difference_update(left)
            self._bind_again(left)
        now_s = time.monotonic()
        ticks = [consumer.tick for consumer in list(self._consumers.values())]
        do_every([*ticks, *(partial(p.retransmit, now_s) for p in self._producers())])

    def due(self) -> int | None:
        """When `upkeep` has something to do for a consumer next, by the runner's clock."""
        times = [t for c in list(self._consumers.values()) if (t := c.due()) is not None]
        return min(times, default=None)

    def send_gathered(self) -> None:
        """Send what producers have gathered."""
        try:
            do_every(producer.send_gathered for producer in self._producers())
        except LakequeueError as error:  # the messages are sent again, see `Window.retransmit`
            self.report(str(error))

    def beat(self) -> None:
        """Send heartbeats if it is time."""
        now_s = time.monotonic()
        if self._consumers and now_s - self._last_heartbeat >= self._heartbeat_s:
            self._last_heartbeat = now_s
            bound = {consumer.broker for consumer in list(self._consumers.values())}
            command = commands.Heartbeat(session=self.session)
            do_every(
                partial(self.ask, command, partial(self._heartbeat_answered, number), number)
                for number in sorted(n for n in bound if n is not None)
            )

    def _heartbeat_answered(self, broker: int, answer: Answer) -> None:
        if answer["result"] is False and self._consumers:  # the engine has dropped the session
            self.report("the engine missed this session's heartbeats; subscribing again")
            its = {c for c in list(self._consumers.values()) if c.broker == broker}
            self._follow |= its - self._binding

    def _bind_again(self, consumers: list[Consuming]) -> None:
        """Bind these consumers again; if calls may wait, each broker's in a thread of its own, so
        that a broker that does not answer delays no others."""
        self._binding.update(consumers)
        for broker in {consumer.broker for consumer in consumers}:
            its = [consumer for consumer in consumers if consumer.broker == broker]
            if self.runner.waits:
                threading.Thread(target=self._subscribe_again, args=(its,), daemon=True).start()
            else:
                self._subscribe_again(its)

    def _subscribe_again(self, lost: list[Consuming]) -> None:
        """Bind consumers again after a lost session or a move. They lose their messages (C3)."""
        left = lost
        try:
            while left and self.is_open:
                left = [c for c in left if not self._subscribed(c)]
                self._binding.difference_update(set(lost).difference(left))
                if not self.runner.waits:  # on memory:// try again at the next call
                    self._follow.update(left)
                    break
                if left:
                    time.sleep(LOOK_AGAIN_S)
        finally:
            self._binding.difference_update(left)

    def _subscribed(self, consumer: Consuming) -> bool:
        """Bind a consumer again. Returns False if it has to be tried once more."""
        try:
            consumer.subscribe()
        except LakequeueError as error:
            self.report(f"subscribing to {consumer.queue!r} again failed: {error}")
            # Kafka, the engine or the queue may come back.
            if isinstance(error, NotConnected | Timeout | Moved):
                return False
            consumer.on_end(f"subscribing again failed: {error}")
        return True
