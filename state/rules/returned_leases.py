"""Leased messages return at once, after a delay, or die if delivered too often (L1, L5, L6, L11);
and the other ways to die (X1, C7)."""

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
    """Return leased messages to the queue; those that reached `max_deliveries` expire (L5).

    delays: ms until each canceled message is ready again (L11).
    """
    most = queue.definition.max_deliveries
    over = [row for row in rows if most and row.deliveries >= most]
    if over:
        die(broker, queue, over, _LAST[event], Reason.MAX_DELIVERIES, subscription)
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


def expire(broker: Broker, queue: Queue, rows: list[Row]) -> None:
    """Let messages expire whose time to live is over (X1, X3)."""
    die(broker, queue, rows, Event.EXPIRE, Reason.EXPIRED)


def bury_oversize(broker: Broker, queue: Queue, rows: list[Row], detail: str) -> None:
    """Let messages that are too large to be delivered die, so that those after them move on
    (X5)."""
    die(broker, queue, rows, Event.OVERSIZE, Reason.MESSAGE_TOO_LARGE, detail=detail)
    broker.queue_event(
        queue, "message_undeliverable", messages=len(rows), first=str(rows[0].id), why=detail
    )


def die(
    broker: Broker, queue: Queue, rows: list[Row], event: Event, reason: Reason,
    subscription: str = "", detail: str = "",
) -> None:  # fmt: skip
    """Move messages to the dead message queue, or discard them (X5)."""
    apply(broker, queue, rows, event, subscription=subscription, reason=reason.value, detail=detail)
    bury(broker, queue, rows, reason.value, detail)
