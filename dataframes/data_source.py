"""The Spark format `lakequeue`: its name, its columns, its readers and writers.

Objects of this module are pickled and sent to Spark's Python processes: the driver's reader lives
in one of them as long as the query, and tasks get copies. So only the driver's `QueueTaker` has a
connection, and it is not pickled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ..client import Message
from .delivered import read_part
from .job_options import ReadOptions, read_options, write_options
from .publishing import RowPublisher, RowStreamPublisher
from .taken_batch import BatchPart, TakenBatch
from .taking import QueueTaker

SCHEMA = """
    message_id STRING, queue STRING, payload BINARY, key BINARY, headers MAP<STRING, STRING>,
    priority INT, delivery_count INT, redelivered BOOLEAN, published_at TIMESTAMP,
    expires_at TIMESTAMP, is_barrier BOOLEAN
"""


class LakequeueDataSource(DataSource):
    """Register it with ``spark.dataSource.register(LakequeueDataSource)``. Then
    ``format("lakequeue")`` reads a queue as a stream, and writes rows as messages."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "lakequeue"

    def schema(self) -> str:
        """The columns of a queue. Raises ConfigError for wrong options here, before the query
        runs."""
        read_options(self.options)
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader for `readStream`."""
        return QueueStreamReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer for `write`."""
        return RowPublisher(write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer for `writeStream`."""
        return RowStreamPublisher(write_options(self.options), schema, overwrite)


class QueuePartition(InputPartition):
    """The part of a batch that one task reads."""

    def __init__(self, topic: str, partition: int, part: BatchPart) -> None:
        self.topic = topic
        self.partition = partition
        self.part = part


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A queue as a stream; `taking` explains why each message is read once."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._taker = QueueTaker(options)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema}

    def initialOffset(self) -> dict[str, Any]:
        return TakenBatch(self._options.queue).as_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.most)

    def prepareForTriggerAvailableNow(self) -> None:
        """End after the messages that are in the queue now."""
        self._taker.take_what_is_there()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Take a batch, after acknowledging the previous one."""
        last = TakenBatch.of(start, self._options.queue)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        batch = self._taker.take(last, most)
        return start if batch is last else batch.as_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        batch = TakenBatch.of(end, self._options.queue)
        return [QueuePartition(batch.topic, batch.partition, part) for part in batch.parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a task's rows, in the task."""
        assert isinstance(partition, QueuePartition)
        addresses, queue = self._options.connecting.addresses, self._options.queue
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for messages in read_part(
            addresses, queue, partition.topic, partition.partition, partition.part
        ):
            columns = zip(*map(_row, messages), strict=True)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge the batch, which is done."""
        self._taker.settle(TakenBatch.of(end, self._options.queue))

    def stop(self) -> None:
        """End the consumer with the query. A task's copy has nothing to close."""
        if "_taker" in self.__dict__:
            self._taker.close()


def _row(message: Message) -> tuple[Any, ...]:
    """A row in the order of `SCHEMA`."""
    return (
        message.id, message.queue, message.payload, message.key, list(message.headers.items()),
        message.priority, message.delivery_count, message.redelivered, message.published_at,
        message.expires_at, message.is_barrier,
    )  # fmt: skip
