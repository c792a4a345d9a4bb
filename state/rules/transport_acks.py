"""Transport acks: a client confirms what has arrived; the broker sends the rest again (C1, C2).

The messages of a subscription with transport acks are numbered from 1 in the order in which they
are sent: its *flow*. The client confirms the highest number up to which everything has arrived
(`confirm`). That removes nothing from the queue. The broker keeps one entry per step instead of one
per message: the last number, the time, and the range of delivery numbers. When the oldest entry has
waited for `WAIT_MS`, the broker sends the messages of its ranges that are still leased again, under
new numbers. `base` tells the client that lower numbers will not come any more. A range may include
messages that had arrived; the client drops those.

A busy engine is late, and needless repetitions make it later. So it waits at least twice as long as
the last confirmation took, and doubles the wait with each repetition. Messages without a lease
(at-most-once, barriers) leave the queue when they are sent and have no number.
"""

from __future__ import annotations

from itertools import islice

from ..queue.header import Subscription
from ..queue.queue import Queue
from ..storage.ranges import union
from ..storage.row import Row

WAIT_MS = 2_000
WAIT_MS_MAX = 60_000
ENTRIES_MAX = 16


def number(subscription: Subscription, rows: list[Row], now: int) -> tuple[int, int]:
    """Number messages that are sent now and leased already; returns base and the first number."""
    first = subscription.sent + 1
    subscription.sent += len(rows)
    entries = subscription.unconfirmed
    if subscription.held <= len(rows):  # everything sent before is settled
        entries.clear()
        subscription.base = first
    numbers = [row.number for row in rows]
    entry = [subscription.sent, now, min(numbers), max(numbers)]
    if entries and entries[-1][1] == now:
        entry = _joined(entries.pop(), entry)
    entries.append(entry)
    if len(entries) > ENTRIES_MAX:
        entries[:2] = [_joined(entries[0], entries[1])]
    return subscription.base, first


def _joined(earlier: list[int], later: list[int]) -> list[int]:
    return [later[0], earlier[1], min(earlier[2], later[2]), max(earlier[3], later[3])]


def confirm(subscription: Subscription, received: int, now: int) -> None:
    """Note that everything up to the number ``received`` has arrived."""
    entries = subscription.unconfirmed
    if entries and entries[0][0] <= received:
        took = now - entries[0][1]
        subscription.patience = min(max(WAIT_MS, 2 * took), WAIT_MS_MAX)
        subscription.unconfirmed = [e for e in entries if e[0] > received]


def overdue(queue: Queue, subscription: Subscription, now: int, most: int) -> list[Row]:
    """Up to ``most`` messages to send again: because the client did not confirm in time, or a
    budget ended an earlier repetition. Empty once that is done."""
    if not subscription.again:
        if subscription.again_at() > now:
            return []
        subscription.again = union([[e[2], e[3]] for e in subscription.unconfirmed])
        subscription.unconfirmed = []
        subscription.base = subscription.sent + 1
        subscription.patience = min(subscription.patience * 2, WAIT_MS_MAX)
    ranges = subscription.again
    held = queue.leases.get(subscription.number, {}).values()
    found = (row for row in held if any(a <= row.number <= b for a, b in ranges))
    rows = list(islice(found, max(most, 0)))
    if not rows:
        subscription.again = []
    return rows


def sent_again(subscription: Subscription, last: int) -> None:
    """Note that overdue messages were sent, up to this delivery number."""
    subscription.again = [[max(a, last + 1), b] for a, b in subscription.again if b > last]
