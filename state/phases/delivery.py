"""Delivery: ready messages go to subscriptions with room (L2–L4, B1–B4, F1–F5, O1–O3, R5).

At the end of a step every queue with a change is served. All get an equal share of the step's
budget, beginning behind the queue that was served last. Messages are delivered in order. A message
is not delivered while it is behind a waiting barrier (O3) or inactive (R5), nor if it has expired
or lost its payload. `selection` chooses the receivers.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import Any

from ...protocol.outputs import Deliveries
from ..limits import Budget
from ..queue.broker import Broker
from ..queue.change import apply
from ..queue.consumers import Candidate, leaves_on_send
from ..queue.header import Subscription
from ..queue.queue import Queue
from ..queue.table import Event
from ..rules import transport_acks
from ..rules.dead import afford_deaths
from ..rules.edits import dead_part, edited
from ..rules.filter_matching import matching
from ..rules.returned_leases import bury_oversize, expire
from ..storage.blocks import Content
from ..storage.row import NEVER, READY, Row
from .selection import Chosen, choose_messages

ROUNDS = 64
_number, _deliveries = attrgetter("number"), attrgetter("deliveries")
_DELIVER, _REDELIVER = Event.DELIVER, Event.REDELIVER  # reading them from the enum is slow


def deliver(broker: Broker) -> None:
    """Serve the queues that wait for acks in other queues, then every queue with a change. Dead
    messages may change further queues."""
    broker.header.unserved = False
    wanting = _wanting(broker)
    if wanting or broker.header.waiting:
        limits = broker.limits
        budget = Budget(limits.delivery_rows, limits.delivery_bytes)
        looks = Budget(limits.looks, limits.look_bytes)
        if broker.header.waiting:
            _serve_waiting(broker, budget, looks)
            wanting = _wanting(broker)
        _serve_all(broker, wanting, budget, looks)
        if broker.header.waiting:
            _serve_waiting(broker, budget, looks)


def _serve_all(broker: Broker, wanting: list[Queue], budget: Budget, looks: Budget) -> None:
    """Serve these queues, the next in turn first. Then serve the queues that this has changed, for
    a bounded number of rounds."""
    for _ in range(ROUNDS):
        if len(wanting) > 1:
            after = [q for q in wanting if q.number > broker.header.turn]
            wanting = [*after, *wanting[: len(wanting) - len(after)]]
        for at, queue in enumerate(wanting):
            if budget.spent or looks.spent:
                return
            _serve(broker, queue, budget, looks, len(wanting) - at)
            broker.header.turn = queue.number
        wanting = _wanting(broker)
        if not wanting:
            return


def _wanting(broker: Broker) -> list[Queue]:
    """The queues in which a message may be deliverable, by number."""
    found = []
    for queue in broker.touched.values():
        if not queue.wanted:
            continue
        header = queue.header
        if header.depth == header.leased + header.delayed:
            queue.wanted = False
        elif not (queue.dropped or header.deleted or header.faulted):
            found.append(queue)
    if len(found) > 1:
        found.sort(key=_number)
    return found


def _serve_waiting(broker: Broker, budget: Budget, looks: Budget) -> None:
    """Serve queues that `max_delivered_unacked` held back, the longest waiting first, while there
    is room (B4). A queue that is held back again goes to the end."""
    waiting = broker.header.waiting
    while waiting and broker.unacked < broker.header.system.max_delivered_unacked:
        if budget.spent or looks.spent:
            broker.more_to_do = broker.header.unserved = True
            return
        number = next(iter(waiting))
        del waiting[number]
        queue = broker.queue(number)
        if queue is not None and not queue.header.deleted and not queue.header.faulted:
            broker.touch(queue)
            _serve(broker, queue, budget, looks, 1)


def _serve(broker: Broker, queue: Queue, budget: Budget, looks: Budget, sharers: int) -> None:
    """Serve one queue with its share of the budgets.

    All leases of a broker together stay within `max_delivered_unacked` (B4). The broker's header
    lists the queues that wait for acks in other queues.
    """
    broker.at = queue
    header = queue.header
    queue.wanted = False
    if header.egress and (header.subscriptions or header.barriers):
        if sharers > 1:
            budget, looks = budget.share(sharers), looks.share(sharers)
        queue.wanted = _serve_within(broker, queue, budget, looks)
    ready = header.depth - header.leased - header.delayed
    if ready > 0 and header.subscriptions and free_unacked(broker) <= 0:
        broker.header.waiting[queue.number] = True
    broker.at = None


def free_unacked(broker: Broker) -> int:
    """How many more messages the broker may lease (B4)."""
    return broker.header.system.max_delivered_unacked - broker.unacked


def _serve_within(broker: Broker, queue: Queue, share: Budget, looks: Budget) -> bool:
    """Deliver what can be delivered now; returns whether a budget ended it."""
    header = queue.header
    while True:
        while header.barriers and not (share.spent or looks.spent):
            if not _barrier(broker, queue, share, looks):
                break
        if header.depth <= header.leased + header.delayed:
            return share.spent  # by barriers
        depth = header.depth
        chosen = choose_messages(broker, queue, free_unacked(broker), share, looks)
        if not chosen.rows:
            if header.barriers and header.depth < depth:
                continue  # messages that were overdue have expired: the barrier may be due
            return chosen.unfinished or share.spent or (looks.spent and bool(header.barriers))
        contents = broker.spool.contents(chosen.rows)
        if None in contents:
            lose(broker, queue, chosen.rows, contents)
            continue
        if _bury_oversize(broker, queue, chosen.rows, contents):
            continue
        _send(broker, queue, chosen, contents)
        if chosen.unfinished:
            return True
        if chosen.last and not header.barriers:
            return share.spent


def lose(broker: Broker, queue: Queue, rows: list[Row], contents: list[Content | None]) -> None:
    """Remove messages whose payloads are missing, and write an event. The others return to the
    order."""
    lost = [row for row, content in zip(rows, contents, strict=True) if content is None]
    apply(broker, queue, lost, Event.LOSE, reason="payload missing")
    _return_to_order(queue, rows)
    broker.queue_event(queue, "payload_missing", messages=len(lost), first=str(lost[0].id))


def _return_to_order(queue: Queue, rows: list[Row]) -> None:
    """Return messages that were chosen but not delivered to the order."""
    for row in rows:
        if row.state == READY:
            queue.ready.changed(row)


def _bury_oversize(broker: Broker, queue: Queue, rows: list[Row], contents: list[Any]) -> bool:
    """Let messages die that are too large to be delivered; returns whether there were any. Messages
    above Kafka's limit are refused when they are published (`admission_checks`), but edited headers
    may make one too large."""
    most, largest = broker.limits.message_bytes, 0
    large: list[Row] = []
    for at, row in enumerate(rows):
        size = row.length + row.key_length + row.header_length
        if row.extras is not None:
            size = sum(len(part or b"") for part in edited(row, contents[at]))
        if size > most:
            large.append(row)
            largest = max(largest, size)
    if not large:
        return False
    detail = f"{largest:,} bytes as a delivery; at most {most:,} fit into a record"
    bury_oversize(broker, queue, large, detail)
    _return_to_order(queue, rows)
    return True


# ---------------------------------------------------------------- sending


def _send(broker: Broker, queue: Queue, chosen: Chosen, contents: list[Any]) -> None:
    """Lease messages to their receivers and emit the deliveries; remove those that leave on
    send."""
    definition = queue.header.definition
    period = definition.lease_period_ms
    until = NEVER if period is None else broker.now + period
    for subscription, rows, own in _by_receiver(chosen.rows, chosen.receivers, contents):
        if subscription.broker is not None:
            apply(
                broker, queue, rows, Event.GRANT, holder=subscription, subscription=subscription.id
            )  # fmt: skip
            broker.mesh.send(queue, subscription, rows, own)
            continue
        for again, some in groupby(rows, _deliveries):  # numbered in the order of the record
            apply(
                broker, queue, list(some), _REDELIVER if again else _DELIVER, holder=subscription,
                until=until, subscription=subscription.id,
            )  # fmt: skip
        _emit_numbered(broker, queue, subscription, rows, own, until)
        if leaves_on_send(definition, subscription):
            apply(broker, queue, rows, Event.ACKNOWLEDGE, subscription=subscription.id)


def _by_receiver(
    rows: list[Row], receivers: list[Candidate], contents: list[Any]
) -> list[tuple[Subscription, list[Row], list[Any]]]:
    """The messages of each subscription, in order of subscribing."""
    if receivers.count(receivers[0]) == len(receivers):  # most often
        return [(receivers[0].subscription, rows, contents)]
    parts: dict[int, tuple[Subscription, list[Row], list[Any]]] = {}
    for row, one, content in zip(rows, receivers, contents, strict=True):
        subscription = one.subscription
        part = parts.setdefault(subscription.number, (subscription, [], []))
        part[1].append(row)
        part[2].append(content)
    return [part for _, part in sorted(parts.items())]


def _emit_numbered(
    broker: Broker, queue: Queue, subscription: Subscription, rows: list[Row],
    contents: list[Any], until: int, again: bool = False,
) -> None:  # fmt: skip
    """Emit deliveries, numbered in the flow. again: a repetition, which counts nothing (C2)."""
    flow = None
    if subscription.transport_acks and not leaves_on_send(queue.definition, subscription):
        flow = transport_acks.number(subscription, rows, broker.now)
        queue.consumers.watch(subscription)
    lease_ms = 0 if until == NEVER else max(until - broker.now, 1)
    deliveries = _emit(broker, queue, subscription, rows, contents, lease_ms)
    deliveries.flow, deliveries.again = flow, again
    if again:
        queue.count("retransmitted", len(rows))


def _emit(
    broker: Broker, queue: Queue, subscription: Subscription, rows: list[Row],
    contents: list[Any], lease_ms: int,
) -> Deliveries:  # fmt: skip
    """Emit deliveries for a subscription; returns the output."""
    sent = Deliveries(
        queue.header.definition.name, subscription.id, subscription.topic, subscription.partition,
        subscription.framing, lease_ms, broker.header.epoch,
    )  # fmt: skip
    ids, numbers, counts, priorities = sent.ids, sent.numbers, sent.counts, sent.priorities
    expires, times, payloads = sent.expires, sent.times, sent.payloads
    keys, headers = sent.keys, sent.headers
    for at, row in enumerate(rows):  # faster than column by column
        payload, key, own = contents[at]
        if row.extras is not None:
            payload, key, own = edited(row, contents[at])
            part = dead_part(row.extras)
            if part is not None:
                sent.dead[at] = part
        ids.append(row.id)
        numbers.append(row.number)
        counts.append(row.deliveries)
        priorities.append(row.priority)
        expires.append(0 if row.expires == NEVER else row.expires)
        times.append(row.time)
        payloads.append(payload)
        keys.append(key)
        headers.append(own)
    broker.outputs.append(sent)
    return sent


def send_again(broker: Broker, queue: Queue, budget: Budget) -> None:
    """Repeat messages that a client did not confirm in time (C2). If the budget ends, the next step
    goes on; until then the client gets nothing new, which keeps the order."""
    for subscription in queue.consumers.send_again(broker.now):
        queue.wanted = True  # it can take new messages once this is done
        while not budget.spent:
            rows = transport_acks.overdue(queue, subscription, broker.now, budget.rows)
            if not rows:
                break
            n = budget.fits([row.size for row in rows])
            budget.take(n, sum(row.size for row in rows[:n]))
            transport_acks.sent_again(subscription, rows[n - 1].number)
            _send_as_it_was(broker, queue, subscription, rows[:n])
        queue.consumers.watch(subscription)
        queue.consumers.changed(subscription)


def _send_as_it_was(
    broker: Broker, queue: Queue, subscription: Subscription, rows: list[Row]
) -> None:
    for end in sorted({row.until for row in rows}):
        these = [row for row in rows if row.until == end]
        contents = broker.spool.contents(these)
        if None not in contents:
            _emit_numbered(broker, queue, subscription, these, contents, end, again=True)


# ---------------------------------------------------------------- barriers


def _barrier(broker: Broker, queue: Queue, share: Budget, looks: Budget) -> bool:
    """Deliver the first barrier to all matching subscriptions, once all messages before it have
    left (O3); returns whether it was handled. A single one may overdraw the budgets."""
    header = queue.header
    generation, number = next(iter(header.barriers.items()))
    if next(iter(header.generations)) < generation or header.generations[generation] > 1:
        return False
    row = queue.live[number]
    if row.state != READY:
        return False
    if row.expires <= broker.now:  # it is overdue: a budget ended before it expired
        share.take(afford_deaths(broker, queue, [row], share))
        expire(broker, queue, [row])
        return True
    content = broker.spool.content(row)
    if content is None:
        lose(broker, queue, [row], [None])
        share.take(1)
        return True
    if _bury_oversize(broker, queue, [row], [content]):
        share.take(1)
        return True
    receivers = _receivers(broker, queue, row)
    texts = {s.filter for s in header.subscriptions if s.filter is not None}
    looks.take(len(texts), sum(row.size + len(text) for text in texts))
    if not receivers:
        return False
    share.take(len(receivers), row.size * len(receivers))
    for subscription in receivers:
        sent = _emit(broker, queue, subscription, [row], [content], 0)
        sent.counts, sent.numbers, sent.barrier = [row.deliveries + 1], [header.next_delivery], True
        header.next_delivery += 1
        queue.count("delivered")
        broker.record("barrier_delivered", queue, [row.id], subscription=subscription.id)
    apply(broker, queue, [row], Event.BARRIER, reason="barrier")
    return True


def _receivers(broker: Broker, queue: Queue, row: Row) -> list[Subscription]:
    """The subscriptions whose filters match a barrier."""
    texts = {s.filter for s in queue.header.subscriptions if s.filter is not None}
    passes = {text: matching(broker, [row], text)[0] for text in sorted(texts)}
    return [
        s for s in queue.header.subscriptions
        if not s.ending and (s.filter is None or passes[s.filter])
    ]  # fmt: skip
