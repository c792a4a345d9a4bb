"""The job's input on its way to the step: packed into blocks, and back into columns.

Spark hands rows to a stateful Python operator one by one. So the records of a task are packed first,
column by column, into one Arrow block; the operator gets a few blocks instead of thousands of rows,
and the shuffle between them moves blocks too (`docs/decisions/`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from ..protocol import topics
from ..protocol.messages import Records
from ..state import Batch

BLOCK_SCHEMA = "broker STRING, now LONG, block BINARY"
_NAMES = ("topic", "partition", "offset", "timestamp", "key", "value", "meta", "headers")
_OUT = pa.schema([("broker", pa.string()), ("now", pa.int64()), ("block", pa.binary())])


def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Input rows as blocks: one per Arrow batch. Runs in a Python worker (`mapInArrow`)."""
    for batch in batches:
        if not batch.num_rows:
            continue
        broker, now = batch["broker"][0].as_py(), batch["now"][0].as_py()
        rows = batch.select(list(_NAMES))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows)
        block = sink.getvalue()
        yield pa.record_batch(
            [[broker], [now], pa.array([block.to_pybytes()], pa.binary())], schema=_OUT
        )


def unpack(blocks: Iterable[bytes]) -> Batch:
    """The step's batch: commands and publishes, each by topic, partition, offset. Spark gives
    blocks and rows in no order."""
    table = pa.concat_tables([pa.ipc.open_stream(b).read_all() for b in blocks])
    codes = table["topic"].combine_chunks().dictionary_encode()
    names = codes.dictionary.to_pylist()
    rank = np.argsort(np.argsort(np.array(names)))
    topic = rank[codes.indices.to_numpy()]
    order = np.lexsort((table["offset"].to_numpy(), table["partition"].to_numpy(), topic))
    is_command = np.array([_is_command(name) for name in names], bool)
    commands = is_command[codes.indices.to_numpy()]
    return Batch(
        commands=_records(table, order[commands[order]]),
        publishes=_records(table, order[~commands[order]]),
    )


def _is_command(name: str) -> bool:
    own = topics.split(name)
    return own is not None and own[1] == topics.COMMANDS


def _records(table: pa.Table, order: np.ndarray) -> Records:
    if not len(order):
        return Records()
    if len(order) == len(table) and (np.diff(order) == 1).all():
        part = table
    else:
        part = table.take(pa.array(order))
    return Records(*(part[name].to_pylist() for name in _NAMES))
