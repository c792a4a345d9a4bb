"""The exact set of the ids of a queue's cold rows, at one bit to two bytes per id.

An ack may name any id. Most ids that are not live have left the queue. This set shows that without
reading a page of rows (L8). Segment summaries cannot: in a priority queue each segment has ids from
the whole range.

Ids are grouped by their upper 48 bits. A small group is a sorted array of the lower 16 bits, a
large one is a bitmap. A mark writes each group to one page. The first look-up reads it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from .store import Store

LOW_BITS = 16
LOW_MASK = (1 << LOW_BITS) - 1
BITMAP_BYTES = 1 << LOW_BITS - 3
RUN_LEAST = 64  # this many consecutive ids are changed in one operation
# Above this many ids a bitmap is smaller. The lengths differ, so a page's length tells its kind.
ARRAY_MOST = BITMAP_BYTES // 2 - 1

Group: TypeAlias = "array[int] | bytearray"


class IdSet:
    """A set of 64-bit ids in pages."""

    __slots__ = ("_changed", "_counts", "_groups", "_numbers", "_prefix", "_store")

    def __init__(self, store: Store, prefix: str, state: Iterable[tuple[int, int]] = ()) -> None:
        self._store, self._prefix = store, prefix
        self._counts: dict[int, int] = dict(state)
        self._numbers = sorted(self._counts)
        self._groups: dict[int, Group] = {}  # those in memory
        self._changed: dict[int, None] = {}

    def __len__(self) -> int:
        return sum(self._counts.values())

    # ------------------------------------------------------------ changes

    def add(self, ids: Iterable[int]) -> None:
        """Add ids, none of which is in the set."""
        for number, lows in _grouped(ids):
            old = self._counts.get(number, 0)
            if not old:
                insort(self._numbers, number)
                self._groups[number] = array("H")
            group = self._group(number)
            new = self._counts[number] = old + len(lows)
            self._changed[number] = None
            if isinstance(group, bytearray):
                flip(group, lows, present=False)
            elif new > ARRAY_MOST:
                bitmap = self._groups[number] = bytearray(BITMAP_BYTES)
                flip(bitmap, group, present=False)
                flip(bitmap, lows, present=False)
            elif not group or group[-1] < lows[0]:  # most often: messages get ascending ids
                group.extend(lows)
            else:
                self._groups[number] = array("H", sorted([*group, *lows]))

    def remove(self, ids: Iterable[int]) -> None:
        """Remove ids, all of which are in the set."""
        for number, lows in _grouped(ids):
            group = self._group(number)
            left = self._counts[number] = self._counts[number] - len(lows)
            self._changed[number] = None
            if isinstance(group, bytearray):
                flip(group, lows, present=True)
                if left <= ARRAY_MOST:
                    self._groups[number] = array("H", _bits(group))
            else:
                removed = set(lows)
                kept = array("H", [low for low in group if low not in removed])
                assert len(kept) == left, f"group {number}: some of {len(removed)} ids are missing"
                self._groups[number] = kept
            if not left:
                del self._counts[number], self._groups[number]
                del self._numbers[bisect_left(self._numbers, number)]

    # ------------------------------------------------------------ looking

    def has_any(self, low: int, high: int) -> bool:
        """Whether an id from ``low`` to ``high`` is in the set."""
        first, last = low >> LOW_BITS, high >> LOW_BITS
        at = bisect_left(self._numbers, first)
        while at < len(self._numbers) and (number := self._numbers[at]) <= last:
            begin = low & LOW_MASK if number == first else 0
            end = high & LOW_MASK if number == last else LOW_MASK
            if _has_any(self._group(number), begin, end):
                return True
            at += 1
        return False

    def _group(self, number: int) -> Group:
        group = self._groups.get(number)
        if group is None:
            page = self._store.get(f"{self._prefix}{number}")
            assert page is not None, f"page {self._prefix}{number} of ids is missing"
            group = self._groups[number] = _unpacked(page)
        return group

    # ------------------------------------------------------------ storing

    def write(self) -> None:
        """Write the pages that changed."""
        for number in self._changed:
            if number in self._counts:
                self._store.put(f"{self._prefix}{number}", bytes(self._groups[number]))
            else:
                self._store.delete(f"{self._prefix}{number}")
        self._changed.clear()

    def state(self) -> list[tuple[int, int]]:
        """Write the pages that changed; returns the constructor's ``state``."""
        self.write()
        return [(number, self._counts[number]) for number in self._numbers]

    def drop(self) -> None:
        """Remove all ids, and delete the pages."""
        for number in sorted({*self._counts, *self._changed}):
            self._store.delete(f"{self._prefix}{number}")
        self._counts, self._numbers, self._groups, self._changed = {}, [], {}, {}


def _unpacked(page: bytes) -> Group:
    if len(page) == BITMAP_BYTES:
        return bytearray(page)
    lows = array("H")
    lows.frombytes(page)
    return lows


def _grouped(ids: Iterable[int]) -> Iterator[tuple[int, list[int]]]:
    """The lower bits of ids, grouped by their upper bits, ascending."""
    ordered = sorted(ids)
    at = 0
    while at < len(ordered):
        number = ordered[at] >> LOW_BITS
        end = bisect_left(ordered, (number + 1) << LOW_BITS, at)  # most often, the end of all
        yield number, [one & LOW_MASK for one in ordered[at:end]]
        at = end


def flip(bitmap: bytearray, lows: Sequence[int], present: bool) -> None:
    """Flip the bits of ascending numbers, which must be all present or all absent."""
    n = len(lows)
    if n >= RUN_LEAST and lows[-1] - lows[0] == n - 1:  # consecutive: one operation
        bits = int.from_bytes(bitmap, "little")
        before = bits.bit_count()
        bits ^= ((1 << n) - 1) << lows[0]
        assert bits.bit_count() == (before - n if present else before + n), (
            f"not all of …{lows[0]} to …{lows[-1]} were {'' if present else 'not '}there"
        )
        bitmap[:] = bits.to_bytes(len(bitmap), "little")
        return
    for low in lows:
        bit = 1 << (low & 7)
        assert bool(bitmap[low >> 3] & bit) is present, f"…{low} is already {not present}"
        bitmap[low >> 3] ^= bit


def _bits(bitmap: bytearray) -> list[int]:
    """The ids in a bitmap, ascending."""
    return [
        at << 3 | bit
        for at, byte in enumerate(bitmap)
        if byte
        for bit in range(8)
        if byte >> bit & 1
    ]


def _has_any(group: Group, begin: int, end: int) -> bool:
    if not isinstance(group, bytearray):
        at = bisect_left(group, begin)
        return at < len(group) and group[at] <= end
    if begin == end:
        return bool(group[begin >> 3] >> (begin & 7) & 1)
    # One integer of at most 65,536 bits: cut it to the range and test whether a bit is left.
    part = int.from_bytes(group[begin >> 3 : (end >> 3) + 1], "little")
    return bool((part >> (begin & 7)) & ((1 << end - begin + 1) - 1))
