"""What the hosts of a distributed queue say to each other: who may own a message (Q5, H4).

`Here` says that there is a host, `Want` asks, `Grant` gives messages, `TakenOver` confirms: see
`state/mesh/ownership.py`. `Line`, `Hold`, `Drained`, `Release` and `Released` are of barriers: see
`state/mesh/barriers.py`; `Inherited` is of one that moves: see `barrier_moves.py`. A queue is named
by its VPN and name, a message by its id; ``refs`` are the giver's own rows, which it alone reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Self

import msgspec

from .bounds import Count, Name, Text
from .mesh import BROKERS_MAX, PART_ROWS, BrokerNumber, Said, slices

CREDITS_MAX = 1_000  # messages that one broker asks another for at once
FILTERS_MAX = 64  # texts of filters that one asks with

Credits = Annotated[int, msgspec.Meta(ge=0, le=CREDITS_MAX)]
Id = Annotated[int, msgspec.Meta(ge=0)]  # msgpack has no larger one than 64 bits
Generation = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]  # see `state/rules/order.py`
Time = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]  # epoch ms; the largest says never


class Want(Said, frozen=True):
    """A host has room: it may be given ``credits`` messages, beside those on their way.

    filters: of those of its consumers that have room; None lets everything through. got: how many
    came so far. Without credits the want ends.
    """

    kind: ClassVar[str] = "want"
    vpn: Name
    queue: Name
    got: Count
    credits: Credits
    filters: Annotated[list[Text | None], msgspec.Meta(max_length=FILTERS_MAX)]


class Here(Said, frozen=True):
    """The queue is new at who says it: what was asked of it before was asked of nobody, and of what
    was given to it nothing has come but what it confirms from now on."""

    kind: ClassVar[str] = "here"
    vpn: Name
    queue: Name


_rows = msgspec.Meta(max_length=PART_ROWS)


class Grant(Said, frozen=True):
    """Messages that another broker is to own, in columns of one length, in the queue's order.

    owner: the number of the queue at the giver; fresh: they go to their first owner; refs: its
    rows; ids: by which they are known; sizes: as quotas count; levels, lanes, barriers: by the
    queue's expressions, which are not evaluated again (Q6); generations: between which barriers;
    expires, until: epoch ms, until says when what is delayed is ready; entered, deliveries,
    cancels: as they were; dead: what dead messages carry, by position.
    """

    kind: ClassVar[str] = "grant"
    vpn: Name
    queue: Name
    fresh: bool
    refs: Annotated[list[Id], _rows]
    ids: Annotated[list[Id], _rows]
    payloads: Annotated[list[bytes], _rows]
    keys: Annotated[list[bytes | None], _rows]
    headers: Annotated[list[bytes | None], _rows]
    sizes: Annotated[list[Count], _rows]
    priorities: Annotated[list[Count], _rows]
    times: Annotated[list[int], _rows]
    ttl_ends: Annotated[list[Time], _rows]
    dmq: Annotated[list[bool], _rows]
    levels: Annotated[list[Id], _rows]
    lanes: Annotated[list[Id], _rows]
    generations: Annotated[list[Generation], _rows]
    barriers: Annotated[list[bool], _rows]
    expires: Annotated[list[Time], _rows]
    until: Annotated[list[Time], _rows]
    entered: Annotated[list[int], _rows]
    deliveries: Annotated[list[Count], _rows]
    cancels: Annotated[list[Count], _rows]
    dead: dict[int, dict[str, Any]]

    def __post_init__(self) -> None:
        columns = self.__struct_fields__[3:-1]
        lengths = {len(getattr(self, name)) for name in columns}
        if len(lengths) > 1:
            raise ValueError(f"grant: columns of {sorted(lengths)} messages – one length only")

    def parts(self) -> Iterator[Self]:
        """See `Said.parts`."""
        columns = self.__struct_fields__[3:-1]
        for part in slices(self.sizes):
            first, last = part.start, part.stop
            dead = {at - first: one for at, one in self.dead.items() if first <= at < last}
            cut = {name: getattr(self, name)[part] for name in columns}
            yield msgspec.structs.replace(self, **cut, dead=dead)


class TakenOver(Said, frozen=True):
    """What became of messages that were granted: ``refs`` are owned by who says it; refused: a row,
    and its `expires` and `until`, of each that it did not take."""

    kind: ClassVar[str] = "taken"
    vpn: Name
    queue: Name
    refs: Annotated[list[Id], _rows]
    refused: Annotated[list[tuple[Id, Time, Time]], _rows]


Counts = dict[BrokerNumber, Count]


class Line(Said, frozen=True):
    """Barriers wait at who says it: what enters from now on is of this generation, or a later one,
    and so behind them (O3)."""

    kind: ClassVar[str] = "line"
    vpn: Name
    queue: Name
    generation: Generation


class Hold(Said, frozen=True):
    """A barrier is next at who says it: what is of a later generation is held back, and once it is
    the first of all, what nobody takes here goes to who says it (O3). With all of the barrier: id,
    generation, payload, key, headers, the publisher's priority, time, and when it expires, 0 for
    never."""

    kind: ClassVar[str] = "hold"
    vpn: Name
    queue: Name
    number: Id
    generation: Generation
    payload: bytes
    key: bytes | None
    headers: bytes | None
    priority: Count
    time: int
    expires: Time


class Drained(Said, frozen=True):
    """All that entered here before the hold is gone. got, given: messages, by broker, so that what
    is on its way is known; receivers: consumers here that the barrier is for."""

    kind: ClassVar[str] = "drained"
    vpn: Name
    queue: Name
    number: Id
    got: Counts
    given: Counts
    receivers: Count


class Release(Said, frozen=True):
    """A barrier goes out now, everywhere, or is gone. following: the generation of the one that is
    next at who says it, and of which it tells then. to: the broker to which it was given; -1: it is
    nowhere."""

    kind: ClassVar[str] = "release"
    vpn: Name
    queue: Name
    number: Id
    goes: bool
    following: Generation | None
    to: Annotated[int, msgspec.Meta(ge=-1, lt=BROKERS_MAX)] = -1


class Inherited(Said, frozen=True):
    """A barrier that was another broker's is here, and who hears this knows what is first here."""

    kind: ClassVar[str] = "inherited"
    vpn: Name
    queue: Name
    number: Id


class Released(Said, frozen=True):
    """A barrier that went out has gone to the consumers here."""

    kind: ClassVar[str] = "released"
    vpn: Name
    queue: Name
    number: Id
