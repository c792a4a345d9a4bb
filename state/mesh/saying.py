"""The channel's one way out: what a broker says to another gets its number here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol import mesh
from ...protocol.outputs import MeshRecord
from .peers import peer_of

if TYPE_CHECKING:
    from ..broker import Broker


def say(broker: Broker, to: int, what: mesh.Said) -> None:
    """Say something to the peer with this number; raises ConfigError where there is none."""
    peer, header = peer_of(broker, to), broker.header
    for part in what.parts():
        peer.said += 1
        broker.emit(
            MeshRecord(peer.name, header.number, header.name, header.epoch, peer.said, part)
        )


def tell(broker: Broker, number: int, what: mesh.Said) -> None:
    """Say something to a broker, be it this one."""
    if number != broker.header.number:
        say(broker, number, what)
        return
    from .kinds import KINDS

    KINDS[what.kind][1](broker, number, what)


def say_to_all(broker: Broker, what: mesh.Said) -> None:
    """Say something to each peer."""
    for number in sorted(broker.header.peers):
        say(broker, number, what)
