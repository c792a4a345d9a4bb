"""After a rebuild: who held a message holds it no longer, and deliveries count from nothing (R3).

A state that was made again from what was written down is older than the one that was lost. Whoever
got a message since, or lost it since, is not known; so every lease ends, and as nobody can say how
often a message was delivered in the meantime, nobody counts what was before.
"""

from __future__ import annotations

from ...protocol.commands import BeginAgain
from ..broker import Broker
from ..limits import Budget
from ..message import LEASED, Event, apply
from ..queue import Queue
from .task import Task

WHY = "rebuilt"


def begin_again(
    broker: Broker, queue: Queue, task: Task, command: BeginAgain, budget: Budget
) -> bool:
    """Carry out the command, over as many steps as it takes; answers how many leases ended."""
    end = task.done.setdefault("end", queue.header.next_seq)
    while not budget.spent:
        page, rows = next(iter(queue.live_rows(task.cursor)), (None, None))
        if page is None or rows is None or page.base >= end:
            task.result = task.done.get("n", 0)
            return True
        budget.take(len(rows) + 1)
        page.deliveries[rows] = 0
        page.cancels[rows] = 0
        queue.changed(page)
        task.cursor = (page.number + 1) << queue.bits
        seqs = rows[page.state[rows] == LEASED].astype("int64") + page.base
        apply(broker, queue, seqs, Event.RETURN, reason=WHY)
        task.done["n"] = task.done.get("n", 0) + len(seqs)
    return False
