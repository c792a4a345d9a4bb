"""Where a queue is made (Q5).

A `Queue` is hosted by all brokers, or by its group, and a `GroupLocalQueue` by the group of its
initial owner (`definitions.hosts`). A `LocalQueue` is on one: the one that its definition names,
else that of its dead message queue, or of queues that name it as theirs, so that dead messages have
no way to go, else the one with the fewest local queues, and of these the first. So are those of a
broker that is to be removed, which move away before.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...definitions import QueueDefinition, dead_message_ring, hosts_of, wrong_hosts
from ...protocol.errors import ConfigError, LakequeueError, Problem
from ..broker import BUCKETS, Broker, bucket
from .known_places import LOADS, THERE, entries_of, find, groups_of, names_of

LOCAL = "LocalQueue"


def place(broker: Broker, definition: QueueDefinition) -> list[int]:
    """The numbers of the brokers that are to host a new queue; raises ConfigError."""
    names = names_of(broker)
    where = f"queue {definition.name!r}"
    hosts = [names[name] for name in hosts_of(definition, tuple(names), groups_of(broker))]
    parting = broker.header.parting
    if parting is not None and parting.number in hosts:
        if definition.type == LOCAL and len(hosts) > 1:
            hosts.remove(parting.number)
        elif definition.type == LOCAL or not parting.begins:
            check_stays(broker, parting.number, where)
    if definition.type != LOCAL:
        return sorted(hosts)
    dead = definition.dead_message_queue or ""
    return [_best(broker, definition.vpn, definition.name, dead, hosts, loads(broker))]


def _best(
    broker: Broker, vpn: str, name: str, dead: str, hosts: list[int], known: dict[int, int]
) -> int:
    """Of these brokers the one for a local queue; known: how many each has."""
    near = (number for number in _near(broker, vpn, name, dead) if number in hosts)
    least = min(hosts, key=lambda number: (known.get(number, 0), number))
    return next(near, least)


def check_stays(broker: Broker, number: int, where: str) -> None:
    """A broker is not about to be removed, or LakequeueError is raised."""
    parting = broker.header.parting
    if parting is not None and parting.number == number:
        name = broker.header.peers[number].name
        raise LakequeueError(
            f"{where}: broker {name!r} is being removed; name another, or try again when it is gone"
        )


def check_names(broker: Broker, definition: QueueDefinition) -> None:
    """The brokers and groups that a definition names are the home's, or ConfigError is raised."""
    names, groups = tuple(names_of(broker)), groups_of(broker)
    found = wrong_hosts(definition, names, groups, "allowed are the home's brokers")
    problems = [Problem(f"queue {definition.name!r}", *one) for one in found]
    if problems:
        raise ConfigError(problems)


def check_dead_messages(broker: Broker, definition: QueueDefinition) -> None:
    """X5: with the queues that are known, dead messages never come back to the queue, or
    ConfigError is raised."""

    def target_of(name: str) -> str | None:
        queue = broker.find(definition.vpn, name)
        if queue is not None:
            return queue.definition.dead_message_queue
        entry = find(broker, definition.vpn, name)
        return None if entry is None else entry.dead or None

    ring = dead_message_ring(definition, target_of)
    if ring:
        where, target = f"queue {definition.name!r}", definition.dead_message_queue
        raise ConfigError([Problem(where, "dead_message_queue", target, ring)])


def _near(broker: Broker, vpn: str, name: str, dead: str) -> Iterator[int]:
    """The broker where the queue's dead message queue is, and those of the queues whose it is."""
    found = find(broker, vpn, dead) if dead else None
    if found is not None and found.type == LOCAL:
        yield found.hosts[0]
    yield from ((broker.values.read(_key(vpn, name)) or {}).get(name) or {}).values()


def moves_from(
    broker: Broker, number: int, to: int | None, most: int
) -> list[tuple[str, str, int]]:
    """Local queues that are to leave a broker, some of them: VPN, name, where each is to go. That
    is where a new one would be made, a queue and its dead message queue together; to: all there."""
    stay = [n for n in names_of(broker).values() if n != number] if to is None else [to]
    known, moves = loads(broker), list[tuple[str, str, int]]()
    for vpn in sorted(broker.header.vpns):
        here = {
            name: entry for name, entry in entries_of(broker, vpn).items()
            if entry.type == LOCAL and entry.hosts == [number] and entry.state == THERE
        }  # fmt: skip
        placed: dict[str, int] = {}
        for name in here:
            line = [name]  # and the dead message queues behind it: the last one is placed first
            while (dead := here[line[-1]].dead) in here and dead not in line:
                line.append(dead)
            for one in reversed(line if len(moves) < most else ()):
                if one not in placed:
                    dead = here[one].dead
                    best = placed.get(dead)
                    if best is None:
                        best = _best(broker, vpn, one, dead, stay, known)
                    placed[one] = best
                    known[best] = known.get(best, 0) + 1
                    moves.append((vpn, one, best))
    return moves


def loads(broker: Broker) -> dict[int, int]:
    """How many local queues each broker has, by number."""
    return dict(broker.values.read(LOADS) or {})


def count(broker: Broker, vpn: str, name: str, host: int, dead: str, by: int) -> None:
    """A local queue is on a broker from now on (by: 1), or no longer (-1)."""
    known = loads(broker)
    known[host] = known.get(host, 0) + by
    broker.values.write(LOADS, {number: n for number, n in sorted(known.items()) if n})
    if not dead:
        return
    page = dict(broker.values.read(_key(vpn, dead)) or {})
    users = dict(page.pop(dead, {}))
    users.pop(name, None)
    if by > 0:
        users[name] = host
    if users:
        page[dead] = users
    broker.values.write(_key(vpn, dead), page)


def count_anew(broker: Broker) -> None:
    """Count what stands in the directory: this broker keeps it from now on."""
    forget_counts(broker)
    for vpn in sorted(broker.header.vpns):
        for name, entry in entries_of(broker, vpn).items():
            if entry.type == LOCAL and entry.hosts:
                count(broker, vpn, name, entry.hosts[0], entry.dead, 1)


def forget_counts(broker: Broker) -> None:
    """Another broker keeps the directory, and counts."""
    users = [_page(vpn, n) for vpn in sorted(broker.header.vpns) for n in range(BUCKETS)]
    for key in (LOADS, *users):
        if broker.values.read(key) is not None:
            broker.values.write(key, None)


def _key(vpn: str, dead: str) -> str:
    return _page(vpn, bucket(dead))


def _page(vpn: str, number: int) -> str:
    return f"Z/{vpn}/{number}"
