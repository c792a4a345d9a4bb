"""Definitions as they were given last: the same one again is known by its digest (Q9).

At each start the engine gives every queue of its configuration again. With 10,000 of them nearly
all are as they were: that is found in the page of a bucket of names, and no queue is loaded, no
definition read. What has changed since, and a queue that failed, are defined as ever.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from ..broker import Broker, bucket

DIGEST_BYTES = 8

_encode = msgspec.msgpack.encode


def digest_of(definition: dict[str, Any]) -> bytes:
    """Of a definition as it came, defaults or not; empty where it holds a number that no key
    allows: what is wrong with it is said next."""
    try:
        return blake2b(_encode(definition), digest_size=DIGEST_BYTES).digest()
    except OverflowError:
        return b""


def is_as_given(broker: Broker, vpn: str, definition: dict[str, Any]) -> bool:
    """Whether this is what the queue was last defined with."""
    name = definition.get("name")
    if not isinstance(name, str):
        return False
    known = (broker.values.read(_key(vpn, name)) or {}).get(name)
    return known is not None and known == digest_of(definition)


def remember(broker: Broker, vpn: str, name: str, definition: dict[str, Any]) -> None:
    """The queue is defined with this now."""
    known = broker.values.read(_key(vpn, name)) or {}
    broker.values.write(_key(vpn, name), {**known, name: digest_of(definition)})


def forget(broker: Broker, vpn: str, name: str) -> None:
    """The queue is gone, or failed: whatever it is defined with next counts."""
    known = dict(broker.values.read(_key(vpn, name)) or {})
    if known.pop(name, None) is not None:
        broker.values.write(_key(vpn, name), known)


def _key(vpn: str, name: str) -> str:
    return f"v/{vpn}/{bucket(name)}"
