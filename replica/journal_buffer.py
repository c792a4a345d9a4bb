"""Joins the journal segments of several steps into one record.

A journal record per step would cost a small step half a millisecond, and the Delta tables are
seconds behind anyway. So segments are buffered for a second, or until there are enough. The limit
is low, because encoding a record of 20,000 rows takes 20 to 40 ms and deliveries wait for it. The
time when a record is due depends only on the steps' times and segments. The buffer is part of the
snapshot, so a replay writes the same records.
"""

from __future__ import annotations

from ..protocol.journal import Journal, JournalSegment

WAIT_MS = 1_000
ROWS_MAX = 2_000


class JournalBuffer:
    """The segments since the last record. since: the time of the first one, epoch ms."""

    def __init__(self, broker: str, segments: list[JournalSegment], since: int) -> None:
        self._broker = broker
        self.segments = segments
        self.since = since
        self._rows = sum(max(len(s.ids), 1) for s in segments)

    def add(self, journal: Journal) -> None:
        """Add a step's segments."""
        if not self.segments:
            self.since = journal.time
        for segment in journal.segments:
            segment.step, segment.time = journal.step, journal.time
            self._rows += len(segment.ids) or 1
        self.segments += journal.segments

    def due(self) -> int:
        """When the record is due, epoch ms; 0 if there are no segments."""
        return self.since + WAIT_MS if self.segments else 0

    def take(self, now: int) -> Journal | None:
        """The record for the step at this time, if it is due."""
        if self._rows < ROWS_MAX and (not self.segments or now < self.since + WAIT_MS):
            return None
        last = self.segments[-1]
        out = Journal(self._broker, last.step, last.time, self.segments)
        self.segments, self._rows = [], 0
        return out
