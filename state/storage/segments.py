"""The parts of a queue's cold part: summaries of segments, groups, merges; and how they are stored.

`runs` says what they are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

NO_FILTER = 0  # who takes everything, among those that have looked at a segment
LEVEL_BITS = 2  # a level has this many bits more rows than the one below


@dataclass(slots=True, eq=False)
class Segment:
    """What is known of a segment without reading it. Only `Runs` changes it, but for `looked`."""

    group: Group = field(repr=False)
    number: int
    first: int  # keys
    last: int
    rows: int
    bytes: int  # their sizes (Q8)
    id_first: int  # its ids are in this range
    id_last: int
    due: int  # when something of its rows is due first, or NEVER
    # Filters that have looked at it, by number, and took what they want. With the other sign: but
    # for rows that wait for others of their lanes. Lanes know these by the number of this segment.
    looked: list[int]
    skip: int = 0  # rows at the front of the page that a merge has moved away

    def was_seen_by(self, number: int) -> bool:
        """Whether a filter has looked at it."""
        return number in self.looked or -number in self.looked

    def packed(self) -> StoredSegment:
        """As the queue's page keeps it."""
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
        """The segment that `packed` made this of."""
        return Segment(
            group, self.number, int(self.first, 16), int(self.last, 16), self.rows, self.bytes,
            self.id_first, self.id_last, self.due, list(self.looked), self.skip,
        )  # fmt: skip


class StoredGroup(msgspec.Struct, array_like=True):
    """merge: the number of the merge it is in, or 0; its output comes first in the list."""

    merge: int
    segments: list[StoredSegment]


class RunsState(msgspec.Struct, array_like=True):
    """The cold part in its queue's page."""

    next_number: int = 1
    groups: list[StoredGroup] = []
    ids: list[tuple[int, int]] = []  # of `IdSet`
    merges: list[tuple[int, int]] = []  # number and level


@dataclass(slots=True, eq=False)
class Group:
    """Segments that follow each other. merge: the number of the merge it is in, or 0."""

    segments: list[Segment]
    merge: int = 0

    @property
    def last(self) -> int:
        """The key of its last row."""
        return self.segments[-1].last

    def level(self) -> int:
        """By its rows; those of a level are four times as many as those of the one below."""
        return sum(segment.rows for segment in self.segments).bit_length() // LEVEL_BITS


@dataclass(slots=True, eq=False)
class Merge:
    """Rows on their way from the fronts of some groups to the end of one."""

    number: int
    level: int
    output: Group
    inputs: list[Group] = field(default_factory=list)


def common(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Filters that have looked at all rows of a page that two others become. Lanes know where their
    rows wait by a page's number, so these are to be met again."""
    return [number for number in one if number in other and number > NO_FILTER]
