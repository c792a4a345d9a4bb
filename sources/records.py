"""Rows of the job's input as the step's batch: columns, in their one fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from ..protocol import topics
from ..protocol.messages import Records
from ..state import Batch

_NAMES = ("topic", "partition", "offset", "timestamp", "key", "value", "meta", "headers")


def to_batch(frames: Iterable[pd.DataFrame]) -> tuple[Batch, int]:
    """The batch of a broker, and its time (epoch ms).

    Spark gives the rows in no order; commands and publishes are each sorted by topic, partition,
    offset.
    """
    parts = list(frames)
    columns = {
        name: np.concatenate([frame[name].to_numpy() for frame in parts]) for name in _NAMES
    }
    names, codes = np.unique(columns["topic"].astype(str), return_inverse=True)
    order = np.lexsort((columns["offset"], columns["partition"], codes))
    is_command = np.array([_is_command(name) for name in names], bool)[codes[order]]
    batch = Batch(
        commands=_records(columns, order[is_command]),
        publishes=_records(columns, order[~is_command]),
    )
    return batch, int(parts[0]["now"].iloc[0])


def in_parts(batch: Batch, bytes_max: int) -> Iterator[Batch]:
    """The same in steps of at most so many bytes of messages (one record may be larger).

    Commands are in the first: acks make room.
    """
    commands, whole = batch.commands, batch.publishes
    start = size = 0
    for i, value in enumerate(whole.values):
        one = len(value or b"") + len(whole.keys[i] or b"") + len(whole.headers[i] or "")
        if i > start and size + one > bytes_max:
            yield Batch(commands, _slice(whole, start, i))
            commands, start, size = Records(), i, 0
        size += one
    yield Batch(commands, _slice(whole, start, len(whole)))


def _slice(records: Records, start: int, stop: int) -> Records:
    if start == 0 and stop == len(records):
        return records
    return Records(*(getattr(records, name)[start:stop] for name in Records.__slots__))


def _is_command(name: str) -> bool:
    own = topics.split(name)
    return own is not None and own[1] == topics.COMMANDS


def _records(columns: dict[str, np.ndarray], order: np.ndarray) -> Records:
    return Records(*(columns[name][order].tolist() for name in _NAMES))
