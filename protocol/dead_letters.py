"""What brokers say to each other when a dead message queue is elsewhere (X5, X6).

`DeadLetters` brings dead messages to a broker that has the queue, `DeadTaken` says what became of
them, `DeadCounted` tells the broker of the queue in which they died: see
`state/mesh/dead_ways.py`. `GoBack` sends them back to that queue, `WentBack` says which it took:
see `state/mesh/going_back.py`. ``refs`` are the sender's own rows, which it alone reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Self

import msgspec

from .bounds import Count, Name, Text
from .granting import Id, Time
from .mesh import BROKERS_MAX, PART_ROWS, Said, slices

_rows = msgspec.Meta(max_length=PART_ROWS)
Refs = Annotated[list[Id], _rows]


class _DeadColumns(Said, frozen=True):
    """Dead messages, in columns of one length, in their order. ids: by which they are known; sizes:
    as quotas count."""

    vpn: Name
    queue: Name
    refs: Refs
    ids: Annotated[list[Id], _rows]
    payloads: Annotated[list[bytes], _rows]
    keys: Annotated[list[bytes | None], _rows]
    headers: Annotated[list[bytes | None], _rows]
    sizes: Annotated[list[Count], _rows]
    priorities: Annotated[list[Count], _rows]
    times: Annotated[list[int], _rows]
    ttl_ends: Annotated[list[Time], _rows]
    dmq: Annotated[list[bool], _rows]
    dead: Annotated[list[dict[str, Any]], _rows]

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in _COLUMNS}
        if len(lengths) > 1:
            raise ValueError(f"{self.kind}: columns of {sorted(lengths)} – one length only")

    def parts(self) -> Iterator[Self]:
        """See `Said.parts`."""
        for part in slices(self.sizes):
            cut = {name: getattr(self, name)[part] for name in _COLUMNS}
            yield msgspec.structs.replace(self, **cut)


_COLUMNS = _DeadColumns.__struct_fields__[2:]


class DeadLetters(_DeadColumns, frozen=True):
    """Messages that have died. dead: what each carries, the queues in which it died among it."""

    kind: ClassVar[str] = "dead_letters"


class DeadTaken(Said, frozen=True):
    """Of these dead messages: taken are in the queue; lost it does not take, and why; back are to
    be brought again, to the broker ``to`` where that is known to be better, else -1."""

    kind: ClassVar[str] = "dead_taken"
    vpn: Name
    queue: Name
    taken: Refs
    lost: Refs
    why: Text
    back: Refs
    to: Annotated[int, msgspec.Meta(ge=-1, lt=BROKERS_MAX)] = -1


class DeadCounted(Said, frozen=True):
    """Messages that died in this queue have reached its dead message queue (lost: none could take
    them, and why): it is to count them. ids: by which they are known."""

    kind: ClassVar[str] = "dead_counted"
    vpn: Name
    queue: Name
    dead_message_queue: Name
    ids: Annotated[list[Id], _rows]
    lost: bool
    why: Text


class GoBack(_DeadColumns, frozen=True):
    """Dead messages are to go back to the queue in which they died. dead: what was edited of each
    (R6); source: the dead message queue; ticket: of the redrive at who says it."""

    kind: ClassVar[str] = "go_back"
    source: Name
    ticket: Count


class WentBack(Said, frozen=True):
    """Of these: taken are in the queue again; stayed stay dead, by reason; missed did not find it,
    which is at the broker ``to``."""

    kind: ClassVar[str] = "went_back"
    vpn: Name
    queue: Name
    ticket: Count
    taken: Refs
    stayed: dict[Name, Refs]
    missed: Refs
    to: Annotated[int, msgspec.Meta(ge=-1, lt=BROKERS_MAX)] = -1
