"""The journal as Kafka records: an Arrow IPC stream with one row per message and event (R1).

(broker, step) identifies a record: a replayed step writes the same record again, and readers drop
it.
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from .journal import NO_END, Journal

SCHEMA = pa.schema(
    [
        pa.field("vpn", pa.dictionary(pa.int32(), pa.string())),
        pa.field("queue", pa.dictionary(pa.int32(), pa.string())),
        pa.field("event", pa.dictionary(pa.int32(), pa.string())),
        pa.field("message_id", pa.uint64()),
        pa.field("subscription", pa.dictionary(pa.int32(), pa.string())),
        pa.field("reason", pa.dictionary(pa.int32(), pa.string())),
        pa.field("deliveries", pa.int32()),
        pa.field("topic", pa.dictionary(pa.int32(), pa.string())),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("item", pa.int32()),
        pa.field("step", pa.int64()),
        pa.field("time", pa.int64()),
        pa.field("until", pa.int64()),
    ]
)
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
_NAMED = ("vpn", "queue", "event", "subscription", "reason", "topic")
_kind = attrgetter(*_NAMED)
_FIELDS = {
    "message_id": "ids", "deliveries": "counts", "partition": "partitions", "offset": "offsets",
    "item": "items", "until": "until",
}  # fmt: skip
_ONE_FOR_ALL = ("deliveries", "until")  # a segment may have one value for all its messages


def _numbers(name: str, given: list[list[int] | int | None], lengths: Any) -> pa.Array:
    """Build a column of numbers. given: per segment its list of values, one value for all messages,
    or None; lengths: the segments' lengths, an array."""
    kind = SCHEMA.field(name).type
    dtype = kind.to_pandas_dtype()
    if name in _ONE_FOR_ALL:
        parts = zip(given, lengths.tolist(), strict=True)
        values = (own if isinstance(own, list) else [own] * n for own, n in parts)
        column = np.fromiter(chain.from_iterable(values), dtype)
        return pa.array(column, kind, mask=column >= NO_END if name == "until" else None)
    column = np.fromiter(chain.from_iterable(filter(None, given)), dtype)  # type: ignore[arg-type]
    is_set = np.repeat(np.fromiter(map(bool, given), bool), lengths)
    spread = np.zeros(len(is_set), dtype)
    spread[is_set] = column
    return pa.array(spread, kind, mask=~is_set)


def encode(journal: Journal) -> bytes:
    """Encode the journal as an Arrow IPC stream.

    Builds each column once for all segments, since a record of many small steps has many.
    """
    segments = journal.segments
    lengths = np.array([len(s.ids) or 1 for s in segments], np.int64)
    # Most segments share their texts, so each combination of texts is looked up only once.
    kinds: dict[tuple[str, ...], int] = {}
    codes = [kinds.setdefault(kind, len(kinds)) for kind in map(_kind, segments)]
    kind_of_row = np.repeat(np.array(codes, np.int32), lengths)
    columns: dict[str, pa.Array] = {}
    for at, name in enumerate(_NAMED):
        texts: dict[str, int] = {}
        own = [texts.setdefault(kind[at], len(texts)) for kind in kinds]
        columns[name] = pa.DictionaryArray.from_arrays(
            pa.array(np.array(own, np.int32)[kind_of_row]), pa.array(list(texts), pa.string())
        )
    for name in ("step", "time"):
        values = np.fromiter(map(attrgetter(name), segments), np.int64)
        values[values == 0] = getattr(journal, name)
        columns[name] = pa.array(np.repeat(values, lengths))
    columns |= {
        name: _numbers(name, list(map(attrgetter(field), segments)), lengths)
        for name, field in _FIELDS.items()
    }
    batch = pa.record_batch([columns[f.name] for f in SCHEMA], schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode(value: bytes) -> pa.Table:
    """Decode the rows of a journal record."""
    return pa.ipc.open_stream(value).read_all()
