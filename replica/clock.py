"""A broker's own time: it advances with a monotonic clock and follows the wall clock slowly.

A wall clock jumps: an operator sets it, a virtual machine sleeps, one reading is ten years ahead.
If a broker followed a jump, all leases and messages would expire at once, or none for an hour. So
the broker starts with the wall clock, or with its last step if that is later. After that the wall
clock only makes the broker's time a little faster or slower (`DRIFT`).
"""

from __future__ import annotations

from collections.abc import Callable

READINGS = 3  # at the start; the earliest counts, since one may be years ahead
DRIFT = 0.05  # the broker's time may be this much faster or slower: 3 s per minute


class BrokerClock:
    """The time of one broker, epoch ms; never runs backwards. wall: epoch ms, may jump; monotonic:
    seconds, from any origin."""

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._wall, self._monotonic = wall, monotonic
        self.start(0)

    def start(self, lived: int) -> None:
        """Start from the later of the wall clock and the time of the broker's last step."""
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
