"""Bridges between VPNs of a home: what they may bring, and how, where it is one broker (H1, C4).

A VPN is a tenant, so what comes in from another one is that tenant's to allow: the far VPN defines
the bridge too, with `vpn://NAME` as its `from`, and with what it may bring (`home_door.Arrival`).
All that the far VPN says of publishes holds for it, its quota among them.

From one VPN to another of the same broker nothing is said: in the step after, before publishes are
taken in, the link hands over what it sends, and has its receipt. If that fails, the endpoint is to
blame, and left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...definitions.far_address import far_address, is_vpn
from ...protocol.bridges import BridgeReceipt, BridgeSend
from ...protocol.errors import Reason
from ..limits import Budget
from ..mesh.saying import say
from . import home_door
from .far import all_refused, taken
from .link import forward

if TYPE_CHECKING:
    from ..broker import Broker


def take_in(broker: Broker, sender: int, sent: BridgeSend) -> None:
    """What a bridge of this home brings, over the channel."""
    say(broker, sender, brought(broker, sent))


def brought(broker: Broker, sent: BridgeSend) -> BridgeReceipt:
    """Take in what a bridge of this home brings, if it may; the answer. Raises ValueError."""
    if not sent.came_from:
        return taken(broker, sent)
    arrival = home_door.load(broker, sent.vpn, sent.bridge)
    if arrival is None or not arrival.is_open or not _is_from(arrival.origin, sent.came_from):
        return all_refused(sent, Reason.PERMISSION_DENIED)
    arrival.last = broker.now
    answer = taken(broker, sent, arrival.may_bring)
    arrival.count(sent, answer)
    home_door.save(broker, sent.vpn, arrival)
    return answer


def _is_from(origin: str, vpn: str) -> bool:
    return is_vpn(origin) and far_address(origin).place == vpn


def cross(broker: Broker) -> None:
    """Hand over what bridges bring to other VPNs of this broker."""
    limits = broker.limits
    budget = Budget(limits.delivery_rows, limits.delivery_bytes)
    for number in list(broker.header.crossing):
        del broker.header.crossing[number]
        queue = broker.queue(number)
        if queue is None or queue.header.deleted or queue.header.faulted:
            continue

        def here(sent: BridgeSend, number: int = number) -> BridgeReceipt:
            broker.at = (f"#{number}", 0, sent.number)  # what the journal says of where it stood
            answer = brought(broker, sent)
            broker.at = broker.queue(number)
            return answer

        broker.at = queue
        try:
            more = forward(broker, queue, budget, here)
        except Exception:
            broker.at = queue
            raise
        queue.wanted = queue.wanted or more  # what came back may be wanted already
    broker.at = None
