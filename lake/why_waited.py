"""Explains why a ready message waited, as far as the journal shows it (B1–B4, H5, O3, L12).

A period of one queue's journal at one broker is replayed. It shows the consumers with their
backlogs, how many messages each consumer has leased, whether egress is shut down, and which
barriers precede the message. After each step the first obstacle is named, in the engine's own order
(a queue's `blocked`). Reasons that the journal does not show (a busy key, a filter) are called
*waiting*.
"""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Any

from .opening import Lake

WAITING = "waiting"
NO_STEP = 1 << 62
# A queue that has moved here was defined at another broker.
_NOTES = """
SELECT CASE WHEN broker = $broker THEN step ELSE 0 END, time, event, subscription, reason
FROM journal
WHERE message_id IS NULL AND vpn = $vpn AND queue = $queue AND CASE WHEN broker = $broker
  THEN step < $end
  ELSE event IN ('definition', 'shutdown') AND time <= (
    SELECT min(time) FROM journal WHERE broker = $broker AND vpn = $vpn AND queue = $queue) END
ORDER BY time, step, part, line
"""
_LEASES = """
SELECT step, time, next_step, next_time, subscription FROM changes
WHERE broker = $broker AND vpn = $vpn AND queue = $queue AND state = 'leased' AND step < $end
  AND coalesce(next_step, $end) > $start
"""
_BARRIERS = """
SELECT message_id, min(step) AS step, min(time) AS time,
  max(CASE WHEN state = 'gone' THEN step END) AS gone_step,
  max(CASE WHEN state = 'gone' THEN time END) AS gone_time
FROM changes
WHERE broker = $broker AND vpn = $vpn AND queue = $queue AND message_id IN (
  SELECT message_id FROM journal
  WHERE broker = $broker AND vpn = $vpn AND queue = $queue AND event = 'barrier_delivered')
GROUP BY message_id, stay
"""


@dataclass(frozen=True, slots=True)
class Period:
    """A message was ready in a queue from one step to another; None: it still is.

    entered: the step in which it entered the queue.
    """

    message_id: str
    entered: int
    step: int
    time: datetime
    next_step: int | None
    next_time: datetime | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Part of a period, and the reason why the message waited; ``until`` None: it still waits."""

    since: datetime
    until: datetime | None
    why: str


@dataclass(slots=True)
class _Queue:
    """The facts of a queue that decide whether a message can be delivered."""

    definition: dict[str, Any] = field(default_factory=dict)
    egress: bool = True
    faulted: bool = False
    backlogs: dict[str, int | None] = field(default_factory=dict)  # None: leases nothing
    held: Counter[str] = field(default_factory=Counter)
    barriers: dict[str, int] = field(default_factory=dict)  # and the step in which each entered

    def note(self, event: str, subscription: str, text: str) -> None:
        """Apply an event about the queue itself or its consumers."""
        match event:
            case "defined":
                self.faulted = False
            case "definition":
                self.definition = json.loads(text)
            case "deleted":
                self.backlogs.clear()
                self.egress = True
            case "shutdown":
                self.egress = "egress=True" not in text
            case "queue_faulted":
                self.faulted = True
            case "subscribed" | "backlog_changed" if "backlog=" in text:
                details = text.removeprefix(f"subscription={subscription}")
                number = details.partition("backlog=")[2].partition(",")[0]
                self.backlogs[subscription] = None if number == "None" else int(number)
            case "unsubscribed":
                self.backlogs.pop(subscription, None)

    def obstacle(self, of: Period) -> str:
        """The first obstacle to the delivery of this period's message."""
        limit = self.definition.get("max_backlog")
        if not self.egress:
            return "egress shut down"
        if not self.backlogs:
            return "no consumer"
        if limit is not None and sum(self.held.values()) >= limit:
            return "max_backlog of the queue"
        if self.faulted:
            return "queue faulted"
        if of.message_id in self.barriers:
            return "a barrier itself"
        mine = (of.entered, int(of.message_id))
        before = [int(b) for b, step in self.barriers.items() if (step, int(b)) < mine]
        if before:
            return f"behind barrier {min(before)}"
        if all(self._full(s) for s in self.backlogs):
            return "every consumer's backlog is full"
        return WAITING

    def _full(self, subscription: str) -> bool:
        own = self.backlogs[subscription]
        if own is None or not self.definition:
            return False
        definition = self.definition
        limit = min(
            own,
            definition["max_per_subscription_backlog"],
            definition["max_delivered_unacked_per_flow"],
        )
        return self.held[subscription] >= limit


_Happening = tuple[int, datetime, Callable[[], object]]
_STEP = operator.itemgetter(0)


class WaitReasons:
    """Explains why a message waited, by one replay of its queue's journal. Request the message's
    periods in their order.

    start, end: the periods' first and last step; end None: the newest step.
    """

    def __init__(
        self, lake: Lake, broker: str, vpn: str, queue: str, start: int, end: int | None
    ) -> None:
        self._queue = _Queue()
        place = {"broker": broker, "vpn": vpn, "queue": queue}
        until = NO_STEP if end is None else end
        happenings = _happenings(lake, self._queue, place, start, until)
        self._steps = [
            (step, list(group)) for step, group in groupby(sorted(happenings, key=_STEP), key=_STEP)
        ]
        self._next = 0

    def of(self, period: Period) -> list[Wait]:
        """Split the period into consecutive parts, each with the reason why the message waited."""
        end = NO_STEP if period.next_step is None else period.next_step
        while self._next < len(self._steps) and self._steps[self._next][0] <= period.step:
            self._apply_event()
        parts = [(period.time, self._queue.obstacle(period))]
        while self._next < len(self._steps) and self._steps[self._next][0] < end:
            at = self._apply_event()
            if parts[-1][1] != (why := self._queue.obstacle(period)):
                parts.append((at, why))
        return _joined(parts, period.next_time)

    def _apply_event(self) -> datetime:
        """Apply the events of one step; returns its time."""
        _, group = self._steps[self._next]
        self._next += 1
        for _, _, apply in group:
            apply()
        return group[0][1]


def _joined(parts: list[tuple[datetime, str]], end: datetime | None) -> list[Wait]:
    """Build the parts with their ends, without parts of no duration; equal neighbours become
    one."""
    out: list[Wait] = []
    ends = [*(since for since, _ in parts[1:]), end]
    for (since, why), until in zip(parts, ends, strict=True):
        if since == until and len(parts) > 1:
            continue
        if out and out[-1].why == why:
            since = out.pop().since
        out.append(Wait(since, until, why))
    return out or [Wait(parts[0][0], end, parts[-1][1])]


def _happenings(
    lake: Lake, queue: _Queue, place: dict[str, str], start: int, end: int
) -> Iterator[_Happening]:
    """Yield the changes of the queue before the end: step, time, and a function that applies the
    change."""
    for step, time, *details in lake.execute(_NOTES, place | {"end": end}).fetchall():
        yield step, time, partial(queue.note, *details)
    around = place | {"start": start, "end": end}
    for step, time, then, until, who in lake.execute(_LEASES, around).fetchall():
        yield step, time, partial(queue.held.update, {who: 1})
        if then is not None and then < end:
            yield then, until, partial(queue.held.subtract, {who: 1})
    for number, step, time, then, until in lake.execute(_BARRIERS, place).fetchall():
        yield step, time, partial(queue.barriers.update, {number: step})
        if then is not None:
            yield then, until, partial(queue.barriers.pop, number, None)
