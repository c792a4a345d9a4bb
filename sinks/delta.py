"""The Delta tables: `messages` (what came in) and `journal` (what happened), exactly once (R1).

One streaming query reads the engine's inputs and its journal topics, and appends to both tables in
each of its batches. What is in a table already is left out, and the table itself says what that is:
the last offset of each partition for `messages`, the last step of each broker for `journal` (both
only grow). So it does not matter whether a batch is tried again, the engine ran a step again and
wrote its journal record twice, or the checkpoint of this query was lost. Delta's own mark for
repeated batches (`txnAppId`) would rebuild the table's snapshot at every append, which takes three
times as long as the append itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ..protocol import journal as journal_codec
from ..protocol import topics
from ..protocol.folders import Folder
from ..protocol.wire import STEP
from ..sources.kafka_source import headers_column, meta_column
from .delta_tables import JOURNAL, MESSAGES, ROWS, append, stored_offsets
from .run_rows import run_rows

TIME_MS_END = 253_402_300_799_999  # the end of the year 9999, the last that every reader knows


class TableWriter:
    """The `foreachBatch` function of the tables query. Runs in the driver, one call at a time.

    last: broker and VPN → (step, part) written last; stored: partition → (offset, time) written
    last. Both are read from the tables at start, so they are always what the tables say. Offsets
    are looked at only there: within one run of the query no batch comes twice.
    """

    def __init__(self, spark: SparkSession, folder: Folder | str, on_batch: Callable | None = None):
        self._folder = str(folder)
        self._on_batch = on_batch
        rows = (
            spark.read.format("delta").load(f"{folder}/{JOURNAL}")
            .groupBy("broker", "vpn").agg(f.max(f.struct("step", "part")).alias("last")).collect()
        )  # fmt: skip
        self._last = {(r.broker, r.vpn): (r.last.step, r.last.part) for r in rows}
        # Expressions are made once: PySpark asks the Java process for each function by name.
        journal = f.col("topic").endswith(f".{topics.JOURNAL}")
        known = not_stored(stored_offsets(spark, folder, MESSAGES))
        self._is_journal = journal
        self._is_message = ~journal if known is None else ~journal & known
        self._message = [
            f.col("topic"), f.col("partition"), f.col("offset"), f.col("timestamp").alias("time"),
            f.col("key"), f.col("value"),
            f.make_valid_utf8(meta_column().cast("string")).alias("lq"),
            headers_column().alias("headers"),
        ]  # fmt: skip
        self._record = [
            f.col("key").cast("string").alias("broker"),
            f.expr(
                f"cast(get(filter(headers, h -> h.key = '{STEP}'), 0).value as string)"
            ).alias("step"),
            f.col("topic"), f.col("partition"), f.col("offset"), f.col("value"),
        ]  # fmt: skip

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        try:
            records = batch.where(self._is_message).select(*self._message)
            append(self._folder, MESSAGES, run_rows(records))
            last = dict(self._last)
            journal = self._new_only(batch.where(self._is_journal), last)
            if journal is not None:
                append(self._folder, JOURNAL, journal)
            self._last = last
        finally:
            batch.unpersist()
        if self._on_batch is not None:
            self._on_batch(batch_id)

    def _new_only(
        self, batch: DataFrame, last: dict[tuple[str, str], tuple[int, int]]
    ) -> DataFrame | None:
        """Journal rows of records that are not in the table yet; advances ``last``."""
        named = batch.select(*self._record)
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
        return fresh.select("broker", "step", "value").mapInArrow(_decode, ROWS[JOURNAL])


def not_stored(stored: dict[tuple[str, int], tuple[int, int]]) -> Column | None:
    """Whether a record is not in the table yet; None: there is nothing in it. Times are µs since
    1970: as Python's datetimes they would pass through the machine's time zone.

    A topic that was deleted and made again starts at offset 0 once more; its records are younger.
    """
    if not stored:
        return None
    place = f.concat_ws("/", "topic", "partition")
    offsets: list[Column] = []
    times: list[Column] = []
    for (topic, partition), (offset, time) in sorted(stored.items()):
        name = f.lit(f"{topic}/{partition}")
        offsets += [name, f.lit(offset)]
        times += [name, f.lit(time)]
    last = f.try_element_at(f.create_map(*offsets), place)
    at = f.try_element_at(f.create_map(*times), place)
    return last.isNull() | (f.col("offset") > last) | (f.unix_micros("timestamp") > at)


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
    _, part = _step(step) or (0, 0)
    n = len(table)
    text = {
        name: table[name].cast(pa.string())
        for name in ("vpn", "queue", "event", "subscription", "reason", "topic")
    }
    ids = table["message_id"].cast(pa.string())
    columns = {
        "broker": pa.repeat(pa.scalar(broker), n),
        "step": table["step"],
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
        "item": table["item"],
        "time": _timestamps(table["time"]),
        "line": pa.array(np.arange(n, dtype=np.int32)),
        "until": _timestamps(pc.min_element_wise(table["until"], TIME_MS_END, skip_nulls=False)),
    }
    yield from pa.table(columns).combine_chunks().to_batches()


def _timestamps(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Epoch ms as Delta has them."""
    return times.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
