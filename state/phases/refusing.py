"""What is not kept: thrown away (S4) or refused (S3), counted, in the journal, and answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.journal import Segment
from ..rejection import count_of_vpn

if TYPE_CHECKING:
    from ...protocol.errors import Reason
    from ..broker import Broker
    from ..producers import Answered
    from ..queue import Queue
    from .incoming import Incoming


def discard(broker: Broker, vpn: str, queue: Queue, reason: Reason, record: Incoming) -> None:
    """A queue throws a message away (S4)."""
    queue.count("discarded")
    discarded = queue.header.discarded
    discarded[reason.value] = discarded.get(reason.value, 0) + 1
    _journal(broker, "discarded", vpn, queue.definition.name, reason, record)


def refuse(
    broker: Broker, vpn: str, seq: int, producer: Answered | None, queue: Queue, reason: Reason,
    record: Incoming,
) -> None:  # fmt: skip
    """A queue refuses a message, and with it all that would take it."""
    name = queue.definition.name
    rejected = queue.header.rejected
    rejected[reason.value] = rejected.get(reason.value, 0) + 1
    _journal(broker, "rejected", vpn, name, reason, record)
    if producer:
        producer.refused(seq, reason.value, name, "")


def refuse_of_vpn(
    broker: Broker, vpn: str, seq: int, producer: Answered | None, why: tuple[Reason, str],
    record: Incoming,
) -> None:  # fmt: skip
    """Refuse a message on behalf of no queue."""
    reason, detail = why
    _journal(broker, "rejected", vpn, "", reason, record)
    count_of_vpn(broker, vpn, reason.value)
    if producer:
        producer.refused(seq, reason.value, "", detail)


def discard_of_vpn(broker: Broker, vpn: str, reason: Reason, record: Incoming) -> None:
    """No queue is there to throw it away (S6)."""
    _journal(broker, "discarded", vpn, "", reason, record)
    count_of_vpn(broker, vpn, reason.value)


def _journal(
    broker: Broker, event: str, vpn: str, queue: str, reason: Reason, record: Incoming
) -> None:
    broker.journal.segments.append(
        Segment(
            event,
            vpn,
            queue,
            reason=reason.value,
            topic=record.topic,
            partitions=[record.partition],
            offsets=[record.offset],
            items=[record.item],
        )
    )
