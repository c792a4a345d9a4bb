"""How a session sends and receives records: the one interface that Kafka and `memory://` share.

`client/kafka/` implements it over Kafka, `memory/loopback.py` for an engine in this process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Headers = list[tuple[str, bytes]]
Acked = Callable[[], None]


@dataclass(slots=True, frozen=True)
class Record:
    """A received record; ``timestamp`` in milliseconds since 1970 (UTC)."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Transport(Protocol):
    """Sends and receives records. Over Kafka every call raises NotConnected after `close`, after a
    fork, and once if an accepted record could not be delivered.

    All calls are safe from several threads. While Kafka is away, records wait and the connection
    comes back by itself. Nothing is lost, and each partition keeps its order.
    """

    def publish(
        self, topic: str, value: bytes | None, key: bytes | None, headers: Headers,
        partition: int | None = None, acked: Acked | None = None,
    ) -> None:  # fmt: skip
        """Accept a record for sending; does not wait for Kafka. value: None deletes the key from a
        compacted topic.

        acked: called once, from any thread, when Kafka has the record or it was given up; must not
        block. If 100,000 records or 1 GB are waiting, waits for room; raises NotConnected once
        Kafka has taken none for 10 s. Raises Rejected (message_too_large) above 12 MB.
        """

    def command(self, topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
        """Like `publish`, to one partition, where records keep their order."""

    def newest(self, topic: str) -> dict[bytes, bytes]:
        """The newest value of each key of a compacted topic with one partition, without deleted
        keys. Raises NotConnected if the topic or Kafka is missing."""

    def listen(self, topic: str, partition: int) -> None:
        """Receive from the current END of the partition on. Repeated calls do nothing."""

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has; asks Kafka each time. Raises NotConnected if the topic
        or Kafka is missing."""

    def poll(self, timeout: float) -> list[Record]:
        """Wait up to ``timeout`` seconds for records; returns what has arrived, maybe nothing."""

    def flush(self, timeout: float) -> bool:
        """Wait until nothing is on its way, at most ``timeout`` seconds; returns whether that was
        so."""

    def close(self) -> None:
        """Send what waits (up to 5 s), then close. Repeated calls do nothing."""
