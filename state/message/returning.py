"""How leased messages come back: at once or after a delay, or not at all where they have been
delivered too often (L1, L5, L11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...protocol.errors import Reason
from ..storage import Array
from .change import apply
from .table import Event

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue

_LAST = {
    Event.CANCEL: Event.CANCEL_LAST,
    Event.RETURN: Event.RETURN_LAST,
    Event.LEASE_END: Event.LEASE_END_LAST,
}


def give_back(
    broker: Broker, queue: Queue, seqs: Array, event: Event, *, subscription: str = "",
    reason: str = "", delays: Array | None = None,
) -> None:  # fmt: skip
    """Leased messages return to the queue, or expire where `max_deliveries` is reached (L5).

    delays: ms that each canceled message waits before it is ready again (L11).
    """
    most = queue.definition.max_deliveries
    if most and len(seqs):
        over = queue.gather(seqs, "deliveries") >= most
        apply(
            broker, queue, seqs[over], _LAST[event], subscription=subscription,
            reason=Reason.MAX_DELIVERIES.value,
        )  # fmt: skip
        seqs = seqs[~over]
        delays = None if delays is None else delays[~over]
    if delays is not None and delays.any():
        for delay in np.unique(delays[delays > 0]).tolist():
            apply(
                broker, queue, seqs[delays == delay], Event.CANCEL_LATER,
                until=broker.now + delay, subscription=subscription,
            )  # fmt: skip
        seqs = seqs[delays == 0]
    apply(broker, queue, seqs, event, subscription=subscription, reason=reason)
