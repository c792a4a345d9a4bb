"""Which lanes of a bridge the far end holds back, by which endpoint, since when (H2, H3).

An event tells it once: `bridge_blocked` as the first lane is held by an endpoint, `bridge_cleared`
as the last one goes through. A lane that was held is *opening* after its first message got through:
it is sent as others are, and counts as held until all that was sent of it is taken, so an endpoint
that takes a message now and then is told of once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...protocol.errors import Reason
from ..message import Event, apply
from ..message.table import ENDINGS
from ..storage import Array

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue
    from .link import Link

RETRY_MS = 500  # what a lane waits at first, then twice as long each time
RETRY_MAX_MS = 5_000


class HeldLane(msgspec.Struct, array_like=True):
    """A lane that is held. destination: of its first message; endpoint: the queue that refuses, ""
    where it is none; since: epoch ms; tries: refused in a row."""

    destination: str
    endpoint: str
    reason: str
    since: int
    tries: int = 1
    opening: bool = False


def held_ms(held: HeldLane | None) -> int:
    """How long a lane waits before it is tried again."""
    if held is None:  # one too many to be known by name
        return RETRY_MAX_MS
    return int(min(RETRY_MS << min(held.tries - 1, 10), RETRY_MAX_MS))


def hold(
    broker: Broker, queue: Queue, link: Link, lane: int, destination: str, reason: str,
    endpoint: str, progress: bool,
) -> HeldLane | None:  # fmt: skip
    """A lane was refused. progress: some of it was taken before."""
    held = link.held.get(lane)
    if held is None:
        if len(link.held) >= broker.limits.bridge_holds:
            return None
        known = any(h.endpoint == endpoint for h in link.held.values())
        held = link.held[lane] = HeldLane(destination, endpoint, reason, broker.now)
        if not known:
            _tell_blocked(broker, queue, link, lane, held)
        return held
    soon = progress or held.opening or reason == Reason.MOVED  # it will have arrived
    held.tries = 1 if soon else held.tries + 1
    held.opening = False
    held.destination, held.reason = destination, reason
    if held.endpoint != endpoint:
        others = {h.endpoint for key, h in link.held.items() if key != lane}
        before, since = held.endpoint, held.since
        held.endpoint, held.since = endpoint, broker.now
        if before not in others:
            _tell_cleared(broker, link, before, since)
        if endpoint not in others:
            _tell_blocked(broker, queue, link, lane, held)
    return held


def went_through(broker: Broker, queue: Queue, link: Link, lane: int) -> None:
    """All that was sent of a held lane was taken."""
    held = link.held[lane]
    if held.opening or queue.lanes.next_of(lane) is None:
        _clear(broker, link, lane)
    else:
        held.opening, held.tries = True, 1


def forget_empty(broker: Broker, queue: Queue, link: Link) -> None:
    """A held lane whose messages expired or were purged holds nothing any more."""
    counters = queue.header.counters
    gone = sum(counters.get(name, 0) for name in ENDINGS) - counters.get("acknowledged", 0)
    if gone == link.gone:
        return
    link.gone = gone
    for lane in [lane for lane in link.held if queue.lanes.next_of(lane) is None]:
        _clear(broker, link, lane)


def _clear(broker: Broker, link: Link, lane: int) -> None:
    held = link.held.pop(lane)
    if not any(h.endpoint == held.endpoint for h in link.held.values()):
        _tell_cleared(broker, link, held.endpoint, held.since)


def _tell_blocked(broker: Broker, queue: Queue, link: Link, lane: int, held: HeldLane) -> None:
    broker.event(
        "bridge_blocked", link.vpn, held.endpoint, bridge=link.bridge, to=link.to_name,
        reason=held.reason, destination=held.destination, waiting=queue.lanes.length(lane),
    )  # fmt: skip


def _tell_cleared(broker: Broker, link: Link, endpoint: str, since: int) -> None:
    broker.event(
        "bridge_cleared", link.vpn, endpoint, bridge=link.bridge, to=link.to_name,
        after_s=(broker.now - since) / 1000,
    )  # fmt: skip


def lose(broker: Broker, queue: Queue, seqs: Array) -> None:
    """Messages whose payloads are missing from the state are lost, and that is said."""
    ids = apply(broker, queue, seqs, Event.LOSE, reason="payload missing")
    broker.event(
        "payload_missing", broker.vpn_of(queue), queue.definition.name, messages=len(ids),
        first=str(ids[0]),
    )  # fmt: skip
