"""A record's headers as Kafka's clients read them: names are text, which nobody makes sure of.

Kafka itself takes any bytes for a header's name. Where they are not UTF-8, Java's client puts
U+FFFD in their place; the one for Python over the C library fails, and leaves half of a list behind
that ends the process of whoever looks at it. So headers are read here: such a record is refused
like any other that is not understood, and the engine knows it by `UNREADABLE` as its header `lq`.
"""

from __future__ import annotations

from operator import methodcaller
from typing import Any, NoReturn

UNREADABLE = b"headers: a name is not UTF-8"
REPLACED = "\ufffd"
# Not `message.headers()`: where Python has learnt what is called there, it no longer looks whether
# a function that gave something failed all the same, and the half list is taken for a whole one.
_headers = methodcaller("headers")


def headers_of(message: Any) -> list[tuple[str, bytes | None]]:
    """The headers of a confluent-kafka message. Raises ValueError where a name is not UTF-8, and
    must not be called again then."""
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
