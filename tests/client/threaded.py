"""The client as over Kafka, with its background thread, on an engine in this process.

Tests can observe, delay and drop the records between client and engine. No Kafka is needed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import WeakSet

import msgspec
from lakequeue.client.connection import Connection
from lakequeue.client.session.transport import Record
from lakequeue.definitions import parse_configuration
from lakequeue.memory import MemoryEngine, MemoryTransport
from lakequeue.protocol import LakequeueError, NotConnected
from rules.harness import Bench

WAIT_S = 60.0
ORDERS = {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 1000}
_opened: WeakSet[Connection] = WeakSet()


class Wire(MemoryTransport):
    """A transport to a `MemoryEngine` that keeps a record of everything sent.

    lose_published, lose_received: decide for each record whether it is lost.
    """

    def __init__(self, engine: MemoryEngine) -> None:
        super().__init__(engine)
        self.commands: list[dict[str, Any]] = []
        self.published: list[bytes] = []
        self.lose_published: Callable[[bytes], bool] = lambda _: False
        self.lose_received: Callable[[Record], bool] = lambda _: False

    def publish(self, topic: str, value: bytes, *rest: Any) -> None:
        self.published.append(value)
        if not self.lose_published(value):
            super().publish(topic, value, *rest)
        elif rest[-1] is not None:  # Kafka has it, the engine never sees it
            rest[-1]()

    def command(self, topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
        self.commands.append(msgspec.json.decode(value))
        super().command(topic, key, value, partition)

    def poll(self, timeout: float) -> list[Record]:
        records = super().poll(timeout)
        if not records:
            time.sleep(min(timeout, 0.005))
        return [r for r in records if not self.lose_received(r)]

    def said(self, *kinds: str) -> list[dict[str, Any]]:
        """The commands of these kinds, in the order of sending."""
        return [c for c in list(self.commands) if c["command"] in kinds]

    def lose_receipts(self, record: Record) -> bool:
        """For `lose_received`."""
        return record.topic == "default.receipts"


class Held(Wire):
    """A transport whose incoming records wait while ``let_go`` is not set."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.let_go = threading.Event()
        self.let_go.set()
        self._kept: list[Record] = []

    def poll(self, timeout: float) -> list[Record]:
        self._kept += super().poll(timeout)
        if not self.let_go.is_set():
            return []
        kept, self._kept = self._kept, []
        return kept


class Away(Held):
    """A Kafka that takes no command of these kinds, or no message."""

    refuses: tuple[str, ...] = ()
    _tried = 0

    def command(self, topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
        self._check(msgspec.json.decode(value)["command"])
        super().command(topic, key, value, partition)

    def publish(self, *given: Any) -> None:
        self._check("publish")
        super().publish(*given)

    def _check(self, kind: str) -> None:
        if kind in self.refuses:
            self._tried += 1
            raise NotConnected("Kafka is away")

    def back(self) -> None:
        """Wait until something was refused; then Kafka takes everything again."""
        wait_for(lambda: self._tried)
        self.refuses = ()


class Slow(Wire):
    """Kafka confirms a record only once `acked` is called; the engine gets it before.

    sizes: the number of messages in each record.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.sizes: list[int] = []
        self.on_way: list[Callable[[], None]] = []

    def publish(self, topic: str, value: bytes, *rest: Any) -> None:
        key, headers, partition, acked = rest
        self.sizes.append(msgspec.json.decode(dict(headers)["lq"]).get("count", 1))
        self.on_way.append(acked)
        super().publish(topic, value, key, headers, partition, None)

    def acked(self) -> None:
        """Kafka confirms everything sent so far."""
        on_way, self.on_way = self.on_way, []
        for acked in on_way:
            acked()


def engine(*queues: dict[str, Any], **system: Any) -> MemoryEngine:
    """An engine with these queues; time stands still."""
    made = MemoryEngine(parse_configuration({"queues": list(queues), "system": system}))
    made.checking = True
    return made


def connect(
    to: MemoryEngine, name: str = "app", kind: Callable[[MemoryEngine], Any] = Wire, **options: Any
) -> tuple[Connection, Any]:
    """A connection with a thread, and its transport of this kind."""
    wire = kind(to)
    connection = Connection(wire, "default", name, **options)
    _opened.add(connection)
    return connection, wire


class Threaded(Bench):
    """Like `Bench`, with a connection that has a thread.

    kind: of the transport; system: of the configuration; keys: of the queue `orders`.
    """

    def __init__(
        self, kind: Callable[[MemoryEngine], Any] = Wire,
        system: dict[str, Any] | None = None, **keys: Any,
    ) -> None:  # fmt: skip
        self.engine = engine(ORDERS | keys, **(system or {}))
        self.connection, self.wire = connect(self.engine, kind=kind)
        self.admin, self.producer = self.connection.admin(), self.connection.producer()

    def advance(self, duration: str) -> None:
        self.engine.advance(duration)

    def waiting(self, consumer: Any, count: int) -> None:
        """Wait until so many messages are in the consumer's buffer."""
        wait_for(lambda: len(consumer._prefetch.buffer) == count)

    def stored(self) -> list[bytes]:
        """The payloads, in the queue's order; read by another client."""
        look, _ = connect(self.engine, "look")
        return [m.payload for m in look.admin().browse("orders", limit=1000)]


def close_connections() -> None:
    """Close the connections that a test has left open."""
    for connection in list(_opened):
        connection.close()
    _opened.clear()


def wait_for(condition: Callable[[], Any], seconds: float = WAIT_S) -> None:
    """Wait until a condition holds; AssertionError if it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds} s"
        time.sleep(0.005)


class CtrlC:
    """Interrupts the calling thread at the nth moment in a folder's code at which Python looks for
    signals: when a function begins, or when one of C has ended."""

    def __init__(self, nth: int, folder: str = "/client/consumer/") -> None:
        self.left, self._folder = nth, folder

    def __enter__(self) -> None:
        sys.setprofile(self._look)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_return") and self._folder in frame.f_code.co_filename:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt


def told_in_a_thread(
    call: Callable[[], Any], waits_s: float = 0.1
) -> tuple[threading.Thread, list[str]]:
    """A thread that waits in a call, and the error that ends it."""
    told: list[str] = []

    def wait() -> None:
        try:
            call()
        except LakequeueError as error:
            told.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(waits_s)
    assert thread.is_alive()
    return thread, told
