"""The Delta tables `commands`, `steps` and `snapshots`: what any moment can be made of again (R1).

The engine is a pure step over stored inputs. `messages` and `commands` are the inputs, `steps` says
which of them each step took and at what time, and `snapshots` saves the way from the first step on.
They have a streaming query of their own, with a longer interval than that of `messages` and
`journal`: clients send heartbeats, each is a command and a step, and an engine that has nothing
else to do shall not commit to Delta every few seconds.

Exactly once is as in `delta`: what is in a table already is left out, by the offsets in the table;
and as there a Python worker reads what Spark planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ..protocol import signing, steplog, topics
from ..protocol.folders import Folder
from ..protocol.steplog import LivePart
from ..protocol.table_format import COMMANDS, ROWS, SNAPSHOTS, STEPS
from ..sources.offset_ranges import scan_of
from .delta import not_stored
from .delta_tables import append, create_tables, stored_rows
from .kafka_records import records_frame
from .topics_read import TopicsRead

_RANGE = pa.struct(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("first", pa.int64()),
        ("last", pa.int64()), ("count", pa.int32()),
    ]
)  # fmt: skip
_TIME = pa.timestamp("us", "UTC")
STEP_ROWS = pa.schema(
    [
        ("broker", pa.string()), ("step", pa.int64()), ("now", _TIME), ("acked", pa.int64()),
        ("pages", pa.int64()), ("outputs", pa.int64()), ("code", pa.string()),
        ("ranges", pa.list_(_RANGE)), ("sizes", pa.string()), ("parts", pa.string()),
        ("live", pa.string()), ("opened", pa.string()), ("offset", pa.int64()), ("time", _TIME),
    ]
)  # fmt: skip


class HistoryWriter:
    """The `foreachBatch` function of the history query. Runs in the driver, one call at a time.

    query, kafka: of which query, by its name, and how a worker reaches Kafka; snapshots: called
    behind each batch, to write a snapshot where one is due. The tables are made with the first
    batch, so that an engine's start does not wait for them.
    """

    def __init__(
        self, spark: SparkSession, folder: Folder | str, query: str, kafka: dict[str, Any],
        snapshots: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._spark, self._folder = spark, str(folder)
        self._query, self._kafka = query, kafka
        self._snapshots = snapshots
        self._open = False

    def _begin(self) -> None:
        create_tables(self._spark, self._folder, (COMMANDS, STEPS, SNAPSHOTS))
        spark, folder, topic = self._spark, self._folder, f.col("topic")
        stored = stored_rows(spark, folder, STEPS) | stored_rows(spark, folder, COMMANDS)
        self._topics = TopicsRead.of(self._kafka, stored)
        self._steps = topic.endswith(f".{topics.STEPS}")
        self._commands = (
            topic.endswith(f".{topics.COMMANDS}")
            | topic.endswith(f".{topics.MESH}")
            | topic.endswith(f".{topics.BRIDGE_IN}")
            | topic.endswith(f".{topics.INSTRUCTIONS}")
        )
        self._command = [
            f.col(n) for n in
            ("topic", "partition", "offset", "time", "key", "value", "headers", "topic_id")
        ]  # fmt: skip
        self._step = [topic, f.col("offset"), f.col("time"), f.col("value")]
        self._open = True

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """batch: what Spark planned; it is not carried out."""
        if not self._open:
            self._begin()
        scan = scan_of(self._spark, self._query)
        ranges = self._topics.plan(scan)
        batch = records_frame(self._spark, self._kafka, ranges, self._topics.ids).persist()
        try:
            scan.count(batch.count())
            self._topics.read(ranges)
            fresh = not_stored(self._topics.may_be_stored(ranges))
            commands = batch.where(self._commands & fresh).select(*self._command)
            append(self._folder, COMMANDS, commands.mapInArrow(_name, ROWS[COMMANDS]))
            steps = batch.where(self._steps & fresh).select(*self._step)
            append(self._folder, STEPS, steps.mapInArrow(_decode, ROWS[STEPS]))
        finally:
            batch.unpersist()
        if self._snapshots is not None:
            self._snapshots()


def _name(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = batch.to_pylist()
        said = [named(row["value"]) for row in rows]
        columns = {name: batch[name] for name in ("topic", "partition", "offset", "time")}
        for n, name in enumerate(("command", "queue")):
            columns[name] = pa.array([one[n] for one in said], pa.string())
        columns |= {name: batch[name] for name in ("key", "value", "headers", "topic_id")}
        yield pa.RecordBatch.from_pydict(columns)


class _Named(msgspec.Struct):
    command: Any = None
    queue: Any = None


_named = msgspec.json.Decoder(_Named).decode


def named(value: bytes | None) -> tuple[str | None, str | None]:
    """The command that a record holds, and the queue that it names; None where it says none."""
    try:
        signed = signing.split(value or b"")
        said = _named((value or b"") if signed is None else signed[3])
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None, None
    command, queue = (v if isinstance(v, str) else None for v in (said.command, said.queue))
    return command, queue


def _decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [row for one in batch.to_pylist() if (row := step_row(**one)) is not None]
        try:
            yield pa.RecordBatch.from_pylist(rows, STEP_ROWS)
        except (pa.ArrowException, OverflowError):  # somebody else's, with numbers out of range
            yield pa.RecordBatch.from_pylist([row for row in rows if _fits(row)], STEP_ROWS)


def _fits(row: dict[str, Any]) -> bool:
    try:
        pa.RecordBatch.from_pylist([row], STEP_ROWS)
    except (pa.ArrowException, OverflowError):
        return False
    return True


def step_row(topic: str, offset: int, time: Any, value: bytes) -> dict[str, Any] | None:
    """A record of the log as a row of the table; None for one that is not the engine's."""
    try:
        record = steplog.decode(value)
    except ValueError:
        return None  # somebody else wrote to the log; the engine itself refuses it
    broker, _, _ = topic.rpartition(".")
    return {
        "broker": broker, "step": record.step, "now": record.now * 1000, "acked": record.acked,
        "pages": record.pages, "outputs": record.outputs, "code": record.code,
        "ranges": [{f.name: getattr(r, f.name) for f in _RANGE} for r in record.ranges],
        "sizes": _json(record.sizes) if record.sizes else None,
        "parts": _json(parts) if any(parts := [r.parts for r in record.ranges]) else None,
        "live": _json(live) if (live := LivePart.of(record)) else None,
        "opened": _json(record.opened) if record.opened else None,
        "offset": offset, "time": time,
    }  # fmt: skip


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
