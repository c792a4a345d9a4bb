"""The transport to an engine in the process: what is published is carried out when it returns."""

from __future__ import annotations

import json
from collections import deque

from ..client.transport import Acked, Headers, Record
from .in_process import MemoryEngine

PARTITIONS = 1


class MemoryTransport:
    """A connection's way to a `MemoryEngine`, and to one broker of it."""

    def __init__(self, engine: MemoryEngine, broker: str | None = None) -> None:
        self._engine = engine
        self._broker = engine.broker(broker).home.name
        self._inboxes: list[deque[Record]] = []

    def publish(
        self, topic: str, value: bytes | None, key: bytes | None, headers: Headers,
        partition: int | None = None, acked: Acked | None = None,
    ) -> None:  # fmt: skip
        """See `Transport.publish`: the engine has it, and has answered."""
        self._engine.publish(topic, value or b"", key, headers, broker=self._broker)
        if acked is not None:
            acked()

    def command(self, topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
        """See `Transport.command`."""
        self._engine.command(topic, key, value, self._broker)

    def newest(self, topic: str) -> dict[bytes, bytes]:
        """See `Transport.newest`: the engine has one such topic, and nobody writes it."""
        return {
            f"broker/{broker.home.name}".encode(): json.dumps(
                {"number": broker.home.number, "epoch": broker.home.epoch, "state": "running"}
            ).encode()
            for broker in self._engine.brokers
        }

    def listen(self, topic: str, partition: int) -> None:
        """See `Transport.listen`."""
        self._inboxes.append(self._engine.open_inbox(topic))

    def partitions(self, topic: str) -> int:
        """See `Transport.partitions`."""
        return PARTITIONS

    def poll(self, timeout: float) -> list[Record]:
        """See `Transport.poll`."""
        records: list[Record] = []
        for inbox in self._inboxes:
            while inbox:
                records.append(inbox.popleft())
        return records

    def flush(self, timeout: float) -> bool:
        """See `Transport.flush`."""
        return True

    def close(self) -> None:
        """See `Transport.close`."""
        for inbox in self._inboxes:
            self._engine.close_inbox(inbox)
