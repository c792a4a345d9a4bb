"""Which brokers host a queue (Q5, H4).

Brokers may be in groups: the configuration says so, a broker is in one or in none, and those that
are in none count as one group. A `Queue` is hosted by all brokers, or by those that its `group`
names, themselves or by their groups. A `GroupLocalQueue` is its name and one group: that of its
initial owner. With a `group_local_queue_domain` it is its name and that domain, and reaches over
groups: then it is hosted by all brokers, or by those that `group` names. A `LocalQueue` is on one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .definition import QueueDefinition

Found = tuple[str, str | list[str], str]  # key, value, what is allowed


def hosts_of(
    queue: QueueDefinition, brokers: tuple[str, ...], groups: Mapping[str, str]
) -> tuple[str, ...]:
    """Those of the brokers that host a queue; of a `LocalQueue` those that may. groups: of the
    brokers that are in one."""
    if queue.type == "LocalQueue":
        return brokers if queue.broker is None else (queue.broker,)
    if queue.group:
        named = set(queue.group)
        return tuple(b for b in brokers if not named.isdisjoint((b, groups.get(b))))
    if queue.type == "GroupLocalQueue" and queue.group_local_queue_domain is None:
        own = groups.get(queue.initial_owner or "")
        return tuple(b for b in brokers if groups.get(b) == own)
    return brokers


def wrong_hosts(
    queue: QueueDefinition, brokers: tuple[str, ...], groups: Mapping[str, str], allowed: str
) -> Iterator[Found]:
    """What is wrong with the brokers and groups that a definition names. allowed: who may be named,
    in words that end before the names."""
    names = f"{allowed}: {', '.join(brokers)}"
    for key, name in (("broker", queue.broker), ("initial_owner", queue.initial_owner)):
        if name is not None and name not in brokers:
            yield key, name, names
            return
    known = sorted(set(groups.values()))
    either = f"{names}; or a group of them: {', '.join(known)}" if known else names
    for name in queue.group:
        if name not in brokers and name not in known:
            yield "group", name, either
            return
    if queue.type != "GroupLocalQueue":
        return
    hosts = hosts_of(queue, brokers, groups)
    if queue.initial_owner not in hosts:
        hosting = f"must be one of the queue's group: {', '.join(hosts)}"
        yield "initial_owner", queue.initial_owner or "", hosting
    found = sorted({repr(groups.get(name, "")) for name in hosts})
    if len(found) > 1 and queue.group_local_queue_domain is None:
        several = (
            f"has brokers of the groups {', '.join(found)}: a GroupLocalQueue is its name and one "
            "group; a group_local_queue_domain makes one queue of several"
        )
        yield "group", list(queue.group), several
