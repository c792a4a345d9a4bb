"""What producers have sent: de-duplication and receipts (P1, P3, P4).

A producer numbers its messages from 1. Of each producer the engine remembers the highest sequence,
the gaps below it, and for the newest messages which ids they got. A sequence that was stored is
answered again, not stored again. One that was refused was not stored, so it may be tried again.

A program that starts again under its producer's name counts from 1 again and names its *start*: its
sequences go on behind the last one that is known. From its first message on the producer's name is
that start's: what an earlier one sends is refused as *superseded*, for nobody can tell a program
that died from one that hangs. A producer that counts by itself names no start, and takes over
nothing.

Remembered are at most `GAPS_MAX` ranges of missing and of refused sequences (older ones count as
stored), `RUNS_MAX` runs of ids and `STARTS_MAX` starts; a producer that has been silent for
`Limits.producer_idle_ms` is forgotten.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from ...protocol import topics
from ...protocol.errors import Reason
from ...protocol.outputs import Receipts

GAPS_MAX = 10_000
RUNS_MAX = 64
STARTS_MAX = 100
SEQUENCE_MAX = (1 << 62) - 1
USED_UP = "seq: this producer has used up its sequences – give it another producer_id"
REPEATS_MAX = 10_000  # sequences that one answer to a repetition speaks of, beside the runs

Ranges = list[list[int]]


class ProducerHistory:
    """One producer. high: the highest sequence; gaps, refusals: ranges of sequences below it that
    are missing, or were refused; runs: ``[first sequence, count, first id]``, 0 for what was
    acknowledged and not stored; needs: what the Delta tables must have before it is answered;
    starts: their names, and the highest sequence as each took over."""

    __slots__ = (
        "_broker", "_finished", "_repeated", "forgotten_at", "gaps", "high", "name",
        "needs", "receipt", "refusals", "runs", "starts", "vpn",
    )  # fmt: skip

    def __init__(self, vpn: str, broker: int, name: str) -> None:
        self.vpn, self.name, self._broker = vpn, name, broker
        self.high = 0
        self.gaps: Ranges = []
        self.runs: Ranges = []
        self.refusals: Ranges = []
        self.forgotten_at = 0
        self.starts: list[tuple[str, int]] = []
        self.begin()

    def begin(self) -> None:
        """A step begins in which it sends something."""
        self.receipt = Receipts(self.vpn, self.name, 0, broker=self._broker)
        self._finished: list[Receipts] = []  # of this step: they are not changed any more
        self._repeated: Ranges = []  # sequences that came again
        self.needs: dict[str, int] = {}

    def known(self) -> list[Any]:
        """What a mark writes of it."""
        known = [self.high, self.gaps, self.runs, self.refusals, self.forgotten_at, self.needs]
        return [*known, self.starts]

    def restore(self, known: list[Any]) -> None:
        """What a mark wrote."""
        self.high, self.gaps, self.runs, self.refusals, self.forgotten_at, self.needs = known[:6]
        self.starts = [(name, base) for name, base in known[6]]

    # ------------------------------------------------------------ what comes

    def listens(self, partition: int, start: str) -> None:
        """Says who sent what is looked at next: there it reads its receipts. What was said so far
        in this step goes to the sender of that. A start that is new takes over; what is missing by
        then comes no more, or is refused, so nobody waits for it."""
        said = self.receipt
        if partition == said.partition and start == said.start:  # most often
            return
        self._finish_receipt()
        self.receipt.partition, self.receipt.start = partition, start
        if start and not any(start == name for name, _ in self.starts):
            self.starts = [*self.starts, (start, self.high)][-STARTS_MAX:]
            self.refusals = sorted([*self.refusals, *self.gaps])
            self.gaps = []
        self.receipt.base = next((base for name, base in self.starts if name == start), 0)

    def is_superseded(self, seq: int) -> bool:
        """Whether this is of an earlier start, and not of what was taken from it in its time."""
        if not self._is_earlier():
            return seq > SEQUENCE_MAX
        return seq > self._most() or _has(self.refusals, seq)

    def _is_earlier(self) -> bool:
        return bool(self.receipt.start) and self.receipt.start != self.starts[-1][0]

    def _most(self) -> int:
        """The highest sequence that is the speaking start's: where the next one began."""
        if not self._is_earlier():
            return SEQUENCE_MAX
        names = [name for name, _ in self.starts]
        return self.starts[names.index(self.receipt.start) + 1][1]

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
        """Whether this sequence was not seen before. It changes nothing: `take` does."""
        return seq > self.high or _has(self.gaps, seq) or _has(self.refusals, seq)

    def is_above(self, seq: int) -> bool:
        """Whether this sequence, and all that follow, were not seen before."""
        return seq > self.high

    def take(self, seq: int, count: int = 1) -> None:
        """New sequences, from this one on, count as seen from now on. Several are above all that
        was seen."""
        high = self.high
        if seq > high:
            if seq > high + 1:
                self.gaps.append([high + 1, seq - 1])
                del self.gaps[:-GAPS_MAX]
            self.high = seq + count - 1
        else:
            _ = _take(self.gaps, seq) or _take(self.refusals, seq)

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

    def discarded(self, seq: int, reason: str, queue: str) -> None:
        """A queue threw the message away; it is acknowledged all the same (S4)."""
        self.receipt.discarded.append((seq, reason, queue))

    def repeat(self, seq: int) -> None:
        """Answer a sequence that was stored as it was answered before."""
        if not _has(self._repeated, seq):
            _put(self._repeated, seq)

    def needs_in_tables(self, topic: str, places: Iterable[tuple[int, int]]) -> None:
        """What it sent stands in these partitions, at these offsets, and is to be in the Delta
        tables before it is answered."""
        for partition, offset in places:
            place = f"{topic}/{partition}"
            self.needs[place] = max(self.needs.get(place, 0), offset + 1)

    # ------------------------------------------------------------ the answer

    def close(self) -> list[Receipts]:
        """The receipts of this step, one at least."""
        self._finish_receipt()
        said = self._finished or [self.receipt]
        del self.runs[:-RUNS_MAX]
        del self.refusals[:-GAPS_MAX]
        up_to = self.gaps[0][0] - 1 if self.gaps else self.high
        for one in said:
            one.up_to = min(one.up_to, up_to)
        return said

    def _finish_receipt(self) -> None:
        """What comes now is said in another receipt."""
        if self._repeated:
            self._answer_repeats()
        said = self.receipt
        said.up_to = self._most()
        if said.runs or said.nacks or said.discarded:
            self._finished.append(said)
            self.receipt = Receipts(
                said.vpn, said.producer, 0, said.partition, broker=said.broker, start=said.start,
                base=said.base,
            )  # fmt: skip

    def _answer_repeats(self) -> None:
        """A producer that asks again has missed receipts: tell of that sequence and all that
        followed."""
        asked, most = self._repeated[0][0], min(self.high, self._most())
        # What is new in this step may fill a gap before it: it is told of too.
        fresh = [[first, first + count - 1] for first, count, _ in self.receipt.runs]
        seq = min([asked, *(first for first, _ in fresh)])
        known: Ranges = []
        for first, count, start in self.runs:
            skip, count = max(seq - first, 0), min(count, most - first + 1)
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

    def _settled_from(self, seq: int, known: Ranges, most: int) -> int:
        """How many sequences from one that is settled on are so too, up to the next whose id is
        remembered, or up to ``most``: a producer that sends much again is not answered message by
        message. Bounded, since gaps that are no longer remembered count as settled, however wide
        they were."""
        starts = [most + 1, *(first for first, _, _ in known)]
        starts += [first for ranges in (self.gaps, self.refusals) for first, _ in ranges]
        return min(min(start for start in starts if start > seq) - seq, REPEATS_MAX)


def histories_at(vpn: str, speaks_for: Sequence[int], topic: str, partition: int) -> str:
    """Where the histories of producers stand that send to this partition: in their VPN; or of a
    removed broker, whose partition it was, beside it (M4). No VPN has such a name."""
    if speaks_for and topic == topics.topic(vpn, topics.PUBLISH):
        number = partition // topics.PUBLISH_PARTITIONS
        if number in speaks_for:
            return f"{vpn}@{number}"
    return vpn


def told_by(where: str, own: int) -> tuple[str, int]:
    """The VPN of these histories, and the number of the broker that answers."""
    vpn, _, number = where.partition("@")
    return vpn, int(number) if number else own


def _has(ranges: Ranges, seq: int) -> bool:
    """Whether a sequence is in ranges, which are ascending."""
    at = bisect_right(ranges, seq, key=_first) - 1
    return at >= 0 and seq <= ranges[at][1]


def _put(ranges: Ranges, seq: int) -> None:
    """Put a sequence into ranges, which are ascending."""
    at = bisect_right(ranges, seq, key=_first)
    if at and ranges[at - 1][1] == seq - 1:
        ranges[at - 1][1] = seq
    else:
        ranges.insert(at, [seq, seq])


def _take(ranges: Ranges, seq: int) -> bool:
    """Take a sequence out of ranges, which are ascending; whether it was there."""
    at = bisect_right(ranges, seq, key=_first) - 1
    if at < 0 or seq > ranges[at][1]:
        return False
    first, last = ranges[at]
    rest = [[first, seq - 1], [seq + 1, last]]
    ranges[at : at + 1] = [r for r in rest if r[0] <= r[1]]
    return True


def _without(ranges: Ranges, others: Ranges) -> Ranges:
    """What of some ranges is in none of the others, ascending."""
    rest, others, at = [], sorted(others), 0
    for first, last in sorted(ranges):
        while at < len(others) and others[at][1] < first:
            at += 1
        for start, end in islice(others, at, None):
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
