"""Rows of the job's input as the step's batch: columns, sorted into their one fixed order."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from ..protocol import topics
from ..protocol.messages import Records
from ..state import Batch

COLUMNS = ("topics", "partitions", "offsets", "timestamps", "keys", "values", "metas", "headers")
_NAMES = ("topic", "partition", "offset", "timestamp", "key", "value", "meta", "headers")


def to_batch(frames: Iterable[pd.DataFrame]) -> tuple[Batch, int]:
    """The batch of a broker, and its time (epoch ms). Spark gives the rows in no order."""
    parts: dict[str, list] = {name: [] for name in _NAMES}
    now = 0
    for frame in frames:
        if not now and len(frame):
            now = int(frame["now"].iloc[0])
        for name in _NAMES:
            parts[name].append(frame[name].to_numpy())
    columns = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    names, codes = np.unique(columns["topic"].astype(str), return_inverse=True)
    order = np.lexsort((columns["offset"], columns["partition"], codes))
    is_command = np.array([_is_command(name) for name in names], bool)[codes[order]]
    batch = Batch(
        commands=_records(columns, order[is_command]),
        publishes=_records(columns, order[~is_command]),
    )
    return batch, now


def _is_command(name: str) -> bool:
    own = topics.split(name)
    return own is not None and own[1] == topics.COMMANDS


def _records(columns: dict[str, np.ndarray], order: np.ndarray) -> Records:
    return Records(*(columns[name][order].tolist() for name in _NAMES))
