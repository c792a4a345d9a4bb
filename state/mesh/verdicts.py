"""When all brokers have voted on a publish, it is decided: stored by all, or by none (S5, S6, P1).

A message is refused if any queue of any broker refuses it with a nack; its producer hears by which.
Else it gets its id, here, and enters every queue that takes it: those here now, those of the others
as they hear the verdict. Nothing can come between: what was kept counts as stored. If nobody takes
it, it had no match.

There is no time-out. A broker that is away votes when it is back, and its producer's receipt waits
till then; `usage` shows how many messages wait for which broker. What may wait is bounded
(`Limits.offer_rows`, `offer_bytes`); beyond that publishes are refused (`awaiting_brokers`), those
that other brokers take.

If a broker says that a queue is on its way, all is given up and asked again a little later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...protocol.errors import Reason
from ...protocol.offering import Verdict, Vote
from ..isolation import Refusals
from ..phases.admission import Admission
from ..phases.spreading import offer_to
from ..storage import NEVER
from . import bundles, queue_moving
from .bundles import Bundle, LanePlace, OfferTally
from .saying import say
from .topic_routes import brokers_of
from .voting import count_discards, follow_leaving

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue


def hear_vote(broker: Broker, sender: int, vote: Vote) -> None:
    """A broker says what its queues make of an offer."""
    tally = bundles.tally_of(broker, vote.number)
    broker.header.peers[sender].went = max(broker.header.peers[sender].went, vote.went)
    if tally is None or sender not in tally.waits or vote.attempt != tally.attempt:
        return
    _count(broker, vote.number, tally, sender)
    tally.again |= vote.again
    tally.also = sorted({*tally.also, *vote.also})
    if vote.yes or vote.discarded:
        tally.keepers.append(sender)
    tally.yes = sorted({*tally.yes, *vote.yes})
    tally.discarded += vote.discarded
    for row, reason, queue in vote.no:
        tally.no.setdefault(row, (reason, queue))
    _look(broker, vote.number, tally)


def refuse_vote(broker: Broker, sender: int, vote: Vote) -> None:
    """Something failed as a vote was counted, or as it decided: it counts as a no."""
    tally = bundles.tally_of(broker, vote.number)
    if tally is not None:
        rows = range(len(bundles.bundle_of(broker, vote.number).seqs))
        why = Reason.MALFORMED.value
        keeps = {"yes": vote.yes, "discarded": vote.discarded}  # it waits for the verdict
        no = [(row, why, "") for row in rows]
        hear_vote(broker, sender, Vote(vote.number, vote.attempt, vote.went, no=no, **keeps))


def forget_peers(broker: Broker, gone: list[int]) -> None:
    """Brokers that are no longer of this home have nothing to say."""
    for lane in sorted(broker.values.read(bundles.LANES) or ()):
        for place in bundles.lane_places(broker, lane):
            tally = bundles.tally_of(broker, place.number)
            if tally is not None and set(tally.waits) & set(gone):
                tally.waits = [number for number in tally.waits if number not in gone]
                _look(broker, place.number, tally)
    decide_voted(broker)


def _count(broker: Broker, number: int, tally: OfferTally, sender: int) -> None:
    tally.waits = [other for other in tally.waits if other != sender]
    rows = len(bundles.bundle_of(broker, number).seqs)
    broker.header.peers[sender].undecided -= rows


def _look(broker: Broker, number: int, tally: OfferTally) -> None:
    """If all have voted, it may be decided in its turn, or is asked again."""
    if not tally.waits and tally.again:
        _say_to_keepers(broker, number, tally, Verdict(number, []))
        broker.calendar.set(f"o{number}", broker.now + broker.limits.offer_again_ms)
    elif not tally.waits:
        _mark_voted(broker, number)
    bundles.keep_tally(broker, number, tally)


def _mark_voted(broker: Broker, number: int) -> None:
    lane = bundles.bundle_of(broker, number).lane
    places = bundles.lane_places(broker, lane)
    for place in places:
        if place.number == number:
            place.voted = True
    bundles.keep_lane(broker, lane, places)
    broker.voted[lane] = None


def _say_to_keepers(broker: Broker, number: int, tally: OfferTally, verdict: Verdict) -> None:
    for keeper in sorted(tally.keepers):
        if keeper in broker.header.peers:
            say(broker, keeper, verdict)


# ---------------------------------------------------------------- deciding


def decide_voted(broker: Broker) -> None:
    """Decide what all have voted on, of each producer in its order. What that may be is bounded by
    what may be undecided."""
    if not broker.voted:
        return
    admission = Admission(broker, Refusals())
    leaving = []
    for lane in sorted(broker.voted):
        left: list[LanePlace] = []
        meets: set[int] = set()
        for place in bundles.lane_places(broker, lane):
            if place.voted and not meets.intersection(place.meets):
                bundle = bundles.bundle_of(broker, place.number)
                leaving += follow_leaving(broker, bundle.kept)
                _decide(broker, admission, place.number, bundle)
            else:
                meets.update(place.meets)
                left.append(place)
        bundles.keep_lane(broker, lane, left)
    broker.voted = {}
    admission.close()
    for queue, first in leaving:
        queue_moving.follow(broker, queue, first)


def _decide(broker: Broker, admission: Admission, number: int, bundle: Bundle) -> None:
    """Store what nobody refuses, answer the producer, and tell those who keep it."""
    tally = bundles.tally_of(broker, number)
    assert tally is not None
    kept = bundle.kept
    bundles.let_go(broker, kept)
    given_up = set(tally.no)
    discarded = [*count_discards(broker, admission, kept, given_up), *tally.discarded]
    discards: dict[int, list[tuple[str, str]]] = {}
    for row, reason, queue in discarded:
        discards.setdefault(row, []).append((reason, queue))
    taken = set(tally.yes)
    ids = []
    for row in range(len(bundle.seqs)):
        ids.append(
            _decide_one(
                broker, admission, bundle, row, row in taken, discards.get(row, []),
                tally.no.get(row),
            )
        )  # fmt: skip
    _say_to_keepers(broker, number, tally, Verdict(number, ids, sorted(given_up)))
    undecided = broker.header.undecided
    undecided.rows -= len(bundle.seqs)
    undecided.bytes -= bundle.bytes
    bundles.keep_bundle(broker, number, None)
    bundles.keep_tally(broker, number, None)


def _decide_one(
    broker: Broker, admission: Admission, bundle: Bundle, row: int, taken: bool,
    discards: list[tuple[str, str]], no: tuple[str, str] | None,
) -> int:  # fmt: skip
    """What becomes of one message; gives its id, or 0. taken: others have queues that take it."""
    kept, seq = bundle.kept, bundle.seqs[row]
    header, record = bundles.message_of(kept.offer, row)
    vpn = kept.offer.vpn
    producer = admission.producer(vpn, header) if bundle.producer else None
    if producer is not None:
        producer.let_go(seq)
    if no is not None:
        if producer is not None:
            producer.refused(seq, *no, "")
        return 0
    matches = bundles.matches_of(broker, kept, row)
    if not (matches or taken or discards):
        admission.nowhere(vpn, header, seq, producer, record)
        return 0
    number = 0
    if matches:
        number = admission.store(vpn, header, matches, kept.sizes[row], record)
    elif taken:
        number = broker.spool.skip_id()
    if producer is not None:
        for reason, queue in discards:
            producer.discarded(seq, reason, queue)
        producer.stored(seq, number)
    return number


# ---------------------------------------------------------------- asking again


def ask_again(broker: Broker, name: str) -> None:
    """A queue was on its way as an offer was made: offer it once more, to whoever may have queues
    for it now; ``name`` is its name in the calendar."""
    broker.calendar.set(name, NEVER)
    number = int(name[1:])
    before = bundles.tally_of(broker, number)
    if before is None:
        return
    bundle = bundles.bundle_of(broker, number)
    offer, peers = bundle.kept.offer, broker.header.peers
    found, led = set(before.also) & set(peers), set[int]()
    for topic in offer.topics:
        queues = [q for q in _local(broker, bundle) if q.number in broker.header.links]
        others, over_bridges = brokers_of(broker, offer.vpn, topic, queues)
        found.update(others)
        led.update(over_bridges)
    others = sorted(found - led)
    tally = OfferTally(before.attempt + 1, list(others))
    offer = msgspec.structs.replace(offer, attempt=tally.attempt, asked=sorted(found | led))
    places = bundles.lane_places(broker, bundle.lane)
    for place in places:
        if place.number == number:
            place.meets = sorted({*place.meets, *(-1 - n for n in others)})
    bundles.keep_lane(broker, bundle.lane, places)
    bundles.keep_tally(broker, number, tally)
    offer_to(broker, offer, others)
    if not others:
        _look(broker, number, tally)
        decide_voted(broker)


def _local(broker: Broker, bundle: Bundle) -> list[Queue]:
    """The queues here that keep something of a bundle."""
    numbers = {match[0] for matches in bundle.kept.matches.values() for match in matches}
    found = (bundles.queue_of(broker, number) for number in sorted(numbers))
    return [queue for queue in found if queue is not None]
