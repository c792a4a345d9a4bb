"""Durations and sizes as people write them (Q8). Only this module parses and formats them.

The engine counts in whole milliseconds and whole bytes. A duration is written `500ms`, `30s`,
`15m`, `2h`, `1d`, or as a number of seconds. A size is written `64KB`, `10MB`, `5GB` (powers of
ten), `KiB`, `MiB`, `GiB` (powers of two), or as a number of bytes. A formatted value is parsed back
unchanged.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from .bounds import DURATION_MS_MAX

SIZE_BYTES_MAX = 2**60

DURATIONS_ALLOWED = "a duration such as 500ms, 30s, 15m, 2h or 1d, or a number of seconds"
SIZES_ALLOWED = "a size such as 64KB, 10MB, 5GB, 64KiB, 10MiB or 5GiB, or a number of bytes"

_DURATION_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_UNITS_BYTES = {
    "TB": 10**12, "TiB": 2**40, "GB": 10**9, "GiB": 2**30, "MB": 10**6, "MiB": 2**20, "KB": 10**3,
    "KiB": 2**10, "B": 1,
}  # fmt: skip
_BYTES_OF = {unit.lower(): size for unit, size in _SIZE_UNITS_BYTES.items()}
_WRITTEN = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)\s*", re.ASCII)


class UnitError(ValueError):
    """A value is not a duration or a size; the message names it and what is allowed (Q7)."""

    def __init__(self, value: object, allowed: str) -> None:
        super().__init__(value, allowed)
        self.value = value
        self.allowed = allowed

    def __str__(self) -> str:
        huge = isinstance(self.value, int) and self.value > 10**40
        shown = "a very large number" if huge else repr(self.value)
        return f"{shown if len(shown) <= 80 else shown[:80] + '…'} – {self.allowed}"


def parse_duration_ms(value: object) -> int:
    """Parse a duration, text with a unit or a number of seconds, into whole ms (Q8).

    Rounds to the nearest ms, but never rounds a positive value to zero. Raises `UnitError` for
    anything else, for negative numbers and for more than 100 years.
    """
    number, unit = _read(value, DURATIONS_ALLOWED)
    if unit == "" and isinstance(value, str):
        raise UnitError(value, f"{DURATIONS_ALLOWED}; text needs a unit")
    factor_ms = _DURATION_UNITS_MS.get(unit or "s")
    if factor_ms is None:
        raise UnitError(value, DURATIONS_ALLOWED)
    exact_ms = number * factor_ms
    if exact_ms > DURATION_MS_MAX:
        raise UnitError(value, "a duration of at most 100 years (36500d)")
    return max(int(exact_ms.to_integral_value()), 1) if exact_ms > 0 else 0


def parse_size(value: object) -> int:
    """Parse a size, text with or without a unit or a whole number of bytes, into bytes (Q8).

    Raises `UnitError` for anything else, for negative numbers or parts of a byte, and for more than
    2**60.
    """
    number, unit = _read(value, SIZES_ALLOWED)
    factor_bytes = _BYTES_OF.get(unit.lower() or "b")
    if factor_bytes is None:
        raise UnitError(value, SIZES_ALLOWED)
    exact_bytes = number * factor_bytes
    if exact_bytes > SIZE_BYTES_MAX:
        raise UnitError(value, "a size of at most 2**60 bytes (1048576TiB)")
    if exact_bytes != exact_bytes.to_integral_value():
        raise UnitError(value, "a whole number of bytes")
    return int(exact_bytes)


def _read(value: object, allowed: str) -> tuple[Decimal, str]:
    """The number and the unit of a value; the unit of a bare number is empty."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UnitError(value, allowed)
    if isinstance(value, str):
        match = _WRITTEN.fullmatch(value)
        if match is None:
            raise UnitError(value, allowed)
        return Decimal(match[1]), match[2]
    if value < 0 or (isinstance(value, float) and not math.isfinite(value)):
        raise UnitError(value, f"{allowed}, not negative")
    if value > SIZE_BYTES_MAX:  # above both limits, so its exact value does not matter
        return Decimal(SIZE_BYTES_MAX + 1), ""
    return Decimal(str(value)), ""


def format_duration(ms: int) -> str:
    """A duration in its largest unit that divides it: `90000` is `90s`, `1500` is `1500ms`."""
    for unit, unit_ms in reversed(_DURATION_UNITS_MS.items()):
        if ms and ms % unit_ms == 0:
            return f"{ms // unit_ms}{unit}"
    return "0s"


def format_size(n: int) -> str:
    """A size in its largest unit that divides it: `10000000` is `10MB`, `65536` is `64KiB`."""
    exact = [f"{n // size}{unit}" for unit, size in _SIZE_UNITS_BYTES.items() if n % size == 0]
    return min(exact, key=len)
