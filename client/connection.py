"""A connection: one session with the engine, over Kafka or in memory.

Over Kafka one background thread reads the inbox, sends heartbeats and collected acks, and sends
again what was not answered. In memory there is no thread: every call runs the engine at once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4
from zlib import crc32

import msgspec

from ..protocol import ConfigError, LakequeueError, NotConnected, Problem, Timeout, commands, topics
from ..protocol.wire import FRAMING
from .admin import Admin
from .consumer import Consumer
from .producer import Producer, decode_receipt
from .transport import Record, Transport

log = logging.getLogger("lakequeue.client")

HEARTBEAT_S = 4.0
HEARTBEAT = "heartbeat"
POLL_S = 0.05
GATHER_S = 0.004
REQUEST_TIMEOUT_S = 30.0


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _after_fork() -> None:
    for connection in list(_connections):
        if not connection.is_memory:
            connection.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Connection:
    """Made by `lakequeue.connect`. Gives producers, consumers and the administrator's face."""

    def __init__(
        self, transport: Transport, vpn: str, client_name: str, memory: Any = None
    ) -> None:
        self._transport = transport
        self.vpn = vpn
        self.client_name = client_name
        self.engine = memory
        self.is_memory = memory is not None
        self.is_open = True
        _connections.add(self)
        self._names = 0
        self._tag = memory.new_tag() if memory is not None else uuid4().hex[:8]
        self.session = f"{client_name}-{self._tag}"
        self._consumers: dict[str, Consumer] = {}
        self._producers: dict[str, Producer] = {}
        self._session_lost = False
        self._subscribing = False  # again, after the session was lost
        self._hooks: dict[Consumer, Callable[[], None]] = {}
        self._replies: dict[str, Any] = {}
        self.changed = threading.Condition()
        self._last_heartbeat = time.monotonic()
        self._heartbeat_s = HEARTBEAT_S
        self._pid = os.getpid()
        self._commands = topics.topic(vpn, topics.COMMANDS)
        deliveries = topics.topic(vpn, topics.DELIVERIES)
        receipts = topics.topic(vpn, topics.RECEIPTS)
        spread = crc32(self.session.encode())
        partition = spread % transport.partitions(deliveries)
        self.inbox = commands.Inbox(deliveries, partition)
        self.publish_partitions = transport.partitions(topics.topic(vpn, topics.PUBLISH))
        self.receipts_partition = spread % transport.partitions(receipts)
        transport.listen(deliveries, partition)
        transport.listen(receipts, self.receipts_partition)
        self._gathering = gathering = threading.Event()  # some producer has messages to send
        self._thread: threading.Thread | None = None
        if self.is_memory:
            memory.attend(self)
        else:
            self._thread = threading.Thread(
                target=_run, args=(weakref.ref(self),), daemon=True, name=f"lakequeue-{client_name}"
            )
            self._thread.start()
            threading.Thread(
                target=_gather, daemon=True, args=(_noticed(self, gathering), gathering),
                name=f"lakequeue-{client_name}-gather",
            ).start()  # fmt: skip

    # ------------------------------------------------------------ what applications use

    def producer(self, **options: Any) -> Producer:
        """A producer; see `Producer` for the options."""
        self._check_open()
        return Producer(self, **options)

    def consumer(self, queue: str, **options: Any) -> Consumer:
        """A consumer of a queue; see `Consumer` for the options."""
        self._check_open()
        return Consumer(self, queue, **options)

    def admin(self) -> Admin:
        """The administrator's face."""
        self._check_open()
        return Admin(self)

    def now(self) -> datetime:
        """The engine's time."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def now_ms(self) -> int:
        """The engine's time, epoch ms."""
        return self.engine.now if self.is_memory else round(time.time() * 1000)

    def clock_ms(self) -> float:
        """Milliseconds that pass as the engine's time does: real ones, on ``memory://`` those of
        its clock."""
        return self.engine.now if self.is_memory else time.monotonic() * 1000

    def advance(self, duration: str | float) -> None:
        """On ``memory://``: move the clock, stopping at every deadline on the way."""
        self._memory("advance").advance(duration)
        self._pump(0)

    def publish_raw(
        self,
        topic: str,
        value: bytes,
        key: bytes | None = None,
        headers: dict[str, bytes] | None = None,
        timestamp: int | None = None,
    ) -> None:
        """On ``memory://``: a plain record on a topic, as any Kafka producer would write it."""
        pairs = list((headers or {}).items())
        self._memory("publish_raw").publish(topic, value, key, pairs, timestamp)
        self._pump(0)

    def _memory(self, what: str) -> Any:
        if not self.is_memory:
            raise ConfigError(f"{what}: only on memory://")
        return self.engine

    def close(self) -> None:
        """Close producers and consumers, say goodbye, close the transport."""
        if not self.is_open:
            return
        try:
            for producer in list(self._producers.values()):
                producer.close()
        finally:
            for consumer in list(self._consumers.values()):
                consumer.close()
            self.command(commands.Bye(session=self.session))
            self.is_open = False
            self._gathering.set()
            self.wake()
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join(timeout=5)
            self._transport.flush(10.0)
            self._transport.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if not self.is_open:
            raise self.closed("the connection is closed")

    def closed(self, text: str) -> NotConnected:
        """The error for a use after the end: ``text``, or that this is a forked child."""
        if os.getpid() != self._pid:
            text = f"this connection was opened in process {self._pid}; open a new one after a fork"
        return NotConnected(text)

    def forked(self) -> None:
        """In a forked child: nothing of this connection works here. Its thread is not here, locks
        may be held for ever by threads that are not here, and what it sent would be sent twice."""
        self.is_open = False
        for consumer in self._consumers.values():
            consumer._closed = consumer._ended = True
        for producer in self._producers.values():
            producer._closed = True

    # ------------------------------------------------------------ for producers and consumers

    def new_name(self, base: str) -> str:
        """A name that no other connection gives."""
        self._names += 1
        return f"{base}-{self._tag}-{self._names}"

    def publish(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        headers: list[tuple[str, bytes]],
        partition: int,
    ) -> None:
        """Send a message record."""
        self._transport.publish(topic, value, key, headers, partition)
        if self.is_memory:
            self._pump(0)

    def gathering(self) -> None:
        """A producer has begun to gather messages: send them soon."""
        if not self._gathering.is_set():
            self._gathering.set()

    def send_gathered(self) -> None:
        """Send what producers have gathered."""
        try:
            for producer in list(self._producers.values()):
                producer.send_gathered()
        except LakequeueError as error:  # the messages are sent again, see `Producer.retransmit`
            self.report(str(error))

    def command(self, command: commands.Command) -> None:
        """Send a command without waiting; a connection's commands keep their order."""
        self._transport.command(
            self._commands, self.session.encode(), commands.encode_command(command)
        )
        if self.is_memory:
            self._pump(0)

    def request(self, command: commands.Command, timeout: float = REQUEST_TIMEOUT_S) -> Any:
        """Send a command and wait for its answer; raises what the engine answers."""
        self._check_open()
        request = self.new_name("request")
        reply = commands.ReplyTo(self.inbox.topic, self.inbox.partition, request)
        self._replies[request] = None
        self.command(msgspec.structs.replace(command, reply=reply))
        if not self.wait(lambda: self._replies[request] is not None, timeout):
            del self._replies[request]
            raise Timeout(
                f"the engine did not answer within {timeout} s; is it running? (lakequeue doctor)"
            )
        answer = self._replies.pop(request)
        if answer["error"] is None:
            return answer["result"]
        if answer["problems"]:
            raise ConfigError([Problem(*p) for p in answer["problems"]])
        if answer["kind"] == "ConfigError":
            raise ConfigError(answer["error"])
        raise LakequeueError(answer["error"])

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until a condition holds; in memory nothing waits."""
        if self.is_memory:
            self._pump(0)
            return condition()
        with self.changed:
            return self.changed.wait_for(lambda: condition() or not self.is_open, timeout) and (
                condition()
            )

    def wake(self) -> None:
        """Whoever waits looks again."""
        with self.changed:
            self.changed.notify_all()

    def report(self, text: str) -> None:
        """Something that the application should hear of."""
        log.warning(text)

    def attach_consumer(self, consumer: Consumer) -> None:
        """Deliveries for this subscription go to this consumer."""
        for name in [n for n, c in self._consumers.items() if c is consumer]:
            del self._consumers[name]
        self._consumers[consumer.subscription] = consumer

    def detach_consumer(self, consumer: Consumer) -> None:
        """No deliveries any more."""
        self._consumers.pop(consumer.subscription, None)
        self._hooks.pop(consumer, None)

    def attach_producer(self, producer: Producer) -> None:
        """Receipts for this producer go to it."""
        self._producers[producer.producer_id] = producer

    def detach_producer(self, producer: Producer) -> None:
        """No receipts any more."""
        self._producers.pop(producer.producer_id, None)

    def on_delivery(self, consumer: Consumer, hook: Callable[[], None]) -> None:
        """In memory: call this when something was delivered."""
        self._hooks[consumer] = hook

    def heartbeat_within(self, timeout_s: float) -> None:
        """Send heartbeats at least three times within the engine's timeout."""
        self._heartbeat_s = min(HEARTBEAT_S, timeout_s / 3)

    def session_of(self, subscription: str) -> str:
        """The session of a consumer: the connection's; in memory one of its own, so that one
        consumer can be silenced."""
        if not self.is_memory:
            return self.session
        session = f"{self.session}/{subscription}"
        self.engine.live(self.vpn, session)
        return session

    def silence(self, subscription: str) -> None:
        """In memory: a consumer's session stops sending heartbeats."""
        self._memory("kill").silence(self.vpn, f"{self.session}/{subscription}")

    # ------------------------------------------------------------ reading

    def _pump(self, timeout: float) -> bool:
        """Take what came in to those whom it concerns; True if anything came."""
        records = self._transport.poll(timeout)
        for record in records:
            self._dispatch(record)
        if records:
            self.wake()
            for hook in list(self._hooks.values()):
                hook()
        if self.is_memory:
            for consumer in list(self._consumers.values()):
                consumer.tick()
        return bool(records)

    def due(self) -> int | None:
        """On ``memory://``: when a client's own duty is due next, as `clock_ms` counts."""
        times = [t for c in self._consumers.values() if (t := c.due()) is not None]
        return min(times, default=None)

    def attend(self) -> None:
        """On ``memory://``: what the background thread does over Kafka."""
        if self.is_open:
            self._pump(0)

    def _dispatch(self, record: Record) -> None:
        name = (record.key or b"").decode("utf-8", "replace")
        if record.topic == self.inbox.topic:
            framing = next((v for k, v in record.headers if k == FRAMING), b"")
            if framing == b"reply":
                if name == HEARTBEAT:
                    answer = msgspec.json.decode(record.value or b"")
                    self._session_lost = answer["result"] is False and bool(self._consumers)
                elif name in self._replies:
                    self._replies[name] = msgspec.json.decode(record.value or b"")
            elif framing == b"batch":
                consumer = self._consumers.get(name)
                if consumer is not None:
                    consumer.on_record(record.value or b"")
            return
        producer = self._producers.get(name)
        if producer is not None:
            producer.on_receipt(decode_receipt(record.value or b""))

    def upkeep(self) -> None:
        """Acks that are due, heartbeats, retransmissions."""
        now = time.monotonic()
        for consumer in list(self._consumers.values()):
            consumer.tick()
        for producer in list(self._producers.values()):
            producer.retransmit(now)
        if self._consumers and now - self._last_heartbeat >= self._heartbeat_s:
            self._last_heartbeat = now
            reply = commands.ReplyTo(self.inbox.topic, self.inbox.partition, HEARTBEAT)
            self.command(commands.Heartbeat(session=self.session, reply=reply))
        if self._session_lost and not self._subscribing:
            self._session_lost, self._subscribing = False, True
            self.report("the engine missed this session's heartbeats; subscribing again")
            threading.Thread(target=self._subscribe_again, daemon=True).start()

    def _subscribe_again(self) -> None:
        """After a pause that was too long: new subscriptions; what was held is lost (C3)."""
        lost = list(self._consumers.values())
        try:
            while lost and self.is_open:
                lost = [c for c in lost if not self._subscribed(c)]
        finally:
            self._subscribing = False

    def _subscribed(self, consumer: Consumer) -> bool:
        """Whether nothing is left to try: it is bound, or it cannot be."""
        try:
            consumer.subscribe()
        except LakequeueError as error:
            self.report(f"subscribing to {consumer.queue!r} again failed: {error}")
            return not isinstance(error, Timeout)  # the engine is away: it may come back
        return True

    def turn(self) -> bool:
        """One turn of the background thread; False when it has to end."""
        if not self.is_open:
            return False
        try:
            self._pump(POLL_S)
            self.upkeep()
        except NotConnected as error:
            self.report(str(error))
            time.sleep(0.2)
        return self.is_open


def _run(reference: weakref.ref[Connection]) -> None:
    """The background thread; it ends when the connection is closed or forgotten."""
    while True:
        connection = reference()
        if connection is None or not connection.turn():
            return
        del connection


def _noticed(connection: Connection, event: threading.Event) -> weakref.ref[Connection]:
    """A reference that sets the event when the connection is forgotten."""
    return weakref.ref(connection, lambda _: event.set())


def _gather(reference: weakref.ref[Connection], gathering: threading.Event) -> None:
    """The thread that sends what has been gathered, `GATHER_S` after the first of it."""
    while True:
        gathering.wait()
        time.sleep(GATHER_S)
        gathering.clear()
        connection = reference()
        if connection is None or not connection.is_open:
            return
        connection.send_gathered()
        del connection
