"""How leased messages come back: at once or after a delay, or not at all where they have been
delivered too often (L1, L5, L6, L11); and how messages die (X1, C7)."""

from __future__ import annotations

from ...protocol.errors import Reason
from ..queue.broker import Broker
from ..queue.change import apply
from ..queue.queue import Queue
from ..queue.table import Event
from ..storage.row import NEVER, Row
from .dead import bury

_LAST = {
    Event.CANCEL: Event.CANCEL_LAST,
    Event.RETURN: Event.RETURN_LAST,
    Event.LEASE_END: Event.LEASE_END_LAST,
}


def give_back(
    broker: Broker, queue: Queue, rows: list[Row], event: Event, *, subscription: str = "",
    reason: str = "", delays: list[int] | None = None,
) -> None:  # fmt: skip
    """Leased messages return to the queue, or expire where `max_deliveries` is reached (L5).

    delays: ms that each canceled message waits before it is ready again (L11).
    """
    most = queue.definition.max_deliveries
    over = [row for row in rows if most and row.deliveries >= most]
    if over:
        _die(broker, queue, over, _LAST[event], Reason.MAX_DELIVERIES, subscription)
        kept = [at for at, row in enumerate(rows) if row.deliveries < most]
        delays = None if delays is None else [delays[at] for at in kept]
        rows = [rows[at] for at in kept]
    if delays is not None and any(delays):
        for delay in sorted(set(delays) - {0}):
            later = [row for row, own in zip(rows, delays, strict=True) if own == delay]
            until = min(broker.now + delay, NEVER - 1)
            apply(broker, queue, later, Event.CANCEL_LATER, until=until, subscription=subscription)
        rows = [row for row, own in zip(rows, delays, strict=True) if not own]
    apply(broker, queue, rows, event, subscription=subscription, reason=reason)


def cancel_last(broker: Broker, queue: Queue, rows: list[Row], subscription: str) -> None:
    """Messages that were canceled as often as they may be expire (L6)."""
    _die(broker, queue, rows, Event.CANCEL_LAST, Reason.MAX_CANCELS, subscription)


def expire(broker: Broker, queue: Queue, rows: list[Row]) -> None:
    """The time of messages is over (X1, X3)."""
    _die(broker, queue, rows, Event.EXPIRE, Reason.EXPIRED)


def bury_oversize(broker: Broker, queue: Queue, rows: list[Row], detail: str) -> None:
    """Messages are too large to be sent, so nobody will ever get them: they die, and those behind
    them go on (X5)."""
    reason = Reason.MESSAGE_TOO_LARGE
    _die(broker, queue, rows, Event.OVERSIZE, reason, detail=detail)
    broker.event(
        "message_undeliverable", broker.vpn_of(queue), queue.definition.name, messages=len(rows),
        first=str(rows[0].id), why=detail,
    )  # fmt: skip


def cannot_be_sent(broker: Broker, queue: Queue, rows: list[Row], reason: str, why: str) -> None:
    """Kafka does not take the deliveries of these messages, so nobody will ever get them (X5)."""
    _die(broker, queue, rows, Event.OVERSIZE, Reason(reason), detail=why)


def reject(
    broker: Broker, queue: Queue, rows: list[Row], subscription: str, detail: str | None
) -> None:
    """Messages go straight to the dead message queue, or are discarded (C7)."""
    _die(broker, queue, rows, Event.REJECT, Reason.REJECTED, subscription, detail or "")


def _die(
    broker: Broker, queue: Queue, rows: list[Row], event: Event, reason: Reason,
    subscription: str = "", detail: str = "",
) -> None:  # fmt: skip
    apply(broker, queue, rows, event, subscription=subscription, reason=reason.value, detail=detail)
    bury(broker, queue, rows, reason.value, detail)
