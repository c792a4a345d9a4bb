"""One queue in depth: `describe`, why it does not move, and its first messages.

Inspection must not burden the engine, so only the first messages are read, and fewer if they are
large. If several brokers host a queue (Q5), each reports its first messages and why they wait; a
reason that several share is shown once.
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

Hosts = Mapping[str, dict[str, Any]]  # each host's description of the queue, by broker


def described(connection: Any, name: str) -> tuple[dict[str, Any], list[BrowsedMessage]]:
    """`describe` with `why`, a list of `code`, `text`, `stuck` and `side`; and the first messages.
    Omits brokers that do not run."""
    known = connection.brokers()
    if len(known) > 1:
        ask = partial(connection.request, commands.Describe(queue=name), ANSWER_S)
        hosts = ask_hosts(connection, lambda number: ask(broker=number), known)
        if hosts:
            numbers = [one for one in known if one["name"] in hosts]
            queue, first = _of_hosts(connection, name, hosts, numbers)
            return _with_lanes(connection, queue, known), first
        away = [one for one in known if one["state"] not in RUNNING]
        if away:  # brokers that do not run may have it
            states = ", ".join(f"broker {one['name']} is {one['state']}" for one in away)
            raise LakequeueError(f"no running broker has a queue {name!r}; {states}")
    return explained(connection.admin(), name, connection.now())


def explained(admin: Any, name: str, now: datetime) -> tuple[dict[str, Any], list[BrowsedMessage]]:
    """Like `described`, for a queue that one broker hosts or that is inspected as a whole."""
    queue = admin.describe(name)
    messages: list[BrowsedMessage] = []
    if queue["depth"]:
        try:
            messages = admin.browse(name, limit=_worth(queue))
        except LakequeueError:  # the queue may have been deleted: return its description only
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
    """Add the messages that wait at other brokers until the queue accepts them (H2)."""
    ask = partial(connection.request, commands.Usage(), ANSWER_S)
    answers = ask_hosts(connection, lambda number: ask(broker=number), known)
    lanes = [lane for lane in lanes_of(answers.values()) if lane["queue"] == queue["name"]]
    why = [asdict(refused_elsewhere(lane)) for lane in lanes if lane["why"]]
    return queue | {"lanes": lanes, "why": why + queue["why"]}


def reasons_of_hosts(
    hosts: Hosts, first: Mapping[str, list[BrowsedMessage]], now: datetime
) -> list[Waiting]:
    """The reasons why messages wait at each host, most important first. With several hosts, each
    reason begins with the host's name."""
    brokers_of: dict[Waiting, list[str]] = {}
    for name, part in hosts.items():
        for reason in reasons(_with_all_consumers(part, hosts), first.get(name, []), now):
            brokers_of.setdefault(reason, []).append(name)
    if len(hosts) == 1:
        return list(brokers_of)
    return [
        replace(reason, text=f"{', '.join(names)}: {reason.text}")
        for reason, names in sorted(brokers_of.items(), key=lambda one: not one[0].stuck)
    ]


def _with_all_consumers(part: dict[str, Any], hosts: Hosts) -> dict[str, Any]:
    """One host's description, with all hosts' consumers if it has none of its own: messages go to
    any host with room, so its messages wait for those consumers (H4)."""
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
    """The number of messages to read."""
    usual = max(1, queue["spool_bytes"] // queue["depth"])
    return max(1, min(LOOKED_AT, LOOKED_AT_BYTES // usual))
