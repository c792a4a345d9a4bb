"""How a session sends and receives records: the one interface that Kafka and memory have.

`kafka_base` with `confluent` and `kafka_python` carries them over Kafka, `lakequeue.memory` to an
engine in the process. Nothing else of a connection differs but who runs it: see `runner`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Headers = list[tuple[str, bytes]]
Acked = Callable[[], None]


@dataclass(slots=True, frozen=True)
class Record:
    """One record as it came in; ``timestamp`` in milliseconds since 1970 (UTC)."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Transport(Protocol):
    """Sends records and receives records. Over Kafka every call raises `NotConnected` after
    `close`, after a fork, and once when a record that was accepted earlier could not be delivered.

    All calls may come from several threads. While Kafka is away the records wait, the connection
    comes back by itself, and nothing is lost or put out of order within a partition.
    """

    def publish(
        self, topic: str, value: bytes | None, key: bytes | None, headers: Headers,
        partition: int | None = None, acked: Acked | None = None,
    ) -> None:  # fmt: skip
        """Accept a record for sending; does not wait for Kafka. value: None takes back what a
        compacted topic has of this key.

        acked: called once, from any thread, when the record is on its way no more: Kafka has it,
        or it is given up. It must not wait. Waits only for room (100,000 records or 1 GB are on
        their way), up to 10 s. Raises Rejected (message_too_large) above 12 MB.
        """
        ...

    def command(self, topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
        """Like `publish`, to one partition: all that one sends there stays in order."""
        ...

    def newest(self, topic: str) -> dict[bytes, bytes]:
        """Of a compacted topic of one partition the newest value of each key, without those that
        were taken back. Raises NotConnected: no topic, no Kafka."""
        ...

    def listen(self, topic: str, partition: int) -> None:
        """Receive from the END as it is when `listen` returns. Asking twice changes nothing."""
        ...

    def partitions(self, topic: str) -> int:
        """How many partitions; asks Kafka each time. Raises NotConnected: no topic, no Kafka."""
        ...

    def poll(self, timeout: float) -> list[Record]:
        """What has arrived, as soon as there is something; an empty list after ``timeout`` s."""
        ...

    def flush(self, timeout: float) -> bool:
        """Whether nothing was on its way any more at some moment within ``timeout`` s."""
        ...

    def close(self) -> None:
        """Send what is waiting (up to 5 s) and end. Closing twice does nothing."""
        ...
