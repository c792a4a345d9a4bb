"""Checks for what applications pass to the Python API: texts, numbers, times, durations, ids.

Each public method checks its arguments with these before it changes anything. A wrong one raises
ConfigError with the option, the value and what is allowed.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from ..protocol import ConfigError
from ..protocol.bounds import (
    IDS_CHARACTERS_MAX,
    TEXT_CHARACTERS_MAX,
    YEAR_9999_ENDS_MS,
    is_utf8,
    shown,
)
from ..protocol.ids import ID_MAX, Ranges, format_ranges, parse_ranges
from ..protocol.units import UnitError, parse_duration_ms

_NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_MS = timedelta(milliseconds=1)
CUT = "…"
WAIT_S_MAX = threading.TIMEOUT_MAX / 2  # so that a clock's reading can be added

# ---------------------------------------------------------------- texts and numbers


def text_of(value: object, what: str, most: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= most or not is_utf8(value):
        raise ConfigError(f"{what}: {shown(value)} – allowed is text of 1 to {most:,} characters")
    return str.__str__(value)


def whole(value: object, what: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{what}: {shown(value)} – allowed are {least} to {most:,}")
    return value


def truth(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{what}: {shown(value)} – allowed are True and False")
    return value


def one_of(value: object, what: str, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(f"{what}: {shown(value)} – allowed are {', '.join(allowed)}")
    return value


def function_of(value: object, what: str) -> Callable[..., Any]:
    if not callable(value):
        raise ConfigError(f"{what}: {shown(value)} – allowed is a function of one value")
    return value


def content(value: object, what: str) -> bytes:
    """Bytes; text is encoded as UTF-8."""
    if isinstance(value, str) and is_utf8(value):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value)
        except ValueError:  # a released memoryview
            pass
    raise ConfigError(f"{what}: {shown(value)} – allowed are bytes, and text that is UTF-8")


def reason_of(value: object) -> str:
    """The reason of a rejection: text, or an exception. A reason must never keep a message from
    being rejected, so long text is cut and what is not UTF-8 is escaped."""
    if value is None:
        return ""
    if isinstance(value, BaseException):
        try:
            value = f"{type(value).__name__}: {value}"
        except Exception:  # its own __str__ fails
            value = type(value).__name__
    if not isinstance(value, str):
        raise ConfigError(f"reason: {shown(value)} – allowed are text and exceptions")
    text = value.encode("utf-8", "backslashreplace").decode()
    if len(text) > TEXT_CHARACTERS_MAX:
        text = text[: TEXT_CHARACTERS_MAX - len(CUT)] + CUT
    return text


# ---------------------------------------------------------------- times


def wait_s(value: object) -> float | None:
    """A timeout in seconds; None for ever."""
    if value is None:
        return None
    # NaN is not itself. `math.isnan` would not take an int beyond a float's range.
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ConfigError(f"timeout: {shown(value)} – allowed are seconds, and None for ever")
    return max(min(value, WAIT_S_MAX), 0)


def deadline_s(timeout: object) -> float:
    """When a timeout in seconds ends, by the monotonic clock; far away for None."""
    seconds = wait_s(timeout)
    return time.monotonic() + (WAIT_S_MAX if seconds is None else seconds)


def duration_ms(value: object, what: str) -> int:
    """A duration in ms, from text (`"500ms"`, `"30s"`) or seconds. Rounded, but never to zero from
    more."""
    try:
        return parse_duration_ms(value)
    except UnitError as error:
        raise ConfigError(f"{what}: {shown(value)} – allowed is {error.allowed}") from None


def positive_ms(value: object, what: str) -> int:
    """Like `duration_ms`, but more than zero."""
    if not (ms := duration_ms(value, what)):
        allowed = "allowed is a positive duration, such as '8s'"
        raise ConfigError(f"{what}: {shown(value)} – {allowed}")
    return ms


def time_ms(value: object, what: str) -> int:
    """A moment in epoch ms, from an aware datetime or ISO-8601 text."""
    moment = value
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            raise ConfigError(
                f"{what}: {shown(value)} – allowed is ISO-8601 text such as '2026-01-31T12:00:00Z'"
            ) from None
    if not isinstance(moment, datetime):
        raise ConfigError(f"{what}: {shown(value)} – allowed are aware datetimes and ISO-8601 text")
    if moment.utcoffset() is None:
        raise ConfigError(
            f"{what}: {shown(value)} – a time needs a time zone: '2026-01-31T12:00:00Z'"
        )
    # Not `astimezone`: it fails on the first and the last day of the calendar.
    return round((moment - _EPOCH) / _ONE_MS)


def delivery_ms(deliver_at: object, delay: object, now_ms: int) -> int | None:
    """The delivery time of a message in epoch ms, from `deliver_at` or `delay` (L12); None for at
    once or a moment in the past."""
    if delay is None:
        if deliver_at is None:
            return None
        at = min(time_ms(deliver_at, "deliver_at"), YEAR_9999_ENDS_MS)
        return at if at > now_ms else None
    if deliver_at is not None:
        raise ConfigError("deliver_at, delay: both are given – allowed is one of them")
    ms = duration_ms(delay, "delay")
    return now_ms + ms if ms else None


# ---------------------------------------------------------------- ids


def id_of(value: object, what: str) -> int:
    """A message id, from a number or text."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= ID_MAX:
        raise ConfigError(f"{what}: {shown(value)} – allowed is a message id")
    return value


def ids_text(ids: object) -> str:
    """Message ids as ranges in text, from such text or an iterable of ids."""
    if isinstance(ids, str):
        text = str.__str__(ids)
    elif isinstance(ids, Iterable) and not isinstance(ids, bytes | bytearray | memoryview):
        text = format_ranges({id_of(one, "ids") for one in ids})
    else:
        raise ConfigError(f"ids: {shown(ids)} – allowed are message ids, and ranges as text")
    if len(text) > IDS_CHARACTERS_MAX:
        raise ConfigError(
            f"ids: {len(text):,} characters as ranges – allowed are {IDS_CHARACTERS_MAX:,} in one "
            "command: pass fewer ids at a time"
        )
    ranges_of(text)
    return text


def ranges_of(text: str) -> Ranges:
    try:
        return parse_ranges(text)
    except ValueError as error:
        raise ConfigError(str(error)) from error
