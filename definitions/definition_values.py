"""Readers for the values of configuration keys (Q7, Q8).

A reader gets the value of one key and returns it normalized, or raises a `ValueError` with the part
of a sentence that says what is allowed. It does not depend on other keys.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import msgspec

from ..protocol.messages import QUEUE_ALONE
from ..protocol.patterns import kind_of
from ..protocol.units import UnitError, format_size, parse_duration_ms, parse_size
from .foreign_words import answer, foreign_word

Reader = Callable[[object], Any]
Report = Callable[[str, object, str], None]  # key, value, what is allowed
ReportAt = Callable[[str, str, object, str], None]  # the same, with the location before

NAME_CHARACTERS_MAX = 200
TEXT_CHARACTERS_MAX = 10_000
COUNT_MAX = 1_000_000_000
ENDPOINT_PREFIX = "#bridge/"
MOVED_PREFIX = "#moved/"  # reserved
DEAD_PREFIX = "#dead/"  # reserved
WAITING_PREFIX = "#out/"  # stand-ins for queues of other brokers
PATTERNS_MAX = 1000
MESSAGE_SIZE_MAX = 11_000_000  # with headers it must fit into one Kafka record of 12 MB


def text(value: object) -> str:
    """A text that is not empty."""
    if not isinstance(value, str):
        raise ValueError("must be a text")
    if not value.strip():
        raise ValueError("must not be empty")
    if len(value) > TEXT_CHARACTERS_MAX:
        raise ValueError(f"must have at most {TEXT_CHARACTERS_MAX} characters")
    if re.search("[\ud800-\udfff]", value):
        raise ValueError("must be valid Unicode text")
    return value


def queue_name(value: object) -> str:
    """A name: text, at most 200 characters, without control characters."""
    name = text(value)
    if len(name) > NAME_CHARACTERS_MAX:
        raise ValueError(f"must have at most {NAME_CHARACTERS_MAX} characters")
    if re.search(r"[\x00-\x1f\x7f-\x9f]", name):
        raise ValueError("must not contain control characters")
    for prefix in (ENDPOINT_PREFIX, MOVED_PREFIX, DEAD_PREFIX, WAITING_PREFIX):
        if name.startswith(prefix):
            raise ValueError(f"must not begin with {prefix!r}, which is for brokers' own queues")
    if name.startswith(QUEUE_ALONE):
        raise ValueError(f"must not begin with {QUEUE_ALONE!r}, which addresses a single queue")
    return name


def broker_name(value: object) -> str:
    """A broker's name, which is a prefix of Kafka topics and the name of a folder."""
    name = text(value)
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", name):
        raise ValueError("must be at most 64 letters, digits, '.', '_' or '-', no '.' first")
    return name


def broker_names(value: object) -> tuple[str, ...]:
    """The members of a group: brokers, each once, in the given order."""
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of brokers' names, such as ['broker-0', 'broker-1']")
    if not value:
        raise ValueError("has no members; name brokers, or leave it out for all of them")
    return tuple(dict.fromkeys(broker_name(name) for name in value))


def vpn_name(value: object) -> str:
    """A VPN's name, which is a prefix of Kafka topic names."""
    name = text(value)
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
        raise ValueError("must be at most 100 letters, digits, '.', '_' or '-'")
    return name


def choice(*allowed: str) -> Reader:
    """A reader that allows only these words."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            near = difflib.get_close_matches(str(shown(value)), allowed, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(f"must be one of {', '.join(allowed)}{hint}")
        return value

    return read


def by_name(name: Reader, of_each: Reader) -> Reader:
    """A reader of a mapping of names to values; returns sorted pairs."""

    def read(value: object) -> tuple[tuple[str, Any], ...]:
        if not isinstance(value, dict) or len(value) > PATTERNS_MAX:
            raise ValueError(f"must be a mapping of at most {PATTERNS_MAX} names")
        return tuple(sorted((name(key), of_each(one)) for key, one in value.items()))

    return read


def count(minimum: int) -> Reader:
    """A reader of whole numbers from a minimum up."""

    def read(value: object) -> int:
        if type(value) is not int or not minimum <= value <= COUNT_MAX:
            raise ValueError(f"must be a whole number from {minimum} to {COUNT_MAX}")
        return value

    return read


def boolean(value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def enabled(value: object) -> bool:
    """`enabled`, true or false."""
    if value == "enabled":
        return True
    if not isinstance(value, bool):
        raise ValueError("must be 'enabled' or left out")
    return value


def number(least: float, most: float, what: str) -> Reader:
    """A reader of numbers in a range."""

    def read(value: object) -> float:
        odd = isinstance(value, bool) or not isinstance(value, int | float)
        if odd or not least <= value <= most:  # type: ignore[operator]
            raise ValueError(f"must be a {what} from {least} to {most}")
        return float(value)  # type: ignore[arg-type]

    return read


percent = number(0, 100, "number of percent")
multiplier = number(1, 1000, "number")  # of a back-off; 1: constant
duration, size = parse_duration_ms, parse_size  # in ms, in bytes; 0 is allowed


def positive_duration(value: object) -> int:
    """A duration in milliseconds above 0."""
    ms = parse_duration_ms(value)
    if ms == 0:
        raise ValueError("must be above 0; leave it out for none")
    return ms


def message_size(value: object) -> int:
    """A message size in bytes: above 0, and small enough for one Kafka record."""
    n = parse_size(value)
    if not 0 < n <= MESSAGE_SIZE_MAX:
        most = format_size(MESSAGE_SIZE_MAX)
        raise ValueError(f"must be above 0 and at most {most}, so that it fits into a Kafka record")
    return n


def topic_patterns(value: object) -> tuple[str, ...]:
    """A list of topic patterns; returns them sorted, each once (`protocol/patterns.py`)."""
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of topics, such as ['a/b', 'a/*/c', 'a/>']")
    for pattern in value:
        if not isinstance(pattern, str):
            raise ValueError("must be a list of topics, each a text")
        kind_of(pattern)
    if len(set(value)) > PATTERNS_MAX:
        raise ValueError(f"must be at most {PATTERNS_MAX} topics")
    return tuple(sorted(set(value)))


def recovery_point(value: object) -> str:
    """`epoch`, `now`, `creation`, a bookmark (a message id) or an ISO-8601 time, converted to UTC
    (R2)."""
    allowed = "must be epoch, now, creation, a bookmark (a message id) or an ISO-8601 time"
    if isinstance(value, datetime.date):
        value = value.isoformat()
    if isinstance(value, str) and value in ("epoch", "now", "creation"):
        return value
    if not isinstance(value, str):
        raise ValueError(allowed)
    if value.isascii() and value.isdecimal():  # a bookmark, not a date
        if int(value) >= 1 << 64:
            raise ValueError(allowed)
        return value
    try:
        moment = datetime.datetime.fromisoformat(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        return moment.astimezone(datetime.UTC).isoformat()
    except (ValueError, OverflowError):
        raise ValueError(allowed) from None


def reason(error: ValueError) -> str:
    """The allowed values, from a reader's error, as part of a sentence."""
    return f"must be {error.allowed}" if isinstance(error, UnitError) else str(error)


def shown(value: object) -> object:
    """Shorten a value for the text of a problem. Never raises."""
    if isinstance(value, int) and abs(value) > 10**40:
        return "a very large number"
    if value is None or isinstance(value, bool | int | float):
        return value
    try:
        written = value if isinstance(value, str) else repr(value)
    except Exception:  # an application's own __repr__ fails
        written = f"a {type(value).__name__}"
    if len(written) > 200:
        return written[:200] + "…"
    return value if isinstance(value, str | list | dict) else written


def shown_key(key: object) -> str:
    """A key for a problem's text."""
    return key if isinstance(key, str) and len(key) <= 200 else str(shown(key))


def unknown_key(key: object, known: Iterable[str]) -> str:
    """The part of a sentence for an unknown key: our key for another system's word, else the only
    key that begins with it, else the most similar key, else all allowed keys."""
    if not isinstance(key, str):
        return "is not a known key; keys are texts"
    keys = list(known)
    foreign = foreign_word(key[:200])
    if foreign is not None:
        return answer(foreign, keys)
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key[:200]).lower().replace("-", "_")
    near = [name for name in keys if name.startswith(f"{snake}_")]
    if len(near) != 1:
        near = difflib.get_close_matches(snake, keys, 1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(keys)}"
    return f"is not a known key; {hint}"


def keys_of(definition: type[msgspec.Struct]) -> dict[str, tuple[str, Reader]]:
    """Maps each key to its attribute and its reader, which the annotations name. A key is the
    attribute's name on the wire, without its unit."""
    return {
        field.encode_name.removesuffix("_ms"): (field.name, field.type.__metadata__[0])
        for field in msgspec.structs.fields(definition)
    }


def read_keys(
    mapping: Mapping[Any, Any], keys: Mapping[str, tuple[str, Reader]], report: Report
) -> dict[str, Any]:  # fmt: skip
    """The valid values of a mapping, by attribute. keys: see `keys_of`. Calls report(key, value,
    allowed) for each problem."""
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        if not isinstance(key, str) or key not in keys:
            report(shown_key(key), value, unknown_key(key, keys))
        elif value is not None:
            attribute, reader = keys[key]
            try:
                values[attribute] = reader(value)
            except ValueError as error:
                report(key, value, reason(error))
    return values


@cache
def _defaults(definition: type[msgspec.Struct]) -> dict[str, Any]:
    """The default of each field. Cached, because msgspec evaluates all annotations to find it."""
    return {field.name: field.default for field in msgspec.structs.fields(definition)}


def check_thresholds(
    definition: type[msgspec.Struct], values: Mapping[str, Any], report: Report
) -> None:
    """S9, B4: no alert is cleared above the percentage at which it is set."""
    complete = {**_defaults(definition), **values}
    for clear_key, clear in complete.items():
        if clear_key.endswith("_clear_percent"):
            high_key = clear_key.replace("_clear_", "_high_")
            if clear > complete[high_key]:
                allowed = f"must not be above {high_key}, {complete[high_key]}"
                report(clear_key, clear, allowed)
