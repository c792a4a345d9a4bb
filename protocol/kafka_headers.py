"""Reads a record's headers safely when a name is not UTF-8.

Kafka accepts any bytes as a header's name. If they are not UTF-8, Java's client replaces them with
U+FFFD. Python's client over the C library fails and returns a half-built list that crashes the
process on access. This module refuses such a record like any other malformed one. The engine
recognises it by the value `UNREADABLE` of its header `lq`.
"""

from __future__ import annotations

from operator import methodcaller
from typing import Any, NoReturn

UNREADABLE = b"headers: a name is not UTF-8"
REPLACED = "\ufffd"
# Not `message.headers()`: once Python has specialised that call, it no longer checks whether a
# function that returned a value has also failed, and the half-built list counts as complete.
_headers = methodcaller("headers")


def headers_of(message: Any) -> list[tuple[str, bytes | None]]:
    """The headers of a confluent-kafka message. Raises ValueError if a name is not UTF-8; do not
    call it again for that message."""
    try:
        headers = _headers(message)
    except (SystemError, UnicodeDecodeError):
        _refuse()
    if not headers:
        return []
    alone = len(headers) == 1 and headers[0][0].isascii()
    if not alone and any(REPLACED in name for name, _ in headers):
        _refuse()
    return headers  # type: ignore[no-any-return]


def _refuse() -> NoReturn:
    raise ValueError(UNREADABLE.decode())
