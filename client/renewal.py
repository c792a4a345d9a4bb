"""What becomes of the leases of what is in the client (L5, L10).

The background thread looks at them. A message that waits in the buffer when most of its lease is
over is handed back *untouched*, with what waits behind it: that is no attempt, and whoever has room
gets it, with a new lease. So a worker that is long busy with one message costs those behind it
nothing. With `auto_renew` leases are renewed instead when half is over, of what waits and of what
the application works on. That stops `auto_renew_limit` after the message came, and is counted anew
from its hand-over: a callback that never returns must not keep its message for ever, nor those
behind it. What the application has then ends its lease and comes again, as without renewal; what
waits is handed back.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..protocol import ConfigError
from .message import Message
from .values import duration_ms

LIMIT = "5m"
LOOK_MS_MIN = 20
LOOK_MS_MAX = 60_000
RENEWED_PART = 0.5  # of a lease that is left: `auto_renew` renews it
HANDED_BACK_PART = 0.25  # of a lease that is left: who waits is handed back


class Leases:
    """Which leases to renew, what to hand back, and when to look again. limit: of `auto_renew`;
    renews: whether it is on."""

    def __init__(self, limit: str | float, renews: bool) -> None:
        limit_ms = duration_ms(limit, "auto_renew_limit")
        if not limit_ms:
            raise ConfigError(f"auto_renew_limit: {limit!r} – allowed is a positive duration")
        self._limit_ms = limit_ms if renews else 0
        self.look_at = 0.0  # by the session's clock

    def begun(self, ends: float, period_ms: float) -> None:
        """A lease has begun, or `auto_renew` has begun to count anew: when to look at it."""
        if ends:
            part = RENEWED_PART if self._limit_ms else HANDED_BACK_PART
            self.look_at = min(self.look_at, ends - period_ms * part)

    def look(
        self, held: Iterable[Message], waiting: Iterable[Message], now_ms: float
    ) -> tuple[dict[int, list[Message]], Message | None]:
        """The messages whose lease has to be renewed now, by the period in ms; and the first of
        those that wait that has to go back."""
        self.look_at = now_ms + LOOK_MS_MAX
        renewed: dict[int, list[Message]] = {}
        if self._limit_ms:
            for message in held:
                self._renew(message, now_ms, renewed)
        for message in waiting:
            if self._renew(message, now_ms, renewed) or not message.lease_ends:
                continue
            goes_back = message.lease_ends - message.lease_ms * HANDED_BACK_PART
            if now_ms >= goes_back:
                return renewed, message
            self._look_at(goes_back, now_ms)
        return renewed, None

    def _renew(self, message: Message, now_ms: float, renewed: dict[int, list[Message]]) -> bool:
        """Whether `auto_renew` keeps it; it is put to ``renewed`` if it is time."""
        ends, period = message.lease_ends, round(message.lease_ms)
        if not ends or period <= 0 or now_ms >= min(ends, message.since + self._limit_ms):
            return False
        if ends - now_ms <= period * RENEWED_PART:
            renewed.setdefault(period, []).append(message)
            ends = now_ms + period
        self._look_at(min(ends - period * RENEWED_PART, message.since + self._limit_ms), now_ms)
        return True

    def _look_at(self, moment: float, now_ms: float) -> None:
        self.look_at = min(self.look_at, max(moment, now_ms + LOOK_MS_MIN))
