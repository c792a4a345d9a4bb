"""Where a queue is made (Q5).

A `Queue` is hosted by all brokers, or by its group, and a `GroupLocalQueue` by the group of its
initial owner (`definitions.hosts`). A `LocalQueue` is on one: the one that its definition names,
else that of its dead message queue, or of queues that name it as theirs, so that dead messages have
no way to go, else the one with the fewest local queues, and of these the first.
"""

from __future__ import annotations

from ...definitions import QueueDefinition, dead_message_ring, hosts_of, wrong_hosts
from ...protocol.errors import ConfigError, LakequeueError, Problem
from ..broker import Broker, bucket
from .known_places import LOADS, find, groups_of, names_of

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
        else:
            check_stays(broker, parting.number, where)
    if definition.type != LOCAL:
        return sorted(hosts)
    near = _near(broker, definition)
    if near in hosts:
        return [near]
    return [min(hosts, key=lambda number: (loads(broker).get(number, 0), number))]


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


def _near(broker: Broker, definition: QueueDefinition) -> int | None:
    """The broker where the queue's dead message queue is, or the queues whose it is; None: there is
    none."""
    vpn, dead = definition.vpn, definition.dead_message_queue
    found = find(broker, vpn, dead) if dead else None
    if found is not None and found.type == LOCAL:
        return found.hosts[0]
    wanted = (broker.values.read(_key(vpn, definition.name)) or {}).get(definition.name)
    return next(iter(wanted.values())) if wanted else None


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


def _key(vpn: str, dead: str) -> str:
    return f"Z/{vpn}/{bucket(dead)}"
