"""Incoming messages: a record has one message or a short run of them (`protocol.messages`).

Consecutive messages often have the same header except for the sequence. They are checked and stored
together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from ...protocol.bounds import CANNOT_DECODE, YEAR_9999_ENDS_MS
from ...protocol.messages import PublishHeader, Records, decode_run
from ..queue.broker_facts import RecordPosition
from ..storage.blocks import Content

SEQ_PLAIN = 1 << 61  # far enough below the highest sequence that no series of records reaches it

_any_json = msgspec.json.Decoder(msgspec.Raw)


class Answerable(Protocol):
    """A sender that gets the outcome of its messages: a producer or a bridge."""

    def take(self, seq: int, count: int = 1) -> None:
        """Messages have arrived."""

    def stored(self, seq: int, number: int, count: int = 1) -> None:
        """They were stored, with ids from ``number`` on."""

    def discarded(self, seq: int, reason: str, queue: str) -> None:
        """A queue discarded one, by its policy (S4)."""

    def refused(self, seq: int, reason: str, queue: str, detail: str) -> None:
        """A queue refused one."""


class Incoming(msgspec.Struct):
    """One message, or several with the same header; the parts that differ are columns.

    keys, headers: None or empty if a message has none; items: the index of each in its record;
    sender: None if nobody waits for an answer.
    """

    topic: str
    header: PublishHeader
    seq: int
    keys: list[bytes | None]
    headers: list[str | None]
    payloads: list[bytes]
    partitions: list[int]
    offsets: list[int]
    times: list[int]
    items: list[int]
    vpn: str = ""
    sender: Answerable | None = None

    @classmethod
    def of(cls, records: Records, at: int, end: int, header: PublishHeader, now: int) -> Incoming:
        """The messages of records that are `alike`. Raises ValueError for a malformed run."""
        keys, headers = records.keys[at:end], records.headers[at:end]
        times = records.timestamps[at:end]
        if not 0 <= min(times) <= max(times) < YEAR_9999_ENDS_MS:
            times = [_time_of(time, now) for time in times]
        partitions, offsets = records.partitions[at:end], records.offsets[at:end]
        if header.count:
            n = header.count
            payloads = _run_of(header, keys[0], headers[0], records.values[at])
            return cls(
                records.topics[at], header, header.seq, keys * n, headers * n, payloads,
                partitions * n, offsets * n, times * n, list(range(n)),
            )  # fmt: skip
        payloads = [value or b"" for value in records.values[at:end]]
        return cls(
            records.topics[at], header, header.seq, keys, headers, payloads, partitions, offsets,
            times, [0] * (end - at),
        )  # fmt: skip

    def sizes(self) -> tuple[list[int], int]:
        """Each message's bytes as quotas count them: payload and application headers (Q8); and the
        largest message's as it is delivered: payload, key and headers."""
        lengths = list(map(len, self.payloads))
        if not any(self.headers) and not any(self.keys):  # most often
            return lengths, max(lengths)
        columns = list(zip(lengths, self.keys, self.headers, strict=True))
        largest = max(n + len(key or b"") + len(own or "") for n, key, own in columns)
        return [n + headers_size(own) for n, _, own in columns], largest

    def contents(self) -> list[Content]:
        """Their contents for the spool."""
        headers: list[bytes | None] = [None] * len(self.headers)
        if any(self.headers):
            headers = [own.encode() if own else None for own in self.headers]
        return list(zip(self.payloads, self.keys, headers, strict=True))

    @property
    def place(self) -> RecordPosition:
        """The record of the first one."""
        return self.topic, self.partitions[0], self.offsets[0]

    def each(self) -> Iterator[Incoming]:
        """One by one."""
        for at in range(len(self.payloads)):
            one = slice(at, at + 1)
            yield Incoming(
                self.topic, self.header, self.seq + at, self.keys[one], self.headers[one],
                self.payloads[one], self.partitions[one], self.offsets[one], self.times[one],
                self.items[one], self.vpn, self.sender,
            )  # fmt: skip


def alike(records: Records, at: int, header: PublishHeader) -> int:
    """The end of the records with the same header as the first, except for the sequence, which
    counts up."""
    end, meta, seq = at + 1, records.metas[at], header.seq
    topics, metas = records.topics, records.metas
    if end == len(topics) or meta is None or header.count:
        return end
    before, text, after = meta.partition(b'"seq":%d' % seq)
    # With escapes or two sequences, comparing the text would not be enough.
    plain = text and meta.count(b'"seq"') == 1 and b"\\" not in meta and seq < SEQ_PLAIN
    if header.producer and not plain:
        return end
    topic, before = topics[at], before + b'"seq":'
    while end < len(topics):
        if header.producer:
            seq += 1
            meta = b"%b%d%b" % (before, seq, after)
        if metas[end] != meta or topics[end] != topic:
            break
        end += 1
    return end


def _time_of(timestamp: int, now: int) -> int:
    """When a record was published. The publisher's clock may be wrong, so an impossible time is
    replaced by the step's. The calendar's last millisecond counts as impossible: the tables store
    later times as that one, and a replay from them must decide the same (R1)."""
    return timestamp if 0 <= timestamp < YEAR_9999_ENDS_MS else now


def headers_size(text: str | None) -> int:
    """Bytes of application headers: keys and values, as published (Q8)."""
    size = 0
    for header in msgspec.json.decode(text) if text else ():
        value = header.get("value") or ""
        size += len(header["key"].encode()) + len(value) * 3 // 4 - value.count("=")
    return size


def is_json(payload: bytes) -> bool:
    """Whether a payload is JSON. Parses it without making objects."""
    try:
        _any_json.decode(payload)
    except CANNOT_DECODE:
        return False
    return True


def _run_of(
    header: PublishHeader, key: bytes | None, headers: str | None, value: bytes | None
) -> list[bytes]:
    """The messages of a run. Raises ValueError for a malformed one."""
    if key is not None or headers:
        what = "a key" if key is not None else "application headers"
        raise ValueError(f"a run of {header.count} has {what}: send such a message on its own")
    return decode_run(value or b"", header.count)
