"""Ranges of ids, each with an end time: finds the range of an id, and the ranges that are over
(L9).

The ranges do not overlap. There are at most `Limits.early_acks`, so all are in memory: a sorted
list, and a calendar of the ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from .calendar import Calendar
from .row import NEVER


@dataclass(frozen=True, slots=True, order=True)
class IdRange:
    """The ids from first to last. until: epoch ms."""

    first: int
    last: int
    until: int


_first, _last = attrgetter("first"), attrgetter("last")


class IdRanges:
    """The ranges of one owner, ascending."""

    __slots__ = ("_ends", "ranges")

    def __init__(self, state: Iterable[list[int]] = ()) -> None:
        self.ranges = [IdRange(*one) for one in state]
        self._ends = Calendar[IdRange](self._end_of)
        for one in self.ranges:
            self._ends.watch(one, one.until)

    def __len__(self) -> int:
        return len(self.ranges)

    def state(self) -> list[list[int]]:
        """Every range as ``[first, last, until]``, ascending."""
        return [[one.first, one.last, one.until] for one in self.ranges]

    # ------------------------------------------------------------ changes

    def put(self, first: int, last: int, until: int, most: int) -> bool:
        """Insert a range, which replaces earlier entries for its ids. It is joined with the range
        right before it if both have the same end. Changes nothing and returns False if there would
        be more than ``most`` ranges."""
        met = self.overlapping(max(first - 1, 0), last)
        beside = met.pop(0) if met and met[0].last < first else None
        new = [IdRange(first, last, until)]
        if met and met[0].first < first:
            new.insert(0, IdRange(met[0].first, first - 1, met[0].until))
        elif beside is not None and beside.until == until:
            met.insert(0, beside)
            new[0] = IdRange(beside.first, last, until)
        if met and met[-1].last > last:
            new.append(IdRange(last + 1, met[-1].last, met[-1].until))
        if len(self) - len(met) + len(new) > most:
            return False
        self.exchange(met, new)
        return True

    def exchange(self, old: Iterable[IdRange], new: Iterable[IdRange]) -> None:
        """Remove ranges, and insert others, which must not overlap any."""
        ranges = self.ranges
        for one in old:
            at = bisect_left(ranges, one.first, key=_first)
            assert ranges[at : at + 1] == [one], f"{one} is not there"
            del ranges[at]
            self._ends.forget(one)
        for one in new:
            at = bisect_left(ranges, one.first, key=_first)
            assert not at or ranges[at - 1].last < one.first, f"{one} overlaps {ranges[at - 1]}"
            assert at == len(ranges) or one.last < ranges[at].first, f"{one} overlaps {ranges[at]}"
            ranges.insert(at, one)
            self._ends.watch(one, one.until)

    # ------------------------------------------------------------ looking

    def find(self, number: int) -> IdRange | None:
        """The range of an id, or None."""
        at = bisect_right(self.ranges, number, key=_first)
        if not at or self.ranges[at - 1].last < number:
            return None
        return self.ranges[at - 1]

    def overlapping(self, first: int, last: int) -> list[IdRange]:
        """The ranges that overlap this one, ascending."""
        begin = bisect_left(self.ranges, first, key=_last)
        end = bisect_right(self.ranges, last, key=_first)
        return self.ranges[begin:end]

    def next_end(self) -> int:
        """The earliest end, or NEVER."""
        return self._ends.next()

    def remove_over(self, now: int, most: int) -> list[IdRange]:
        """Remove up to ``most`` ranges whose time is over, the earliest end first; returns them."""
        over = self._ends.take(now, most)
        self.exchange(over, [])
        return over

    def _end_of(self, one: IdRange) -> int:
        return one.until if self.find(one.first) == one else NEVER
