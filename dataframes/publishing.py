"""Rows as messages: `df.write` and `df.writeStream` with `format("lakequeue")` (P1, P2, P6).

A task publishes the rows of its partition as a producer, and returns when all are stored. Spark may
run a task twice: after a failure, speculatively, or with its whole batch after a crash. So the
producer has the same name each time and the n-th row the same sequence number, and the engine
stores it once (P1). This needs the same order of rows each time, which Spark does not promise after
a shuffle. So rows are sorted, by the columns that the user names, then by all.

For a stream, the producer's name contains query and partition, and each batch has higher sequence
numbers. The engine remembers the gaps between the batches' numbers, so every `BATCHES` batches the
name changes.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ..client import connect
from ..protocol import ConfigError, LakequeueError, Problem
from .job_options import WriteOptions

COLUMNS = ("payload", "queue", "key", "headers", "priority", "ttl", "deliver_at")
BATCHES = 100
ROWS_BITS = 40  # for the rows of one partition in one batch
WINDOW = 5_000
FLUSH_S = 300.0
_BATCH, _QUERY = "streaming.sql.batchId", "sql.streaming.queryId"  # Spark's names


class Published(WriterCommitMessage):
    """A task's result: the number of messages that it published."""

    def __init__(self, count: int) -> None:
        self.count = count


class RowPublisher(DataSourceWriter):
    """`df.write`. Some rows of a failed job may have been published. With the option `writeId`,
    writing the same rows again publishes each only once."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        _check(options, schema, overwrite)
        self._options = options
        self._id = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Publish a partition, in the task."""
        name = f"{self._options.connecting.name}-{self._id}-{_task().partitionId()}"
        return Published(publish(self._options, iterator, name, 1))


class RowStreamPublisher(DataSourceStreamWriter):
    """`df.writeStream`: each row of each batch once."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        _check(options, schema, overwrite)
        self._options = options

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Publish a partition, in the task."""
        task = _task()
        batch, query = task.getLocalProperty(_BATCH), task.getLocalProperty(_QUERY)
        if batch is None or query is None:
            raise LakequeueError("Spark names no query or batch for this task; use writeStream")
        turn, place = divmod(int(batch), BATCHES)
        name = f"{self._options.connecting.name}-{query}-{task.partitionId()}-{turn}"
        return Published(publish(self._options, iterator, name, (place << ROWS_BITS) + 1))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: the batch is published."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The batch failed. Messages that it published stay; when it runs again, the engine
        recognizes them as duplicates."""


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise LakequeueError("rows can be written in Spark tasks only")
    return task


def publish(options: WriteOptions, rows: Iterable[Row], name: str, first: int) -> int:
    """Publish the rows of a partition; returns their number, once all are stored. Raises the
    engine's first refusal, which fails the task."""
    where = options.connecting
    given = [row.asDict(recursive=True) for row in rows]
    if not given:
        return 0
    given.sort(key=lambda row: _order(row, options.order))
    with connect(where.url, vpn=where.vpn, client_name=where.name) as connection:
        producer = connection.producer(producer_id=name, first_sequence=first, window=WINDOW)
        sent: list[Future[Any]] = [producer.send_async(**_message(options, r)) for r in given]
        producer.flush(FLUSH_S)
        for one in sent:
            one.result()
    return len(sent)


def _message(options: WriteOptions, row: dict[str, Any]) -> dict[str, Any]:
    destination = row.get("queue") or options.queue
    if not destination:
        raise ConfigError("queue: a row names none, and the option is not set – set one of them")
    if row["payload"] is None:
        raise ConfigError("payload: a row has none – allowed are bytes and text")
    fields = {"destination": destination, "payload": _plain(row["payload"])}
    for name in COLUMNS[2:]:
        if row.get(name) is not None:
            fields[name] = _plain(row[name])
    return fields


def _plain(value: Any) -> Any:
    """Convert a value for a producer. In Python, Spark's times have no zone and are in this
    machine's."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return bytes(value) if isinstance(value, bytearray) else value


def _order(row: dict[str, Any], first: tuple[str, ...]) -> list[tuple[int, Any]]:
    """The sort key of a row."""
    return [_comparable(row[name]) for name in (*first, *sorted(set(row) - set(first)))]


def _comparable(value: Any) -> tuple[int, Any]:
    """A total order of a column's values: nulls first, NaN last, also inside arrays, structs and
    maps, which are compared by their pairs."""
    match value:
        case None:
            return 0, ""
        case float() if math.isnan(value):
            return 2, ""
        case dict():
            return 1, sorted((key, _comparable(one)) for key, one in value.items())
        case list():
            return 1, [_comparable(one) for one in value]
    return 1, _plain(value)


def _check(options: WriteOptions, schema: StructType, overwrite: bool) -> None:
    """Raise ConfigError with all problems of the rows' columns and the options."""
    names = schema.fieldNames()
    allowed = {*COLUMNS, *options.order}
    problems = [
        Problem("", "column", name, f"allowed are {', '.join(COLUMNS)}, and those of orderBy")
        for name in names
        if name not in allowed
    ]
    problems += [
        Problem("", "orderBy", name, f"must be a column: {', '.join(names)}")
        for name in options.order
        if name not in names
    ]
    if "payload" not in names:
        problems.append(Problem("", "column", "payload", "is required: bytes or text"))
    if "queue" not in names and not options.queue:
        problems.append(Problem("", "queue", "", "is required, as an option or as a column"))
    if overwrite:
        problems.append(Problem("", "mode", "overwrite", "messages are added: use append"))
    if problems:
        raise ConfigError(problems)
