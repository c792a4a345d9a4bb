"""A broker's facts about its bridges. Each link has its own page, because its list of messages in
transit may be long; all other facts are in one page."""

from __future__ import annotations

from typing import Any

import msgspec

from ...definitions.bridge import parse_bridge
from ...protocol.errors import ConfigError
from ...protocol.home_bridges import WAITING
from ...protocol.patterns import matches
from ...state.queue.broker import Broker
from ...state.storage.row import Row

PAGE = "bridges"
ELSEWHERE = -1  # the number of the far broker, where that is in another home
QUEUE_BITS = 32  # more queues than a broker ever makes


class HeldLane(msgspec.Struct, array_like=True):
    """A lane that the far end holds back. destination: of its first message; endpoint: the refusing
    queue, or ""; since: epoch ms; tries: refusals in a row; opening: see `endpoint`."""

    destination: str
    endpoint: str
    reason: str
    since: int
    tries: int = 1
    opening: bool = False


class Flight(msgspec.Struct, array_like=True):
    """A record in transit. at: when it was sent; size: bytes; lanes: the ids of each lane, in
    order."""

    at: int
    size: int
    lanes: list[tuple[int, list[int]]]

    @property
    def rows(self) -> int:
        """How many messages it has."""
        return sum(len(ids) for _, ids in self.lanes)


class Link(msgspec.Struct):
    """The near end of a bridge, besides its endpoint.

    queue: the endpoint's number; born: the directory's edition at which the bridge was made, 0 for
    a broker that is alone; to: the far broker's number; far_vpn: the far VPN, if it is
    another one; flights: records in transit, by number; held: the first `Limits.bridge_holds` held
    lanes; waiting: the number of messages of each lane; sent, taken, refused: messages since the
    bridge was made; way, why, way_since: the state of the connection to another home, as the engine
    says; wanted: a budget ended sending.
    """

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
    born: int = 0

    @property
    def number(self) -> int:
        """Tells the links of a bridge apart at the far end. Over the whole home it grows with each
        making, so a far home takes nothing of an earlier link, whichever broker had that."""
        return self.born << QUEUE_BITS | self.queue if self.to == ELSEWHERE else self.queue

    def in_transit(self) -> tuple[int, int]:
        """Rows and bytes in transit."""
        flights = self.flights.values()
        return sum(flight.rows for flight in flights), sum(flight.size for flight in flights)


class HeardHome(msgspec.Struct, array_like=True):
    """Another home that sends over a bridge. link: the newest number of its link; heard: the last
    accepted record number; missed: the number that was last found missing; refused: the answers to
    its records, by number, as long as it may ask again; see `BridgeReceipt`."""

    link: int
    heard: int
    missed: int = 0
    refused: dict[int, list[tuple[int, int, str, str]]] = {}


class Arrival(msgspec.Struct):
    """The far end of a bridge from another home or VPN. is_open: False once it is deleted; peer:
    the home that owns it, and its broker that sends; taken: messages, refused: lanes, repeated:
    records, since it was first made; last: when a record came; failed: digests of messages that
    failed; born: as of a `Link`, None in older pages."""

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
    born: int | None = None

    def may_bring(self, to: str) -> bool:
        """Whether the bridge may bring messages for a destination."""
        return any(matches(pattern, to) for pattern in self.subscriptions)


class _Kept(msgspec.Struct):
    """The page of everything but the links. definitions: VPN → name → wire form; arrivals: VPN →
    name → far end; links: the numbers of the links with a page."""

    definitions: dict[str, dict[str, dict[str, Any]]] = {}
    arrivals: dict[str, dict[str, Arrival]] = {}
    links: list[int] = []


_encode = msgspec.msgpack.encode
_kept = msgspec.msgpack.Decoder(_Kept)
_link = msgspec.msgpack.Decoder(Link)


class BridgeFacts:
    """All facts. links: by the endpoint's number."""

    def __init__(self) -> None:
        self.definitions: dict[str, dict[str, dict[str, Any]]] = {}
        self.arrivals: dict[str, dict[str, Arrival]] = {}
        self.links: dict[int, Link] = {}
        self._written: dict[str, bytes] = {}  # the pages in the store

    @classmethod
    def load(cls, broker: Broker) -> BridgeFacts:
        """The facts from the broker's pages."""
        facts = cls()
        data = broker.store.get(PAGE)
        if data is None:
            return facts
        kept = _kept.decode(data)
        facts._written[PAGE] = data
        facts.definitions, facts.arrivals = kept.definitions, kept.arrivals
        for number in kept.links:
            page = broker.store.get(_page_of(number))
            assert page is not None, f"the page of link {number} is missing"
            facts._written[_page_of(number)] = page
            facts.links[number] = _link.decode(page)
        return facts

    def mark(self, broker: Broker) -> None:
        """Write what has changed since the last mark."""
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

    def link(self, number: int) -> Link | None:
        """The link with this number; None if its bridge was deleted."""
        link = self.links.get(number & (1 << QUEUE_BITS) - 1)
        return link if link is not None and link.number == number else None

    def arrival(self, vpn: str, name: str) -> Arrival | None:
        """The far end with this name, even if it is deleted."""
        return self.arrivals.get(vpn, {}).get(name)


def check_no_bridge(broker: Broker) -> None:
    """Raise ConfigError if a broker is an end of a bridge and so cannot be removed."""
    own, found = broker.header.name, []
    for vpn, bridges in sorted(BridgeFacts.load(broker).definitions.items()):
        for name, given in bridges.items():
            one = parse_bridge(given)
            if own in (one.carrier, one.far_broker):
                found.append(f"bridge {name!r} of VPN {vpn!r}")
    if found:
        raise ConfigError(
            f"broker: {own!r} – is an end of {', '.join(found[:10])}: delete that first"
        )


def _page_of(number: int) -> str:
    return f"bridge/{number}"


def left(link: Link, rows: list[Row]) -> None:
    """Count messages that have left the endpoint."""
    waiting = link.waiting
    for row in rows:
        n = waiting[row.lane] - 1
        if n:
            waiting[row.lane] = n
        else:
            del waiting[row.lane]
