"""A change of a home at rest, and the directory after it (M1, M4).

An added broker hosts the distributed queues that the definitions give it. No other queue moves to
it; `move-queue` does that. When a broker is removed, each of its queues with one host goes where a
new one would be placed, together with its dead message queue, or all of them go to one broker.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..definitions import QueueDefinition, hosts_of, wrong_hosts
from ..protocol.errors import ConfigError, LakequeueError, Problem, no_such_queue
from ..state.queue.broker import Broker
from .bridges.endpoint import entries_of
from .facts import Entry, MeshFacts
from .mesh import Mesh
from .queue_placement import QueuePlacement, check_move, needs_one_host

Directory = dict[tuple[str, str], Entry]  # by VPN and queue


class NotAtRest(LakequeueError):
    """Messages or commands are in transit between brokers."""


class HomeChange(msgspec.Struct):
    """A change of the home. brokers: the numbers of all brokers by name; groups: the group of each
    broker that is in one; to: the broker that gets all queues with one host of removed brokers,
    empty: each is placed like a new one; moves: new hosts of queues, by VPN and name."""

    brokers: dict[str, int]
    groups: dict[str, str] = {}
    to: str = ""
    moves: dict[tuple[str, str], str] = {}


def facts_of(broker: Broker) -> MeshFacts:
    """A broker's facts about the others."""
    assert isinstance(broker.mesh, Mesh)
    return broker.mesh.facts


def directory_of(brokers: Mapping[int, Broker]) -> Directory:
    """The directory before the change. A single broker has none, so it is made from its queues."""
    keeper = brokers[min(brokers)]
    found = dict(facts_of(keeper).queues()) or entries_of(keeper)
    for broker in brokers.values():
        for (vpn, name), queue in broker.names.items():
            if (vpn, name) not in found and not queue.header.stands_for:
                found[vpn, name] = Entry(
                    queue.definition, [broker.header.number], list(queue.header.topics),
                    ingress=queue.header.ingress, egress=queue.header.egress,
                )  # fmt: skip
    return dict(sorted(found.items()))


def check_moves(brokers: Mapping[int, Broker], before: Directory, change: HomeChange) -> None:
    """Raise ConfigError or NotAtRest for a queue that cannot move now."""
    for (vpn, name), to in change.moves.items():
        entry = before.get((vpn, name))
        if entry is None:
            raise no_such_queue(name, vpn)
        if entry.bridge is not None:
            raise ConfigError(f"queue: {name!r} – is the endpoint of a bridge and cannot move")
        check_move(entry.definition, to, tuple(change.brokers), change.groups)
        for broker in brokers.values():
            queue = broker.find(vpn, name)
            if queue is not None and queue.header.faulted:
                raise ConfigError(
                    f"queue {name!r}: failed ({queue.header.faulted}); define it again"
                )
            if queue is not None and queue.number in broker.header.pending:
                raise NotAtRest(f"a command for queue {name!r} is being carried out")


def new_directory(before: Directory, change: HomeChange) -> Directory:
    """The directory after the change. Raises ConfigError if a definition names a removed
    broker."""
    new = _NewDirectory(before, change)
    numbers = set(change.brokers.values())
    staying = [key for key, entry in before.items() if numbers & set(entry.hosts)]
    for key in dict.fromkeys((*staying, *before)):
        new.assign(key)
    if new.problems:
        raise ConfigError(new.problems)
    return dict(sorted(new.found.items()))


class _NewDirectory:
    """The new directory, queue by queue. problems: of definitions that name a removed broker."""

    def __init__(self, before: Directory, change: HomeChange) -> None:
        self._before, self._change = before, change
        self._names = {number: name for name, number in change.brokers.items()}
        self._facts = MeshFacts(brokers=change.brokers, groups=change.groups)
        self._placed = QueuePlacement(self._facts)
        self.found: Directory = {}
        self.problems: list[Problem] = []

    def assign(self, key: tuple[str, str]) -> None:
        """Choose the hosts of a queue; of its dead message queue first."""
        if key in self.found or key not in self._before:
            return
        change, (vpn, name) = self._change, key
        entry = self._before[key]
        definition = entry.definition
        stays = [number for number in entry.hosts if number in self._names]
        if definition.broker is not None and not stays:
            definition = _at(definition, change.to or None)
        elif definition.broker is not None and definition.broker not in change.brokers:
            definition = _at(definition, self._names[stays[0]])  # it has moved
        allowed = "change or delete it before; allowed are the brokers that stay"
        wrong = list(wrong_hosts(definition, tuple(change.brokers), change.groups, allowed))
        self.problems.extend(Problem(f"queue {name!r}", *one) for one in wrong)
        if wrong:
            return
        if not needs_one_host(definition):
            hosts = self._placed.hosts(vpn, definition)
        else:
            hosts = stays[:1] or self._hosts_anew(vpn, definition)
            if not stays and entry.definition.broker is not None:
                definition = _at(definition, self._names[hosts[0]])
            if to := change.moves.get(key):
                hosts = [change.brokers[to]]
        new = msgspec.structs.replace(entry, definition=definition, hosts=hosts)
        self.found[key] = self._facts.entries.setdefault(vpn, {})[name] = new
        self._placed.change(vpn, name, None, new)

    def _hosts_anew(self, vpn: str, definition: QueueDefinition) -> list[int]:
        """The host of a queue whose broker is removed."""
        change = self._change
        if definition.dead_message_queue:
            self.assign((vpn, definition.dead_message_queue))
        to = change.brokers.get(change.to)
        names = hosts_of(definition, tuple(change.brokers), change.groups)
        if to is not None and to in [change.brokers[name] for name in names]:
            return [to]
        return self._placed.hosts(vpn, definition)


def _at(definition: QueueDefinition, broker: str | None) -> QueueDefinition:
    """A definition that names another broker."""
    return msgspec.structs.replace(definition, broker=broker)
