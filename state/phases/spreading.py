"""A publish that queues on other brokers take too is offered to them (S5).

The broker that takes a message in looks at its own queues first: what one of them refuses is
refused at once. Then it is *held*: it counts as stored, and is offered to the brokers that may have
queues for it (`mesh.topic_routes`). Each votes (`mesh.voting`); when all have, it is stored by all,
or by none if any queue refuses it with a nack, and only then its producer is answered
(`mesh.verdicts`). So the channel's promise carries S5 over brokers: nothing is lost between two of
them, and nothing comes twice.

What no other broker wants, and does not stand behind something that is held, never comes here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ...protocol.errors import Reason
from ...protocol.mesh import PART_BYTES, PART_ROWS
from ...protocol.messages import PublishHeader, encode_publish_header
from ...protocol.offering import Offer
from ..mesh import bundles
from ..mesh.bundles import Bundle, Kept, LanePlace, OfferTally
from ..mesh.saying import say
from ..mesh.topic_routes import NOBODY, brokers_of
from ..producers import Answered, ProducerHistory
from .incoming import Incoming, time_of
from .judging import Judged

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue
    from ..routing import Routes


class Way(NamedTuple):
    """Where a destination's messages go besides: its topic, and as `Others`."""

    topic: str
    others: list[int]
    led: list[int]
    out: dict[int, int]


class Spreading:
    """What one step offers to other brokers."""

    def __init__(self, broker: Broker, routes: Routes) -> None:
        self._broker = broker
        self._routes = routes
        self._ways: dict[tuple[str, str], Way] = {}
        self._lanes: dict[str, list[LanePlace]] = {}
        self._open: dict[str, Bundle] = {}  # by lane: the last one, to which more may be added
        self._asked: dict[str, list[int]] = {}  # of these
        self._new: dict[int, tuple[Bundle, list[int]]] = {}  # by number

    def way(self, vpn: str, to: str, queues: list[Queue]) -> Way:
        """Where else messages to a destination go; queues: those here."""
        found = self._ways.get((vpn, to))
        if found is None:
            topic = self._routes.target_of(vpn, to)
            others = NOBODY
            if not to.startswith("#"):  # to one queue alone, or to an endpoint
                others = brokers_of(self._broker, vpn, topic, queues)
            found = self._ways[vpn, to] = Way(topic, *others)
        return found

    def must_wait(
        self, vpn: str, producer: ProducerHistory | None, partition: int, numbers: list[int]
    ) -> bool:
        """Whether a message for these queues stands behind one of the same producer."""
        if not self._broker.header.undecided.rows or (producer is not None and not producer.held):
            return False
        places = self._places(_lane(vpn, producer, partition))
        return any(number in place.meets for place in places for number in numbers)

    def hold(
        self, vpn: str, header: PublishHeader, seq: int, producer: Answered | None,
        record: Incoming, way: Way, judged: Judged,
    ) -> bool | None:  # fmt: skip
        """Hold a message if other brokers have to agree, or if it stands behind one that is held;
        whether that is so. None: it should be, and too much is held."""
        assert producer is None or isinstance(producer, ProducerHistory)
        numbers = [m.queue.number for m in judged.kept]
        if not header.to:
            return False  # a record on a captured topic: Kafka brings it to whoever reads that
        if not way.others and not self.must_wait(vpn, producer, record.partition, numbers):
            return False
        undecided, limits = self._broker.header.undecided, self._broker.limits
        if undecided.rows >= limits.offer_rows or undecided.bytes >= limits.offer_bytes:
            return None
        lane = _lane(vpn, producer, record.partition)
        name = "" if producer is None else header.producer
        meta = encode_publish_header(msgspec.structs.replace(header, count=0))
        texts = (record.value, record.key, record.headers, meta)
        size = sum(len(text) for text in texts if text)
        bundle = self._bundle(lane, vpn, name, way.others, size)
        offer, kept, row = bundle.kept.offer, bundle.kept, len(bundle.seqs)
        topic = way.topic or header.to
        if topic not in offer.topics:
            offer.topics.append(topic)
            offer.led.append(way.led)
            offer.out.append(way.out)
        offer.asked.extend(n for n in way.led if n not in offer.asked)
        _append(offer, topic, meta, record, time_of(record.timestamp, self._broker.now))
        kept.sizes.append(0)
        kept.add(row, judged)
        bundles.reserve(self._broker, kept, row)
        bundle.seqs.append(seq)
        if producer is not None:
            producer.hold(seq)
        bundle.bytes += size
        undecided.rows += 1
        undecided.bytes += size
        place = self._places(lane)[-1]
        place.meets.extend(number for number in numbers if number not in place.meets)
        return True

    def why_full(self) -> tuple[Reason, str]:
        """Why nothing more can be held."""
        header = self._broker.header
        names = ", ".join(repr(p.name) for p in header.peers.values() if p.undecided) or "others"
        why = f"{header.undecided.rows} messages wait for what {names} say"
        return Reason.AWAITING_BROKERS, why

    def _places(self, lane: str) -> list[LanePlace]:
        places = self._lanes.get(lane)
        if places is None:
            places = self._lanes[lane] = bundles.lane_places(self._broker, lane)
        return places

    def _bundle(self, lane: str, vpn: str, producer: str, others: list[int], size: int) -> Bundle:
        """The bundle that a lane's next message of this size joins."""
        bundle = self._open.get(lane)
        if (
            bundle is not None
            and self._asked[lane] == others
            and (bundle.bytes + size <= PART_BYTES and len(bundle.seqs) < PART_ROWS)
        ):
            return bundle
        undecided = self._broker.header.undecided
        undecided.next += 1
        number = undecided.next
        offer = Offer(number, 1, vpn, list(others), 0, [], [], [], [], [], [], [], [], [], [])
        bundle = self._open[lane] = Bundle(lane, producer, Kept(offer))
        self._asked[lane] = others
        self._new[number] = bundle, others
        self._places(lane).append(LanePlace(number, not others, [-1 - n for n in others]))
        return bundle

    def close(self) -> None:
        """Write down what is held, and offer it."""
        broker = self._broker
        for number, (bundle, others) in self._new.items():
            bundles.keep_bundle(broker, number, bundle)
            bundles.keep_tally(broker, number, OfferTally(1, list(others)))
            offer_to(broker, bundle.kept.offer, others)
        for lane in {bundle.lane: None for bundle, _ in self._new.values()}:
            bundles.keep_lane(broker, lane, self._lanes[lane])


def offer_to(broker: Broker, offer: Offer, others: list[int]) -> None:
    """Offer a bundle to these brokers."""
    for number in others:
        peer = broker.header.peers[number]
        peer.undecided += len(offer.payloads)
        say(broker, number, msgspec.structs.replace(offer, went=peer.went))


def _lane(vpn: str, producer: ProducerHistory | None, partition: int) -> str:
    """What keeps its order: a producer, or of those that do not count a partition."""
    if producer is None:
        return f"{vpn}/k{partition}"
    return f"{producer.home}/p{producer.receipt.producer}"


def _append(offer: Offer, topic: str, meta: bytes, record: Incoming, time: int) -> None:
    """One more message in the columns of an offer."""
    offer.to.append(offer.topics.index(topic))
    offer.metas.append(meta)
    offer.partitions.append(record.partition)
    offer.offsets.append(record.offset)
    offer.items.append(record.item)
    offer.times.append(time)
    offer.keys.append(record.key)
    offer.payloads.append(record.value)
    offer.headers.append(record.headers)
