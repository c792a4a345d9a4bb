"""One batch of a table query, in a Python worker: reads Kafka and writes the Parquet files (R1).

No row passes through Java. The worker reads the offsets that Spark planned (`offset_ranges`),
converts the records to columns (`kafka_records`), omits records that the tables already have, and
writes files with Arrow (`table_files`). It returns Delta's `add` action for each file; the driver
commits these (`table_writer`).

    topic             table        one row is
    publish topics    `messages`   a message, also each message of a run
    journal           `journal`    an event
    commands, mesh …  `commands`   a record
    steps             `steps`      a step
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..protocol import journal_encoding, signing, steplog, topics
from ..protocol.bounds import CANNOT_DECODE
from ..protocol.folders import folder
from ..protocol.steplog import LivePart
from ..protocol.table_format import COMMANDS, JOURNAL, MESSAGES, STEPS
from ..sources.offset_ranges import Ranges, read_ranges
from ..sources.step_batch import PartitionId
from .kafka_records import TIME_MS_END, records_of, run_items
from .table_files import TableFiles

NICENESS = 5  # no client waits for the tables, so the brokers' loops get the CPU first
Last = dict[tuple[str, str], tuple[int, int]]
Stored = dict[PartitionId, tuple[int, int]]


@dataclass
class TableBatch:
    """Writes the files of one batch. Spark calls it in a Python worker.

    tables: the folder of the tables. history: False writes `messages` and `journal`, True writes
    `commands` and `steps`. last: broker and VPN → the last (step, part) in `journal`. stored: see
    `TopicsRead.stored`. kafka, ranges, ids: the connection to Kafka, the offsets to read, and the
    ids of the topics. environment: variables for an object store, see `protocol.folders`.

    Yields a row for each file: its table, and the fields of Delta's `add` action as JSON. The last
    row has no table: the number of records read, and the new ``last``.
    """

    tables: str
    now_s: float
    history: bool = False
    last: Last = field(default_factory=dict)
    stored: Stored = field(default_factory=dict)
    kafka: dict[str, Any] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self, rows: Iterable[Any]) -> Iterator[tuple[str, str]]:
        """rows: Spark's input of the task. It is empty, but Spark only reuses a worker that reads
        it to its end."""
        list(rows)
        os.environ |= self.environment
        _lower_priority()
        found = read_ranges(self.kafka, self.ranges)
        return iter(self.write(records_of(some, self.ids) for some in found))

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[tuple[str, str]]:
        """Write the files for batches of records (`RECORDS`). If that fails, no file is left."""
        files = TableFiles(folder(self.tables), self.now_s)
        read = 0
        try:
            for batch in batches:
                read += batch.num_rows
                for table, rows in self._rows(batch):
                    files.add(table, rows)
            found = [(table, json.dumps(file)) for table, file in files.close()]
        except BaseException:  # also when Spark ends the task
            files.discard()
            raise
        last = [[*who, *at] for who, at in self.last.items()]
        return [*found, ("", json.dumps([read, last]))]

    def _rows(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Table]]:
        of_log = pc.ends_with(
            batch["topic"], f".{topics.STEPS if self.history else topics.JOURNAL}"
        )
        logged, others = batch.filter(of_log), batch.filter(pc.invert(of_log))
        if self.history:
            yield COMMANDS, command_rows(self._new(others))
            yield STEPS, step_rows(self._new(logged))
        else:
            yield MESSAGES, message_rows(self._new(others))
            for rows in self._new_journal(logged):
                yield JOURNAL, rows

    def _new(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.stored or not batch.num_rows:
            return batch
        columns = (batch[name] for name in ("topic", "partition", "offset"))
        times = batch["time"].cast(pa.int64())
        rows = zip(*(c.to_pylist() for c in (*columns, times)), strict=True)
        none = (-1, 0)
        known = ((self.stored.get((topic, n), none), at, time) for topic, n, at, time in rows)
        return batch.filter(
            pa.array([at > last[0] or time > last[1] for last, at, time in known], pa.bool_())
        )

    def _new_journal(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """The rows of records that are not in the table yet. Advances ``last``."""
        columns = (batch[name].to_pylist() for name in ("topic", "key", "step", "value"))
        for topic, key, step, value in zip(*columns, strict=True):
            at = step_of(step) if step is not None else None
            vpn = topics.split(topic)
            broker = (key or b"").decode(errors="replace")
            who = broker, vpn[0] if vpn else ""
            if at is not None and at > self.last.get(who, (-1, 0)):
                self.last[who] = at
                if value is not None:
                    for rows in journal_rows(broker, step, value):
                        yield pa.Table.from_batches([rows])


def _lower_priority() -> None:
    """Lower this worker process's priority, once."""
    global _is_lowered
    if not _is_lowered:
        _is_lowered = True
        with suppress(OSError):
            os.nice(NICENESS)


_is_lowered = False


# ---------------------------------------------------------------- messages


def message_rows(batch: pa.RecordBatch) -> pa.Table:
    """A row for each message of the records."""
    record, item, payload = run_items(batch["value"], batch["run"])
    rows = batch.drop_columns(["value", "run", "step"]).take(pa.array(record))
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns |= {"item": pa.array(item.astype(np.int32)), "payload": payload}
    names = ("topic", "partition", "offset", "item", "time", "key", "payload", "lq", "headers")
    return pa.table({name: columns[name] for name in (*names, "topic_id")})


# ---------------------------------------------------------------- the journal


def step_of(text: str) -> tuple[int, int] | None:
    """Step and part of a journal record; None if the engine did not write it."""
    number, _, part = text.partition(".")
    return (int(number), int(part)) if number.isdecimal() and part.isdecimal() else None


def journal_rows(broker: str, step: str, value: bytes) -> Iterator[pa.RecordBatch]:
    """The rows of a journal record; none if the engine did not write it."""
    try:
        table = journal_encoding.decode(value)
        yield from [] if table.schema != journal_encoding.SCHEMA else _events(broker, step, table)
    except (pa.ArrowException, OSError):
        return  # the columns may be the engine's, but the values unreadable


def _events(broker: str, step: str, table: pa.Table) -> list[pa.RecordBatch]:
    _, part = step_of(step) or (0, 0)
    n = len(table)
    columns = dict(zip(table.column_names, table.columns, strict=True))
    for name in ("vpn", "queue", "event", "message_id", "subscription", "reason", "topic"):
        columns[name] = columns[name].cast(pa.string())
    columns |= {
        "broker": pa.repeat(pa.scalar(broker), n),
        "part": pa.repeat(pa.scalar(part, pa.int32()), n),
        "time": _timestamps(table["time"]),
        "line": pa.array(np.arange(n, dtype=np.int32)),
        "until": _timestamps(pc.min_element_wise(table["until"], TIME_MS_END, skip_nulls=False)),
    }
    return pa.table(columns).combine_chunks().to_batches()


def _timestamps(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times in ms since 1970 as Delta stores them."""
    return times.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


# ---------------------------------------------------------------- commands


def command_rows(batch: pa.RecordBatch) -> pa.Table:
    """A row for each record of a topic of commands."""
    heads = [named(value) for value in batch["value"].to_pylist()]
    columns = {name: batch[name] for name in ("topic", "partition", "offset", "time")}
    for n, name in enumerate(("command", "queue")):
        columns[name] = pa.array([one[n] for one in heads], pa.string())
    return pa.table(
        columns | {name: batch[name] for name in ("key", "value", "headers", "topic_id")}
    )


class _Named(msgspec.Struct):
    command: Any = None
    queue: Any = None


_named = msgspec.json.Decoder(_Named).decode


def named(value: bytes | None) -> tuple[str | None, str | None]:
    """The command in a record, and the queue that it names; None for a missing one."""
    try:
        signed = signing.split(value or b"")
        head = _named((value or b"") if signed is None else signed[3])
    except CANNOT_DECODE:
        return None, None
    command, queue = (v if isinstance(v, str) else None for v in (head.command, head.queue))
    return command, queue


# ---------------------------------------------------------------- steps

_RANGE = pa.struct(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("first", pa.int64()),
        ("last", pa.int64()), ("count", pa.int32()),
    ]
)  # fmt: skip
_TIME = pa.timestamp("us", "UTC")
STEP_ROWS = pa.schema(
    [
        ("broker", pa.string()), ("step", pa.int64()), ("now", _TIME), ("acked", pa.int64()),
        ("pages", pa.int64()), ("outputs", pa.int64()), ("code", pa.string()),
        ("ranges", pa.list_(_RANGE)), ("sizes", pa.string()), ("parts", pa.string()),
        ("live", pa.string()), ("opened", pa.string()), ("offset", pa.int64()), ("time", _TIME),
    ]
)  # fmt: skip


def step_rows(batch: pa.RecordBatch) -> pa.Table:
    """A row for each step in records of a log of steps."""
    columns = (batch[name].to_pylist() for name in ("topic", "offset", "time", "value"))
    found = (step_row(*one) for one in zip(*columns, strict=True))
    rows = [row for row in found if row is not None]
    try:
        return pa.Table.from_pylist(rows, STEP_ROWS)
    except (pa.ArrowException, OverflowError):  # a foreign record, with numbers out of range
        return pa.Table.from_pylist([row for row in rows if _fits(row)], STEP_ROWS)


def _fits(row: dict[str, Any]) -> bool:
    try:
        pa.RecordBatch.from_pylist([row], STEP_ROWS)
    except (pa.ArrowException, OverflowError):
        return False
    return True


def step_row(topic: str, offset: int, time: Any, value: bytes) -> dict[str, Any] | None:
    """A record of the log as a row of the table; None if the engine did not write it."""
    try:
        record = steplog.decode(value)
    except ValueError:
        return None  # the engine itself refuses such a record
    broker, _, _ = topic.rpartition(".")
    return {
        "broker": broker, "step": record.step, "now": record.now * 1000, "acked": record.acked,
        "pages": record.pages, "outputs": record.outputs, "code": record.code,
        "ranges": [{f.name: getattr(r, f.name) for f in _RANGE} for r in record.ranges],
        "sizes": _json(record.sizes) if record.sizes else None,
        "parts": _json(parts) if any(parts := [r.parts for r in record.ranges]) else None,
        "live": _json(live) if (live := LivePart.of(record)) else None,
        "opened": _json(record.opened) if record.opened else None,
        "offset": offset, "time": time,
    }  # fmt: skip


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
