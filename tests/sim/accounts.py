"""The clients' observations and the journal, checked against each other. It uses no code of the
core: only the sent messages, the contents of receipts and deliveries, and which queues take which
topics."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import msgspec
from lakequeue.protocol import wire
from lakequeue.protocol.journal import Journal, JournalSegment

from .kafka import Kafka

OUT, BRIDGED = "#out/", "#bridge/"
CANCELS_MAX = 3  # in the queue `keyed`
STAYING = frozenset({"expired", "consumer_rejected"})  # they may die into another queue

read_journal = msgspec.msgpack.Decoder(Journal).decode


class Wrong(AssertionError):
    """A broken promise."""


def must(holds: bool, what: str) -> None:
    """Raise Wrong unless it holds."""
    if not holds:
        raise Wrong(what)


@dataclass(slots=True)
class Sent:
    """A message as its producer knows it. copies: its offsets in Kafka; refused: its producer got a
    nack; discarded: by these queues."""

    to: str
    n: int
    may_expire: bool = False
    is_delayed: bool = False
    item: int = 0  # its place in the record
    copies: list[tuple[str, int, int]] = field(default_factory=list)
    number: int | None = None
    refused: str = ""
    discarded: set[str] = field(default_factory=set)
    ids: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Seen:
    """A delivery as a consumer saw it."""

    number: int
    count: int
    queue: str
    id: int
    key: tuple[str, int]
    subscription: str


@dataclass
class Accounts:
    """takes: queue → destinations whose messages it takes; odd: queues that take odd numbers only;
    ordered: queues that deliver in order, and by what (a name in the payload, or ""); shared:
    queues whose brokers grant each other messages."""

    takes: dict[str, set[str]]
    odd: set[str]
    ordered: dict[str, str]
    dead: str = "dead"
    shared: set[str] = field(default_factory=set)
    sent: dict[tuple[str, int], Sent] = field(default_factory=dict)
    by_id: dict[int, tuple[str, int]] = field(default_factory=dict)
    seen: dict[str, dict[tuple[str, int], Seen]] = field(default_factory=dict)
    untouched: Counter[tuple[str, int]] = field(default_factory=Counter)
    anew: set[tuple[str, int]] = field(default_factory=set)  # counts begin again
    acked: set[tuple[str, int]] = field(default_factory=set)
    loose: set[str] = field(default_factory=set)  # queues in which order may differ
    happened: set[str] = field(default_factory=set)  # kinds of commands that were given
    purged: set[str] = field(default_factory=set)
    rejected: set[tuple[str, int]] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)  # queues that may be deleted and recreated
    # an administrator acknowledged messages of these
    acked_in: set[str] = field(default_factory=set)
    moved_to: set[str] = field(default_factory=set)  # queues in which deliveries are counted anew
    undeliverable: set[tuple[str, int]] = field(default_factory=set)
    repeated: int = 0

    # ------------------------------------------------------------ producers

    def expected(self, one: Sent) -> set[str]:
        """The queues that must have had a message."""
        queues = {q for q, topics in self.takes.items() if one.to in topics or one.to == q}
        return {q for q in queues if q not in self.odd or one.n % 2} - one.discarded - self.gone

    def stored(self, key: tuple[str, int], number: int) -> None:
        """A receipt confirms a message as stored under this id; 0: as settled."""
        one = self.sent.get(key)
        must(one is not None, f"a receipt for {key}, which nobody sent")
        assert one is not None
        must(bool(one.copies), f"a receipt for {key}, which never came to Kafka")
        must(not one.refused or len(one.copies) > 1, f"{key} is refused, and stored")
        if number:
            self._is(key, number)
            one.number = number
        elif one.number is None:
            one.number = 0

    def nacked(self, key: tuple[str, int], why: str) -> None:
        """A receipt reports it as refused."""
        one = self.sent.get(key)
        must(one is not None, f"a refusal of {key}, which nobody sent")
        assert one is not None
        must(one.number is None or len(one.copies) > 1, f"{key} is stored, and refused: {why}")
        one.refused = why

    def _is(self, key: tuple[str, int], number: int) -> None:
        """A message has this id, and no other."""
        known = self.by_id.setdefault(number, key)
        must(known == key, f"id {number} is {known}, and {key}")
        one = self.sent[key]
        one.ids.add(number)
        must(len(one.ids) == 1, f"{key} has the ids {sorted(one.ids)}")

    # ------------------------------------------------------------ consumers

    def delivered(self, seen: Seen, payload: dict[str, Any]) -> bool:
        """A consumer gets a delivery from a queue. Returns whether it is new: a restarted worker
        repeats its last deliveries to their subscription, whose consumer may have moved to another
        broker since."""
        one, queue = self.sent.get(seen.key), seen.queue
        must(one is not None, f"{queue} delivers {seen.key}, which nobody sent")
        assert one is not None
        must(payload["n"] == one.n, f"{seen.key} has another payload")
        must(bool(one.copies), f"{queue} delivers {seen.key}, which never came to Kafka")
        is_expected = queue == self.dead or queue in self.expected(one) or queue in self.gone
        must(is_expected or "move" in self.happened, f"{queue} delivers {seen.key} for {one.to}")
        if one.refused:
            must(len(one.copies) > 1, f"{queue} delivers {seen.key}, refused: {one.refused}")
        self._is(seen.key, seen.id)
        known = self.seen.setdefault(queue, {})
        before = known.get((seen.subscription, seen.number))
        if before is not None:
            must(before.id == seen.id, f"delivery {seen.number} of {queue} is of two messages")
            return False
        anew = {self.dead} | self.gone | self.moved_to
        counts_on = queue not in anew and "redriven" not in self.happened
        if seen.count == 1 and counts_on:
            firsts = [s for s in known.values() if s.id == seen.id and s.count == 1]
            room = self.untouched[queue, seen.id]
            must(len(firsts) <= room, f"{queue} delivers {seen.id} again and does not say so")
        self.repeated += seen.count > 1
        known[seen.subscription, seen.number] = seen
        return True

    # ------------------------------------------------------------ the end

    def judge(self, kafka: Kafka) -> Counter[str]:
        """All is quiet and drained. Returns the count of each event in the journal."""
        lives = Lives(self)
        lives.read(kafka)
        lives.judge()
        self._judge_order(lives)
        return lives.events

    def _judge_order(self, lives: Lives) -> None:
        """Deliveries are in the order in which messages came to Kafka (O1, O4): to each consumer,
        and from step to step. Deliveries of one step go to several at once."""
        for queue, by in self.ordered.items():
            if queue in self.loose:
                continue
            to_each = [
                (seen.subscription, 0, seen.id)
                for seen in self.seen.get(queue, {}).values() if seen.count == 1
            ]  # fmt: skip
            self._ascend(queue, by, to_each)
            in_steps = [
                (broker, step, number)
                for (of, broker, number), step in lives.first.items() if of == queue
            ]  # fmt: skip
            self._ascend(queue, by, sorted(in_steps))

    def _ascend(self, queue: str, by: str, found: list[tuple[str, int, int]]) -> None:
        """found: consumer, step, message. Within one step any order is right."""
        lanes: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        for whom, step, number in found:
            if number not in self.by_id or (queue, number) in self.anew:
                continue
            one = self.sent[self.by_id[number]]
            if len(one.copies) != 1 or one.is_delayed:
                continue
            topic, partition, offset = one.copies[0]
            lanes[whom, topic, partition, one.n % 3 if by else 0].append((step, offset))
        for lane, steps in lanes.items():
            offsets = [offset for _, offset in (sorted(steps) if steps[-1][0] else steps)]
            must(offsets == sorted(offsets), f"{queue}, {lane}: delivered {steps}")


class Lives:
    """From the journal: where each message was created and how it left."""

    def __init__(self, accounts: Accounts) -> None:
        self.accounts = accounts
        self.events: Counter[str] = Counter()
        self.births: Counter[tuple[str, int]] = Counter()
        self.back: Counter[tuple[str, int]] = Counter()  # created by a redrive or a move
        self.ids: dict[tuple[str, int, int, int], int] = {}  # the message's origin → its id
        self.cancels: Counter[tuple[str, int]] = Counter()
        self.first: dict[tuple[str, str, int], int] = {}  # queue, broker, id → step
        self.leased: defaultdict[tuple[str, int], set[int]] = defaultdict(set)  # by lane
        self.discarded: set[tuple[str, int]] = set()  # by a queue far from its producer (M3)
        self.endings: defaultdict[tuple[str, int], list[str]] = defaultdict(list)

    def read(self, kafka: Kafka) -> None:
        parts: dict[tuple[str, bytes], bytes] = {}
        for record in kafka.partitions.get(("default.journal", 0), []):
            if record is None:
                continue
            step = dict(record.own_headers or [])[wire.STEP]
            key = (record.own_key or b"").decode(), step
            known = parts.setdefault(key, record.own_value or b"")
            must(known == record.own_value, f"the journal of {key} was said in two ways")
        alive: Counter[tuple[str, str, int]] = Counter()
        in_order = sorted(parts, key=lambda key: (key[0], [int(n) for n in key[1].split(b".")]))
        for key in in_order:
            for segment in read_journal(parts[key]).segments:
                self.events[segment.event] += 1
                for at, number in enumerate(segment.ids):
                    self._row(key[0], alive, segment, number)
                    if segment.event == "spooled" and segment.offsets and segment.partitions:
                        item = segment.items[at] if segment.items else 0
                        place = segment.topic, segment.partitions[at], segment.offsets[at], item
                        known = self.ids.setdefault(place, number)
                        must(known == number, f"{place} is stored as {known} and {number}")

    def _row(
        self,
        broker: str,
        alive: Counter[tuple[str, str, int]],
        segment: JournalSegment,
        number: int,
    ) -> None:
        queue, event, step = segment.queue, segment.event, segment.step
        if queue == "keyed":
            self._lane(broker, event, number)
        of, key = queue.removeprefix(OUT), (queue.removeprefix(OUT), number)
        if event == "spooled":
            alive[broker, queue, number] += 1
            must(alive[broker, queue, number] == 1, f"{broker}, {step}: {queue} has {number} twice")
            if segment.reason.startswith(("redriven", "moved")):
                self.back[key] += 1
            self.births[key] += 1
        elif event == "canceled":
            self.cancels[key] += 1
        elif event == "delivered":
            self.first.setdefault((queue, broker, number), step)
        elif event == "discarded":
            a = self.accounts
            if segment.reason.startswith("dead message queue"):
                limited = {f"define {a.dead}", f"shut {a.dead}"} & a.happened
                must(bool(limited or queue in a.gone), f"{queue}, {number}: {segment.reason}")
            self.discarded.add(key)
        elif event in ENDINGS:
            alive[broker, queue, number] -= 1
            must(not alive[broker, queue, number], f"{broker}: {queue} has no {number}: {event}")
            if event == "transferred":
                self.births[key] -= 1
            else:
                self.endings[key].append(event)
                self._may(of, number, event, segment.subscription)

    def _lane(self, broker: str, event: str, number: int) -> None:
        """Messages with one key are leased one at a time (O4)."""
        key = self.accounts.by_id.get(number)
        if key is None:
            return
        leased = self.leased[broker, self.accounts.sent[key].n % 3]
        if event in ("delivered", "redelivered"):
            must(leased <= {number}, f"keyed: {number} is out, and so is {leased}")
            leased.add(number)
        elif event not in ("renewed", "spooled", "edited", "ack_ignored"):
            leased.discard(number)

    def _may(self, queue: str, number: int, event: str, subscription: str) -> None:
        """An ending needs a cause."""
        a, key = self.accounts, self.accounts.by_id.get(number)
        one = a.sent[key] if key else None
        what = f"{queue}: {key} ({number}) {event}, and nobody asked for it"
        if queue in a.gone:
            return
        if event == "acknowledged":
            asked = (queue, number) in a.acked or "up_to" in a.happened or queue in a.acked_in
            fine = subscription.startswith("take-") or queue == "once" or queue.startswith(BRIDGED)
            must(asked or fine, what)
        elif event == "consumer_rejected":
            must((queue, number) in a.rejected, what)
        elif event == "expired":
            may = one is None or one.may_expire or (queue, number) in a.undeliverable
            often = queue == "keyed" and self.cancels[queue, number] >= CANCELS_MAX
            must(may or often or queue in ("leased", "short", a.dead), what)
        else:
            must(event in a.happened and (event != "redriven" or queue == a.dead), what)

    def judge(self) -> None:
        a = self.accounts
        for (queue, number), born in self.births.items():
            ended = len(self.endings[queue, number])
            if queue in a.gone:
                continue
            must(ended == born, f"{queue}: {number} came {born} times and left {ended} times")
        for key, one in a.sent.items():
            found = {self.ids.get((*at, one.item)) for at in one.copies} - {None}
            must(len(found) < 2, f"{key} is stored as {found}")
            is_plain = key[0].startswith("plain")
            if not one.refused or len(one.copies) < 2:
                must(not (found and one.refused), f"{key} is stored as {found}, {one.refused}")
            if one.number is None and not is_plain:
                continue
            if one.refused or not (found or a.expected(one)):
                continue
            if is_plain and not found and {"shut plain", "define plain", "limited"} & a.happened:
                continue  # S5: refused
            must(bool(found), f"{key} is settled ({one.number}), and stored nowhere")
            number = found.pop()
            assert number is not None
            must(one.number in (None, 0, number), f"{key}: {one.number} was said, {number} is")
            for queue in a.expected(one):
                place = queue, number
                born = self.births[place] - self.back[place]
                once = born == 1
                if self.back[place]:  # a far queue that has it already takes no second one
                    once = self.births[place] >= 1
                fine = once or (not self.births[place] and place in self.discarded)
                must(fine, f"{queue}: {key} ({number}) was stored {born} times")
        for (queue, number), key in (((q, n), a.by_id[n]) for q, n in self.births if n in a.by_id):
            one = a.sent[key]
            fine = queue == a.dead or queue in a.expected(one) | a.gone
            must(fine or "moved" in a.happened, f"{queue} stored {key} ({number}) for {one.to}")


ENDINGS = frozenset(
    {
        "acknowledged", "expired", "consumer_rejected", "purged", "replaced", "redriven", "moved",
        "deleted", "lost", "transferred",
    }
)  # fmt: skip
