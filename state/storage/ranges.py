"""Ascending ranges of numbers, each a list ``[first, last]``, without overlap and as few as can be.

They are how a queue remembers which ids have entered (L9), a producer which sequences are missing
or refused (P1), and a flow what to send again (C2).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import islice
from operator import itemgetter

Ranges = list[list[int]]
_first = itemgetter(0)


def insert(ranges: Ranges, number: int) -> None:
    """Add a number, which may be there."""
    at = bisect_right(ranges, number, key=_first)
    if at and ranges[at - 1][1] >= number:
        return
    ranges.insert(at, [number, number])
    if at + 1 < len(ranges) and ranges[at + 1][0] == number + 1:
        ranges[at][1] = ranges.pop(at + 1)[1]
    if at and ranges[at - 1][1] == number - 1:
        ranges[at - 1][1] = ranges.pop(at)[1]


def remove(ranges: Ranges, number: int) -> bool:
    """Remove a number; returns whether it was there."""
    at = bisect_right(ranges, number, key=_first) - 1
    if at < 0 or number > ranges[at][1]:
        return False
    first, last = ranges[at]
    rest = [[first, number - 1], [number + 1, last]]
    ranges[at : at + 1] = [one for one in rest if one[0] <= one[1]]
    return True


def union(ranges: Iterable[list[int]]) -> Ranges:
    """Ranges in any order, which may overlap, as ascending ones."""
    joined: Ranges = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return joined


def without(ranges: Ranges, others: Ranges) -> Ranges:
    """Ranges without the parts that are in others; both may be in any order."""
    rest, others, at = [], sorted(others), 0
    for first, last in sorted(ranges):
        while at < len(others) and others[at][1] < first:
            at += 1
        for start, end in islice(others, at, None):
            if start > last:
                break
            if start > first:
                rest.append([first, start - 1])
            first = max(first, end + 1)
        if first <= last:
            rest.append([first, last])
    return rest
