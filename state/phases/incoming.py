"""What comes in, message by message or several together.

A record holds one message or a short run of them (`protocol.messages`). Records that stand behind
each other and differ in payload, sequence and time only make a *span*: what decides about one of
them decides about all, so they are taken in together where that is plain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from ...protocol.bounds import TIME_MS_MAX
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


@dataclass(slots=True)
class Span:
    """Messages of records that stand behind each other and are taken in together, in columns."""

    payloads: list[bytes]
    records: int
    times: list[int] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    items: list[int] = field(default_factory=list)

    def add(self, records: Records, at: int, n: int, now: int) -> None:
        """A record with ``n`` messages."""
        time = time_of(records.timestamps[at], now)
        if n == 1:
            self.times.append(time)
            self.partitions.append(records.partitions[at])
            self.offsets.append(records.offsets[at])
            self.items.append(0)
            return
        self.times += [time] * n
        self.partitions += [records.partitions[at]] * n
        self.offsets += [records.offsets[at]] * n
        self.items += range(n)


def time_of(timestamp: int, now: int) -> int:
    """When a record was published; what the publisher's clock says may be anything."""
    return timestamp if 0 <= timestamp < TIME_MS_MAX else now


def same_but_for_sequence(one: PublishHeader, other: PublishHeader, seq: int) -> bool:
    return (
        other.seq == seq and other.to == one.to and other.producer == one.producer
        and other.priority == one.priority and other.ttl_ms is None
        and other.deliver_at == one.deliver_at and other.dmq == one.dmq
        and other.reply == one.reply
    )  # fmt: skip


def headers_size(text: str) -> int:
    """Bytes of application headers: keys and values, as they were published (Q8)."""
    size = 0
    for header in msgspec.json.decode(text):
        value = header.get("value") or ""
        size += len(header["key"].encode()) + len(value) * 3 // 4 - value.count("=")
    return size


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
    records: Records, at: int, header: PublishHeader, payloads: list[bytes], now: int
) -> Span | None:
    """The messages of this record and of those behind it that differ from them in payload,
    sequence and time only; None where it stands alone."""
    topic, size = records.topics[at], sum(map(len, payloads))
    span = Span(list(payloads), 1)
    span.add(records, at, len(payloads), now)
    seq = header.seq + (len(payloads) if header.producer else 0)
    for i in range(at + 1, len(records)):
        meta = records.metas[i]
        joined = (
            meta is not None and records.topics[i] == topic and size < SPAN_BYTES
            and records.keys[i] is None and records.headers[i] is None
        )  # fmt: skip
        if not joined:
            break
        try:
            other = decode_publish_header(meta)  # type: ignore[arg-type]
            if not same_but_for_sequence(header, other, seq):
                break
            value = records.values[i]
            more = decode_run(value, other.count) if other.count else [value or b""]
        except ValueError:
            break  # it is refused when it is looked at by itself
        span.payloads += more
        span.records += 1
        span.add(records, i, len(more), now)
        seq += len(more) if header.producer else 0
        size += sum(map(len, more))
    if span.records == 1:
        return None
    return span
