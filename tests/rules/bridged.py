"""Two brokers, a bridge, and the ways of the tests of bridges to them."""

from __future__ import annotations

from typing import Any

from lakequeue.core import Limits
from lakequeue.definitions import parse_configuration

from .mortal import MortalEngine

BRIDGE = {"name": "west-east", "from": "west", "to": "east", "subscriptions": ["a/>"]}
TINY = Limits(
    live_rows=5, segment_rows=3, bridge_rows=7, bridge_bytes=900, bridge_holds=2, delivery_rows=5,
)  # fmt: skip


class Two:
    """Two brokers, `west` and `east`, and the ways of these tests to them."""

    def __init__(self, limits: Limits | None = None, **bridge: Any) -> None:
        config = parse_configuration({"brokers": ["west", "east"]})
        self.engine = MortalEngine(config, limits)
        self.engine.checking = True
        self.west = self.engine.connect("west", "publisher")
        self.east = self.engine.connect("east", "consumer")
        self.producer = self.west.producer()
        if bridge.pop("made", True):
            self.west.admin().bridge(BRIDGE | bridge)

    def define(self, name: str, *topics: str, **keys: Any) -> None:
        own = {"name": name, "message_type": "binary", "type": "LocalQueue", "broker": "east"}
        self.east.admin().define(own | {"subscriptions": list(topics)} | keys)

    def send(self, to: str, *bodies: Any, **options: Any) -> None:
        for body in bodies:
            self.producer.send(to, str(body).encode(), **options)

    def receive(self, queue: str) -> list[Any]:
        """All that is in a queue, acknowledged."""
        found = []
        with self.east.consumer(queue, max_backlog=100, ack_mode="individual") as consumer:
            while (message := consumer.receive(timeout=0)) is not None:
                message.ack()
                found.append(message)
        return found

    def bodies(self, queue: str) -> list[str]:
        return [m.payload.decode() for m in self.receive(queue)]

    def seen(self) -> dict[str, Any]:
        return self.west.admin().describe_bridge("west-east")

    def depth(self, queue: str) -> int:
        return int(self.east.admin().describe(queue)["depth"])

    def events(self, name: str) -> list[dict[str, Any]]:
        return [e for e in self.west.admin().events() if e["event"] == name]
