"""Writes Kafka's records into the Delta tables, exactly once (R1).

Two streaming queries call a `TableWriter` for each of their batches:

    tables query     publish topics, journal          ─▶ `messages`, `journal`
    history query    commands, mesh, logs of steps    ─▶ `commands`, `steps`, then `snapshots`

The history query is slower (`lakequeue.history_interval_s`): each heartbeat is a command and a
step, and an idle engine must not commit to Delta every few seconds. From its tables any past moment
can be rebuilt: a step is a pure function, `messages` and `commands` are its inputs, and `steps`
records which inputs each step read, and when. Snapshots shorten the replay.

A batch runs in three stages. Spark plans the offsets. A Python worker reads them and writes Parquet
files (`table_batch`). The driver commits the files with Delta's own Java code, so that one process
writes a table's log: upkeep and snapshots run in Spark, too (decision 0019).

Records that a table already has are omitted. The table itself identifies them: it has the last
offset of each partition and the last step of each broker, and both only grow. So repeated batches,
repeated journal records and a lost checkpoint do no harm. Delta's own mark for repeated batches
(`txnAppId`) costs three times as much as the append.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ..protocol.folders import Folder, folder
from ..protocol.table_format import COMMANDS, JOURNAL, MESSAGES, SNAPSHOTS, STEPS
from ..sources.offset_ranges import scan_of
from ..sources.same_topic import TopicsNow
from .delta_tables import create_tables, holds_nothing, stored_rows
from .table_batch import TableBatch
from .topics_read import TopicsRead

WRITER_VERSION = 2  # up to this version Delta's protocol has no rule that our rows could break
STORE_PREFIX = "AWS_"  # of the variables that configure an object store
_PATTERN = re.compile(r"[\\*?{}\[\]]")  # Spark takes a path with these for a pattern


class TableWriter:
    """The `foreachBatch` function of a table query. Runs in the driver, one call at a time.

    query: the query's name. kafka: a worker's settings for Kafka. on_back: see `TopicsRead`.
    history: which tables, see above.

    The writer reads what the tables contain when it is created, so every start begins with their
    real contents.
    """

    def __init__(
        self, spark: SparkSession, tables: Folder | str, query: str, kafka: dict[str, Any],
        on_back: Callable[[str, int], None], history: bool = False,
    ) -> None:  # fmt: skip
        self._spark, self._folder, self._query = spark, str(tables), query
        self._kafka, self._history = kafka, history
        names = (COMMANDS, STEPS) if history else (MESSAGES, JOURNAL)
        self._tables = {name: _FilesTable(spark, f"{tables}/{name}") for name in names}
        self._last: dict[tuple[str, str], tuple[int, int]] = {}
        if history:
            stored = stored_rows(spark, tables, STEPS) | stored_rows(spark, tables, COMMANDS)
        else:
            stored = stored_rows(spark, tables, MESSAGES)
            if not holds_nothing(spark, f"{tables}/{JOURNAL}"):
                journal = spark.read.format("delta").load(f"{tables}/{JOURNAL}")
                newest = f.max(f.struct("step", "part")).alias("last")
                rows = journal.groupBy("broker", "vpn").agg(newest).collect()
                self._last = {(r.broker, r.vpn): (r.last.step, r.last.part) for r in rows}
        self._topics = TopicsRead(TopicsNow(kafka), stored, on_back)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """batch: the offsets that Spark planned. The data frame is never computed."""
        scan = scan_of(self._spark, self._query)
        ranges = self._topics.plan(scan)
        takes_files = {name: table.takes_files() for name, table in self._tables.items()}
        work = TableBatch(
            self._folder, time.time(), self._history, dict(self._last),
            self._topics.may_be_stored(ranges), self._kafka, ranges, self._topics.ids,
            {key: value for key, value in os.environ.items() if key.startswith(STORE_PREFIX)},
        )  # fmt: skip
        done = self._spark.sparkContext.parallelize([0], 1).mapPartitions(work).collect()
        files: dict[str, list[dict[str, Any]]] = {name: [] for name in self._tables}
        for name, text in done[:-1]:
            files[name].append(json.loads(text))
        read, last = json.loads(done[-1][1])
        scan.count(read)
        self._topics.read(ranges)
        for name, table in self._tables.items():
            if takes_files[name]:
                table.commit(files[name])
            else:
                table.insert(files[name])
        self._last = {(broker, vpn): (step, part) for broker, vpn, step, part in last}


def history_writer(
    spark: SparkSession, tables: Folder | str, query: str, kafka: dict[str, Any],
    on_back: Callable[[str, int], None], snapshots: Callable[[], None] | None,
) -> Callable[[DataFrame, int], None]:  # fmt: skip
    """The `foreachBatch` function of the history query.

    snapshots: called after each batch; it writes the snapshots that are due. The first batch
    creates the tables, so that the engine's start does not wait for them.
    """

    @cache
    def writer() -> TableWriter:
        create_tables(spark, tables, (COMMANDS, STEPS, SNAPSHOTS))
        return TableWriter(spark, tables, query, kafka, on_back, history=True)

    def write(batch: DataFrame, batch_id: int) -> None:
        writer()(batch, batch_id)
        if snapshots is not None:
            snapshots()

    return write


class _FilesTable:
    """A Delta table to which files are added, in one commit through Delta's own code.

    Delta checks rows when Spark inserts them, but not the rows of an added file. Tables as we
    create them need no check. If someone altered a table (a constraint, a computed column), its
    protocol version is higher, and Spark inserts the rows of our files.
    """

    def __init__(self, spark: SparkSession, place: str) -> None:
        jvm: Any = spark._jvm
        delta = jvm.org.apache.spark.sql.delta
        self._spark, self._jvm, self._place = spark, jvm, place
        self._log = delta.DeltaLog.forTable(spark._jsparkSession, place)
        self._from_json = getattr(getattr(delta.actions, "Action$"), "MODULE$").fromJson
        none = jvm.scala.Option.empty()
        append = jvm.org.apache.spark.sql.SaveMode.Append
        self._operation = delta.DeltaOperations.Write(append, *[none] * 8)

    def takes_files(self) -> bool:
        """Whether rows need no check, by the newest version of the table that Delta has loaded."""
        protocol = self._log.unsafeVolatileSnapshot().protocol()
        return bool(protocol.minWriterVersion() <= WRITER_VERSION)

    def commit(self, files: Iterable[dict[str, Any]]) -> None:
        """Add files. Each has the fields of an `add` action of Delta's protocol."""
        actions = self._jvm.java.util.ArrayList()
        for file in files:
            actions.add(self._from_json(json.dumps({"add": file})))
        if actions.size():
            sequence = self._jvm.PythonUtils.toSeq(actions)
            self._log.startTransaction().commit(sequence, self._operation)

    def insert(self, files: Iterable[dict[str, Any]]) -> None:
        """Insert the rows of files with Delta's checks, and remove the files."""
        paths = [f"{self._place}/{file['path']}" for file in files]
        if not paths:
            return
        try:
            named = [_PATTERN.sub(r"\\\g<0>", path) for path in paths]
            rows = self._spark.read.option("basePath", self._place).parquet(*named)
            rows.coalesce(1).write.format("delta").mode("append").save(self._place)
        finally:
            for path in paths:
                with suppress(OSError):
                    folder(path).unlink()
