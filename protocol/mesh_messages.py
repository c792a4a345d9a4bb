"""Messages between brokers of a home: the envelope, the messages of `mesh/` and those of bridges.

Each ordered pair of brokers has one channel. A message is an output of one broker's step and an
input of the other's, each exactly once and in order (`mesh/channel.py`).

A record is a msgpack array: the sender's number and name, the home's epoch, the record's number,
the kind, the body, and the number up to which the sender confirms the other broker's records. The
body is the array of the fields of a `MeshMessage`, whose types have the bounds. Senders split lists
of messages (`slices`), so that a record never exceeds what Kafka accepts.

A message travels with its complete row of the queue. A bridge's near end sends messages lane by
lane; a lane's messages must keep their order. The far end answers each record with a receipt, which
names only refused messages. `link` is the number of the bridge's endpoint at the near broker. It is
never reused, so a recreated bridge ignores receipts for its predecessor (H1–H3).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import msgspec

from .bounds import CANNOT_DECODE, Count, Name, Text, Topic

BROKERS_MAX = 65_536  # a broker's number is the top 16 bits of its message ids
PART_BYTES = 500_000  # messages in one record; a single message may be larger
PART_ROWS = 10_000

BrokerNumber = Annotated[int, msgspec.Meta(ge=0, lt=BROKERS_MAX)]
RecordNumber = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
NO_ROWS = msgspec.msgpack.encode([])


class MeshMessage(msgspec.Struct, frozen=True, array_like=True):
    """Base of all messages between brokers. kind: its name on the wire. Decoders ignore extra
    fields at the end, which another version may send."""

    kind: ClassVar[str] = ""

    def without_messages(self) -> MeshMessage:
        """The part that a sender keeps until the message is confirmed. Its queue keeps the
        contents."""
        return self


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A record of the channel. sender, name: the sending broker's; epoch: of its home; number: the
    record's in this channel, or in a `Sync` the last record's; confirms: the number of the last
    record that the sender has received."""

    sender: BrokerNumber
    name: Name
    epoch: Count
    number: RecordNumber
    kind: Name
    body: msgspec.Raw
    confirms: RecordNumber = 0


_pack = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(Envelope)


def encode(
    sender: int, name: str, epoch: int, number: int, body: MeshMessage, confirms: int = 0
) -> bytes:
    """A record's value."""
    raw = msgspec.Raw(_pack(body))
    return _pack(Envelope(sender, name, epoch, number, body.kind, raw, confirms))


def encode_body(message: MeshMessage) -> bytes:
    """A record's message; see `decode_body`."""
    return _pack(message)


def decode(value: bytes | None) -> Envelope:
    """Decode a record. Raises ValueError with a sentence for anything else."""
    try:
        return _decoder.decode(value or b"")
    except CANNOT_DECODE as e:
        raise ValueError(f"not a message of a broker: {e}") from e


def decode_body(kind: str, body: bytes) -> MeshMessage:
    """Decode a record's message. Raises ValueError with a sentence for anything else."""
    decoder = _decoders.get(kind)
    if decoder is None:
        raise ValueError(f"kind: {kind!r} – allowed are {', '.join(sorted(WORDS))}")
    try:
        return decoder.decode(body)
    except CANNOT_DECODE as e:
        raise ValueError(f"not {kind!r}: {e}") from e


def slices(
    sizes: list[int], rows_max: int = PART_ROWS, bytes_max: int = PART_BYTES
) -> Iterator[slice]:
    """Slices of messages with these sizes in bytes, each within the limits; one message may be
    larger."""
    start = size = 0
    for at, one in enumerate(sizes):
        if at > start and (size + one > bytes_max or at - start >= rows_max):
            yield slice(start, at)
            start, size = at, 0
        size += one
    if sizes:
        yield slice(start, len(sizes))


# ---------------------------------------------------------------- bridges

Rows = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


class BridgeSend(MeshMessage, frozen=True):
    """Messages of a bridge. lanes: the number of messages in each lane; the columns behind it have
    a row per message, lane after lane. to: index in `destinations`; ttl_ends, due: epoch ms, 0 for
    none; vpn: the far end's; came_from: the near end's VPN, if it is another one."""

    kind: ClassVar[str] = "bridge_send"
    link: Count
    bridge: Name
    vpn: Name
    number: Count
    destinations: list[Topic]
    lanes: list[Rows]
    to: list[Count]
    payloads: list[bytes]
    keys: list[bytes | None]
    headers: list[bytes | None]
    times: list[Count]
    ttl_ends: list[Count]
    priorities: list[Annotated[int, msgspec.Meta(ge=0, le=255)]]
    dmq: list[bool]
    due: list[Count]
    came_from: Name = ""

    def without_messages(self) -> BridgeSend:
        """See `MeshMessage`."""
        return BridgeSend(
            self.link, self.bridge, self.vpn, self.number, [], [], [], [], [], [], [], [], [], [],
            [], self.came_from,
        )  # fmt: skip


class BridgeReceipt(MeshMessage, frozen=True):
    """The answer to the `BridgeSend` with this number. refused: (lane, messages stored before the
    refusal, reason, refusing queue); the rest of such a lane was not stored."""

    kind: ClassVar[str] = "bridge_receipt"
    link: Count
    number: Count
    refused: list[tuple[Count, Count, Name, Name]]


# ---------------------------------------------------------------- the mesh

Contents = list[tuple[bytes, bytes | None, bytes | None]]  # payload, key, headers


class HandOver(MeshMessage, frozen=True):
    """Messages for a queue of the other broker. waiting: True for messages of a stand-in; False for
    messages granted to the other broker, to its consumers or because the queue moves there, whose
    `Answer` moves the ownership. attempt: of the stand-in's lane; filter: of the subscription that
    requested them; rows: packed; born: the directory's edition that created the queue, which
    distinguishes it from earlier queues of its name; whole: the packed facts of a queue that moves,
    after all its messages."""

    kind: ClassVar[str] = "hand_over"

    vpn: Name
    queue: Name
    waiting: bool
    attempt: Count
    filter: Text | None
    rows: bytes
    contents: Contents
    born: Count = 0
    whole: bytes = b""

    def without_messages(self) -> HandOver:
        """See `MeshMessage`."""
        return msgspec.structs.replace(self, rows=NO_ROWS, contents=[])


class Answer(MeshMessage, frozen=True):
    """The answer to a `HandOver`. stored: ids that the queue stored, or removed by its
    rules. why: the reason for refusing the others; empty if none was refused. With `waiting`, the
    refused messages are all others of the attempt; granted ones are listed in `refused`."""

    kind: ClassVar[str] = "answer"

    vpn: Name
    queue: Name
    waiting: bool
    attempt: Count
    born: Count
    stored: list[int]
    why: str = ""
    refused: list[int] = []


class Room(MeshMessage, frozen=True):
    """By filter, how many messages of a queue the sender's consumers can take now, including
    messages in transit to it; None if no consumer has this filter any more. Filters that are not
    listed have not changed. born: as in `HandOver`."""

    kind: ClassVar[str] = "room"

    vpn: Name
    queue: Name
    rooms: list[tuple[Text | None, Count | None]]
    born: Count = 0


class ChangedEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A changed entry of the directory: a packed `mesh.facts.Entry`, or None if the queue was
    deleted."""

    vpn: Name
    queue: Name
    entry: bytes | None


class ChangedTopic(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One changed topic subscription of a queue, which may have ten thousand."""

    vpn: Name
    queue: Name
    topic: str
    is_gone: bool = False


class Entries(MeshMessage, frozen=True):
    """Changes of the directory, from its keeper to all others, which confirm them at once.
    edition: grows with each change; brokers, groups: the home's, since a definition may name them;
    topic: a changed topic subscription."""

    kind: ClassVar[str] = "entries"

    edition: Count
    entries: list[ChangedEntry]
    brokers: dict[Name, BrokerNumber]
    groups: dict[Name, Name]
    topic: ChangedTopic | None = None


class Forward(MeshMessage, frozen=True):
    """A client's command for the broker that answers it: the keeper, or a queue's host. client,
    admin: the client that signed it."""

    kind: ClassVar[str] = "forward"

    vpn: Name
    command: bytes
    client: str = ""
    admin: bool = False


class Come(MeshMessage, frozen=True):
    """The sender is ready for a queue that is to move to it. move: the directory's edition that
    began the move; room: the bytes that it can store."""

    kind: ClassVar[str] = "come"

    vpn: Name
    queue: Name
    move: Count
    room: Count


class HasMoved(MeshMessage, frozen=True):
    """Reports to the keeper that a queue has moved to the sender. error: the reason, if it has not;
    is_late: it may move later, though."""

    kind: ClassVar[str] = "has_moved"

    vpn: Name
    queue: Name
    move: Count
    error: str = ""
    is_late: bool = False


class Sync(MeshMessage, frozen=True):
    """Controls the channel itself; it has no number of its own. again: the sender lacks records;
    answer: it asks what has been received."""

    kind: ClassVar[str] = "sync"

    again: bool = False
    answer: bool = False


WORDS = {word.kind: word for word in MeshMessage.__subclasses__()}
_decoders = {kind: msgspec.msgpack.Decoder(word) for kind, word in WORDS.items()}
