"""Upkeep of the Delta tables: deletes old rows, and joins small files (R1).

Rows older than the retention are deleted, unless they are still needed:

    queues           all rows since the oldest message in any of them arrived
    `at`, `rebuild`  start with a whole snapshot, so the last one before that time stays, with all
                     steps after it, the rows of `messages` and `commands` that these read, and the
                     payloads that snapshots refer to
    the tables       the last record of each partition, from which the writer continues
    the views        definitions of queues and subscriptions: all events without a message

A broker without such a snapshot keeps everything. OPTIMIZE joins small files. VACUUM deletes files
that left a table some days ago; earlier readers may need newer ones. Delta cleans up its log
itself, by the table's properties.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ..protocol.folders import Folder, folder
from ..protocol.home_places import has_table
from ..protocol.table_format import COMMANDS, JOURNAL, MESSAGES, SNAPSHOTS, STEPS
from ..sources.step_batch import goes_first
from .delta_tables import in_sql

log = logging.getLogger("lakequeue.tables")

# OPTIMIZE leaves files of the minimum size alone, so each upkeep joins only newer files. Deletions
# rewrite files, since readers without Spark do not know deletion vectors. VACUUM lists a table in
# this many tasks; with the default, 10,000, it takes 20 s for an empty table.
SETTINGS = {
    "spark.databricks.delta.delete.deletionVectors.persistent": "false",
    "spark.databricks.delta.optimize.minFileSize": "64000000",
    "spark.databricks.delta.optimize.maxFileSize": "128000000",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}
TOGETHER = 500  # partitions in one statement
NEAR = 10_000  # records; if two that are kept are this near, those between are kept too
_BLOCK = "try_cast(CASE WHEN page LIKE 'b/%' THEN substring(page, 3) END AS BIGINT)"
# Delta requires its log to reach back as far as files that left the table.
_KEPT = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of upkeep. retention_s: the age at which rows are deleted, 0 for never.
    vacuum_hours: the age at which unused files, and entries of Delta's log, are deleted."""

    retention_s: float = 0.0
    vacuum_hours: float = 48.0


class Upkeep:
    """The upkeep of one set of tables. stopped: called between two statements; True ends the
    upkeep."""

    def __init__(
        self, spark: SparkSession, folder: Folder | str, rules: Rules,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._spark = spark.newSession()  # so that its settings affect no other code
        self._folder, self._rules, self._stopped = str(folder), rules, stopped
        for key, value in SETTINGS.items():
            self._spark.conf.set(key, value)

    def run(self, now_s: float, oldest_s: float | None) -> None:
        """Run one upkeep. now_s: epoch s. oldest_s: the arrival of the oldest message in any queue;
        None if there is none."""
        rules = self._rules
        if rules.retention_s:
            before = now_s - rules.retention_s
            if oldest_s is not None and oldest_s < before:
                log.info(
                    "the tables keep rows longer than the retention: a queue has older messages"
                )
                before = oldest_s
            self._delete(before)
        for name in self._there((MESSAGES, JOURNAL, COMMANDS, STEPS, SNAPSHOTS)):
            if self._stopped():
                return
            self._tidy(name)

    # ------------------------------------------------------------ old rows

    def _delete(self, before_s: float) -> None:
        time = f"timestamp_millis({round(before_s * 1000)})"
        own = f"time < {time} AND (message_id IS NOT NULL OR event IN ('rejected', 'discarded'))"
        history = self._there((COMMANDS, STEPS, SNAPSHOTS))
        if len(history) < 3:  # micro-batches have no history
            self._sql(f"DELETE FROM {self._table(JOURNAL)} WHERE {own}")
            self._sql(f"DELETE FROM {self._table(MESSAGES)} WHERE time < {time}")
            return
        bases = self._bases(before_s)
        if not bases:
            return
        taken = self._taken(bases)
        # In this order, a crash between two deletions leaves nothing incomplete.
        for broker, step in sorted(bases.items()):
            whose = f"broker = '{broker}' AND step"
            self._sql(f"DELETE FROM {self._table(STEPS)} WHERE {whose} <= {step}")
            old = f"{whose} < {step}"
            if (block := self._lowest_block(broker, step)) is not None:
                old += f" AND NOT coalesce({_BLOCK} >= {block}, false)"
            self._sql(f"DELETE FROM {self._table(SNAPSHOTS)} WHERE {old}")
        named = self._named()
        for table, first in ((COMMANDS, True), (MESSAGES, False)):
            places = [
                _before(place, end, named.get(place, []))
                for place, end in sorted(taken.items()) if goes_first(place[0]) is first
            ]  # fmt: skip
            for at in range(0, len(places), TOGETHER):
                these = " OR ".join(places[at : at + TOGETHER])
                self._sql(f"DELETE FROM {self._table(table)} WHERE time < {time} AND ({these})")
        self._sql(f"DELETE FROM {self._table(JOURNAL)} WHERE {own}")

    def _bases(self, before_s: float) -> dict[str, int]:
        """The step of the whole snapshot with which each broker's past begins. Empty if a broker
        has no such snapshot, since its steps may have read any record."""
        at = f.timestamp_millis(f.lit(round(before_s * 1000)))
        closed = self._read(SNAPSHOTS).where("page = '' AND whole").where(f.col("now") < at)
        found = {r.broker: r.step for r in closed.groupBy("broker").agg(
            f.max("step").alias("step")).collect()}  # fmt: skip
        known = {r.broker for r in self._read(STEPS).select("broker").distinct().collect()}
        return found if known <= set(found) else {}

    def _lowest_block(self, broker: str, step: int) -> int | None:
        """The first payload block of which this and later snapshots need the value in earlier
        ones."""
        mine = self._read(SNAPSHOTS).where((f.col("broker") == broker) & (f.col("step") >= step))
        named = mine.where("value IS NULL AND refs IS NULL AND crc IS NOT NULL")
        named = named.select(f.expr(_BLOCK).alias("n"))
        row = named.agg(f.min("n").alias("n")).first()
        return None if row is None or row.n is None else int(row.n)

    def _named(self) -> dict[tuple[str, int], list[tuple[int, int]]]:
        """The records of each partition whose payloads snapshots refer to: spans of offsets, with
        near ones joined."""
        refs = self._read(SNAPSHOTS).select(f.explode("refs").alias("r"))
        near = f.expr(f"r.`first` DIV {NEAR}").alias("n")
        spans = refs.groupBy("r.topic", "r.partition", near).agg(
            f.min("r.first").alias("first"), f.max("r.last").alias("last")
        )
        found: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for row in spans.orderBy("topic", "partition", "n").collect():
            theirs = found.setdefault((row.topic, row.partition), [])
            first, last = row["first"], row["last"]
            if theirs and first - theirs[-1][1] <= NEAR:
                first, last = theirs[-1][0], max(theirs.pop()[1], last)
            theirs.append((first, last))
        return found

    def _taken(self, bases: dict[str, int]) -> dict[tuple[str, int], int]:
        """The last record of each partition that these steps read."""
        taken: dict[tuple[str, int], int] = {}
        for broker, step in bases.items():
            steps = self._read(STEPS).where((f.col("broker") == broker) & (f.col("step") <= step))
            ranges = steps.select(f.explode("ranges").alias("r")).groupBy("r.topic", "r.partition")
            for row in ranges.agg(f.max("r.last").alias("last")).collect():
                place = row.topic, row.partition
                taken[place] = max(taken.get(place, -1), row.last)
        return taken

    # ------------------------------------------------------------ files

    def _tidy(self, name: str) -> None:
        table = self._table(name)
        wanted = f"interval {round(self._rules.vacuum_hours * 3600)} seconds"
        properties = {r.key: r.value for r in self._sql(f"SHOW TBLPROPERTIES {table}").collect()}
        if any(properties.get(key) != wanted for key in _KEPT):
            pairs = ", ".join(f"'{key}' = '{wanted}'" for key in _KEPT)
            self._sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({pairs})")
        self._sql(f"OPTIMIZE {table}")
        self._sql(f"VACUUM {table}")

    def _there(self, names: tuple[str, ...]) -> list[str]:
        tables = folder(self._folder)
        return [name for name in names if has_table(tables / name)]

    def _table(self, name: str) -> str:
        return in_sql(f"{self._folder}/{name}")

    def _read(self, name: str) -> DataFrame:
        return self._spark.read.format("delta").load(f"{self._folder}/{name}")

    def _sql(self, text: str) -> DataFrame:
        return self._spark.sql(text)


def _before(place: tuple[str, int], end: int, kept: list[tuple[int, int]]) -> str:
    """A condition for the records of a partition before an offset, except those in the kept
    spans."""
    name = place[0].replace("\\", "\\\\").replace("'", "\\'")
    but = "".join(f" AND NOT `offset` BETWEEN {a} AND {b}" for a, b in kept if a < end)
    return f"(topic = '{name}' AND `partition` = {place[1]} AND `offset` < {end}{but})"
