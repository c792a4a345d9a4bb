"""A received message."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..protocol import wire

if TYPE_CHECKING:
    from .consumer import Consumer


def moment(ms: int) -> datetime | None:
    """Epoch ms as an aware datetime; 0 is never."""
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None


@dataclass(frozen=True, slots=True)
class BrowsedMessage:
    """A message as it stands in the queue; looking does not take it (R6).

    state: `ready`, `leased` or `delayed`; holder: name of the consumer that leases it.
    """

    id: str
    queue: str
    state: str
    payload: bytes
    key: bytes | None
    headers: dict[str, str]
    priority: int
    delivery_count: int
    entered: datetime | None
    expires_at: datetime | None
    lease_expires_at: datetime | None
    ready_at: datetime | None
    holder: str | None
    is_barrier: bool

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered more than once."""
        return self.delivery_count > 1

    @classmethod
    def of(cls, queue: str, row: dict[str, Any]) -> BrowsedMessage:
        """From the engine's answer."""
        raw = {k: None if row[k] is None else base64.b64decode(row[k]) for k in _BINARY}
        pairs = wire.headers_list(raw["headers"]) + wire.dead_headers(row["dead"])
        return cls(
            id=row["id"], queue=queue, state=row["state"], payload=raw["payload"] or b"",
            key=raw["key"], headers=_text(pairs), priority=row["priority"],
            delivery_count=row["delivery_count"], entered=moment(row["entered"]),
            expires_at=moment(row["expires"] or 0),
            lease_expires_at=moment(row["lease_until"] or 0),
            ready_at=moment(row["ready_at"] or 0), holder=row["holder"],
            is_barrier=row["is_barrier"],
        )  # fmt: skip


_BINARY = ("payload", "key", "headers")


def _text(pairs: list[tuple[str, bytes]]) -> dict[str, str]:
    return {k: v.decode("utf-8", "backslashreplace") for k, v in pairs}


class Message:
    """A message that this consumer holds.

    id: text; payload: bytes, unchanged; headers: the application's and, on a dead message, the
    ``lq-dead-`` ones; key: the Kafka record key; delivery_count: 1 at the first delivery.
    """

    __slots__ = (
        "_consumer", "_dead", "_expires", "_headers", "_lease", "_time", "delivery_count",
        "is_barrier", "key", "number", "payload", "priority", "queue", "settled",
    )  # fmt: skip

    def __init__(
        self, consumer: Consumer, queue: str, number: int, payload: bytes, key: bytes | None,
        headers: bytes | None, count: int, priority: int, lease: int, expires: int, time: int,
        barrier: bool, dead: dict[str, Any] | None,
    ) -> None:  # fmt: skip
        self._consumer = consumer
        self.queue = queue
        self.number = number
        self.payload = payload
        self.key = key
        self._headers = headers
        self.delivery_count = count
        self.priority = priority
        self._lease = lease
        self._expires = expires
        self._time = time
        self.is_barrier = barrier
        self._dead = dead
        self.settled = False  # acknowledged, canceled or rejected here

    def __repr__(self) -> str:
        again = f", delivery {self.delivery_count}" if self.redelivered else ""
        return f"<Message {self.id} of {self.queue!r}, {len(self.payload)} bytes{again}>"

    @property
    def id(self) -> str:
        """The message id, the same in every queue."""
        return str(self.number)

    @property
    def headers(self) -> dict[str, str]:
        """Headers as text; bytes that are not UTF-8 are escaped."""
        pairs = wire.headers_list(self._headers) + wire.dead_headers(self._dead)
        return _text(pairs)

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before, to anyone (L7)."""
        return self.delivery_count > 1

    @property
    def published_at(self) -> datetime | None:
        """When the publisher sent it."""
        return moment(self._time)

    @property
    def lease_expires_at(self) -> datetime | None:
        """When the lease ends; None: not while the consumer is connected (L4)."""
        return moment(self._lease)

    @property
    def expires_at(self) -> datetime | None:
        """When the message expires; None: never (X1)."""
        return moment(self._expires)

    def ack(self) -> None:
        """Acknowledge; in mode `client` all received up to and including this one (C4).

        Raises LeaseLost where it is known here that the lease has ended.
        """
        self._consumer._ack_message(self)

    def cancel(self, delay: str | float | None = None) -> None:
        """Return the message to the queue, after a delay if one is given (L6, L11)."""
        self._consumer._cancel_message(self, delay)

    def reject(self, reason: str = "") -> None:
        """Send the message to the dead message queue (C7)."""
        self._consumer._reject_message(self, reason)

    def renew(self, period: str | float | None = None) -> None:
        """Extend the lease, counted from now (L10). Raises LeaseLost if it has ended."""
        self._consumer._renew_message(self, period)
