"""A batch in Spark's processes: planned by the driver, read by a task from a copy."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from lakequeue.dataframes import LakequeueDataSource, delivered
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)
from rules.harness import Bench

SCHEMA = StructType()
for _names, _kind in (
    ("message_id queue", StringType()),
    ("payload key", BinaryType()),
    ("headers", MapType(StringType(), StringType())),
    ("priority delivery_count", IntegerType()),
    ("redelivered", BooleanType()),
    ("published_at expires_at", TimestampType()),
    ("is_barrier", BooleanType()),
):
    for _name in _names.split():
        SCHEMA.add(_name, _kind)
OPTIONS = {"connection": "kafka://x:1", "queue": "orders", "maxMessagesPerBatch": "50"}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """An engine whose deliveries are read from memory."""
    bench = Bench()
    box = bench.engine.open_inbox("default.deliveries")

    def records(_: str, start: Any, last: int) -> Iterator[tuple[bytes, int]]:
        for record in list(box):
            if start.offset <= record.offset <= last and (record.value or b"")[:1] == b"\0":
                yield record.value or b"", record.offset

    monkeypatch.setattr(delivered, "_records", records)
    return bench


def test_the_columns_are_a_messages_fields(bench: Bench) -> None:
    bench.define(max_per_subscription_backlog=100)
    plain = bench.send(b"{}")
    full = bench.send(b"[1]", key=b"k", headers={"h": "ä"}, priority=9, ttl="1h")
    driver: Any = LakequeueDataSource(OPTIONS).streamReader(SCHEMA)
    driver._taker._connection = bench.connection
    assert driver.getDefaultReadLimit() == ReadMaxRows(50)
    start = driver.initialOffset()
    end = driver.latestOffset(start, ReadAllAvailable())
    assert driver.latestOffset(end, ReadMaxRows(50)) == end
    task: Any = cloudpickle.loads(
        cloudpickle.dumps(LakequeueDataSource(OPTIONS).streamReader(SCHEMA))
    )
    parts = cloudpickle.loads(cloudpickle.dumps(driver.partitions(start, end)))
    batches = [batch for part in parts for batch in task.read(part)]
    task.stop()
    first, second = pa.Table.from_batches(batches).to_pylist()
    assert (first["message_id"], second["message_id"]) == (plain, full)
    assert first["payload"] == b"{}"
    assert (first["key"], first["headers"], first["expires_at"]) == (None, [], None)
    assert (second["key"], second["headers"], second["priority"]) == (b"k", [("h", "ä")], 9)
    assert second["expires_at"] - second["published_at"] == timedelta(hours=1)
    assert (second["queue"], second["delivery_count"], second["redelivered"]) == (
        "orders",
        1,
        False,
    )
    assert first["is_barrier"] is False
