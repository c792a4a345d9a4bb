"""The journal: all events, as columnar records of a broker's steps (R1).

A step collects *segments*: one event of many messages with the same reason. They become one Arrow
IPC stream with one row per message and event. (broker, step) identifies a record: a replayed step
writes the same record again, and readers drop it.
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

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
NO_END = 1 << 62  # a lease or a time to live that never ends, epoch ms
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class JournalSegment(msgspec.Struct):
    """One event of many messages. counts: their delivery counts, or one for all.

    topic, partitions, offsets, items: the origin of the messages, for ``spooled``, ``discarded``
    and ``rejected``; an item is a message's index in its record. until: the end of the lease or
    delay that begins with the event, epoch ms; one for all, or one each; `NO_END`: no end, or none
    begins. step, time: set if the journal has several steps; 0: the journal's own.
    """

    event: str
    vpn: str
    queue: str = ""
    ids: list[int] = []
    counts: list[int] | int = 0
    subscription: str = ""
    reason: str = ""
    topic: str = ""
    partitions: list[int] | None = None
    offsets: list[int] | None = None
    items: list[int] | None = None
    until: list[int] | int = NO_END
    step: int = 0
    time: int = 0


class Journal(msgspec.Struct):
    """The segments of one step, or of several consecutive ones up to ``step``, in order."""

    broker: str
    step: int
    time: int
    segments: list[JournalSegment] = []

    def rows(self) -> list[dict[str, Any]]:
        """The journal as one dict per event; for tests and small tools."""
        out = []
        for s in self.segments:
            ids = s.ids or [0]
            for i, number in enumerate(ids):
                count = s.counts if isinstance(s.counts, int) else s.counts[i]
                out.append(
                    {
                        "broker": self.broker,
                        "step": s.step or self.step,
                        "time": s.time or self.time,
                        "vpn": s.vpn,
                        "queue": s.queue,
                        "event": s.event,
                        "message_id": str(number) if number else None,
                        "subscription": s.subscription,
                        "reason": s.reason,
                        "deliveries": count,
                        "topic": s.topic,
                        "partition": s.partitions[i] if s.partitions else None,
                        "offset": s.offsets[i] if s.offsets else None,
                        "item": s.items[i] if s.items else None,
                        "until": _end(s.until if isinstance(s.until, int) else s.until[i]),
                    }
                )
        return out


_NAMED = ("vpn", "queue", "event", "subscription", "reason", "topic")
_FIELDS = {
    "message_id": "ids", "deliveries": "counts", "partition": "partitions", "offset": "offsets",
    "item": "items", "until": "until",
}  # fmt: skip

_KINDS = {
    "message_id": (np.uint64, pa.uint64()), "deliveries": (np.int32, pa.int32()),
    "partition": (np.int32, pa.int32()), "offset": (np.int64, pa.int64()),
    "item": (np.int32, pa.int32()), "until": (np.int64, pa.int64()),
}  # fmt: skip


def _numbers(name: str, given: list[list[int] | int | None], lengths: Any) -> pa.Array:
    """A column of numbers. given: per segment its values, one for all, or none; lengths: of the
    segments, an array."""
    dtype, kind = _KINDS[name]
    has_values = np.array([own is not None and own != [] for own in given], bool)
    parts = zip(given, lengths.tolist(), strict=True)
    values = [own if isinstance(own, list) else [own] * n for own, n in parts if own is not None]
    column = np.fromiter(chain.from_iterable(values), dtype)
    if name == "until":
        return pa.array(column, kind, mask=column >= NO_END)
    if has_values.all():
        return pa.array(column, kind)
    is_set = np.repeat(has_values, lengths)
    spread = np.zeros(len(is_set), dtype)
    spread[is_set] = column
    return pa.array(spread, kind, mask=~is_set)


def encode(journal: Journal) -> bytes:
    """Encode the journal as an Arrow IPC stream.

    Builds each column once for all segments, since a record of many small steps has many.
    """
    segments = journal.segments
    lengths = np.array([len(s.ids) or 1 for s in segments], np.int64)
    # Few segments differ in their texts, so the texts of equal ones are looked up once.
    kinds: dict[tuple[str, ...], int] = {}
    codes = [
        kinds.setdefault((s.vpn, s.queue, s.event, s.subscription, s.reason, s.topic), len(kinds))
        for s in segments
    ]
    kind_of_row = np.repeat(np.array(codes, np.int32), lengths)
    columns: dict[str, pa.Array] = {}
    for at, name in enumerate(_NAMED):
        texts: dict[str, int] = {}
        own = [texts.setdefault(kind[at], len(texts)) for kind in kinds]
        columns[name] = pa.DictionaryArray.from_arrays(
            pa.array(np.array(own, np.int32)[kind_of_row]), pa.array(list(texts), pa.string())
        )
    for name, values in (
        ("step", [s.step or journal.step for s in segments]),
        ("time", [s.time or journal.time for s in segments]),
    ):
        columns[name] = pa.array(np.repeat(np.array(values, np.int64), lengths))
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


def _end(until: int) -> int | None:
    return None if until >= NO_END else until
