"""Who else may have queues for a topic: what other brokers have said of their subscriptions (S5).

Each broker tells the others which patterns its queues take, when that changes: of a pattern all
that is true now, so a word that is said again changes nothing. What stands in the directory anyway
is not said: that a queue takes what is published to its name. Nor are queues that all brokers host:
they take a message where it is published (Q5). Of a queue that only a group hosts one of them tells
those outside: the initial owner, or the first.

The table only says whom to ask. Who is asked looks for itself, so it may name too many. It names a
subscription as soon as it has been heard of; what is published elsewhere before that does not reach
it (`docs/concepts/topics.md`).

Where a matching bridge leads, it brings the message: to ask there as well would double it. So
bridges are told too, and whoever can be reached over them is left out.

A bridge that leads out of the home, or to another VPN, takes what is published anywhere here, as a
local queue of its near broker would. Where several lead to the same place, those of one broker take
a message: of the one that took it in, if it has such a bridge; else of one where other bridges
bring it; else, by an offer, of the first. So a broker's own bridges suffice it, and a message goes
out once, whichever of the brokers have some.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from ...definitions import is_regex
from ...definitions.far_address import far_home
from ...protocol.carrying import Entry
from ...protocol.mesh import BROKERS_MAX
from ...protocol.offering import OUTSIDE_BITS, RoutesWent, TopicRoutes, outside
from ...protocol.patterns import REGEX, TOPIC, WILDCARD, compiled, kind_of, wildcard_matches
from ..bridges.bases import base_of
from ..bridges.endpoint import is_endpoint
from ..broker import BUCKETS, Broker, bucket
from . import known_places
from .hosting import other_hosts
from .saying import say, say_to_all

if TYPE_CHECKING:
    from ..queue import Queue

PLAIN, WILD, REGULAR = range(3)  # kinds of patterns, on the wire too
HERE = -1  # a queue of who says it, made there; below: made at broker `-2 - it`; else where bridges
# lead: the number of a broker, or from `BROKERS_MAX` on of another home or VPN (`outside`)
LOCAL = "LocalQueue"
_OUTSIDE_MAX = BROKERS_MAX + (1 << OUTSIDE_BITS)
_WAYS = 1 << 17  # a route is one number: (where it leads + 1) * _WAYS + who said it


# ---------------------------------------------------------------- what is told


def changed(broker: Broker, vpn: str, kind: int, pattern: str) -> None:
    """Some queue takes this pattern from now on, or no longer."""
    if broker.header.peers:
        broker.routes_changed[vpn, kind, pattern] = None


def kind_of_topics(pattern: str) -> int:
    """The kind of a topic subscription."""
    return {TOPIC: PLAIN, REGEX: REGULAR}.get(kind_of(pattern), WILD)


def changed_capture(broker: Broker, vpn: str, name: str, topic: str) -> None:
    """As `changed`, for the underlying topic of a queue (Q2)."""
    if topic != name:
        changed(broker, vpn, REGULAR if is_regex(topic) else PLAIN, topic)


def tell_routes(broker: Broker) -> None:
    """Say to the others what has changed in this step, and to new ones all there is."""
    peers = broker.header.peers
    if not peers:
        return
    new = [n for n, peer in peers.items() if not (peer.knows_routes and peer.knows_ways_out)]
    if broker.routes_changed:
        known = [number for number in peers if number not in new]
        _tell(broker, known, broker.routes_changed)
        broker.routes_changed = {}
    if new:
        _tell(broker, new, dict.fromkeys(_all(broker)))
        for number in new:
            peers[number].knows_routes = peers[number].knows_ways_out = True


def _tell(broker: Broker, to: list[int], patterns: Iterable[tuple[str, int, str]]) -> None:
    """Say what is true now of these patterns."""
    by_vpn: dict[str, list[tuple[int, str]]] = {}
    for vpn, kind, pattern in patterns:
        by_vpn.setdefault(vpn, []).append((kind, pattern))
    for vpn, found in sorted(by_vpn.items()):
        queues = [_queues_of(broker, vpn, kind, pattern) for kind, pattern in found]
        for number in to:
            routes = [sorted(_routes_for(broker, number, taking)) for taking in queues]
            kinds, names = [kind for kind, _ in found], [pattern for _, pattern in found]
            say(broker, number, TopicRoutes(vpn, kinds, names, routes))


def _all(broker: Broker) -> Iterable[tuple[str, int, str]]:
    """All patterns that queues here take; reads every bucket."""
    read = broker.values.read
    for vpn in sorted(broker.header.vpns):
        for pattern, _ in subscriptions(broker, vpn):
            yield vpn, kind_of_topics(pattern), pattern
        for n in range(BUCKETS):
            yield from ((vpn, PLAIN, topic) for topic in sorted(read(f"r/{vpn}/{n}") or ()))
        if vpn in broker.header.regex_vpns:
            texts = (read(f"R/{vpn}") or {}).values()
            yield from ((vpn, REGULAR, text) for text in sorted(set(texts)))


def subscriptions(broker: Broker, vpn: str) -> Iterator[tuple[str, list[int]]]:
    """All topic subscriptions to queues of a VPN here, with the numbers of these; reads every
    bucket."""
    slots = [f"{letter}{n}" for letter in "tw" for n in range(BUCKETS)] + ["*", "r"]
    for slot in slots if vpn in broker.header.topics else ():
        yield from sorted((broker.values.read(f"t/{vpn}/{slot}") or {}).items())


def _queues_of(broker: Broker, vpn: str, kind: int, pattern: str) -> list[Queue]:
    """The queues here that take a pattern, but for those that take their own name."""
    read = broker.values.read
    numbers: set[int] = set()
    if vpn in broker.header.topics and _is_subscription(kind, pattern):
        _, slot = slot_of(kind, pattern)
        numbers.update((read(f"t/{vpn}/{slot}") or {}).get(pattern, ()))
    if kind == PLAIN:
        capturing = (read(f"r/{vpn}/{bucket(pattern)}") or {}).get(pattern, ())
        named = broker.queue_number(vpn, pattern)
        numbers.update(number for number in capturing if number != named)
    elif kind == REGULAR and vpn in broker.header.regex_vpns:
        numbers.update(n for n, text in (read(f"R/{vpn}") or {}).items() if text == pattern)
    queues = (broker.queue(number) for number in sorted(numbers))
    return [queue for queue in queues if queue is not None]


def _is_subscription(kind: int, pattern: str) -> bool:
    """Whether a pattern of this kind may be a topic subscription, and not a captured topic only."""
    try:
        return kind_of_topics(pattern) == kind
    except ValueError:
        return False


def _routes_for(broker: Broker, peer: int, queues: list[Queue]) -> set[int]:
    """What these queues are to a peer: `HERE`, and where their bridges lead."""
    found: set[int] = set()
    for queue in queues:
        if is_endpoint(queue.definition.name):
            ways = (_far_of(broker, queue), way_out(broker, queue))
            found.update(way for way in ways if way is not None)
        elif takes_from(broker, queue, peer):
            found.add(HERE if queue.header.base < 0 else -2 - queue.header.base)
    return found


def _far_of(broker: Broker, queue: Queue) -> int | None:
    """The broker of this home to which the bridge of an endpoint leads within its VPN; None where
    it leads out of them, is being deleted, or follows a queue."""
    from ..bridges.link import ELSEWHERE, load

    link = None if queue.number in broker.header.trails else load(broker, queue.number)
    return None if link is None or link.to == ELSEWHERE or link.far_vpn else link.to


def way_out(broker: Broker, queue: Queue) -> int | None:
    """The other home or VPN to which the bridge of an endpoint leads; None: it leads to a broker,
    is being deleted, or follows a queue."""
    from ..bridges.link import ELSEWHERE, load

    link = None if queue.number in broker.header.trails else load(broker, queue.number)
    if link is None or not (link.to == ELSEWHERE or link.far_vpn):
        return None
    return outside(far_home(link.to_name, link.vpn))


def takes_from(broker: Broker, queue: Queue, entry: int) -> bool:
    """Whether a queue here takes what another broker took in; see `takes_offered` for endpoints of
    bridges."""
    d = queue.definition
    if is_endpoint(d.name):
        return False
    if d.type == LOCAL:
        return True
    hosts = [broker.header.number, *other_hosts(broker, queue)]
    if not d.max_spool_usage or entry in (*hosts, *queue.header.without):  # it takes it there
        return False
    return d.initial_owner == broker.header.name or (
        d.initial_owner is None and min(hosts) == broker.header.number
    )


def takes_offered(broker: Broker, queue: Queue, entry: int, out: dict[int, int]) -> bool:
    """As `takes_from`, of what is offered. out: over whose bridges it goes where. A bridge within
    the home brings only what its near broker takes in itself."""
    if not is_endpoint(queue.definition.name):
        return takes_from(broker, queue, entry)
    way = way_out(broker, queue) if out else None
    return way is not None and out.get(way) == broker.header.number


# ---------------------------------------------------------------- what was told


def slot_of(kind: int, pattern: str) -> tuple[int, str]:
    """Which of a VPN's counts a pattern belongs to, and its key within the VPN: plain topics stand
    by name, wildcards by their first level, the rest in one list each."""
    if kind == PLAIN:
        return 0, f"t{bucket(pattern)}"
    if kind == REGULAR:
        return 3, "r"
    first = pattern.partition("/")[0]
    if first.endswith("*") or first == ">":
        return 2, "*"
    return 1, f"w{bucket(first)}"


def hear_routes(broker: Broker, sender: int, said: TopicRoutes) -> None:
    """Another broker says what its queues take. Raises ValueError for what is no pattern."""
    _check(said.kinds, said.patterns)
    for routes in said.routes:
        if not all(HERE - BROKERS_MAX <= where < _OUTSIDE_MAX for where in routes):
            allowed = f"allowed are {HERE}, numbers of brokers and of other homes"
            raise ValueError(f"routes: {routes[:10]} – {allowed}")
    for kind, pattern, routes in zip(said.kinds, said.patterns, said.routes, strict=True):
        known = _routes_of(broker, said.vpn, kind, pattern)
        others = [route for route in known if route % _WAYS != sender]
        own = ((where + 1) * _WAYS + sender for where in routes)
        _store(broker, said.vpn, kind, pattern, sorted([*others, *own]))


def hear_went(broker: Broker, sender: int, said: RoutesWent) -> None:
    """A queue has left one broker for another. Its new one says so too, but that may come later
    than the old one's word that it takes nothing any more; in between nobody would be asked."""
    _check(said.kinds, said.patterns)
    if said.to != broker.header.number:
        for kind, pattern in zip(said.kinds, said.patterns, strict=True):
            known = _routes_of(broker, said.vpn, kind, pattern)
            made = 0 if said.base in (-1, said.to) else -1 - said.base
            _store(broker, said.vpn, kind, pattern, sorted({*known, made * _WAYS + said.to}))


def tell_went(broker: Broker, vpn: str, queue: Queue, topics: list[str], to: int) -> None:
    """Say to all, and note here, that this queue takes what it takes at another broker now."""
    patterns = [(kind_of_topics(topic), topic) for topic in topics]
    captured = queue.definition.underlying_topic
    if captured != queue.definition.name:
        patterns.append((REGULAR if is_regex(captured) else PLAIN, captured))
    if patterns:
        kinds, texts = [kind for kind, _ in patterns], [text for _, text in patterns]
        said = RoutesWent(vpn, to, kinds, texts, base_of(broker, queue))
        hear_went(broker, broker.header.number, said)
        say_to_all(broker, said)


def _check(kinds: list[int], patterns: list[str]) -> None:
    """Raise ValueError for what is no pattern."""
    for kind, pattern in zip(kinds, patterns, strict=True):
        if kind == REGULAR:
            compiled(pattern)
        elif kind == WILD and kind_of(pattern) != WILDCARD:
            raise ValueError(f"topic: {pattern[:200]!r} – is no wildcard")


def _routes_of(broker: Broker, vpn: str, kind: int, pattern: str) -> list[int]:
    _, slot = slot_of(kind, pattern)
    known: list[int] = (broker.values.read(f"T/{vpn}/{slot}") or {}).get(pattern, [])
    return known


def _store(broker: Broker, vpn: str, kind: int, pattern: str, routes: list[int]) -> None:
    """These are all routes of a pattern from now on."""
    which, slot = slot_of(kind, pattern)
    key, away = f"T/{vpn}/{slot}", broker.header.away
    entries = dict(broker.values.read(key) or {})
    before = entries.pop(pattern, [])
    if routes:
        entries[pattern] = routes
    broker.values.write(key, entries)
    counts = away.setdefault(vpn, [0, 0, 0, 0])
    counts[which] += bool(routes) - bool(before)
    if not any(counts):
        del away[vpn]


def _routes(broker: Broker, vpn: str, topic: str) -> set[int]:
    """What others have said of patterns that match a topic."""
    counts = broker.header.away.get(vpn)
    if counts is None:
        return set()
    read = broker.values.read
    found: set[int] = set()
    if counts[0]:
        found.update((read(f"T/{vpn}/t{bucket(topic)}") or {}).get(topic, ()))
    levels = topic.split("/")
    slots = [f"w{bucket(levels[0])}"] if counts[1] else []
    slots += ["*"] if counts[2] else []
    for slot in slots:
        for pattern, routes in (read(f"T/{vpn}/{slot}") or {}).items():
            if wildcard_matches(pattern.split("/"), levels):
                found.update(routes)
    if counts[3]:
        for pattern, routes in (read(f"T/{vpn}/r") or {}).items():
            if compiled(pattern).fullmatch(topic):
                found.update(routes)
    return found


class Others(NamedTuple):
    """Who else gets a message. asked: the brokers that may have queues for it that do not get it
    over bridges; led: those whose queues do: the ones that were made there; out: over whose bridges
    it goes to other homes and VPNs, if it is not those of brokers to which it comes anyway."""

    asked: list[int]
    led: list[int]
    out: dict[int, int]


NOBODY = Others([], [], {})


def brokers_of(broker: Broker, vpn: str, topic: str, local: Iterable[Queue]) -> Others:
    """Who else gets what is published here to a topic. local: the queues here that take it,
    endpoints of bridges among them."""
    own, routes = broker.header.number, _routes(broker, vpn, topic)
    peers = broker.header.peers
    found = {(route % _WAYS, _base_in(route)) for route in routes if route < _WAYS}
    found.update(_of_that_name(broker, vpn, topic))
    endpoints = [queue for queue in local if queue.number in broker.header.links]
    ways = {(own, way(broker, q)) for q in endpoints for way in (_far_of, way_out)}
    ways |= {(route % _WAYS, route // _WAYS - 1) for route in routes if route >= _WAYS}
    led: set[int] = set()
    while more := {to for at, to in ways if _is_broker(to) and at in {own, *led}} - led:
        led |= more
    there = {host for host, base in found if base not in led and host != own}
    bridges: dict[int, set[int]] = {}
    for near, to in ways:
        if to is not None and not _is_broker(to):
            bridges.setdefault(to, set()).add(near)
    out = {
        to: min(near & set(peers)) for to, near in sorted(bridges.items())
        if near & set(peers) and not near & {own, *led}
    }  # fmt: skip
    return Others(sorted({*there, *out.values()} & set(peers)), sorted(led), out)


def _is_broker(to: int | None) -> TypeGuard[int]:
    """Whether a bridge that leads there stays in its VPN and home."""
    return to is not None and to < BROKERS_MAX


def _base_in(route: int) -> int:
    """Where a queue was made, of one of which somebody has said this."""
    made = route // _WAYS
    return -1 - made if made < 0 else route % _WAYS


def _of_that_name(broker: Broker, vpn: str, topic: str) -> list[tuple[int, int]]:
    """The hosts of a queue that is not here and takes what is published to its name, and for each
    where it was made."""
    if broker.queue_number(vpn, topic) is not None:
        return []
    entry = known_places.find(broker, vpn, topic)
    if entry is None or entry.state == known_places.PLACING or entry.target != topic:
        return []
    if broker.header.number in entry.hosts:
        to = known_places.gone_to(broker, vpn, topic)
        return [] if to is None else [(to, _made_at(entry, broker.header.number))]
    return [(host, _made_at(entry, host)) for host in entry.hosts]


def _made_at(entry: Entry, host: int) -> int:
    return host if entry.base < 0 else entry.base


def is_about_to_come(broker: Broker, vpn: str, topic: str) -> bool:
    """Whether the directory says that the queue of this name is here, and it is not: it has left,
    and nobody has heard of it yet."""
    entry = known_places.find(broker, vpn, topic)
    return (
        entry is not None and entry.state == known_places.MOVING
        and broker.header.number in entry.hosts
        and broker.queue_number(vpn, topic) is None
    )  # fmt: skip
