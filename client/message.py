"""A received message (`Message`) and a message that was only looked at (`BrowsedMessage`)."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from ..protocol import bounds, commands, wire
from ..protocol.outputs import Deliveries
from .values import duration_ms, reason_of


def moment(ms: int) -> datetime | None:
    """Epoch milliseconds as an aware datetime; None for 0, which means never."""
    return bounds.datetime_of(ms) if ms else None


@dataclass(frozen=True, slots=True)
class BrowsedMessage:
    """A message as it is in the queue. Browsing does not lease or remove it (R6).

    id: the message id, as text. state: `ready`, `leased` or `delayed`. payload and key: bytes, as
    published. priority: the publisher's, 0 to 255. delivery_count: deliveries so far. entered: when
    it entered the queue. expires_at, lease_expires_at, ready_at: aware datetimes; None for never.
    holder: name of the consumer that leases it. cut: which of `payload`, `key` and `headers` are
    incomplete, because an answer holds at most 4 MB of a message. broker: the owner, if the queue
    is on several brokers.
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
        """True if the message was delivered more than once."""
        return self.delivery_count > 1

    @classmethod
    def of(cls, queue: str, row: dict[str, Any]) -> BrowsedMessage:
        """Read one row of the engine's answer."""
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


Lease = tuple[float, float, int]  # see `Message.lease_state`


class Holder(Protocol):
    """The owner of the messages an application holds: a consumer's `Settling`."""

    def ack_message(self, message: Message) -> None:
        """Acknowledge."""

    def give_up(
        self, message: Message, outcome: str, kind: type[commands.Command], **fields: Any
    ) -> None:
        """Settle it with this kind of command instead. outcome: for people."""

    def renew_message(self, message: Message, period: str | float | None) -> None:
        """Extend its lease."""


class Message:
    """A message that a consumer holds.

    id: the message id, as text. payload: bytes, as published. headers: the application's headers,
    as text; a dead message also has the `lq-dead-` headers. key: the Kafka record key, or None.
    priority: the publisher's, 0 to 255. delivery_count: 1 at the first delivery. is_barrier: True
    for a barrier message, which needs no ack. delivery: the number of this delivery (C2). offset:
    Kafka offset of the record that brought it.

    Once it is settled, `ack` does nothing, and `cancel`, `reject` and `put_back` only log a
    warning. All raise NotConnected if a command cannot be sent.
    """

    __slots__ = (
        "_dead", "_expires", "_headers", "_holder", "_lease_at", "_time", "delivery",
        "delivery_count", "is_barrier", "key", "lease_ends", "lease_ms", "life_ends", "number",
        "offset", "payload", "priority", "queue", "settled", "since", "span",
    )  # fmt: skip

    def __init__(self, holder: Holder, d: Deliveries, i: int, offset: int) -> None:
        """The message with this index of a record."""
        self._holder = holder
        self.queue = d.queue
        self.number = d.ids[i]
        self.delivery = d.numbers[i]
        self.payload = d.payloads[i]
        self.key = d.keys[i]
        self._headers = d.headers[i]
        self.delivery_count = d.counts[i]
        self.priority = d.priorities[i]
        self.lease_ends = 0.0  # by the session's monotonic clock, ms; 0: no end
        self.lease_ms = 0.0  # length of the lease when it began or was last renewed
        self._lease_at = 0  # its end by the wall clock, for people
        self.life_ends = 0.0  # when it expires; clock as for lease_ends
        self.since = 0.0  # when it arrived, later when it was handed over
        self._expires = d.expires[i]
        self._time = d.times[i]
        self.is_barrier = d.barrier
        self._dead = d.dead.get(i)
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
        """Headers as text; bytes that are not UTF-8 are escaped. A Kafka record may have several
        headers of one name: the last counts, as in Kafka's clients."""
        pairs = wire.application_headers(self._headers) + wire.dead_headers(self._dead)
        return _text(pairs)

    @property
    def redelivered(self) -> bool:
        """True if any consumer got this message before (L7)."""
        return self.delivery_count > 1

    @property
    def published_at(self) -> datetime | None:
        """When the publisher sent it, as an aware datetime."""
        return moment(self._time)

    @property
    def lease_expires_at(self) -> datetime | None:
        """When the lease ends, by this machine's clock (on `memory://` the engine's). None: the
        lease lasts as long as the consumer is connected (L4)."""
        return moment(self._lease_at)

    def settle(self, outcome: str) -> None:
        """Mark as acknowledged, canceled or rejected. Called by the consumer."""
        self.settled = True
        if self.span is not None:
            self.end_span(outcome)

    def end_span(self, outcome: str) -> None:
        """End the tracing span of this delivery, if there is one. Called by the consumer."""
        span, self.span = self.span, None
        if span is not None:
            span.set_attribute("lakequeue.outcome", outcome)
            span.end()

    def lease(self, left_ms: float, clock_ms: float, now_ms: int) -> None:
        """Let the lease end in ``left_ms`` from now; 0 for no end. Called by the consumer."""
        self.lease_ends = clock_ms + left_ms if left_ms else 0.0
        self.lease_ms = left_ms
        self._lease_at = round(now_ms + left_ms) if left_ms else 0

    def live(self, sent_ms: int, clock_ms: float) -> None:
        """Note the arrival, and when the message expires. The rest of its life is counted from now
        on, so no clocks are compared. Called by the consumer."""
        self.since = clock_ms
        left_ms = self._expires - sent_ms
        # A record without a time, or clocks that differ: the engine sends only live messages.
        self.life_ends = clock_ms + left_ms if self._expires and sent_ms > 0 < left_ms else 0.0

    def lease_state(self) -> Lease:
        """The lease, for `restore_lease`. Called by the consumer."""
        return self.lease_ends, self.lease_ms, self._lease_at

    def restore_lease(self, lease: Lease) -> None:
        """Restore the lease after a refused renewal. Called by the consumer."""
        self.lease_ends, self.lease_ms, self._lease_at = lease

    @property
    def expires_at(self) -> datetime | None:
        """When the message expires, as an aware datetime; None for never (X1)."""
        return moment(self._expires)

    def ack(self) -> None:
        """Acknowledge this message **and, in mode `client`, every message received before it**.

        Mode `client`, the default, is cumulative as in JMS: acking the fifth message also removes
        the first four. Mode `individual` acknowledges only this message (C4). Returns at once; the
        ack is sent with the next batch of acks. Raises LeaseLost if this consumer is known to have
        lost the message: its lease has ended, or the consumer was closed.
        """
        self._holder.ack_message(self)

    def cancel(self, delay: str | float | None = None) -> None:
        """Return the message to the queue (L6).

        delay: how long the queue waits before it delivers the message again (L11), such as `'30s'`,
        or seconds as a number. None: the queue's own back-off. Raises LeaseLost as `ack` does, and
        ConfigError for a wrong duration.
        """
        ms = None if delay is None else duration_ms(delay, "delay")
        self._holder.give_up(self, "canceled", commands.Cancel, delay_ms=ms)

    def put_back(self) -> None:
        """Return the message to the queue as if it had not been handed over: no attempt (L5).

        For a program that ends before it has begun to work on it. Raises LeaseLost as `ack` does.
        """
        self._holder.give_up(self, "put back", commands.Returned)

    def reject(self, reason: str | BaseException = "") -> None:
        """Send the message to the dead message queue (C7).

        reason: text, or the exception that caused it; at most 10,000 characters are kept. Raises
        LeaseLost as `ack` does.
        """
        self._holder.give_up(self, "rejected", commands.Reject, reason=reason_of(reason))

    def renew(self, period: str | float | None = None) -> None:
        """Extend the lease, counted from now (L10).

        period: a duration such as `'30s'`, or seconds as a number; None for the queue's
        `lease_period`. Does not wait for the engine. If the engine refuses, the old lease stays and
        a warning is logged. Raises LeaseLost if the lease has already ended.
        """
        self._holder.renew_message(self, period)
