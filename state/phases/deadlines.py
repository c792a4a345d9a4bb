"""Deadlines: expiry, ends of leases and delays, late transport acks (L4, L11, L12, X1–X3, C2).

Every step handles passed deadlines before delivery. Expiry comes first: if a message's lease and
its time to live end together, it has expired. If the budget ends, the next step goes on. Until then
delivery skips expired messages (`selection`), so none is delivered after its time.
"""

from __future__ import annotations

from ..commands.sessions import end_lost
from ..limits import Budget
from ..queue.broker import Broker
from ..queue.change import apply
from ..queue.queue import Queue
from ..queue.table import Event
from ..rules.after_entry import forget_early_acks
from ..rules.returned_leases import expire, give_back
from ..storage.row import DELAYED, LEASED, NEVER
from .delivery import send_again


def act_on_deadlines(broker: Broker) -> None:
    """Handle passed deadlines, the longest overdue first. The queues share the budget."""
    for kind, name in broker.due_names(broker.limits.due_names):
        if kind == "s":
            end_lost(broker, name)
        else:
            broker.forget_producer(name)
    due = broker.due_queues(broker.limits.due_names)
    if not due:
        return
    budget = Budget(broker.part(broker.limits.due_rows))
    again = Budget(broker.limits.again_rows, broker.limits.again_bytes)
    for at, queue in enumerate(due):
        if queue.header.deleted or queue.header.faulted:
            continue
        broker.at = queue
        broker.touch(queue)
        share = Budget(max(budget.rows // (len(due) - at), 1), whole=budget)
        forget_early_acks(queue, broker.now, share)
        while not share.spent and _handle_rows(broker, queue, share):
            pass
        send_again(broker, queue, again)
    broker.at = None


def _handle_rows(broker: Broker, queue: Queue, budget: Budget) -> bool:
    """Handle some rows with passed deadlines; returns whether there were any."""
    now = broker.now
    rows = queue.due(now, budget)
    expire(broker, queue, [row for row in rows if row.expires <= now])
    over = [row for row in rows if row.until <= now]
    give_back(broker, queue, [r for r in over if r.state == LEASED], Event.LEASE_END)
    apply(broker, queue, [row for row in over if row.state == DELAYED], Event.DUE)
    for row in rows:  # its lease ended, but it has yet to expire
        if row.id in queue.live and row.expires != NEVER:
            queue.watch(row)
    return bool(rows)
