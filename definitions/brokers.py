"""The section `brokers` of a configuration, and which brokers host a queue (Q5, H4).

An entry of the section is a name, or a mapping of `name` and `group`. A queue may name a broker or
a group, so a broker and a group never have the same name. The brokers without a group count as one
group.

A `Queue` is hosted by all brokers, or by those that its `group` names directly or by their groups.
A `GroupLocalQueue` is identified by its name and one group, that of its initial owner. With a
`group_local_queue_domain` it is identified by its name and that domain instead, and spans groups:
all brokers host it, or those that `group` names. A `LocalQueue` is on one broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from ..protocol.errors import ConfigError, Problem
from . import definition_values as read
from .definition import QueueDefinition, dead_message_ring

BROKERS_MAX = 64
DEFAULT_BROKER = "broker-0"
_KEYS = {key: (key, read.broker_name) for key in ("name", "group")}


def read_brokers(section: object, report: read.ReportAt) -> tuple[tuple[str, ...], dict[str, str]]:
    """Read the brokers' names, and the groups of those that have one. Without the section there is
    one default broker. Calls report(where, key, value, allowed) for each problem."""
    if section is None:
        return (DEFAULT_BROKER,), {}
    if not isinstance(section, list | tuple) or not 1 <= len(section) <= BROKERS_MAX:
        report("", "brokers", section, f"must be a list of 1 to {BROKERS_MAX} broker names")
        return (DEFAULT_BROKER,), {}
    names: list[str] = []
    groups: dict[str, str] = {}
    for index, entry in enumerate(section):
        where = f"brokers[{index}]"
        about = entry if isinstance(entry, Mapping) else {"name": entry}
        found = read.read_keys(about, _KEYS, partial(report, where))
        if about.get("name") is None:
            report(where, "name", None, "is required: the broker's name")
        if (name := found.get("name")) is None:
            continue
        if name in names:
            report(where, "name", name, "is given twice; each broker has one name")
        names.append(name)
        if "group" in found:
            groups[name] = found["group"]
    for name, group in groups.items():
        if group in names:
            allowed = f"must not be a broker's name, as {group!r} is; a queue may name either"
            report(f"brokers[{names.index(name)}]", "group", group, allowed)
    return tuple(names), groups


# ---------------------------------------------------------------- hosts


Found = tuple[str, str | list[str], str]  # key, value, what is allowed


def hosts_of(
    queue: QueueDefinition, brokers: tuple[str, ...], groups: Mapping[str, str]
) -> tuple[str, ...]:
    """The brokers that host a queue, or that may host a `LocalQueue`. groups: the group of each
    broker that is in one."""
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
    """The problems with the brokers and groups that a definition names. allowed: the beginning of
    the sentence that lists the allowed names."""
    names = f"{allowed}: {', '.join(brokers)}"
    for key, name in (("broker", queue.broker), ("initial_owner", queue.initial_owner)):
        if name is not None and name not in brokers:
            yield key, name, names
            return
    group_names = sorted(set(groups.values()))
    either = f"{names}; or a group of them: {', '.join(group_names)}" if group_names else names
    for name in queue.group:
        if name not in brokers and name not in group_names:
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
            f"has brokers of the groups {', '.join(found)}: a GroupLocalQueue belongs to one "
            "group; with a group_local_queue_domain it spans several"
        )
        yield "group", list(queue.group), several


def check_in_home(
    queue: QueueDefinition, brokers: tuple[str, ...], groups: Mapping[str, str],
    targets_of: Callable[[str], Iterable[str | None]],
) -> None:  # fmt: skip
    """Raise ConfigError for a definition that does not fit the home's brokers and queues.
    targets_of: see `dead_message_ring`."""
    found = list(wrong_hosts(queue, brokers, groups, "allowed are the home's brokers"))
    ring = dead_message_ring(queue, targets_of)  # dead messages would come back to it (X5)
    if ring:
        found.append(("dead_message_queue", queue.dead_message_queue or "", ring))
    if found:
        raise ConfigError([Problem(f"queue {queue.name!r}", *one) for one in found])
