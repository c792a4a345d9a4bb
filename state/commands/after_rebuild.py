"""After a rebuild: who held a message holds it no longer, and deliveries count from nothing (R3).

A state that was made again from what was written down is older than the one that was lost. Whoever
got a message since, or lost it since, is not known; so every lease ends, and as nobody can say how
often a message was delivered in the meantime, nobody counts what was before.
"""

from __future__ import annotations

from ...protocol.commands import BeginAgain
from ..limits import Budget
from ..queue.broker import Broker
from ..queue.change import apply
from ..queue.header import Task
from ..queue.queue import Queue
from ..queue.table import Event
from ..rules.command_targets import wanted
from ..storage.row import LEASED

WHY = "rebuilt"


def begin_again(
    broker: Broker, queue: Queue, task: Task, command: BeginAgain, budget: Budget
) -> bool:
    """Carry out the command, over as many steps as it takes; answers how many leases ended."""
    part = wanted(broker, queue, task, None, None, budget, thaw=False)
    for row in part.rows:
        row.deliveries = row.cancels = 0
    part.write_back(queue)
    for row in part.rows:
        if row.lane and row.id in queue.live:  # nothing of its lane is under way (O4)
            queue.ready.changed(row)
    held = [row for row in part.rows if row.state == LEASED]
    apply(broker, queue, held, Event.RETURN, reason=WHY)
    broker.touch(queue)
    task.done["n"] = task.done.get("n", 0) + len(held)
    task.result = task.done["n"]
    return part.last
