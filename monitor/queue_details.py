"""One queue as people want to see it: what `describe` says, why it does not move, what is first.

Looking must not be work for the engine: only the first messages are asked for, and fewer of them
where they are large. Of a queue that several brokers host (Q5) each is asked for its first, and
each says why its own messages wait; what the same keeps at several is said once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from typing import Any

from ..client.message import BrowsedMessage
from ..protocol import LakequeueError, commands
from ..protocol.descriptions import add_up, lanes_of
from .broker_status import RUNNING, ask_hosts
from .reasons import LOOKED_AT, Waiting, reasons, refused_elsewhere

LOOKED_AT_BYTES = 1_000_000
ANSWER_S = 2.0
NO_CONSUMER, ALL_FULL = "no consumer", "every consumer's backlog is full"

Hosts = Mapping[str, dict[str, Any]]  # what each says of the queue, by name


def described(connection: Any, name: str) -> tuple[dict[str, Any], list[BrowsedMessage]]:
    """`describe`, with `why`: a list of `code`, `text`, `stuck` and `side`; and the first messages.
    Of brokers that do not run nothing is known here."""
    known = connection.brokers()
    if len(known) > 1:
        ask = partial(connection.request, commands.Describe(queue=name), ANSWER_S)
        hosts = ask_hosts(connection, lambda number: ask(broker=number), known)
        if hosts:
            numbers = [one for one in known if one["name"] in hosts]
            queue, first = _of_hosts(connection, name, hosts, numbers)
            return _with_lanes(connection, queue, known), first
        away = [one for one in known if one["state"] not in RUNNING]
        if away:  # they may have it; they would not answer
            said = ", ".join(f"broker {one['name']} is {one['state']}" for one in away)
            raise LakequeueError(f"no broker that runs has a queue {name!r}; {said}")
    return explained(connection.admin(), name, connection.now())


def explained(admin: Any, name: str, now: datetime) -> tuple[dict[str, Any], list[BrowsedMessage]]:
    """As `described`, of a queue that one broker hosts, or that is looked at as a whole."""
    queue = admin.describe(name)
    messages: list[BrowsedMessage] = []
    if queue["depth"]:
        try:
            messages = admin.browse(name, limit=_worth(queue))
        except LakequeueError:  # it may be gone by now: what is known is said
            messages = []
    return _with(queue, reasons(queue, messages, now)), messages


def _of_hosts(
    connection: Any, name: str, hosts: Hosts, numbers: list[dict[str, Any]]
) -> tuple[dict[str, Any], list[BrowsedMessage]]:
    names = {one["number"]: one["name"] for one in numbers}

    def browsed(number: int) -> list[BrowsedMessage]:
        part = hosts[names[number]]
        if not part["depth"]:
            return []
        command = commands.Browse(queue=name, limit=_worth(part))
        rows = connection.request_list(command, "start", "limit", number, ANSWER_S)
        return [BrowsedMessage.of(name, row) for row in rows]

    first = ask_hosts(connection, browsed, numbers)
    why = reasons_of_hosts(hosts, first, connection.now())
    return _with(add_up(dict(hosts)), why), [m for part in first.values() for m in part]


def _with_lanes(
    connection: Any, queue: dict[str, Any], known: list[dict[str, Any]]
) -> dict[str, Any]:
    """The same, with what waits at other brokers until the queue takes it (H2)."""
    ask = partial(connection.request, commands.Usage(), ANSWER_S)
    told = ask_hosts(connection, lambda number: ask(broker=number), known)
    lanes = [lane for lane in lanes_of(told.values()) if lane["queue"] == queue["name"]]
    why = [asdict(refused_elsewhere(lane)) for lane in lanes if lane["why"]]
    return queue | {"lanes": lanes, "why": why + queue["why"]}


def reasons_of_hosts(
    hosts: Hosts, first: Mapping[str, list[BrowsedMessage]], now: datetime
) -> list[Waiting]:
    """Why messages wait at each host, most important first; of several each begins with who says
    it."""
    said: dict[Waiting, list[str]] = {}
    for name, part in hosts.items():
        for reason in reasons(_among(part, hosts), first.get(name, []), now):
            said.setdefault(reason, []).append(name)
    if len(hosts) == 1:
        return list(said)
    return [
        replace(reason, text=f"{', '.join(names)}: {reason.text}")
        for reason, names in sorted(said.items(), key=lambda one: not one[0].stuck)
    ]


def _among(part: dict[str, Any], hosts: Hosts) -> dict[str, Any]:
    """What one host says, with the consumers of all where it has none: messages go to whoever has
    room, so it is the others that its messages wait for (H4)."""
    if part["blocked"] != NO_CONSUMER:
        return part
    consumers = [consumer for one in hosts.values() for consumer in one["consumers"]]
    if not consumers:
        return part
    full = all(consumer["blocked"] for consumer in consumers)
    return {**part, "consumers": consumers, "blocked": ALL_FULL if full else None}


def _with(queue: dict[str, Any], why: list[Waiting]) -> dict[str, Any]:
    return queue | {"why": [asdict(reason) for reason in why]}


def _worth(queue: dict[str, Any]) -> int:
    """How many messages to look at."""
    usual = max(1, queue["spool_bytes"] // queue["depth"])
    return max(1, min(LOOKED_AT, LOOKED_AT_BYTES // usual))
