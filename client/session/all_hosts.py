"""Commands sent to every broker that hosts a queue, with the answers added up (Q5, H4, R6).

Each host of a distributed queue owns some of its messages. A command about the queue or its
messages goes to all hosts, one after the other. Before an administrator's change all of them must
be up: it waits for those that restart, and is refused if one has failed. If one then fails to
answer, the error says where the change was made and where not. Messages on their way between
brokers at that moment may be missed; repeat the command to be sure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...protocol import ConfigError, LakequeueError, Timeout, commands
from ...protocol.checked import checked
from .requests import LOOK_AGAIN_S, REQUEST_TIMEOUT_S, Answer
from .session import Session

AWAY = ("failed", "restarting")


def change(session: Session, command: Any) -> Any:
    """Let all hosts of a queue carry out a change; returns the added answers. Raises
    LakequeueError, ConfigError and Timeout."""
    hosts = session.hosts_of(checked(command).queue)
    if len(hosts) < 2:
        return session.request(command)
    if not isinstance(command, commands.Ack):  # acks are taken wherever possible
        _check_hosts(session, command, hosts)
    done: dict[str, Any] = {}
    for name, number in hosts.items():
        try:
            done[name] = session.request(command, broker=number)
        except LakequeueError as error:
            if not done and not isinstance(error, Timeout):
                raise
            raise _half_done(command.queue, name, error, hosts, done) from error
    return added(list(done.values()))


def remove(session: Session, command: Any) -> int:
    """Let all hosts remove messages; returns how many. Removing makes room for consumers, so
    messages may move between hosts meanwhile. Repeats until no host removed any, at most once per
    host."""
    hosts = len(session.hosts_of(checked(command).queue))
    total = count = int(change(session, command))
    if getattr(command, "dry_run", False) or hosts < 2:
        return total
    for _ in range(hosts):
        if not count:
            break
        count = change(session, command)
        total += count
    return total


def _check_hosts(session: Session, command: Any, hosts: dict[str, int]) -> None:
    queue, until = command.queue, time.monotonic() + REQUEST_TIMEOUT_S
    while away := _away(session, hosts):
        name, state = away
        if state == "failed" or not session.runner.waits or time.monotonic() > until:
            raise LakequeueError(
                f"queue {queue!r}: broker {name!r}, one of its hosts, is {state}; nothing was "
                "changed, try again when it runs (lakequeue brokers)"
            )
        session.pause(LOOK_AGAIN_S)
    if isinstance(command, commands.Move):
        there = session.hosts_of(command.to)
        missing = [name for name in hosts if there and name not in there]
        if missing:
            raise ConfigError(
                f"to: {command.to!r} – is not on broker {missing[0]!r}, which hosts {queue!r}; "
                "allowed is a queue on all its hosts, because messages move within a broker"
            )


def _away(session: Session, hosts: dict[str, int]) -> tuple[str, str] | None:
    """A host that is not there, and its state: `restarting`, which takes seconds, or `failed`."""
    states = {one["name"]: one["state"] for one in session.brokers()}
    return next(((h, states[h]) for h in hosts if states.get(h) in AWAY), None)


def _half_done(
    queue: str, name: str, error: LakequeueError, hosts: dict[str, int], done: dict[str, Any]
) -> LakequeueError:
    """The error of one host, with what happened at the others."""
    kind = Timeout if isinstance(error, Timeout) else LakequeueError
    left = [other for other in hosts if other != name and other not in done]
    parts = [f"it was done at {', '.join(map(repr, done))}"] if done else []
    parts += [f"not at {', '.join(map(repr, left))}"] if left else []
    return kind(f"queue {queue!r}: broker {name!r}: {error}; {', and '.join(parts)}")


def acknowledge(
    session: Session, command: commands.Ack, own: int | None,
    heard: Callable[[Answer], None] | None,
) -> None:  # fmt: skip
    """Acknowledge messages wherever they are (L13).

    own: the consumer's broker. It is asked last, because it answers for ids that no host has (L8,
    L9), and it removes what it sent meanwhile. heard: see `BrokerRequests.request`.
    """
    checked(command)
    if len(session.hosts_of(command.queue)) < 2:
        session.request(command, heard=heard)  # the queue may have moved meanwhile
        return
    if command.up_to is None:
        quiet = msgspec.structs.replace(command, quiet=True)
        removed = remove(session, quiet)
        if command.ids is None:
            return
        command = quiet if removed else command
    session.request(command, broker=own, heard=heard)


def added(answers: Sequence[Any]) -> Any:
    """Several brokers' answers as one: numbers are added, and one True is enough."""
    first = answers[0]
    if isinstance(first, bool):
        return any(answers)
    if isinstance(first, int):
        return sum(answers)
    if isinstance(first, dict):
        keys = dict.fromkeys(key for one in answers for key in one)
        return {key: added([one[key] for one in answers if key in one]) for key in keys}
    return first


def merged(parts: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Several brokers' messages as one list: each broker's order is kept, and between brokers the
    order of entry. A message on its way is shown by the broker that has it already."""
    rows = [(name, row) for name, part in parts.items() for row in part]
    if len(parts) < 2:
        return [{**row, "broker": name or None} for name, row in rows]
    there = {row["id"] for _, row in rows if row["state"] != "moving"}
    left = {
        name: [r for r in part if r["state"] != "moving" or r["id"] not in there]
        for name, part in parts.items()
    }
    out: list[dict[str, Any]] = []
    while any(left.values()):
        name = min((n for n in left if left[n]), key=lambda n: left[n][0]["entered"])
        out.append({**left[name].pop(0), "broker": name})
    return out
