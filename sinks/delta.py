"""The Delta tables: `messages` (what came in) and `journal` (what happened), exactly once (R1).

One streaming query reads the engine's inputs and its journal topics, and appends to both tables in
each of its batches. What is in a table already is left out, and the table itself says what that is:
the last offset of each partition for `messages`, the last step of each broker for `journal` (both
only grow). So it does not matter whether a batch is tried again, the engine ran a step again and
wrote its journal record twice, or the checkpoint of this query was lost. Delta's own mark for
repeated batches (`txnAppId`) would rebuild the table's snapshot at every append, which takes three
times as long as the append itself.

On a file system of this machine the rows do not go back to Java: the Python worker that has them
writes the files, and Delta commits these (`table_files`, `file_commit`). On an object store, and
for a table that somebody altered, Spark writes them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import time as clock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ..protocol import journal as journal_codec
from ..protocol import topics
from ..protocol.folders import Folder, folder
from ..protocol.wire import STEP
from ..sources.kafka_source import headers_column, meta_column
from .delta_tables import JOURNAL, MESSAGES, ROWS, append, stored_offsets
from .file_commit import FileCommits
from .run_items import run_items
from .run_rows import run_rows, with_run
from .table_files import TableFiles

SAID = "table STRING, said STRING"
BELOW = 5  # what the worker that writes files takes from its priority: nobody waits for it
TIME_MS_END = 253_402_300_799_999  # the end of the year 9999, the last that every reader knows


class TableWriter:
    """The `foreachBatch` function of the tables query. Runs in the driver, one call at a time.

    last: broker and VPN → (step, part) written last; stored: partition → (offset, time) written
    last. Both are read from the tables at start, so they are always what the tables say. Offsets
    are looked at only there: within one run of the query no batch comes twice.
    """

    def __init__(self, spark: SparkSession, tables: Folder | str, on_batch: Callable | None = None):
        self._folder = str(tables)
        self._on_batch = on_batch
        place = folder(str(tables))
        self._local = place if isinstance(place, Path) else None
        local = (MESSAGES, JOURNAL) if self._local is not None else ()
        self._commits = {name: FileCommits(spark, f"{tables}/{name}") for name in local}
        rows = (
            spark.read.format("delta").load(f"{tables}/{JOURNAL}")
            .groupBy("broker", "vpn").agg(f.max(f.struct("step", "part")).alias("last")).collect()
        )  # fmt: skip
        self._last = {(r.broker, r.vpn): (r.last.step, r.last.part) for r in rows}
        # Expressions are made once: PySpark asks the Java process for each function by name.
        journal = f.col("topic").endswith(f".{topics.JOURNAL}")
        known = not_stored(stored_offsets(spark, tables, MESSAGES))
        self._is_journal = journal
        self._is_message = ~journal if known is None else ~journal & known
        self._message = [
            f.col("topic"), f.col("partition"), f.col("offset"), f.col("timestamp").alias("time"),
            f.col("key"), f.col("value"),
            f.make_valid_utf8(meta_column().cast("string")).alias("lq"),
            headers_column().alias("headers"),
        ]  # fmt: skip
        self._record = [
            f.col("key").cast("string").alias("broker"),
            f.expr(
                f"cast(get(filter(headers, h -> h.key = '{STEP}'), 0).value as string)"
            ).alias("step"),
            f.col("topic"), f.col("partition"), f.col("offset"), f.col("value"),
        ]  # fmt: skip
        self._fresh = f.lit(True) if known is None else journal | known

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        if self._local is not None and all(c.possible() for c in self._commits.values()):
            self._as_files(batch, self._local)
        else:
            self._as_rows(batch)
        if self._on_batch is not None:
            self._on_batch(batch_id)

    def _as_files(self, batch: DataFrame, tables: Path) -> None:
        by_day = frozenset(name for name, commits in self._commits.items() if commits.by_day())
        work = _FilesOfABatch(str(tables), by_day, clock(), self._last)
        step = self._record[1]
        records = with_run(batch.where(self._fresh).select(*self._message, step))
        said = records.coalesce(1).mapInArrow(work, SAID).collect()
        added: dict[str, list[dict[str, Any]]] = {MESSAGES: [], JOURNAL: []}
        last = dict(self._last)
        for row in said:
            found = json.loads(row.said)
            if row.table:
                added[row.table].append(found)
            else:
                last |= {(broker, vpn): (step, part) for broker, vpn, step, part in found}
        for name, files in added.items():
            self._commits[name].commit(files)
        self._last = last

    def _as_rows(self, batch: DataFrame) -> None:
        batch.persist()
        try:
            records = batch.where(self._is_message).select(*self._message)
            append(self._folder, MESSAGES, run_rows(records))
            last = dict(self._last)
            journal = self._new_only(batch.where(self._is_journal), last)
            if journal is not None:
                append(self._folder, JOURNAL, journal)
            self._last = last
        finally:
            batch.unpersist()

    def _new_only(
        self, batch: DataFrame, last: dict[tuple[str, str], tuple[int, int]]
    ) -> DataFrame | None:
        """Journal rows of records that are not in the table yet; advances ``last``."""
        named = batch.select(*self._record)
        known = named.drop("value").where("step IS NOT NULL")
        index = known.orderBy("topic", "partition", "offset")
        old: dict[str, list[int]] = {}
        found = 0
        for row in index.collect():
            vpn = topics.split(row.topic)
            at, who = _step(row.step), (row.broker, vpn[0] if vpn else "")
            if at is None or at <= last.get(who, (-1, 0)):
                old.setdefault(row.topic, []).append(row.offset)
            else:
                last[who] = at
                found += 1
        if not found:
            return None
        fresh = named.where("step IS NOT NULL")
        for topic, offsets in old.items():
            fresh = fresh.where((f.col("topic") != topic) | ~f.col("offset").isin(offsets))
        return fresh.select("broker", "step", "value").mapInArrow(_decode, ROWS[JOURNAL])


def not_stored(stored: dict[tuple[str, int], tuple[int, int]]) -> Column | None:
    """Whether a record is not in the table yet; None: there is nothing in it. Times are µs since
    1970: as Python's datetimes they would pass through the machine's time zone.

    A topic that was deleted and made again starts at offset 0 once more; its records are younger.
    """
    if not stored:
        return None
    place = f.concat_ws("/", "topic", "partition")
    offsets: list[Column] = []
    times: list[Column] = []
    for (topic, partition), (offset, time) in sorted(stored.items()):
        name = f.lit(f"{topic}/{partition}")
        offsets += [name, f.lit(offset)]
        times += [name, f.lit(time)]
    last = f.try_element_at(f.create_map(*offsets), place)
    at = f.try_element_at(f.create_map(*times), place)
    return last.isNull() | (f.col("offset") > last) | (f.unix_micros("timestamp") > at)


def _step(text: str) -> tuple[int, int] | None:
    """Step and part of a journal record; None for a record that is not the engine's."""
    number, _, part = text.partition(".")
    return (int(number), int(part)) if number.isdecimal() and part.isdecimal() else None


@dataclass
class _FilesOfABatch:
    """Runs in a Python worker: writes the files of a batch. tables: the folder that holds them;
    by_day: those that are partitioned; last: see `TableWriter`.

    Gives a row for each file, what Delta is to say of it as JSON, and one without a table for what
    stands last in the journal now.
    """

    tables: str
    by_day: frozenset[str]
    now_s: float
    last: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _yield_to_others()
        files = TableFiles(Path(self.tables), self.by_day, self.now_s)
        try:
            for batch in batches:
                is_journal = pc.ends_with(batch["topic"], f".{topics.JOURNAL}")
                messages = batch.filter(pc.invert(is_journal))
                if messages.num_rows:
                    files.add(MESSAGES, _message_rows(messages))
                for rows in self._new_journal(batch.filter(is_journal)):
                    files.add(JOURNAL, rows)
            said = [(table, json.dumps(file)) for table, file in files.close()]
        except BaseException:
            files.discard()
            raise
        last = [[*who, *at] for who, at in self.last.items()]
        said.append(("", json.dumps(last)))
        table, text = (list(column) for column in zip(*said, strict=True))
        yield pa.RecordBatch.from_pydict({"table": table, "said": text})

    def _new_journal(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """The rows of records that are not in the table yet; advances ``last``."""
        columns = (batch[name].to_pylist() for name in ("topic", "key", "step", "value"))
        for topic, key, step, value in zip(*columns, strict=True):
            at = _step(step) if step is not None else None
            vpn = topics.split(topic)
            broker = (key or b"").decode(errors="replace")
            who = broker, vpn[0] if vpn else ""
            if at is not None and at > self.last.get(who, (-1, 0)):
                self.last[who] = at
                if value is not None:
                    yield from map(_as_table, _decode_record(broker, step, value))


def _as_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _message_rows(batch: pa.RecordBatch) -> pa.Table:
    """A row for each message of records."""
    record, item, payload = run_items(batch["value"], batch["run"])
    of_record = batch.select(["topic", "partition", "offset", "time", "key", "lq", "headers"])
    rows = of_record.take(pa.array(record))
    columns = {name: rows[name] for name in ("topic", "partition", "offset")}
    columns["item"] = pa.array(item.astype(np.int32))
    columns |= {"time": rows["time"], "key": rows["key"], "payload": payload}
    return pa.table(columns | {"lq": rows["lq"], "headers": rows["headers"]})


def _yield_to_others() -> None:
    """Once in the life of this worker: it comes behind those for whom somebody waits."""
    global _yields
    if not _yields:
        _yields = True
        with suppress(OSError):
            os.nice(BELOW)


_yields = False


def _decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for broker, step, value in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            yield from _decode_record(broker, step, value)


def _decode_record(broker: str, step: str, value: bytes) -> Iterator[pa.RecordBatch]:
    try:
        table = journal_codec.decode(value)
    except (pa.ArrowInvalid, OSError):
        return  # somebody else wrote to the journal topic
    if table.schema != journal_codec.SCHEMA:
        return
    _, part = _step(step) or (0, 0)
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
    yield from pa.table(columns).combine_chunks().to_batches()


def _timestamps(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Epoch ms as Delta has them."""
    return times.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
