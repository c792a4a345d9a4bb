"""A broker's own time: it advances with a monotonic clock and follows the wall clock slowly.

A wall clock jumps: somebody sets it, a virtual machine sleeps, one reading is ten years ahead. Were
a jump a broker's time, all leases and lives would end at once, or none for an hour. So the wall
clock is believed at the start, if it is not behind what the broker has lived through; after that
it only makes the broker's time a little faster or slower (`DRIFT`), whatever it says.
"""

from __future__ import annotations

from collections.abc import Callable

READINGS = 3  # at the start, of which the earliest counts: one may be years ahead
DRIFT = 0.05  # by so much of the time that has passed it may go faster or slower: 3 s a minute


class BrokerClock:
    """Epoch ms of one broker, never running backwards. wall: epoch ms, may jump; monotonic:
    seconds, from any origin."""

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._wall, self._monotonic = wall, monotonic
        self.start(0)

    def start(self, lived: int) -> None:
        """The broker has lived up to this time already: it goes on from there, or from the wall
        clock if that is ahead."""
        self._at = self._monotonic()
        self._now = max(float(lived), min(float(self._wall()) for _ in range(READINGS)))

    def __call__(self) -> int:
        """The time now."""
        at = self._monotonic()
        passed = max(at - self._at, 0.0) * 1000
        self._at = at
        now = self._now + passed
        most = DRIFT * passed
        self._now = now + min(max(self._wall() - now, -most), most)
        return int(self._now)
