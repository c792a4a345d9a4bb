"""Rows of the job's input as the step's batch: columns, in their one fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from ..protocol.messages import Records
from ..state import Batch
from .step_batch import goes_first, in_order

_NAMES = ("topic", "partition", "offset", "timestamp", "key", "value", "meta", "headers")


def to_batch(frames: Iterable[pd.DataFrame]) -> tuple[Batch, int]:
    """The batch of a broker, and its time (epoch ms).

    Spark gives the rows in no order; commands and publishes are each sorted by topic, partition,
    offset, the engine's instructions first.
    """
    parts = list(frames)
    columns = {name: np.concatenate([frame[name].to_numpy() for frame in parts]) for name in _NAMES}
    found, codes = np.unique(columns["topic"].astype(str), return_inverse=True)
    names = sorted(found, key=in_order)
    codes = np.searchsorted(found, names).argsort()[codes]
    order = np.lexsort((columns["offset"], columns["partition"], codes))
    first = np.array([goes_first(name) for name in names], bool)[codes[order]]
    batch = Batch(
        commands=_records(columns, order[first]),
        publishes=_records(columns, order[~first]),
    )
    return batch, int(parts[0]["now"].iloc[0])


def in_parts(batch: Batch, bytes_max: int, rows_max: int) -> Iterator[Batch]:
    """The same in steps of at most so many records and bytes (one record may be larger), commands
    and messages each. Commands come first: acks make room, and messages need definitions.
    """
    commands = list(_cut(batch.commands, bytes_max, rows_max))
    publishes = list(_cut(batch.publishes, bytes_max, rows_max))
    for part in commands[:-1]:
        yield Batch(commands=part)
    yield Batch(commands[-1], publishes[0])
    for part in publishes[1:]:
        yield Batch(publishes=part)


def _cut(records: Records, bytes_max: int, rows_max: int) -> Iterator[Records]:
    start = size = 0
    for i, value in enumerate(records.values):
        one = len(value or b"") + len(records.keys[i] or b"") + len(records.headers[i] or "")
        if i > start and (size + one > bytes_max or i - start >= rows_max):
            yield _slice(records, start, i)
            start, size = i, 0
        size += one
    yield _slice(records, start, len(records))


def _slice(records: Records, start: int, stop: int) -> Records:
    if start == 0 and stop == len(records):
        return records
    return Records(*(getattr(records, name)[start:stop] for name in Records.__slots__))


def _records(columns: dict[str, np.ndarray], order: np.ndarray) -> Records:
    return Records(*(columns[name][order].tolist() for name in _NAMES))
