"""Records that cannot be understood, and what is refused on behalf of no queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.errors import Reason
from ..protocol.journal import Segment
from ..protocol.outputs import RejectedRecord

if TYPE_CHECKING:
    from .broker import Broker


def count_of_vpn(broker: Broker, vpn: str, reason: str) -> None:
    """Count a refusal that is no queue's."""
    key = f"x/{vpn}"
    counts = broker.values.read(key) or {}
    broker.values.write(key, {**counts, reason: counts.get(reason, 0) + 1})


def reject_record(
    broker: Broker,
    vpn: str,
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    error: str,
) -> None:
    """A record that cannot be understood: to ``<vpn>.rejected``, and counted."""
    count_of_vpn(broker, vpn, Reason.MALFORMED.value)
    broker.journal.segments.append(
        Segment(
            "rejected",
            vpn,
            reason=Reason.MALFORMED.value,
            topic=topic,
            partitions=[partition],
            offsets=[offset],
            items=[0],
        )
    )
    broker.emit(RejectedRecord(vpn, topic, partition, offset, key, value, error))
