"""What keeps memory and store near what lives: spilling, merging, emptying of blocks (S8, R5).

Nobody waits for it, so a step does a little of it, and asks for the next one while there is more.
"""

from __future__ import annotations

from ..queue.broker import Broker
from ..queue.queue import Queue
from ..storage.row import Row
from ..storage.runs import Runs
from ..storage.spool import BlockInfo


def tidy(broker: Broker) -> None:
    """As much as one step may."""
    for _, queue in sorted(broker.touched.items()):
        if not queue.dropped:
            queue.spill_over()
            for runs in (queue.cold, queue.later):
                if runs.merge(broker.limits.due_rows):
                    broker.more_to_do = True
                    queue.dirty = True
    if broker.spool.held_in_memory() > broker.limits.memory_bytes:
        _settle(broker)
    block = broker.spool.emptiest("spool_files" in broker.header.alerts)
    if block is not None and _empty(broker, block):
        broker.more_to_do = True


def _settle(broker: Broker) -> None:
    """Contents go into blocks before a mark finds them: there are too many bytes of them."""
    for _, queue in sorted(broker.queues.items()):
        if not queue.dropped and queue.is_awake:
            queue.dirty = True
            queue.settle()


def _empty(broker: Broker, block: BlockInfo) -> bool:
    """Move what lives in a block into new ones; whether something was moved. A step does one block,
    of about a megabyte."""
    moved = False
    ids = [(block.id_first, block.id_last)]
    for _, queue in sorted(broker.queues.items()):
        if queue.dropped or not queue.header.depth:
            continue
        rows = [row for row in queue.live.values() if row.block == block.number]
        if rows:
            broker.spool.move(rows)
            moved = queue.dirty = True
        for runs in (queue.cold, queue.later):
            moved = _empty_cold(broker, queue, runs, ids, block.number) or moved
    return moved


def _empty_cold(
    broker: Broker, queue: Queue, runs: Runs, ids: list[tuple[int, int]], number: int
) -> bool:
    moved = False
    for segment in runs.with_ids(ids) if runs.rows else ():
        rows = runs.read(segment)
        own: list[Row] = [row for row in rows if row.block == number]
        if own:
            broker.spool.move(own)
            runs.replace(segment, rows)
            moved = queue.dirty = True
    return moved
