"""How fast comes in what queues capture, while producers publish as well.

What others' programs wrote to a captured topic may have waited for a night: gigabytes, and nobody
waits for one record of it. Each of its bytes is written to the spool, to the state's log and to the
tables; taken in as fast as steps can, that fills the processors and what the disk still has to
write, and who publishes something just then stands behind it: Kafka too, which shares both. So
while messages were published lately, captured bytes have a rate, and when nobody else is there they
have none. Records as small as messages mostly are never come near it.

What a step took is in its log, so this may follow the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

BYTES_PER_S = 32_000_000
SAVED_S = 0.05  # of the rate, what may come at once after a silence
RECENT_S = 1.0

Clock = Callable[[], float]


class CapturedPace:
    """Of one broker. clock: seconds, monotonic."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._published_at = self._free_at = float("-inf")

    def rest_s(self) -> float:
        """How long what is captured waits still, seconds."""
        return max(0.0, min(self._free_at, self._published_at + RECENT_S) - self._clock())

    def took(self, published: int, captured: int) -> None:
        """A step takes so many bytes of each."""
        now = self._clock()
        if published:
            self._published_at = now
        if now - self._published_at >= RECENT_S:
            self._free_at = now  # what came in alone is no debt
        elif captured:
            self._free_at = max(self._free_at, now - SAVED_S) + captured / BYTES_PER_S
