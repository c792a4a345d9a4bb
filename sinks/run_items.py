"""The messages of records as an Arrow column: what `run_rows` says in SQL, a batch at once (R1).

A run is the ends of its payloads and then these, one behind the other, so that the bytes of a
column of runs are already those of a column of payloads: with the parts between them as items of
their own, an array over the same bytes needs nothing but other offsets.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..protocol.table_format import NO_RUN
from .content_references import Array

END_BYTES = 4  # an unsigned number, the highest byte first


def run_items(values: pa.BinaryArray, runs: pa.Int32Array) -> tuple[Array, Array, pa.BinaryArray]:
    """Of each message, in their order: the record it came in, its place there, its payload.

    values: of records; runs: see `kafka_records.RECORDS`; they are taken to be sound. The place is
    `NO_RUN` for a record that says that it is a run and is none.
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
    said = np.zeros(len(at), np.int64)
    for byte in range(END_BYTES):
        said = said << 8 | data[at + byte]
    ends[in_run] = (begin + head)[record[in_run]] + said
    # Before the first message of each record stands what is no message: nothing, or the ends.
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
