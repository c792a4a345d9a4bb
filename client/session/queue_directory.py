"""Where queues are, as a client knows it: the records `queue/<name>` of `<vpn>.directory`.

A connection has a home broker, where everything goes that is nobody's in particular: topics, and
queues that the home hosts too. A queue that others host is found by its name. What is known may be
out of date: a broker that does not have a queue says where it is (kind ``Moved``), and that is
believed. Where there is one broker there is nothing to know.

Which brokers there are: the records `broker/<name>` of the compacted topic `<vpn>.directory`.

The engine writes them, at its start and whenever a broker's state changes, and with the figures of
each batch.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from ...protocol import ConfigError, LakequeueError, Timeout, topics
from .transport import Transport

MOVING = "moving"
QUEUE = topics.DIRECTORY_QUEUE.encode()  # prefixes of keys
BROKER, WISH = b"broker/", b"wish/"
ASK_S = 0.5
WISH_S_MAX = 300.0  # adding or removing a broker brings the whole home to rest first
# What a broker's record may leave out.
NOT_YET = {
    "epoch": 0, "group": "", "state": "", "why": "", "worker": None, "steps": None, "load": None,
}  # fmt: skip


class _DirectoryRecord(msgspec.Struct):
    """Of a queue. hosts: its brokers, by name their numbers; edition: the number of this word among
    all of its home, which is `epoch`."""

    hosts: dict[str, int]
    state: str = ""
    epoch: int = 0
    edition: int = 0


class QueueDirectory:
    """Of one connection. home: the number of its broker."""

    def __init__(self, home: int) -> None:
        self.home = home
        self._hosts: dict[str, dict[str, int]] = {}
        self._said: dict[str, dict[str, int]] = {}  # its brokers by its last record
        self._heard: dict[str, tuple[int, int]] = {}  # epoch and edition of that

    def broker_of(self, name: str) -> int:
        """The broker to speak to about a queue, or for a message to this destination."""
        hosts = self._hosts.get(name)
        if hosts is None:
            return self.home
        numbers = list(hosts.values())
        return self.home if self.home in numbers else numbers[self.home % len(numbers)]

    def hosts_of(self, name: str) -> dict[str, int]:
        """A queue's brokers, by name their numbers; none where nothing is known of it."""
        return self._hosts.get(name, {})

    def take(self, key: bytes | None, value: bytes | None) -> str | None:
        """A record of the topic; gives the queue of which it tells something new. The engine may
        say its last words again after a death: they tell nothing. Nor does it that a queue is about
        to move: it is where it was, or farther already, as a broker may have said. What a broker
        has said before is new all the same: whoever is bound where it was hears of it here."""
        if key is None or not key.startswith(QUEUE):
            return None
        name = key.removeprefix(QUEUE).decode("utf-8", "replace")
        try:
            told = (
                _DirectoryRecord({})
                if value is None
                else msgspec.json.decode(value, type=_DirectoryRecord)
            )
            if value is None:
                self._heard.pop(name, None)
            elif told.edition:
                epoch, edition = self._heard.get(name, (0, 0))
                if epoch == told.epoch and told.edition <= edition:
                    return None
                self._heard[name] = told.epoch, told.edition
            if told.state == MOVING and name in self._hosts:
                return None
            return name if self._is_new(name, told.hosts) else None
        except (msgspec.DecodeError, ValueError):
            return None  # whoever wrote it: the brokers themselves say where a queue is

    def _is_new(self, name: str, hosts: dict[str, int]) -> bool:
        """Whether the directory's last word of a queue was another."""
        self.learn(name, hosts)
        told, said = self.hosts_of(name), self._said.pop(name, {})
        if told:
            self._said[name] = told
        return told != said

    def learn(self, name: str, hosts: dict[str, int]) -> None:
        """A queue is on these brokers, by name their numbers."""
        told = {broker: int(n) for broker, n in sorted(hosts.items(), key=lambda one: one[1])}
        self._hosts.pop(name, None)
        if told:
            self._hosts[name] = told


def known_brokers(transport: Transport, vpn: str) -> list[dict[str, Any]]:
    """Each broker as its record says it, with its name, by number."""
    found = []
    for key, value in transport.newest(topics.topic(vpn, topics.DIRECTORY)).items():
        if key.startswith(BROKER):
            try:
                record = msgspec.json.decode(value, type=dict[str, Any])
                number = int(record["number"])
            except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
                what = f"{vpn}.directory: {key!r} is not a broker's record"
                raise LakequeueError(f"{what}: {error}") from error
            name = key.removeprefix(BROKER).decode()
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
