"""A session with the engine: what is said to it, and who hears what comes from it.

One inbox, shared by replies and deliveries, one partition of the receipts, one name whose
heartbeats keep the subscriptions alive (C3). Consumers and producers are known here only as those
who listen: to a subscription's deliveries, to a producer's receipts. How it sends requests:
`broker_requests`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from ...protocol import LakequeueError, Timeout, commands
from ...protocol.duties import do_every
from ...protocol.errors import Moved
from ...protocol.signing import Credentials
from ...protocol.wire import FRAMING
from .requests import Answer, BrokerRequests
from .runner import Runner
from .transport import Record, Transport

__all__ = ["Answer", "Consuming", "Producing", "Session"]

HEARTBEAT_S = 4.0
ENDED = "Ended"  # the kind of a reply that nobody asked for: the engine ended a subscription


class Consuming(Protocol):
    """Who listens to a subscription."""

    queue: str

    @property
    def broker(self) -> int | None:
        """The number of the broker with which it is bound; None until it is."""
        ...

    def on_record(self, record: Record) -> None:
        """A record of deliveries."""
        ...

    def on_end(self, why: str) -> None:
        """The subscription is over, though nobody here has ended it."""
        ...

    def tick(self) -> None:
        """Do what is due."""
        ...

    def due(self) -> int | None:
        """When `tick` has something to do next, by the runner's clock; None: nothing."""
        ...

    def subscribe(self) -> None:
        """Bind again, after the session was lost."""
        ...

    def close(self) -> None:
        """Return what is held, end the subscription."""
        ...

    def forked(self) -> None:
        """Closed: this is a forked child."""
        ...


class Producing(Protocol):
    """Who listens to receipts."""

    def on_receipt(self, value: Answer) -> None:
        """The engine's answer to messages."""
        ...

    def retransmit(self, now_s: float) -> None:
        """Send again what waits too long."""
        ...

    def send_gathered(self) -> None:
        """Send what was gathered."""
        ...

    def close(self) -> None:
        """Flush; raises Timeout if messages stay without an answer."""
        ...

    def forked(self) -> None:
        """Closed: this is a forked child."""
        ...


class Session(BrokerRequests):
    """One session. Its runner calls `receive`, `upkeep` and `beat`; all else may be called from any
    thread."""

    def __init__(
        self, transport: Transport, runner: Runner, vpn: str, client_name: str, number: int = 0,
        credentials: Credentials | None = None,
    ) -> None:  # fmt: skip
        super().__init__(transport, runner, vpn, client_name, number, credentials)
        self._consumers: dict[str, Consuming] = {}
        self._producing: dict[str, list[Producing]] = {}  # by their ids
        self._hooks: dict[Consuming, Callable[[], None]] = {}
        self.is_silent = False  # the last question at a close was not answered
        self._subscribing = False  # again, after the session was lost
        self._lost: set[int] = set()  # brokers that missed its heartbeats
        self._follow: set[Consuming] = set()  # whose queue is on another broker now
        self._last_heartbeat = time.monotonic()
        self._heartbeat_s = HEARTBEAT_S
        runner.start(self)

    def forked(self) -> None:
        """In a forked child: nothing of this connection works here. Its threads are not here, locks
        may be held for ever by threads that are not here, and what it sent would be sent twice."""
        self.is_open = False
        for consumer in self._consumers.values():
            consumer.forked()
        for producer in self._producers():
            producer.forked()

    # ------------------------------------------------------------ who listens

    def attach_consumer(self, subscription: str, consumer: Consuming) -> None:
        """Deliveries for this subscription go to this consumer, and to no earlier one of its."""
        for name in [n for n, c in self._consumers.items() if c is consumer]:
            self._forget(name)
        self._consumers[subscription] = consumer

    def detach_consumer(self, subscription: str, consumer: Consuming) -> None:
        """No deliveries any more."""
        self._forget(subscription)
        self._hooks.pop(consumer, None)

    def _forget(self, subscription: str) -> None:
        self._consumers.pop(subscription, None)
        self.runner.ended(self.vpn, self.session, subscription)

    def attach_producer(self, producer_id: str, producer: Producing) -> None:
        """Receipts for producers of this id go to it, as to any other that has it."""
        self._producing[producer_id] = [*self._producing.get(producer_id, ()), producer]

    def detach_producer(self, producer_id: str, producer: Producing) -> None:
        """No receipts any more."""
        others = [p for p in self._producing.pop(producer_id, ()) if p is not producer]
        if others:
            self._producing[producer_id] = others

    def _producers(self) -> list[Producing]:
        return [one for same in list(self._producing.values()) for one in same]

    def on_delivery(self, consumer: Consuming, hook: Callable[[], None]) -> None:
        """Call this when something may have been delivered."""
        self._hooks[consumer] = hook

    def session_of(self, subscription: str) -> str:
        """The session whose heartbeats keep a subscription."""
        return self.runner.session_of(self.vpn, self.session, subscription)

    def silence(self, subscription: str) -> None:
        """On ``memory://``: a consumer's heartbeats stop, as when its process is killed."""
        self.runner.silence(self.vpn, self.session, subscription)

    def heartbeat_within(self, timeout_s: float) -> None:
        """Send heartbeats at least three times within the engine's timeout."""
        self._heartbeat_s = min(HEARTBEAT_S, timeout_s / 3)

    # ------------------------------------------------------------ duties, called by the runner

    def receive(self, timeout_s: float) -> None:
        """Take what came in to those whom it concerns."""
        records = self._transport.poll(timeout_s)
        duties: list[Callable[[], None]] = [partial(self._dispatch, record) for record in records]
        if records:
            duties += [self.wake, self._call_hooks]
        do_every(duties)

    def _call_hooks(self) -> None:
        do_every(list(self._hooks.values()))

    def _dispatch(self, record: Record) -> None:
        name = (record.key or b"").decode("utf-8", "replace")
        if record.topic == self.inbox.topic:
            framing = next((v for k, v in record.headers if k == FRAMING), b"")
            if framing == b"reply":
                told = self._asked.pop(name, None)
                answer = msgspec.json.decode(record.value or b"")
                if told is not None:
                    self.is_silent = False
                    told(answer)
                elif (
                    name in self._consumers and answer["kind"] == ENDED
                ):  # its subscription is over
                    self._consumers[name].on_end(answer["result"]["ended"])
            elif framing == b"batch":
                consumer = self._consumers.get(name)
                if consumer is not None:
                    consumer.on_record(record)
            return
        if record.topic == self._directory:
            self._hear_where(record)
            return
        producers = self._producing.get(name)
        if producers:
            receipt = msgspec.json.decode(record.value or b"")
            do_every(partial(producer.on_receipt, receipt) for producer in producers)

    def _hear_where(self, record: Record) -> None:
        """A queue is elsewhere now: its consumers go there."""
        name = self._where.take(record.key, record.value)
        for consumer in list(self._consumers.values()) if name is not None else ():
            # One that is being bound finds it by itself. One that is bound has lost what it held,
            # also if the queue comes back before this is acted on.
            if consumer.queue == name:
                self.follow_if_gone(consumer)

    def follow_if_gone(self, consumer: Consuming) -> None:
        """Where the queue has gone on while a consumer was bound, it goes there. Where the queue
        has more hosts, or fewer, and its broker is one of them, it stays, with what it holds."""
        hosts = self._where.hosts_of(consumer.queue).values()
        at, to = consumer.broker, self.broker_of(consumer.queue)
        if at is not None and at not in (hosts or (to,)):
            self._follow.add(consumer)

    def upkeep(self) -> None:
        """Acks and renewals that are due, messages without an answer."""
        if self._follow and not self._subscribing:
            left = [c for c in list(self._consumers.values()) if c in self._follow]
            self._follow.clear()
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
        """Say that the session is alive, if it is time; bind its consumers again if it was lost."""
        now_s = time.monotonic()
        if self._consumers and now_s - self._last_heartbeat >= self._heartbeat_s:
            self._last_heartbeat = now_s
            bound = {consumer.broker for consumer in list(self._consumers.values())}
            numbers = sorted(n for n in bound if n is not None)
            do_every(partial(self._beat_at, number) for number in numbers)
        if self._lost and not self._subscribing:
            lost = [c for c in list(self._consumers.values()) if c.broker in self._lost]
            self._lost.clear()
            self.report("the engine missed this session's heartbeats; subscribing again")
            self._bind_again(lost)

    def _beat_at(self, broker: int) -> None:
        told = partial(self._heard, broker)
        self.ask(commands.Heartbeat(session=self.session), told, broker)

    def _heard(self, broker: int, answer: Answer) -> None:
        if answer["result"] is False and self._consumers:
            self._lost.add(broker)
        else:
            self._lost.discard(broker)

    def _bind_again(self, consumers: list[Consuming]) -> None:
        """New subscriptions; in the background, where a call may wait."""
        self._subscribing = True
        if self.runner.waits:
            threading.Thread(target=self._subscribe_again, args=(consumers,), daemon=True).start()
        else:
            self._subscribe_again(consumers)

    def _subscribe_again(self, lost: list[Consuming]) -> None:
        """After a pause that was too long, or where the queue went; what was held is lost (C3)."""
        try:
            while lost and self.is_open:
                lost = [c for c in lost if not self._subscribed(c)]
                if not self.runner.waits:  # next time
                    self._follow.update(lost)
                    break
        finally:
            self._subscribing = False

    def _subscribed(self, consumer: Consuming) -> bool:
        """Whether nothing is left to try: it is bound, or it cannot be."""
        try:
            consumer.subscribe()
        except LakequeueError as error:
            self.report(f"subscribing to {consumer.queue!r} again failed: {error}")
            if isinstance(error, Timeout | Moved):  # the engine or the queue may come back
                return False
            consumer.on_end(f"subscribing again failed: {error}")
        return True
