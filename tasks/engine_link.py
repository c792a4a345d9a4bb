"""The connection to the engine: all kombu connections of a process to one address share it.

Celery opens many kombu connections, one for each thread that sends at once. On Kafka each would be
threads and sockets of its own; here they share a producer and what is known about queues.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from kombu.exceptions import OperationalError

from ..client import Consumer, connect
from ..client.connection import Connection
from ..client.producer.receipts import Pending
from ..client.values import deadline_s
from ..protocol import ConfigError, LakequeueError, Reason, Rejected, Timeout
from ..protocol.bounds import shown
from .transient import UNUSED_S, TransientQueues, mark_of

BACKLOG_MAX = 10_000  # as many as the broker lets one consumer hold
WINDOW = 1_000
CONFIRM_S = 60.0
EXIT_S = 8.0  # as long as a connection takes to close without Kafka
ADDRESSES = "allowed are 'lakequeue+kafka://HOST:PORT[/VPN]' and 'lakequeue+memory://NAME[/VPN]'"

log = logging.getLogger("lakequeue.tasks")


@dataclass(frozen=True, slots=True)
class Address:
    """The engine's address and the options. confirms: whether a publish waits until the broker has
    stored the message."""

    url: str
    vpn: str = "default"
    key: str | None = None
    client_name: str | None = None
    confirms: bool = True

    @classmethod
    def of(cls, url: str, options: dict[str, Any]) -> Address:
        """Parse a kombu connection's address after `lakequeue+`, and its transport options."""
        parts = urlsplit(url)
        if parts.scheme not in ("kafka", "memory") or not parts.netloc:
            raise ConfigError(f"broker_url: {shown(url)} – {ADDRESSES}")
        bare = parts._replace(path="").geturl()
        return cls(
            bare, parts.path.strip("/") or "default", options.get("key"),
            options.get("client_name"), bool(options.get("confirm_publish", True)),
        )  # fmt: skip

    @property
    def is_memory(self) -> bool:
        """Whether the engine is in this process."""
        return self.url.startswith("memory:")


@dataclass(eq=False)
class EngineLink:
    """Made by `acquire`. declared: the definitions of queues that were declared here."""

    address: Address
    connection: Connection
    users: int = 0
    declared: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.producer = self.connection.producer(window=WINDOW)
        self.admin = self.connection.admin()
        self.consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self.transient = TransientQueues(self.connection, looks=not self.address.is_memory)

    @property
    def is_open(self) -> bool:
        """Whether it can be used: it is not closed, and not the parent process's."""
        return self.connection.is_open

    def end(self) -> None:
        """Close it; transient queues that only this process used are deleted."""
        try:
            if self.is_open:
                self.transient.close(list(self.consumers))
        except LakequeueError as error:  # Kafka is away: another process deletes them
            log.warning("closing the connection: %s", error)
        finally:
            self.connection.close()

    # ------------------------------------------------------------ queues

    def look(self, queue: str) -> dict[str, Any] | None:
        """A queue as `describe` returns it; None if it does not exist."""
        try:
            return self.admin.describe(queue)
        except ConfigError:
            return None

    def declare(
        self, queue: str, keys: dict[str, Any], own: bool, unused_s: float | None = None
    ) -> dict[str, Any]:
        """Make a queue. An existing one stays as it is, except for keys that the application gives
        for this queue (own). unused_s: after this long without a consumer, a new one may be
        deleted. Returns what `describe` returns."""
        there = self.look(queue)
        if there is None or (own and queue not in self.declared):
            dead = keys.get("dead_message_queue")
            if dead is not None and self.look(dead) is None:
                self.admin.define(_definition(dead, {}))
            if there is None and unused_s is not None:
                keys = keys | {"subscriptions": [mark_of(unused_s)]}
            self.admin.define(_definition(queue, keys))
            there = self.look(queue)
        self.declared[queue] = keys
        return there or {}

    def claim(self, queue: str, keys: dict[str, Any]) -> dict[str, Any]:
        """Make a queue that is deleted with the last process that claims it. Returns what
        `describe` returns for a new one."""
        if self.transient.claims(queue):
            self.transient.claim(queue)
            return {}
        found = self.declare(queue, keys, bool(keys), UNUSED_S)
        try:
            self.transient.claim(queue)
        except ConfigError:  # the last process that had it has deleted it since
            found = self.declare(queue, keys, bool(keys), UNUSED_S)
            self.transient.claim(queue)
        return found

    def delete(self, queue: str) -> None:
        """Delete a queue, if it is there."""
        self.declared.pop(queue, None)
        self.transient.forget(queue)
        with contextlib.suppress(ConfigError):
            self.admin.delete(queue)

    # ------------------------------------------------------------ messages

    def send(
        self, destination: str, payload: str, options: dict[str, Any], safe: bool,
        patient: bool = False,
    ) -> None:  # fmt: skip
        """Publish. A message that no queue takes is dropped, as on RabbitMQ; but a queue that was
        declared here and has been deleted since is made again. safe: the message survives the loss
        of the engine. patient: wait for the answer however long it takes."""
        if not safe:
            self.producer.send_async(
                destination, payload, delivery_mode="non_persistent", **options
            )
        elif self.address.confirms:
            try:
                self._send_confirmed(destination, payload, options, patient)
            except Rejected as error:
                if error.reason != Reason.NO_MATCHING_DESTINATION:
                    raise
                keys = self.declared.get(destination)
                if keys is not None:
                    self.declare(destination, keys, False)
                    self._send_confirmed(destination, payload, options, patient)
        else:
            self.producer.send_async(destination, payload, **options)

    def _send_confirmed(
        self, destination: str, payload: str, options: dict[str, Any], patient: bool
    ) -> None:
        """Unlike `Producer.send` this lets messages of several threads gather while a record is on
        its way, and an answer wakes its own thread only."""
        sent: Pending | None = None
        while True:
            try:
                if sent is None:  # a full window may have refused it
                    sent = self.producer.send_async(destination, payload, **options)
                if self._answered(sent):
                    break
                raise Timeout(f"no answer to a message for {destination!r} in {CONFIRM_S:g} s")
            except Timeout as error:
                if not patient:
                    # It is sent again as long as this process lives; no other process may send it.
                    raise OperationalError(str(error)) from error
                log.warning("%s; waiting on, as the retry policy says", error)
        sent.result()

    def _answered(self, sent: Pending) -> bool:
        if self.address.is_memory:
            return self.connection.wait(sent.done, CONFIRM_S)
        answered = threading.Event()
        sent.add_done_callback(lambda _: answered.set())
        return answered.wait(CONFIRM_S)


def _definition(queue: str, keys: dict[str, Any]) -> dict[str, Any]:
    common = {
        "name": queue, "message_type": "json", "priority": "/@priority",
        "max_per_subscription_backlog": BACKLOG_MAX,
    }  # fmt: skip
    return common | keys


_links: dict[Address, EngineLink] = {}
_inherited: list[EngineLink] = []  # the parent process's; ending them here would end them there
_lock = threading.Lock()


def acquire(address: Address) -> EngineLink:
    """The link to this address, opened on first use. Raises as `lakequeue.connect`."""
    with _lock:
        link = _links.get(address)
        if link is None or not link.is_open:
            connection = connect(
                address.url, vpn=address.vpn, client_name=address.client_name, key=address.key
            )
            link = _links[address] = EngineLink(address, connection)
        link.users += 1
        return link


def release(link: EngineLink) -> None:
    """A kombu connection was closed; the last one closes the link."""
    with _lock:
        link.users -= 1
        if link.users > 0:
            return
        if _links.get(link.address) is link:
            del _links[link.address]
    link.end()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _inherited.extend(_links.values())
    _links.clear()


def _at_exit() -> None:
    """Before the process ends: wait for answers to everything unconfirmed, at most `EXIT_S`, and
    delete transient queues. Kafka keeps what an engine that is away has not answered."""
    until = deadline_s(EXIT_S)
    for link in list(_links.values()):
        with contextlib.suppress(LakequeueError):
            try:
                link.producer.flush(max(until - time.monotonic(), 0.0))
            except Timeout:
                link.connection.is_silent = True  # so nothing below waits for it
            link.transient.close(list(link.consumers))


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
