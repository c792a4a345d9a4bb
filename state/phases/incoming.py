"""What comes in, message by message or several together.

A record holds one message or a short run of them (`protocol.messages`). Records that stand behind
each other and differ in payload, sequence and time only make a *span*: what decides about one of
them decides about all, so they are taken in together where that is plain.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ...protocol.bounds import within_calendar
from ...protocol.messages import PublishHeader, Records, decode_publish_header, decode_run

SPAN_BYTES = 500_000  # of messages that are taken in together
_any_json = msgspec.json.Decoder(msgspec.Raw)


class Incoming(NamedTuple):
    """One message that comes in: a record's columns, and its place in the record."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes
    meta: bytes | None
    headers: str | None
    item: int = 0

    @classmethod
    def of(cls, records: Records, at: int) -> Incoming:
        """A record, with its first message's place."""
        return cls(
            records.topics[at], records.partitions[at], records.offsets[at],
            records.timestamps[at], records.keys[at], records.values[at] or b"",
            records.metas[at], records.headers[at],
        )  # fmt: skip


class Span(NamedTuple):
    """Messages of records that stand behind each other and are taken in together, in columns."""

    payloads: list[bytes]
    records: int
    times: list[int]
    partitions: list[int]
    offsets: list[int]
    items: list[int]


def time_of(timestamp: int, now: int) -> int:
    """When a record was published. What the publisher's clock says may be anything: a time outside
    the years 1970 to 9999, one in microseconds for instance, means now."""
    return timestamp if timestamp == within_calendar(timestamp) else now


def same_but_for_sequence(one: PublishHeader, other: PublishHeader, seq: int) -> bool:
    """Whether the other is the same producer's message with this sequence, to be treated the same
    way."""
    return (
        other.seq == seq and other.to == one.to and other.producer == one.producer
        and other.priority == one.priority and other.ttl_ms is None
        and other.deliver_at == one.deliver_at and other.delay_ms is None and other.dmq == one.dmq
        and other.reply == one.reply and other.durability == one.durability
        and other.after == one.after and other.start == one.start
    )  # fmt: skip


def headers_size(text: str) -> int:
    """Bytes of application headers: keys and values, as they were published (Q8)."""
    size = 0
    for header in msgspec.json.decode(text):
        value = header.get("value") or ""
        size += len(header["key"].encode()) + len(value) * 3 // 4 - value.count("=")
    return size


def delivered_bytes(payload: bytes, key: bytes | None, headers: str | bytes | None) -> int:
    """What a message takes of a delivery record; headers: as JSON, which is what is sent."""
    return len(payload) + len(key or b"") + len(headers or b"")


def is_json(payload: bytes) -> bool:
    """Whether a payload is JSON; only read over, nothing is made of it."""
    try:
        _any_json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def payloads_of(header: PublishHeader, record: Incoming) -> list[bytes]:
    """A record's messages; raises ValueError for a run that is none."""
    key, value, headers = record.key, record.value, record.headers
    if not header.count:
        return [value or b""]
    if key is not None or headers:
        what = "a key" if key is not None else "application headers"
        raise ValueError(f"a run of {header.count} has {what}: only a single message can")
    return decode_run(value, header.count)


def span_from(
    records: Records, at: int, header: PublishHeader, payloads: list[bytes], now: int,
    until: int | None = None,
) -> Span | None:  # fmt: skip
    """The messages of this record and of those behind it that differ from them in payload,
    sequence and time only; None where it stands alone. until: it ends before this record."""
    topic, metas, values = records.topics[at], records.metas, records.values
    topics, keys, headers = records.topics, records.keys, records.headers
    first, last = _around_sequence(header, metas[at] or b"")
    found, counts, size = list(payloads), [len(payloads)], sum(map(len, payloads))
    seq = header.seq
    for i in range(at + 1, len(records) if until is None else until):
        meta = metas[i]
        joined = (
            meta is not None and size < SPAN_BYTES and topics[i] == topic
            and keys[i] is None and headers[i] is None
        )  # fmt: skip
        if not joined:
            break
        if header.producer:
            seq += counts[-1]
        try:
            count = header.count
            if meta != b"%b%d%b" % (first, seq, last):  # most often it is the same text
                other = decode_publish_header(meta)  # type: ignore[arg-type]
                if not same_but_for_sequence(header, other, seq):
                    break
                count = other.count
            value = values[i] or b""
            more = decode_run(value, count) if count else [value]
        except ValueError:
            break  # it is refused when it is looked at by itself
        found += more
        counts.append(len(more))
        size += sum(map(len, more)) if count else len(value)
    return _span(records, at, found, counts, now) if len(counts) > 1 else None


def _around_sequence(header: PublishHeader, meta: bytes) -> tuple[bytes, bytes]:
    """The text of a header before and behind its sequence; what is never found where that is
    not written once and in the plain way. Inside a string there are no such quotes."""
    before, name, rest = meta.partition(b'"seq":')
    number = b"%d" % header.seq
    plain = rest.startswith(number) and rest[len(number) : len(number) + 1] in (b",", b"}")
    if not plain or name in rest or b"\\" in meta:
        return b"", b""
    return before + name, rest[len(number) :]


def _span(records: Records, at: int, payloads: list[bytes], counts: list[int], now: int) -> Span:
    """The columns of records from ``at`` on, which hold so many messages each."""
    part = slice(at, at + len(counts))
    times = [time_of(time, now) for time in records.timestamps[part]]
    partitions, offsets = records.partitions[part], records.offsets[part]
    if len(payloads) == len(counts):
        items = [0] * len(counts)
    else:
        times, partitions, offsets = (
            [value for value, n in zip(column, counts, strict=True) for _ in range(n)]
            for column in (times, partitions, offsets)
        )
        items = [item for n in counts for item in range(n)]
    return Span(payloads, len(counts), times, partitions, offsets, items)
