"""Starts the streaming queries: one per broker, and two for the Delta tables.

With the trigger *real-time* the operator takes steps in a loop as long as a batch lasts (`loop/`).
With *micro-batch* Spark plans the records of a batch, which is one step or a few. Both run the same
core, and clients see no difference. Their checkpoints differ, so a home keeps its trigger. The
tables have queries of their own, since a commit to Delta takes longer than a delivery may.

Planning is most of Spark's work for a small batch. The plan always has the same shape and its rows
go to Python, so `QUERY_SETTINGS` turns off what has no effect here (decision 0008): code
generation, checks of the plan after each rule and full plans for the web page.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from ...protocol.bounds import RECORD_BYTES_MAX
from ...protocol.folders import Folder
from ...sinks.kafka_sink import OUTPUT_SCHEMA, write_kafka
from ...sources import kafka_source as source
from ...state import Home
from ..loop.loop_options import Options
from ..loop.processor import BrokerProcessor
from ..loop.realtime import loop_rows
from .error_causes import cause_of

TABLES_QUERY = "lakequeue-tables"
HISTORY_QUERY = "lakequeue-history"
# Held while a query starts: it takes a copy of the session's settings, see `_settings_set`.
_starting = threading.Lock()
# The beginning of the loop's error if it must not continue.
_REFUSED = re.compile(r"(?:Refused|Gone): (.+)")


def start_loop(
    spark: SparkSession, options: Options, name: str, checkpoint: Folder, given: Mapping[str, str]
) -> StreamingQuery:
    """Start a broker's query in real time. given: the user's settings, which take precedence."""
    writer = loop_rows(spark, options).writeStream.format("noop").outputMode("append")
    return _start(spark, writer, name, checkpoint, given)


def start_batches(
    spark: SparkSession,
    bootstrap: str,
    home: Home,
    vpns: list[str],
    captured: list[str],
    partitions: dict[str, int],
    limits: dict[str, int],
    records_per_batch: int,
    name: str,
    checkpoint: Folder,
    given: Mapping[str, str],
) -> StreamingQuery:
    """Start a broker's query in micro-batches. limits: the record size of topics that allow less
    than the default."""
    commands_in = source.read_planned(spark, bootstrap, source.commands_topics(vpns, home.name))
    publishes = source.read_planned(
        spark, bootstrap, source.publish_topics(vpns, captured), records_per_batch
    )
    rows = source.input_rows(commands_in, publishes, home.name)
    outputs = (
        rows.coalesce(1)
        .groupBy("broker")
        .transformWithStateInPandas(
            BrokerProcessor(home, partitions, limits), OUTPUT_SCHEMA, "append", "None",
        )
    )  # fmt: skip
    writer = write_kafka(outputs, bootstrap, min(limits.values(), default=RECORD_BYTES_MAX))
    return _start(spark, writer, name, checkpoint, given)


def start_every(
    interval_s: int, stream: DataFrame, writer: Any, name: str, checkpoint: Folder
) -> StreamingQuery:
    """Start a query of tables. writer: the function that writes each batch."""
    named = (
        stream.writeStream.foreachBatch(writer)
        .queryName(name)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=f"{interval_s} seconds")
    )
    with _starting:
        return named.start()


def end_between_batches(query: StreamingQuery | None, wait_s: float) -> None:
    """Stop a query, if it runs, between two batches, or in the middle of one that takes longer than
    ``wait_s``."""
    if query is None or not query.isActive:
        return
    until = time.monotonic() + wait_s
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
        time.sleep(0.01)
    query.stop()


def reason(query: StreamingQuery) -> str:
    """A query's error."""
    return cause_of(query.exception())


def refusal(query: StreamingQuery) -> str:
    """The loop's reason if it ended its query because it must not continue; else empty."""
    found = _REFUSED.search(str(query.exception()))
    return found[1] if found else ""


def _start(
    spark: SparkSession,
    writer: DataStreamWriter,
    name: str,
    checkpoint: Folder,
    given: Mapping[str, str],
) -> StreamingQuery:
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", "engine")
    try:
        named = writer.queryName(name).option("checkpointLocation", str(checkpoint))
        settings = {k: v for k, v in QUERY_SETTINGS.items() if k not in given}
        with _starting, _settings_set(spark, settings):
            return named.start()
    finally:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", "tables")


@contextmanager
def _settings_set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change the session's settings while a query starts, which copies them."""
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


QUERY_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.ui.explainMode": "simple",
}
