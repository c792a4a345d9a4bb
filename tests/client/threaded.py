"""The client as it is over Kafka, with its background thread, on an engine in this process.

What goes between client and engine can be seen, held back and lost. No Kafka is needed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import msgspec
from lakequeue.client.connection import Connection
from lakequeue.client.session.transport import Record
from lakequeue.definitions import parse_configuration
from lakequeue.memory import MemoryEngine, MemoryTransport

WAIT_S = 60.0
_opened: WeakSet[Connection] = WeakSet()


class Wire(MemoryTransport):
    """A way to a `MemoryEngine` that keeps what was said on it.

    lose_published, lose_received: whether a record is lost, asked for each.
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
        """The commands of these kinds, in the order in which they were sent."""
        return [c for c in list(self.commands) if c["command"] in kinds]


class Held(Wire):
    """A way on which what the engine says can be held back: while ``let_go`` is not set."""

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


def engine(*queues: dict[str, Any], **system: Any) -> MemoryEngine:
    """An engine with these queues; time stands still."""
    made = MemoryEngine(parse_configuration({"queues": list(queues), "system": system}))
    made.checking = True
    return made


def connect(
    to: MemoryEngine, name: str = "app", kind: Callable[[MemoryEngine], Any] = Wire, **options: Any
) -> tuple[Connection, Any]:
    """A connection with a thread, and its wire, of this kind."""
    wire = kind(to)
    connection = Connection(wire, "default", name, **options)
    _opened.add(connection)
    return connection, wire


def close_connections() -> None:
    """Those that a test has left open."""
    for connection in list(_opened):
        connection.close()
    _opened.clear()


def wait_for(condition: Callable[[], bool], seconds: float = WAIT_S) -> None:
    """Until a condition holds; AssertionError when it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds} s"
        time.sleep(0.005)
