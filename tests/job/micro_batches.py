"""Spark's micro-batches in miniature, for `test_spark_jobs.py`: a process that can be killed often.

It drives the reader as Spark does (offsets are logged, then the source hears that the batch before
is done, then the batch runs, then its commit is logged), and writes into a Delta table as Spark's
sink does: a batch is committed with its number as the application's version, and left out if the
table has it. A process is started again within a second or two, where Spark takes ten.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from deltalake import CommitProperties, Transaction
from lakequeue.dataframes import LakequeueDataSource
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

APPLICATION = "micro-batches"
SCHEMA = StructType()
for _names, _kind in (
    ("message_id queue", StringType()),
    ("payload key", BinaryType()),
    ("headers", MapType(StringType(), StringType())),
    ("priority delivery_count", IntegerType()),
    ("redelivered", BooleanType()),
    ("published_at expires_at", TimestampType()),
    ("is_barrier", BooleanType()),
):
    for _name in _names.split():
        SCHEMA.add(_name, _kind)


def put(folder: Path, number: int, value: Any) -> None:
    """Into a log: whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{number}"
    partial.write_text(json.dumps(value))
    os.replace(partial, folder / str(number))


def newest(folder: Path) -> tuple[int, Any]:
    """The last entry of a log; number -1: none."""
    numbers = [int(p.name) for p in folder.glob("[0-9]*")]
    if not numbers:
        return -1, None
    return max(numbers), json.loads((folder / str(max(numbers))).read_text())


def write(table: Path, number: int, batches: list[pa.RecordBatch]) -> None:
    """Add a batch to the table, unless it is there."""
    known = None
    if (table / "_delta_log").is_dir():
        known = deltalake.DeltaTable(table).transaction_version(APPLICATION)
    if known is None or known < number:
        mark = CommitProperties(app_transactions=[Transaction(APPLICATION, number)])
        rows = pa.Table.from_batches(batches)
        deltalake.write_deltalake(table, rows, mode="append", commit_properties=mark)


def run(options: dict[str, str], folder: Path) -> None:
    """For ever."""
    reader = LakequeueDataSource(options).streamReader(SCHEMA)
    offsets, commits = folder / "offsets", folder / "commits"
    number, end = newest(offsets)
    done, _ = newest(commits)
    start = json.loads((offsets / str(done)).read_text()) if done >= 0 else None
    start = start or reader.initialOffset()
    while True:
        if number == done:
            latest = reader.latestOffset(start, ReadAllAvailable())
            if latest == start:
                continue
            number, end = number + 1, latest
            put(offsets, number, end)
            if number:
                reader.commit(start)
        parts = reader.partitions(start, end)
        write(folder / "table", number, [b for part in parts for b in reader.read(part)])
        put(commits, number, {})
        done, start = number, end


if __name__ == "__main__":
    run(json.loads(sys.argv[1]), Path(sys.argv[2]))
