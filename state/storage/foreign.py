"""Messages that another broker took in: their ids, and the rows in which they stand here.

A message keeps the id that it was given where it was taken in, wherever it goes. Here it stands in
a row of this broker's own, as every message does, and all that this broker does goes by rows. What
comes from outside by id is translated on the way in, what is said on the way out: a row knows its
`origin`, and this index finds rows by the ids of others. Where nothing came from another broker, it
is empty and costs nothing.

A key is the id, then the counter of the row; one message stands here once at most at a time.
"""

from __future__ import annotations

from itertools import islice

from ...protocol.ids import COUNTER_BITS, COUNTER_MASK
from ..limits import Limits
from .files import SpoolHeader
from .ready_index import ReadyIndex
from .store import Store


class Foreign(ReadyIndex):
    """The index of ids that are not this broker's own."""

    def __init__(self, store: Store, header: SpoolHeader, limits: Limits) -> None:
        super().__init__(store, "origin/", header.foreign, header.next_foreign, limits)
        self._header = header

    def put(self, rows: list[tuple[int, int]]) -> None:
        """Messages (id, counter) have got their rows."""
        self.add(sorted(_key(*row) for row in rows))

    def drop_rows(self, rows: list[tuple[int, int]]) -> None:
        """These messages are gone."""
        self.discard(sorted(_key(*row) for row in rows))

    def within(self, low: int, high: int, most: int) -> list[tuple[int, int]]:
        """Up to so many ids from ``low`` to ``high``, each with the counter of its row."""
        found = islice(self.scan(low << COUNTER_BITS, (high + 1) << COUNTER_BITS), most)
        return [(key >> COUNTER_BITS, key & COUNTER_MASK) for key in found]

    def flush(self) -> None:
        """Write what changed."""
        super().flush()
        self._header.foreign = self.directory()
        self._header.next_foreign = self.pages


def _key(number: int, counter: int) -> int:
    return (number << COUNTER_BITS) + counter
