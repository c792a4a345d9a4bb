"""Records of Kafka as rows, read where nothing that somebody wrote can end a query (R1).

Anybody may write to the topics that the tables are made of: times in nanoseconds, headers whose
names are no text, values of any bytes. Spark's own reader ends its query at some of them, at each
start again. So Spark plans what a batch takes (`offset_ranges`), and a Python worker reads it, with
the same library as the brokers' loops, and makes columns of it that every reader knows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ..protocol.messages import RUN_MAX, count_of
from ..protocol.wire import STEP, headers_json
from ..sources.offset_ranges import Ranges, read_ranges
from ..sources.step_batch import header_columns

# Whole years, the first and the last that every reader of a timestamp knows: 1 and 9999.
TIME_MS_BEGIN, TIME_MS_END = -62_135_596_800_000, 253_402_300_799_999
RECORDS = pa.schema(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
        ("time", pa.timestamp("us", "UTC")), ("key", pa.binary()), ("value", pa.binary()),
        ("lq", pa.string()), ("headers", pa.string()), ("run", pa.int32()), ("step", pa.string()),
        ("topic_id", pa.string()),
    ]
)  # fmt: skip
"""Of a Kafka record: `lq`, the header of that name; `headers`, the others as JSON; `run`, how many
messages it holds, null where it says of no run, 0 where it is none; `step`, of a journal record;
`topic_id`, Kafka's id of its topic, null where it gives none."""


def records_of(messages: list[Any], ids: Mapping[str, str]) -> pa.RecordBatch:
    """Messages of Kafka's client as columns (`RECORDS`). ids: of their topics."""
    metas, rests, steps, runs = [], [], [], []
    keys, values = [m.key() for m in messages], [m.value() for m in messages]
    for m, key, value in zip(messages, keys, values, strict=True):
        meta, rest, headers = header_columns(m)
        if meta is not None and not _is_text(meta):  # as it is it stands among the others
            meta, rest = None, headers_json([(k, v or b"") for k, v in headers])
        step = None if rest is None else next((v for k, v in headers if k == STEP), None)
        metas.append(None if meta is None else meta.decode())
        rests.append(rest)
        steps.append(None if step is None else step.decode(errors="replace"))
        runs.append(run_of(meta, value) if key is None and rest is None else None)
    said = np.array([m.timestamp()[1] for m in messages], np.int64)
    times = np.clip(said, TIME_MS_BEGIN, TIME_MS_END)
    columns = [
        pa.array([m.topic() for m in messages]),
        pa.array([m.partition() for m in messages], pa.int32()),
        pa.array([m.offset() for m in messages], pa.int64()),
        pa.array(times * 1000).cast(RECORDS.field("time").type),
        pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array(metas, pa.string()),
        pa.array(rests, pa.string()), pa.array(runs, pa.int32()), pa.array(steps, pa.string()),
        pa.array([ids.get(m.topic()) or None for m in messages], pa.string()),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=RECORDS)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def run_of(meta: bytes | None, value: bytes | None) -> int | None:
    """How many messages a record holds, by its header `lq`; None: it says of no run; 0: it is none,
    whatever that says (`protocol.messages.decode_run`)."""
    if meta is None or b'"count"' not in meta:
        return None
    count = count_of(meta)
    if not count:
        return None
    if value is None or not 1 <= count <= min(RUN_MAX, len(value) // 4):
        return 0
    ends = struct.unpack_from(f">{count}I", value)
    is_one = ends[-1] == len(value) - 4 * count and list(ends) == sorted(ends)
    return count if is_one else 0


# ---------------------------------------------------------------- for Spark

_COLUMNS = (
    "topic STRING, `partition` INT, `offset` LONG, time TIMESTAMP, key BINARY, value BINARY, "
    "lq STRING, headers STRING, run INT, step STRING, topic_id STRING"
)


def records_frame(
    spark: SparkSession, kafka: dict[str, Any], ranges: Ranges, ids: Mapping[str, str]
) -> DataFrame:
    """The records of these offsets (`RECORDS`), read by a worker each time that it is carried
    out. kafka: how that is reached; ids: of their topics."""

    def read(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        list(rows)  # who leaves some of it unread ends the worker
        yield from (records_of(some, ids) for some in read_ranges(kafka, ranges))

    return spark.range(0, 1, 1, 1).mapInArrow(read, _COLUMNS)
