"""Kafka records as Arrow columns, whatever their content (R1).

Any client may write to the topics behind the tables: times in nanoseconds, header names that are
not text, values of any bytes. Some of these end a query of Spark's own reader, and end it again at
each restart. So Spark only plans the offsets (`offset_ranges`). A Python worker reads them with the
library that the brokers' loops use, and builds columns that every reader of Delta understands.

A *run* is one record with several messages: the ends of their payloads, then the payloads. So the
bytes of a column of runs are already the bytes of a column of payloads. `run_items` copies nothing
and only computes other offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..protocol.bounds import YEAR_9999_ENDS_MS
from ..protocol.messages import RUN_MAX, count_of
from ..protocol.table_format import NO_RUN
from ..protocol.wire import STEP, headers_json
from ..sources.offset_ranges import batch_of
from ..sources.step_batch import header_columns

# Every reader of timestamps supports the years 1 to 9999.
TIME_MS_BEGIN, TIME_MS_END = -62_135_596_800_000, YEAR_9999_ENDS_MS
RECORDS = pa.schema(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
        ("time", pa.timestamp("us", "UTC")), ("key", pa.binary()), ("value", pa.binary()),
        ("lq", pa.string()), ("headers", pa.string()), ("run", pa.int32()), ("step", pa.string()),
        ("topic_id", pa.string()),
    ]
)  # fmt: skip
"""lq: the header of that name. headers: the other headers, as JSON. run: the number of messages in
the record, see `run_of`. step: of a journal record. topic_id: Kafka's id of the topic, null if
Kafka has none."""

Array = NDArray[Any]
END_BYTES = 4  # the end of a payload in a run: unsigned, big-endian


def records_of(messages: list[Any], ids: Mapping[str, str]) -> pa.RecordBatch:
    """Messages of Kafka's client as columns (`RECORDS`). ids: the topics' ids."""
    metas, rests, steps, runs = [], [], [], []
    keys, values = [m.key() for m in messages], [m.value() for m in messages]
    for m, key, value in zip(messages, keys, values, strict=True):
        meta, rest, headers = header_columns(m)
        if meta is not None and not _is_text(meta):  # keep it, as one of the other headers
            meta, rest = None, headers_json([(k, v or b"") for k, v in headers])
        step = None if rest is None else next((v for k, v in headers if k == STEP), None)
        metas.append(None if meta is None else meta.decode())
        rests.append(rest)
        steps.append(None if step is None else step.decode(errors="replace"))
        runs.append(run_of(meta, value) if key is None and rest is None else None)
    stamps = np.array([m.timestamp()[1] for m in messages], np.int64)
    times = np.clip(stamps, TIME_MS_BEGIN, TIME_MS_END)
    columns = [
        [m.topic() for m in messages], [m.partition() for m in messages],
        [m.offset() for m in messages], times * 1000, keys, values, metas, rests, runs, steps,
        [ids.get(m.topic()) or None for m in messages],
    ]  # fmt: skip
    return batch_of(columns, RECORDS)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def run_of(meta: bytes | None, value: bytes | None) -> int | None:
    """The number of messages in a record, by its header `lq`. None: the header does not claim a
    run. 0: it does, but the value is not a sound run (`protocol.messages.decode_run`)."""
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


def run_items(values: pa.BinaryArray, runs: pa.Int32Array) -> tuple[Array, Array, pa.BinaryArray]:
    """Returns for each message, in order: the number of its record, its index there, its payload.

    values: of the records. runs: see `run_of`; they must be sound. The index is `NO_RUN` for a
    record that claims to be a run but is not.
    """
    n = len(values)
    run = runs.fill_null(0).to_numpy().astype(np.int64)
    counts = np.maximum(run, 1)
    record = np.repeat(np.arange(n), counts)
    first = np.cumsum(counts) - counts
    item = np.arange(len(record)) - first[record]
    item[first[pc.equal(runs, 0).fill_null(False).to_numpy(zero_copy_only=False)]] = NO_RUN
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[values.offset : values.offset + n + 1]
    if not run.any():
        return record, item, values
    data = np.frombuffer(data_buffer, np.uint8)
    begin, head = offsets[:-1].astype(np.int64), END_BYTES * run
    in_run = run[record] > 0
    ends = offsets[1:].astype(np.int64)[record]
    at = (begin[record] + END_BYTES * item)[in_run]
    sizes = np.zeros(len(at), np.int64)
    for byte in range(END_BYTES):
        sizes = sizes << 8 | data[at + byte]
    ends[in_run] = (begin + head)[record[in_run]] + sizes
    # One part before each record's first message is not a message: it has the ends, or is empty.
    place = np.arange(len(record)) + record + 1
    cuts = np.empty(len(record) + n + 1, np.int32)
    cuts[0] = offsets[0]
    cuts[first + np.arange(n) + 1] = begin + head
    cuts[place + 1] = ends
    parts = pa.BinaryArray.from_buffers(
        pa.binary(), len(cuts) - 1, [None, pa.py_buffer(cuts), data_buffer]
    )
    known = values.is_valid().to_numpy(zero_copy_only=False)[record]
    return record, item, parts.take(pa.array(place, mask=~known))
