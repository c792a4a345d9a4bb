"""Transport acks of a consumer: what has arrived, and when to say so (C1, C2).

The engine numbers what it sends to a subscription. Said is the number up to which everything has
arrived, so one small command stands for many messages: when 60 % of the window (the prefetch) has
arrived or 1 s after the first that was not said yet, whichever is first. Any ack that the
application causes carries it too, so a consumer that acknowledges quickly says nothing extra.
"""

from __future__ import annotations

import math

from ..protocol import ConfigError
from .values import duration_ms

WINDOW_PERCENT = 60
TIME_MS_MIN, TIME_MS_MAX = 20, 1_500  # the engine sends again after 2 s


class FlowArrivals:
    """What has arrived in one flow. percent, time: see above; gather_ms: the least time."""

    __slots__ = ("_first_at", "_gather_ms", "_next", "_percent", "_time_ms", "_told")

    def __init__(self, percent: int, time: str | float, gather_ms: int) -> None:
        if isinstance(percent, bool) or not isinstance(percent, int) or not 1 <= percent <= 100:
            raise ConfigError(f"transport_ack_window: {percent!r} – allowed are 1 to 100 percent")
        time_ms = duration_ms(time, "transport_ack_time")
        if not TIME_MS_MIN <= time_ms <= TIME_MS_MAX:
            raise ConfigError(
                f"transport_ack_time: {time!r} – allowed are {TIME_MS_MIN}ms to {TIME_MS_MAX}ms"
            )
        self._percent, self._time_ms, self._gather_ms = percent, time_ms, gather_ms
        self.reset()

    def reset(self) -> None:
        """A new flow begins."""
        self._next = 1  # the number that is expected
        self._told = 0
        self._first_at = 0.0

    def take(self, flow: tuple[int, int], count: int, now_ms: float) -> None:
        """A record has come with ``count`` messages. What is missing before it is not passed over:
        the engine sends it again."""
        base, first = flow
        start = max(self._next, base)
        if first <= start:
            start = max(start, first + count)
        if start > self._next and self._next == self._told + 1:
            self._first_at = now_ms
        self._next = start

    def due_at(self, window: int) -> float | None:
        """When to say what has arrived, as the connection's clock counts; None: it is said."""
        untold = self._next - 1 - self._told
        if not untold:
            return None
        full = untold >= max(1, math.ceil(window * self._percent / 100))
        return self._first_at + (self._gather_ms if full else self._time_ms)

    def tell(self) -> int:
        """What to say, said from now on; 0 when there is nothing new."""
        if self._told == self._next - 1:
            return 0
        self._told = self._next - 1
        return self._told
