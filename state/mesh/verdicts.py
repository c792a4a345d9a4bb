"""When all brokers have voted on a publish, it is decided: stored by all, or by none (S5, S6, P1).

A message is refused if any queue of any broker refuses it with a nack; its producer hears by which.
Else it gets its id, here, and enters every queue that takes it: those here now, those of the others
as they hear the verdict. Nothing can come between: what was kept counts as stored. If nobody takes
it, it had no match.

There is no time-out. A broker that is away votes when it is back, and its producer's receipt waits
till then; `usage` shows how many messages wait for which broker. What may wait is bounded
(`Limits.offer_rows`, `offer_bytes`); beyond that publishes are refused (`awaiting_brokers`), those
that other brokers take.

If a broker says that a queue is on its way, all is given up and asked again a little later; with it
what stands behind it, also what comes to stand there: else a queue might wait for that before it
moves, that for what is asked again, and this for the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...protocol.errors import Reason
from ...protocol.offering import Verdict, Vote
from ..bridges.bases import is_based_at
from ..isolation import Refusals
from ..phases.admission_of_offers import OfferAdmission
from ..phases.spreading import offer_to
from ..storage import NEVER
from . import bundles, queue_moving
from .bundles import Bundle, LanePlace, OfferTally
from .known_places import is_moving
from .saying import say
from .topic_routes import brokers_of
from .voting import count_discards, follow_leaving, forget_entry

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
        no = [(row, why, "") for row in rows]
        hear_vote(broker, sender, msgspec.structs.replace(vote, again=False, no=no))


def forget_peers(broker: Broker, gone: list[int]) -> None:
    """Brokers that are no longer of this home have nothing to say, and decide nothing."""
    for number in gone:
        forget_entry(broker, number)
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
    bundles.keep_tally(broker, number, tally)
    if tally.waits:
        return
    if tally.again or _stands_behind(broker, number):
        _give_up(broker, number)
    else:
        _mark_voted(broker, number)


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
    admission = OfferAdmission(broker, Refusals())
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


def _decide(broker: Broker, admission: OfferAdmission, number: int, bundle: Bundle) -> None:
    """Store what nobody refuses, answer the producer, and tell those who keep it."""
    tally = bundles.tally_of(broker, number)
    assert tally is not None
    kept = bundle.kept
    bundles.let_go(broker, kept)
    given_up = set(tally.no)
    discarded = [*count_discards(broker, kept, given_up), *tally.discarded]
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
    broker: Broker, admission: OfferAdmission, bundle: Bundle, row: int, taken: bool,
    discards: list[tuple[str, str]], no: tuple[str, str] | None,
) -> int:  # fmt: skip
    """What becomes of one message; gives its id, or 0. taken: others have queues that take it."""
    kept, seq = bundle.kept, bundle.seqs[row]
    header, record = bundles.message_of(kept.offer, row)
    vpn = kept.offer.vpn
    producer = admission.producer(vpn, header, record) if bundle.producer else None
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


def _give_up(broker: Broker, number: int) -> None:
    """A queue is on its way: nobody keeps anything of a bundle, so that it can get there; nor of
    those that are to be decided after it."""
    lane = bundles.bundle_of(broker, number).lane
    places = bundles.lane_places(broker, lane)
    meets: set[int] = set()
    for place in places:
        if place.number == number or (place.voted and meets.intersection(place.meets)):
            place.voted, place.again = False, True
            _let_go(broker, place.number)
        if place.again:
            meets.update(place.meets)
    bundles.keep_lane(broker, lane, places)


def _let_go(broker: Broker, number: int) -> None:
    """Nobody keeps anything of this bundle; it is asked again a little later."""
    tally, bundle = bundles.tally_of(broker, number), bundles.bundle_of(broker, number)
    assert tally is not None
    _say_to_keepers(broker, number, tally, Verdict(number, []))
    tally.keepers = []
    bundles.keep_tally(broker, number, tally)
    bundles.let_go(broker, bundle.kept)
    leaving = follow_leaving(broker, bundle.kept)
    bundle.kept.matches, bundle.kept.discards = {}, []
    bundles.keep_bundle(broker, number, bundle)
    for queue, first in leaving:
        queue_moving.follow(broker, queue, first)
    broker.calendar.set(f"o{number}", broker.now + broker.limits.offer_again_ms)


def _stands_behind(broker: Broker, number: int) -> bool:
    """Whether a bundle is to be decided after one that is about to be asked again."""
    meets: set[int] = set()
    for place in bundles.lane_places(broker, bundles.bundle_of(broker, number).lane):
        if place.number == number:
            return bool(meets.intersection(place.meets))
        if place.again:
            meets.update(place.meets)
    return False


def ask_again(broker: Broker, name: str) -> None:
    """A queue was on its way as an offer was made: look here once more, and offer it to whoever may
    have queues for it now; ``name`` is its name in the calendar."""
    number = int(name[1:])
    before = bundles.tally_of(broker, number)
    if before is None:
        broker.calendar.set(name, NEVER)
        return
    bundle = bundles.bundle_of(broker, number)
    admission, offer = OfferAdmission(broker, Refusals()), bundle.kept.offer
    here = {topic: admission.here(offer.vpn, topic) for topic in offer.topics}
    moving = any(is_moving(queue) for queues in here.values() for queue in queues)
    if moving or _stands_behind(broker, number):
        _give_up(broker, number)  # with what came behind it since, for which that queue waits
        return
    broker.calendar.set(name, NEVER)
    tally = OfferTally(before.attempt + 1, [])
    found = set(before.also) & set(broker.header.peers)
    led: list[list[int]] = []
    out: list[dict[int, int]] = []
    for topic in offer.topics:
        others = brokers_of(broker, offer.vpn, topic, here[topic])
        found.update(others.asked)
        led.append(others.led)
        out.append(others.out)
        here[topic] = [q for q in here[topic] if not is_based_at(broker, q, others.led)]
    _look_here(broker, admission, bundle, here, tally)
    tally.waits = sorted(found)
    asked = sorted(found.union(*led))
    again = msgspec.structs.replace(offer, attempt=tally.attempt, asked=asked, led=led, out=out)
    bundle.kept.offer = again
    bundles.keep_bundle(broker, number, bundle)
    bundles.keep_tally(broker, number, tally)
    _meet(broker, number, bundle, tally)
    offer_to(broker, again, tally.waits)
    if not tally.waits:
        _look(broker, number, tally)
        decide_voted(broker)


def _look_here(
    broker: Broker, admission: OfferAdmission, bundle: Bundle, here: dict[str, list[Queue]],
    tally: OfferTally,
) -> None:  # fmt: skip
    """What the queues here make of it now."""
    kept = bundle.kept
    for row in range(len(bundle.seqs)):
        header, record = bundles.message_of(kept.offer, row)
        queues = here[kept.offer.topics[kept.offer.to[row]]]
        judged = admission.judge_at(kept.offer.vpn, queues, header, record)
        if judged is None:
            continue
        if judged.refused is not None:
            queue, reason = judged.refused
            tally.no[row] = reason.value, queue.definition.name
            continue
        kept.add(row, judged)
        bundles.reserve(broker, kept, row)


def _meet(broker: Broker, number: int, bundle: Bundle, tally: OfferTally) -> None:
    """What a bundle meets has changed."""
    places = bundles.lane_places(broker, bundle.lane)
    for place in places:
        if place.number == number:
            here = (match[0] for matches in bundle.kept.matches.values() for match in matches)
            place.meets = sorted({*place.meets, *here, *(-1 - n for n in tally.waits)})
            place.again = False
    bundles.keep_lane(broker, bundle.lane, places)
