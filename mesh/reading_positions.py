"""The offsets from which brokers read after the home's brokers changed (M4, M5).

Each queue continues where its reader of a captured topic stopped. A broker that takes over begins
at the earliest such offset. Its other queues skip the records that they have had, up to their
*floors* (`QueueHeader.floors`). The heir reads the partitions of a removed broker's clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..protocol import topics
from ..state.queue.broker import Broker
from ..state.queue.queue import Queue
from ..state.rules.routing import captures, queues_of_record

Partition = tuple[str, int]
Offsets = dict[Partition, int]
Had = dict[tuple[str, str], Offsets]  # by VPN and queue
OF_CLIENTS = (topics.PUBLISH, topics.COMMANDS)


def what_was_had(brokers: Mapping[int, Broker], offsets: Mapping[int, Offsets]) -> Had:
    """How far each queue has read the captured topics. Both arguments are by broker number. If a
    broker has not found a topic yet, its queues have read nothing of it."""
    found: Had = {}
    places = sorted({place for one in offsets.values() for place in one})
    for number, broker in brokers.items():
        for topic, partition in places:
            offset = offsets[number].get((topic, partition), 0)
            for vpn, queue in _captured(broker, topic, partition):
                floor = queue.header.floors.get(f"{topic}/{partition}", 0)
                at = found.setdefault((vpn, queue.definition.name), {})
                at[topic, partition] = max(offset, floor, at.get((topic, partition), 0))
    return found


def of_clients(offsets: Iterable[Offsets], number: int | None = None) -> Offsets:
    """The offsets in the clients' partitions: of all brokers, from which the heir reads what a
    removed broker read; or of one, since a single broker may have read its partitions before."""

    def is_meant(topic: str, partition: int) -> bool:
        _, kind = topics.split(topic) or ("", "")
        if number is None or kind not in OF_CLIENTS:
            return kind in OF_CLIENTS
        if kind == topics.COMMANDS:
            return partition == topics.commands_partition(number)
        return partition in topics.publish_partitions(number)

    return {place: at for one in offsets for place, at in one.items() if is_meant(*place)}


def share(broker: Broker, offsets: Offsets, had: Had) -> Offsets:
    """The offsets from which a broker reads, including captured topics, for which it sets its
    queues' floors. offsets: where it was."""
    offsets = dict(offsets)
    for topic, partition in sorted({at for places in had.values() for at in places}):
        wanted: list[tuple[Queue, int]] = []
        for vpn, queue in _captured(broker, topic, partition):
            places = had.get((vpn, queue.definition.name), {})
            if (topic, partition) in places:
                wanted.append((queue, places[topic, partition]))
        if not wanted:
            continue
        start = offsets[topic, partition] = min(offset for _, offset in wanted)
        for queue, offset in wanted:
            floors, place = queue.header.floors, f"{topic}/{partition}"
            before = floors.pop(place, 0)
            if offset > start:
                floors[place] = offset
            queue.dirty = queue.dirty or before != floors.get(place, 0)
    return offsets


def _captured(broker: Broker, topic: str, partition: int) -> Iterator[tuple[str, Queue]]:
    """The queues for which a broker reads this partition of a captured topic, with their VPNs."""
    if topics.split(topic) is not None:
        return
    for vpn, queues in queues_of_record(broker, topic):
        for queue in queues:
            if captures(broker, vpn, queue, topic) and broker.mesh.reads(queue, partition):
                yield vpn, queue
