"""Two homes in one process, a bridge between them, and what happens to what copies between them."""

from __future__ import annotations

from typing import Any

from lakequeue.definitions import parse_configuration
from lakequeue.memory import MemoryEngine
from lakequeue.memory.joined_homes import MemoryCopier
from lakequeue.state import Limits

from .mortal import MortalEngine

LEAVES = {"name": "out", "from": "near", "to": "memory://east", "subscriptions": ["a/>"]}
ARRIVES = {"name": "out", "from": "memory://west", "to": "far", "subscriptions": ["a/>"]}


class Homes:
    """The homes `west`, with the broker `near`, and `east`, with the broker `far`. leaves: None: no
    bridge is made."""

    BROKERS = (("west", "near"), ("east", "far"))
    NAME = "out"

    def __init__(
        self, limits: Limits | None = None, expected: bool = True,
        leaves: dict[str, Any] | None = LEAVES, **bridge: Any,
    ) -> None:  # fmt: skip
        self.engines: dict[str, MemoryEngine] = {}
        for name, broker in self.BROKERS:
            engine = MortalEngine(parse_configuration({"brokers": [broker]}), limits)
            engine.checking = True
            engine.homes.find = self.engines.get
            self.engines[name] = engine
        self.engines["east"].now = self.engines["west"].now
        self.west = self.engines["west"].connect(name="publisher")  # type: ignore[attr-defined]
        self.east = self.engines["east"].connect(name="consumer")  # type: ignore[attr-defined]
        self.producer = self.west.producer()
        if expected:
            self.east.admin().bridge(ARRIVES)
        if leaves is not None:
            self.west.admin().bridge(leaves | bridge)

    @property
    def copier(self) -> MemoryCopier:
        (found,) = self.engines["west"].homes.copiers(self.NAME)
        return found

    def define(self, name: str, *topics: str, **keys: Any) -> None:
        own = {"name": name, "message_type": "binary", "type": "LocalQueue"}
        self.east.admin().define(own | {"subscriptions": list(topics)} | keys)

    def send(self, to: str, *bodies: Any, **options: Any) -> None:
        for body in bodies:
            self.producer.send(to, str(body).encode(), **options)

    def advance(self, duration: str) -> None:
        for engine in self.engines.values():
            engine.advance(duration)

    def bodies(self, queue: str) -> list[str]:
        """All that is in a queue, acknowledged."""
        found = []
        with self.east.consumer(queue, max_backlog=100, ack_mode="individual") as consumer:
            while (message := consumer.receive(timeout=0)) is not None:
                message.ack()
                found.append(message.payload.decode())
        return found

    def seen(self) -> dict[str, Any]:
        return self.west.admin().describe_bridge(self.NAME)

    def seen_far(self) -> dict[str, Any]:
        return self.east.admin().describe_bridge(self.NAME)

    def events(self, home: str, name: str) -> list[dict[str, Any]]:
        admin = {"west": self.west, "east": self.east}[home].admin()
        return [e for e in admin.events() if e["event"] == name]
