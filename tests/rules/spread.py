"""A home of three brokers with local queues, for publishes that queues on several of them take."""

from __future__ import annotations

from typing import Any

from lakequeue.definitions import parse_configuration
from lakequeue.protocol.messages import HEADER
from lakequeue.state import Limits

from .mortal import MortalEngine

BROKERS = ("a", "b", "c")


def local(name: str, broker: str, *topics: str, **keys: Any) -> dict[str, Any]:
    return {
        "name": name, "message_type": "json", "type": "LocalQueue", "broker": broker,
        "subscriptions": list(topics), "max_per_subscription_backlog": 100, **keys,
    }  # fmt: skip


class Spread:
    """An engine of three brokers and a connection to each."""

    ENGINE: type[MortalEngine] = MortalEngine

    def __init__(self, *queues: dict[str, Any], limits: Limits | None = None) -> None:
        config = {"brokers": list(BROKERS), "queues": list(queues)}
        self.engine = self.ENGINE(parse_configuration(config), limits)
        self.engine.checking = True
        self.at = {name: self.engine.connect(name, f"app-{name}") for name in BROKERS}
        self.admin = self.at["a"].admin()
        self._producers: dict[str, Any] = {}

    def producer(self, broker: str) -> Any:
        if broker not in self._producers:
            self._producers[broker] = self.at[broker].producer()
        return self._producers[broker]

    def send(self, broker: str, to: str, body: bytes = b"{}", **options: Any) -> str:
        return self.producer(broker).send(to, body, **options).message_id

    def plain(self, to: str, body: bytes = b"{}", partition: int = 0) -> None:
        """What a producer writes that does not count."""
        meta = b'{"to":"%s"}' % to.encode()
        self.engine.publish("default.publish", body, None, [(HEADER, meta)], partition=partition)

    def ids(self, queue: str) -> list[str]:
        return [m.id for m in self.admin.browse(queue, limit=1_000)]

    def bodies(self, queue: str) -> list[bytes]:
        return [m.payload for m in self.admin.browse(queue, limit=1_000)]

    def events(self, *names: str) -> list[dict[str, Any]]:
        return [e for e in self.engine.journal() if e["event"] in names]
