"""The brokers and their queues: the client's view of `<vpn>.directory`.

A connection has a home broker. It handles topics and the queues it hosts. Other queues are found by
name in the records `queue/<name>`. These may be out of date: a broker that does not have a queue
answers with its hosts (kind `Moved`), and the client believes that. With one broker there is
nothing to look up.

The engine writes a record `broker/<name>` for each broker: at its start, when the broker's state
changes, and with the figures of each batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from ...protocol import ConfigError, LakequeueError, Timeout, topics
from ...protocol.bounds import CANNOT_DECODE
from .transport import Transport

MOVING = "moving"
QUEUE = topics.DIRECTORY_QUEUE.encode()  # prefixes of keys
BROKER = b"broker/"
CHANGE_REQUEST = b"wish/"  # the word on the wire, as in the request itself
ASK_S = 0.5
CHANGE_S_MAX = 300.0  # adding or removing a broker brings the whole home to rest first
# The fields that a broker's record may leave out.
NOT_YET = {
    "epoch": 0, "group": "", "state": "", "why": "", "worker": None, "steps": None, "load": None,
}  # fmt: skip


class _DirectoryRecord(msgspec.Struct):
    """A queue's record. hosts: its brokers' numbers by name; epoch: of the home; edition: counts
    this home's records of the queue."""

    hosts: dict[str, int]
    state: str = ""
    epoch: int = 0
    edition: int = 0


class QueueDirectory:
    """One connection's view. home: the number of its home broker."""

    def __init__(self, home: int) -> None:
        self.home = home
        self._hosts: dict[str, dict[str, int]] = {}
        self._last_named: dict[str, dict[str, int]] = {}  # hosts as the last record named them
        self._heard: dict[str, tuple[int, int]] = {}  # epoch and edition of that record

    def broker_of(self, name: str) -> int:
        """The number of the broker that handles this queue or destination."""
        hosts = self._hosts.get(name)
        if hosts is None:
            return self.home
        numbers = list(hosts.values())
        return self.home if self.home in numbers else numbers[self.home % len(numbers)]

    def hosts_of(self, name: str) -> dict[str, int]:
        """The numbers of a queue's brokers, by name; empty if nothing is known."""
        return self._hosts.get(name, {})

    def take(self, key: bytes | None, value: bytes | None) -> str | None:
        """Read a record of the directory. Returns the queue's name if it says something new.

        A repeated record (the engine repeats its last ones after a crash) says nothing new. Nor
        does the announcement of a move: the queue is still where it was, or a broker has already
        said where it went. A record that only confirms what a broker said counts as new, so that
        consumers bound to the old broker follow.
        """
        if key is None or not key.startswith(QUEUE):
            return None
        name = key.removeprefix(QUEUE).decode("utf-8", "replace")
        try:
            entry = _DirectoryRecord({})
            if value is None:
                self._heard.pop(name, None)
            else:
                entry = msgspec.json.decode(value, type=_DirectoryRecord)
            if entry.edition:
                epoch, edition = self._heard.get(name, (0, 0))
                if epoch == entry.epoch and entry.edition <= edition:
                    return None
                self._heard[name] = entry.epoch, entry.edition
            if entry.state == MOVING and name in self._hosts:
                return None
            return name if self._is_new(name, entry.hosts) else None
        except CANNOT_DECODE:
            return None  # not the engine's; the brokers themselves say where a queue is

    def _is_new(self, name: str, hosts: dict[str, int]) -> bool:
        """Learn the hosts; returns True if the last record named other hosts."""
        self.learn(name, hosts)
        hosts, before = self.hosts_of(name), self._last_named.pop(name, {})
        if hosts:
            self._last_named[name] = hosts
        return hosts != before

    def learn(self, name: str, hosts: dict[str, int]) -> None:
        """The queue is on these brokers (numbers by name)."""
        found = {broker: int(n) for broker, n in sorted(hosts.items(), key=lambda one: one[1])}
        self._hosts.pop(name, None)
        if found:
            self._hosts[name] = found


def known_brokers(transport: Transport, vpn: str) -> list[dict[str, Any]]:
    """All brokers from their records, by number. Raises LakequeueError for a record that cannot be
    read."""
    found = []
    for key, value in transport.newest(topics.topic(vpn, topics.DIRECTORY)).items():
        if key.startswith(BROKER):
            try:
                record = msgspec.json.decode(value, type=dict[str, Any])
                number = int(record["number"])
            except (*CANNOT_DECODE, KeyError, TypeError) as error:
                what = f"{vpn}.directory: {key!r} is not a broker's record"
                raise LakequeueError(f"{what}: {error}") from error
            name = key.removeprefix(BROKER).decode()
            found.append({"name": name, **NOT_YET, **record, "number": number})
    return sorted(found, key=lambda one: one["number"])


def ask_for_change(
    transport: Transport, vpn: str, change: dict[str, str], name: str, number: str,
    pause: Callable[[float], None],
) -> dict[str, Any]:  # fmt: skip
    """Write a request about a broker into the directory and wait for the engine's answer. number:
    identifies this request. pause: waits for so many seconds. Raises LakequeueError if the engine
    refuses, Timeout after 5 minutes."""
    directory, key = topics.topic(vpn, topics.DIRECTORY), CHANGE_REQUEST + name.encode()
    asked = msgspec.json.encode({**change, "id": number})
    transport.publish(directory, asked, key, [], 0)
    deadline = time.monotonic() + CHANGE_S_MAX
    while time.monotonic() < deadline:
        answer = msgspec.json.decode(transport.newest(directory).get(key, b"{}"))
        if answer.get("id") == number and "wish" not in answer:
            if "refused" in answer:
                raise LakequeueError(answer["refused"])
            return dict(answer)
        pause(ASK_S)
    raise Timeout(
        f"the engine did not answer within {CHANGE_S_MAX:.0f} s; is it running? (lakequeue doctor)"
    )


def number_of(name: str, known: list[dict[str, Any]]) -> int:
    """The number of the broker with this name; raises ConfigError if there is none."""
    for one in known:
        if one["name"] == name:
            return one["number"]
    names = ", ".join(repr(one["name"]) for one in known) or "none yet"
    raise ConfigError(f"broker: {name!r} – there is no such broker; the brokers are {names}")
