"""Times and durations as the Python API takes them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from ..protocol import ConfigError

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


def duration_ms(value: str | float, what: str) -> int:
    """A duration as text (``"500ms"``, ``"30s"``) or seconds, in ms; ConfigError names `what`."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{what}: {value!r} – allowed are durations like '500ms', '30s', '15m'")
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if not match:
            raise ConfigError(
                f"{what}: {value!r} – allowed are durations like '500ms', '30s', '15m', '2h', '1d'"
            )
        return round(float(match[1]) * _UNITS[match[2]])
    if not 0 <= value < 3_200_000_000:
        raise ConfigError(f"{what}: {value!r} – allowed are seconds from 0 up to a hundred years")
    return round(value * 1000)


def time_ms(value: datetime | str | float, what: str) -> int:
    """A moment as an aware datetime or ISO-8601 text, in epoch ms."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ConfigError(
                f"{what}: {value!r} – allowed is ISO-8601 text such as '2026-01-31T12:00:00Z'"
            ) from None
    if not isinstance(value, datetime):
        raise ConfigError(f"{what}: {value!r} – allowed are aware datetimes and ISO-8601 text")
    if value.tzinfo is None:
        raise ConfigError(f"{what}: {value!r} – a time needs a time zone")
    return round(value.astimezone(UTC).timestamp() * 1000)


def delivery_ms(
    deliver_at: datetime | str | None, delay: str | float | None, now_ms: int
) -> int | None:
    """The delivery time that these options of a message name (L12), epoch ms; None: at once."""
    if delay is None:
        return None if deliver_at is None else time_ms(deliver_at, "deliver_at")
    if deliver_at is not None:
        raise ConfigError("deliver_at, delay: both are given – allowed is one of them")
    ms = duration_ms(delay, "delay")
    return now_ms + ms if ms else None
