"""The engine's query for one broker, with either trigger.

*real-time*: the operator steps in a loop for the length of a batch (`loop`). *micro-batch*: Spark's
own Kafka source and sink, and a batch is one step or a few. The core is the same, and so is what
clients see; the checkpoints are not: a home belongs to one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .planning import QUERY_SETTINGS
from .spark import settings_set

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

    from ..state import Home
    from .loop import Options

REAL_TIME, MICRO_BATCH = "real-time", "micro-batch"
TRIGGERS = (REAL_TIME, MICRO_BATCH)


def start_loop(
    spark: SparkSession, options: Options, name: str, checkpoint: Path, given: Mapping[str, str]
) -> StreamingQuery:
    """Start a broker's query in real time. given: settings of the user, which win."""
    from .realtime import ENVIRONMENT, loop_rows

    # A part of the key under which Spark keeps idle workers: the broker finds its own again.
    spark.sparkContext.environment[ENVIRONMENT] = options.broker
    try:
        rows = loop_rows(spark, options)
        writer = rows.writeStream.format("noop").outputMode("append")
        return _start(spark, writer, name, checkpoint, given)
    finally:
        del spark.sparkContext.environment[ENVIRONMENT]


def start_batches(
    spark: SparkSession,
    bootstrap: str,
    home: Home,
    vpns: list[str],
    captured: list[str],
    partitions: dict[str, int],
    records_per_batch: int,
    name: str,
    checkpoint: Path,
    given: Mapping[str, str],
) -> StreamingQuery:
    """Start a broker's query in micro-batches."""
    from ..sinks.kafka_sink import OUTPUT_SCHEMA, write_kafka
    from ..sources import kafka_source as source
    from .processor import BrokerProcessor

    commands_in = source.read_stream(spark, bootstrap, source.commands_topics(vpns))
    publishes = source.read_stream(
        spark, bootstrap, source.publish_topics(vpns, captured), records_per_batch
    )
    rows = source.input_rows(commands_in, publishes, home.name)
    outputs = rows.coalesce(1).groupBy("broker").transformWithStateInPandas(
        BrokerProcessor({home.name: home}, partitions), OUTPUT_SCHEMA, "append", "None"
    )
    return _start(spark, write_kafka(outputs, bootstrap), name, checkpoint, given)


def _start(
    spark: SparkSession,
    writer: DataStreamWriter,
    name: str,
    checkpoint: Path,
    given: Mapping[str, str],
) -> StreamingQuery:
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", "engine")
    try:
        with settings_set(spark, {k: v for k, v in QUERY_SETTINGS.items() if k not in given}):
            named = writer.queryName(name).option("checkpointLocation", str(checkpoint))
            return named.start()
    finally:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", "tables")
