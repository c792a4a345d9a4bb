"""The transport to an engine in this process: a publish has been processed when it returns."""

from __future__ import annotations

import contextlib
from collections import deque

from ..client.session.queue_directory import CHANGE_REQUEST
from ..client.session.transport import Acked, Headers, Record
from ..protocol import topics
from .in_process import MemoryEngine
from .rehoming import answer_change


class MemoryTransport:
    """A connection to a `MemoryEngine`. Partitions are distributed as on Kafka."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self._inboxes: list[deque[Record]] = []

    def publish(
        self, topic: str, value: bytes | None, key: bytes | None, headers: Headers,
        partition: int | None = None, acked: Acked | None = None,
    ) -> None:  # fmt: skip
        """See `Transport.publish`; the engine has already answered when this returns."""
        if key is not None and key.startswith(CHANGE_REQUEST):
            answer_change(self._engine, topic, key, value or b"")
            return
        self._engine.publish(topic, value or b"", key, headers, partition=partition or 0)
        if acked is not None:
            acked()

    def command(self, topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
        """See `Transport.command`; the engine has carried it out when this returns."""
        self._engine.command(topic, key, value, partition)

    def newest(self, topic: str) -> dict[bytes, bytes]:
        """See `Transport.newest`; the engine has one such topic in each VPN."""
        return self._engine.directory(topic)

    def listen(self, topic: str, partition: int) -> None:
        self._inboxes.append(self._engine.open_inbox(topic))

    def partitions(self, topic: str) -> int:
        """How many partitions the topic would have on Kafka with as many brokers."""
        match topics.kind(topic):
            case topics.COMMANDS:
                return self._engine.numbers
            case topics.PUBLISH:
                return self._engine.numbers * topics.PUBLISH_PARTITIONS
        return 1

    def poll(self, timeout: float) -> list[Record]:
        """The records that have arrived; never waits."""
        records: list[Record] = []
        for inbox in self._inboxes:
            with contextlib.suppress(IndexError):  # another thread may take the last one
                while inbox:
                    records.append(inbox.popleft())
        return records

    def flush(self, timeout: float) -> bool:
        """Always True: nothing is ever on its way."""
        return True

    def close(self) -> None:
        self._inboxes.clear()
