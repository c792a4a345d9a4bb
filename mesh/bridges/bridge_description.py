"""What is shown of a bridge: what waits, what is on its way, which endpoints hold it (H2)."""

from __future__ import annotations

from typing import Any

from ...protocol.home_bridges import OPEN, WAITING
from ...state.queue.broker import Broker
from .bridge_facts import ELSEWHERE, Arrival, HeldLane, Link

DESTINATIONS_SHOWN = 10


def describe(broker: Broker, link: Link) -> dict[str, Any]:
    """Everything about one bridge, for people and programs. Of each endpoint that holds it: since
    when, and how many messages wait for it, those that it refused among them."""
    queue = broker.queues[link.queue]
    header, limits = queue.header, broker.limits
    rows, size = link.on_its_way()
    oldest = min((flight.at for flight in link.flights.values()), default=None)
    blocked = _blocked(broker, link)
    return {
        "name": link.bridge,
        "vpn": link.vpn,
        "from": broker.header.name,
        "to": link.to_name,
        "subscriptions": list(queue.definition.subscriptions),
        "lanes": link.lanes,
        "endpoint": queue.definition.name,
        "waiting": header.depth - rows,
        "spool_bytes": header.bytes,
        "max_spool_usage": queue.definition.max_spool_usage,
        "on_its_way": rows,
        "bytes_on_its_way": size,
        "window_rows": limits.bridge_rows,
        "window_bytes": limits.bridge_bytes,
        "unanswered_s": None if oldest is None else (broker.now - oldest) / 1000,
        "egress": header.egress,
        "state": _state(link, bool(blocked)),
        "why": link.why if link.to == ELSEWHERE else "",
        "blocked": blocked,
        "sent": link.sent,
        "taken": link.taken,
        "refused": link.refused,
    }


def _state(link: Link, blocked: bool) -> str:
    """`open`, `blocked` where an endpoint holds something back, `waiting` where the far home cannot
    be reached."""
    if link.to == ELSEWHERE and link.way != OPEN:
        return WAITING
    return "blocked" if blocked else OPEN


def describe_arrival(broker: Broker, vpn: str, arrival: Arrival) -> dict[str, Any]:
    """The far end of a bridge that comes from another home."""
    peer = arrival.peer
    return {
        "name": arrival.name,
        "vpn": vpn,
        "from": arrival.origin,
        "to": broker.header.name,
        "subscriptions": list(arrival.subscriptions),
        "state": WAITING if peer is None else OPEN,
        "why": "" if peer else "nothing has come over it yet",
        "home": None if peer is None else {"epoch": peer[0], "broker": peer[1]},
        "heard_s": (broker.now - arrival.last) / 1000 if arrival.last else None,
        "taken": arrival.taken,
        "refused": arrival.refused,
        "repeated": arrival.repeated,
        "blocked": [],
    }


def _blocked(broker: Broker, link: Link) -> list[dict[str, Any]]:
    """Which endpoints hold the bridge, the one that does for longest first."""
    by_endpoint: dict[str, list[tuple[int, HeldLane]]] = {}
    for lane, held in link.held.items():
        by_endpoint.setdefault(held.endpoint, []).append((lane, held))
    shown = []
    for endpoint, lanes in by_endpoint.items():
        since = min(held.since for _, held in lanes)
        shown.append(
            {
                "endpoint": endpoint or None,
                "reason": lanes[0][1].reason,
                "since": since,
                "for_s": (broker.now - since) / 1000,
                "waiting": sum(link.waiting.get(lane, 0) for lane, _ in lanes),
                "lanes": len(lanes),
                "lanes_counted": len(lanes),
                "destinations": sorted({h.destination for _, h in lanes})[:DESTINATIONS_SHOWN],
            }
        )
    return sorted(shown, key=lambda one: (one["since"], one["endpoint"] or ""))
