"""Records that Kafka did not take for their size, as smaller ones that say the same.

How large a record is follows our own constants; a topic may have a lower limit, since somebody set
it. Whoever sends to it cuts a record in halves until it fits.
"""

from __future__ import annotations

from typing import Any

import msgspec

from . import topics
from .wire import FRAMING, WireRecord, batches, decode_batch, headers_json, headers_list

TRUNCATED = "lq-truncated"
BESIDE_MAX = 150  # what Kafka adds to a record and to the batch that it travels in, at most

_read, _write = msgspec.json.decode, msgspec.json.encode


def size_of(record: WireRecord) -> int:
    """About so many bytes the record has for Kafka, rather more than less."""
    headers = sum(len(k.encode()) + len(v) + 10 for k, v in headers_list(record.headers))
    return len(record.value or b"") + len(record.key or b"") + headers + BESIDE_MAX


def halves(record: WireRecord) -> list[WireRecord]:
    """Records that are smaller and together say the same, or as much of it as can be said; none
    where there are none: of one message, of what brokers say to each other, of the journal."""
    framing = dict(headers_list(record.headers)).get(FRAMING)
    own = topics.split(record.topic)
    if framing == b"batch":
        return _deliveries(record)
    if framing == b"reply":
        return _reply(record)
    if own is not None and own[1] == topics.RECEIPTS:
        return _receipts(record)
    if own is not None and own[1] == topics.REJECTED:
        return _rejected(record)
    return []


def fitting(record: WireRecord, limit: int | None) -> list[WireRecord]:
    """The record, or parts of it of which none is larger than that, as far as it has parts."""
    parts = halves(record) if limit is not None and size_of(record) > limit else []
    return [small for part in parts for small in fitting(part, limit)] or [record]


def delivered(record: WireRecord) -> tuple[str, list[int]] | None:
    """The queue and the ids of the messages that a record delivers; None: it is no delivery."""
    headers = dict(headers_list(record.headers))
    if headers.get(FRAMING) == b"batch":
        found = decode_batch(record.value or b"")
        return found.queue, found.ids
    if "lq-delivery" in headers:
        return headers["lq-queue"].decode(), [int(headers["lq-id"])]
    return None


def _deliveries(record: WireRecord) -> list[WireRecord]:
    found = decode_batch(record.value or b"")
    if len(found.ids) < 2:
        return []
    found.topic, found.partition = record.topic, record.partition or 0
    columns = zip(found.payloads, found.keys, found.headers, strict=True)
    total = sum(len(p) + len(k or b"") + len(h or b"") for p, k, h in columns)
    return list(batches(found, total // 2 - 1))  # less than all of it, so it is more than one


def _receipts(record: WireRecord) -> list[WireRecord]:
    """As `wire` does where much is refused: no part settles what a later one refuses."""
    told: dict[str, Any] = _read(record.value or b"")
    nacks = told["nacks"]
    if len(nacks) < 2:
        return []
    at = len(nacks) // 2
    first = told | {"nacks": nacks[:at], "up_to": min(told["up_to"], nacks[at]["seq"] - 1)}
    second = told | {"nacks": nacks[at:], "runs": [], "discarded": []}
    second.pop("repeated", None)
    return [_with(record, _write(part)) for part in (first, second)]


def _reply(record: WireRecord) -> list[WireRecord]:
    """Who asked hears why there is no answer."""
    told: dict[str, Any] = _read(record.value or b"")
    if told["result"] is None:
        return []
    error = (
        f"the answer has {len(record.value or b''):,} bytes, and topic {record.topic!r} does not "
        "take them: ask for less, or raise its max.message.bytes"
    )
    none = {"result": None, "error": error, "kind": "LakequeueError", "more": None}
    return [_with(record, _write(told | none))]


def _rejected(record: WireRecord) -> list[WireRecord]:
    value = record.value or b""
    if not value:
        return []
    headers = headers_list(record.headers)
    if TRUNCATED not in dict(headers):
        headers.append((TRUNCATED, str(len(value)).encode()))
    part = _with(record, value[: len(value) // 2])
    part.headers = headers_json(headers)
    return [part]


def _with(record: WireRecord, value: bytes) -> WireRecord:
    return WireRecord(record.topic, record.partition, record.key, value, record.headers)
