"""A home of three brokers in memory, a connection to each, and who owns what."""

from __future__ import annotations

import json
from typing import Any

from lakequeue.definitions import parse_configuration
from lakequeue.state import Limits

from .mortal import Fate, MortalEngine

BROKERS = ("a", "b", "c")


class Mesh:
    """Three brokers that host a queue, and a connection to each. fate: who dies when."""

    def __init__(
        self, fate: Fate | None = None, limits: Limits | None = None, system: Any = None,
        queues: Any = None, **keys: Any,
    ) -> None:  # fmt: skip
        one = {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 100}
        config = {
            "brokers": list(BROKERS), "queues": queues or [one | keys], "system": system or {},
        }  # fmt: skip
        self.engine = MortalEngine(parse_configuration(config), limits)
        self.engine.checking = True
        self.engine.fated(fate)
        self.at = {name: self.engine.connect(name, f"app-{name}") for name in BROKERS}
        self._producers: dict[str, Any] = {}

    def send(self, broker: str, body: Any = None, queue: str = "orders", **options: Any) -> str:
        if broker not in self._producers:
            self._producers[broker] = self.at[broker].producer()
        payload = json.dumps({} if body is None else body).encode()
        return self._producers[broker].send(queue, payload, **options).message_id

    def consumer(
        self, broker: str, backlog: int = 100, queue: str = "orders", **options: Any
    ) -> Any:
        options.setdefault("ack_mode", "individual")
        return self.at[broker].consumer(queue, max_backlog=backlog, **options)

    def seen(self, broker: str, queue: str = "orders") -> dict[str, Any]:
        """What one broker says of a queue."""
        return self.whole(queue)["brokers"][broker]

    def whole(self, queue: str = "orders") -> dict[str, Any]:
        return self.at["a"].admin().describe(queue)

    def depths(self, queue: str = "orders") -> list[int]:
        parts = self.whole(queue)["brokers"]
        return [parts[broker]["depth"] for broker in BROKERS]

    def advance(self, duration: str) -> None:
        self.engine.advance(duration)


def ids(messages: list[Any]) -> list[str]:
    return [m.id for m in messages]
