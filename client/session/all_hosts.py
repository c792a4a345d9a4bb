"""What is said to every broker that hosts a queue, and what they answer, added up (Q5, H4, R6).

Each host of a distributed queue owns some of its messages, and carries out what it is told of
these. So what means a queue's messages, or the queue itself, is said to all its hosts, one after
the other. Before an administrator changes anything all of them have to be there; should one not
answer then, or when a consumer acknowledges, the error says where it was done and where not. What
is on its way from one broker to another at that moment is at neither, and may be missed: who wants
to be sure says it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...protocol import ConfigError, LakequeueError, Timeout, commands
from ...protocol.checked import checked
from .session import Session

AWAY = ("failed", "restarting")


def change(session: Session, command: Any) -> Any:
    """Have a change of a queue carried out by all its hosts; their answers added up. Raises
    LakequeueError, ConfigError and Timeout."""
    hosts = session.hosts_of(checked(command).queue)
    if len(hosts) < 2:
        return session.request(command)
    if not isinstance(command, commands.Ack):  # what is acknowledged is done, wherever it can be
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
    """Have all hosts remove messages; how many went. What is removed at one makes room for its
    consumers, and so what another has may come there in the meantime: they are asked again until
    none has anything left, or as often as there are hosts."""
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
    queue = command.queue
    states = {one["name"]: one["state"] for one in session.brokers()}
    for name in hosts:
        if states.get(name) in AWAY:
            raise LakequeueError(
                f"queue {queue!r}: broker {name!r} hosts it too, and is {states[name]}; nothing "
                "was changed"
            )
    if isinstance(command, commands.Move):
        there = session.hosts_of(command.to)
        missing = [name for name in hosts if there and name not in there]
        if missing:
            raise ConfigError(
                f"to: {command.to!r} – is not on broker {missing[0]!r}, which hosts {queue!r}; "
                "messages move within a broker, to a queue that all hosts have"
            )


def _half_done(
    queue: str, name: str, error: LakequeueError, hosts: dict[str, int], done: dict[str, Any]
) -> LakequeueError:
    """The error of one host, with what became of it at the others."""
    kind = Timeout if isinstance(error, Timeout) else LakequeueError
    left = [other for other in hosts if other != name and other not in done]
    parts = [f"it was done at {', '.join(map(repr, done))}"] if done else []
    parts += [f"not at {', '.join(map(repr, left))}"] if left else []
    return kind(f"queue {queue!r}: broker {name!r}: {error}; {', and '.join(parts)}")


def acknowledge(
    session: Session, command: commands.Ack, own: int | None, heard: Callable[[], None] | None
) -> None:
    """Acknowledge what a command names, whoever of the queue's hosts has it (L13). own: the
    consumer's broker. It is asked last: what none of them has is for it to say (L8, L9), and what
    it sent this consumer while the others were asked it removes now.
    heard: see `BrokerRequests.request`.
    """
    checked(command)
    if len(session.hosts_of(command.queue)) < 2:
        session.request(command, heard=heard)  # the queue may have moved since
        return
    if command.up_to is None:
        quiet = msgspec.structs.replace(command, quiet=True)
        removed = remove(session, quiet)
        if command.ids is None:
            return
        command = quiet if removed else command
    session.request(command, broker=own, heard=heard)


def added(answers: Sequence[Any]) -> Any:
    """The answers of several brokers as one: numbers are added, of truths one is enough."""
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
    """What brokers, by name, show of their messages, as one list: in the order of each, and between
    brokers by when a message entered. What is on its way is shown by who has it already."""
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
