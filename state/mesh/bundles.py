"""Messages that brokers have not agreed on yet, as one broker keeps them (S5).

A *bundle* is what one producer sent in one step to the same brokers. The broker that took it in
keeps it (``offer/<number>``) with what is known of the votes (``tally/<number>``); who was offered
it keeps what its own queues would take (``offered/<broker>/<number>``). What is kept counts as
stored in every quota, so that a verdict never finds a queue full.

Bundles of a producer stand in its *lane* (``lane/<lane>``), in their order. One that meets an
earlier one in a queue here, or at a broker that both are offered to, is decided after it: so what a
producer sends to one queue enters it in the order in which it was sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...protocol import topics
from ...protocol.messages import PublishHeader, decode_publish_header
from ...protocol.offering import Offer
from ..phases.incoming import Incoming
from ..rules.entering import Match

if TYPE_CHECKING:
    from ..broker import Broker
    from ..phases.judging import Judged
    from ..queue import Queue

LANES = "lanes"  # the page that names the lanes in which something is undecided
_pack = msgspec.msgpack.encode


class Kept(msgspec.Struct, array_like=True):
    """An offer, and what one broker's queues take of it, by the messages' places: of each match the
    queue's number, and how it enters; discards: place, queue's number, reason (S4)."""

    offer: Offer
    sizes: list[int] = []
    matches: dict[int, list[tuple[int, int, bool, int]]] = {}
    discards: list[tuple[int, int, str]] = []

    def add(self, row: int, judged: Judged) -> None:
        """Keep what becomes of a message here."""
        self.sizes[row] = judged.size
        if judged.kept:
            self.matches[row] = [
                (m.queue.number, m.priority, m.barrier, m.lane) for m in judged.kept
            ]
        self.discards += [(row, queue.number, reason.value) for queue, reason in judged.discards]


class Bundle(msgspec.Struct, array_like=True):
    """What this broker has offered. producer, seqs: who hears of each message; "": nobody."""

    lane: str
    producer: str
    kept: Kept
    seqs: list[int] = []
    bytes: int = 0


class OfferTally(msgspec.Struct, array_like=True):
    """What is known of the votes. waits: brokers that have not voted; keepers: that keep something;
    again: some queue is on its way; also: brokers that were named by others; the rest by the
    messages' places."""

    attempt: int
    waits: list[int]
    keepers: list[int] = []
    again: bool = False
    also: list[int] = []
    yes: list[int] = []
    discarded: list[tuple[int, str, str]] = []
    no: dict[int, tuple[str, str]] = {}


class LanePlace(msgspec.Struct, array_like=True):
    """A bundle in its lane. voted: by all; meets: numbers of queues here, and of brokers as
    ``-1 - number``; again: it is given up, and about to be offered once more."""

    number: int
    voted: bool
    meets: list[int]
    again: bool = False


_bundles = msgspec.msgpack.Decoder(Bundle)
_tallies = msgspec.msgpack.Decoder(OfferTally)
_kept = msgspec.msgpack.Decoder(Kept)
_lanes = msgspec.msgpack.Decoder(list[LanePlace])


def keep_bundle(broker: Broker, number: int, bundle: Bundle | None) -> None:
    """Write it down; None: it is decided."""
    broker.values.write(f"offer/{number}", None if bundle is None else _pack(bundle))


def bundle_of(broker: Broker, number: int) -> Bundle:
    """What was offered under this number."""
    return _bundles.decode(broker.values.read(f"offer/{number}"))


def keep_tally(broker: Broker, number: int, tally: OfferTally | None) -> None:
    """Write it down; None: it is decided."""
    broker.values.write(f"tally/{number}", None if tally is None else _pack(tally))


def tally_of(broker: Broker, number: int) -> OfferTally | None:
    """The votes on what was offered under this number; None: it is decided."""
    raw = broker.values.read(f"tally/{number}")
    return None if raw is None else _tallies.decode(raw)


def keep_lane(broker: Broker, lane: str, places: list[LanePlace]) -> None:
    """Write down what is not decided of a lane, and that there is something."""
    known = broker.values.read(LANES) or {}
    if bool(places) != (lane in known):
        rest = {name: 1 for name in known if name != lane}
        broker.values.write(LANES, {**rest, lane: 1} if places else rest)
    broker.values.write(f"lane/{lane}", _pack(places) if places else None)


def lane_places(broker: Broker, lane: str) -> list[LanePlace]:
    """What is not decided of a lane."""
    raw = broker.values.read(f"lane/{lane}")
    return [] if raw is None else _lanes.decode(raw)


def keep_offered(broker: Broker, entry: int, number: int, kept: Kept | None) -> None:
    """Write down what queues here would take of another broker's offer."""
    broker.values.write(f"offered/{entry}/{number}", None if kept is None else _pack(kept))
    numbers = broker.values.read(f"offered/{entry}") or {}  # changed in place: it may be long
    if kept is None:
        numbers.pop(number, None)
    else:
        numbers[number] = 1
    broker.values.write(f"offered/{entry}", numbers)


def offered_by(broker: Broker, entry: int) -> list[int]:
    """The numbers of another broker's offers of which something is kept here."""
    return sorted(broker.values.read(f"offered/{entry}") or ())


def offered(broker: Broker, entry: int, number: int) -> Kept | None:
    """What queues here would take of it; None: nothing."""
    raw = broker.values.read(f"offered/{entry}/{number}")
    return None if raw is None else _kept.decode(raw)


# ---------------------------------------------------------------- its messages


def message_of(offer: Offer, row: int) -> tuple[PublishHeader, Incoming]:
    """One message of an offer, as it came in."""
    meta = offer.metas[row]
    record = Incoming(
        topics.topic(offer.vpn, topics.PUBLISH), offer.partitions[row], offer.offsets[row],
        offer.times[row], offer.keys[row], offer.payloads[row], meta, offer.headers[row],
        offer.items[row],
    )  # fmt: skip
    return decode_publish_header(meta), record


def queue_of(broker: Broker, number: int) -> Queue | None:
    """The queue of a match; None where it was deleted since."""
    queue = broker.queue(number)
    return None if queue is None or queue.header.deleted else queue


def matches_of(broker: Broker, kept: Kept, row: int) -> list[Match]:
    """How a message enters the queues that are still there."""
    found = []
    for number, priority, barrier, lane in kept.matches.get(row, ()):
        queue = queue_of(broker, number)
        if queue is not None:
            found.append(Match(queue, priority, barrier, lane))
    return found


def reserve(broker: Broker, kept: Kept, row: int, by: int = 1) -> None:
    """A message counts as stored from now on in all quotas (by: 1), or no longer (-1)."""
    matches = kept.matches.get(row)
    if not matches:
        return
    size = kept.sizes[row] * by
    header, vpn = broker.header, broker.vpn_number(kept.offer.vpn)
    header.spool.bytes += size
    header.spool.vpn_bytes[vpn] = header.spool.vpn_bytes.get(vpn, 0) + size
    counted = header.undecided.kept
    counted[vpn] = counted.get(vpn, 0) + size
    if not counted[vpn]:
        del counted[vpn]
    for number, *_ in matches:
        queue = broker.queue(number)
        if queue is not None:
            queue.header.kept += by
            queue.header.kept_bytes += size


def let_go(broker: Broker, kept: Kept) -> None:
    """What was kept no longer counts: it is stored now, or given up."""
    for row in sorted(kept.matches):
        reserve(broker, kept, row, -1)
