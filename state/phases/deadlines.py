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
from ..rules.dead import afford_deaths
from ..rules.returned_leases import expire, give_back
from ..storage.row import DELAYED, LEASED
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
    limits = broker.limits
    budget = Budget(broker.part(limits.due_rows), broker.part(limits.bulk_bytes))
    again = Budget(limits.again_rows, limits.again_bytes)
    for at, queue in enumerate(due):
        if queue.header.deleted or queue.header.faulted:
            continue
        broker.at = queue
        broker.touch(queue)
        n = len(due) - at
        share = Budget(max(budget.rows // n, 1), max(budget.bytes // n, 1), budget)
        if queue.early.next_end() <= broker.now:
            share.take(queue.early.remove_over(broker.now, share.rows))
        while not share.spent and _handle_rows(broker, queue, share):
            pass
        send_again(broker, queue, again)
    broker.at = None


def _handle_rows(broker: Broker, queue: Queue, budget: Budget) -> bool:
    """Handle some rows with passed deadlines; returns whether there were any."""
    now = broker.now
    rows = queue.due(now, budget)
    over = [row for row in rows if row.expires <= now or row.state == LEASED]
    over = over[: afford_deaths(broker, queue, over, budget)]
    expire(broker, queue, [row for row in over if row.expires <= now])
    give_back(broker, queue, [row for row in over if row.state == LEASED], Event.LEASE_END)
    due = [row for row in rows if row.state == DELAYED and row.expires > now]
    apply(broker, queue, due, Event.DUE)
    for row in rows:  # it has yet to expire, or was too much for the budget
        if row.id in queue.live:
            queue.watch(row)
    return bool(rows)
