"""What a broker knows of its bridges: facts only. Each link has a page of its own, since what is on
its way may be long; the rest is in one."""

from __future__ import annotations

from typing import Any

import msgspec

from ...definitions.bridge import parse_bridge
from ...protocol.errors import ConfigError
from ...protocol.home_bridges import WAITING
from ...protocol.patterns import matches
from ...state.queue.broker import Broker
from ...state.queue.queue import Queue
from ...state.storage.row import Row

PAGE = "bridges"
ELSEWHERE = -1  # the number of the far broker, where that is in another home


class HeldLane(msgspec.Struct, array_like=True):
    """A lane that is held. destination: of its first message; endpoint: the queue that refuses, ""
    where it is none; since: epoch ms; tries: refused in a row."""

    destination: str
    endpoint: str
    reason: str
    since: int
    tries: int = 1
    opening: bool = False


class Flight(msgspec.Struct, array_like=True):
    """A record on its way. at: when it was sent; size: bytes; lanes: of each the ids, in order."""

    at: int
    size: int
    lanes: list[tuple[int, list[int]]]

    @property
    def rows(self) -> int:
        """How many messages it has."""
        return sum(len(ids) for _, ids in self.lanes)


class Link(msgspec.Struct):
    """The near end of a bridge, but for its endpoint. queue: the endpoint's number; to: of the far
    broker; far_vpn: where that is another one; flights: by number; held: the first
    `Limits.bridge_holds` lanes that are; waiting: how many messages each lane has; sent, taken,
    refused: messages since the bridge was made; way, why, way_since: how it is with the way to
    another home, as the engine says; wanted: a budget ended; crossing: it hands over to another VPN
    of this broker in the next step."""

    vpn: str
    bridge: str
    queue: int
    to: int
    to_name: str
    lanes: str
    far_vpn: str = ""
    next_send: int = 1
    flights: dict[int, Flight] = {}
    held: dict[int, HeldLane] = {}
    waiting: dict[int, int] = {}
    sent: int = 0
    taken: int = 0
    refused: int = 0
    way: str = WAITING
    why: str = ""
    way_since: int = 0
    opened: bool = False
    wanted: bool = False
    crossing: bool = False

    def on_its_way(self) -> tuple[int, int]:
        """Rows and bytes."""
        flights = self.flights.values()
        return sum(flight.rows for flight in flights), sum(flight.size for flight in flights)


class HeardHome(msgspec.Struct, array_like=True):
    """A home that came over a bridge. link: the newest number of its bridge; heard: the last
    number that was taken; missed: the number at which one was found missing."""

    link: int
    heard: int
    missed: int = 0


class Answers(msgspec.Struct, array_like=True):
    """What was answered to the newest link of somebody, by number: as long as it may be asked
    again. refused: as in `BridgeReceipt`."""

    link: int
    refused: dict[int, list[tuple[int, int, str, str]]] = {}


class Arrival(msgspec.Struct):
    """The far end of a bridge from another home or VPN. is_open: False where it is deleted; peer:
    epoch and broker of who comes over it, once one did; taken: messages, refused: lanes, repeated:
    records, since it was first made; last: when something was heard; failed: digests of
    messages whose taking in failed; answers: to whom, see `far_end`."""

    name: str
    origin: str
    subscriptions: tuple[str, ...]
    is_open: bool = True
    peer: tuple[int, str] | None = None
    homes: dict[int, HeardHome] = {}
    taken: int = 0
    refused: int = 0
    repeated: int = 0
    last: int = 0
    failed: list[int] = []
    answers: dict[str, Answers] = {}

    def may_bring(self, to: str) -> bool:
        """Whether a message may go there."""
        return any(matches(pattern, to) for pattern in self.subscriptions)


class _Kept(msgspec.Struct):
    """The page of all but the links. definitions: VPN → name → as on the wire; arrivals: VPN → name
    → far end; links: the numbers of those that have a page."""

    definitions: dict[str, dict[str, dict[str, Any]]] = {}
    arrivals: dict[str, dict[str, Arrival]] = {}
    links: list[int] = []


_encode = msgspec.msgpack.encode
_kept = msgspec.msgpack.Decoder(_Kept)
_link = msgspec.msgpack.Decoder(Link)


class BridgeFacts:
    """All of it. links: by the number of the endpoint."""

    def __init__(self) -> None:
        self.definitions: dict[str, dict[str, dict[str, Any]]] = {}
        self.arrivals: dict[str, dict[str, Arrival]] = {}
        self.links: dict[int, Link] = {}
        self._written: dict[str, bytes] = {}  # pages, as they are in the store

    @classmethod
    def load(cls, broker: Broker) -> BridgeFacts:
        """As they were packed."""
        facts = cls()
        data = broker.store.get(PAGE)
        if data is None:
            return facts
        kept = _kept.decode(data)
        facts._written[PAGE] = data
        facts.definitions, facts.arrivals = kept.definitions, kept.arrivals
        for number in kept.links:
            page = broker.store.get(_page_of(number))
            assert page is not None, f"the page of link {number} is gone"
            facts._written[_page_of(number)] = page
            facts.links[number] = _link.decode(page)
        return facts

    def mark(self, broker: Broker) -> None:
        """Write what changed since the last mark."""
        pages = {_page_of(number): _encode(link) for number, link in self.links.items()}
        if self.definitions or self.arrivals or PAGE in self._written:
            kept = _Kept(self.definitions, self.arrivals, sorted(self.links))
            pages[PAGE] = _encode(kept)
        for key in sorted(pages):
            if self._written.get(key) != pages[key]:
                broker.store.put(key, pages[key])
        for key in sorted(self._written.keys() - pages.keys()):
            broker.store.delete(key)
        self._written = pages

    def link_of(self, queue: Queue) -> Link | None:
        """The link that empties a queue."""
        return self.links.get(queue.number)

    def arrival(self, vpn: str, name: str) -> Arrival | None:
        """The far end of this name, also of a deleted one."""
        return self.arrivals.get(vpn, {}).get(name)


def check_no_bridge(broker: Broker) -> None:
    """Raise ConfigError for a broker that is an end of a bridge: it cannot be removed."""
    own, found = broker.header.name, []
    for vpn, bridges in sorted(BridgeFacts.load(broker).definitions.items()):
        for name, given in bridges.items():
            one = parse_bridge(given)
            if own in (one.carrier, one.far_broker):
                found.append(f"bridge {name!r} of VPN {vpn!r}")
    if found:
        raise ConfigError(
            f"broker: {own!r} – is an end of {', '.join(found[:10])}: delete it before"
        )


def _page_of(number: int) -> str:
    return f"bridge/{number}"


def left(link: Link, rows: list[Row]) -> None:
    """Messages have left the endpoint."""
    waiting = link.waiting
    for row in rows:
        n = waiting[row.lane] - 1
        if n:
            waiting[row.lane] = n
        else:
            del waiting[row.lane]
