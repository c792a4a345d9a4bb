"""What brokers of one home say to each other: the envelope, and the door in and out.

Theory. Of each ordered pair of brokers there is one channel: what one says is an output of its
step, what the other hears is an input of its step, and records between the two are numbered from 1
by the sender. A step that runs again says the same bytes under the same numbers, so what was heard
before is known by its number and dropped. Hence every protocol between brokers may take it as given
that what it says arrives exactly once and in order (`mesh/channel.py`).

On the wire a record is a msgpack array: sender's number and name, epoch of the home, number, kind,
body. The body is the array of the fields of a `MeshMessage`; bounds stand in its types. Whoever
sends messages cuts them (`slices`), so that one record never outgrows what Kafka takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, TypeVar

import msgspec

from .bounds import Count, Name

BROKERS_MAX = 65_536  # numbers of brokers: the top 16 bits of message ids
PART_BYTES = 500_000  # of messages in one record; a single message may be larger
PART_ROWS = 10_000

BrokerNumber = Annotated[int, msgspec.Meta(ge=0, lt=BROKERS_MAX)]


class MeshMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all that brokers say. kind: what it is called on the wire."""

    kind: ClassVar[str] = ""


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A record of the channel. sender, name: of the broker that says it; epoch: of its home;
    number: of the record between these two brokers."""

    sender: BrokerNumber
    name: Name
    epoch: Count
    number: Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]
    kind: Name
    body: msgspec.Raw


S = TypeVar("S", bound=MeshMessage)

_pack = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(Envelope)
_decoders: dict[type[MeshMessage], msgspec.msgpack.Decoder[MeshMessage]] = {}


def encode(sender: int, name: str, epoch: int, number: int, body: MeshMessage) -> bytes:
    """A record's value."""
    return _pack(Envelope(sender, name, epoch, number, body.kind, msgspec.Raw(_pack(body))))


def decode(value: bytes | None) -> Envelope:
    """Read a record; raises ValueError with a sentence for anything else."""
    try:
        return _decoder.decode(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ValueError(f"not what a broker says: {e}") from e


def decode_body(envelope: Envelope, kind: type[S]) -> S:
    """What is said; raises ValueError with a sentence for anything else."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        return decoder.decode(envelope.body)  # type: ignore[return-value]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ValueError(f"not {envelope.kind!r}: {e}") from e


def slices(sizes: list[int]) -> Iterator[slice]:
    """Where columns of messages with these sizes are cut, so that each part fits into a record."""
    start = size = 0
    for at, one in enumerate(sizes):
        if at > start and (size + one > PART_BYTES or at - start >= PART_ROWS):
            yield slice(start, at)
            start, size = at, 0
        size += one
    if sizes:
        yield slice(start, len(sizes))
