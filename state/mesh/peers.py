"""Which other brokers there are: the engine tells each broker, and it keeps that in its state.

A broker that is heard before the engine has told of it is a peer from then on: every record names
its sender, so nothing depends on who starts first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.commands import Peers
from ...protocol.errors import ConfigError
from .peer import Peer

if TYPE_CHECKING:
    from ..broker import Broker


def set_peers(broker: Broker, vpn: str, command: Peers) -> None:
    """The brokers of the home are these; channels to those that stay go on. Raises ConfigError
    where a name and a number are not those of this home."""
    header, given = broker.header, command.brokers
    own = given.get(header.name)
    if own != header.number:
        raise ConfigError(
            f"brokers: {header.name!r} has number {own} there – it is broker {header.number}"
        )
    names: dict[int, str] = {}
    for name, number in given.items():
        if names.setdefault(number, name) != name:
            raise ConfigError(
                f"brokers: {names[number]!r} and {name!r} have number {number} – each has its own"
            )
        check_name(broker, number, name)
    header.peers = {
        number: header.peers.get(number) or Peer(name)
        for number, name in sorted(names.items()) if number != header.number
    }  # fmt: skip
    everyone = {header.number, *header.peers}
    if header.keeper not in everyone:  # it was removed before this broker was added
        header.keeper = min(everyone)
    header.yet_to_know = [number for number in header.yet_to_know if number in everyone]
    header.group = command.groups.get(header.name, "")
    for peer in header.peers.values():
        peer.group = command.groups.get(peer.name, "")


def first_beside(broker: Broker, number: int) -> int:
    """The first of the home's brokers but for this one: who takes a removed broker's place."""
    return min({broker.header.number, *broker.header.peers} - {number})


def check_name(broker: Broker, number: int, name: str) -> None:
    """A number stays with its name. Raises ConfigError."""
    known = broker.header.peers.get(number)
    own = (broker.header.number, broker.header.name)
    if (known is not None and known.name != name) or (number == own[0] and name != own[1]):
        there = own[1] if known is None else known.name
        raise ConfigError(f"broker: {name!r} has number {number} – that is {there!r}")


def peer_of(broker: Broker, number: int) -> Peer:
    """The peer with this number; raises ConfigError where there is none."""
    peer = broker.header.peers.get(number)
    if peer is None:
        known = ", ".join(f"{n} {p.name!r}" for n, p in broker.header.peers.items()) or "none"
        raise ConfigError(f"broker: {number} – is no peer of this one, which knows {known}")
    return peer
