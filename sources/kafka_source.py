"""Spark's input from Kafka: the topics that each query reads, and rows as batches for
micro-batches.

A micro-batch has two sources. Each batch reads all commands: acks never wait behind publishes, and
definitions come before the messages that need them. Publishes are limited, so that a batch stays
small however many are waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ..protocol import topics
from ..protocol.kafka_settings import for_spark, kafka_settings
from ..protocol.mesh_messages import slices
from ..protocol.messages import Records
from ..state import Batch
from .planned_source import COLUMNS, FORMAT, PlannedRecords
from .step_batch import goes_first, in_order

RECORDS_PER_BATCH = 5_000


def publish_topics(vpns: Iterable[str], captured: Iterable[str]) -> list[str]:
    """The topics with messages: the VPNs' publish topics and the existing captured ones (Q2)."""
    return [*_of_each(vpns, topics.PUBLISH), *sorted(captured)]


def tables_topics(vpns: Iterable[str], captured: Iterable[str]) -> list[str]:
    """The topics of `messages` and `journal`."""
    return [*_of_each(vpns, topics.PUBLISH, topics.JOURNAL), *sorted(captured)]


def history_topics(
    vpns: Iterable[str], brokers: Iterable[str], peer_topics: Iterable[str]
) -> list[str]:
    """The topics of `commands` and `steps`: all inputs of brokers besides messages, and the logs of
    steps. A batch is planned up to the end of each topic, because the logs' transactions are a
    fence and stay open for long; `offset_ranges.read_ranges` reads it. peer_topics: see
    `discovery.peer_topics`."""
    logs = _of_each(brokers, topics.STEPS, topics.INSTRUCTIONS)
    return [*_of_each(vpns, topics.COMMANDS), *logs, *sorted(peer_topics)]


def commands_topics(vpns: Iterable[str], broker: str) -> list[str]:
    """A broker's instructions and the VPNs' commands topics."""
    return [topics.topic(broker, topics.INSTRUCTIONS), *_of_each(vpns, topics.COMMANDS)]


def _of_each(owners: Iterable[str], *kinds: str) -> list[str]:
    return [topics.topic(owner, kind) for owner in sorted(owners) for kind in kinds]


def read_stream(
    spark: SparkSession, bootstrap: str, names: Iterable[str],
    records_per_batch: int | None = None, committed: bool = False,
) -> DataFrame:  # fmt: skip
    """A stream of Kafka records with headers, from the beginning of each topic. committed: omit
    records of aborted transactions, and end before the first open one."""
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .options(**for_spark(kafka_settings()))
        .option("subscribe", ",".join(names))  # with a pattern, Spark lists all topics every batch
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "false")
        # Spark's reader waits until a pending fetch returns: with Kafka's default of 500 ms a batch
        # of 100 records takes 567 ms, with 10 ms it takes 82.
        .option("kafka.fetch.max.wait.ms", "1")
        .option("kafka.max.partition.fetch.bytes", str(16_000_000))
        .option("kafka.fetch.max.bytes", str(64_000_000))
    )
    if committed:
        reader = reader.option("kafka.isolation.level", "read_committed")
    if records_per_batch:
        reader = reader.option("maxOffsetsPerTrigger", str(records_per_batch))
    return reader.load()


def read_planned(
    spark: SparkSession, bootstrap: str, names: Iterable[str], records_per_batch: int = 0
) -> DataFrame:
    """Like `read_stream` for micro-batches, with the columns of `planned_source` and committed
    records only."""
    spark.dataSource.register(PlannedRecords)
    options = {
        "bootstrap": bootstrap, "topics": ",".join(names), "most": str(records_per_batch)
    }  # fmt: skip
    return spark.readStream.format(FORMAT).options(**options).load()


def now_column() -> Column:
    """The batch's time, epoch ms. It is inside `transform` on purpose. Otherwise Spark inserts it
    as a constant into the Java code that it generates, and compiles that again for each batch (5 to
    20 ms, and the code cache fills up). Code inside `transform` is not compiled."""
    return f.expr("get(transform(array(current_timestamp()), t -> unix_millis(t)), 0)")


def input_rows(commands: DataFrame, publishes: DataFrame, broker: str) -> DataFrame:
    """Convert records from `read_planned` to the processor's input rows, with the batch's time."""
    rows = commands.unionByName(publishes)
    return rows.select(f.lit(broker).alias("broker"), "*", now_column().alias("now"))


def to_batch(frames: Iterable[pd.DataFrame]) -> tuple[Batch, int]:
    """The batch of a broker, and its time (epoch ms).

    Spark returns the rows in no order; commands and publishes are each sorted by topic, partition,
    offset, the engine's instructions first.
    """
    parts = list(frames)
    columns = {
        name: np.concatenate([frame[name].to_numpy() for frame in parts]) for name in COLUMNS.names
    }
    found, codes = np.unique(columns["topic"].astype(str), return_inverse=True)
    names = sorted(found, key=in_order)
    codes = np.searchsorted(found, names).argsort()[codes]
    order = np.lexsort((columns["offset"], columns["partition"], codes))
    first = np.array([goes_first(name) for name in names], bool)[codes[order]]
    batch = Batch(
        commands=_records(columns, order[first]),
        publishes=_records(columns, order[~first]),
    )
    return batch, int(parts[0]["now"].iloc[0])


def in_parts(batch: Batch, bytes_max: int, rows_max: int) -> Iterator[Batch]:
    """Split a batch into steps with at most this many records and bytes, commands and messages
    each; one record may be larger. Commands come first: acks make room, and messages need
    definitions."""
    commands = _cut(batch.commands, bytes_max, rows_max)
    publishes = _cut(batch.publishes, bytes_max, rows_max)
    for part in commands[:-1]:
        yield Batch(commands=part)
    yield Batch(commands[-1], publishes[0])
    for part in publishes[1:]:
        yield Batch(publishes=part)


def _cut(records: Records, bytes_max: int, rows_max: int) -> list[Records]:
    """Split records into parts, at least one."""
    rows = zip(records.values, records.keys, records.headers, strict=True)
    sizes = [len(value or b"") + len(key or b"") + len(own or "") for value, key, own in rows]
    columns = [getattr(records, name) for name in Records.__struct_fields__]
    parts = slices(sizes, rows_max, bytes_max)
    return [Records(*(column[part] for column in columns)) for part in parts] or [records]


def _records(columns: dict[str, np.ndarray], order: np.ndarray) -> Records:
    return Records(*(columns[name][order].tolist() for name in COLUMNS.names))
