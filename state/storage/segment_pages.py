"""The pages of segments (`runs`): a row is in memory, in a page, or in both."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from .row import Row
from .segments import Segment
from .store import Store

_encode = msgspec.msgpack.encode
_decode_rows = msgspec.msgpack.Decoder(list[Row]).decode

Settle = Callable[[Sequence[Row]], None]  # writes the contents of rows to blocks


class SegmentPages:
    """The pages of one queue's segments. Before a page is written, the contents of its rows are in
    blocks."""

    __slots__ = ("_in_memory", "_prefix", "_settle", "_store", "unwritten")

    def __init__(self, store: Store, prefix: str, settle: Settle) -> None:
        self._store, self._prefix, self._settle = store, prefix, settle
        self._in_memory: dict[int, list[Row]] = {}
        self.unwritten: dict[int, Segment] = {}  # in memory only

    def read(self, segment: Segment) -> list[Row]:
        """The rows of a segment, which must not be changed while they are in it."""
        rows = self._in_memory.get(segment.number)
        if rows is None:
            page = self._store.get(f"{self._prefix}{segment.number}")
            assert page is not None, f"page {self._prefix}{segment.number} of rows is missing"
            rows = _decode_rows(page)[segment.skip :]
        return rows

    def load(self, segment: Segment) -> list[Row]:
        """The rows of a segment, which stay in memory."""
        rows = self._in_memory[segment.number] = self.read(segment)
        return rows

    def keep(self, segment: Segment, rows: list[Row]) -> None:
        """Keep the rows of a segment in memory. Its page, if there is one, has them too."""
        self._in_memory[segment.number] = rows

    def put(self, segment: Segment, rows: Sequence[Row]) -> None:
        """Write the page of a segment, which leaves the memory."""
        self.forget(segment)
        self._settle(rows)
        self._store.put(f"{self._prefix}{segment.number}", _encode(rows))

    def write(self, segment: Segment) -> None:
        """Write the page of a segment if it has none. The rows stay in memory."""
        if self.unwritten.pop(segment.number, None) is not None:
            rows = self._in_memory[segment.number]
            self.put(segment, rows)
            self.keep(segment, rows)

    def forget(self, segment: Segment) -> None:
        """Drop a segment from memory."""
        self._in_memory.pop(segment.number, None)
        self.unwritten.pop(segment.number, None)

    def delete(self, segment: Segment) -> None:
        """Drop a segment, and delete its page."""
        self.forget(segment)
        self._store.delete(f"{self._prefix}{segment.number}")
