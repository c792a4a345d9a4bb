"""From where on a queue's base takes plain records: what is before, an earlier base took (Q2).

The broker where a queue was made is removed. It says of each partition where it ends
(`mesh.last_reading`), and the queue's broker is its base from then on (`trails.adopt`), wherever it
reads the partition by then: it may be behind that offset, or may never have read it. The offsets
stand in a page of the queue, which goes with what reads for it: the queue itself, or its trail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..mesh.positions import Positions

if TYPE_CHECKING:
    from ..broker import Broker
    from ..phases.incoming import Incoming
    from ..queue import Queue


def points(broker: Broker, queue: Queue) -> Positions:
    """By topic and partition the first offset that is not taken yet."""
    found: Positions = broker.values.read(_key(queue)) or {} if queue.header.resumes else {}
    return found


def is_taken(broker: Broker, queue: Queue, record: Incoming) -> bool:
    """Whether an earlier base took this record."""
    if not queue.header.resumes:
        return False
    return record.offset < points(broker, queue).get(record.topic, {}).get(record.partition, 0)


def keep(broker: Broker, queue: Queue, said: Positions) -> None:
    """These are its points, or none."""
    if said or queue.header.resumes:
        queue.header.resumes = bool(said)
        broker.values.write(_key(queue), said)


def _key(queue: Queue) -> str:
    return f"E/{queue.number}"
