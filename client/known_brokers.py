"""Which brokers there are: the records `broker/<name>` of the compacted topic `<vpn>.directory`.

The engine writes them, at its start and whenever a broker's state changes, and with the figures of
each batch.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from ..protocol import ConfigError, LakequeueError, Timeout, topics
from .transport import Transport

PREFIX, WISH = b"broker/", b"wish/"
ASK_S, WISH_S_MAX = 0.5, 300.0  # the home comes to rest before
NOT_YET = {
    "epoch": 0, "group": "", "state": "", "why": "", "worker": None, "steps": None, "load": None,
}  # fmt: skip


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


def ask_for_broker(
    transport: Transport, vpn: str, wish: dict[str, str], name: str, number: str
) -> dict[str, Any]:
    """Put a wish about a broker into the directory, and wait for the answer that stands there
    then, and is given. number: what tells this wish from others. Raises LakequeueError when it is
    refused, Timeout."""
    directory, key = topics.topic(vpn, topics.DIRECTORY), WISH + name.encode()
    asked = msgspec.json.encode({**wish, "id": number})
    transport.publish(directory, asked, key, [], 0)
    transport.flush(ASK_S)
    deadline = time.monotonic() + WISH_S_MAX
    while time.monotonic() < deadline:
        answer = msgspec.json.decode(transport.newest(directory).get(key, b"{}"))
        if answer.get("id") == number and "wish" not in answer:
            if "refused" in answer:
                raise LakequeueError(answer["refused"])
            return dict(answer)
        time.sleep(ASK_S)
    raise Timeout(f"the engine did not answer within {WISH_S_MAX:.0f} s; is it running?")


def number_of(name: str, known: list[dict[str, Any]]) -> int:
    """The number of the broker with this name; raises ConfigError when there is none."""
    for one in known:
        if one["name"] == name:
            return one["number"]
    names = ", ".join(repr(one["name"]) for one in known) or "none yet"
    raise ConfigError(f"broker: {name!r} – it is not there; the brokers are {names}")
