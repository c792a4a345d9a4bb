"""The history of each producer: de-duplication and receipts (P1, P3, P4).

A producer numbers its messages from 1. For each producer the broker remembers the highest sequence,
the gaps below it, and the ids of the newest messages. If a stored sequence comes again, the broker
repeats its answer and stores nothing. A refused sequence was not stored, so it may be tried again.

A restarted program counts from 1 again and names its *start*. Its sequences continue behind the
highest one. With its first message it takes over the producer's name: messages of earlier starts
are refused as *superseded*, because the earlier program may hang rather than be dead. A producer
that numbers messages itself names no start and takes over nothing.

The broker remembers at most `GAPS_MAX` ranges of missing and of refused sequences (older ones count
as stored), `RUNS_MAX` runs of ids and `STARTS_MAX` starts. It forgets a producer that was silent
for `Limits.producer_idle_ms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...protocol import topics
from ...protocol.errors import Reason
from ...protocol.ids import within
from ...protocol.outputs import Receipts
from ..storage import ranges
from ..storage.ranges import Ranges

GAPS_MAX = 10_000
RUNS_MAX = 64
STARTS_MAX = 100
SEQUENCE_MAX = (1 << 62) - 1
USED_UP = "seq: this producer has no sequences left – give it another producer_id"
REPEATS_MAX = 10_000  # sequences in one answer to a repetition, besides the runs


class ProducerHistory:
    """One producer.

    high: its highest sequence; gaps, refusals: ranges of missing and of refused sequences below it;
    runs: ``[first sequence, count, first id]``, id 0 if acknowledged without being stored; needs:
    the records that the Delta tables must have before all is answered; is_durable: whether some of
    them are of this step; starts: the name of each start, and the highest sequence when it took
    over.
    """

    __slots__ = (
        "_broker", "_finished", "_is_earlier", "_most", "_repeated", "forgotten_at", "gaps", "high",
        "is_durable", "name", "needs", "receipt", "refusals", "runs", "starts", "vpn",
    )  # fmt: skip

    def __init__(self, vpn: str, broker: int, name: str) -> None:
        self.vpn, self.name, self._broker = vpn, name, broker
        self.high = 0
        self.gaps: Ranges = []
        self.runs: Ranges = []
        self.refusals: Ranges = []
        self.forgotten_at = 0
        self.starts: list[tuple[str, int]] = []
        self.needs: dict[str, int] = {}
        self.begin()

    def begin(self) -> None:
        """Begin a step in which the producer has sent something."""
        self.receipt = Receipts(self.vpn, self.name, 0, broker=self._broker)
        self._finished: list[Receipts] = []  # receipts of this step that are complete
        self._repeated: Ranges = []  # sequences that came again in this step
        self.is_durable = False
        self._is_earlier = False  # whether a later start has superseded the sending one
        self._most = SEQUENCE_MAX  # the sending start's highest: the next one begins behind it

    def state(self) -> list[Any]:
        """Its form in a page."""
        state = [self.high, self.gaps, self.runs, self.refusals, self.forgotten_at, self.needs]
        return [*state, self.starts]

    def restore(self, state: list[Any]) -> None:
        """Set what `state` returned."""
        self.high, self.gaps, self.runs, self.refusals, self.forgotten_at, self.needs = state[:6]
        self.starts = [(name, base) for name, base in state[6]]

    # ------------------------------------------------------------ incoming messages

    def set_sender(self, partition: int, start: str) -> None:
        """Set the start that sent the next messages, and the partition for its receipts. Earlier
        answers of this step go to the sender before. A new start takes over: missing sequences of
        earlier starts are refused from now on, so they are no longer gaps."""
        receipt = self.receipt
        if partition == receipt.partition and start == receipt.start:  # most often
            return
        self._finish_receipt()
        self.receipt.partition, self.receipt.start = partition, start
        if start and not any(start == name for name, _ in self.starts):
            self.starts = [*self.starts, (start, self.high)][-STARTS_MAX:]
            self.refusals = ranges.union([*self.refusals, *self.gaps])
            self.gaps = []
        self.receipt.base = next((base for name, base in self.starts if name == start), 0)
        later = [name for name, _ in self.starts].index(start) + 1 if start else len(self.starts)
        self._is_earlier = later < len(self.starts)
        self._most = self.starts[later][1] if self._is_earlier else SEQUENCE_MAX

    def refusal(self, seq: int) -> Reason | None:
        """Why a sequence is refused for good: it belongs to a later start (`SUPERSEDED`), or none
        is left, because the client skipped most of them (`MALFORMED`)."""
        if seq > self._most or (self._is_earlier and within(seq, self.refusals)):
            return Reason.SUPERSEDED if self._is_earlier else Reason.MALFORMED
        return None

    def refused_for_good(self, seq: int, reason: Reason, detail: str) -> None:
        """Answer a sequence with such a `refusal`. detail: for a superseded one."""
        detail = USED_UP if reason is Reason.MALFORMED else detail
        self.receipt.nacks.append((seq, reason.value, "", detail))

    def is_new(self, seq: int) -> bool:
        """Whether this sequence has not come before."""
        return seq > self.high or within(seq, self.gaps) or within(seq, self.refusals)

    def take(self, seq: int, count: int = 1) -> None:
        """Mark new sequences, from this one on, as seen. More than one must be above the
        highest."""
        high = self.high
        if seq > high:
            if seq > high + 1:
                self.gaps.append([high + 1, seq - 1])
                del self.gaps[:-GAPS_MAX]
            self.high = seq + count - 1
        else:
            _ = ranges.remove(self.gaps, seq) or ranges.remove(self.refusals, seq)

    def stored(self, seq: int, number: int, count: int = 1) -> None:
        """Note that messages from ``seq`` on got ids from ``number`` on (0: acknowledged without
        being stored)."""
        for runs in (self.runs, self.receipt.runs):
            if runs:
                first, n, start = last = runs[-1]
                if seq == first + n and number == (start + n if start else 0):
                    last[1] = n + count
                    continue
            runs.append([seq, count, number])

    def refused(self, seq: int, reason: str, queue: str, detail: str) -> None:
        """Note that a message was refused."""
        ranges.insert(self.refusals, seq)
        self.receipt.nacks.append((seq, reason, queue, detail))

    def discarded(self, seq: int, reason: str, queue: str) -> None:
        """Note that a queue discarded a message, which is acknowledged anyway (S4)."""
        self.receipt.discarded.append((seq, reason, queue))

    def repeat(self, seq: int) -> None:
        """Repeat the answer to a sequence that was answered before."""
        ranges.insert(self._repeated, seq)

    def needs_in_tables(self, topic: str, positions: Iterable[tuple[int, int]]) -> None:
        """Answer only when the Delta tables have the records at these partitions and offsets."""
        self.is_durable = True
        for partition, offset in positions:
            name = f"{topic}/{partition}"
            self.needs[name] = offset + 1  # lower than before, if the topic was recreated

    # ------------------------------------------------------------ the answer

    def close(self) -> list[Receipts]:
        """End the step; returns its receipts, at least one."""
        receipts = self._finished
        if self._complete_receipt() or not receipts:
            receipts.append(self.receipt)
        if len(self.runs) > RUNS_MAX:
            del self.runs[:-RUNS_MAX]
        if len(self.refusals) > GAPS_MAX:
            del self.refusals[:-GAPS_MAX]
        up_to = self.gaps[0][0] - 1 if self.gaps else self.high
        for one in receipts:
            if up_to < one.up_to:
                one.up_to = up_to
        return receipts

    def _complete_receipt(self) -> bool:
        """Complete the receipt; returns whether it answers anything."""
        if self._repeated:
            self._answer_repeats()
        receipt = self.receipt
        receipt.up_to = self._most
        return bool(receipt.runs or receipt.nacks or receipt.discarded)

    def _finish_receipt(self) -> None:
        """Complete the receipt; later answers go into a new one."""
        if self._complete_receipt():
            receipt = self.receipt
            self._finished.append(receipt)
            self.receipt = Receipts(
                receipt.vpn, receipt.producer, 0, receipt.partition, broker=receipt.broker,
                start=receipt.start, base=receipt.base,
            )  # fmt: skip

    def _answer_repeats(self) -> None:
        """Answer repeated sequences. Their producer has missed receipts, so the answer covers the
        first repeated sequence and all that followed."""
        asked, most = self._repeated[0][0], min(self.high, self._most)
        # A message of this step may fill a gap before it; the answer covers that, too.
        fresh = [[first, first + count - 1] for first, count, _ in self.receipt.runs]
        seq = min([asked, *(first for first, _ in fresh)])
        answered: Ranges = []
        for first, count, start in self.runs:
            skip, count = max(seq - first, 0), min(count, most - first + 1)
            if skip < count:
                answered.append([first + skip, count - skip, start + skip if start else 0])
        # Runs are in order of arrival, and repeated messages came late: search all of them.
        if not any(first <= asked < first + count for first, count, _ in answered):
            answered.insert(0, [asked, self._stored_from(asked, answered, most), 0])
        self.receipt.runs = answered
        covered = [[first, first + count - 1] for first, count, _ in answered]
        repeated = ranges.without(covered, fresh)
        self.receipt.repeated = sorted([*repeated, *ranges.without(self._repeated, repeated)])
        self._repeated = []

    def _stored_from(self, seq: int, runs: Ranges, most: int) -> int:
        """How many consecutive sequences from a stored one on count as stored: up to the next one
        with a remembered id, or ``most``. So one answer covers many repeated messages. Bounded,
        because forgotten gaps count as stored, however wide they are."""
        starts = [most + 1, *(first for first, _, _ in runs)]
        starts += [first for first, _ in (*self.gaps, *self.refusals)]
        return min(min(start for start in starts if start > seq) - seq, REPEATS_MAX)


def histories_at(vpn: str, speaks_for: Sequence[int], topic: str, partition: int) -> str:
    """The key under which the histories of this partition's producers are kept: their VPN. If the
    partition was a removed broker's, the key also has that broker's number (M4)."""
    if speaks_for and topic == topics.topic(vpn, topics.PUBLISH):
        number = partition // topics.PUBLISH_PARTITIONS
        if number in speaks_for:
            return f"{vpn}@{number}"
    return vpn


def answering_broker(where: str, own: int) -> tuple[str, int]:
    """The VPN of a key of `histories_at`, and the number of the broker that answers."""
    vpn, _, number = where.partition("@")
    return vpn, int(number) if number else own
