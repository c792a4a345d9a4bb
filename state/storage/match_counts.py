"""How many queues have each message. Most messages are in one queue, and these take no memory.

The counts of shared messages are in pages of 1,024 ids, each an array of 4 KB.
"""

from __future__ import annotations

from array import array

import msgspec

from .ranges import Ranges, union
from .store import Store

PAGE_BITS = 10
MASK = (1 << PAGE_BITS) - 1
ENTRIES = 1 << PAGE_BITS  # the index at which a page keeps its number of counts

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode


class MatchCounts:
    """Counts of 2 and more, by message id."""

    __slots__ = ("_changed", "_store", "pages")

    def __init__(self, store: Store, state: Ranges) -> None:
        self._store = store
        # None: not read yet. A page without a key here has no counts; `Spool` checks that itself.
        self.pages: dict[int, array[int] | None] = {
            number: None for first, last in state for number in range(first, last + 1)
        }
        self._changed: dict[int, None] = {}

    def get(self, number: int) -> int:
        """How many queues have a message. The message must exist."""
        page = self._page(number >> PAGE_BITS)
        return 1 if page is None else page[number & MASK] or 1

    def set(self, number: int, count: int) -> None:
        """Set the number of queues that have a message. Nothing is stored for 0 and 1."""
        at, low, kept = number >> PAGE_BITS, number & MASK, count if count > 1 else 0
        page = self._page(at)
        if page is None:
            if not kept:
                return
            page = self.pages[at] = _new_page()
        self._changed[at] = None
        page[ENTRIES] += bool(kept) - bool(page[low])
        page[low] = kept
        if not page[ENTRIES]:
            del self.pages[at]

    def state(self) -> Ranges:
        """Write the pages that changed; returns the constructor's ``state``: ranges of pages."""
        for at in self._changed:
            page = self.pages.get(at)
            if page is None:
                self._store.delete(f"m/{at}")
            else:
                counts = enumerate(page[:ENTRIES])
                self._store.put(f"m/{at}", _encode([entry for entry in counts if entry[1]]))
        self._changed.clear()
        return union([at, at] for at in self.pages)

    def _page(self, at: int) -> array[int] | None:
        if at not in self.pages:
            return None
        page = self.pages[at]
        if page is None:
            stored = self._store.get(f"m/{at}")
            assert stored is not None, f"page m/{at} of counts is missing"
            page = self.pages[at] = _new_page()
            for low, count in _decode(stored):
                page[low] = count
                page[ENTRIES] += 1
        return page


def _new_page() -> array[int]:
    return array("I", bytes(4 * (ENTRIES + 1)))
