"""What is not kept: thrown away (S4) or refused (S3), counted, in the journal, and answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...protocol.errors import Reason
from ...protocol.journal import Segment
from ...protocol.messages import PublishHeader
from ...protocol.outputs import Receipts
from ..rejection import count_of_vpn

if TYPE_CHECKING:
    from ...protocol.messages import Sender
    from ..broker import Broker
    from ..producers import Answered, ProducerHistory
    from ..queue import Queue
    from .incoming import Incoming

DETAIL_CHARACTERS_MAX = 500  # of what is said to a sender; `<vpn>.rejected` has all of it


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


def answer_malformed(
    broker: Broker, history: Callable[[str, PublishHeader, Incoming], ProducerHistory], vpn: str,
    sender: Sender, record: Incoming, error: str,
) -> None:  # fmt: skip
    """Tell the sender of a record that is not understood. It is remembered as refused, so that what
    the producer sent before and after is settled as ever; history: where that stands. A producer
    whose name, start or sequence is out of bounds has none."""
    seqs = range(sender.seq, sender.seq + sender.messages)
    reason, why = Reason.MALFORMED.value, error[:DETAIL_CHARACTERS_MAX]
    if not sender.has_history:
        nacks = [(seq, reason, "", why) for seq in seqs]
        number = broker.header.number
        broker.emit(Receipts(vpn, sender.producer, 0, sender.reply, nacks=nacks, broker=number))
        return
    header = PublishHeader(
        producer=sender.producer, seq=sender.seq, reply=sender.reply, start=sender.start
    )  # fmt: skip
    producer = history(vpn, header, record)
    producer.wants(record.topic, (), False)
    base = producer.receipt.base  # it numbers from where this start began
    for seq in (seq + base for seq in seqs):
        if producer.is_superseded(seq):
            producer.refused_as_superseded(seq, why)
            continue
        if producer.is_held(seq):
            continue
        if producer.is_new(seq):
            producer.refused(seq, reason, "", why)
        else:
            producer.repeat(seq)


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
