"""The header ``lq`` of a published record, and the records that come in.

A publish is a Kafka record: the value is the payload, unchanged; the key is the record key. All
that lakequeue needs to know stands in one header, ``lq``, as JSON; every other header is the
application's and travels with the message. A record on a queue's underlying topic needs no header.

    lq: {"to": "orders", "producer": "app-1", "seq": 17, "ttl_ms": 8000, "priority": 5}

A *run* is several messages in one record: `count` says how many, and they have the sequence numbers
from `seq` on; all else is the same for each. The value is where each payload ends (`count` 32-bit
numbers, big-endian, counted from the first payload), then the payloads one after the other. It has
no key and no other headers, which would be stored once for each message; and it is short, because
Spark bounds a batch by records.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from .bounds import (
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
# Before a queue's name as destination: that queue alone, whoever else takes its topic.
QUEUE_ALONE = "#queue/"
SEQUENCES = 1 << 61  # of one start; the next one's go on behind it, and have room (P1)


class PublishHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a publisher says of a message.

    to: queue or topic, or ``#queue/`` and the name of a queue that alone gets it; producer, seq:
    for de-duplication and receipts (P1); ttl_ms: from publish (X4); priority: 0–255; deliver_at:
    epoch ms, delay_ms: from publish (L12); dmq: may go to a dead message queue (P7); reply: the
    partition of ``<vpn>.receipts`` where the producer listens; count: messages in the record, 0 for
    one that is no run; durability: ``delta`` where the answer is to wait until the Delta tables
    have it; after: the highest sequence to this destination of which the producer knows that it was
    refused as ``moved``; start: a name for this start of the producer's program, which counts from
    1 again: its sequences go on behind the last that the engine knows (P1).
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
    durability: Literal["checkpoint", "delta"] = "checkpoint"
    after: int = 0
    start: Name = ""
    delay_ms: int | None = None


class Sender(msgspec.Struct, frozen=True):
    """Of a header `lq` that is not understood, what is needed to answer it."""

    producer: Text = ""  # longer than a producer's name may be: that is answered too
    seq: int = 0
    reply: Partition = 0
    count: Any = 0
    start: Any = ""

    @property
    def messages(self) -> int:
        """How many there are in the record."""
        return self.count if type(self.count) is int and 0 < self.count <= RUN_MAX else 1

    @property
    def has_history(self) -> bool:
        """Whether what it sent can be remembered; else it is told, and that is all."""
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
    """Read the header ``lq``; raises ValueError with a sentence for anything else."""
    if value == UNREADABLE:
        raise ValueError(UNREADABLE.decode())
    try:
        header = _decoder.decode(value)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as e:
        why = explain(e, value) if isinstance(e, msgspec.ValidationError) else e
        raise ValueError(f"header {HEADER!r} is not understood: {why}") from e
    if not 0 <= header.priority <= PRIORITY_MAX:
        raise ValueError(f"priority: {header.priority} – allowed are 0 to {PRIORITY_MAX}")
    if header.ttl_ms is not None and not 0 < header.ttl_ms <= DURATION_MS_MAX:
        raise ValueError(f"ttl_ms: {header.ttl_ms} – allowed is a positive number of milliseconds")
    if header.delay_ms is not None and not 0 <= header.delay_ms <= DURATION_MS_MAX:
        raise ValueError(f"delay_ms: {header.delay_ms} – allowed is a number of milliseconds")
    if header.delay_ms is not None and header.deliver_at is not None:
        raise ValueError("deliver_at, delay_ms: both are given – allowed is one of them")
    if not 0 <= header.reply < 1 << 31:
        raise ValueError(f"reply: {header.reply} – allowed is a partition of the receipts topic")
    if header.start and not header.producer:
        raise ValueError(f"start: {header.start!r} – it is a producer's, and 'producer' is missing")
    if header.seq < 0 or (header.producer and header.seq == 0) or header.seq >= SEQUENCES:
        raise ValueError(
            f"seq: {header.seq} – a producer's sequence starts at 1, and is below 2^61"
        )
    if not 0 <= header.after < 1 << 62:
        raise ValueError(f"after: {header.after} – allowed is a sequence number, or 0")
    if not 0 <= header.count <= RUN_MAX:
        raise ValueError(f"count: {header.count} – allowed are 1 to {RUN_MAX} messages in a record")
    due = header.deliver_at
    if due is not None and due != within_calendar(due):
        return msgspec.structs.replace(header, deliver_at=within_calendar(due))
    return header


def sender_of(value: bytes | None) -> Sender | None:
    """Who sent a record whose header is otherwise not understood; None where it does not say."""
    try:
        sender = _sender_decoder.decode(value or b"")
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        return None
    return sender if sender.producer and 0 < sender.seq < 1 << 62 else None


def encode_publish_header(header: PublishHeader) -> bytes:
    """Write the header ``lq``."""
    return _encoder.encode(header)


def encode_run(payloads: list[bytes]) -> bytes:
    """The value of a record that holds several messages."""
    ends = []
    end = 0
    for payload in payloads:
        end += len(payload)
        ends.append(end)
    return b"".join((struct.pack(f">{len(ends)}I", *ends), *payloads))


class _Counted(msgspec.Struct):
    count: int | None = None


_counted = msgspec.json.Decoder(_Counted)


def count_of(header: bytes | str | None) -> int:
    """How many messages a record says that it has, by its header `lq`; 0: it says of no run."""
    if header is None:
        return 0
    try:
        return _counted.decode(header).count or 0
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0


def decode_run(value: bytes | None, count: int) -> list[bytes]:
    """The payloads of a run; raises ValueError for a value that is none."""
    head = 4 * count
    if value is None or len(value) < head:
        raise ValueError(f"a run of {count} has {len(value or b'')} bytes, {head} at least needed")
    payloads = []
    start = head
    for end in struct.unpack_from(f">{count}I", value):
        stop = head + end
        if not start <= stop <= len(value):
            raise ValueError(f"a run of {count} has a payload that ends at {end}")
        payloads.append(value[start:stop])
        start = stop
    if start != len(value):
        raise ValueError(f"a run of {count} has {len(value) - start} bytes behind its last payload")
    return payloads


@dataclass(slots=True)
class Records:
    """Records as they came in, in columns of one length, in one fixed order.

    timestamps: epoch ms given by Kafka; metas: the header ``lq``; headers: the application's
    headers as JSON ``[{"key": …, "value": base64}, …]``, None where there are none.
    """

    topics: list[str] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    metas: list[bytes | None] = field(default_factory=list)
    headers: list[str | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.topics)
