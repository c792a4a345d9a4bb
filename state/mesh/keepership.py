"""The directory changes hands: another broker keeps it from now on, for the first may go (Q5).

    keeper                     its successor                each other broker
      │ Entries, BridgesKept ─────▶ │
      │ Keeps ────────────────────▶ │ Keeps ───────────────────▶ │
      │ passes on what comes ─────▶ │ ◀───────────── KnowsKeeper │
      │                             │ all know it: it decides

Who keeps it hands it over when nothing is being carried out (`carried_out`), and decides nothing
more; what others still say to it as the keeper goes on to its successor. The channels keep their
order: who has heard `Keeps` has heard all that its old keeper wrote. So the successor decides
nothing until all have said so, and what two keepers write about one queue is never heard in the
wrong order. What it is asked meanwhile waits in a page.

This is for good, also where the removal for which it was done is given up. A broker that is added
takes the home's first for the keeper, until the keeper introduces itself (`Keeps`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ...protocol.bridges import BridgeCommand
from ...protocol.carrying import BridgesKept, Entries, Keeps, KnowsKeeper, PassOn
from ...protocol.errors import LakequeueError
from ...protocol.mesh import Said
from . import known_places, placement
from .saying import say, say_to_all, tell

if TYPE_CHECKING:
    from ..broker import Broker

WAITING = "keeper"  # the page of what the keeper is asked before all know it
WAITING_MAX = 1_000  # clients' commands in it
OF_CLIENTS = (BridgeCommand, PassOn)

_pack = msgspec.msgpack.encode


def is_keeper(broker: Broker) -> bool:
    """Whether this broker decides what stands in the directory: one that is alone does."""
    header = broker.header
    return not header.peers or (header.keeper == header.number and not header.yet_to_know)


def to_keeper(broker: Broker, said: Said) -> None:
    """Say something to who keeps the directory, be it this one. Raises LakequeueError where too
    much waits there."""
    header = broker.header
    if header.keeper == header.number and header.yet_to_know:
        _wait(broker, said)
    else:
        tell(broker, header.number if is_keeper(broker) else header.keeper, said)


def is_asked(broker: Broker, said: Said) -> bool:
    """Whether what was said to the keeper is this broker's to do; else it goes on, or waits."""
    if is_keeper(broker):
        return True
    to_keeper(broker, said)
    return False


def _wait(broker: Broker, said: Said) -> None:
    waiting: list[list[Any]] = list(broker.values.read(WAITING) or [])
    if len(waiting) >= WAITING_MAX and isinstance(said, OF_CLIENTS):
        raise LakequeueError(
            f"the directory changes hands, and {len(waiting)} commands wait for that: try again"
        )
    broker.values.write(WAITING, [*waiting, [said.kind, _pack(said)]])


# ---------------------------------------------------------------- who keeps it


def hand_over(broker: Broker, to: int) -> None:
    """From now on this peer keeps the directory. The caller has seen to it that no ticket is
    open."""
    header, values = broker.header, broker.values
    _say_directory(broker, to)
    for vpn in sorted(header.vpns):
        bridges = values.read(bridges_key(vpn))
        if bridges:
            say(broker, to, BridgesKept(vpn, list(bridges.values())))
            values.write(bridges_key(vpn), None)
    placement.forget_counts(broker)
    header.keeper = to
    everyone = sorted([header.number, *header.peers])
    say_to_all(broker, Keeps(to, header.partings, header.entries_said, everyone))


def bridges_key(vpn: str) -> str:
    """The page with the definitions of a VPN's bridges, by name; the keeper has them."""
    return f"K/{vpn}"


def introduce(broker: Broker, number: int) -> None:
    """Tell a broker that was added who keeps the directory, and what stands in it."""
    header = broker.header
    if header.number:  # else it takes it for the keeper already
        say(broker, number, Keeps(header.number, header.partings, header.entries_said, []))
    _say_directory(broker, number)


def _say_directory(broker: Broker, number: int) -> None:
    for vpn in sorted(broker.header.vpns):
        entries = known_places.entries_of(broker, vpn)
        if entries:
            say(broker, number, Entries(vpn, list(entries), list(entries.values())))


# ---------------------------------------------------------------- what is heard


def hear_bridges(broker: Broker, sender: int, said: BridgesKept) -> None:
    """The keeper gives what it knows of bridges."""
    check_keeper(broker, sender, said)
    broker.vpn_number(said.vpn)
    known = dict(broker.values.read(bridges_key(said.vpn)) or {})
    known |= {one["name"]: one for one in said.definitions}
    broker.values.write(bridges_key(said.vpn), dict(sorted(known.items())))


def hear_keeps(broker: Broker, sender: int, said: Keeps) -> None:
    """Another broker keeps the directory, perhaps this one."""
    header = broker.header
    if sender != said.keeper:  # who does not introduce itself
        check_keeper(broker, sender, said)
    header.keeper = said.keeper
    if header.keeper != header.number:
        if sender != header.keeper and header.keeper in header.peers:
            say(broker, header.keeper, KnowsKeeper())
        return
    header.partings = max(header.partings, said.partings)
    header.entries_said = max(header.entries_said, said.entries)
    placement.count_anew(broker)
    known_to = {header.number, sender, *header.knew}
    header.yet_to_know, header.knew = [n for n in said.brokers if n not in known_to], []
    for number in sorted(set(header.peers) - set(said.brokers)):
        introduce(broker, number)
    begin(broker)


def hear_knows(broker: Broker, sender: int, said: KnowsKeeper) -> None:
    """A broker knows that this one keeps the directory."""
    header = broker.header
    if header.keeper != header.number:  # it has heard it sooner than this broker
        header.knew = sorted({*header.knew, sender})
        return
    header.yet_to_know = [number for number in header.yet_to_know if number != sender]
    begin(broker)


def meet(broker: Broker, before: set[int]) -> None:
    """There are other peers than these. Who was heard to be the keeper may be known only now."""
    header = broker.header
    if header.keeper in header.peers.keys() - before and header.keeper > min(header.peers):
        say(broker, header.keeper, KnowsKeeper())
    begin(broker)


def begin(broker: Broker) -> None:
    """Do what has waited, where all know by now that this broker is the keeper."""
    from .kinds import KINDS

    if not is_keeper(broker):
        return
    waiting: list[list[Any]] = broker.values.read(WAITING) or []
    if waiting:
        broker.values.write(WAITING, None)
    for kind, said in waiting:
        tell(broker, broker.header.number, msgspec.msgpack.decode(said, type=KINDS[kind][0]))


def check_keeper(broker: Broker, sender: int, said: Said) -> None:
    """Raise ValueError where it is not the keeper who says what only the keeper may."""
    keeper = broker.header.keeper
    if sender != keeper:
        raise ValueError(f"{said.kind}: broker {sender} says it – only broker {keeper} may")
