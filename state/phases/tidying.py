"""Housekeeping of memory and store: spilling, merging and compaction (S8, R5).

No client waits for it. So a step does a little, and asks for the next step while there is more.
"""

from __future__ import annotations

from ..queue.broker import Broker
from ..queue.queue import Queue


def tidy(broker: Broker, queues: list[Queue]) -> None:
    """Do one step's share. queues: the touched ones, in order."""
    header, spool = broker.header, broker.spool
    merging = header.merging
    if merging:
        header.merging = []
        numbers = sorted({*merging, *broker.touched})
        queues = [queue for n in numbers if (queue := broker.queue(n)) is not None]
    for queue in queues:
        if not queue.dropped and not queue.header.faulted:
            broker.at = queue
            queue.spill_over()
            if queue.cold.rows or queue.later.rows or queue.number in merging:
                _tidy_cold(broker, queue)
    broker.at = None
    if spool.memory_used() > broker.limits.memory_bytes:
        broker.write_contents(max(broker.limits.live_rows, 2 * broker.came_in))
    if spool.compact("spool_files" in header.alerts):
        broker.more_to_do = True


def _tidy_cold(broker: Broker, queue: Queue) -> None:
    """Go on with a queue's merges."""
    if queue.thaw_delayed():
        broker.touch(queue)
        broker.more_to_do = True
    for runs in (queue.cold, queue.later):
        if runs.is_merging:
            queue.dirty = True
            if runs.merge(broker.part(broker.limits.merge_rows)):
                broker.header.merging.append(queue.number)
                broker.more_to_do = True
