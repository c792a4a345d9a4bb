"""Where a queue is made (Q5).

A `Queue` is hosted by all brokers, or by its group, and a `GroupLocalQueue` by the group of its
initial owner (`definitions.hosts`). A `LocalQueue` is on one: the one that its definition names,
else that of its dead message queue, or of queues that name it as theirs, else the one with the
fewest local queues, and of these the first. Dead messages do not leave a broker, so a local queue
and its local dead message queue are on the same.
"""

from __future__ import annotations

from ...definitions import QueueDefinition, hosts_of, wrong_hosts
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
    tied, why = _tied(broker, definition)
    if tied is None:
        return [min(hosts, key=lambda number: (loads(broker).get(number, 0), number))]
    if tied not in hosts:
        there = next(name for name, number in names.items() if number == tied)
        allowed = f"must be {there!r}: {why}, and dead messages do not leave a broker"
        raise ConfigError([Problem(where, "broker", definition.broker, allowed)])
    return [tied]


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


def check_dead_messages(broker: Broker, definition: QueueDefinition, hosts: list[int]) -> None:
    """Each host of a queue has its dead message queue, if that is there, or ConfigError is raised:
    dead messages do not leave a broker."""
    vpn, dead = definition.vpn, definition.dead_message_queue
    found = find(broker, vpn, dead) if dead else None
    if found is None or set(hosts) <= set(found.hosts):
        return
    there = ", ".join(repr(name) for name, n in names_of(broker).items() if n in found.hosts)
    here = ", ".join(repr(name) for name, n in names_of(broker).items() if n in hosts)
    allowed = (
        f"must be on all brokers of the queue, {here}, and is on {there}: dead messages do not "
        "leave a broker"
    )
    raise ConfigError([Problem(f"queue {definition.name!r}", "dead_message_queue", dead, allowed)])


def _tied(broker: Broker, definition: QueueDefinition) -> tuple[int | None, str]:
    """The broker where the queue's dead message queue is, or the queues whose it is; and why."""
    vpn, dead = definition.vpn, definition.dead_message_queue
    found = find(broker, vpn, dead) if dead else None
    if found is not None and found.type == LOCAL:
        return found.hosts[0], f"its dead message queue {dead!r} is a LocalQueue there"
    wanted = (broker.values.read(_key(vpn, definition.name)) or {}).get(definition.name)
    if wanted:
        return next(iter(wanted.values())), f"it is the dead message queue of {min(wanted)!r} there"
    return None, ""


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


def users_of(broker: Broker, vpn: str, name: str) -> dict[str, int]:
    """The local queues whose dead message queue this is, each with its broker."""
    return dict((broker.values.read(_key(vpn, name)) or {}).get(name) or {})


def _key(vpn: str, dead: str) -> str:
    return f"Z/{vpn}/{bucket(dead)}"
