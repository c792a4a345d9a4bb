"""What producers have sent: de-duplication and receipts (P1, P3, P4).

A producer numbers its messages from 1. Of each producer the engine remembers the highest sequence,
the gaps below it, and for the newest messages which ids or refusals they got. A sequence that was
seen is answered again, not stored again. Remembered are at most `GAPS_MAX` gaps (an older one
counts as seen), `RUNS_MAX` runs of ids and `NACKS_MAX` refusals.
"""

from __future__ import annotations

from typing import Any

from ..protocol.outputs import Receipt
from .store import Notes

GAPS_MAX = 64
RUNS_MAX = 64
NACKS_MAX = 256


class Producer:
    """One producer during a step."""

    __slots__ = ("_key", "_notes", "gaps", "high", "nacks", "receipt", "runs")

    def __init__(self, notes: Notes, vpn: str, name: str) -> None:
        self._notes = notes
        self._key = f"P/{vpn}/{name}"
        note: list[Any] | None = notes.read(self._key)
        self.high: int | None = note[0] if note else None
        self.gaps: list[list[int]] = [list(g) for g in note[1]] if note else []
        self.runs: list[list[int]] = [list(r) for r in note[2]] if note else []
        self.nacks: dict[int, list[str]] = dict(note[3]) if note else {}
        self.receipt = Receipt(vpn, name, 0)

    def is_new(self, seq: int) -> bool:
        """Whether this sequence was not seen before; it counts as seen from now on."""
        high = self.high
        if high is None or seq == high + 1:
            self.high = seq
            return True
        if seq > high:
            self.gaps.append([high + 1, seq - 1])
            del self.gaps[:-GAPS_MAX]
            self.high = seq
            return True
        for gap in self.gaps:
            if gap[0] <= seq <= gap[1]:
                self.gaps.remove(gap)
                rest = [[gap[0], seq - 1], [seq + 1, gap[1]]]
                self.gaps = sorted(self.gaps + [g for g in rest if g[0] <= g[1]])
                return True
        return False

    def stored(self, seq: int, number: int) -> None:
        """The message got an id (0: acknowledged without being stored)."""
        runs = self.runs
        if runs:
            first, count, start = runs[-1]
            if seq == first + count and (number == start + count if start else number == 0):
                runs[-1][1] += 1
                self._answer(seq, number)
                return
        runs.append([seq, 1, number])
        self._answer(seq, number)

    def _answer(self, seq: int, number: int) -> None:
        runs = self.receipt.runs
        if runs:
            first, count, start = runs[-1]
            if seq == first + count and (number == start + count if start else number == 0):
                runs[-1] = (first, count + 1, start)
                return
        runs.append((seq, 1, number))

    def refused(self, seq: int, reason: str, queue: str, detail: str) -> None:
        """The message was refused."""
        self.nacks[seq] = [reason, queue, detail]
        self.receipt.nacks.append((seq, reason, queue, detail))

    def repeat(self, seq: int) -> None:
        """Answer a sequence that was seen as it was answered before."""
        nack = self.nacks.get(seq)
        if nack is not None:
            self.receipt.nacks.append((seq, *nack))
            return
        for first, count, start in reversed(self.runs):
            if first <= seq < first + count:
                self._answer(seq, start + seq - first if start else 0)
                return
        self._answer(seq, 0)

    def close(self) -> Receipt:
        """Save what is remembered; gives the receipt of this step."""
        del self.runs[:-RUNS_MAX]
        for seq in list(self.nacks)[:-NACKS_MAX]:
            del self.nacks[seq]
        self._notes.write(self._key, [self.high, self.gaps, self.runs, list(self.nacks.items())])
        assert self.high is not None
        self.receipt.up_to = self.gaps[0][0] - 1 if self.gaps else self.high
        return self.receipt
