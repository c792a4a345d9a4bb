"""The journal: all events of a broker's steps, in segments (R1).

A *segment* is one event of many messages with the same reason. `journal_encoding` encodes segments
with Arrow. It is a separate module because clients do not need Arrow, which is slow to load.
"""

from __future__ import annotations

from typing import Any

import msgspec

NO_END = 1 << 62  # a lease or a time to live that never ends, epoch ms


class JournalSegment(msgspec.Struct):
    """One event of many messages. counts: their delivery counts, or one for all.

    topic, partitions, offsets, items: the origin of the messages, for ``spooled``, ``discarded``
    and ``rejected``; an item is a message's index in its record. until: the end of the lease or
    delay that begins with the event, epoch ms; one for all, or one each; `NO_END`: no end, or none
    begins. step, time: set if the journal has several steps; 0: the journal's own.
    """

    event: str
    vpn: str
    queue: str = ""
    ids: list[int] = []
    counts: list[int] | int = 0
    subscription: str = ""
    reason: str = ""
    topic: str = ""
    partitions: list[int] | None = None
    offsets: list[int] | None = None
    items: list[int] | None = None
    until: list[int] | int = NO_END
    step: int = 0
    time: int = 0


class Journal(msgspec.Struct):
    """The segments of one step, or of several consecutive ones up to ``step``, in order."""

    broker: str
    step: int
    time: int
    segments: list[JournalSegment] = []

    def rows(self) -> list[dict[str, Any]]:
        """The journal as one dict per event; for tests and small tools."""
        out = []
        for s in self.segments:
            ids = s.ids or [0]
            for i, number in enumerate(ids):
                count = s.counts if isinstance(s.counts, int) else s.counts[i]
                out.append(
                    {
                        "broker": self.broker,
                        "step": s.step or self.step,
                        "time": s.time or self.time,
                        "vpn": s.vpn,
                        "queue": s.queue,
                        "event": s.event,
                        "message_id": str(number) if number else None,
                        "subscription": s.subscription,
                        "reason": s.reason,
                        "deliveries": count,
                        "topic": s.topic,
                        "partition": s.partitions[i] if s.partitions else None,
                        "offset": s.offsets[i] if s.offsets else None,
                        "item": s.items[i] if s.items else None,
                        "until": _end(s.until if isinstance(s.until, int) else s.until[i]),
                    }
                )
        return out


def _end(until: int) -> int | None:
    return None if until >= NO_END else until
