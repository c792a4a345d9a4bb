"""The page directory of a queue: per page of the queue how many messages live and are leased in
it, and when its next deadline is.

So a tick finds the pages with work due, a closed consumer's leases are found, and the oldest
message too, without reading pages that have nothing to say. The directory itself stands in chunks
of 1,024 pages (a million messages); the queue's header keeps one line per chunk.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .columns import NEVER, PAGE_BITS, ROW_MASK, Array, ColumnPage
from .store import Store


class Chunk(ColumnPage):
    """One row per page of the queue."""

    FIELDS = (("live", "<u2", 0), ("leased", "<u2", 0), ("deadline", "<i8", NEVER))
    __slots__ = tuple(name for name, _, _ in FIELDS)
    live: Array
    leased: Array
    deadline: Array


class Directory:
    """``lines``: chunk number → [live, leased, deadline], kept in the queue's header."""

    def __init__(self, store: Store, prefix: str, lines: dict[int, list[int]]) -> None:
        self._store = store
        self._prefix = prefix
        self.lines = lines
        self._chunks: dict[int, Chunk] = {}

    def _chunk(self, number: int) -> Chunk:
        chunk = self._chunks.get(number)
        if chunk is None:
            data = self._store.get(f"{self._prefix}{number}") if number in self.lines else None
            chunk = Chunk.unpack(number, data) if data else Chunk(number)
            self._chunks[number] = chunk
        return chunk

    def update(self, page: int, live: int, leased: int, deadline: int) -> None:
        """Say what a page holds now."""
        number, row = page >> PAGE_BITS, page & ROW_MASK
        chunk = self._chunk(number)
        if (
            chunk.live[row] == live
            and chunk.leased[row] == leased
            and chunk.deadline[row] == deadline
            and row < chunk.used
        ):
            return
        chunk.live[row], chunk.leased[row], chunk.deadline[row] = live, leased, deadline
        chunk.used = max(chunk.used, row + 1)
        chunk.dirty = True

    def _pages(self, number: int, mask: np.ndarray) -> Iterator[int]:
        for row in np.flatnonzero(mask).tolist():
            yield (number << PAGE_BITS) + row

    def settle(self) -> None:
        """Bring the lines up to date with the chunks that changed."""
        for number, chunk in self._chunks.items():
            if chunk.dirty:
                live = int(chunk.live.sum(dtype=np.int64))
                leased = int(chunk.leased.sum(dtype=np.int64))
                self.lines[number] = [live, leased, int(chunk.deadline.min())]

    def due(self, now: int) -> list[int]:
        """Pages with a deadline at or before ``now``."""
        self.settle()
        pages: list[int] = []
        for number in sorted(n for n, line in self.lines.items() if line[2] <= now):
            pages += self._pages(number, self._chunk(number).deadline <= now)
        return pages

    def leased(self) -> list[int]:
        """Pages in which something is leased."""
        self.settle()
        pages: list[int] = []
        for number in sorted(n for n, line in self.lines.items() if line[1]):
            pages += self._pages(number, self._chunk(number).leased > 0)
        return pages

    def live(self) -> Iterator[int]:
        """Pages in which something lives, ascending."""
        self.settle()
        for number in sorted(n for n, line in self.lines.items() if line[0]):
            yield from self._pages(number, self._chunk(number).live > 0)

    def find(self, nth: int) -> tuple[int, int]:
        """The page that holds the ``nth`` live message (the first is 0), and its number there."""
        self.settle()
        for number in sorted(n for n, line in self.lines.items() if line[0]):
            live = self.lines[number][0]
            if nth < live:
                sums = np.cumsum(self._chunk(number).live, dtype=np.int64)
                row = int(np.searchsorted(sums, nth, side="right"))
                before = int(sums[row - 1]) if row else 0
                return (number << PAGE_BITS) + row, nth - before
            nth -= live
        raise IndexError(f"there are fewer live messages than {nth}")

    def deadline(self) -> int:
        """The earliest deadline of all."""
        self.settle()
        return min((line[2] for line in self.lines.values()), default=NEVER)

    def drop(self) -> None:
        """Delete every chunk."""
        for number in self.lines:
            self._store.delete(f"{self._prefix}{number}")
        self.lines.clear()
        self._chunks.clear()

    def flush(self) -> None:
        """Write the chunks that changed; one without a live message is deleted."""
        self.settle()
        for number, chunk in sorted(self._chunks.items()):
            if not chunk.dirty:
                continue
            if self.lines[number][0]:
                self._store.put(f"{self._prefix}{number}", chunk.pack())
            else:
                self._store.delete(f"{self._prefix}{number}")
                del self.lines[number]
