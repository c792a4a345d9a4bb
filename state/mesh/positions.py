"""Up to where this broker has read captured topics (Q2): of each partition, the next offset.

The loop knows it too, but only what stands in the state can be said to other brokers. A partition
of which no record was read does not stand here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..broker import BUCKETS, bucket

if TYPE_CHECKING:
    from ..broker import Broker
    from ..phases.incoming import Incoming

Positions = dict[str, dict[int, int]]  # by topic and partition


def note(broker: Broker, record: Incoming) -> None:
    """A record was read; `keep` writes it down, once in a step."""
    broker.read_to[record.topic, record.partition] = record.offset + 1


def keep(broker: Broker) -> None:
    """Write down what was read since the last time."""
    pages: dict[int, Positions] = {}
    for (topic, partition), offset in broker.read_to.items():
        number = bucket(topic)
        page = pages.get(number)
        if page is None:
            page = pages[number] = dict(broker.values.read(_key(number)) or {})
        page[topic] = {**page.get(topic, {}), partition: offset}
    broker.read_to.clear()
    for number, page in pages.items():
        broker.values.write(_key(number), page)


def read_to(broker: Broker, topic: str) -> dict[int, int]:
    """Of one topic."""
    found: dict[int, int] = (broker.values.read(_key(bucket(topic))) or {}).get(topic, {})
    return found


def all_read(broker: Broker) -> Positions:
    """Of all topics; reads every bucket."""
    found: Positions = {}
    for number in range(BUCKETS):
        found |= broker.values.read(_key(number)) or {}
    return dict(sorted(found.items()))


def _key(number: int) -> str:
    return f"O/{number}"
