"""What the engine, which copies between two homes, says to a bridge's near end (H1).

It comes in the broker's own `<broker>.mesh`, which nobody but this home's engine writes, under the
key of the bridge: the far end's answers, and how it is with the way there. An answer is of the
bridge under whose key it stands, whatever it says itself; one that comes again is of a record that
is not on its way any more, and nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.home_bridges import HomeAnswer, decode_copied, of_key
from . import link as links
from .endpoint import endpoint_name

if TYPE_CHECKING:
    from ..broker import Broker


def hear(broker: Broker, key: bytes, value: bytes | None) -> None:
    """One record. Raises ValueError for what is none."""
    vpn, name = of_key(key)
    said = decode_copied(value)
    queue = broker.find(vpn, endpoint_name(name))
    if queue is None or queue.number not in broker.header.links:
        return  # the bridge was deleted meanwhile
    if isinstance(said, HomeAnswer):
        if said.receipt.link == queue.number:
            links.receipt(broker, links.ELSEWHERE, said.receipt)
    else:
        links.set_way(broker, queue, said.state, said.why)
