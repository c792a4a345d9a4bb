"""A broker for Dramatiq.

    dramatiq.set_broker(LakequeueBroker("kafka://localhost:9092"))

The engine keeps delayed messages. A message that fails for good goes to the dead message queue, if
the queue has one. A message's option `broker_priority` is its priority.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from dramatiq import Broker, Consumer, Message, MessageProxy, Middleware
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound
from dramatiq.worker import _WorkerThread

from ..client import Admin, Connection, connect
from ..client.producer.producer import SEND_TIMEOUT_S
from ..protocol import LeaseLost, NotConnected
from .memory_clock import WAIT_S, pass_time

BACKLOG_MAX = 10_000
COMMON: dict[str, Any] = {"message_type": "json", "priority": "/@priority"}
COMMON["max_per_subscription_backlog"] = BACKLOG_MAX
JOIN_S = 0.1
AGAIN_S = 1.0
log = logging.getLogger("lakequeue.tasks")


class LakequeueBroker(Broker):
    """url, options: as for `lakequeue.connect`. queues: for each queue that does not exist yet,
    keys of its definition, such as `max_deliveries` and `dead_message_queue`."""

    def __init__(
        self, url: str, queues: dict[str, Any] | None = None,
        middleware: list[Middleware] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(middleware)
        self._url, self._options = url, options
        self._keys = dict(queues or {})
        self._opened: Connection | None = None
        self._lock = threading.Lock()

    @property
    def connection(self) -> Connection:
        """The connection to the engine, opened when it is first needed in a process."""
        with self._lock:
            if self._opened is None or not self._opened.is_open:  # and a forked child needs its own
                self._opened = connect(self._url, **self._options)
                self._producer = self._opened.producer()
            return self._opened

    def close(self) -> None:
        """Close the connection; unacknowledged messages return."""
        if self._opened is not None:
            self._opened.close()

    def declare_queue(self, queue_name: str) -> None:
        """Make a queue known; the engine makes it when it is first used."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None  # True once the engine has it
            self.emit_after("declare_queue", queue_name)

    def _admin_for(self, queue: str) -> Admin:
        """The administration interface, after the queue was made if it did not exist."""
        if queue not in self.queues:
            raise QueueNotFound(queue)
        admin, dead = self.connection.admin(), self._keys.get("dead_message_queue")
        if not self.queues[queue]:
            there = {None, *(found["name"] for found in admin.queues())}
            for name, keys in ((dead, {}), (queue, self._keys)):
                if name not in there:
                    admin.define({"name": name, **COMMON, **keys})
            self.queues[queue] = True
        return admin

    def enqueue(self, message: Message, *, delay: int | None = None) -> Message:
        """Publish; returns when the message is stored. delay: in milliseconds. Raises Timeout if
        there is no answer in a minute, NotConnected if Kafka takes nothing. A worker's thread goes
        on: Dramatiq acknowledges a message even if its retry could not be sent."""
        self._admin_for(message.queue_name)
        connection = self.connection
        delay_s = delay / 1000 if delay else None
        priority = message.options.get("broker_priority") or 0
        self.emit_before("enqueue", message, delay)
        patient = isinstance(threading.current_thread(), _WorkerThread)
        send = partial(
            self._producer.send, message.queue_name, message.encode(), priority=priority,
            delay=delay_s, timeout=None if patient else SEND_TIMEOUT_S,
        )  # fmt: skip
        while True:
            try:
                send()
                break
            except NotConnected as error:  # it was not sent
                if not patient or not connection.is_open:
                    raise
                log.warning("%s; sending again", error)
                time.sleep(AGAIN_S)
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> Consumer:
        """Subscribe to a queue. timeout: of each wait, in milliseconds."""
        self._admin_for(queue_name)
        return _Subscribed(self.connection, queue_name, min(prefetch, BACKLOG_MAX), timeout)

    def flush(self, queue_name: str) -> None:
        """Delete the messages of a queue."""
        self._admin_for(queue_name).purge(queue_name)

    def flush_all(self) -> None:
        """Delete the messages of all queues."""
        for name in self.queues:
            self.flush(name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until a queue is empty; for tests. timeout: in milliseconds."""
        admin = self._admin_for(queue_name)
        end_s = time.monotonic() + (float("inf") if timeout is None else timeout / 1000)
        while admin.describe(queue_name)["depth"]:
            if time.monotonic() > end_s:
                raise QueueJoinTimeout(queue_name)
            time.sleep(JOIN_S)


class _Subscribed(Consumer):
    def __init__(self, connection: Connection, queue: str, prefetch: int, timeout: int) -> None:
        self._connection, self._wait_s = connection, timeout / 1000
        self._consumer = connection.consumer(queue, ack_mode="individual", max_backlog=prefetch)

    def __next__(self) -> MessageProxy | None:
        try:
            delivery = self._consumer.receive(self._wait_s)
            if delivery is None and hasattr(self._connection, "engine"):  # in memory: no call waits
                time.sleep(WAIT_S)
                pass_time(self._connection)
        except NotConnected as error:
            raise ConnectionClosed(error) from None
        if delivery is None:
            return None
        try:
            message: Any = MessageProxy(Message.decode(delivery.payload))
        except DecodeError as error:  # if it came again, it would stop the queue each time
            log.error("message %s of %r is no Dramatiq message", delivery.id, delivery.queue)
            self._settle(partial(delivery.reject, error))
            return None
        message.delivery = delivery
        return message

    def ack(self, message: Any) -> None:
        self._settle(message.delivery.ack)

    def nack(self, message: Any) -> None:
        self._settle(message.delivery.reject)

    def requeue(self, messages: Iterable[Any]) -> None:
        """Return messages that no worker has begun with; that counts as no attempt."""
        for message in messages:
            self._settle(message.delivery.put_back)

    def _settle(self, how: Callable[[], None]) -> None:
        try:
            how()
            self._consumer.send_acks()
        except LeaseLost as error:  # the connection was lost meanwhile: somebody else has it
            log.warning("%s", error)
        except NotConnected as error:  # Dramatiq tries again
            raise ConnectionClosed(error) from None

    def close(self) -> None:
        self._consumer.close()
