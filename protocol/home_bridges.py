"""Messages between the ends of a bridge between two homes (H1–H3).

Each home has its own Kafka, and only the two ends of a bridge exchange messages. The near end
writes to a topic of its own home. The engine copies the bytes to the far home's topic, and the far
end's answers back. If a copy is lost, the engine copies it and all later records again. The near
end numbers its records (`BridgeSend.number`), the far end accepts the numbers in order, and an
answer names its number. So each record is handled once and in order, and the copier needs no state.

`oldest` is the first number without an answer when the record was written. A far end that has no
state for the bridge yet starts there.

Directory. Each broker writes its ends of bridges to `<vpn>.directory`. The engine reads them there
to find the bridges that it must copy for (`BridgeEnds`).

The copier reports its state to the near end in the near broker's topic (`<broker>.mesh`), under the
bridge's key. Only the engine writes there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

import msgspec

from . import topics
from .bounds import CANNOT_DECODE, Count, Name
from .mesh_messages import BridgeReceipt, BridgeSend

SentenceText = Annotated[str, msgspec.Meta(max_length=1_000)]
COPIER_PREFIX = b"#bridge/"  # no broker's name begins with it

OPEN: Final = "open"
WAITING: Final = "waiting"


class HomeSend(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A bridge's messages from a broker of another home. epoch: of that home; broker: the broker's
    name."""

    epoch: Count
    broker: Name
    oldest: Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]
    send: BridgeSend


class HomeAnswer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="a"):
    """The far end's answer."""

    receipt: BridgeReceipt


class CopierState(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="s"
):
    """The state of the connection, as reported by the copier or the far end. why: a sentence with
    the reason, if it waits."""

    state: Literal["open", "waiting"]
    why: SentenceText


_pack = msgspec.msgpack.encode
_send = msgspec.msgpack.Decoder(HomeSend)
_copied = msgspec.msgpack.Decoder(HomeAnswer | CopierState)


def encode(message: HomeSend | HomeAnswer | CopierState) -> bytes:
    """A record's value."""
    return _pack(message)


def decode_send(value: bytes | None) -> HomeSend:
    """Decode a record at the far end. Raises ValueError with a sentence for anything else."""
    try:
        return _send.decode(value or b"")
    except CANNOT_DECODE as e:
        raise ValueError(f"not a record of a bridge of another home: {e}") from e


def decode_copied(value: bytes | None) -> HomeAnswer | CopierState:
    """Decode a record at the near end. Raises ValueError with a sentence for anything else."""
    try:
        found: HomeAnswer | CopierState = _copied.decode(value or b"")
        return found
    except CANNOT_DECODE as e:
        raise ValueError(f"not the answer of a bridge's far end: {e}") from e


def bridge_key(vpn: str, bridge: str) -> bytes:
    """The key of a bridge's records in its near broker's own topics."""
    return COPIER_PREFIX + f"{vpn}/{bridge}".encode()


def of_key(key: bytes) -> tuple[str, str]:
    """The VPN and the bridge in a `bridge_key`. Raises ValueError."""
    vpn, slash, bridge = key.removeprefix(COPIER_PREFIX).decode().partition("/")
    if not (slash and vpn and bridge):
        raise ValueError(f"not the key of a bridge: {key[:100]!r}")
    return vpn, bridge


def answers_key(epoch: int, bridge: str) -> bytes:
    """The key of the answers for a home's bridge."""
    return f"{epoch}/{bridge}".encode()


# ---------------------------------------------------------------- the directory

WRITTEN = "lq-written"  # a header: the epoch of the home, and when the broker wrote the record
EndId = tuple[str, str, str]  # the VPN, the broker, the bridge


class BridgeEnd(msgspec.Struct, frozen=True):
    """One end of a bridge between homes, at a broker. broker: its number; definition: as on the
    wire."""

    broker: int
    definition: dict[str, Any]


_end = msgspec.json.Decoder(BridgeEnd)
_written = re.compile(rb"(\d{1,19})\.(\d{1,19})\.(\d{1,19})")


def end_key(broker: str, bridge: str) -> bytes:
    """The key of a bridge's end in the directory. It names the broker, so that two brokers that
    have the same bridge one after the other do not overwrite each other's entry."""
    return f"{topics.DIRECTORY_BRIDGE}{broker}/{bridge}".encode()


def encode_written(epoch: int, time: int, event: int) -> bytes:
    """The header `WRITTEN`. time, event: the broker's, which only grow."""
    return f"{epoch}.{time}.{event}".encode()


class BridgeEnds:
    """The ends of bridges between homes, read from the directories.

    A replaced worker of a broker may still write, so an older record may follow a newer one;
    readers ignore it. If compaction keeps only the older record, a new reader starts with a wrong
    entry. So each broker writes all its ends again when the engine starts, and corrects a copier
    that serves a bridge that the broker does not have.
    """

    def __init__(self) -> None:
        self.ends: dict[EndId, BridgeEnd] = {}
        self._written: dict[EndId, tuple[int, int]] = {}

    def read(
        self, epoch: int, topic: str, key: bytes | None, value: bytes | None,
        headers: Iterable[tuple[str, object]],
    ) -> EndId | None:  # fmt: skip
        """Read a record of a directory; returns the end that it describes. None for any other
        record, one of another home than `epoch`, or one older than the known entry. Raises
        ValueError for a malformed record."""
        if key is None or not key.startswith(topics.DIRECTORY_BRIDGE.encode()):
            return None
        try:
            broker, _, bridge = key.decode().removeprefix(topics.DIRECTORY_BRIDGE).partition("/")
            end = None if value is None else _end.decode(value)
        except CANNOT_DECODE as e:
            raise ValueError(f"{topic}: {key[:100]!r} is not a bridge's record: {e}") from e
        said = dict(headers).get(WRITTEN)
        written = _written.fullmatch(said) if isinstance(said, bytes) else None
        if written is None:
            raise ValueError(f"{topic}: {key[:100]!r} has no valid header {WRITTEN!r}")
        own_epoch, time, event = map(int, written.groups())
        found, when = (topic.rpartition(".")[0], broker, bridge), (time, event)
        if own_epoch != epoch or when < self._written.get(found, when):
            return None
        self._written[found] = when
        self.ends.pop(found, None)
        if end is not None:
            self.ends[found] = end
        return found
