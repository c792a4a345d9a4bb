"""What brokers say to each other about a publish that queues on several of them take (S5).

The broker that took it in *offers* it to the others; each *votes*; then all hear the *verdict*.
`TopicRoutes` says beforehand who may have queues for which topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Annotated, ClassVar, Self

import msgspec

from .bounds import Count, Name, Partition, Text, Topic
from .granting import Id
from .mesh import BROKERS_MAX, BrokerNumber, Said, slices

Kind = Annotated[int, msgspec.Meta(ge=0, le=2)]
OUTSIDE_BITS = 45
Outside = Annotated[int, msgspec.Meta(ge=BROKERS_MAX, lt=BROKERS_MAX + (1 << OUTSIDE_BITS))]


def outside(far_home: str) -> int:
    """The number by which brokers know another home or VPN to which bridges lead."""
    hashed = blake2b(far_home.encode(), digest_size=8).digest()
    return BROKERS_MAX + (int.from_bytes(hashed) >> (64 - OUTSIDE_BITS))


class Offer(Said, frozen=True):
    """Messages of one producer. number: of the bundle at its broker; attempt: from 1; asked: the
    brokers that are asked, or left out on purpose; went: queues that have moved away from the one
    that hears this, as far as who says it knows. Columns: which of `topics` a message goes to; its
    header ``lq``; its place on the publish topic; time, key, payload and application headers. led:
    for each of `topics`, the brokers whose queues get it over bridges; out: for each of them, by
    home or VPN (`Outside`), the broker over whose bridges it goes there."""

    kind: ClassVar[str] = "offer"
    number: Count
    attempt: Count
    vpn: Name
    asked: list[BrokerNumber]
    went: Count
    topics: list[Topic]
    to: list[Count]
    metas: list[bytes]
    partitions: list[Partition]
    offsets: list[Count]
    items: list[Count]
    times: list[int]
    keys: list[bytes | None]
    payloads: list[bytes]
    headers: list[str | None]
    led: list[list[BrokerNumber]] = msgspec.field(default_factory=list)
    out: list[dict[Outside, BrokerNumber]] = msgspec.field(default_factory=list)


COLUMNS = (
    "to", "metas", "partitions", "offsets", "items", "times", "keys", "payloads", "headers",
)  # fmt: skip


class Vote(Said, frozen=True):
    """The answer to an offer: messages by their place in it. yes: kept until the verdict;
    discarded: a queue throws it away, with the reason; no: a queue refuses it, with the reason. Of
    others nothing is wanted. again: a queue is on its way, ask once more; also: these as well."""

    kind: ClassVar[str] = "vote"
    number: Count
    attempt: Count
    went: Count
    again: bool = False
    also: list[BrokerNumber] = msgspec.field(default_factory=list)
    yes: list[Count] = msgspec.field(default_factory=list)
    discarded: list[tuple[Count, Name, Name]] = msgspec.field(default_factory=list)
    no: list[tuple[Count, Name, Name]] = msgspec.field(default_factory=list)


class Verdict(Said, frozen=True):
    """What becomes of an offer. ids: the id of each message, 0 for one that nobody stores; none at
    all: it is given up. given_up: of those without an id the ones that nobody may count."""

    kind: ClassVar[str] = "verdict"
    number: Count
    ids: list[Id]
    given_up: list[Count] = msgspec.field(default_factory=list)


class TopicRoutes(Said, frozen=True):
    """For each pattern what queues the one who says this has for it now: `HERE`, and of bridges
    where they lead to, a broker or `Outside`. kinds: see `state/mesh/topic_routes.py`."""

    kind: ClassVar[str] = "topic_routes"
    vpn: Name
    kinds: list[Kind]
    patterns: list[Text]
    routes: list[list[int]]

    def parts(self) -> Iterator[Self]:
        """See `Said.parts`."""
        for part in slices([4 * len(pattern) + 100 for pattern in self.patterns]):
            yield type(self)(self.vpn, self.kinds[part], self.patterns[part], self.routes[part])


class RoutesWent(Said, frozen=True):
    """A queue that takes these patterns has left for another broker: it takes them there. base:
    where it was made, -1: there."""

    kind: ClassVar[str] = "routes_went"
    vpn: Name
    to: BrokerNumber
    kinds: list[Kind]
    patterns: list[Text]
    base: int = -1

    def parts(self) -> Iterator[Self]:
        """See `Said.parts`."""
        for part in slices([4 * len(pattern) + 100 for pattern in self.patterns]):
            kinds, patterns = self.kinds[part], self.patterns[part]
            yield type(self)(self.vpn, self.to, kinds, patterns, self.base)
