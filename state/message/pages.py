"""Where the rows of a queue stand: one message a row, in columns."""

from __future__ import annotations

from ..storage import NEVER, Array, ColumnPage
from .table import GONE


class QueuePage(ColumnPage):
    """One message of the queue per row. `extras[row]`: what a dead message carries (X5),
    and what was edited (R6)."""

    FIELDS = (
        ("id", "<u8", 0),
        ("state", "|u1", GONE),
        ("barrier", "|u1", 0),
        ("priority", "<u8", 0),  # by the queue's expression as it entered (O2, Q6)
        ("generation", "<u4", 0),  # how many barriers had entered before it (O3)
        ("lane", "<u8", 0),  # of its partition key; 0: none (O4)
        ("size", "<u4", 0),
        ("entered", "<i8", 0),  # epoch ms
        ("expires", "<i8", NEVER),
        ("until", "<i8", NEVER),  # leased: end of the lease; delayed: when ready
        ("holder", "<u4", 0),  # number of the subscription that leases it
        ("deliveries", "<u4", 0),  # attempts: what `max_deliveries` counts (L5)
        ("cancels", "<u4", 0),
        ("delivery", "<u8", 0),  # number of the newest delivery: what names it on the wire
    )
    __slots__ = tuple(name for name, _, _ in FIELDS)
    id: Array
    state: Array
    barrier: Array
    priority: Array
    generation: Array
    lane: Array
    size: Array
    entered: Array
    expires: Array
    until: Array
    holder: Array
    deliveries: Array
    cancels: Array
    delivery: Array
