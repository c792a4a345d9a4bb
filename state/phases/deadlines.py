"""Deadlines: expiry, ends of leases and delays, late transport acks (L4, L11, L12, X1–X3, C2).

What is due is acted on before delivery in every step. Expiry comes first: a message whose lease and
whose life end together has expired. What a step's budget leaves is due in the next one; until then
delivery passes over what has expired (`delivery`), so nothing goes out after its time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...protocol.errors import Reason
from .. import producers
from ..commands.sessions import lost
from ..limits import Budget
from ..mesh.verdicts import ask_again
from ..message import DELAYED, GONE, LEASED, Event, apply
from ..message.pages import QueuePage
from ..message.returning import give_back
from ..rules.deferred import forget
from ..storage import Array
from .delivery import send_again

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue


def act_on_deadlines(broker: Broker) -> None:
    """Act on what is due: of queues, sessions and producers in the calendar, and of all queues in
    use. What is due for longest comes first; the budget is shared out over the queues."""
    for name in broker.calendar.due(broker.now, broker.limits.due_names):
        if name[0] == "s":
            lost(broker, name)
        elif name[0] == "p":
            producers.forget(broker, name)
        elif name[0] == "o":
            ask_again(broker, name)
        else:
            broker.queue(int(name[1:]))
    budget = Budget(broker.limits.due_rows)
    again = Budget(broker.limits.again_rows, broker.limits.again_bytes)
    done: set[int] = set()
    while due := [q for q in broker.active() if q.number not in done]:
        for at, queue in enumerate(due):
            done.add(queue.number)
            broker.at = queue
            share = Budget(max(budget.rows // (len(due) - at), 1))
            before = share.rows
            _of_queue(broker, queue, share)
            budget.take(before - share.rows)
            send_again(broker, queue, again)


def _of_queue(broker: Broker, queue: Queue, budget: Budget) -> None:
    now, header = broker.now, queue.header
    forget(queue, now, budget)
    if header.again:
        queue.wanted = True
    for number in queue.directory.due(now) if queue.is_due(now) else ():
        if budget.spent:
            break
        page = queue.page(number)
        assert page is not None
        _of_page(broker, queue, page, budget)


def _of_page(broker: Broker, queue: Queue, page: QueuePage, budget: Budget) -> None:
    """Rows of one page that are due, as many as the budget allows."""
    now, used = broker.now, page.used
    states = page.state[:used]
    expired = _first((states != GONE) & (page.expires[:used] <= now), page, budget)
    apply(broker, queue, expired, Event.EXPIRE, reason=Reason.EXPIRED.value)
    over = page.until[:used] <= now
    ended = _first(over & (page.state[:used] == LEASED), page, budget)
    give_back(broker, queue, ended, Event.LEASE_END)
    ready = _first(over & (page.state[:used] == DELAYED), page, budget)
    apply(broker, queue, ready, Event.DUE)
    queue.changed(page)


def _first(mask: Array, page: QueuePage, budget: Budget) -> Array:
    rows = np.flatnonzero(mask)[: max(budget.rows, 0)]
    budget.take(len(rows))
    return rows.astype(np.int64) + page.base
