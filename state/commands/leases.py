"""Settling and leases: acknowledge, cancel, reject, renew, return (L1, L5–L11, L13, C7, R3).

These commands name messages by id (`command_targets`). An ack without effect is counted and
journaled (L8). An ack for an id that this queue never had is kept for a while (L9).

After a rebuild (R3) the state is older than the one that was lost. The broker cannot know which
messages were delivered or removed since. So every lease ends, and deliveries count from zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Any

from ...protocol import commands as c
from ...protocol.bounds import DURATION_MS_MAX
from ...protocol.errors import Reason
from ...protocol.ids import Ranges, count_ids, format_ranges, parse_ranges
from ..limits import Budget
from ..queue.broker import Broker
from ..queue.change import apply, by_holder
from ..queue.header import Subscription, Task
from ..queue.queue import Queue
from ..queue.table import Event
from ..rules import transport_acks
from ..rules.command_targets import Part, by_ids, ignore, ignore_missing, split_moving, wanted
from ..rules.dead import afford_deaths, reads_what_dies
from ..rules.returned_leases import die, give_back
from ..storage.row import LEASED, NEVER, Row, by_arrival

_ACKNOWLEDGE = Event.ACKNOWLEDGE  # reading it from the enum is slow
MOVED = "moved"  # why subscriptions end when their queue moves to another broker
NOT_ITS_OWN = "not leased to it"
WHY = "rebuilt"
LATE = "untouched, told late"  # an attempt is taken back from a message that is not held


def acknowledge(broker: Broker, queue: Queue, task: Task, command: c.Ack, budget: Budget) -> bool:
    """Remove messages; answers how many. Raises ValueError unless exactly one of ids, up_to and
    where is given (L13)."""
    ranges = parse_ranges(command.ids) if command.ids is not None else []
    if not task.done:
        given = [n for n in ("ids", "up_to", "where") if getattr(command, n) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"ack: {found} – give exactly one of ids, up_to, where")
        if command.up_to is not None:
            _one_id(command.up_to)
        task.done = {"n": 0}
        if command.received:
            _confirm(broker, queue, command)
    done = False
    while not done and not budget.spent:
        part = _next_part(broker, queue, task, command, ranges, budget)
        done = part.last
        here, others = split_moving(broker, queue, command, part.rows)
        task.done["n"] += others + _remove(broker, queue, here, command.subscription)
        ignore_missing(broker, queue, task, part, ranges, command)
    task.result = task.done["n"]
    if done and not task.result:
        broker.in_vain()
    return done


def _next_part(
    broker: Broker, queue: Queue, task: Task, command: c.Ack, ranges: Ranges, budget: Budget
) -> Part:
    if command.where is not None:
        return wanted(broker, queue, task, command.where, None, budget, moving=True)
    if command.ids is not None:
        return by_ids(broker, queue, task, ranges, budget, moving=True)
    subscription = queue.subscription(command.subscription)
    held = queue.leases.get(subscription.number, {}) if subscription is not None else {}
    if "end" not in task.done:  # the number of its delivery: in the order of receipt
        last = _one_id(command.up_to or "")
        if last not in held:
            ignore(broker, queue, [last], command.subscription, NOT_ITS_OWN)
            return Part(last=True)
        task.done["end"] = held[last].number
    end, first = task.done["end"], islice(held.values(), max(budget.rows, 1))
    rows = list(takewhile(lambda row: row.number <= end, first))
    budget.take(len(rows) + 1)
    return Part(sorted(rows, key=by_arrival), last=not rows or rows[-1].number == end)


def has_arrived(broker: Broker, queue: Queue, command: c.TransportAck) -> None:
    """The client confirms what has arrived (C1). An unknown subscription has ended."""
    if not _confirm(broker, queue, command):
        broker.in_vain()


def _confirm(broker: Broker, queue: Queue, command: c.TransportAck | c.Ack) -> bool:
    subscription = queue.subscription(command.subscription)
    if subscription is None:
        return False
    transport_acks.confirm(subscription, command.received, broker.now)
    queue.consumers.watch(subscription)
    broker.touch(queue)
    return True


def _one_id(text: str) -> int:
    ranges = parse_ranges(text)
    if len(ranges) != 1 or ranges[0][0] != ranges[0][1]:
        raise ValueError(f"up_to: {text[:60]!r} – allowed is one message id, such as '17'")
    return ranges[0][1]


def _remove(broker: Broker, queue: Queue, rows: list[Row], name: str) -> int:
    """Acknowledge messages; under `strict` only those that no other subscription leases (L8)."""
    if queue.header.definition.leasing == "strict":
        subscription = queue.subscription(name)
        number = subscription.number if subscription is not None else 0
        foreign = [row.id for row in rows if row.state == LEASED and row.holder != number]
        if foreign:
            ignore(broker, queue, foreign, name, "leased to another")
            rows = [row for row in rows if row.state != LEASED or row.holder == number]
    apply(broker, queue, rows, _ACKNOWLEDGE, subscription=name)
    return len(rows)


# ---------------------------------------------------------------- of leased messages


def _held_parts(
    broker: Broker, queue: Queue, task: Task, command: Any, budget: Budget
) -> Iterator[list[Row]]:
    """The named messages that this subscription leases, part by part. Others count as ignored; a
    late `Returned` takes an attempt back. At the end ``task.done["over"]`` says whether this was
    all."""
    holder = queue.subscription(command.subscription)
    number = holder.number if holder is not None else -1
    ranges = parse_ranges(command.ids)
    read = isinstance(command, c.Cancel | c.Reject) and reads_what_dies(broker, queue)
    task.done["over"], found = False, False
    while not task.done["over"] and not budget.spent:
        part = by_ids(broker, queue, task, ranges, budget, read=read)
        task.done["over"] = part.last
        mine = [row for row in part.rows if row.holder == number]
        foreign = [row for row in part.rows if row.holder != number]
        is_late = isinstance(command, c.Returned)
        left = _take_back_attempts(broker, queue, foreign) if is_late else foreign
        ids = [row.id for row in left]
        ignore(broker, queue, ids, command.subscription, NOT_ITS_OWN)
        found = found or bool(mine) or len(left) < len(foreign)
        yield mine
    if not found:
        broker.in_vain()


def cancel(broker: Broker, queue: Queue, task: Task, command: c.Cancel, budget: Budget) -> bool:
    """Return messages to the queue, maybe after a delay (L11), and count the cancel (L6)."""
    most, name = queue.definition.max_cancels, command.subscription
    for rows in _held_parts(broker, queue, task, command, budget):
        last = [row for row in rows if most and row.cancels + 1 >= most]
        rest = [row for row in rows if not most or row.cancels + 1 < most]
        die(broker, queue, last, Event.CANCEL_LAST, Reason.MAX_CANCELS, name)
        delays = [_delay(queue, row, command.delay_ms) for row in rest]
        give_back(broker, queue, rest, Event.CANCEL, subscription=name, delays=delays)
    return bool(task.done["over"])


def _delay(queue: Queue, row: Row, asked: int | None) -> int:
    """How long a canceled message waits, ms: what the client asks for, or the queue's back-off
    (L11)."""
    if asked is not None:
        return asked
    definition = queue.definition
    base = definition.redelivery_delay_ms or 0
    if not base:
        return 0
    most = definition.redelivery_delay_max_ms or DURATION_MS_MAX
    factor = min(definition.redelivery_delay_multiplier ** min(row.deliveries - 1, 64), 1e15)
    return int(min(base * factor, most))


def reject(broker: Broker, queue: Queue, task: Task, command: c.Reject, budget: Budget) -> bool:
    """Messages go straight to the dead message queue, or are discarded (C7)."""
    name, detail = command.subscription, command.reason or ""
    for rows in _held_parts(broker, queue, task, command, budget):
        die(broker, queue, rows, Event.REJECT, Reason.REJECTED, name, detail)
    return bool(task.done["over"])


def undeliverable(
    broker: Broker, queue: Queue, task: Task, command: c.Undeliverable, budget: Budget
) -> bool:
    """Let messages die whose deliveries Kafka refuses (X5). Otherwise they would come back with
    each end of their lease, and be refused again. `gone` in the event: messages that had left the
    queue already, such as at-most-once ones."""
    ranges, done, read = parse_ranges(command.ids), False, reads_what_dies(broker, queue)
    while not done and not budget.spent:
        part = by_ids(broker, queue, task, ranges, budget, read=read)
        done = part.last
        task.add("dead", len(part.rows))
        reason = Reason(command.reason)
        die(broker, queue, part.rows, Event.OVERSIZE, reason, detail=command.why)
    if done:
        dead = task.done["dead"]
        broker.queue_event(
            queue, "message_undeliverable", messages=dead, gone=count_ids(ranges) - dead,
            first=str(ranges[0][0]), topic=command.topic, why=command.why,
        )  # fmt: skip
    return done


def renew(broker: Broker, queue: Queue, task: Task, command: c.Renew, budget: Budget) -> bool:
    """Extend leases of the subscription; the new period counts from now (L10). A lease without end
    stays without end. Answers the period and the ids that were renewed."""
    period = command.period_ms
    if period is None:
        period = queue.definition.lease_period_ms
    until = NEVER if period is None else broker.now + max(period, 1)
    renewed: list[int] = []
    for rows in _held_parts(broker, queue, task, command, budget):
        endless = [row for row in rows if row.until == NEVER]
        others = [row for row in rows if row.until != NEVER]
        for some, end in ((endless, NEVER), (others, until)):
            apply(broker, queue, some, Event.RENEW, until=end, subscription=command.subscription)
        renewed += [row.id for row in rows]
    parts = task.done.get("renewed"), format_ranges(renewed)
    task.done["renewed"] = ",".join(filter(None, parts))
    task.result = {"lease_ms": period, "renewed": task.done["renewed"]}
    return bool(task.done["over"])


def hand_back(
    broker: Broker, queue: Queue, task: Task, command: c.Returned, budget: Budget
) -> bool:
    """Return messages that the application never saw. Their delivery does not count as an attempt
    (L5, C3), even if the lease or subscription has ended meanwhile."""
    name = command.subscription
    for rows in _held_parts(broker, queue, task, command, budget):
        apply(broker, queue, rows, Event.HAND_BACK, subscription=name, reason="untouched")
    return bool(task.done["over"])


def _take_back_attempts(broker: Broker, queue: Queue, rows: list[Row]) -> list[Row]:
    """Take back one attempt of each message, not counting its current lease; returns the messages
    without one."""
    left = [row for row in rows if row.deliveries <= (row.state == LEASED)]
    tried = [row for row in rows if row.deliveries > (row.state == LEASED)]
    for row in tried:
        row.deliveries -= 1
    _journal_counts(broker, queue, tried, LATE)
    return left


def _journal_counts(broker: Broker, queue: Queue, rows: list[Row], reason: str) -> None:
    """Journal that messages have another number of deliveries, in the state that they had (R1)."""
    for name, some in by_holder(queue, rows):
        ids, ends = [row.id for row in some], [row.until for row in some]
        event, counts = "renewed" if name else "returned", [row.deliveries for row in some]
        broker.record(event, queue, ids, counts, name, reason, ends)
    for row in rows:
        queue.dirty = True
        if row.lane:
            queue.ready.changed(row)  # it may now count as never delivered (O4)


def return_held(broker: Broker, queue: Queue, subscription: Subscription, budget: Budget) -> bool:
    """Return a subscription's leased messages to their positions (L1, C3); returns whether that was
    all. If the queue is moving to another broker, no message dies of this return: its consumers
    move too, and hand back unseen messages (L5)."""
    if subscription.held:
        held = queue.leases[subscription.number]
        rows = sorted(islice(held.values(), max(budget.rows, 0)), key=by_arrival)
        rows = rows[: afford_deaths(broker, queue, rows, budget)]
        budget.take(len(rows) + 1)
        come_back = apply if subscription.ending == MOVED else give_back
        come_back(
            broker, queue, rows, Event.RETURN, subscription=subscription.id,
            reason=subscription.ending,
        )  # fmt: skip
    return not subscription.held


# ---------------------------------------------------------------- after a rebuild


def begin_again(
    broker: Broker, queue: Queue, task: Task, command: c.BeginAgain, budget: Budget
) -> bool:
    """End all leases and reset all counts (R3); answers how many leases ended."""
    part = wanted(broker, queue, task, None, None, budget, only=_was_tried)
    tried = [row for row in part.rows if row.deliveries and row.state != LEASED]
    for row in part.rows:
        row.deliveries = row.cancels = 0
    _journal_counts(broker, queue, tried, WHY)
    held = [row for row in part.rows if row.state == LEASED]
    apply(broker, queue, held, Event.RETURN, reason=WHY)
    broker.touch(queue)
    task.result = task.add("n", len(held))
    return part.last


def _was_tried(row: Row) -> bool:
    return bool(row.deliveries or row.cancels or row.state == LEASED)
