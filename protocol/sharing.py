"""What hosts of a distributed queue say of the partitions of a captured topic, when these are
shared out anew (`state/mesh/partitions.py`)."""

from __future__ import annotations

from typing import ClassVar

from .bounds import Count, Name, Partition, Topic
from .mesh import Said


class PassRecord(Said, frozen=True):
    """A record of a partition that is yours now and was mine: its columns. turn: how often I gave
    this partition away, this time included."""

    kind: ClassVar[str] = "pass_record"
    vpn: Name
    queue: Name
    topic: Topic
    partition: Partition
    offset: Count
    timestamp: int
    key: bytes | None
    value: bytes
    meta: bytes | None
    headers: str | None
    turn: Count


class TakeFrom(Said, frozen=True):
    """I take this partition myself, from this offset on; give me only what is before."""

    kind: ClassVar[str] = "take_from"
    vpn: Name
    queue: Name
    topic: Topic
    partition: Partition
    offset: Count
    turn: Count
