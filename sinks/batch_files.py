"""A batch of `messages` and `journal` in a Python worker, which reads it and writes files (R1).

No row goes through Java: the worker reads the offsets that Spark planned (`offset_ranges`), takes
runs apart by offsets over the same bytes (`run_items`), decodes the journal, leaves out what is
there already, and writes Parquet with Arrow (`table_files`). The driver gives Delta what it says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..protocol import journal as journal_codec
from ..protocol import topics
from ..protocol.table_format import JOURNAL, MESSAGES
from ..sources.offset_ranges import Ranges, read_ranges
from ..sources.step_batch import PartitionId
from .kafka_records import TIME_MS_END, records_of
from .run_items import run_items
from .table_files import TableFiles

BELOW = 5  # what the worker takes from its priority: nobody waits for it
Last = dict[tuple[str, str], tuple[int, int]]
Stored = dict[PartitionId, tuple[int, int]]


@dataclass
class BatchFiles:
    """Runs in a Python worker: writes the files of a batch. tables: the folder that holds them;
    by_day: those that are partitioned; last: see `delta.TableWriter`; stored: see `TopicsRead`;
    kafka, ranges, ids: how Kafka is reached, what is read, and of which topics.

    Gives a row for each file, its table and what Delta is to say of it as JSON, and one without a
    table: how many records were read, and what stands last in the journal now.
    """

    tables: str
    by_day: frozenset[str]
    now_s: float
    last: Last = field(default_factory=dict)
    stored: Stored = field(default_factory=dict)
    kafka: dict[str, Any] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def __call__(self, rows: Iterable[Any]) -> Iterator[tuple[str, str]]:
        """rows: what Spark gives the task. It says nothing, and a worker that leaves some of it
        unread ends with the task."""
        list(rows)
        _yield_to_others()
        found = read_ranges(self.kafka, self.ranges)
        return iter(self.write(records_of(some, self.ids) for some in found))

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[tuple[str, str]]:
        """Write the files of such records (`RECORDS`)."""
        files = TableFiles(Path(self.tables), self.by_day, self.now_s)
        read = 0
        try:
            for batch in batches:
                read += batch.num_rows
                is_journal = pc.ends_with(batch["topic"], f".{topics.JOURNAL}")
                messages = self._new_messages(batch.filter(pc.invert(is_journal)))
                if messages.num_rows:
                    files.add(MESSAGES, message_rows(messages))
                for rows in self._new_journal(batch.filter(is_journal)):
                    files.add(JOURNAL, rows)
            said = [(table, json.dumps(file)) for table, file in files.close()]
        except BaseException:
            files.discard()
            raise
        last = [[*who, *at] for who, at in self.last.items()]
        return [*said, ("", json.dumps([read, last]))]

    def _new_messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those that are not in the table yet."""
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
        """The rows of records that are not in the table yet; advances ``last``."""
        columns = (batch[name].to_pylist() for name in ("topic", "key", "step", "value"))
        for topic, key, step, value in zip(*columns, strict=True):
            at = step_of(step) if step is not None else None
            vpn = topics.split(topic)
            broker = (key or b"").decode(errors="replace")
            who = broker, vpn[0] if vpn else ""
            if at is not None and at > self.last.get(who, (-1, 0)):
                self.last[who] = at
                if value is not None:
                    yield from map(_as_table, journal_rows(broker, step, value))


def _as_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _yield_to_others() -> None:
    """Once in the life of this worker: it comes behind those for whom somebody waits."""
    global _yields
    if not _yields:
        _yields = True
        with suppress(OSError):
            os.nice(BELOW)


_yields = False


# ---------------------------------------------------------------- records


def message_rows(batch: pa.RecordBatch) -> pa.Table:
    """A row for each message of records."""
    record, item, payload = run_items(batch["value"], batch["run"])
    of_record = batch.select(
        ["topic", "partition", "offset", "time", "key", "lq", "headers", "topic_id"]
    )
    rows = of_record.take(pa.array(record))
    columns = {name: rows[name] for name in ("topic", "partition", "offset")}
    columns["item"] = pa.array(item.astype(np.int32))
    columns |= {"time": rows["time"], "key": rows["key"], "payload": payload}
    return pa.table(columns | {name: rows[name] for name in ("lq", "headers", "topic_id")})


# ---------------------------------------------------------------- the journal


def step_of(text: str) -> tuple[int, int] | None:
    """Step and part of a journal record; None for a record that is not the engine's."""
    number, _, part = text.partition(".")
    return (int(number), int(part)) if number.isdecimal() and part.isdecimal() else None


def journal_rows(broker: str, step: str, value: bytes) -> Iterator[pa.RecordBatch]:
    """The rows of a journal record; none where somebody else wrote it."""
    try:
        table = journal_codec.decode(value)
        yield from [] if table.schema != journal_codec.SCHEMA else _rows(broker, step, table)
    except (pa.ArrowException, OSError):
        return  # also what has our columns, and values in them that nobody can read


def _rows(broker: str, step: str, table: pa.Table) -> list[pa.RecordBatch]:
    _, part = step_of(step) or (0, 0)
    n = len(table)
    text = {
        name: table[name].cast(pa.string())
        for name in ("vpn", "queue", "event", "subscription", "reason", "topic")
    }
    ids = table["message_id"].cast(pa.string())
    columns = {
        "broker": pa.repeat(pa.scalar(broker), n),
        "step": table["step"],
        "part": pa.repeat(pa.scalar(part, pa.int32()), n),
        "vpn": text["vpn"],
        "queue": text["queue"],
        "event": text["event"],
        "message_id": ids,
        "subscription": text["subscription"],
        "reason": text["reason"],
        "deliveries": table["deliveries"],
        "topic": text["topic"],
        "partition": table["partition"],
        "offset": table["offset"],
        "item": table["item"],
        "time": _timestamps(table["time"]),
        "line": pa.array(np.arange(n, dtype=np.int32)),
        "until": _timestamps(pc.min_element_wise(table["until"], TIME_MS_END, skip_nulls=False)),
    }
    return pa.table(columns).combine_chunks().to_batches()


def _timestamps(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Epoch ms as Delta has them."""
    return times.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
