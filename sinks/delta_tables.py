"""The Delta tables of a home: creating them, adding missing columns, appending rows (R1).

A table's properties have the version of its columns (`protocol/table_format.py`). A table of the
previous version gets the columns that it lacks. A table of a later version is refused, because its
readers could not rely on rows of this version.

A table is partitioned by `date`, the day of its rows. So upkeep joins the files of one day, and
retention deletes whole files instead of rewriting them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from ..protocol import topics
from ..protocol.errors import LakequeueError
from ..protocol.folders import Folder
from ..protocol.table_format import (
    COLUMNS,
    COMMANDS,
    DATE,
    JOURNAL,
    MESSAGES,
    SCHEMA,
    SCHEMA_VERSION,
    SNAPSHOTS,
    STEPS,
    refusal_of,
)

# The column with a row's day. A day out of range becomes the nearest allowed one, so that wrong
# clocks do not create partitions and a batch writes few files.
DAY_OF = {MESSAGES: "time", JOURNAL: "time", COMMANDS: "time", STEPS: "now", SNAPSHOTS: "now"}
DAYS_BACK = 7
DAY_S = 86_400
# Delta keeps minimum and maximum per file only for columns that are used in searches.
SKIPPING = {
    MESSAGES: "topic,partition,offset,time",
    JOURNAL: "step,queue,event,message_id,time",
    COMMANDS: "topic,partition,offset,time,command,queue",
    STEPS: "broker,step,now",
    SNAPSHOTS: "broker,step,page",
}


def create_tables(
    spark: SparkSession, folder: Folder | str, names: Iterable[str] = (MESSAGES, JOURNAL)
) -> None:
    """Create missing tables, and add missing columns to older ones; existing rows have NULL there.
    Raises LakequeueError for a table of an unsupported version, and for a folder that has files but
    is not a table."""
    for name in names:
        path = f"{folder}/{name}"
        table = in_sql(path)
        _remove_empty_log(spark, path)
        there = _version_and_columns(spark, path)
        if there is None:
            spark.sql(
                f"CREATE TABLE IF NOT EXISTS {table} ({COLUMNS[name]}) "
                f"USING delta PARTITIONED BY ({DATE}) "
                f"TBLPROPERTIES ('delta.checkpointInterval' = '100', "
                f"'delta.dataSkippingStatsColumns' = '{SKIPPING[name]}', "
                f"'{SCHEMA}' = '{SCHEMA_VERSION}')"
            )
            there = _version_and_columns(spark, path)
        if there is None:  # Spark does not report a folder that has a log and foreign files
            raise LakequeueError(
                f"The folder {path} has files, but is not a Delta table: move it away, and the "
                "engine creates a new table"
            )
        version, columns = there
        if problem := refusal_of(path, {SCHEMA: version}):
            raise LakequeueError(problem)
        wanted = cast(StructType, StructType.fromDDL(COLUMNS[name]))
        lacks = [c for c in wanted if c.name not in columns]
        if lacks:
            added = ", ".join(f"`{c.name}` {c.dataType.simpleString()}" for c in lacks)
            spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({added})")
        if version != str(SCHEMA_VERSION):
            spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{SCHEMA}' = '{SCHEMA_VERSION}')")


def in_sql(path: str) -> str:
    """A table's name in SQL."""
    return f"delta.`{path.replace('`', '``')}`"


def _newest(spark: SparkSession, path: str) -> Any:
    """A table's newest snapshot, read from Delta's log. Spark SQL would plan a query for each
    lookup, and a start makes a dozen."""
    jvm: Any = spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
    nothing = jvm.scala.Option.empty()
    return log.update(False, nothing, nothing)


def holds_nothing(spark: SparkSession, path: str) -> bool:
    """Whether a table has no rows, according to the checksum of its newest commit."""
    checksum = _newest(spark, path).checksumOpt()
    return bool(checksum.isDefined() and checksum.get().numFiles() == 0)


def _version_and_columns(spark: SparkSession, path: str) -> tuple[str, list[str]] | None:
    """A table's version and columns; None if there is no table."""
    snapshot = _newest(spark, path)
    if snapshot.version() < 0:
        return None
    about = snapshot.metadata()
    version = about.configuration().get(SCHEMA)
    return (version.get() if version.isDefined() else "1"), [*about.schema().fieldNames()]


def _remove_empty_log(spark: SparkSession, path: str) -> None:
    """Remove a log without a commit. A process that is killed while it creates a table leaves one,
    and Delta would neither create nor read a table there."""
    jvm: Any = spark._jvm
    log = jvm.org.apache.hadoop.fs.Path(f"{path}/_delta_log")
    files = log.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    delta = jvm.io.delta.tables.DeltaTable
    if files.exists(log) and not delta.isDeltaTable(spark._jsparkSession, path):
        inside = [file.getPath().getName() for file in files.listStatus(log.getParent())]
        if inside == [log.getName()]:  # a folder with data must not be deleted
            files.delete(log, True)


def append(folder: str, table: str, rows: DataFrame) -> None:
    """Append a data frame to a table, one file per day."""
    dated = rows.withColumn(DATE, _day(DAY_OF[table], time.time()))
    dated.coalesce(1).write.format("delta").mode("append").save(f"{folder}/{table}")


def _day(column: str, now_s: float) -> Column:
    """The day of a timestamp, in UTC: at most `DAYS_BACK` days ago, and not after tomorrow."""
    today = int(now_s // DAY_S)
    day = f"CAST(unix_micros({column}) DIV {DAY_S * 1_000_000} AS INT)"
    return f.expr(f"date_from_unix_date(greatest({today - DAYS_BACK}, least({today + 1}, {day})))")


def stored_rows(
    spark: SparkSession, folder: Folder | str, table: str
) -> dict[tuple[str, int], dict[str, tuple[int, int]]]:
    """The last stored record of each partition in a table, see `topics_read.Rows`."""
    if holds_nothing(spark, f"{folder}/{table}"):
        return {}
    found = spark.read.format("delta").load(f"{folder}/{table}")
    if table == STEPS:  # a row names the broker, not the topic
        topic = f.concat("broker", f.lit(f".{topics.STEPS}"))
        found = found.select(
            topic.alias("topic"), f.lit(0).alias("partition"), "offset", "time",
            f.lit(None).cast("string").alias("topic_id"),
        )  # fmt: skip
    rows = (
        found.groupBy("topic", "partition", "topic_id")
        .agg(f.max("offset").alias("offset"), f.max(f.unix_micros("time")).alias("time"))
        .collect()
    )  # fmt: skip
    stored: dict[tuple[str, int], dict[str, tuple[int, int]]] = {}
    for r in rows:
        stored.setdefault((r.topic, r.partition), {})[r.topic_id or ""] = r.offset, r.time
    return stored
