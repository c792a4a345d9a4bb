"""What brokers of one home say to each other: the words of `mesh/`.

The envelope and the channel's numbers are those of `mesh_envelope`. A message crosses as a whole
row of its queue; what it weighs decides how many cross in one record.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from .bounds import Count, Name, Text
from .bridges import BridgeReceipt, BridgeSend
from .mesh_envelope import BrokerNumber, MeshMessage

Contents = list[tuple[bytes, bytes | None, bytes | None]]  # payload, key, headers


class HandOver(MeshMessage, frozen=True, array_like=True):
    """Messages for a queue of the other broker. waiting: they wait in a stand-in and have no owner
    yet; else they are granted, and the ack moves the ownership. attempt: of the stand-in's lane;
    filter: of the subscription that asked; rows: of the queue here, packed; born: the directory's
    edition at which the queue was made, which tells it from others of its name; again: it may have
    been heard and answered before (R3)."""

    kind: ClassVar[str] = "hand_over"

    vpn: Name
    queue: Name
    waiting: bool
    attempt: Count
    filter: Text | None
    rows: bytes
    contents: Contents
    born: Count = 0
    again: bool = False


class Stored(MeshMessage, frozen=True, array_like=True):
    """Messages that were handed over have another owner, or are gone by its queue's own rules."""

    kind: ClassVar[str] = "stored"

    vpn: Name
    queue: Name
    waiting: bool
    ids: list[int]
    born: Count = 0


class NotTaken(MeshMessage, frozen=True, array_like=True):
    """A queue does not take what was handed over. What waited: all of this attempt, from the first
    message on that was not said to be stored. What was granted: these messages, and no others."""

    kind: ClassVar[str] = "not_taken"

    vpn: Name
    queue: Name
    waiting: bool
    attempt: Count
    why: str
    ids: list[int]
    born: Count = 0


class Room(MeshMessage, frozen=True, array_like=True):
    """How many messages of a queue consumers here can take, in all since the beginning: by filter.
    A smaller number takes back what was not used. born: which queue of this name is meant."""

    kind: ClassVar[str] = "room"

    vpn: Name
    queue: Name
    granted: list[tuple[Text | None, Count]]
    born: Count = 0


class SaidEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A queue: its definition as on the wire (None: it is gone), its hosts, its topics; the number
    of its last move, where it is to go, when it was made, and what is not shut down. bridge: of a
    bridge's end, what it is, as on the wire. born: the edition at which it was made."""

    vpn: Name
    queue: Name
    definition: bytes | None
    hosts: list[BrokerNumber] = []
    topics: list[str] = []
    move: Count = 0
    moves_to: BrokerNumber | None = None
    made: Count = 0
    ingress: bool = True
    egress: bool = True
    bridge: dict[str, Any] | None = None
    born: Count = 0


class SaidTopic(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A queue subscribes to one topic more, or to one less: it may have ten thousand."""

    vpn: Name
    queue: Name
    topic: str
    is_gone: bool = False


class Entries(MeshMessage, frozen=True, array_like=True):
    """What the keeper of the directory tells all others. edition: counts up with each change;
    brokers, groups: of the home, since a definition may name them; topic: one that changes, of a
    queue that stays as it is else."""

    kind: ClassVar[str] = "entries"

    edition: Count
    entries: list[SaidEntry]
    brokers: dict[Name, BrokerNumber]
    groups: dict[Name, Name]
    topic: SaidTopic | None = None


class Heard(MeshMessage, frozen=True, array_like=True):
    """Up to this edition the directory is known here. error: what was wrong with the last one;
    waited: how many messages a bridge had that was deleted with it; missed: the number of the last
    word that was lost on the way here; again: behind this all is said again that is under way."""

    kind: ClassVar[str] = "heard"

    edition: Count
    error: str = ""
    waited: Count = 0
    missed: Count = 0
    again: bool = False


class Forward(MeshMessage, frozen=True, array_like=True):
    """A client's command for another broker, which answers it: the keeper, or a queue's host.
    client, admin: who has proven to be."""

    kind: ClassVar[str] = "forward"

    vpn: Name
    command: bytes
    client: str = ""
    admin: bool = False


class Come(MeshMessage, frozen=True, array_like=True):
    """A queue that is to move here may come. move: the number of its move; room: bytes that may be
    stored here."""

    kind: ClassVar[str] = "come"

    vpn: Name
    queue: Name
    move: Count
    room: Count


class Carry(MeshMessage, frozen=True, array_like=True):
    """Messages of a queue that moves, as they are; and with the last of them `whole`: what else the
    queue is, packed."""

    kind: ClassVar[str] = "carry"

    vpn: Name
    queue: Name
    move: Count
    rows: bytes
    contents: Contents
    whole: bytes = b""


class HasMoved(MeshMessage, frozen=True, array_like=True):
    """To the keeper: a queue is here now. error: why it stays where it is."""

    kind: ClassVar[str] = "has_moved"

    vpn: Name
    queue: Name
    move: Count
    error: str = ""


WORDS: dict[str, type[MeshMessage]] = {
    word.kind: word
    for word in (
        HandOver,
        Stored,
        NotTaken,
        Room,
        Entries,
        Heard,
        Forward,
        Come,
        Carry,
        HasMoved,
        BridgeSend,
        BridgeReceipt,
    )
}
