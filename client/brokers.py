"""Which brokers there are: the records `broker/<name>` of the compacted topic `<vpn>.directory`.

The engine writes them, at its start and whenever a broker's state changes, and with the figures of
each batch.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..protocol import ConfigError, LakequeueError, topics
from .transport import Transport

PREFIX = b"broker/"
NOT_YET = {"epoch": 0, "state": "", "why": "", "worker": None, "steps": None, "load": None}


def known_brokers(transport: Transport, vpn: str) -> list[dict[str, Any]]:
    """Each broker as its record says it, with its name, by number."""
    found = []
    for key, value in transport.newest(topics.topic(vpn, topics.DIRECTORY)).items():
        if key.startswith(PREFIX):
            try:
                record = msgspec.json.decode(value, type=dict[str, Any])
                number = int(record["number"])
            except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
                what = f"{vpn}.directory: {key!r} is not a broker's record"
                raise LakequeueError(f"{what}: {error}") from error
            name = key.removeprefix(PREFIX).decode()
            found.append({"name": name, **NOT_YET, **record, "number": number})
    return sorted(found, key=lambda one: one["number"])


def number_of(name: str, known: list[dict[str, Any]]) -> int:
    """The number of the broker with this name; raises ConfigError when there is none."""
    for one in known:
        if one["name"] == name:
            return one["number"]
    names = ", ".join(repr(one["name"]) for one in known) or "none yet"
    raise ConfigError(f"broker: {name!r} – it is not there; the brokers are {names}")
