"""Ranges of ids, each with an end time: finds the range of an id, and the ranges that are over
(L9).

The ranges are ascending and do not overlap. There are at most `Limits.early_acks`, so all are in
memory, in one list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from .row import NEVER


class IdRange(NamedTuple):
    """The ids from first to last. until: epoch ms."""

    first: int
    last: int
    until: int


_first, _last, _until = attrgetter("first"), attrgetter("last"), attrgetter("until")


class IdRanges:
    """The ranges of one owner."""

    __slots__ = ("_next_end", "ranges")

    def __init__(self, state: Iterable[list[int]] = ()) -> None:
        self.ranges = [IdRange(*one) for one in state]
        self._next_end: int | None = None  # None: must be found again

    def __len__(self) -> int:
        return len(self.ranges)

    def state(self) -> list[list[int]]:
        """Every range as ``[first, last, until]``."""
        return [list(one) for one in self.ranges]

    def put(self, first: int, last: int, until: int, most: int) -> bool:
        """Insert a range, which replaces earlier entries for its ids. It is joined with the range
        right before it if both have the same end. Changes nothing and returns False if there would
        be more than ``most`` ranges."""
        ranges = self.ranges
        begin = bisect_left(ranges, first, key=_last)
        end = bisect_right(ranges, last, key=_first)
        met = ranges[begin:end]
        new = [IdRange(first, last, until)]
        if met and met[0].first < first:
            new.insert(0, met[0]._replace(last=first - 1))
        elif begin and ranges[begin - 1][1:] == (first - 1, until):
            begin -= 1
            new[0] = IdRange(ranges[begin].first, last, until)
        if met and met[-1].last > last:
            new.append(met[-1]._replace(first=last + 1))
        if len(ranges) - (end - begin) + len(new) > most:
            return False
        ranges[begin:end] = new
        self._next_end = None
        return True

    def replace(self, old: IdRange, new: list[IdRange]) -> None:
        """Replace a range by parts of it."""
        at = bisect_left(self.ranges, old.first, key=_first)
        assert self.ranges[at : at + 1] == [old], f"{old} is not there"
        self.ranges[at : at + 1] = new
        self._next_end = None

    def find(self, number: int) -> IdRange | None:
        """The range of an id, or None."""
        at = bisect_right(self.ranges, number, key=_first)
        if not at or self.ranges[at - 1].last < number:
            return None
        return self.ranges[at - 1]

    def next_end(self) -> int:
        """The earliest end, or NEVER."""
        if self._next_end is None:
            self._next_end = min(map(_until, self.ranges), default=NEVER)
        return self._next_end

    def remove_over(self, now: int, most: int) -> int:
        """Remove up to ``most`` ranges whose time is over, the earliest end first; returns how
        many."""
        over = sorted([one for one in self.ranges if one.until <= now], key=_until)[:most]
        gone = set(over)
        self.ranges = [one for one in self.ranges if one not in gone]
        self._next_end = None
        return len(over)
