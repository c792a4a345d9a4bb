"""Settling: acknowledge, cancel, reject; and renew, return (L1, L5–L11, L13, C7).

These name messages by id. Where the ids are few, the spool's message pages tell their places in the
queue; where a range is wider than the queue is deep, the queue's own pages are searched. So the
cost follows what is named or what is there, whichever is less. An ack that has no effect is counted
and journaled (L8); an ack for an id that this queue never held is kept for a while (L9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...protocol.bounds import DURATION_MS_MAX
from ...protocol.commands import (
    Ack,
    Cancel,
    Reject,
    Renew,
    Returned,
    TransportAck,
    Undeliverable,
)
from ...protocol.errors import Reason
from ...protocol.ids import format_ranges, parse_ranges
from ..broker import Broker
from ..header import Subscription
from ..limits import Budget
from ..mesh.placement import LOCAL
from ..message import LEASED, Event, apply
from ..message.returning import give_back
from ..queue import Queue
from ..rules import transport_acks
from ..storage import NEVER, Array
from .places import (
    FoundPlaces,
    by_ids,
    early,
    held_pages,
    wanted_rows,
    without_effect,
    without_effect_of,
)
from .task import Task

MOVED = "moved"  # why subscriptions end as their queue goes to another broker
ROWS_OF_ONE = 100  # in which a message of another broker may stand here


def acknowledge(broker: Broker, queue: Queue, task: Task, command: Ack, budget: Budget) -> bool:
    """Remove messages; answers how many went. Raises ValueError unless exactly one of ids, up_to
    and where says which (L13)."""
    if not task.done:
        _one_choice(command)
        task.done = {"n": 0}
        subscription = queue.subscription(command.subscription)
        if command.received and subscription is not None:
            transport_acks.confirm(subscription, command.received, broker.now)
        if command.ids is not None:
            early(broker, queue, parse_ranges(command.ids), command.subscription)
    done = False
    while not done and not budget.spent:
        part = _next_part(broker, queue, task, command, budget)
        done = part.last
        task.cursor = part.next
        task.done["n"] += _remove(broker, queue, part.seqs, command.subscription)
        if command.ids is not None and not command.quiet:
            without_effect(broker, queue, part, command.subscription)
    task.result = task.done["n"]
    if done and not task.result:
        broker.in_vain()
    return done


def _next_part(
    broker: Broker, queue: Queue, task: Task, command: Ack, budget: Budget
) -> FoundPlaces:
    if command.where is not None:
        return wanted_rows(broker, queue, task, command.where, None, budget)
    if command.up_to is None:
        return by_ids(broker, queue, task, parse_ranges(command.ids or ""), budget)
    last = _row_of(broker, queue, _one_id(command.up_to))
    subscription = queue.subscription(command.subscription)
    number = subscription.number if subscription is not None else 0
    return held_pages(queue, task.cursor, number, budget, up_to=last)


def has_arrived(broker: Broker, vpn: str, queue: Queue, command: TransportAck) -> None:
    """The client has what was sent up to a number (C1); an unknown subscription has ended."""
    subscription = queue.subscription(command.subscription)
    if subscription is None:
        broker.in_vain()
        return
    transport_acks.confirm(subscription, command.received, broker.now)


def _one_choice(command: Ack) -> None:
    given = [n for n in ("ids", "up_to", "where") if getattr(command, n) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise ValueError(f"ack: {found} – exactly one of ids, up_to, where is given")


def _one_id(text: str) -> int:
    ranges = parse_ranges(text)
    if len(ranges) != 1 or ranges[0][0] != ranges[0][1]:
        raise ValueError(f"up_to: {text[:60]!r} – allowed is one message id, such as '17'")
    return ranges[0][1]


def _row_of(broker: Broker, queue: Queue, number: int) -> int:
    """The id of the row in which a message stands: rows stand in the order in which they came."""
    rows = broker.spool.rows_of([(number, number)], ROWS_OF_ONE, queue.number)
    return rows[0][0]


def _remove(broker: Broker, queue: Queue, seqs: Array, name: str) -> int:
    if queue.definition.leasing == "strict" and len(seqs):
        subscription = queue.subscription(name)
        number = subscription.number if subscription is not None else 0
        foreign = (queue.gather(seqs, "state") == LEASED) & (queue.gather(seqs, "holder") != number)
        if foreign.any():
            ids = queue.gather(seqs[foreign], "id")
            without_effect_of(broker, queue, ids, name, "leased to another")
            seqs = seqs[~foreign]
    apply(broker, queue, seqs, Event.ACKNOWLEDGE, subscription=name)
    return len(seqs)


# ---------------------------------------------------------------- of leased messages


def _held_parts(
    broker: Broker, queue: Queue, task: Task, command: Any, budget: Budget,
    others: Callable[[Queue, Array], Array] = lambda _, seqs: seqs,
) -> Iterator[Array]:  # fmt: skip
    """Of the named messages those that this subscription leases, part by part; others are passed
    over and counted, but for those that ``others`` does something with. ``task.done["over"]`` says
    in the end whether that was all."""
    holder = queue.subscription(command.subscription)
    number = holder.number if holder is not None else -1
    ranges = parse_ranges(command.ids)
    task.done["over"], found = False, False
    while not task.done["over"] and not budget.spent:
        part = by_ids(broker, queue, task, ranges, budget)
        task.cursor, task.done["over"] = part.next, part.last
        mine = queue.gather(part.seqs, "holder") == number
        if not mine.all():
            left = others(queue, part.seqs[~mine])
            found = found or len(left) < len(part.seqs[~mine])
            ids = queue.gather(left, "id")
            without_effect_of(broker, queue, ids, command.subscription, "not leased to it")
        found = found or bool(mine.any())
        yield part.seqs[mine]
    if not found:
        broker.in_vain()


def cancel(broker: Broker, queue: Queue, task: Task, command: Cancel, budget: Budget) -> bool:
    """Return messages, counting the cancel (L6), after a delay (L11)."""
    for seqs in _held_parts(broker, queue, task, command, budget):
        most, name = queue.definition.max_cancels, command.subscription
        over = queue.gather(seqs, "cancels") + 1 >= most if most else np.zeros(len(seqs), bool)
        apply(
            broker, queue, seqs[over], Event.CANCEL_LAST, subscription=name,
            reason=Reason.MAX_CANCELS.value,
        )  # fmt: skip
        rest = seqs[~over]
        delays = _delays(queue, rest, command.delay_ms)
        give_back(broker, queue, rest, Event.CANCEL, subscription=name, delays=delays)
    return bool(task.done["over"])


def _delays(queue: Queue, seqs: Array, asked: int | None) -> Array:
    """How long each canceled message waits, ms: as asked, or the queue's back-off (L11)."""
    if asked is not None:
        return np.full(len(seqs), asked, np.int64)
    definition = queue.definition
    base = definition.redelivery_delay_ms or 0
    delays = np.zeros(len(seqs), np.int64)
    if not base:
        return delays
    most = definition.redelivery_delay_max_ms or DURATION_MS_MAX
    for i, deliveries in enumerate(queue.gather(seqs, "deliveries").tolist()):
        exponent = min(deliveries - 1, 64)
        factor = min(definition.redelivery_delay_multiplier**exponent, 1e15)
        delays[i] = int(min(base * factor, most))
    return delays


def reject(broker: Broker, queue: Queue, task: Task, command: Reject, budget: Budget) -> bool:
    """Messages go straight to the dead message queue, or are discarded (C7)."""
    for seqs in _held_parts(broker, queue, task, command, budget):
        apply(
            broker, queue, seqs, Event.REJECT, subscription=command.subscription,
            reason=Reason.REJECTED.value, detail=command.reason,
        )  # fmt: skip
    return bool(task.done["over"])


def undeliverable(
    broker: Broker, queue: Queue, task: Task, command: Undeliverable, budget: Budget
) -> bool:
    """Messages whose deliveries Kafka refuses die (X5): else they would come back when their leases
    end, and be refused again, for ever. `gone` in the event: those that had left the queue, sent
    at most once for instance."""
    ranges, done = parse_ranges(command.ids), False
    while not done and not budget.spent:
        part = by_ids(broker, queue, task, ranges, budget)
        task.cursor, done = part.next, part.last
        task.done["dead"] = task.done.get("dead", 0) + len(part.seqs)
        apply(
            broker, queue, part.seqs, Event.OVERSIZE, reason=command.reason, detail=command.why,
        )  # fmt: skip
    if done:
        named = sum(high - low + 1 for low, high in ranges)
        broker.event(
            "message_undeliverable", broker.vpn_of(queue), queue.definition.name,
            messages=task.done["dead"], gone=named - task.done["dead"], first=str(ranges[0][0]),
            topic=command.topic, why=command.why,
        )  # fmt: skip
    return done


def renew(broker: Broker, queue: Queue, task: Task, command: Renew, budget: Budget) -> bool:
    """Extend leases that the subscription holds; the new period counts from now (L10). A lease
    without end stays without end. Answers with what is left, and which were renewed."""
    period = command.period_ms
    if period is None:
        period = queue.definition.lease_period_ms
    until = NEVER if period is None else broker.now + max(period, 1)
    renewed: list[int] = []
    for held in _held_parts(broker, queue, task, command, budget):
        endless = queue.gather(held, "until") == NEVER
        for seqs, end in ((held[endless], NEVER), (held[~endless], until)):
            ids = apply(
                broker, queue, seqs, Event.RENEW, until=end, subscription=command.subscription
            )
            renewed += broker.spool.origins(ids).tolist()
    known = parse_ranges(task.done["renewed"]) if task.done.get("renewed") else []
    text = format_ranges(renewed)
    joined = [*known, *(parse_ranges(text) if text else [])]
    task.done["renewed"] = ",".join(f"{a}-{b}" if a != b else str(a) for a, b in joined)
    task.result = {"lease_ms": period, "renewed": task.done["renewed"]}
    return bool(task.done["over"])


def hand_back(broker: Broker, queue: Queue, task: Task, command: Returned, budget: Budget) -> bool:
    """Messages that the client never showed to anyone return: no attempt (L5, C3). What has come
    back by itself before, as its lease or the subscription ended, has had an attempt less."""
    for seqs in _held_parts(broker, queue, task, command, budget, _take_back_attempts):
        apply(
            broker, queue, seqs, Event.HAND_BACK, subscription=command.subscription,
            reason="untouched",
        )  # fmt: skip
    return bool(task.done["over"])


def _take_back_attempts(queue: Queue, seqs: Array) -> Array:
    """One attempt of each message did not take place; gives those that had none. What is leased now
    has had one for that."""
    left = [seqs[:0]]
    for page, rows, where in queue.rows(seqs):
        had = page.deliveries[rows] > (page.state[rows] == LEASED)
        page.deliveries[rows[had]] -= 1
        left.append(seqs[where][~had])
        queue.changed(page)
    return np.concatenate(left)


def return_held(
    broker: Broker, queue: Queue, task: Task, subscription: Subscription, budget: Budget
) -> bool:
    """Everything that a subscription holds returns, in place (L1, C3); whether that is all. Nothing
    dies of it that a local queue moves: its consumers go there too, and say what they had not seen.
    Those of a distributed queue go to any of its hosts, which may not have it."""
    done = not subscription.held
    while not done and not budget.spent:
        part = held_pages(queue, task.cursor, subscription.number, budget)
        task.cursor = part.next
        follows = subscription.ending == MOVED and queue.definition.type == LOCAL
        come_back = apply if follows else give_back
        come_back(
            broker, queue, part.seqs, Event.RETURN, subscription=subscription.id,
            reason=subscription.ending,
        )  # fmt: skip
        done = part.last
    return done
