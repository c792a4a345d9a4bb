"""Records that cannot be understood (`<vpn>.rejected`)."""

from __future__ import annotations

from ...protocol.errors import Reason
from ...protocol.journal import JournalSegment
from ...protocol.outputs import RejectedRecord
from ..queue.broker import Broker


def reject_record(
    broker: Broker, vpn: str, topic: str, partition: int, offset: int, key: bytes | None,
    value: bytes | None, error: str, reason: Reason = Reason.MALFORMED,
) -> None:  # fmt: skip
    """A record that is not taken: to ``<vpn>.rejected``, and counted."""
    broker.count_refused(vpn, reason.value)
    broker.journal.segments.append(
        JournalSegment(
            "rejected", vpn, reason=reason.value, topic=topic, partitions=[partition],
            offsets=[offset], items=[0],
        )
    )  # fmt: skip
    broker.emit(RejectedRecord(vpn, topic, partition, offset, key, value, error))
