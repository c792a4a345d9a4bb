"""The door for bridges of other homes: who comes in here, and what of it is heard (H1).

A record of `<vpn>.bridge-in` is from a broker of another home. It is none of this home's, whatever
it says of itself: all that it may do is bring messages, over a bridge that is defined here (with an
address as its `from`), to what that bridge is for, in the VPN whose topic it is. Whoever comes
first over a bridge is who it is for; another one is refused until the bridge is deleted and defined
again.

Records may come again, and one may be missing until it does (`protocol.home_bridges`): the numbers
are taken one after the other. A bridge that is deleted keeps its numbers, so that nothing that was
taken in is ever taken in again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...definitions.bridge import BridgeDefinition, bridge_to_wire
from ...definitions.far_address import is_vpn
from ...protocol import topics
from ...protocol.bridges import BridgeReceipt, BridgeSend
from ...protocol.home_bridges import HomeAnswer, HomeSend, answers_key, decode_send
from ...protocol.outputs import BridgeEntry, HomeRecord
from ...protocol.patterns import matches
from ..rejection import count_of_vpn
from .far import all_refused, taken

if TYPE_CHECKING:
    from ..broker import Broker

HOMES_MAX = 8  # of which a bridge remembers numbers


class HeardHome(msgspec.Struct, array_like=True):
    """A home that came over a bridge. link: the newest number of its bridge; heard: the last
    number that was taken; missed: the number at which one was found missing."""

    link: int
    heard: int
    missed: int = 0


class Arrival(msgspec.Struct):
    """The far end of a bridge from another home. is_open: False where it is deleted; peer: epoch
    and broker of who comes over it, once one did."""

    name: str
    origin: str
    subscriptions: tuple[str, ...]
    is_open: bool = True
    peer: tuple[int, str] | None = None
    homes: dict[int, HeardHome] = {}
    taken: int = 0  # messages; these two: since it was first made
    refused: int = 0  # lanes
    repeated: int = 0  # records
    last: int = 0  # when something was heard

    def may_bring(self, to: str) -> bool:
        """Whether a message may go there."""
        return any(matches(pattern, to) for pattern in self.subscriptions)

    def count(self, sent: BridgeSend, answer: BridgeReceipt) -> None:
        """Count what was brought."""
        back = sum(sent.lanes[lane] - before for lane, before, _, _ in answer.refused)
        self.taken += len(sent.payloads) - back
        self.refused += len(answer.refused)


def load(broker: Broker, vpn: str, name: str) -> Arrival | None:
    """The far end of this name, also of a deleted one."""
    page = broker.values.read(f"A/{vpn}/{name}")
    return None if page is None else msgspec.convert(page, Arrival)


def save(broker: Broker, vpn: str, arrival: Arrival) -> None:
    """Keep what changed."""
    page = msgspec.to_builtins(arrival, builtin_types=(bytes,))
    broker.values.write(f"A/{vpn}/{arrival.name}", page)


def open_door(broker: Broker, bridge: BridgeDefinition) -> None:
    """The bridge is defined here, or defined again."""
    known = load(broker, bridge.vpn, bridge.name)
    arrival = known or Arrival(bridge.name, bridge.origin, bridge.subscriptions)
    again = known is not None and known.is_open
    arrival.origin, arrival.subscriptions = bridge.origin, bridge.subscriptions
    arrival.is_open = True
    save(broker, bridge.vpn, arrival)
    if not is_vpn(bridge.origin):
        header, given = broker.header, bridge_to_wire(bridge)
        broker.emit(BridgeEntry(bridge.vpn, bridge.name, header.number, header.epoch, given))
    broker.event("bridge_made", bridge.vpn, bridge=bridge.name, to=bridge.to, again=again)


def close_door(broker: Broker, vpn: str, name: str) -> None:
    """The bridge is deleted; its numbers stay."""
    arrival = load(broker, vpn, name)
    assert arrival is not None
    arrival.is_open, arrival.peer = False, None
    save(broker, vpn, arrival)
    if not is_vpn(arrival.origin):
        broker.emit(BridgeEntry(vpn, name, broker.header.number, broker.header.epoch, None))
    broker.event("bridge_deleted", vpn, bridge=name, messages=0)


def hear(broker: Broker, vpn: str, partition: int, value: bytes | None, failed: str) -> None:
    """One record. failed: why it must not be taken in, empty where it may. Raises ValueError for
    what is refused, and nothing has changed then but what was answered."""
    said = decode_send(value)
    name = said.send.bridge
    arrival = load(broker, vpn, name)
    who = f"broker {said.broker!r} of home {said.epoch}"
    if arrival is None or not arrival.is_open or is_vpn(arrival.origin):
        raise ValueError(f"bridge: {name!r} – no bridge of this name arrives here; {who} sends it")
    peer = arrival.peer = arrival.peer or (said.epoch, said.broker)
    if peer != (said.epoch, said.broker):
        theirs = f"broker {peer[1]!r} of home {peer[0]}"
        raise ValueError(f"bridge: {name!r} – is for {theirs}; {who} sends it")
    if not _is_next(broker, vpn, arrival, said):
        save(broker, vpn, arrival)
        return
    arrival.last = broker.now
    sent = msgspec.structs.replace(said.send, vpn=vpn)
    try:
        if failed:
            raise ValueError(f"it failed: {failed}")
        answer = taken(broker, sent, arrival.may_bring)
    except ValueError:
        _answer(broker, vpn, partition, said, all_refused(sent))
        save(broker, vpn, arrival)
        raise
    arrival.count(sent, answer)
    _answer(broker, vpn, partition, said, answer)
    save(broker, vpn, arrival)


def _is_next(broker: Broker, vpn: str, arrival: Arrival, said: HomeSend) -> bool:
    """Whether this is the next number, which counts as heard then."""
    link, number = said.send.link, said.send.number
    home = arrival.homes.get(said.epoch)
    if home is None or link > home.link:
        arrival.homes.pop(said.epoch, None)
        home = arrival.homes[said.epoch] = HeardHome(link, min(said.oldest, number) - 1)
        for old in list(arrival.homes)[:-HOMES_MAX]:
            del arrival.homes[old]
    if link < home.link or number <= home.heard:
        arrival.repeated += 1
        return False
    if number > home.heard + 1:
        if home.missed != home.heard + 1:
            home.missed = home.heard + 1
            broker.event("bridge_gap", vpn, bridge=arrival.name, number=home.missed, came=number)
            count_of_vpn(broker, vpn, "bridge_gap")
        return False
    home.heard = number
    return True


def _answer(
    broker: Broker, vpn: str, partition: int, said: HomeSend, receipt: BridgeReceipt
) -> None:
    topic = topics.topic(vpn, topics.BRIDGE_ANSWERS)
    key = answers_key(said.epoch, said.send.bridge)
    broker.emit(HomeRecord(topic, partition, key, HomeAnswer(receipt)))
