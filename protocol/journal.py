"""The journal: everything that happened, as one columnar record per broker and step (R1).

A step collects *segments*: one event that happened to many messages for the same reason. They
become one Arrow IPC stream, one row per message and event. The pair (broker, step) names a
record: a step that is run again after a crash writes the same record again, and readers drop it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
        pa.field("time", pa.int64()),
    ]
)
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(slots=True)
class Segment:
    """One event for many messages; ``counts`` are delivery counts, or one for all.

    topic, partitions, offsets, items: where the messages came from, for ``spooled``, ``discarded``
    and ``rejected``; an item is a message's place in its record, 0 for the first.
    """

    event: str
    vpn: str
    queue: str = ""
    ids: list[int] = field(default_factory=list)
    counts: list[int] | int = 0
    subscription: str = ""
    reason: str = ""
    topic: str = ""
    partitions: list[int] | None = None
    offsets: list[int] | None = None
    items: list[int] | None = None


@dataclass(slots=True)
class Journal:
    """What one step did: the segments in the order in which they happened."""

    broker: str
    step: int
    time: int
    segments: list[Segment] = field(default_factory=list)

    def rows(self) -> list[dict]:
        """The journal as one dict per event; for tests and small tools."""
        out = []
        for s in self.segments:
            ids = s.ids or [0]
            for i, number in enumerate(ids):
                count = s.counts if isinstance(s.counts, int) else s.counts[i]
                out.append(
                    {
                        "broker": self.broker, "step": self.step, "time": self.time,
                        "vpn": s.vpn, "queue": s.queue, "event": s.event,
                        "message_id": str(number) if number else None,
                        "subscription": s.subscription, "reason": s.reason, "deliveries": count,
                        "topic": s.topic,
                        "partition": s.partitions[i] if s.partitions else None,
                        "offset": s.offsets[i] if s.offsets else None,
                        "item": s.items[i] if s.items else None,
                    }
                )
        return out


_NAMED = ("vpn", "queue", "event", "subscription", "reason", "topic")


def _ints(values: list[int] | int | None, n: int, kind: pa.DataType) -> pa.Array:
    if values is None:
        return pa.nulls(n, kind)
    if isinstance(values, int):
        return pa.repeat(pa.scalar(values, kind), n)
    return pa.array(values, kind)


def encode(journal: Journal) -> bytes:
    """The journal of a step as an Arrow IPC stream."""
    names: dict[str, dict[str, int]] = {name: {} for name in _NAMED}
    codes: dict[str, list[pa.Array]] = {name: [] for name in _NAMED}
    numbers: dict[str, list[pa.Array]] = {
        name: [] for name in ("message_id", "deliveries", "partition", "offset", "item")
    }
    for s in journal.segments:
        n = len(s.ids) or 1
        for name, table in names.items():
            code = table.setdefault(getattr(s, name), len(table))
            codes[name].append(_ints(code, n, pa.int32()))
        numbers["message_id"].append(_ints(s.ids or None, n, pa.uint64()))
        numbers["deliveries"].append(_ints(s.counts, n, pa.int32()))
        numbers["partition"].append(_ints(s.partitions, n, pa.int32()))
        numbers["offset"].append(_ints(s.offsets, n, pa.int64()))
        numbers["item"].append(_ints(s.items, n, pa.int32()))
    columns = {
        name: pa.DictionaryArray.from_arrays(
            pa.concat_arrays(codes[name]), pa.array(list(table), pa.string())
        )
        for name, table in names.items()
    }
    columns |= {name: pa.concat_arrays(parts) for name, parts in numbers.items()}
    columns["time"] = _ints(journal.time, len(columns["message_id"]), pa.int64())
    batch = pa.record_batch([columns[f.name] for f in SCHEMA], schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def decode(value: bytes) -> pa.Table:
    """The rows of a journal record."""
    return pa.ipc.open_stream(value).read_all()
