"""The records of a queue's cold part: segments, groups and merges, live and stored. See `runs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from .row import Row

NO_FILTER = 0  # in `Segment.looked`: the consumers without a filter
LEVEL_BITS = 2  # a level has 2^2 times the rows of the one below


@dataclass(slots=True, eq=False)
class Segment:
    """The summary of a segment. Only `Runs` changes it, except for `looked`."""

    group: Group = field(repr=False)
    number: int
    first: int  # keys
    last: int
    rows: int
    bytes: int  # their sizes (Q8)
    id_first: int  # its ids are in this range
    id_last: int
    due: int  # the earliest deadline of its rows, or NEVER
    # Numbers of the filters that have read it and taken their matches. A negative number: the
    # filter left rows that wait for their lanes, and the lanes remember this segment.
    looked: list[int]
    skip: int = 0  # rows at the front of the page that a merge has moved already

    def count(self, rows: Sequence[Row], last: int) -> None:
        """Add rows at its end. last: the key of the last one. It takes one pass, since it is done
        for every message that becomes cold."""
        self.last = last
        self.rows += len(rows)
        for row in rows:
            self.bytes += row.size
            number, expires, until = row.id, row.expires, row.until
            if number > self.id_last:
                self.id_last = number
            elif number < self.id_first:
                self.id_first = number
            if expires < self.due:
                self.due = expires
            if until < self.due:
                self.due = until

    def was_seen_by(self, number: int) -> bool:
        """Whether a filter has read it."""
        return number in self.looked or -number in self.looked

    def packed(self) -> StoredSegment:
        """Its form in the queue's page."""
        return StoredSegment(
            self.number, f"{self.first:x}", f"{self.last:x}", self.rows, self.bytes, self.id_first,
            self.id_last, self.due, self.looked, self.skip,
        )  # fmt: skip


class StoredSegment(msgspec.Struct, array_like=True):
    """A segment's summary in its queue's page. Keys are longer than 64 bits, so they are text."""

    number: int
    first: str
    last: str
    rows: int
    bytes: int
    id_first: int
    id_last: int
    due: int
    looked: list[int]
    skip: int

    def unpacked(self, group: Group) -> Segment:
        """The segment from which `packed` made this."""
        return Segment(
            group, self.number, int(self.first, 16), int(self.last, 16), self.rows, self.bytes,
            self.id_first, self.id_last, self.due, list(self.looked), self.skip,
        )  # fmt: skip


class StoredGroup(msgspec.Struct, array_like=True):
    """A group in its queue's page. merge: the number of its merge, or 0. A merge's output comes
    before its inputs."""

    merge: int
    segments: list[StoredSegment]


class RunsState(msgspec.Struct, array_like=True):
    """A cold part in its queue's page."""

    next_number: int = 1
    groups: list[StoredGroup] = []
    ids: list[tuple[int, int]] = []  # of `IdSet`
    merges: list[tuple[int, int]] = []  # number and level


@dataclass(slots=True, eq=False)
class Group:
    """Segments in order, which do not overlap. merge: the number of its merge, or 0; rows: of all
    segments, kept by `Runs`, because a deep queue has thousands of segments."""

    segments: list[Segment]
    merge: int = 0
    rows: int = 0

    @property
    def last(self) -> int:
        """The key of its last row."""
        return self.segments[-1].last

    def level(self) -> int:
        """Its level, by its number of rows. Each level has four times the rows of the one below."""
        return self.rows.bit_length() // LEVEL_BITS


@dataclass(slots=True, eq=False)
class Merge:
    """A merge: rows move from the fronts of its inputs to the end of its output."""

    number: int
    level: int
    output: Group
    inputs: list[Group] = field(default_factory=list)


def common(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The filters that have read both of two segments that become one. Negative numbers are left
    out: lanes remember segments by number, so these filters must read the new one."""
    return [number for number in one if number in other and number > NO_FILTER]
