"""Transport acks: a client says what has arrived; what has not is sent again (C1, C2).

A subscription that wants them numbers its messages from 1 in the order in which they are sent: its
*flow*. The client tells the highest number up to which all has arrived (`confirm`), for many
messages at once; that removes nothing from the queue. Nothing is kept per message: each step leaves
one entry with the last number, the time and the range of delivery numbers. When the oldest entry
has waited for `WAIT_MS`, whatever of these ranges the subscription still holds is sent again as it
was, under new numbers; `base` tells the client that the numbers below it will not come any more. A
range may hold messages that had arrived; the client drops what it has seen.

A busy engine answers late and hears late, and what is sent in vain makes it later still. So the
wait is at least twice the time that the last confirmation took, and doubles with each repetition.
What takes no lease (at-most-once, barriers) is gone as it is sent, and has no number.
"""

from __future__ import annotations

from itertools import islice

from ..queue.header import Subscription
from ..queue.queue import Queue
from ..storage.row import Row

WAIT_MS = 2_000
WAIT_MS_MAX = 60_000
ENTRIES_MAX = 16


def number(subscription: Subscription, rows: list[Row], now: int) -> tuple[int, int]:
    """Number messages that are sent now and held already; gives (base, number of the first)."""
    first = subscription.sent + 1
    subscription.sent += len(rows)
    entries = subscription.unconfirmed
    if subscription.held <= len(rows):  # all that was sent before is settled
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
    """Everything up to the number ``received`` has arrived."""
    entries = subscription.unconfirmed
    if entries and entries[0][0] <= received:
        took = now - entries[0][1]
        subscription.patience = min(max(WAIT_MS, 2 * took), WAIT_MS_MAX)
        subscription.unconfirmed = [e for e in entries if e[0] > received]


def overdue(queue: Queue, subscription: Subscription, now: int, most: int) -> list[Row]:
    """The next messages, up to ``most``, that are to be sent again: of a client that did not
    confirm in time, or for which a budget left some. Nothing if that is over."""
    if not subscription.again:
        if subscription.again_at() > now:
            return []
        subscription.again = _merged([[e[2], e[3]] for e in subscription.unconfirmed])
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
    """What was overdue has been sent, up to this delivery."""
    subscription.again = [[max(a, last + 1), b] for a, b in subscription.again if b > last]


def _merged(ranges: list[list[int]]) -> list[list[int]]:
    merged: list[list[int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return merged
