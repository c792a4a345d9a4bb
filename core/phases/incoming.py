"""What comes in: a record holds one message or a short run of them (`protocol.messages`)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ...protocol.bounds import within_calendar
from ...protocol.messages import PublishHeader, Records, decode_run

_any_json = msgspec.json.Decoder(msgspec.Raw)


class Incoming(NamedTuple):
    """One message that comes in: a record's columns, and its place in the record."""

    topic: str
    partition: int
    offset: int
    time: int  # when it was published
    key: bytes | None
    value: bytes
    headers: str | None
    item: int = 0

    @classmethod
    def of(cls, records: Records, at: int, now: int) -> Incoming:
        """A record, with its first message's place."""
        return cls(
            records.topics[at], records.partitions[at], records.offsets[at],
            time_of(records.timestamps[at], now), records.keys[at], records.values[at] or b"",
            records.headers[at],
        )  # fmt: skip


def time_of(timestamp: int, now: int) -> int:
    """When a record was published; what the publisher's clock says may be anything."""
    return timestamp if timestamp == within_calendar(timestamp) else now


def headers_size(text: str | None) -> int:
    """Bytes of application headers: keys and values, as they were published (Q8)."""
    size = 0
    for header in msgspec.json.decode(text) if text else ():
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
    if not header.count:
        return [record.value]
    if record.key is not None or record.headers:
        what = "a key" if record.key is not None else "application headers"
        raise ValueError(f"a run of {header.count} has {what}: only a single message can")
    return decode_run(record.value, header.count)
