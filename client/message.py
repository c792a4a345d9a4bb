"""A received message."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from ..protocol import bounds, wire


def moment(ms: int) -> datetime | None:
    """Epoch ms as an aware datetime; 0 is never."""
    return bounds.datetime_of(ms) if ms else None


@dataclass(frozen=True, slots=True)
class BrowsedMessage:
    """A message as it stands in the queue; looking does not take it (R6).

    state: `ready`, `leased` or `delayed`; holder: name of the consumer that leases it; cut: what of
    `payload`, `key` and `headers` is not here as a whole, since 4 MB of a message are shown;
    broker: the one that owns it, where the queue is on several.
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
    cut: tuple[str, ...] = ()
    broker: str | None = None

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered more than once."""
        return self.delivery_count > 1

    @classmethod
    def of(cls, queue: str, row: dict[str, Any]) -> BrowsedMessage:
        """From the engine's answer."""
        raw = {k: None if row[k] is None else base64.b64decode(row[k]) for k in _BINARY}
        pairs = wire.application_headers(raw["headers"]) + wire.dead_headers(row["dead"])
        return cls(
            id=row["id"], queue=queue, state=row["state"], payload=raw["payload"] or b"",
            key=raw["key"], headers=_text(pairs), priority=row["priority"],
            delivery_count=row["delivery_count"], entered=moment(row["entered"]),
            expires_at=moment(row["expires"] or 0),
            lease_expires_at=moment(row["lease_until"] or 0),
            ready_at=moment(row["ready_at"] or 0), holder=row["holder"],
            is_barrier=row["is_barrier"], cut=tuple(row["cut"]),
            broker=row.get("broker"),
        )  # fmt: skip


_BINARY = ("payload", "key", "headers")


def _text(pairs: list[tuple[str, bytes]]) -> dict[str, str]:
    return {k: v.decode("utf-8", "backslashreplace") for k, v in pairs}


class Holder(Protocol):
    """Who holds messages for an application: a consumer."""

    def ack_message(self, message: Message) -> None:
        """Acknowledge."""
        ...

    def cancel_message(self, message: Message, delay: str | float | None) -> None:
        """Return it to the queue."""
        ...

    def reject_message(self, message: Message, reason: str | BaseException) -> None:
        """Send it to the dead message queue."""
        ...

    def renew_message(self, message: Message, period: str | float | None) -> None:
        """Extend its lease."""
        ...


class Message:
    """A message that a consumer holds.

    id: text; payload: bytes, unchanged; headers: the application's and, on a dead message, the
    ``lq-dead-`` ones; key: the Kafka record key; delivery_count: 1 at the first delivery; delivery:
    the number that names this delivery of it (C2); offset: of the record in which it came here.
    """

    __slots__ = (
        "_dead", "_expires", "_headers", "_holder", "_lease_at", "_time", "delivery",
        "delivery_count", "is_barrier", "key", "lease_ends", "lease_ms", "life_ends", "number",
        "offset", "payload", "priority", "queue", "settled", "since", "span",
    )  # fmt: skip

    def __init__(
        self, holder: Holder, queue: str, number: int, delivery: int, payload: bytes,
        key: bytes | None, headers: bytes | None, count: int, priority: int, expires: int,
        time: int, barrier: bool, dead: dict[str, Any] | None, offset: int,
    ) -> None:  # fmt: skip
        self._holder = holder
        self.queue = queue
        self.number = number
        self.delivery = delivery
        self.payload = payload
        self.key = key
        self._headers = headers
        self.delivery_count = count
        self.priority = priority
        self.lease_ends = 0.0  # by the session's clock, which only grows; 0: it has no end
        self.lease_ms = 0.0  # how long the lease was when it began, or was renewed last
        self._lease_at = 0  # its end by the clock on the wall, for people
        self.life_ends = 0.0  # as lease_ends
        self.since = 0.0  # when it came here, and then when it was handed over
        self._expires = expires
        self._time = time
        self.is_barrier = barrier
        self._dead = dead
        self.offset = offset
        self.settled = False  # acknowledged, canceled or rejected here
        self.span: Any = None  # of this delivery, with `Connection.trace`

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
        pairs = wire.application_headers(self._headers) + wire.dead_headers(self._dead)
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
        """When the lease ends, by this machine's clock (on ``memory://`` the engine's); None: not
        while the consumer is connected (L4)."""
        return moment(self._lease_at)

    def settle(self, outcome: str) -> None:
        """It is acknowledged, canceled or rejected here. For the consumer."""
        self.settled = True
        if self.span is not None:
            self.end_span(outcome)

    def end_span(self, outcome: str) -> None:
        """What became of this delivery, if anybody traces it. For the consumer."""
        span, self.span = self.span, None
        if span is not None:
            span.set_attribute("lakequeue.outcome", outcome)
            span.end()

    def lease(self, left_ms: float, clock_ms: float, now_ms: int) -> None:
        """The lease ends in so long from now on; 0: it has no end. For the consumer."""
        self.lease_ends = clock_ms + left_ms if left_ms else 0.0
        self.lease_ms = left_ms
        self._lease_at = round(now_ms + left_ms) if left_ms else 0

    def live(self, sent_ms: int, clock_ms: float) -> None:
        """It has come, in a record of this time. How much of its life was left then is counted from
        now on, so no clocks are compared. For the consumer."""
        self.since = clock_ms
        left_ms = self._expires - sent_ms
        # Without a time in the record, or with clocks that differ: the engine sent what was alive.
        self.life_ends = clock_ms + left_ms if self._expires and sent_ms > 0 < left_ms else 0.0

    def lease_state(self) -> tuple[float, float, int]:
        """The lease, for `restore_lease`. For the consumer."""
        return self.lease_ends, self.lease_ms, self._lease_at

    def restore_lease(self, lease: tuple[float, float, int]) -> None:
        """The lease is what it was before a renewal that was refused. For the consumer."""
        self.lease_ends, self.lease_ms, self._lease_at = lease

    @property
    def expires_at(self) -> datetime | None:
        """When the message expires; None: never (X1)."""
        return moment(self._expires)

    def ack(self) -> None:
        """Acknowledge this message **and, in mode `client`, every message received before it**.

        Mode `client`, the default, is cumulative as in JMS: who acks the fifth message removes the
        first to the fifth from the queue. In mode `individual` it is this message alone (C4).
        Raises LeaseLost where it is known here that the message is no longer this consumer's: its
        lease has ended, or the consumer was closed.
        """
        self._holder.ack_message(self)

    def cancel(self, delay: str | float | None = None) -> None:
        """Return the message to the queue, after a delay if one is given (L6, L11)."""
        self._holder.cancel_message(self, delay)

    def reject(self, reason: str | BaseException = "") -> None:
        """Send the message to the dead message queue (C7). reason: a text, or the exception that
        is the reason; of more than 10,000 characters the first are kept."""
        self._holder.reject_message(self, reason)

    def renew(self, period: str | float | None = None) -> None:
        """Extend the lease, counted from now: by ``period``, or by the queue's lease period (L10).

        Does not wait for the engine. Raises LeaseLost where the lease is known to have ended. If
        the engine refuses, the lease is again what it was, and a warning is logged that says why.
        """
        self._holder.renew_message(self, period)
