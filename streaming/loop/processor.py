"""The stateful operator of the micro-batch trigger: a few steps per batch.

Spark limits the publishes of a batch, but not its commands. So this operator cuts a batch into
steps of limited records and bytes. The cuts depend only on the records, so a repeated batch is cut
in the same places.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from ...protocol import topics, wire
from ...sinks.record_limits import within_limits
from ...sources.kafka_source import in_parts, to_batch
from ...state import Home
from .loop_driver import micro_batch
from .state_store import MapPages

ROWS_PER_FRAME = 5_000
BYTES_PER_FRAME = 4_000_000  # Kafka writes the first while the next is made
BYTES_PER_STEP = 32_000_000  # a step has a cost, so only large batches are cut
RECORDS_PER_STEP = 10_000
_COLUMNS = ("topic", "partition", "key", "value", "headers", "note")  # as in `sinks.kafka_sink`


class BrokerProcessor(StatefulProcessor):
    """Takes the steps of one broker.

    partitions: the existing topics with their numbers of partitions; limits: the record size of
    topics that allow less than the default.
    """

    def __init__(self, home: Home, partitions: dict[str, int], limits: dict[str, int]) -> None:
        self._home, self._partitions, self._limits = home, partitions, limits

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark before the first rows of a batch."""
        self._store = MapPages(handle)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """One batch of one broker."""
        name = self._home.name
        whole, now = to_batch(rows)
        deadline = 0
        instructions = topics.topic(name, topics.INSTRUCTIONS)
        work = micro_batch(self._home, self._store)
        for batch in in_parts(whole, BYTES_PER_STEP, RECORDS_PER_STEP):
            decided = work.take(batch, now)
            deadline = decided.deadline
            said = decided.said
            if decided.journal is not None:
                said = [*said, decided.journal]
            notes = list(decided.notes)
            encoded = wire.encode(said, self._partitions)
            records = within_limits(encoded, self._limits, instructions, notes)
            yield from _frames(records, notes)
        work.end()
        yield from _frames(iter(()), [f"deadline:{name}:{deadline}"])

    def close(self) -> None:
        """Called by Spark after the batch."""


def _frames(records: Iterator[wire.WireRecord], notes: list[str]) -> Iterator[pd.DataFrame]:
    """notes: more may be added while the records are read."""
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
