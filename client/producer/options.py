"""A publisher's options for a message, checked before anything is kept or sent; and its header.

The engine cannot answer a message it cannot read: the message would stay in the producer's window
and be sent again for ever. So a wrong option is refused here.

The header `lq` is JSON. It is the same for all messages with the same options, except for the
sequence number (P7). So each producer keeps *templates*: the bytes before and after that number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...protocol import ConfigError
from ...protocol.bounds import TOPIC_CHARACTERS_MAX, is_utf8, shown
from ...protocol.messages import (
    HEADER,
    PRIORITY_MAX,
    PublishHeader,
    decode_publish_header,
    encode_publish_header,
)
from ..values import content, positive_ms, text_of, whole

Pairs = list[tuple[str, bytes]]


def destination_of(value: object) -> str:
    return text_of(value, "destination", TOPIC_CHARACTERS_MAX)


def ttl_ms(value: object) -> int | None:
    """A TTL in ms; None for none."""
    return None if value is None else positive_ms(value, "ttl")


def priority_of(value: object) -> int:
    return whole(value, "priority", 0, PRIORITY_MAX)


def check_outlived(what: str, wait_ms: int, ttl: int | None) -> None:
    """Raise ConfigError for a message that would expire before it can be delivered."""
    if ttl is not None and wait_ms >= ttl:
        raise ConfigError(
            f"{what}: {wait_ms} ms from now – allowed is less than the ttl, {ttl} ms: the message "
            "would expire before it is delivered"
        )


def headers_of(headers: object) -> Pairs | None:
    """The application's headers as Kafka takes them; None for none."""
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
        raise ConfigError(
            f"headers: {name!r} – is reserved for lakequeue; allowed is any other name"
        )
    return str.__str__(name)


TEMPLATES_MAX = 1_000
_SEQ = (1 << 61) - 1  # placeholder for the sequence number; no producer counts that far

Template = tuple[bytes, bytes]


class HeaderOptions(NamedTuple):
    """The header's content besides the destination.

    ttl_ms: None for none. at: delivery time in epoch ms; None for at once. persistent: the engine
    answers. delay_ms: until delivery, from when Kafka has the record.
    """

    ttl_ms: int | None
    priority: int
    at: int | None
    dmq_eligible: bool
    persistent: bool
    delay_ms: int | None = None


class Templates:
    """One producer's templates.

    reply: the partition of the receipts topic it reads. durability: what must have a message before
    the receipt. start: identifies this run of a named producer.
    """

    def __init__(self, producer_id: str, reply: int, durability: str, start: str) -> None:
        self._of_persistent: dict[str, Any] = {
            "producer": producer_id, "reply": reply, "durability": durability, "start": start,
        }  # fmt: skip
        self._made: dict[tuple[str, HeaderOptions], Template] = {}

    def of(self, destination: str, options: HeaderOptions) -> Template:
        """The template for a destination and options."""
        found = self._made.get((destination, options))
        if found is None:
            found = self._make(destination, options)
            if options.at is None:  # times differ from message to message
                if len(self._made) >= TEMPLATES_MAX:
                    self._made.clear()
                self._made[destination, options] = found
        return found

    def _make(self, destination: str, options: HeaderOptions) -> Template:
        header = encode_publish_header(
            PublishHeader(
                to=destination, seq=_SEQ, ttl_ms=options.ttl_ms, priority=options.priority,
                deliver_at=options.at, delay_ms=options.delay_ms, dmq=options.dmq_eligible,
                **(self._of_persistent if options.persistent else {}),
            )
        )  # fmt: skip
        try:  # the engine does not answer what it cannot read
            decode_publish_header(header)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        before, name, after = header.partition(b'"seq":%d' % _SEQ)
        return before + name[:6], after


def header_of(template: Template, seq: int, count: int = 0) -> bytes:
    """The header of one message, or of a run of ``count`` messages from ``seq`` on."""
    if count:
        return b'%b%d,"count":%d%b' % (template[0], seq, count, template[1])
    return b"%b%d%b" % (template[0], seq, template[1])
