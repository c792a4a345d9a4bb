"""The journal of several steps in one record.

A record of its own costs a small step half a millisecond, and the Delta tables take seconds anyway.
So segments are kept until a second has passed or there are enough. Enough is little: one of 20,000
rows takes a step and Kafka 20 to 40 ms, and deliveries stand behind it. When they go out depends on
the steps' times and on what they did alone, never on where a batch ends: what is kept is part of
the snapshot, and a step that is taken again says its journal in the same record.
"""

from __future__ import annotations

from ..protocol.journal import Journal, JournalSegment

WAIT_MS = 1_000
ROWS_MAX = 2_000


class JournalBuffer:
    """Segments of the steps since the last record. since: the first one's time, epoch ms."""

    def __init__(self, broker: str, segments: list[JournalSegment], since: int) -> None:
        self._broker = broker
        self.segments = segments
        self.since = since
        self._rows = sum(max(len(s.ids), 1) for s in segments)

    def add(self, journal: Journal) -> None:
        """Keep what a step did."""
        if not self.segments:
            self.since = journal.time
        for segment in journal.segments:
            segment.step, segment.time = journal.step, journal.time
            self._rows += len(segment.ids) or 1
        self.segments += journal.segments

    def due(self) -> int:
        """When it must go out, epoch ms; 0: there is nothing."""
        return self.since + WAIT_MS if self.segments else 0

    def take(self, now: int) -> Journal | None:
        """What goes out with the step of this time, if anything does."""
        if not self.segments or (now < self.due() and self._rows < ROWS_MAX):
            return None
        last = self.segments[-1]
        out = Journal(self._broker, last.step, last.time, self.segments)
        self.segments, self._rows = [], 0
        return out
