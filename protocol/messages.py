"""The header ``lq`` of a published record, and incoming records.

A publish is a Kafka record: the value is the payload, unchanged; the key is the record key. One
header, ``lq``, has everything that lakequeue needs, as JSON. All other headers are the
application's and travel with the message. A record on a queue's underlying topic needs no header.

    lq: {"to": "orders", "producer": "app-1", "seq": 17, "ttl_ms": 8000, "priority": 5}

A *run* is several messages in one record: `count` messages with the sequences from `seq` on and
otherwise the same header. The value has the end of each payload (`count` 32-bit numbers,
big-endian, counted from the first payload), then the payloads. A run has no key and no other
headers, because they would be stored for each message. Runs are short because Spark limits a batch
by its number of records.
"""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import Annotated, Any

import msgspec

from .bounds import (
    CANNOT_DECODE,
    DURATION_MS_MAX,
    NAME_CHARACTERS_MAX,
    Name,
    Partition,
    Text,
    Topic,
    explain,
    within_calendar,
)
from .kafka_headers import UNREADABLE

HEADER = "lq"
PRIORITY_DEFAULT = 4
PRIORITY_MAX = 255
RUN_MAX = 8
# Prefix of a destination that is one queue only, without others that capture the same topic.
QUEUE_ALONE = "#queue/"
SEQUENCES = 1 << 61  # per start of a producer; the next start continues after them (P1)


class PublishHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The header of a published message.

    to: a queue or topic, or ``#queue/`` and the name of the only queue that gets it; producer, seq:
    for de-duplication and receipts (P1); ttl_ms: from publish (X4); priority: 0–255; deliver_at:
    epoch ms; delay_ms: from publish (L12); dmq: it may go to a dead message queue (P7); reply: the
    partition of ``<vpn>.receipts`` that the producer reads; count: the number of messages of a run,
    else 0; durability: with ``delta`` the answer waits until the Delta tables have it; start:
    the name of this start of the producer's program, whose sequences begin at 1 again (P1).
    """

    to: Topic = ""
    producer: Name = ""
    seq: int = 0
    ttl_ms: int | None = None
    priority: int = PRIORITY_DEFAULT
    deliver_at: int | None = None
    dmq: bool = True
    reply: int = 0
    count: int = 0
    durability: Annotated[str, msgspec.Meta(pattern="^(checkpoint|delta)$")] = "checkpoint"
    start: Name = ""
    delay_ms: int | None = None


class Sender(msgspec.Struct, frozen=True):
    """The parts of a malformed header `lq` that an answer needs."""

    producer: Text = ""  # may be longer than a valid name: such a sender gets an answer, too
    seq: int = 0
    reply: Partition = 0
    count: Any = 0
    start: Any = ""

    @property
    def messages(self) -> int:
        """The number of messages in the record."""
        return self.count if type(self.count) is int and 0 < self.count <= RUN_MAX else 1

    @property
    def has_history(self) -> bool:
        """Whether the broker can remember the producer's sequences. If not, it only answers."""
        return (
            len(self.producer) <= NAME_CHARACTERS_MAX
            and isinstance(self.start, str)
            and len(self.start) <= NAME_CHARACTERS_MAX
            and self.seq + self.messages <= SEQUENCES
        )


_decoder = msgspec.json.Decoder(PublishHeader)
_sender_decoder = msgspec.json.Decoder(Sender)
_encoder = msgspec.json.Encoder()
PLAIN = PublishHeader()


def decode_publish_header(value: bytes) -> PublishHeader:
    """Decode the header ``lq``. Raises ValueError with a sentence for anything else."""
    if value == UNREADABLE:
        raise ValueError(UNREADABLE.decode())
    try:
        header = _decoder.decode(value)
    except CANNOT_DECODE as e:
        why = explain(e, value) if isinstance(e, msgspec.ValidationError) else e
        raise ValueError(f"header {HEADER!r} is malformed: {why}") from e
    if not 0 <= header.priority <= PRIORITY_MAX:
        raise ValueError(f"priority: {header.priority} – allowed are 0 to {PRIORITY_MAX}")
    if header.ttl_ms is not None and not 0 < header.ttl_ms <= DURATION_MS_MAX:
        raise ValueError(f"ttl_ms: {header.ttl_ms} – allowed are 1 to {DURATION_MS_MAX} ms")
    if header.delay_ms is not None and not 0 <= header.delay_ms <= DURATION_MS_MAX:
        raise ValueError(f"delay_ms: {header.delay_ms} – allowed are 0 to {DURATION_MS_MAX} ms")
    if header.delay_ms is not None and header.deliver_at is not None:
        raise ValueError("deliver_at, delay_ms: both are given – give one of them")
    if not 0 <= header.reply < 1 << 31:
        raise ValueError(f"reply: {header.reply} – allowed are partitions, 0 to below 2^31")
    if header.start and not header.producer:
        raise ValueError(f"start: {header.start!r} – needs 'producer', which is missing")
    if header.seq < 0 or (header.producer and header.seq == 0) or header.seq >= SEQUENCES:
        raise ValueError(f"seq: {header.seq} – allowed for a producer are 1 to below 2^61")
    if not 0 <= header.count <= RUN_MAX:
        raise ValueError(f"count: {header.count} – allowed are 1 to {RUN_MAX} messages in a record")
    due = header.deliver_at
    if due is not None and due != within_calendar(due):
        return msgspec.structs.replace(header, deliver_at=within_calendar(due))
    return header


def sender_of(value: bytes | None) -> Sender | None:
    """The sender of a record with a malformed header; None if the header does not name one."""
    try:
        sender = _sender_decoder.decode(value or b"")
    except CANNOT_DECODE:
        return None
    return sender if sender.producer and 0 < sender.seq < 1 << 62 else None


def encode_publish_header(header: PublishHeader) -> bytes:
    """Write the header ``lq``."""
    return _encoder.encode(header)


def encode_run(payloads: list[bytes]) -> bytes:
    """The value of a record with several messages."""
    ends = accumulate(map(len, payloads))
    return b"".join((struct.pack(f">{len(payloads)}I", *ends), *payloads))


class _Counted(msgspec.Struct):
    count: int | None = None


_counted = msgspec.json.Decoder(_Counted)


def count_of(header: bytes | str | None) -> int:
    """The number of messages that a record's header `lq` claims; 0 if it claims no run."""
    if header is None:
        return 0
    try:
        return _counted.decode(header).count or 0
    except CANNOT_DECODE:
        return 0


def decode_run(value: bytes | None, count: int) -> list[bytes]:
    """The payloads of a run. Raises ValueError for a malformed value."""
    head = 4 * count
    if value is None or len(value) < head:
        raise ValueError(f"a run of {count} has {len(value or b'')} bytes, at least {head} needed")
    payloads = []
    start = head
    for end in struct.unpack_from(f">{count}I", value):
        stop = head + end
        if not start <= stop <= len(value):
            raise ValueError(f"a run of {count} has a payload that ends at {end}")
        payloads.append(value[start:stop])
        start = stop
    if start != len(value):
        raise ValueError(f"a run of {count} has {len(value) - start} bytes after its last payload")
    return payloads


class Records(msgspec.Struct):
    """Incoming records as columns of equal length, in a fixed order.

    timestamps: Kafka's, epoch ms; metas: the header ``lq``; headers: the application's headers as
    JSON ``[{"key": …, "value": base64}, …]``, or None.
    """

    topics: list[str] = []
    partitions: list[int] = []
    offsets: list[int] = []
    timestamps: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    metas: list[bytes | None] = []
    headers: list[str | None] = []

    def __len__(self) -> int:
        return len(self.topics)
