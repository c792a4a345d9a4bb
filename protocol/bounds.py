"""Types with the bounds of values on the wire. All input is decoded with them.

The type of a field bounds its values, so no later code meets a number that does not fit into its
column, or a text that is too long to forward. Decoding refuses other values with a sentence that
names the field, the value and what is allowed.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec

DURATION_MS_MAX = 100 * 365 * 86_400_000  # 100 years
YEAR_9999_ENDS_MS = 253_402_300_799_999  # the last time that `datetime` can represent
BACKLOG_MAX = 1_000_000  # messages of one subscription
NAME_CHARACTERS_MAX = 250
TOPIC_CHARACTERS_MAX = 1_000
IDS_CHARACTERS_MAX = 2_000_000
TEXT_CHARACTERS_MAX = 10_000
RECORD_BYTES_MAX = 12_000_000  # `max.message.bytes` of our topics
# A delivery record's fields besides the message: ids, counts, and why the message died.
OWN_BYTES_MAX = 200_000

# Names of queues, topics, subscriptions, sessions.
Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)]
Topic = Annotated[str, msgspec.Meta(max_length=TOPIC_CHARACTERS_MAX)]
Ids = Annotated[str, msgspec.Meta(max_length=IDS_CHARACTERS_MAX)]
Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARACTERS_MAX)]
OrderKey = Annotated[str, msgspec.Meta(pattern=r"^-?[0-9]{1,58}$")]  # up to 192 bits
Partition = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
DurationMs = Annotated[int, msgspec.Meta(ge=0, le=DURATION_MS_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Number = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]

# Errors that decoding a foreign record can raise. msgspec's are ValueErrors; values that are nested
# too deeply raise RecursionError.
CANNOT_DECODE = (ValueError, RecursionError)

SHOWN_CHARACTERS_MAX = 80


def shown(value: object) -> str:
    """Format a value for an error message: short, and never raises."""
    try:
        text = repr(value)
    except Exception:  # an application's class, or a number with too many digits for Python
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "…"


def is_utf8(text: str) -> bool:
    """Whether a text can be encoded as UTF-8; an unpaired surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def within_calendar(ms: int) -> int:
    """Clamp epoch ms to the years 1970 to 9999, which every calendar can represent."""
    return min(max(ms, 0), YEAR_9999_ENDS_MS)


def datetime_of(ms: int) -> datetime:
    """Epoch ms as an aware datetime, clipped to the calendar."""
    return EPOCH + timedelta(milliseconds=within_calendar(ms))


def explain(error: msgspec.ValidationError, value: bytes) -> str:
    """Describe what is wrong with a record, in a sentence with the field and its value."""
    text = str(error)
    # Inside a map or a list the error has no path, so the whole value is shown.
    found = re.fullmatch(
        r"(.*) - at `(?:key` in `)?\$((?:\.\w+)+)(?:\[\.\.\.\])*`", text, re.DOTALL
    )
    if found is None:
        return text
    try:
        at: Any = msgspec.json.decode(value)
        for name in found[2][1:].split("."):
            at = at[name]
    except (*CANNOT_DECODE, KeyError, TypeError):
        return text
    return f"{found[2][1:]}: {shown(at)} – {found[1][:1].lower()}{found[1][1:]}"
