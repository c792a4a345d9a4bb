"""Messages that are too large to be sent.

What would exceed Kafka's limit as a delivery record is refused when it is published
(`judging.reason_of`). One may be here all the same: an earlier version took it in, or its headers
were edited since. Nobody will ever get it, so it dies, with a reason and an event, and those behind
it go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...protocol.errors import Reason
from ..message import Event, apply
from ..rules.edits import as_edited, extras_of

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue
    from ..storage import Array, Content


def bury_oversize(
    broker: Broker, queue: Queue, seqs: Array, contents: list[Content | None]
) -> bool:
    """Of ready messages that are about to go out, those that cannot die (X5); whether there were
    any."""
    most = broker.limits.message_bytes
    edited = as_edited(extras_of(queue.rows(seqs)), contents)
    sizes = [0 if c is None else len(c[0]) + len(c[1] or b"") + len(c[2] or b"") for c in edited]
    if max(sizes) <= most:  # no call for each: this is on the way of every message
        return False
    large = np.array(sizes) > most
    detail = f"{max(sizes):,} bytes as a delivery; at most {most:,} fit into a record"
    ids = apply(
        broker, queue, seqs[large], Event.OVERSIZE, reason=Reason.MESSAGE_TOO_LARGE.value,
        detail=detail,
    )  # fmt: skip
    broker.event(
        "message_undeliverable", broker.vpn_of(queue), queue.definition.name, messages=len(ids),
        first=str(ids[0]), why=detail,
    )  # fmt: skip
    return True
