"""Delivery: ready messages go to subscriptions with room (L2–L4, B1–B4, F1–F5, O1–O3, R5).

At the end of a step every queue in which something changed is served, all with an equal share of
the step's budget, beginning behind the one that was served last. Messages go out in the order of
the ready index; nothing behind a waiting barrier goes out (O3), nor what is not active yet (R5),
nor what has expired or lost its payload. Who gets what is decided in `selection`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...protocol.outputs import Deliveries
from ..bridges.link import forward
from ..header import Subscription
from ..limits import Budget
from ..mesh import barriers
from ..mesh.dead_bringing import bring
from ..mesh.ownership import grant, look_for_room, push, short_no_more, want
from ..message import READY, Event, apply
from ..rules import transport_acks
from ..rules.edits import as_edited, dead_of, extras_of
from ..rules.fairness import backlog_of
from ..rules.order import seq_of
from ..storage import NEVER, Array, Content
from .oversize import bury_oversize
from .selection import Chosen, choose_messages

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue

ROUNDS = 64


def deliver(broker: Broker) -> None:
    """Serve what waits for others' acks, then every queue that changed; dead messages may change
    others in turn."""
    broker.count_unacked()
    budget = Budget(broker.limits.delivery_rows, broker.limits.delivery_bytes)
    looks = Budget(broker.limits.looks, broker.limits.look_bytes)
    broker.header.unserved = False
    look_for_room(broker)
    _serve_waiting(broker, budget, looks)
    for _ in range(ROUNDS):
        wanting = [q for q in broker.active() if q.wanted]
        if not wanting or budget.spent or looks.spent:
            break
        after = [q for q in wanting if q.number > broker.header.turn]
        for at, queue in enumerate([*after, *wanting[: len(wanting) - len(after)]]):
            if budget.spent or looks.spent:
                break
            _serve(broker, queue, budget, looks, len(wanting) - at)
            broker.header.turn = queue.number
    for queue in broker.active():
        queue.header.again = queue.wanted
    _serve_waiting(broker, budget, looks)
    if broker.header.peers:
        for queue in broker.active():
            want(broker, queue)
            barriers.report(broker, queue)
        broker.more_to_do |= bool(short_no_more(broker))


def _serve_waiting(broker: Broker, budget: Budget, looks: Budget) -> None:
    """Queues that `max_delivered_unacked` held back, the longest waiting first, while there is
    room (B4). One that finds none again goes to the end."""
    waiting = broker.header.waiting
    while waiting and broker.unacked_total < broker.header.system.max_delivered_unacked:
        if budget.spent or looks.spent:
            broker.more_to_do = broker.header.unserved = True
            return
        number = next(iter(waiting))
        del waiting[number]
        queue = broker.queue(number)
        if queue is not None and not queue.header.deleted and not queue.header.faulted:
            _serve(broker, queue, budget, looks, 1)


def _serve(broker: Broker, queue: Queue, budget: Budget, looks: Budget, sharers: int) -> None:
    """Serve one queue with its share of what is left.

    Leases of all queues together stay within `max_delivered_unacked` (B4): what waits for other
    queues' acks is noted in the broker's header and served when they come.
    """
    broker.at = queue
    header = queue.header
    share, own_looks = budget.share(sharers), looks.share(sharers)
    before = share.rows, share.bytes, own_looks.rows, own_looks.bytes
    broker.unacked_total -= header.leased  # now: of the other queues
    served = queue.barriers or any(not s.ending for s in header.subscriptions)
    if queue.number in broker.header.links:
        queue.wanted = forward(broker, queue, share)
    elif queue.number in broker.header.ways:
        queue.wanted = bring(broker, queue, share)
    else:
        queue.wanted = broker.header.peers != {} and push(broker, queue, share)
    if header.egress and served and not queue.wanted:
        queue.wanted = _serve_within(broker, queue, share, own_looks)
    if (header.wanted or header.held) and not queue.wanted:
        queue.wanted = grant(broker, queue, share, own_looks)
    if free_unacked(broker, queue) <= 0 and queue.ready and header.subscriptions:
        broker.header.waiting[queue.number] = True
    broker.unacked_total += header.leased
    budget.take(before[0] - share.rows, before[1] - share.bytes)
    looks.take(before[2] - own_looks.rows, before[3] - own_looks.bytes)
    broker.at = None


def free_unacked(broker: Broker, queue: Queue) -> int:
    """How many more messages may be leased here, of all that the broker allows (B4)."""
    limit = broker.header.system.max_delivered_unacked
    return limit - broker.unacked_total - queue.header.leased


def _serve_within(broker: Broker, queue: Queue, share: Budget, looks: Budget) -> bool:
    """Deliver what can be delivered now; whether a budget ended it."""
    while not share.spent:
        while queue.barriers and not share.spent and _barrier(broker, queue, looks):
            share.take(1)
        chosen = choose_messages(broker, queue, free_unacked(broker, queue), share, looks)
        if not len(chosen.seqs):
            return chosen.unfinished or share.spent  # by barriers
        ids, deliveries = queue.columns(chosen.seqs, "id", "deliveries")
        contents = broker.spool.contents(ids)
        if None in contents:
            _lose(broker, queue, chosen.seqs, contents)
            continue
        if bury_oversize(broker, queue, chosen.seqs, contents):
            continue
        _send(broker, queue, chosen, contents, deliveries > 0)
        if chosen.unfinished:
            return True
    return True


def _lose(broker: Broker, queue: Queue, seqs: Array, contents: list[Content | None]) -> None:
    """Messages whose payloads are missing from the state are lost, and that is said."""
    gone = seqs[np.array([c is None for c in contents], bool)]
    ids = apply(broker, queue, gone, Event.LOSE, reason="payload missing")
    broker.event(
        "payload_missing", broker.vpn_of(queue), queue.definition.name, messages=len(ids),
        first=str(ids[0]),
    )  # fmt: skip


# ---------------------------------------------------------------- sending


def _send(
    broker: Broker, queue: Queue, chosen: Chosen, contents: list[Content | None], before: Array
) -> None:
    """Lease the messages to who gets them and say so; remove those that leave on send. before:
    which of them were delivered before."""
    definition = queue.definition
    period = definition.lease_period_ms
    until = NEVER if period is None else broker.now + period
    numbers = np.fromiter(
        (c.subscription.number for c in chosen.receivers), np.uint32, len(chosen.receivers)
    )
    by_number = {c.subscription.number: c.subscription for c in chosen.receivers}
    for number, subscription in sorted(by_number.items()):
        mine = (numbers == number).nonzero()[0]
        seqs = chosen.seqs[mine]
        again = before[mine]
        for event, part in ((Event.DELIVER, seqs[~again]), (Event.REDELIVER, seqs[again])):
            apply(
                broker, queue, part, event, holder=number, until=until,
                subscription=subscription.id,
            )  # fmt: skip
        removes = definition.semantics == "at-most-once" or subscription.removes_on_send
        assert removes or subscription.held <= backlog_of(definition, subscription), (
            f"{subscription.id} holds {subscription.held}"
        )
        own = contents if len(by_number) == 1 else [contents[at] for at in mine.tolist()]
        _say(broker, queue, subscription, seqs, own, until)
        if removes:
            apply(broker, queue, seqs, Event.ACKNOWLEDGE, subscription=subscription.id)
    limit = definition.max_backlog
    assert limit is None or queue.header.leased <= limit, f"{definition.name}: max_backlog"


def _say(
    broker: Broker, queue: Queue, subscription: Subscription, seqs: Array,
    contents: list[Content | None], until: int, again: bool = False,
) -> None:  # fmt: skip
    """Say that these messages go out. again: as they went out before; nothing is counted (C2)."""
    rows = queue.rows(seqs)
    names = ("id", "deliveries", "delivery", "expires")
    ids, deliveries, numbers, expires = queue.columns_of(rows, len(seqs), names)
    extras = extras_of(rows)
    flow = None
    if subscription.transport_acks:
        flow = transport_acks.number(subscription, seqs, broker.now)
    _emit(
        broker, queue, subscription, ids, as_edited(extras, contents),
        counts=deliveries.tolist(), numbers=numbers.tolist(), expires=expires,
        lease_ms=0 if until == NEVER else max(until - broker.now, 1),
        dead=dead_of(extras), flow=flow, again=again,
    )  # fmt: skip
    if again:
        queue.count("retransmitted", len(seqs))


def _emit(
    broker: Broker, queue: Queue, subscription: Subscription, ids: Array,
    contents: list[Content | None], expires: Array, **more: object,
) -> None:  # fmt: skip
    priorities, times = broker.spool.columns(ids, "priority", "time")
    expires[expires == NEVER] = 0
    broker.emit(
        Deliveries(
            queue=queue.definition.name,
            subscription=subscription.id,
            topic=subscription.topic,
            partition=subscription.partition,
            framing=subscription.framing,
            epoch=broker.header.epoch,
            ids=broker.spool.origins(ids).tolist(),
            priorities=priorities.tolist(),
            expires=expires.tolist(),
            times=times.tolist(),
            payloads=[c[0] for c in contents if c is not None],
            keys=[c[1] for c in contents if c is not None],
            headers=[c[2] for c in contents if c is not None],
            **more,  # type: ignore[arg-type]
        )
    )


def send_again(broker: Broker, queue: Queue, budget: Budget) -> None:
    """Send what a client did not confirm in time once more, as it was (C2). What the budget leaves
    is due in the next step, and until then the client gets nothing new: its order stays."""
    for subscription in queue.header.subscriptions:
        if subscription.again_at() > broker.now:
            continue
        queue.wanted = True  # it may take new ones as soon as this is done
        while not budget.spent:
            seqs = transport_acks.overdue(queue, subscription, broker.now, budget.rows)
            if not len(seqs):
                break
            sizes = queue.gather(seqs, "size")
            n = budget.fits(sizes)
            budget.take(n, int(sizes[:n].sum(dtype=np.int64)))
            transport_acks.sent_again(subscription, int(seqs[n - 1]))
            _send_as_it_was(broker, queue, subscription, seqs[:n])


def _send_as_it_was(broker: Broker, queue: Queue, subscription: Subscription, seqs: Array) -> None:
    until = queue.gather(seqs, "until")
    for end in np.unique(until).tolist():
        these = seqs[until == end]
        contents = broker.spool.contents(queue.gather(these, "id"))
        if None not in contents:
            _say(broker, queue, subscription, these, contents, end, again=True)


def _barrier(broker: Broker, queue: Queue, looks: Budget) -> bool:
    """Deliver the first barrier to all that match it, once all before it has left (O3)."""
    header, barrier = queue.header, queue.first_barrier()
    assert barrier is not None
    seq = seq_of(barrier)
    if queue.first_live() != seq and not barriers.is_next(broker, queue, barrier):
        return False
    place = np.array([seq], np.int64)
    if queue.gather(place, "state")[0] != READY:
        return False
    ids = queue.gather(place, "id")
    contents = broker.spool.contents(ids)
    content = contents[0]
    if content is None:
        _lose(broker, queue, place, contents)
        return True
    priority = int(broker.spool.gather(ids, "priority")[0])
    receivers = barriers.receivers(queue, content, priority)
    looks.take(len({s.filter for s in header.subscriptions}))
    if bury_oversize(broker, queue, place, contents):
        return True
    if not barriers.may_pass(broker, queue, seq, len(receivers)):
        return False
    extras = extras_of(queue.rows(place))
    for subscription in receivers:
        _emit(
            broker, queue, subscription, ids, as_edited(extras, contents),
            counts=[int(queue.gather(place, "deliveries")[0]) + 1],
            numbers=[header.next_delivery], expires=queue.gather(place, "expires"), lease_ms=0,
            barrier=True, dead=dead_of(extras),
        )  # fmt: skip
        header.next_delivery += 1
        queue.count("delivered")
        broker.record("barrier_delivered", queue, ids.tolist(), subscription=subscription.id)
    apply(broker, queue, place, Event.BARRIER, reason="barrier")
    barriers.has_passed(broker, queue)
    return True
