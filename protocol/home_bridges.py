"""What the ends of a bridge between two homes say to each other (H1–H3).

Theory. Each home has its own Kafka, and none of its brokers is a peer of the other's: only the two
ends of one bridge speak. What the near end says stands in a topic of its own home, and the engine
copies the bytes to the far home's door, and the far end's answers back. A copy may come again, and
one that did not arrive is copied later with all behind it. The near end numbers what it says (the
number in `BridgeSend`), the far end takes the numbers one after the other, and an answer names its
number; so each is heard once and in order, and whoever copies needs to remember nothing.

`oldest` is the first number without an answer as this was said: there the far end begins that never
heard of the bridge.

What the copier itself has to say to the near end comes through the near end's own topic, which
nobody but the engine writes (`<broker>.mesh`), under the key of the bridge.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from .bounds import Count, Name
from .bridges import BridgeReceipt, BridgeSend

SentenceText = Annotated[str, msgspec.Meta(max_length=1_000)]
COPIER_PREFIX = b"#bridge/"  # no broker's name begins so

OPEN, WAITING = "open", "waiting"


class HomeSend(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Messages, from a broker of another home. epoch: of that home; broker: its name."""

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
    """How it is with the way to the far end. why: a sentence, where it waits."""

    state: Literal["open", "waiting"]
    why: SentenceText


_pack = msgspec.msgpack.encode
_send = msgspec.msgpack.Decoder(HomeSend)
_copied = msgspec.msgpack.Decoder(HomeAnswer | CopierState)
_FAILS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode(said: HomeSend | HomeAnswer | CopierState) -> bytes:
    """A record's value."""
    return _pack(said)


def decode_send(value: bytes | None) -> HomeSend:
    """What comes in at the far end; raises ValueError with a sentence for anything else."""
    try:
        return _send.decode(value or b"")
    except _FAILS as e:
        raise ValueError(f"not what a bridge of another home says: {e}") from e


def decode_copied(value: bytes | None) -> HomeAnswer | CopierState:
    """What the near end is told; raises ValueError with a sentence for anything else."""
    try:
        found: HomeAnswer | CopierState = _copied.decode(value or b"")
        return found
    except _FAILS as e:
        raise ValueError(f"not the answer of a bridge's far end: {e}") from e


def bridge_key(vpn: str, bridge: str) -> bytes:
    """The key of what is said of a bridge in its near broker's own topics."""
    return COPIER_PREFIX + f"{vpn}/{bridge}".encode()


def of_key(key: bytes) -> tuple[str, str]:
    """VPN and bridge of such a key. Raises ValueError."""
    vpn, slash, bridge = key.removeprefix(COPIER_PREFIX).decode().partition("/")
    if not (slash and vpn and bridge):
        raise ValueError(f"not the key of a bridge: {key[:100]!r}")
    return vpn, bridge


def answers_key(epoch: int, bridge: str) -> bytes:
    """The key of the answers that are for this home's bridge of that name."""
    return f"{epoch}/{bridge}".encode()
