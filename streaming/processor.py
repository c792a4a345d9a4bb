"""The stateful operator of the micro-batch trigger: a broker per key, a few steps per batch.

Spark bounds a batch in messages alone, and takes commands whole; so it is cut into steps that are
bounded in records and in bytes. The cuts depend on the records, so a batch that is run again is cut
in the same places.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from ..protocol import topics, wire
from ..sinks.record_limits import within_limits
from ..sources.records import in_parts, to_batch
from ..state import Home, Limits
from .deciding import Decided, decide
from .live_core import LiveBatch, LiveDecided
from .state_store import HandleStore

ROWS_PER_FRAME = 5_000
BYTES_PER_FRAME = 4_000_000  # Kafka writes the first while the next is made
BYTES_PER_STEP = 32_000_000  # a step costs a little: only what is large is cut
RECORDS_PER_STEP = 10_000
LIMITS = Limits(beside=1)  # a batch takes 100 ms and more, whatever little its steps do
_COLUMNS = ("topic", "partition", "key", "value", "headers", "note")  # as in `sinks.kafka_sink`


class BrokerProcessor(StatefulProcessor):
    """Takes the steps of one broker.

    homes: by broker name; partitions: the topics that clients may name, with their sizes; limits:
    how large a record those take that take less than by default; live: on the live core, see
    `live_core`, unless the state cannot be carried over to it.
    """

    def __init__(
        self,
        homes: dict[str, Home],
        partitions: dict[str, int],
        limits: dict[str, int],
        live: bool = False,
    ) -> None:
        self._homes = homes
        self._partitions = partitions
        self._limits = limits
        self._live = live

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark before the first rows of a batch."""
        self._store = HandleStore(handle)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """One batch of one broker."""
        (name,) = key
        home = self._homes[name]
        whole, now = to_batch(rows)
        deadline = 0
        instructions = topics.topic(name, topics.INSTRUCTIONS)
        work = LiveBatch.begin(home, self._store) if self._live else None
        try:
            for batch in in_parts(whole, BYTES_PER_STEP, RECORDS_PER_STEP):
                decided: Decided | LiveDecided
                if work is None:
                    decided = decide(self._store, batch, now, home, LIMITS)
                else:
                    decided = work.take(batch, now)
                deadline = decided.deadline
                said = decided.said
                if decided.journal is not None:
                    said = [*said, decided.journal]
                notes = list(decided.notes)
                encoded = wire.encode(said, self._partitions)
                records = within_limits(encoded, self._limits, instructions, notes)
                yield from _frames(records, notes)
            if work is not None:
                work.end()
            yield from _frames(iter(()), [f"deadline:{name}:{deadline}"])
        finally:
            self._store.finish()

    def close(self) -> None:
        """Called by Spark after the batch."""


def _frames(records: Iterator[wire.WireRecord], notes: list[str]) -> Iterator[pd.DataFrame]:
    """notes: they may become more while the records come."""
    rows: list[tuple] = []
    size = 0
    for r in records:
        partition = -1 if r.partition is None else r.partition
        rows.append((r.topic, partition, r.key, r.value, r.headers, None))
        size += len(r.value or b"")
        if len(rows) >= ROWS_PER_FRAME or size >= BYTES_PER_FRAME:
            yield _frame(rows)
            rows, size = [], 0
    rows += [(None, -1, None, None, None, note) for note in notes]
    if rows:
        yield _frame(rows)


def _frame(rows: list[tuple]) -> pd.DataFrame:
    cells = np.empty((len(rows), len(_COLUMNS)), object)
    cells[:] = rows
    columns = dict(zip(_COLUMNS, cells.T, strict=True))
    columns["partition"] = columns["partition"].astype(np.int32)
    return pd.DataFrame(columns, copy=False)
