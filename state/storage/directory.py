"""The page directory of a queue: per page of the queue how many messages live and are leased in
it, when its next deadline is, and between which ids its messages are.

So a tick finds the pages with work due, a closed consumer's leases are found, the oldest message
too, and an ack of a wide range of ids finds the pages that may hold such ids, without reading pages
that have nothing to say. It is a tree of summaries (`tree`): the queue's header keeps one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..limits import Limits
from .columns import NEVER, Array, ColumnPage
from .store import Store
from .tree import SummaryTree

NO_ID = (1 << 64) - 1


class Chunk(ColumnPage):
    """One row per page of the queue."""

    FIELDS = (
        ("live", "<u2", 0),
        ("leased", "<u2", 0),
        ("deadline", "<i8", NEVER),
        ("id_min", "<u8", NO_ID),
        ("id_max", "<u8", 0),
    )
    __slots__ = tuple(name for name, _, _ in FIELDS)


class Summary(ColumnPage):
    """One row per page below."""

    FIELDS = (("live", "<u8", 0), ("leased", "<u8", 0), *Chunk.FIELDS[2:])
    __slots__ = tuple(name for name, _, _ in FIELDS)


class Directory(SummaryTree):
    """``root``: kept in the queue's header. Iterators look at a chunk when they reach it."""

    LEAF = Chunk
    INNER = Summary
    SUMMED = (
        ("live", "sum"), ("leased", "sum"), ("deadline", "min"), ("id_min", "min"),
        ("id_max", "max"),
    )  # fmt: skip
    PRESENT = "live"

    def __init__(self, store: Store, prefix: str, root: list[int], limits: Limits) -> None:
        super().__init__(store, prefix, root, limits.chunk_bits)

    def update(
        self, page: int, live: int, leased: int, deadline: int, id_min: int, id_max: int
    ) -> None:
        """Say what a page holds now. id_min, id_max: of the messages that live in it."""
        values = {
            "live": live, "leased": leased, "deadline": deadline, "id_min": id_min,
            "id_max": id_max,
        }  # fmt: skip
        self.write(page, values)

    def due(self, now: int, start: int = 0) -> Iterator[int]:
        """Pages with a deadline at or before ``now``, ascending."""
        return self.walk(lambda chunk: chunk.deadline <= now, start)

    def leased(self, start: int = 0) -> Iterator[int]:
        """Pages in which something is leased, ascending."""
        return self.walk(lambda chunk: chunk.leased > 0, start)

    def live(self, start: int = 0) -> Iterator[int]:
        """Pages in which something lives, ascending."""
        return self.present(start)

    def overlapping(self, ranges: list[tuple[int, int]], start: int = 0) -> Iterator[int]:
        """Pages that may hold an id of these ranges (first and last id), ascending."""
        merged = _merged(ranges)
        lows = np.array([low for low, _ in merged], np.uint64)
        highs = np.array([high for _, high in merged], np.uint64)

        def wanted(chunk: Any) -> Array:
            # The first range that ends at or behind the page's first id is the one to look at.
            at = np.searchsorted(highs, chunk.id_min)
            reached: Array = (chunk.live > 0) & (at < len(highs))
            reached &= lows[np.minimum(at, len(lows) - 1)] <= chunk.id_max
            return reached

        return self.walk(wanted, start) if merged else iter(())

    def find(self, nth: int) -> tuple[int, int]:
        """The page that holds the ``nth`` live message (the first is 0), and its number there."""
        if nth < 0 or nth >= (self.total("live") or 0):
            raise IndexError(f"there are fewer live messages than {nth + 1}")
        number = 0
        for level in range(self.root[0] - 1, -1, -1):
            sums = np.cumsum(self._node(level, number).live, dtype=np.int64)
            row = int(np.searchsorted(sums, nth, side="right"))
            nth -= int(sums[row - 1]) if row else 0
            number = (number << self._bits) + row
        return number, nth

    def deadline(self) -> int:
        """The earliest deadline of all."""
        earliest = self.total("deadline")
        return NEVER if earliest is None else earliest


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges ascending, none overlapping another."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if high < low:
            continue
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged
