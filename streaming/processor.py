"""The stateful operator: a broker per key, a step per batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_never

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from ..protocol import wire
from ..protocol.outputs import Alert, Capture, Deadline
from ..sources.records import to_batch
from ..state import step
from .store import HandleStore

ROWS_PER_FRAME = 5_000
BYTES_PER_FRAME = 4_000_000  # Kafka writes the first while the next is made


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
        outputs = step(self._store, batch, now, name, self._numbers[name])
        notes = [
            _note(name, o) for o in outputs if isinstance(o, Deadline | Capture | Alert)
        ]
        yield from _frames(wire.encode(outputs, self._partitions), notes)

    def close(self) -> None:
        """Called by Spark after the batch."""


def _note(broker: str, output: Deadline | Capture | Alert) -> str:
    """What the driver is told, as one line: its kind, a colon, the rest."""
    match output:
        case Deadline():
            return f"deadline:{broker}:{output.at}"
        case Capture():
            return f"capture:{output.topic}"
        case Alert():
            return f"alert:{broker}: {output.text()}"
        case _:
            assert_never(output)


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
    columns = list(zip(*rows, strict=True))
    names = ("topic", "partition", "key", "value", "headers", "note")
    frame = pd.DataFrame(
        {n: pd.Series(c, dtype=object) for n, c in zip(names, columns, strict=True)}
    )
    frame["partition"] = frame["partition"].astype("int32")
    return frame
