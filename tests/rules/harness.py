"""What the tests of the rules share."""

import json
from typing import Any

import lakequeue


def start(**options: Any) -> Any:
    """A connection to a fresh engine."""
    connection = lakequeue.connect("memory://", **options)
    connection.engine.checking = True
    return connection


class Bench:
    """A connection and the short ways that the tests use."""

    def __init__(self, **options: Any) -> None:
        self.connection = start(**options)
        self.admin = self.connection.admin()
        self.producer = self.connection.producer()
        self.engine = self.connection.engine

    def define(self, name: str = "orders", **keys: Any) -> None:
        self.admin.define({"name": name, "message_type": "json"} | keys, replace=True)

    def send(self, body: Any = None, queue: str = "orders", **options: Any) -> str:
        payload = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        return self.producer.send(queue, payload, **options).message_id

    def consumer(self, queue: str = "orders", backlog: int = 100, **options: Any) -> Any:
        options.setdefault("ack_mode", "individual")
        return self.connection.consumer(queue, max_backlog=backlog, **options)

    def advance(self, duration: str) -> None:
        self.connection.advance(duration)

    def seen(self, queue: str = "orders") -> dict[str, Any]:
        return self.admin.describe(queue)

    def events(self, queue: str = "orders") -> list[str]:
        return [str(e["event"]) for e in self.engine.journal() if e["queue"] == queue]


def drain(consumer: Any) -> list[Any]:
    """Every message that has arrived."""
    messages = []
    while (message := consumer.receive(timeout=0)) is not None:
        messages.append(message)
    return messages


def ids(messages: list[Any]) -> list[str]:
    return [m.id for m in messages]
