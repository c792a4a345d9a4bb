"""How many queues have each message. Most messages are in one queue, and these take no memory.

The counts of shared messages are in pages of 1,024 ids: a dict if few of them are shared, an array
if many are.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from .store import Store

PAGE_BITS = 10
MASK = (1 << PAGE_BITS) - 1
ENTRIES = 1 << PAGE_BITS  # the index at which an array keeps its number of counts
DICT_MOST = 64  # above this many entries an array is smaller

Page: TypeAlias = "dict[int, int] | array[int]"

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode


class MatchCounts:
    """Counts of 2 and more, by message id."""

    __slots__ = ("_changed", "_store", "pages")

    def __init__(self, store: Store, state: Iterable[tuple[int, int]] = ()) -> None:
        self._store = store
        # None: not read yet. A page without a key here has no counts; `Spool` checks that itself.
        self.pages: dict[int, Page | None] = {
            number: None for first, last in state for number in range(first, last + 1)
        }
        self._changed: dict[int, None] = {}

    def get(self, number: int) -> int:
        """How many queues have a message. The message must exist."""
        page = self._page(number >> PAGE_BITS)
        if page is None:
            return 1
        if isinstance(page, dict):
            return page.get(number & MASK, 1)
        return page[number & MASK] or 1

    def set(self, number: int, count: int) -> None:
        """Set the number of queues that have a message. Nothing is stored for 0 and 1."""
        at = number >> PAGE_BITS
        page = self._page(at)
        if page is None:
            if count <= 1:
                return
            page = self.pages[at] = {}
        self._changed[at] = None
        low, kept = number & MASK, count if count > 1 else 0
        if not isinstance(page, dict):
            page[ENTRIES] += bool(kept) - bool(page[low])
            page[low] = kept
            if not page[ENTRIES]:
                del self.pages[at]
        elif kept:
            page[low] = kept
            if len(page) > DICT_MOST:
                self.pages[at] = _array(page)
        else:
            page.pop(low, None)
            if not page:
                del self.pages[at]

    def set_run(self, first: int, n: int, count: int) -> None:
        """Set the same count for ``n`` consecutive ids."""
        for number in range(first, first + n):
            self.set(number, count)

    def state(self) -> list[tuple[int, int]]:
        """Write the pages that changed; returns the constructor's ``state``: ranges of pages."""
        for at in self._changed:
            page = self.pages.get(at)
            if page is None:
                self._store.delete(f"m/{at}")
            else:
                entries = page.items() if isinstance(page, dict) else enumerate(page[:ENTRIES])
                self._store.put(f"m/{at}", _encode(sorted(e for e in entries if e[1])))
        self._changed.clear()
        ranges: list[tuple[int, int]] = []
        for at in sorted(self.pages):
            if ranges and ranges[-1][1] == at - 1:
                ranges[-1] = (ranges[-1][0], at)
            else:
                ranges.append((at, at))
        return ranges

    def _page(self, at: int) -> Page | None:
        if at not in self.pages:
            return None
        page = self.pages[at]
        if page is None:
            stored = self._store.get(f"m/{at}")
            assert stored is not None, f"page m/{at} of counts is missing"
            page = dict(_decode(stored))
            if len(page) > DICT_MOST:
                page = _array(page)
            self.pages[at] = page
        return page


def _array(page: dict[int, int]) -> array[int]:
    counts = array("I", bytes(4 * (ENTRIES + 1)))
    for low, count in page.items():
        counts[low] = count
    counts[ENTRIES] = len(page)
    return counts
