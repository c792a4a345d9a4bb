"""Which lanes of a bridge the far end holds back, by which endpoint, since when (H2, H3).

An event tells it once: `bridge_blocked` as the first lane is held by an endpoint, `bridge_cleared`
as the last one goes through. A lane that was held is *opening* after its first message got through:
it is sent as others are, and counts as held until all that was sent of it is taken, so an endpoint
that takes a message now and then is told of once.
"""

from __future__ import annotations

from ...protocol.errors import Reason
from ...state.queue.broker import Broker
from .bridge_facts import HeldLane, Link

RETRY_MS = 500  # what a lane waits at first, then twice as long each time
RETRY_MAX_MS = 5_000


def held_ms(held: HeldLane | None) -> int:
    """How long a lane waits before it is tried again."""
    if held is None:  # one too many to be known by name
        return RETRY_MAX_MS
    return int(min(RETRY_MS << min(held.tries - 1, 10), RETRY_MAX_MS))


def hold(
    broker: Broker, link: Link, lane: int, destination: str, reason: str, endpoint: str,
    progress: bool,
) -> HeldLane | None:  # fmt: skip
    """A lane was refused. progress: some of it was taken before."""
    held = link.held.get(lane)
    if held is None:
        if len(link.held) >= broker.limits.bridge_holds:
            return None
        known = any(h.endpoint == endpoint for h in link.held.values())
        held = link.held[lane] = HeldLane(destination, endpoint, reason, broker.now)
        if not known:
            _tell_blocked(broker, link, lane, held)
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
            _tell_blocked(broker, link, lane, held)
    return held


def went_through(broker: Broker, link: Link, lane: int) -> None:
    """All that was sent of a held lane was taken."""
    held = link.held[lane]
    if held.opening or lane not in link.waiting:
        _clear(broker, link, lane)
    else:
        held.opening, held.tries = True, 1


def forget_empty(broker: Broker, link: Link) -> None:
    """A held lane of which nothing waits any more holds nothing."""
    for lane in [lane for lane in link.held if lane not in link.waiting]:
        _clear(broker, link, lane)


def _clear(broker: Broker, link: Link, lane: int) -> None:
    held = link.held.pop(lane)
    if not any(h.endpoint == held.endpoint for h in link.held.values()):
        _tell_cleared(broker, link, held.endpoint, held.since)


def _tell_blocked(broker: Broker, link: Link, lane: int, held: HeldLane) -> None:
    broker.event(
        "bridge_blocked", link.vpn, held.endpoint, bridge=link.bridge, to=link.to_name,
        reason=held.reason, destination=held.destination, waiting=link.waiting.get(lane, 0),
    )  # fmt: skip


def _tell_cleared(broker: Broker, link: Link, endpoint: str, since: int) -> None:
    broker.event(
        "bridge_cleared", link.vpn, endpoint, bridge=link.bridge, to=link.to_name,
        after_s=(broker.now - since) / 1000,
    )  # fmt: skip
