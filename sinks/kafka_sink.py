"""Writes the micro-batch processor's rows to Kafka, and configures the metrics that Spark
observes."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming import DataStreamWriter

from ..protocol.bounds import RECORD_BYTES_MAX
from ..protocol.kafka_settings import for_spark, kafka_settings

OUTPUT_SCHEMA = "topic STRING, partition INT, key BINARY, value BINARY, headers STRING, note STRING"
OBSERVATION = "engine"
# The size of a batch of records; a larger record is sent alone. If a topic refuses a batch for its
# size, Java's client splits it into parts of exactly this size (kafka-clients 3.9), for ever if the
# topic's limit is lower.
BATCH_BYTES = 65_536
_HEADERS = "array<struct<key:string,value:binary>>"


def write_kafka(rows: DataFrame, bootstrap: str, most: int) -> DataStreamWriter:
    """Write records to their topics. Rows without a topic are notes to the driver: Spark reports
    them with the batch's progress and does not write them. most: the largest batch of records in
    bytes, if a topic does not allow more."""
    observed = rows.observe(OBSERVATION, f.collect_list(f.col("note")).alias("notes"))
    records = observed.where("topic IS NOT NULL").select(
        "topic",
        f.expr("nullif(partition, -1)").alias("partition"),
        "key",
        "value",
        f.from_json("headers", _HEADERS).alias("headers"),
    )
    return (
        records.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .options(**for_spark(kafka_settings()))
        .option("includeHeaders", "true")
        .option("kafka.acks", "all")
        .option("kafka.max.request.size", str(RECORD_BYTES_MAX))
        .option("kafka.batch.size", str(min(BATCH_BYTES, most)))
        .option("kafka.linger.ms", "2")
        .outputMode("append")
    )
