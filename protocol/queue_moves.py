"""What two brokers say to each other while a queue moves (`state/mesh/queue_moving.py`).

`Arrive` asks whether there is room, `Expected` answers; its messages go as those of a distributed
queue do (`Grant`, `TakenOver`), and `HandOver` says all else that the queue is.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from .bounds import Count, Name, Topic
from .mesh import BrokerNumber, Said


class Arrive(Said, frozen=True):
    """A queue wants to come, with so many bytes of messages. ticket: the keeper's; topics: that it
    has subscribed to; base: the broker where it was made."""

    kind: ClassVar[str] = "arrive"
    ticket: Count
    vpn: Name
    queue: Name
    definition: dict[str, Any]
    size: Count
    topics: list[Topic]
    base: BrokerNumber = 0


class Expected(Said, frozen=True):
    """It may come, or why not. topics: the ones with which it is expected."""

    kind: ClassVar[str] = "expected"
    ticket: Count
    vpn: Name
    queue: Name
    error: str | None = None
    topics: list[Topic] = msgspec.field(default_factory=list)


class QueueState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a queue is beside its definition and its messages."""

    created: int
    ingress: bool
    egress: bool
    next_delivery: Count
    counters: dict[str, int]
    rejected: dict[str, int]
    discarded: dict[str, int]
    invalid: Count
    deferred: list[list[int]]
    topics: list[Topic]


class HandOver(Said, frozen=True):
    """All messages are there: from now on the queue is."""

    kind: ClassVar[str] = "hand_over"
    ticket: Count
    vpn: Name
    queue: Name
    state: QueueState


class QueueTakes(Said, frozen=True):
    """To the broker where a queue was made: what it is now, and the topics that it takes."""

    kind: ClassVar[str] = "queue_takes"
    vpn: Name
    queue: Name
    definition: dict[str, Any]
    topics: list[Topic]


class Adopted(Said, frozen=True):
    """The queue's broker, to the keeper: where it was made is no more; from now on it is here.
    host: who says so, -1: who is heard (of an earlier version)."""

    kind: ClassVar[str] = "adopted"
    vpn: Name
    queue: Name
    host: int = -1


class TrailReads(Said, frozen=True):
    """To the keeper: plain records are read here of a queue that was made here, wherever it is."""

    kind: ClassVar[str] = "trail_reads"
    vpn: Name
    queue: Name
