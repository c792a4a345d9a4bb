"""What a publisher may say of a message: checked before anything of it is kept or sent.

A message that the engine cannot read has no answer, so it would stay in the producer's window and
be sent again for ever. Whatever is given here is therefore refused at once, or can be read.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..protocol import ConfigError
from ..protocol.bounds import NAME_CHARACTERS_MAX, TOPIC_CHARACTERS_MAX, is_utf8, shown
from ..protocol.messages import HEADER, PRIORITY_MAX
from .values import content, duration_ms, text_of, whole

Pairs = list[tuple[str, bytes]]


def destination_of(value: object) -> str:
    """A queue or topic."""
    return text_of(value, "destination", TOPIC_CHARACTERS_MAX)


def producer_id_of(value: object) -> str:
    """The name under which a producer counts (P1)."""
    return text_of(value, "producer_id", NAME_CHARACTERS_MAX)


def ttl_ms(value: object) -> int | None:
    """A TTL in ms; None for none."""
    if value is None:
        return None
    ms = duration_ms(value, "ttl")
    if ms <= 0:
        raise ConfigError(f"ttl: {shown(value)} – allowed is a positive duration, such as '8s'")
    return ms


def priority_of(value: object) -> int:
    """A publisher's own priority."""
    return whole(value, "priority", 0, PRIORITY_MAX)


def check_outlived(what: str, wait_ms: int, ttl: int | None) -> None:
    """Raise ConfigError for a message that would expire before it can be delivered."""
    if ttl is not None and wait_ms >= ttl:
        raise ConfigError(
            f"{what}: {wait_ms} ms from now – allowed is less than the ttl, {ttl} ms: the message "
            "would expire before it is delivered"
        )


def headers_of(headers: object) -> Pairs | None:
    """The application's headers as Kafka takes them; None where there are none."""
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers: {shown(headers)} – allowed is a dict of names and values")
    pairs = headers.items()
    return [(_name(name), content(v, f"headers[{shown(name)}]")) for name, v in pairs] or None


def _name(name: object) -> str:
    # Kafka's C library ends a name at its first zero.
    if not isinstance(name, str) or "\0" in name or not is_utf8(name):
        raise ConfigError(
            f"headers: {shown(name)} – allowed as a name is text without NUL characters"
        )
    if name == HEADER:
        raise ConfigError(f"headers: {name!r} – is lakequeue's own; allowed is any other name")
    return str.__str__(name)
