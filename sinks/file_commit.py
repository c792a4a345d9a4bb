"""Adds Parquet files that are there already to a Delta table, as one commit of Delta's own (R1).

Not every table can be added to in this way: what Delta checks or computes for each row when Spark
appends, nobody would. Tables as we make them ask for nothing of the kind; whoever altered one has
raised its protocol's version, and Spark's append writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pyspark.sql import SparkSession

from ..protocol.table_format import DATE

WRITER_VERSION = 2  # the last of Delta's that asks nothing of rows that our tables could break


class FileCommits:
    """Of one Delta table. place: its folder, as Spark takes it."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        delta = jvm.org.apache.spark.sql.delta
        self._log = delta.DeltaLog.forTable(spark._jsparkSession, place)
        self._from_json = getattr(getattr(delta.actions, "Action$"), "MODULE$").fromJson
        none = jvm.scala.Option.empty()
        append = jvm.org.apache.spark.sql.SaveMode.Append
        self._operation = delta.DeltaOperations.Write(append, *[none] * 8)

    def possible(self) -> bool:
        """Whether files may be added to the table as it was last seen."""
        protocol = self._log.unsafeVolatileSnapshot().protocol()
        return bool(protocol.minWriterVersion() <= WRITER_VERSION)

    def by_day(self) -> bool:
        """Whether the table is partitioned by day."""
        columns = self._log.unsafeVolatileSnapshot().metadata().partitionColumns()
        return bool(columns.contains(DATE))

    def commit(self, files: Iterable[dict[str, Any]]) -> None:
        """Add files, each said as Delta's protocol has it (`add`)."""
        actions = self._jvm.java.util.ArrayList()
        for file in files:
            actions.add(self._from_json(json.dumps({"add": file})))
        if actions.size():
            sequence = self._jvm.PythonUtils.toSeq(actions)
            self._log.startTransaction().commit(sequence, self._operation)
