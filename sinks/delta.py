"""The Delta tables: `messages` (what came in) and `journal` (what happened), exactly once (R1).

One streaming query reads the engine's inputs and its journal topics, and appends to both tables in
each of its batches. A batch that is tried again is recognised by Delta (`txnAppId`, `txnVersion`).
A step that the engine ran again after a crash wrote its journal record again: the same broker,
step and part; such records are left out, for steps of a broker only grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ..protocol import journal as journal_codec
from ..protocol import topics
from ..protocol.wire import STEP
from ..sources.kafka import headers_column, meta_column

APP = "lakequeue"
MESSAGES, JOURNAL = "messages", "journal"
_JOURNAL_SCHEMA = (
    "broker STRING, step LONG, part INT, vpn STRING, queue STRING, event STRING, "
    "message_id STRING, subscription STRING, reason STRING, deliveries INT, topic STRING, "
    "`partition` INT, `offset` LONG, time TIMESTAMP"
)
_MESSAGES_SCHEMA = (
    "topic STRING, `partition` INT, `offset` LONG, time TIMESTAMP, key BINARY, payload BINARY, "
    "lq STRING, headers STRING"
)
_PROPERTIES = "'delta.checkpointInterval' = '100'"


def create_tables(spark: SparkSession, folder: Path | str) -> None:
    """Create the tables that are not there."""
    for name, schema in ((MESSAGES, _MESSAGES_SCHEMA), (JOURNAL, _JOURNAL_SCHEMA)):
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS delta.`{folder}/{name}` ({schema}) "
            f"USING delta TBLPROPERTIES ({_PROPERTIES})"
        )


class TableWriter:
    """The `foreachBatch` function of the tables query. Runs in the driver, one call at a time.

    last: broker and VPN → (step, part) written last; read from the table at start, so it is
    always what the table says.
    """

    def __init__(self, spark: SparkSession, folder: Path | str, on_batch: Callable | None = None):
        self._folder = str(folder)
        self._on_batch = on_batch
        rows = (
            spark.read.format("delta").load(f"{folder}/{JOURNAL}")
            .groupBy("broker", "vpn").agg(f.max(f.struct("step", "part")).alias("last")).collect()
        )  # fmt: skip
        self._last = {(r.broker, r.vpn): (r.last.step, r.last.part) for r in rows}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        try:
            is_journal = f.col("topic").endswith(f".{topics.JOURNAL}")
            self._append(MESSAGES, self._messages(batch.where(~is_journal)), batch_id)
            last = dict(self._last)
            journal = self._new_only(batch.where(is_journal), last)
            if journal is not None:
                self._append(JOURNAL, journal, batch_id)
            self._last = last
        finally:
            batch.unpersist()
        if self._on_batch is not None:
            self._on_batch(batch_id)

    def _append(self, table: str, rows: DataFrame, batch_id: int) -> None:
        (
            rows.coalesce(1).write.format("delta").mode("append")
            .option("txnAppId", f"{APP}-{table}").option("txnVersion", batch_id)
            .save(f"{self._folder}/{table}")
        )  # fmt: skip

    def _messages(self, batch: DataFrame) -> DataFrame:
        return batch.select(
            "topic", "partition", "offset", f.col("timestamp").alias("time"), "key",
            f.col("value").alias("payload"),
            f.make_valid_utf8(meta_column().cast("string")).alias("lq"),
            headers_column().alias("headers"),
        )  # fmt: skip

    def _new_only(
        self, batch: DataFrame, last: dict[tuple[str, str], tuple[int, int]]
    ) -> DataFrame | None:
        """Journal rows of records that are not in the table yet; advances ``last``."""
        step = f.expr(f"cast(get(filter(headers, h -> h.key = '{STEP}'), 0).value as string)")
        named = batch.select(
            f.col("key").cast("string").alias("broker"), step.alias("step"), "topic", "partition",
            "offset", "value",
        )  # fmt: skip
        known = named.drop("value").where("step IS NOT NULL")
        index = known.orderBy("topic", "partition", "offset")
        old: dict[str, list[int]] = {}
        found = 0
        for row in index.collect():
            vpn = topics.split(row.topic)
            at, who = _step(row.step), (row.broker, vpn[0] if vpn else "")
            if at is None or at <= last.get(who, (-1, 0)):
                old.setdefault(row.topic, []).append(row.offset)
            else:
                last[who] = at
                found += 1
        if not found:
            return None
        fresh = named.where("step IS NOT NULL")
        for topic, offsets in old.items():
            fresh = fresh.where((f.col("topic") != topic) | ~f.col("offset").isin(offsets))
        return fresh.select("broker", "step", "value").mapInArrow(_decode, _JOURNAL_SCHEMA)


def _step(text: str) -> tuple[int, int] | None:
    """Step and part of a journal record; None for a record that is not the engine's."""
    number, _, part = text.partition(".")
    return (int(number), int(part)) if number.isdecimal() and part.isdecimal() else None


def _decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for broker, step, value in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            yield from _decode_record(broker, step, value)


def _decode_record(broker: str, step: str, value: bytes) -> Iterator[pa.RecordBatch]:
    try:
        table = journal_codec.decode(value)
    except (pa.ArrowInvalid, OSError):
        return  # somebody else wrote to the journal topic
    if table.schema != journal_codec.SCHEMA:
        return
    number, part = _step(step) or (0, 0)
    n = len(table)
    text = {
        name: table[name].cast(pa.string())
        for name in ("vpn", "queue", "event", "subscription", "reason", "topic")
    }
    ids = table["message_id"].cast(pa.string())
    columns = {
        "broker": pa.repeat(pa.scalar(broker), n),
        "step": pa.repeat(pa.scalar(number, pa.int64()), n),
        "part": pa.repeat(pa.scalar(part, pa.int32()), n),
        "vpn": text["vpn"],
        "queue": text["queue"],
        "event": text["event"],
        "message_id": ids,
        "subscription": text["subscription"],
        "reason": text["reason"],
        "deliveries": table["deliveries"],
        "topic": text["topic"],
        "partition": table["partition"],
        "offset": table["offset"],
        "time": table["time"].cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
    }
    yield from pa.table(columns).combine_chunks().to_batches()
