"""What the two ends of a bridge say to each other, over the channel between their brokers (H1–H3).

The near end says messages, lane by lane: a lane is what must keep its order. The far end answers
each such record with a receipt: what it does not name was taken. `link` is the number of the
bridge's endpoint at the near broker, which is never given again, so a bridge that was deleted and
made again hears no receipt of its predecessor.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from .bounds import Count, Name, Topic
from .mesh_envelope import MeshMessage

Rows = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


class BridgeSend(MeshMessage, frozen=True):
    """Messages. lanes: how many messages each has; the columns behind it have a row for each
    message, lanes one after the other. to: place in `destinations`; ttl_ends, due: epoch ms, 0 for
    none; vpn: of the far end; came_from: the near end's where that is another one; oldest: the
    first number without an answer as this was said."""

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
    oldest: Count = 0


class BridgeReceipt(MeshMessage, frozen=True):
    """The answer to the send with this number. refused: (lane, how many of it were taken before,
    reason, queue that refused): of such a lane nothing behind was taken."""

    kind: ClassVar[str] = "bridge_receipt"
    link: Count
    number: Count
    refused: list[tuple[Count, Count, Name, Name]]
