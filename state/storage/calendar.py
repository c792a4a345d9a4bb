"""When something is due, for all queues and sessions of a broker.

Deadlines stand in buckets, and the broker's header keeps the earliest of each bucket. So a step
that changes one queue's deadline touches one small bucket, and a tick reads only buckets with work
due, however many queues are idle.
"""

from __future__ import annotations

from zlib import crc32

from ..limits import Limits
from .columns import NEVER
from .store import ValuePages


class Calendar:
    """``earliest``: bucket → earliest deadline, kept in the broker's header."""

    def __init__(self, values: ValuePages, earliest: dict[int, int], limits: Limits) -> None:
        self._values = values
        self._buckets = limits.calendar_buckets
        self.earliest = earliest

    def set(self, name: str, at: int) -> None:
        """Set or (with NEVER) clear the deadline of a queue or session."""
        bucket = crc32(name.encode()) % self._buckets
        known: dict[str, int] = self._values.read(f"k/{bucket}") or {}
        if known.get(name, NEVER) == at:
            return
        changed = {**known, name: at}
        if at == NEVER:
            del changed[name]
        # In one order, so that the same deadlines give the same bytes.
        self._values.write(f"k/{bucket}", dict(sorted(changed.items())))
        if changed:
            self.earliest[bucket] = min(changed.values())
        else:
            del self.earliest[bucket]

    def due(self, now: int, most: int) -> list[str]:
        """Up to ``most`` names with a deadline at or before ``now``, the earliest first. The rest
        stays due."""
        found: list[tuple[int, str]] = []
        for at, bucket in sorted((at, bucket) for bucket, at in self.earliest.items()):
            # Those found first are all earlier than anything in the buckets that follow.
            if at > now or (len(found) >= most and found[most - 1][0] < at):
                break
            known: dict[str, int] = self._values.read(f"k/{bucket}")
            found += [(deadline, name) for name, deadline in known.items() if deadline <= now]
            found.sort()
        return [name for _, name in found[:most]]

    def next(self) -> int:
        """The earliest deadline of all, or NEVER."""
        return min(self.earliest.values(), default=NEVER)

    def overview(self) -> dict[str, int]:
        """Every name with its deadline; reads every bucket."""
        names: dict[str, int] = {}
        for bucket in self.earliest:
            names.update(self._values.read(f"k/{bucket}"))
        return dict(sorted(names.items()))
