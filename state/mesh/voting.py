"""What a broker says to an offer, and what it does with the verdict (S5).

Its queues look at each message as at any publish (S3, S4): what they take is kept aside and counts
as stored from then on; what one of them refuses with a nack is refused, for all brokers. A queue
that is on its way to another broker can say neither yes nor no: then all of the offer is asked
again a little later. A queue that has just left, and of which the asking broker cannot know, is
noticed by a count of such queues: then it asks again too, also where the queue is now.

The verdict puts what was kept into the queues, under the id that it has everywhere, or lets it go.
A queue that was deleted meanwhile gets nothing (S7); one that is to move away waits for verdicts
before it is handed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...protocol.errors import Reason
from ...protocol.messages import Records
from ...protocol.offering import COLUMNS, Offer, Verdict, Vote
from ..isolation import Refusals
from ..phases.admission_of_offers import OfferAdmission
from ..phases.refusing import discard
from . import bundles, known_places, queue_moving
from .bundles import Kept
from .placement import LOCAL
from .saying import say
from .topic_routes import brokers_of, is_about_to_come

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue


def hear_offer(broker: Broker, sender: int, offer: Offer) -> None:
    """Another broker took messages in that queues here may want. Raises ValueError for columns that
    do not fit together."""
    n = len(offer.payloads)
    if any(len(getattr(offer, name)) != n for name in COLUMNS):
        raise ValueError(f"offer {offer.number}: columns of different lengths")
    if n and max(offer.to) >= len(offer.topics):
        raise ValueError(f"offer {offer.number}: a topic that is not named")
    for each in (offer.led, offer.out):
        if each and len(each) != len(offer.topics):
            raise ValueError(f"offer {offer.number}: {len(each)} of {len(offer.topics)} are led")
    admission = OfferAdmission(broker, Refusals())
    also = _to_ask_besides(broker, sender, offer, admission)
    if also is not None:
        went = broker.header.went
        say(broker, sender, Vote(offer.number, offer.attempt, went, again=True, also=also))
        return
    admission.look_at_files(_records(offer))
    kept = Kept(offer, [0] * n)
    no: list[tuple[int, str, str]] = []
    for row in range(n):
        header, record = bundles.message_of(offer, row)
        judged = admission.judge_offered(offer, offer.to[row], header, record, sender)
        if judged is None:
            continue
        if judged.refused is not None:
            queue, reason = judged.refused
            no.append((row, reason.value, queue.definition.name))
            continue
        kept.add(row, judged)
        bundles.reserve(broker, kept, row)
    if kept.matches or kept.discards:
        bundles.keep_offered(broker, sender, offer.number, kept)
    discarded = [(row, reason, _name(broker, queue)) for row, queue, reason in kept.discards]
    say(
        broker, sender,
        Vote(
            offer.number, offer.attempt, broker.header.went, yes=sorted(kept.matches),
            discarded=discarded, no=no,
        ),
    )  # fmt: skip


def _records(offer: Offer) -> Records:
    """What counts against spool files."""
    n = len(offer.payloads)
    return Records([""] * n, [0] * n, [0] * n, offer.times, offer.keys, list(offer.payloads),
                   [None] * n, offer.headers)  # fmt: skip


def _name(broker: Broker, number: int) -> str:
    queue = broker.queue(number)
    return "" if queue is None else queue.definition.name


def _to_ask_besides(
    broker: Broker, sender: int, offer: Offer, admission: OfferAdmission
) -> list[int] | None:
    """None where this broker can say all that there is to be said of an offer; else it is to be
    asked again, and these brokers too."""
    vpn, known = offer.vpn, {sender, broker.header.number, *offer.asked}
    again = offer.went < broker.header.went
    also: set[int] = set()
    for at, topic in enumerate(offer.topics):
        queues = admission.taking(offer, at, sender)
        if any(known_places.is_moving(queue) for queue in queues):
            again = True
        entry = known_places.find(broker, vpn, topic)
        if entry is not None and entry.type == LOCAL and entry.target == topic:
            also.update(set(entry.hosts) - known)
            again |= bool(also) or is_about_to_come(broker, vpn, topic)
        if again:
            also.update(brokers_of(broker, vpn, topic, ()).asked)
    return sorted(also - {sender, broker.header.number}) if again else None


def refuse_offer(broker: Broker, sender: int, offer: Offer) -> None:
    """Something failed in this offer, and nothing of it was kept."""
    why = Reason.MALFORMED.value
    no = [(row, why, "") for row in range(len(offer.payloads))]
    say(broker, sender, Vote(offer.number, offer.attempt, broker.header.went, no=no))


# ---------------------------------------------------------------- the verdict


def hear_verdict(broker: Broker, sender: int, verdict: Verdict) -> None:
    """All brokers have voted."""
    kept = bundles.offered(broker, sender, verdict.number)
    if kept is None:
        return
    bundles.keep_offered(broker, sender, verdict.number, None)
    leaving = follow_leaving(broker, kept)
    bundles.let_go(broker, kept)
    if verdict.ids:
        admission = OfferAdmission(broker, Refusals())
        given_up = set(verdict.given_up)
        for row, number in enumerate(verdict.ids):
            matches = bundles.matches_of(broker, kept, row)
            if number and matches:
                header, record = bundles.message_of(kept.offer, row)
                admission.store_as(kept.offer.vpn, header, matches, kept.sizes[row], record, number)
        count_discards(broker, kept, given_up)
        admission.close()
    for queue, first in leaving:
        queue_moving.follow(broker, queue, first)


def count_discards(broker: Broker, kept: Kept, given_up: set[int]) -> list[tuple[int, str, str]]:
    """What queues here throw away, of what is not given up (S4)."""
    told = []
    for row, number, reason in kept.discards:
        queue = bundles.queue_of(broker, number)
        if queue is not None and row not in given_up:
            _, record = bundles.message_of(kept.offer, row)
            discard(broker, kept.offer.vpn, queue, Reason(reason), record)
            told.append((row, reason, queue.definition.name))
    return told


def follow_leaving(broker: Broker, kept: Kept) -> list[tuple[Queue, int]]:
    """Queues that keep something of an offer and are to move away, each with its next place."""
    numbers = sorted({match[0] for matches in kept.matches.values() for match in matches})
    found: Any = (bundles.queue_of(broker, number) for number in numbers)
    return [(q, q.header.next_seq) for q in found if q is not None and q.header.leaving]


def forget_entry(broker: Broker, entry: int) -> None:
    """A broker is no longer of this home: what it has offered nobody will decide. Its producers
    have not been told that it is stored, so it is given up."""
    for number in bundles.offered_by(broker, entry):
        hear_verdict(broker, entry, Verdict(number, []))


def drop_offer(broker: Broker, sender: int, verdict: Verdict) -> None:
    """Something failed as a verdict was carried out: what was kept here is lost, which is said."""
    kept = bundles.offered(broker, sender, verdict.number)
    if kept is not None:
        bundles.keep_offered(broker, sender, verdict.number, None)
        bundles.let_go(broker, kept)
        lost = sum(1 for row in kept.matches if verdict.ids and verdict.ids[row])
        broker.event("publish_lost", kept.offer.vpn, messages=lost)
