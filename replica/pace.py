"""When steps follow each other: small ones cost nearly as much as larger ones, so the next one
waits a moment, and takes more.

A step of one message costs what a step of ten does: a record in the log, requests to Kafka, a
wake-up of everybody. The more comes, the longer the next step waits: at 2,000 records a second 2 ms
after the last one began, at 5,000 and more 5 ms. So a message waits for a few others at most; where
fewer come, none waits, nor where nothing came for longer than that.
"""

from __future__ import annotations

from math import exp

LEAST_S, MOST_S = 0.0015, 0.005
PER_RECORD = 1e-6  # seconds of pace for each record that comes in a second
MEMORY_S = 0.5  # how fast is forgotten how much came


class Pace:
    """Of one broker's steps. Times: seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._rate = 0.0  # records a second

    def began(self, now: float, records: int) -> None:
        """A step begins that takes so many records."""
        kept = exp((self._began - now) / MEMORY_S)
        self._rate = self._rate * kept + records / MEMORY_S
        self._began = now

    def rest_s(self, now: float) -> float:
        """How long the next step has to wait."""
        pace = min(self._rate * PER_RECORD, MOST_S)
        return max(0.0, self._began + pace - now) if pace >= LEAST_S else 0.0
