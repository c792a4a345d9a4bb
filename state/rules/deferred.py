"""Acks that came before their message (L9).

An ack for an id that the queue never held is kept for `deferred_ack_expiration`; the message is
then removed on arrival, undelivered, and counts as acknowledged. What does not fit is counted as
an ack without effect.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

import numpy as np

from ..storage import NEVER

if TYPE_CHECKING:
    from ..broker import Broker
    from ..header import QueueHeader
    from ..queue import Queue


def keep(broker: Broker, queue: Queue, ranges: list[tuple[int, int]], subscription: str) -> None:
    """Keep an ack for the ids of these ranges, as many as there is room for. What was kept for the
    same ids before is replaced."""
    header = queue.header
    until = broker.now + queue.definition.deferred_ack_expiration_ms
    for at, (first, last) in enumerate(ranges):
        if not _put(header.deferred, [first, last, until], broker.limits.early_acks):
            _ignore(broker, queue, ranges[at:], subscription)
            return
        header.deferred_until = min(header.deferred_until, until)
        broker.record(
            "deferred_ack", queue, [first], subscription=subscription, reason=f"to {last}"
        )


def _put(deferred: list[list[int]], new: list[int], most: int) -> bool:
    """Put a range among the others, which are ascending and have no id in common; False and
    nothing is done where they would be more than ``most``."""
    first, last, until = new
    start = bisect_left(deferred, first, key=_last)
    stop = max(bisect_right(deferred, last, key=_first), start)
    parts = [[first, last, until]]
    if start < stop:
        before, behind = deferred[start], deferred[stop - 1]
        if before[0] < first:
            parts.insert(0, [before[0], first - 1, before[2]])
        if behind[1] > last:
            parts.append([last + 1, behind[1], behind[2]])
    if parts[0][0] == first and start and deferred[start - 1][1:] == [first - 1, until]:
        start -= 1
        parts[0][0] = deferred[start][0]
    if len(deferred) + len(parts) - (stop - start) > most:
        return False
    deferred[start:stop] = parts
    return True


def take_over(broker: Broker, queue: Queue, deferred: list[list[int]]) -> None:
    """Acks that came early where the queue was are kept here."""
    for one in deferred:
        if _put(queue.header.deferred, list(one), broker.limits.early_acks):
            queue.header.deferred_until = min(queue.header.deferred_until, one[2])


def _first(one: list[int]) -> int:
    return one[0]


def _last(one: list[int]) -> int:
    return one[1]


def _ignore(broker: Broker, queue: Queue, ranges: list[tuple[int, int]], subscription: str) -> None:
    """There is no room for these: counted, and said once."""
    queue.count("ack_ignored", sum(last - first + 1 for first, last in ranges))
    broker.record(
        "ack_ignored", queue, [ranges[0][0]], subscription=subscription,
        reason=f"to {ranges[-1][1]}: more than {broker.limits.early_acks} acks wait for their "
               f"messages",
    )  # fmt: skip


def came_early(broker: Broker, queue: Queue, number: int) -> bool:
    """Whether an ack for this id is waiting for it; it is used up. Where there is no room for both
    parts of its range, the ids before are given up: new ones are above."""
    deferred = queue.header.deferred
    at = bisect_left(deferred, number, key=_last)
    if at == len(deferred) or deferred[at][0] > number:
        return False
    first, last, until = deferred[at]
    rest = [[first, number - 1, until], [number + 1, last, until]]
    rest = [r for r in rest if r[0] <= r[1]]
    if len(deferred) - 1 + len(rest) > broker.limits.early_acks:
        _ignore(broker, queue, [(rest[0][0], rest[0][1])], "")
        del rest[0]
    deferred[at : at + 1] = rest
    return until > broker.now


def forget_late(header: QueueHeader, now: int) -> None:
    """What has waited for too long is no longer kept."""
    if header.deferred_until <= now:
        header.deferred = [d for d in header.deferred if d[2] > now]
        header.deferred_until = min((d[2] for d in header.deferred), default=NEVER)


def settle_arrivals(broker: Broker) -> None:
    """What follows when messages have got their rows: those that were acknowledged before they came
    go, and a queue with quota 0 keeps its last message only (L9, S10)."""
    early, broker.early = broker.early, []
    arrived, broker.arrived_in = broker.arrived_in, []
    last_only = {q.number: q for q in arrived if not q.definition.max_spool_usage}
    if not (early or last_only):  # as ever, and an import is not free
        return
    from ..message import Event, apply
    from .last_value import keep_last

    for queue, seq in early:
        apply(
            broker, queue, np.array([seq], np.int64), Event.ACKNOWLEDGE,
            reason="acknowledged early",
        )  # fmt: skip
    for queue in last_only.values():
        keep_last(broker, queue)
