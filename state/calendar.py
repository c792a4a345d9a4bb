"""When something is due, for all queues and sessions of a broker.

Deadlines stand in buckets, and the broker's header keeps the earliest of each bucket. So a step
that changes one queue's deadline touches one small bucket, and a tick reads only buckets with work
due, however many queues are idle.
"""

from __future__ import annotations

from zlib import crc32

from .columns import NEVER
from .store import Notes

BUCKETS = 64


class Calendar:
    """``earliest``: bucket → earliest deadline, kept in the broker's header."""

    def __init__(self, notes: Notes, earliest: dict[int, int]) -> None:
        self._notes = notes
        self.earliest = earliest

    def set(self, name: str, at: int) -> None:
        """Set or (with NEVER) clear the deadline of a queue or session."""
        bucket = crc32(name.encode()) % BUCKETS
        note = self._notes.read(f"k/{bucket}") or {}
        if note.get(name, NEVER) == at:
            return
        if at == NEVER:
            del note[name]
        else:
            note[name] = at
        self._notes.write(f"k/{bucket}", note)
        if note:
            self.earliest[bucket] = min(note.values())
        else:
            self.earliest.pop(bucket, None)

    def due(self, now: int) -> list[str]:
        """Names with a deadline at or before ``now``, sorted."""
        names: list[str] = []
        for bucket, at in self.earliest.items():
            if at <= now:
                note = self._notes.read(f"k/{bucket}")
                names += [name for name, deadline in note.items() if deadline <= now]
        return sorted(names)

    def next(self) -> int:
        """The earliest deadline of all, or NEVER."""
        return min(self.earliest.values(), default=NEVER)
