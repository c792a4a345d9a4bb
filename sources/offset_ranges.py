"""Reads in Python the offsets that a batch of Spark's Kafka source spans.

Spark plans the offsets of a batch, and stores them in its checkpoint. Its own reader would create a
Java row from each record for Python. Instead a worker reads the offsets (`read_ranges`) with the
same library as the brokers' loops. The driver reports the number of records to Spark
(`Scan.count`), so that Spark's progress is right.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pyspark.sql import SparkSession

from ..protocol import topics
from ..protocol.errors import LakequeueError, NotConnected
from .live_reader import consumer_settings
from .same_topic import IDS
from .step_batch import PartitionId

Ranges = Mapping[PartitionId, tuple[int, int]]
"""For each partition the first offset of a batch, -2 for the beginning, and the offset after the
last one."""

Offsets = Mapping[str, Any]  # Spark's form: `{"topic": {"0": 123}}`

BEGINNING = -2
WAIT_S_MAX = 30.0
POLL_S = 0.2
CHUNK_RECORDS = 1_000
AHEAD_KB = 16_000  # records that Kafka's client reads ahead


# ---------------------------------------------------------------- the driver


@dataclass(frozen=True)
class Scan:
    """The offsets that Spark's Kafka source spans in one batch: the first offset of each partition
    (none for a new one), and the one after the last."""

    begins: Mapping[PartitionId, int]
    ends: Mapping[PartitionId, int]
    _rows: Any

    def count(self, records: int) -> None:
        """Report the number of records read to Spark: `numInputRows` of its progress, and its web
        page."""
        self._rows.add(records)


def scan_of(spark: SparkSession, query: str) -> Scan:
    """The current batch of a query; call it from the query's `foreachBatch`. query: its name.
    Raises LakequeueError if no query of this name reads Kafka."""
    found = [q for q in spark.streams.active if q.name == query]
    for one in found:
        execution: Any = one._jsq.streamingQuery().lastExecution()
        leaves = execution.executedPlan().collectLeaves()
        for leaf in (leaves.apply(n) for n in range(leaves.size())):
            if leaf.nodeName() == "MicroBatchScan":
                begin, end = json.loads(leaf.start().json()), json.loads(leaf.end().json())
                rows = leaf.metrics().apply("numOutputRows")
                return Scan(places_of(begin), places_of(end), rows)
    raise LakequeueError(f"query {query!r}: none of its batches reads Kafka")


def places_of(offsets: Offsets) -> dict[PartitionId, int]:
    """Convert Spark's form of offsets to ours."""
    places = {name: partitions for name, partitions in offsets.items() if name != IDS}
    return {(t, int(n)): at for t, partitions in places.items() for n, at in partitions.items()}


# ---------------------------------------------------------------- a worker


def read_ranges(kafka: dict[str, Any], ranges: Ranges) -> Generator[list[Any], None, None]:
    """Read ranges of offsets; yields records in chunks, each partition's in order, as a broker's
    loop gets them: without records that Kafka deleted or a transaction aborted. Waits for the end
    of an open transaction. kafka: the connection settings. Raises NotConnected after 30 s without a
    record.

    Logs of steps are read uncommitted, since their transactions are a fence (`sinks.log_writer`).
    """
    logs = {place: ends for place, ends in ranges.items() if place[0].endswith(f".{topics.STEPS}")}
    rest = {place: ends for place, ends in ranges.items() if place not in logs}
    for some, level in ((rest, "read_committed"), (logs, "read_uncommitted")):
        if some:
            yield from _read(kafka, some, level)


def _read(kafka: dict[str, Any], ranges: Ranges, level: str) -> Iterator[list[Any]]:
    settings = {
        "isolation.level": level, "fetch.wait.max.ms": 10, "queued.max.messages.kbytes": AHEAD_KB
    }  # fmt: skip
    consumer = Consumer(consumer_settings(kafka) | settings)
    left, ended = dict(ranges), set[PartitionId]()
    try:
        consumer.assign([TopicPartition(*place, begin) for place, (begin, _) in ranges.items()])
        until = time.monotonic() + WAIT_S_MAX
        while left:
            first = consumer.poll(POLL_S)
            heard = [] if first is None else [first, *consumer.consume(CHUNK_RECORDS, 0)]
            found = [m for m in heard if _is_wanted(m, left, ended)]
            done = [place for place, (begin, end) in left.items() if begin >= end]
            for place in done:
                del left[place]
            if done and left:
                consumer.pause([TopicPartition(*place) for place in done])
            if found:
                yield found
            if found or done:
                until = time.monotonic() + WAIT_S_MAX
            elif time.monotonic() > until:
                left = {
                    place: (begin, end) for place, (begin, end) in left.items()
                    if (place not in ended or _is_open(consumer, place, end))
                    and _is_there(consumer, place)
                }  # fmt: skip
                if left:
                    raise NotConnected(f"{_some(left)} did not arrive within {WAIT_S_MAX:.0f} s")
    finally:
        consumer.close()


def batch_of(columns: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Build a batch of this schema from columns of plain values."""
    arrays = [pa.array(column, f.type) for column, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _is_wanted(
    message: Any, left: dict[PartitionId, tuple[int, int]], ended: set[PartitionId]
) -> bool:
    """Whether a record belongs to the rest of its partition's range. Also records how far the range
    was read.

    Transaction markers may follow the last record; then the partition's end is the range's end. A
    partition that ends earlier was recreated, and no more records come. A new leader may briefly
    report an earlier end too, so it gets time to correct itself.
    """
    place = message.topic(), message.partition()
    error, at = message.error(), message.offset()
    begin, end = left.get(place, (0, 0))
    if error is not None:
        if error.fatal():
            raise NotConnected(f"topic {place[0]!r} cannot be read: {error.str()}")
        if error.code() == KafkaError._PARTITION_EOF:
            ended.add(place)
            if place in left and at >= end:
                left[place] = at, end
        return False
    if begin >= end or at < begin:
        return False
    left[place] = (at + 1, end)
    return bool(at < end)


def _is_open(consumer: Consumer, place: PartitionId, end: int) -> bool:
    """Whether a partition that ended early has more records after an open transaction."""
    ends = consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
    return bool(ends and ends[1] >= end)


def _is_there(consumer: Consumer, place: PartitionId) -> bool:
    try:
        found = consumer.list_topics(place[0], timeout=WAIT_S_MAX).topics[place[0]]
    except KafkaException as error:
        raise NotConnected(f"topic {place[0]!r} cannot be read: {error}") from error
    return found.error is None and place[1] in found.partitions


def _some(left: dict[PartitionId, tuple[int, int]]) -> str:
    (topic, partition), (begin, end) = next(iter(left.items()))
    return f"the records {begin} to {end - 1} of partition {partition} of topic {topic!r}"
