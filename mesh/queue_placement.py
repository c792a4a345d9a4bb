"""The placement of queues on brokers (Q5, M1).

A `Queue` is hosted by all brokers, or by its group; a `GroupLocalQueue` by the group of its initial
owner (`definitions.hosts_of`). A `LocalQueue` is on one, and so is whatever has an order that needs
one place: the broker that its definition names, else that of its dead message queue or of the queue
whose dead message queue it is, else the one that hosts the fewest such queues (M1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ..definitions import QueueDefinition, hosts_of
from ..protocol.errors import ConfigError, Problem
from .facts import Entry, MeshFacts, entry_of


def needs_one_host(definition: QueueDefinition) -> bool:
    """Whether a queue must have one host to keep its order (M1)."""
    ordered = definition.barrier_expression is not None or definition.partition_key is not None
    return ordered or definition.type == "LocalQueue"


def check_move(
    definition: QueueDefinition, to: str, brokers: tuple[str, ...], groups: Mapping[str, str]
) -> None:
    """Raise ConfigError for a queue that cannot move to this broker."""
    name = definition.name
    problem = f"queue {name!r}", "broker", to
    if to not in brokers:
        allowed = f"allowed are the home's brokers: {', '.join(brokers)}"
        raise ConfigError([Problem(*problem, allowed)])
    if not needs_one_host(definition) or definition.initial_owner is not None:
        raise ConfigError(f"queue: {name!r} – is a {definition.type}; only a LocalQueue can move")
    if definition.type != "LocalQueue":
        may = hosts_of(definition, brokers, groups)
        if to not in may:
            raise ConfigError([Problem(*problem, f"allowed is its group: {', '.join(may)}")])


class QueuePlacement:
    """The counts over all queues that placing a new one needs, kept up to date. loads: how many
    queues with one host each broker has; dying: the names of queues by VPN and dead message
    queue."""

    def __init__(self, facts: MeshFacts) -> None:
        self._facts = facts
        self.loads: Counter[int] = Counter()
        self.dying: dict[tuple[str, str], set[str]] = {}
        for (vpn, name), entry in facts.queues():
            self.change(vpn, name, None, entry)

    def change(self, vpn: str, name: str, before: Entry | None, after: Entry | None) -> None:
        """Update the counts for a queue's change. None: it did not exist, or was deleted."""
        for entry, n in ((before, -1), (after, 1)):
            if entry is None or entry.bridge is not None:
                continue
            if len(entry.hosts) == 1:
                self.loads[entry.hosts[0]] += n
            target = entry.definition.dead_message_queue
            if target and n > 0:
                self.dying.setdefault((vpn, target), set()).add(name)
            elif target:
                self.dying[vpn, target].discard(name)

    def hosts(self, vpn: str, definition: QueueDefinition) -> list[int]:
        """The numbers of the brokers that host a new queue."""
        facts = self._facts
        names = hosts_of(definition, tuple(facts.brokers), facts.groups)
        numbers = sorted(facts.brokers[name] for name in names)
        if not needs_one_host(definition):
            return numbers
        if definition.initial_owner is not None:
            return [facts.brokers[definition.initial_owner]]
        beside = [entry_of(facts, vpn, definition.dead_message_queue or "")]
        for name in sorted(self.dying.get((vpn, definition.name), ())):  # it is their DMQ
            beside.append(entry_of(facts, vpn, name))
        for one in beside:
            if one is not None and len(one.hosts) == 1 and one.hosts[0] in numbers:
                return one.hosts
        return [min(numbers, key=lambda number: (self.loads[number], number))]
