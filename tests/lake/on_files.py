"""The actions of an engine in memory as the Delta tables that an engine writes: real files, or the
same rows in DuckDB."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
from lakequeue.lake import create_views
from lakequeue.protocol.messages import decode_run
from lakequeue.protocol.table_format import SCHEMA, SCHEMA_VERSION
from lakequeue.protocol.wire import STEP
from lakequeue.sinks.kafka_records import TIME_MS_BEGIN, TIME_MS_END
from lakequeue.sinks.table_batch import journal_rows
from lakequeue.sources.step_batch import goes_first
from rules.harness import Bench

MESSAGES = pa.schema(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
        ("item", pa.int32()), ("time", pa.timestamp("us", "UTC")), ("key", pa.binary()),
        ("payload", pa.binary()), ("lq", pa.string()), ("headers", pa.string()),
        ("topic_id", pa.string()),
    ]
)  # fmt: skip


class Recorded:
    """Everything that an engine reads and writes from here on."""

    def __init__(self, engine: Any, vpns: tuple[str, ...] = ("default",)) -> None:
        self._inboxes = [engine.open_inbox(f"{vpn}.journal") for vpn in vpns]
        self._messages: list[dict[str, Any]] = []
        take = engine._records

        def records(
            topic: str, value: bytes, key: Any, meta: Any, own: Any, when: Any, partition: int
        ) -> Any:
            found = take(topic, value, key, meta, own, when, partition)
            if not goes_first(topic):
                at = partition, found.offsets[0]
                self._note(topic, at, found.timestamps[0], value, key, meta, own)
            return found

        engine._records = records

    def _note(
        self, topic: str, at: tuple[int, int], time: int, value: bytes, key: Any, meta: Any,
        own: Any,
    ) -> None:  # fmt: skip
        partition, offset = at
        count = json.loads(meta or b"{}").get("count", 0)
        payloads = decode_run(value, count) if count else [value]
        time = min(max(time, TIME_MS_BEGIN), TIME_MS_END)  # as the tables' writer does
        for item, payload in enumerate(payloads):
            self._messages.append(
                {
                    "topic": topic, "partition": partition, "offset": offset, "item": item,
                    "time": time * 1000, "key": key, "payload": payload,
                    "lq": None if meta is None else meta.decode(), "headers": own,
                }
            )  # fmt: skip

    def journal(self) -> pa.Table:
        """The rows of the table, decoded as the engine's writer does."""
        batches = [
            batch
            for inbox in self._inboxes
            for record in inbox
            for batch in journal_rows(
                record.key.decode(), dict(record.headers)[STEP].decode(), record.value
            )
        ]
        return pa.Table.from_batches(batches)

    def lake(self) -> duckdb.DuckDBPyConnection:
        """The tables as `open_lake` returns them, without files, whose writing takes most of a
        test's time."""
        lake = duckdb.connect()
        lake.execute("SET TimeZone = 'UTC'")
        for name, rows in self._tables().items():
            lake.register(name, by_day(rows))
        create_views(lake.execute, "duckdb")
        return lake

    def write(self, home: Path) -> Path:
        """Write the tables of a home, with rows in any order, as files may have them. Returns the
        home."""
        for name, rows in self._tables().items():
            write_table(home, name, rows)
        return home

    def _tables(self) -> dict[str, pa.Table]:
        journal = self.journal()
        mixed = random.Random(1).sample(range(len(journal)), len(journal))
        messages = pa.Table.from_pylist(self._messages, MESSAGES)
        return {"messages": messages, "journal": journal.take(mixed)}


def by_day(rows: pa.Table, time: str = "time") -> pa.Table:
    return rows.append_column("date", rows[time].cast(pa.date32()))


class RecordedBench(Bench):
    """An engine in memory whose actions become the tables of a home."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded = Recorded(self.engine)


def write_table(home: Path, name: str, rows: pa.Table) -> None:
    """A table partitioned by day, as the engine writes it."""
    dated = by_day(rows, "now" if name in ("steps", "snapshots") else "time")
    place = home / "tables" / name
    deltalake.write_deltalake(place, dated, mode="overwrite", partition_by="date")
    version = {SCHEMA: str(SCHEMA_VERSION)}
    deltalake.DeltaTable(place).alter.set_table_properties(version, raise_if_not_exists=False)
