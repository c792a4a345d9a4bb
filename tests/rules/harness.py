"""Common helpers of the tests of the rules."""

import json
from typing import Any

import lakequeue
import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.errors import Rejected


def start(**options: Any) -> Any:
    """A connection to a fresh engine."""
    connection = lakequeue.connect("memory://", **options)
    connection.engine.checking = True
    return connection


class Bench:
    """A connection, and the shortcuts that the tests use."""

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

    def refused(self, body: Any = None, queue: str = "orders", **options: Any) -> str:
        """The reason for which a message is refused."""
        with pytest.raises(Rejected) as caught:
            self.send(body, queue, **options)
        return str(caught.value.reason)

    def plain(self, topic: str, *bodies: bytes, **more: Any) -> None:
        """Write records as a plain Kafka producer."""
        for one in bodies:
            self.connection.publish_raw(topic, one, **more)

    def instruct(self, command: c.Command) -> None:
        """Give instructions that only the engine may give."""
        self.engine.instruct("default", c.encode_command(command))

    def consumer(self, queue: str = "orders", backlog: int = 100, **options: Any) -> Any:
        options.setdefault("ack_mode", "individual")
        return self.connection.consumer(queue, max_backlog=backlog, **options)

    def advance(self, duration: str) -> None:
        self.connection.advance(duration)

    def seen(self, queue: str = "orders") -> dict[str, Any]:
        return self.admin.describe(queue)

    def depths(self, *queues: str) -> list[int]:
        return [self.seen(queue)["depth"] for queue in queues]

    def browsed(self, queue: str = "orders") -> list[str]:
        return ids(self.admin.browse(queue))

    def told(self, event: str) -> list[dict[str, Any]]:
        """Events of this name."""
        return [e for e in self.admin.events() if e["event"] == event]

    def rows(self, event: str) -> list[dict[str, Any]]:
        """The journal's rows of this event that name a message."""
        return [r for r in self.engine.journal() if r["event"] == event and r["message_id"]]

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
