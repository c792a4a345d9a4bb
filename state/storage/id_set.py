"""The exact set of the ids of a queue's cold rows, at one bit to two bytes per id.

An ack may name any id. Most ids that are not live have left the queue. This set shows that without
reading a page of rows (L8). Segment summaries cannot: in a priority queue each segment has ids from
the whole range.

Ids are grouped by their upper 48 bits. In memory a group is an integer with a bit for each id. Its
page is a bitmap, or the lower 16 bits of each id if that is shorter. A look-up reads the page. A
mark writes it and drops the group from memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from .store import Store

LOW_BITS = 16
LOW_MASK = (1 << LOW_BITS) - 1
BITMAP_BYTES = 1 << LOW_BITS - 3
# Above this many ids a bitmap is shorter. The lengths differ, so a page's length tells its kind.
ARRAY_MOST = BITMAP_BYTES // 2 - 1


class IdSet:
    """A set of 64-bit ids in pages."""

    __slots__ = ("_changed", "_counts", "_groups", "_prefix", "_store")

    def __init__(self, store: Store, prefix: str, state: Iterable[tuple[int, int]] = ()) -> None:
        self._store, self._prefix = store, prefix
        self._counts: dict[int, int] = dict(state)
        self._groups: dict[int, int] = {}  # those in memory
        self._changed: dict[int, None] = {}

    def __len__(self) -> int:
        return sum(self._counts.values())

    # ------------------------------------------------------------ changes

    def add(self, ids: Iterable[int]) -> None:
        """Add ids, none of which is in the set."""
        for number, lows in _grouped(ids):
            before, bits = self._group(number), bits_of(lows)
            assert not before & bits, f"group {number}: some of {len(lows)} ids are there"
            self._set(number, before | bits, len(lows))

    def remove(self, ids: Iterable[int]) -> None:
        """Remove ids, all of which are in the set."""
        for number, lows in _grouped(ids):
            before, bits = self._group(number), bits_of(lows)
            assert before & bits == bits, f"group {number}: some of {len(lows)} ids are missing"
            self._set(number, before ^ bits, -len(lows))

    def _set(self, number: int, group: int, more: int) -> None:
        self._groups[number] = group
        self._counts[number] = self._counts.get(number, 0) + more
        self._changed[number] = None
        if not group:
            del self._counts[number], self._groups[number]

    # ------------------------------------------------------------ looking

    def has_any(self, low: int, high: int) -> bool:
        """Whether an id from ``low`` to ``high`` is in the set."""
        first, last = low >> LOW_BITS, high >> LOW_BITS
        numbers = (first,) if first == last else [n for n in self._counts if first <= n <= last]
        for number in numbers:
            begin = low & LOW_MASK if number == first else 0
            end = high & LOW_MASK if number == last else LOW_MASK
            if self._group(number) >> begin & ((1 << end - begin + 1) - 1):
                return True
        return False

    def _group(self, number: int) -> int:
        group = self._groups.get(number)
        if group is None:
            if number not in self._counts:
                return 0
            page = self._store.get(f"{self._prefix}{number}")
            assert page is not None, f"page {self._prefix}{number} of ids is missing"
            group = self._groups[number] = _unpacked(page)
        return group

    # ------------------------------------------------------------ storing

    def write(self) -> None:
        """Write the pages that changed, and drop all groups from memory."""
        for number in self._changed:
            if number in self._counts:
                page = _packed(self._groups[number], self._counts[number])
                self._store.put(f"{self._prefix}{number}", page)
            else:
                self._store.delete(f"{self._prefix}{number}")
        self._changed.clear()
        self._groups.clear()

    def state(self) -> list[tuple[int, int]]:
        """Write the pages that changed; returns the constructor's ``state``."""
        self.write()
        return sorted(self._counts.items())

    def drop(self) -> None:
        """Remove all ids, and delete the pages."""
        for number in sorted({*self._counts, *self._changed}):
            self._store.delete(f"{self._prefix}{number}")
        self._counts, self._groups, self._changed = {}, {}, {}


def bits_of(numbers: Sequence[int]) -> int:
    """An integer with the bits of these ascending numbers."""
    n = len(numbers)
    if numbers[-1] - numbers[0] == n - 1:  # consecutive, most often
        return ((1 << n) - 1) << numbers[0]
    bitmap = bytearray((numbers[-1] >> 3) + 1)
    for number in numbers:
        bitmap[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(bitmap, "little")


def _grouped(ids: Iterable[int]) -> Iterator[tuple[int, list[int]]]:
    """The lower bits of ids, grouped by their upper bits, ascending."""
    ordered = sorted(ids)
    at = 0
    while at < len(ordered):
        number = ordered[at] >> LOW_BITS
        end = bisect_left(ordered, (number + 1) << LOW_BITS, at)  # most often, the end of all
        yield number, [one & LOW_MASK for one in ordered[at:end]]
        at = end


def _packed(group: int, count: int) -> bytes:
    bitmap = group.to_bytes(BITMAP_BYTES, "little")
    if count > ARRAY_MOST:
        return bitmap
    there = [(at << 3, byte) for at, byte in enumerate(bitmap) if byte]
    lows = [at | bit for at, byte in there for bit in range(8) if byte >> bit & 1]
    return array("H", lows).tobytes()


def _unpacked(page: bytes) -> int:
    if len(page) == BITMAP_BYTES:
        return int.from_bytes(page, "little")
    return bits_of(array("H", page))
