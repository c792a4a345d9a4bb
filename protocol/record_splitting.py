"""Splits records that are too large for Kafka into smaller ones with the same content.

Constants bound the size of our records, but an operator may have set a lower limit for a topic. The
sender then splits a record into halves until it fits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from . import topics
from .wire import FRAMING, WireRecord, batches, decode_batch, headers_json, headers_list

TRUNCATED = "lq-truncated"
BESIDE_MAX = 150  # the most bytes that Kafka adds for a record and its batch

_read, _write = msgspec.json.decode, msgspec.json.encode


def size_of(record: WireRecord) -> int:
    """An upper estimate of a record's bytes in Kafka."""
    headers = sum(len(k.encode()) + len(v) + 10 for k, v in headers_list(record.headers))
    return len(record.value or b"") + len(record.key or b"") + headers + BESIDE_MAX


def halves(record: WireRecord) -> list[WireRecord]:
    """Split a record into smaller ones with the same content, or as much of it as possible. Empty
    if it cannot be split: a single message, messages between brokers, the journal."""
    framing = dict(headers_list(record.headers)).get(FRAMING)
    kind = topics.kind(record.topic)
    if framing == b"batch":
        return _deliveries(record)
    if framing == b"reply":
        return _reply(record)
    if kind == topics.RECEIPTS:
        return _receipts(record)
    if kind == topics.REJECTED:
        return _rejected(record)
    return []


def fitting(record: WireRecord, limit: int | None) -> list[WireRecord]:
    """Split a record into parts within the limit, as far as possible."""
    parts = halves(record) if limit is not None and size_of(record) > limit else []
    return [small for part in parts for small in fitting(part, limit)] or [record]


class Delivered(NamedTuple):
    """The messages in a delivery record. is_first: the record cannot be a repetition (C2)."""

    queue: str
    subscription: str
    ids: list[int]
    is_first: bool


def delivered(record: WireRecord) -> Delivered | None:
    """The messages in a delivery record; None for any other record."""
    headers = dict(headers_list(record.headers))
    if headers.get(FRAMING) == b"batch":
        found = decode_batch(record.value or b"")
        return Delivered(found.queue, found.subscription, found.ids, not found.again)
    if "lq-delivery" in headers:
        queue, subscription = headers["lq-queue"].decode(), headers["lq-subscription"].decode()
        return Delivered(queue, subscription, [int(headers["lq-id"])], "lq-flow" not in headers)
    return None


def _deliveries(record: WireRecord) -> list[WireRecord]:
    found = decode_batch(record.value or b"")
    if len(found.ids) < 2:
        return []
    found.topic, found.partition = record.topic, record.partition or 0
    columns = zip(found.payloads, found.keys, found.headers, strict=True)
    total = sum(len(p) + len(k or b"") + len(h or b"") for p, k, h in columns)
    return list(batches(found, total // 2 - 1))  # less than the total, so more than one record


def _receipts(record: WireRecord) -> list[WireRecord]:
    """Split the nacks as `wire` does: no part's ``up_to`` covers a nack of a later part."""
    value: dict[str, Any] = _read(record.value or b"")
    nacks = value["nacks"]
    if len(nacks) < 2:
        return []
    at = len(nacks) // 2
    first = value | {"nacks": nacks[:at], "up_to": min(value["up_to"], nacks[at]["seq"] - 1)}
    second = value | {"nacks": nacks[at:], "runs": [], "discarded": []}
    second.pop("repeated", None)
    return [_with(record, _write(part)) for part in (first, second)]


def _reply(record: WireRecord) -> list[WireRecord]:
    """Replace the answer with an error that gives the reason."""
    value: dict[str, Any] = _read(record.value or b"")
    if value["result"] is None:
        return []
    error = (
        f"the answer has {len(record.value or b''):,} bytes, more than topic {record.topic!r} "
        "allows: ask for less, or raise its max.message.bytes"
    )
    none = {"result": None, "error": error, "kind": "LakequeueError", "more": None}
    return [_with(record, _write(value | none))]


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
