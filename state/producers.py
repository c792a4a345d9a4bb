"""What producers have sent: de-duplication and receipts (P1, P3, P4).

A producer numbers its messages from 1. Of each producer the engine remembers the highest sequence,
the gaps below it, and for the newest messages which ids they got. A sequence that was stored is
answered again, not stored again. One that was refused was not stored, so it may be tried again.
One that other brokers have yet to agree to is *held*: it is answered when they have (S5).
One whose queue was on its way is refused as *moved*: its producer sends it again, under a later
sequence, when it has heard of that. What it had sent to the same destination before it heard stands
behind that one, so it is refused too, wherever the queue is by then (O1); and so is a copy of the
refused one, which is stored elsewhere by then. What the producer has heard its messages say.
A program that starts again under its producer's name counts from 1 again and gives its *start* a
name: its sequences go on behind the last that is known. From its first message on the producer's
name is that start's: what an earlier one sends is refused as *superseded*, for nobody can tell a
program that died from one that hangs. Who counts by itself names no start, and takes over nothing.
Remembered are at most `GAPS_MAX` ranges of missing and of refused sequences (older ones count as
stored), `RUNS_MAX` runs of ids, `MOVED_MAX` destinations, and `STARTS_MAX` starts; a producer that
has been silent for `Limits.producer_idle_ms` is forgotten.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ..protocol import topics
from ..protocol.errors import Reason
from ..protocol.messages import PublishHeader
from ..protocol.outputs import Receipts
from .storage import NEVER, ValuePages

if TYPE_CHECKING:
    from .broker import Broker

GAPS_MAX = 10_000
RUNS_MAX = 64
MOVED_MAX = 1_000  # destinations whose queue was on its way
STARTS_MAX = 100
SEQUENCE_MAX = (1 << 62) - 1
USED_UP = "seq: this producer has used up its sequences – give it another producer_id"
REPEATS_MAX = 10_000  # sequences that one answer to a repetition speaks of, beside the runs


class Answered(Protocol):
    """Who hears what becomes of a message: a producer's history, or a bridge's."""

    def stored(self, seq: int, number: int, count: int = 1) -> None:
        """It was stored, or acknowledged without being stored (0)."""
        ...

    def refused(self, seq: int, reason: str, queue: str, detail: str) -> None:
        """It was refused."""
        ...

    def discarded(self, seq: int, reason: str, queue: str) -> None:
        """A queue threw it away."""
        ...


class ProducerHistory:
    """One producer during a step."""

    __slots__ = (
        "_finished",
        "_fresh",
        "_key",
        "_repeated",
        "_values",
        "forgotten_at",
        "gaps",
        "held",
        "high",
        "home",
        "moved",
        "needs",
        "receipt",
        "refusals",
        "runs",
        "starts",
    )  # fmt: skip

    def __init__(self, values: ValuePages, vpn: str, name: str, home: str = "") -> None:
        self._values = values
        self.home = home or vpn
        self._key = f"P/{self.home}/{name}"
        known: list[Any] | None = values.read(self._key)
        self.high: int = known[0] if known else 0
        self.gaps: list[list[int]] = [list(g) for g in known[1]] if known else []
        self.runs: list[list[int]] = [list(r) for r in known[2]] if known else []
        self.refusals: list[list[int]] = [list(r) for r in known[3]] if known else []
        self.forgotten_at: int = known[4] if known else 0
        self.held: list[list[int]] = [list(r) for r in known[5]] if known and known[5:] else []
        # What the Delta tables must have before it is answered, see `durable`.
        self.needs: dict[str, int] = known[6] if known and known[6:] else {}
        self.moved: dict[str, int] = known[7] if known and known[7:] else {}
        # The names of its starts, and the highest sequence as each took over.
        self.starts: list[list[Any]] = known[8] if known and known[8:] else []
        self._fresh = True
        self.receipt = Receipts(vpn, name, 0)
        self._finished: list[Receipts] = []  # of this step: they are not changed any more
        self._repeated: list[list[int]] = []  # sequences that came again

    def listens(self, partition: int, start: str) -> None:
        """Who sent what is looked at next: there it reads its receipts. What was said so far in
        this step goes to who sent that. A start that is new takes over; what is missing by then
        comes no more, or is refused, so nobody waits for it."""
        said = self.receipt
        if (partition, start) == (said.partition, said.start):
            return
        self._finish_receipt()
        self.receipt.partition, self.receipt.start = partition, start
        if start and not any(start == name for name, _ in self.starts):
            self.starts = [*self.starts, [start, self.high]][-STARTS_MAX:]
            self.refusals = sorted([*self.refusals, *self.gaps])
            self.gaps, self.moved = [], {}
        self.receipt.base = next((base for name, base in self.starts if name == start), 0)

    def numbered(self, header: PublishHeader) -> PublishHeader:
        """As one of its starts says it, under the producer's sequences."""
        base = self.receipt.base
        after = header.after + base if header.after else 0
        return msgspec.structs.replace(header, seq=header.seq + base, after=after)

    def is_superseded(self, seq: int) -> bool:
        """Whether this is of an earlier start, and not of what was taken from it in its time."""
        return seq > self._most() or (self._is_earlier() and _holds(self.refusals, seq))

    def _is_earlier(self) -> bool:
        return bool(self.receipt.start) and self.receipt.start != self.starts[-1][0]

    def _most(self) -> int:
        """The highest sequence that is the speaking start's: where the next one began."""
        if not self._is_earlier():
            return SEQUENCE_MAX
        names = [name for name, _ in self.starts]
        following: int = self.starts[names.index(self.receipt.start) + 1][1]
        return following

    def refused_as_superseded(self, seq: int, detail: str) -> None:
        """The message is of an earlier start; this sequence is the later one's. Or there are no
        more sequences, since somebody skipped most of them."""
        if self.has_used_up(seq):
            self.receipt.nacks.append((seq, Reason.MALFORMED.value, "", USED_UP))
        else:
            self.receipt.nacks.append((seq, Reason.SUPERSEDED.value, "", detail))

    def has_used_up(self, seq: int) -> bool:
        """Whether there are no more sequences."""
        return seq > SEQUENCE_MAX and not self._is_earlier()

    def is_new(self, seq: int) -> bool:
        """Whether this sequence was not seen before; it counts as seen from now on."""
        high = self.high
        if seq == high + 1:
            self.high = seq
            return True
        if seq > high:
            self.gaps.append([high + 1, seq - 1])
            del self.gaps[:-GAPS_MAX]
            self.high = seq
            return True
        return _take(self.gaps, seq) or _take(self.refusals, seq)

    def stored(self, seq: int, number: int, count: int = 1) -> None:
        """Messages from ``seq`` on got ids from ``number`` on (0: acknowledged, not stored)."""
        for runs in (self.runs, self.receipt.runs):
            if runs:
                first, known, start = last = runs[-1]
                if seq == first + known and number == (start + known if start else 0):
                    last[1] = known + count
                    continue
            runs.append([seq, count, number])

    def refused(self, seq: int, reason: str, queue: str, detail: str) -> None:
        """The message was refused."""
        _put(self.refusals, seq)
        self.receipt.nacks.append((seq, reason, queue, detail))

    def refused_as_moved(self, seq: int, to: str, where: str) -> None:
        """The message's queue is on its way, or gone; where: its brokers, as JSON."""
        self.moved[to] = max(self.moved.pop(to, 0), seq)
        if len(self.moved) > MOVED_MAX:
            del self.moved[next(iter(self.moved))]
        self.refused(seq, Reason.MOVED.value, to, where)

    def stands_behind_moved(self, to: str, after: int) -> bool:
        """Whether its producer sent a message before it heard that an earlier one was refused."""
        if to not in self.moved:
            return False
        if after < self.moved[to]:
            return True
        del self.moved[to]
        return False

    def hold(self, seq: int) -> None:
        """Other brokers have to agree before it is stored."""
        _put(self.held, seq)

    def is_held(self, seq: int) -> bool:
        """Whether it is not decided yet."""
        return _holds(self.held, seq)

    def let_go(self, seq: int) -> None:
        """It is decided, and answered next."""
        _take(self.held, seq)

    def wants(self, topic: str, places: Iterable[tuple[int, int]], in_tables: bool) -> None:
        """It sent records that stand in these partitions, at these offsets; in_tables: it is to be
        answered when the Delta tables have them."""
        if self._fresh:
            self.needs, self._fresh = {}, False
        for partition, offset in places if in_tables else ():
            place = f"{topic}/{partition}"
            self.needs[place] = max(self.needs.get(place, 0), offset + 1)

    def repeat(self, seq: int) -> None:
        """Answer a sequence that was stored as it was answered before."""
        if not _holds(self._repeated, seq):
            _put(self._repeated, seq)

    def _answer_repeats(self) -> None:
        """Who asks again has missed receipts: tell of that sequence and all that followed."""
        if not self._repeated:
            return
        asked = self._repeated[0][0]
        most = min(self.high, self._most())
        # What is new in this step may fill a gap before it: it is told of too.
        fresh = [[first, first + count - 1] for first, count, _ in self.receipt.runs]
        seq = min([asked, *(first for first, _ in fresh)])
        known: list[list[int]] = []
        for first, count, start in self.runs:
            skip = max(seq - first, 0)
            count = min(count, most - first + 1)
            if skip < count:
                known.append([first + skip, count - skip, start + skip if start else 0])
        # Runs stand as they came, and what was sent again came late: look at all of them.
        if not any(first <= asked < first + count for first, count, _ in known):
            known.insert(0, [asked, self._settled_from(asked, known, most), 0])
        self.receipt.runs = known
        told = [[first, first + count - 1] for first, count, _ in known]
        repeated = _without(told, fresh)
        self.receipt.repeated = sorted([*repeated, *_without(self._repeated, repeated)])
        self._repeated = []

    def _settled_from(self, seq: int, known: list[list[int]], most: int) -> int:
        """How many sequences from one that is settled on are so too, up to the next whose id is
        remembered, or up to ``most``: who sends much again is not answered message by message.
        Bounded, since gaps that are no longer remembered count as settled, however wide they
        were."""
        starts = [most + 1, *(first for first, _, _ in known)]
        starts += [first for ranges in (self.gaps, self.refusals) for first, _ in ranges]
        return min(min(start for start in starts if start > seq) - seq, REPEATS_MAX)

    def discarded(self, seq: int, reason: str, queue: str) -> None:
        """A queue threw the message away; it is acknowledged all the same (S4)."""
        self.receipt.discarded.append((seq, reason, queue))

    def _finish_receipt(self) -> None:
        """What comes now is said in another receipt."""
        self._answer_repeats()
        said = self.receipt
        if said.runs or said.nacks or said.discarded:
            said.up_to = self._most()
            self._finished.append(said)
            self.receipt = Receipts(
                said.vpn, said.producer, 0, said.partition, start=said.start, base=said.base
            )

    def close(self, broker: Broker) -> list[Receipts]:
        """Save what is remembered; gives the receipts of this step, one at least."""
        self._finish_receipt()
        self.receipt.up_to = self._most()
        said = self._finished or [self.receipt]
        idle = broker.limits.producer_idle_ms
        if self.forgotten_at < broker.now + idle - idle // 8:  # not in every step
            self.forgotten_at = broker.now + idle
            name = f"p{self.home}/{self.receipt.producer}"
            broker.calendar.set(name, self.forgotten_at)
        del self.runs[:-RUNS_MAX]
        del self.refusals[:-GAPS_MAX]
        known: list[Any] = [self.high, self.gaps, self.runs, self.refusals, self.forgotten_at]
        optional: list[Any] = [self.held, self.needs, self.moved, self.starts]
        while optional and not optional[-1]:
            optional.pop()
        known += optional
        self._values.write(self._key, known)
        _, removed, number = self.home.partition("@")
        open_ones = [ranges[0][0] - 1 for ranges in (self.gaps, self.held) if ranges]
        up_to = min(open_ones, default=self.high)
        for one in said:
            one.broker = int(number) if removed else broker.header.number
            one.up_to = min(one.up_to, up_to)
        return said


def home_of(broker: Broker, vpn: str, topic: str, partition: int) -> str:
    """Where the histories of producers stand that send to this partition: in their VPN; or of a
    removed broker, whose partition it was, beside it. No VPN has such a name."""
    heirs = broker.header.heirs
    if heirs and topic == topics.topic(vpn, topics.PUBLISH):
        number = partition // topics.PUBLISH_PARTITIONS
        if number in heirs:
            return f"{vpn}@{number}"
    return vpn


def _put(ranges: list[list[int]], seq: int) -> None:
    """Put a sequence into ranges, which are ascending."""
    at = bisect_right(ranges, seq, key=_first)
    if at and ranges[at - 1][1] == seq - 1:
        ranges[at - 1][1] = seq
    else:
        ranges.insert(at, [seq, seq])


def _take(ranges: list[list[int]], seq: int) -> bool:
    """Take a sequence out of ranges, which are ascending; whether it was there."""
    at = bisect_right(ranges, seq, key=_first) - 1
    if at < 0 or seq > ranges[at][1]:
        return False
    first, last = ranges[at]
    rest = [[first, seq - 1], [seq + 1, last]]
    ranges[at : at + 1] = [r for r in rest if r[0] <= r[1]]
    return True


def _holds(ranges: list[list[int]], seq: int) -> bool:
    """Whether a sequence is in ranges, which are ascending."""
    at = bisect_right(ranges, seq, key=_first) - 1
    return at >= 0 and seq <= ranges[at][1]


def _without(ranges: list[list[int]], others: list[list[int]]) -> list[list[int]]:
    """What of some ranges is in none of the others, ascending."""
    rest, others, at = [], sorted(others), 0
    for first, last in sorted(ranges):
        while at < len(others) and others[at][1] < first:
            at += 1
        for i in range(at, len(others)):
            start, end = others[i]
            if start > last:
                break
            if start > first:
                rest.append([first, start - 1])
            first = max(first, end + 1)
        if first <= last:
            rest.append([first, last])
    return rest


def _first(one: list[int]) -> int:
    return one[0]


def forget(broker: Broker, name: str) -> None:
    """A producer has been silent for so long that nobody sends again what it sent; ``name`` is its
    name in the calendar."""
    known = broker.values.read(f"P/{name[1:]}")
    if known and known[5:] and known[5]:  # something of it is not decided: ask again later
        broker.calendar.set(name, broker.now + broker.limits.producer_idle_ms)
        return
    broker.calendar.set(name, NEVER)
    broker.values.write(f"P/{name[1:]}", None)
