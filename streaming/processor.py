"""The stateful operator: a broker per key, a step per batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from ..protocol import wire
from ..protocol.outputs import Alert, Capture, Deadline, Output, RejectedRecord
from ..sources.records import to_batch
from ..state import Home, step
from .store import HandleStore

ROWS_PER_FRAME = 5_000
BYTES_PER_FRAME = 4_000_000  # Kafka writes the first while the next is made
_COLUMNS = ("topic", "partition", "key", "value", "headers", "note")  # as in `sinks.kafka`


class BrokerProcessor(StatefulProcessor):
    """Runs `state.step` for one broker.

    numbers: broker name → number; partitions: the topics that clients may name, with their sizes.
    """

    def __init__(self, numbers: dict[str, int], partitions: dict[str, int]) -> None:
        self._numbers = numbers
        self._partitions = partitions

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark before the first rows of a batch."""
        self._store = HandleStore(handle)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """One batch of one broker."""
        (name,) = key
        batch, now = to_batch(rows)
        try:
            outputs = step(self._store, batch, now, Home(name, self._numbers[name]))
            yield from _frames(wire.encode(outputs, self._partitions), notes_of(name, outputs))
        finally:
            self._store.finish()

    def close(self) -> None:
        """Called by Spark after the batch."""


def notes_of(broker: str, outputs: list[Output]) -> list[str]:
    """What the driver is told of a step; `Engine._on_note` reads it."""
    notes = []
    malformed: Counter[str] = Counter()
    for output in outputs:
        if isinstance(output, Deadline):
            notes.append(f"deadline:{broker}:{output.at}")
        elif isinstance(output, Capture):
            notes.append(f"capture:{output.topic}")
        elif isinstance(output, Alert):
            notes.append(f"alert:{broker}: {output.text()}")
        elif isinstance(output, RejectedRecord):
            malformed[output.vpn] += 1
    return notes + [f"malformed:{vpn}:{count}" for vpn, count in sorted(malformed.items())]


def _frames(records: Iterator[wire.WireRecord], notes: list[str]) -> Iterator[pd.DataFrame]:
    rows: list[tuple] = [(None, -1, None, None, None, note) for note in notes]
    size = 0
    for r in records:
        partition = -1 if r.partition is None else r.partition
        rows.append((r.topic, partition, r.key, r.value, r.headers, None))
        size += len(r.value or b"")
        if len(rows) >= ROWS_PER_FRAME or size >= BYTES_PER_FRAME:
            yield _frame(rows)
            rows, size = [], 0
    if rows:
        yield _frame(rows)


def _frame(rows: list[tuple]) -> pd.DataFrame:
    cells = np.empty((len(rows), len(_COLUMNS)), object)
    cells[:] = rows
    columns = dict(zip(_COLUMNS, cells.T, strict=True))
    columns["partition"] = columns["partition"].astype(np.int32)
    return pd.DataFrame(columns, copy=False)
