"""Converts messages of Kafka's client to the input of a step: columns in one fixed order.

A step gets records sorted by topic, partition and offset, the engine's instructions first, in
whatever order they arrived. A replayed step gets the same order.
"""

from __future__ import annotations

from typing import Any

from ..protocol import topics, wire
from ..protocol.kafka_headers import UNREADABLE, headers_of
from ..protocol.messages import HEADER, Records
from ..protocol.steplog import Range, parts_of
from ..replica.driver import Taken
from ..state import Batch

RECORD_BYTES = 100  # besides key, value and headers
PartitionId = tuple[str, int]
_COMMANDS = (topics.COMMANDS, topics.INSTRUCTIONS)
_MESH = (topics.MESH, topics.BRIDGE_IN)  # messages between brokers, of this home or another


def size_of(message: Any) -> int:
    """The bytes that a message counts towards a step's limit."""
    return RECORD_BYTES + len(message) + len(message.key() or b"")


def is_command(topic: str) -> bool:
    """Whether a topic has clients' commands."""
    return topics.kind(topic) == topics.COMMANDS


def goes_first(topic: str) -> bool:
    """Whether a topic's records are handled before messages."""
    return topics.kind(topic) in (*_COMMANDS, *_MESH)


def in_order(topic: str) -> tuple[bool, str]:
    """The sort key of a step's topics: the engine's instructions come before all commands."""
    return not topics.is_instruction(topic), topic


def to_batch(found: dict[PartitionId, list[Any]]) -> Taken:
    """Build the batch from the records of each partition, with their ranges."""
    batch = Batch()
    ranges = []
    for place in sorted(found, key=lambda place: (in_order(place[0]), place[1])):
        messages = found[place]
        topic, partition = place
        n = len(messages)
        offsets = [m.offset() for m in messages]
        parts = parts_of(offsets)
        ranges.append(Range(topic, partition, offsets[0], offsets[-1], n, parts))
        kind = topics.kind(topic)
        records = (
            batch.commands if kind in _COMMANDS else batch.mesh if kind in _MESH
            else batch.publishes
        )  # fmt: skip
        records.topics += [topic] * n
        records.partitions += [partition] * n
        _append(records, messages)
    return Taken(batch, tuple(ranges))


def _append(records: Records, messages: list[Any]) -> None:
    for m in messages:
        records.offsets.append(m.offset())
        records.timestamps.append(m.timestamp()[1])
        records.keys.append(m.key())
        records.values.append(m.value())
        meta, rest, _ = header_columns(m)
        records.metas.append(meta)
        records.headers.append(rest)


def header_columns(message: Any) -> tuple[bytes | None, str | None, list[tuple[str, bytes | None]]]:
    """The header `lq` of a message of Kafka's client, the other headers as JSON, and all
    headers."""
    try:
        headers = headers_of(message)
    except ValueError:
        return UNREADABLE, None, []
    if len(headers) == 1 and headers[0][0] == HEADER:
        return headers[0][1], None, headers
    meta = next((v for k, v in headers if k == HEADER), None)
    return meta, wire.headers_json([(k, v or b"") for k, v in headers if k != HEADER]), headers
