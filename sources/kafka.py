"""Where input comes from: which topics are read, how, and a Kafka row as a flat row.

Two Kafka sources make the input. Commands are taken whole in every batch: acks never wait behind
publishes, and definitions come before the messages that they are for. Publishes are taken up to a
limit, so that a batch stays small however much has piled up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ..protocol import topics
from ..protocol.messages import HEADER
from ..state.definition import is_regex
from .records import BLOCK_SCHEMA, pack

RECORDS_PER_BATCH = 20_000
_NOT_OURS = "|".join(k for k in topics.OWN if k != topics.PUBLISH)


def publish_pattern(vpns: Iterable[str], captured: Iterable[str]) -> str:
    """The topics that messages come from, as one Java regular expression.

    The VPNs' publish topics and what queues capture (Q2), never the engine's own output.
    """
    own = [re.escape(topics.topic(vpn, topics.PUBLISH)) for vpn in sorted(vpns)]
    other = [t if is_regex(t) else re.escape(t) for t in sorted(set(captured))]
    any_of = "|".join(f"(?:{p})" for p in own + other)
    return rf"^(?!__)(?!.*\.(?:{_NOT_OURS})$)(?:{any_of})$"


def commands_pattern(vpns: Iterable[str]) -> str:
    """The commands topics of the VPNs."""
    own = "|".join(re.escape(topics.topic(vpn, topics.COMMANDS)) for vpn in sorted(vpns))
    return rf"^(?:{own})$"


def journal_pattern(vpns: Iterable[str]) -> str:
    """The journal topics of the VPNs."""
    own = "|".join(re.escape(topics.topic(vpn, topics.JOURNAL)) for vpn in sorted(vpns))
    return rf"^(?:{own})$"


def read_stream(
    spark: SparkSession, bootstrap: str, pattern: str, records_per_batch: int | None = None
) -> DataFrame:
    """A stream of Kafka records with headers, from the beginning of each topic."""
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribePattern", pattern)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "false")
        .option("kafka.metadata.max.age.ms", "2000")
        .option("kafka.max.partition.fetch.bytes", str(16_000_000))
        .option("kafka.fetch.max.bytes", str(64_000_000))
    )
    if records_per_batch:
        reader = reader.option("maxOffsetsPerTrigger", str(records_per_batch))
    return reader.load()


def meta_column() -> Column:
    """The value of the header `lq`, or null."""
    return f.expr(f"filter(headers, h -> h.key = '{HEADER}')[0].value")


def headers_column() -> Column:
    """The application's headers as JSON text (values base64), or null where there are none."""
    return f.expr(
        f"CASE WHEN headers IS NULL THEN NULL "
        f"WHEN exists(headers, h -> h.key != '{HEADER}') "
        f"THEN to_json(filter(headers, h -> h.key != '{HEADER}')) END"
    )


def input_blocks(stream: DataFrame, broker: str) -> DataFrame:
    """Kafka records as flat rows with the batch's time, packed into blocks."""
    rows = stream.select(
        f.lit(broker).alias("broker"),
        f.col("topic"),
        f.col("partition"),
        f.col("offset"),
        f.expr("unix_millis(timestamp)").alias("timestamp"),
        f.col("key"),
        f.col("value"),
        meta_column().alias("meta"),
        headers_column().alias("headers"),
        f.expr("unix_millis(current_timestamp())").alias("now"),
    )
    return rows.mapInArrow(pack, BLOCK_SCHEMA)
