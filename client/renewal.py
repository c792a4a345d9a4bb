"""Automatic renewal of leases (L10): a consumer with `auto_renew` keeps what it has received.

The background thread renews, when half of a lease is over, what is in the client and not settled:
what waits in the buffer and what the application works on, however long that takes. It stops
`auto_renew_limit` after the message came: a callback that never returns must not keep its message
for ever. Then the lease ends and the message comes again, as without renewal.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..protocol import ConfigError
from .message import Message
from .values import duration_ms

LIMIT = "5m"
LOOK_MS_MIN = 20


class Renewal:
    """Which leases to renew, and when. limit: from the arrival of a message on."""

    def __init__(self, limit: str | float) -> None:
        self._limit_ms = duration_ms(limit, "auto_renew_limit")
        if not self._limit_ms:
            raise ConfigError(f"auto_renew_limit: {limit!r} – allowed is a positive duration")
        self._leases: dict[int, tuple[float, int]] = {}  # of a delivery: when it came, the period
        self._look_at = 0.0

    def look(self, messages: Iterable[Message], now_ms: float) -> dict[int, list[Message]]:
        """The messages whose lease has to be renewed now, by the period in ms."""
        due: dict[int, list[Message]] = {}
        leases: dict[int, tuple[float, int]] = {}
        self._look_at = now_ms + 60_000
        for message in messages:
            ends = message.lease_ends
            if not ends or message.settled:
                continue
            came, period = leases[message.delivery] = self._leases.get(message.delivery) or (
                now_ms, round(ends - now_ms),
            )  # fmt: skip
            if period <= 0 or now_ms >= min(ends, came + self._limit_ms):
                continue
            if ends - now_ms <= period // 2:
                due.setdefault(period, []).append(message)
                ends = now_ms + period
            half = ends - period // 2
            self._look_at = min(self._look_at, max(half, now_ms + LOOK_MS_MIN))
        self._leases = leases
        return due

    def arrived(self, now_ms: float) -> None:
        """Something came in: look at it soon."""
        self._look_at = min(self._look_at, now_ms)

    @property
    def look_at(self) -> float:
        """When to look again, by the session's clock."""
        return self._look_at
