"""What brokers say to each other when one of them is removed (`state/mesh/parting.py`).

round: of the keeper's, which counts how often a removal was begun: what was said in an earlier one
is of no use any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Self

import msgspec

from .bounds import Count, Name, Partition, Topic
from .granting import Counts
from .mesh import PART_ROWS, BrokerNumber, Said, slices


class Part(Said, frozen=True):
    """The keeper: this broker is to be removed; nothing in the directory is on it."""

    kind: ClassVar[str] = "part"
    round: Count
    broker: BrokerNumber


class Aware(Said, frozen=True):
    """To who is removed: I know it; I grant you nothing more, and take what you have."""

    kind: ClassVar[str] = "aware"
    round: Count


_rows = msgspec.Meta(max_length=PART_ROWS)
_ROW_BYTES = 20  # more than a partition and an offset take


class ReadTo(Said, frozen=True):
    """To who is removed, before I say that I know it: up to there I have read captured topics, in
    columns. offsets: the next ones."""

    kind: ClassVar[str] = "read_to"
    round: Count
    topics: Annotated[list[Topic], _rows]
    partitions: Annotated[list[Partition], _rows]
    offsets: Annotated[list[Count], _rows]

    def parts(self) -> Iterator[Self]:
        """See `Said.parts`."""
        for part in slices([len(topic) + _ROW_BYTES for topic in self.topics]):
            columns = self.topics[part], self.partitions[part], self.offsets[part]
            yield type(self)(self.round, *columns)


class LastRead(Said, frozen=True):
    """Who is removed, to those who host the queue with it: I have taken all that is before these
    offsets, and take nothing behind; -1: what I took there another host takes already. Of
    partitions that are not named I have read nothing; claims: on which of these would be mine."""

    kind: ClassVar[str] = "last_read"
    round: Count
    vpn: Name
    queue: Name
    claims: list[list[list[BrokerNumber]]]
    topics: Annotated[list[Topic], _rows]
    partitions: Annotated[list[Partition], _rows]
    offsets: Annotated[list[Annotated[int, msgspec.Meta(ge=-1)]], _rows]

    def parts(self) -> Iterator[Self]:
        """See `Said.parts`."""
        if not self.topics:
            yield self
        for part in slices([len(topic) + _ROW_BYTES for topic in self.topics]):
            columns = self.topics[part], self.partitions[part], self.offsets[part]
            yield type(self)(self.round, self.vpn, self.queue, self.claims, *columns)


class HandIn(Said, frozen=True):
    """Who is removed, to who gets its messages of a distributed queue: all are there; this is what
    was counted, and the acks that came early."""

    kind: ClassVar[str] = "hand_in"
    vpn: Name
    queue: Name
    counters: dict[str, int]
    rejected: dict[str, int]
    discarded: dict[str, int]
    invalid: Count
    deferred: list[list[int]]


class LastCounts(Said, frozen=True):
    """Who is removed, to those who host the queue with it: so many messages it got from each and
    gave to each, and there will be no more (O3)."""

    kind: ClassVar[str] = "last_counts"
    vpn: Name
    queue: Name
    got: Counts
    given: Counts


class Stays(Said, frozen=True):
    """The keeper, to all: this removal is given up."""

    kind: ClassVar[str] = "stays"
    round: Count


class Quiet(Said, frozen=True):
    """Who is removed: no message is here, and you have heard so of all patterns."""

    kind: ClassVar[str] = "quiet"
    round: Count


class Farewell(Said, frozen=True):
    """To who is removed: nothing that I asked of you is open; you need hear no more of me."""

    kind: ClassVar[str] = "farewell"
    round: Count


class Bequest(Said, frozen=True):
    """To who reads my partitions on: what these producers have sent to me, in columns. vpns: or, of
    a broker whose partitions I read on, as `producers.home_of` names it; histories: as pages."""

    kind: ClassVar[str] = "bequest"
    round: Count
    vpns: Annotated[list[Name], _rows]
    names: Annotated[list[Name], _rows]
    histories: Annotated[list[bytes], _rows]

    def parts(self) -> Iterator[Self]:
        """See `Said.parts`."""
        for part in slices([len(one) + 2_000 for one in self.histories]):
            yield type(self)(self.round, self.vpns[part], self.names[part], self.histories[part])


class Left(Said, frozen=True):
    """Who is removed: these were my last words. heirs: removed brokers whose partitions I read."""

    kind: ClassVar[str] = "left"
    round: Count
    heirs: dict[BrokerNumber, Name] = msgspec.field(default_factory=dict)


class HeardLast(Said, frozen=True):
    """To the keeper: I have heard the last words."""

    kind: ClassVar[str] = "heard_last"
    round: Count
