"""The Delta tables: `messages` (what came in) and `journal` (what happened), exactly once (R1).

One streaming query reads the engine's inputs and its journal topics, and appends to both tables in
each of its batches. What is in a table already is left out, and the table itself says what that is:
the last offset of each partition for `messages` (of each topic of its name, see `topics_read`), the
last step of each broker for `journal` (both only grow). So it does not matter whether a batch is
tried again, the engine ran a step again and wrote its journal record twice, or the checkpoint of
this query was lost. Delta's own mark for repeated batches (`txnAppId`) would rebuild the table's
snapshot at every append, which takes three times as long as the append itself.

Spark plans what a batch takes, and a Python worker reads that from Kafka (`kafka_records`): what
the loops read, so records that a transaction took back are not there. On a file system of this
machine no row goes through Java: the worker writes the files too (`batch_files`), and Delta commits
these (`file_commit`). On an object store, and for a table that somebody altered, Spark writes rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from time import time as clock
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ..protocol import topics
from ..protocol.folders import Folder, folder
from ..protocol.table_format import JOURNAL, MESSAGES, ROWS
from ..sources.offset_ranges import Ranges, Scan, scan_of
from .batch_files import BatchFiles, journal_rows, step_of
from .delta_tables import append, stored_rows
from .file_commit import FileCommits
from .kafka_records import records_frame
from .run_rows import run_rows
from .topics_read import TopicsRead


class TableWriter:
    """The `foreachBatch` function of the tables query. Runs in the driver, one call at a time.

    query, kafka: of which query, by its name, and how a worker reaches Kafka.

    last: broker and VPN → (step, part) written last. It is read from the tables at start, as is
    what `TopicsRead` knows, so they are always what the tables say.
    """

    def __init__(
        self, spark: SparkSession, tables: Folder | str, query: str, kafka: dict[str, Any]
    ) -> None:
        self._spark, self._folder, self._query = spark, str(tables), query
        self._kafka = kafka
        local = (MESSAGES, JOURNAL) if isinstance(folder(self._folder), Path) else ()
        self._commits = {name: FileCommits(spark, f"{tables}/{name}") for name in local}
        rows = (
            spark.read.format("delta").load(f"{tables}/{JOURNAL}")
            .groupBy("broker", "vpn").agg(f.max(f.struct("step", "part")).alias("last")).collect()
        )  # fmt: skip
        self._last = {(r.broker, r.vpn): (r.last.step, r.last.part) for r in rows}
        # Expressions are made once: PySpark asks the Java process for each function by name.
        journal = f.col("topic").endswith(f".{topics.JOURNAL}")
        self._topics = TopicsRead.of(kafka, stored_rows(spark, tables, MESSAGES))
        self._is_journal = journal
        self._message = [
            f.col(name) for name in
            ("topic", "partition", "offset", "time", "key", "value", "lq", "headers", "topic_id")
        ]  # fmt: skip
        self._record = [
            f.col("key").cast("string").alias("broker"), f.col("step"),
            f.col("topic"), f.col("partition"), f.col("offset"), f.col("value"),
        ]  # fmt: skip

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """batch: what Spark planned; it is not carried out."""
        scan = scan_of(self._spark, self._query)
        ranges = self._topics.plan(scan)
        if self._commits and all(c.possible() for c in self._commits.values()):
            self._as_files(scan, ranges)
        else:
            self._as_rows(scan, ranges)

    def _as_files(self, scan: Scan, ranges: Ranges) -> None:
        by_day = frozenset(name for name, commits in self._commits.items() if commits.by_day())
        stored = self._topics.may_be_stored(ranges)
        work = BatchFiles(
            self._folder, by_day, clock(), self._last, stored, self._kafka, ranges, self._topics.ids
        )
        said = self._spark.sparkContext.parallelize([0], 1).mapPartitions(work).collect()
        added: dict[str, list[dict[str, Any]]] = {MESSAGES: [], JOURNAL: []}
        last = dict(self._last)
        for table, text in said:
            found = json.loads(text)
            if table:
                added[table].append(found)
            else:
                read, at = found
                scan.count(read)
                last |= {(broker, vpn): (step, part) for broker, vpn, step, part in at}
        self._topics.read(ranges)
        for name, files in added.items():
            self._commits[name].commit(files)
        self._last = last

    def _as_rows(self, scan: Scan, ranges: Ranges) -> None:
        batch = records_frame(self._spark, self._kafka, ranges, self._topics.ids).persist()
        try:
            scan.count(batch.count())
            self._topics.read(ranges)
            fresh = not_stored(self._topics.may_be_stored(ranges))
            records = batch.where(~self._is_journal & fresh).select(*self._message)
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
            at, who = step_of(row.step), (row.broker, vpn[0] if vpn else "")
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


def not_stored(stored: dict[tuple[str, int], tuple[int, int]]) -> Column:
    """Whether a record is not in the table yet, see `TopicsRead.stored`. Times are µs since 1970:
    as Python's datetimes they would pass through the machine's time zone."""
    if not stored:
        return f.lit(True)
    place = f.concat_ws("/", "topic", "partition")
    offsets: list[Column] = []
    times: list[Column] = []
    for (topic, partition), (offset, time) in sorted(stored.items()):
        name = f.lit(f"{topic}/{partition}")
        offsets += [name, f.lit(offset)]
        times += [name, f.lit(time)]
    last = f.try_element_at(f.create_map(*offsets), place)
    at = f.try_element_at(f.create_map(*times), place)
    return last.isNull() | (f.col("offset") > last) | (f.unix_micros("time") > at)


def _decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for broker, step, value in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            yield from journal_rows(broker, step, value)
