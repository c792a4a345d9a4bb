"""Delivery: ready messages go to subscriptions with room (L2–L4, B1–B3, F1–F5, O1–O3, R5).

At the end of a step every queue that changed is dispatched. Messages go out in the order of the
ready index; nothing behind a waiting barrier goes out (O3), nor what is not active yet (R5). If no
subscription has a filter, whole runs are shared out at once. With filters each filter scans on its
own: it remembers how far it has looked (its *cursor*), so that a message is looked at once per
filter, however long it stays.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from ..expressions import compile_program, is_true
from ..protocol.outputs import Deliveries
from . import transport
from .active_set import first_inactive
from .broker import Broker
from .columns import NEVER, Array
from .fairness import UNLIMITED, Seat, backlog_of, choose, seats_of, share, take
from .lifecycle import READY
from .queue import Queue, Subscription
from .ready import SEQ_BITS, SEQ_MASK

MESSAGES_PER_STEP = 50_000
LOOKS_PER_STEP = 20_000


def dispatch(broker: Broker, queue: Queue) -> None:
    """Deliver what can be delivered now.

    Leases of all queues together stay within `max_delivered_unacked` (B4): what waits for other
    queues' acks is noted in the broker's header and dispatched when they come.
    """
    header = queue.header
    broker.unacked_total -= header.leased  # now: of the other queues
    _dispatch(broker, queue)
    if _free_unacked(broker, queue) <= 0 and queue.ready and header.subscriptions:
        broker.header.waiting[queue.number] = True
    broker.unacked_total += header.leased


def _free_unacked(broker: Broker, queue: Queue) -> int:
    limit = broker.header.system.max_delivered_unacked
    return limit - broker.unacked_total - queue.header.leased


def _dispatch(broker: Broker, queue: Queue) -> None:
    header = queue.header
    queue.dispatch_wanted = False
    header.scan_again = False
    if not header.egress or not header.subscriptions:
        return
    budget = MESSAGES_PER_STEP
    while True:
        while header.barriers and _barrier(broker, queue):
            pass
        below = _fence(queue)
        seqs, seats = _assign(broker, queue, budget, below)
        if not len(seqs):
            return
        assert below is None or seqs.max() < below, f"{queue.definition.name}: sent past {below}"
        _send(broker, queue, seqs, seats)
        budget -= len(seqs)
        if budget <= 0:
            header.scan_again = bool(queue.ready)
            return
        if below is None:
            return


def _fence(queue: Queue) -> int | None:
    """The first place that is held back: a barrier's, or of what is not active; None without."""
    barriers = queue.header.barriers[:1]
    end = first_inactive(queue)
    # Both only where a definition that had one was exchanged for one that has the other.
    return min(barriers if end is None else [*barriers, end], default=None)


def _room(queue: Queue) -> int:
    limit = queue.definition.max_backlog
    return UNLIMITED if limit is None else max(limit - queue.header.leased, 0)


def _assign(
    broker: Broker, queue: Queue, budget: int, below: int | None
) -> tuple[Array, list[Seat]]:
    """Choose messages and their seats: (places, seats), taken out of the ready index."""
    definition, header = queue.definition, queue.header
    seats = seats_of(definition, header.subscriptions)
    room, unacked = _room(queue), _free_unacked(broker, queue)
    if unacked > 0:
        room = min(room, unacked)
    else:
        seats = [s for s in seats if s.free]
    nothing: tuple[Array, list[Seat]] = np.zeros(0, np.int64), []
    if not seats or room <= 0 or not queue.ready:
        return nothing
    free = sum(s.free for s in seats)
    if any(s.subscription.filter for s in seats) or 0 < free < len(seats):
        return _assign_one_by_one(broker, queue, seats, budget, room, below)
    limit = budget if free else min(room, budget)  # what leaves on send takes no lease
    most = min(limit, sum(s.room for s in seats))
    keys = queue.ready.take(most, below)
    if not keys:
        return nothing
    given = share(definition.fairness_model, seats, len(keys), header.served)
    header.served = given[-1].subscription.number
    return np.array([k & SEQ_MASK for k in keys], np.int64), given


# ---------------------------------------------------------------- with filters


class _Scan:
    """The next message that one filter lets through; None as filter lets all through."""

    def __init__(self, broker: Broker, queue: Queue, text: str | None, below: int | None) -> None:
        self._broker, self._queue, self._text, self._below = broker, queue, text, below
        header = queue.header
        high, low = header.cursors.get(text, (0, 0)) if text else (0, 0)
        self._cursor = high << SEQ_BITS | low
        back = [h << SEQ_BITS | s for h, s in header.rechecks.get(text, [])] if text else []
        self._keys = heapq.merge(back, queue.ready.scan(self._cursor))
        self._back = set(back)
        self._looked: list[tuple[int, bool]] = []  # looked at, not yet given out; reversed
        self._passed: set[int] = set()  # looked at and refused
        self._looks = 0
        self._chunk = 16
        self.exhausted = False
        self.head: int | None = None
        self.advance(set())

    def advance(self, taken: set[int]) -> None:
        """Move to the next candidate that is not taken."""
        self.head = None
        while True:
            while self._looked:
                key, matches = self._looked.pop()
                if not matches:
                    self._passed.add(key)
                elif key not in taken:
                    self.head = key
                    return
            if self._looks >= LOOKS_PER_STEP:
                self._queue.header.scan_again = True
                return
            keys = list(self._next_keys())
            if not keys:
                self.exhausted = True
                return
            self._looked = list(zip(keys, self._match(keys), strict=True))[::-1]
            self._looks += len(keys)
            self._chunk = min(self._chunk * 2, 512)

    def _next_keys(self) -> Iterator[int]:
        n = 0
        for key in self._keys:
            if self._below is not None and key & SEQ_MASK >= self._below:
                break
            if key in self._back:
                page = self._queue.page((key & SEQ_MASK) >> 10)
                if page is None or page.state[key & 1023] != READY:
                    continue  # acknowledged or expired meanwhile
            yield key
            n += 1
            if n == self._chunk:
                return

    def _match(self, keys: list[int]) -> list[bool]:
        if self._text is None:
            return [True] * len(keys)
        seqs = np.array([k & SEQ_MASK for k in keys], np.int64)
        return matching(self._broker, self._queue, seqs, self._text)

    def settle(self, taken: set[int]) -> None:
        """Remember how far this filter has looked."""
        if self._text is None:
            return
        pending = [k for k, _ in self._looked] + ([self.head] if self.head is not None else [])
        ahead = [k for k in pending if k >= self._cursor and k not in taken]
        done = [k for k in self._passed | taken if k >= self._cursor]
        cursor = min(ahead) if ahead else max(done, default=self._cursor - 1) + 1
        still = self._back - self._passed - taken
        header = self._queue.header
        header.cursors[self._text] = [cursor >> SEQ_BITS, cursor & SEQ_MASK]
        header.rechecks[self._text] = [[k >> SEQ_BITS, k & SEQ_MASK] for k in sorted(still)]
        if not header.rechecks[self._text]:
            del header.rechecks[self._text]


def matching(broker: Broker, queue: Queue, seqs: Array, text: str) -> list[bool]:
    """Which of these messages an expression is true for."""
    ids = queue.gather(seqs, "id")
    program = compile_program((text,))
    priorities = broker.spool.gather(ids, "priority").tolist()
    return [
        is_true(program.run(payload, priority, key)[0])
        for (payload, key, _), priority in zip(broker.spool.contents(ids), priorities, strict=True)
    ]


def _assign_one_by_one(
    broker: Broker, queue: Queue, seats: list[Seat], limit: int, room: int, below: int | None
) -> tuple[Array, list[Seat]]:
    """Message by message: the earliest that some seat can take, to the seat that is its turn."""
    header, model = queue.header, queue.definition.fairness_model
    classes: dict[str | None, list[Seat]] = {}
    for seat in seats:
        classes.setdefault(seat.subscription.filter, []).append(seat)
    scans = {text: _Scan(broker, queue, text, below) for text in classes}
    taken: set[int] = set()
    keys: list[int] = []
    given: list[Seat] = []
    seen: dict[tuple[str, int], bool] = {}

    def lets_through(text: str | None, key: int) -> bool:
        if text is None or scans[text].head == key:
            return True
        if (text, key) not in seen:
            seq = np.array([key & SEQ_MASK], np.int64)
            seen[text, key] = matching(broker, queue, seq, text)[0]
        return seen[text, key]

    def may_take(seat: Seat) -> bool:
        return seat.room > 0 and room > 0

    while len(keys) < limit:
        heads = [
            scans[text].head for text, group in classes.items()
            if scans[text].head is not None and any(map(may_take, group))
        ]  # fmt: skip
        if not heads:
            break
        key = min(h for h in heads if h is not None)
        able = [
            seat for text, group in classes.items() if lets_through(text, key)
            for seat in group if may_take(seat)
        ]  # fmt: skip
        able.sort(key=lambda s: s.subscription.number)
        seat = choose(model, able, header.served)
        take(seat)
        room -= not seat.free
        header.served = seat.subscription.number
        keys.append(key)
        given.append(seat)
        taken.add(key)
        for scan in scans.values():
            if scan.head == key:
                scan.advance(taken)
    for scan in scans.values():
        scan.settle(taken)
    queue.ready.discard(sorted(keys))
    return np.array([k & SEQ_MASK for k in keys], np.int64), given


# ---------------------------------------------------------------- sending


def _send(broker: Broker, queue: Queue, seqs: Array, seats: list[Seat]) -> None:
    """Lease the messages to their seats and say so; remove those that leave on send."""
    definition = queue.definition
    period = definition.lease_period_ms
    until = NEVER if period is None else broker.now + period
    holders = np.fromiter((s.subscription.number for s in seats), np.uint32, len(seats))
    queue.lease(seqs, holders, until)
    at_most_once = definition.semantics == "at-most-once"
    by_number = {s.subscription.number: s.subscription for s in seats}
    for number, subscription in sorted(by_number.items()):
        mine = seqs if len(by_number) == 1 else seqs[holders == number]
        subscription.held += len(mine)
        free = at_most_once or subscription.removes_on_send
        assert free or subscription.held <= backlog_of(definition, subscription), subscription.id
        _say_deliveries(broker, queue, subscription, mine, until, barrier=False)
        if free:
            for page, rows, _ in queue.rows(mine):
                ids = queue.remove(page, rows)
                queue.count("acknowledged", len(rows))
                broker.record("acknowledged", queue, ids.tolist(), subscription=subscription.id)
                broker.spool.release(queue.number, ids)
    limit = definition.max_backlog
    assert limit is None or queue.header.leased <= limit, f"{definition.name}: max_backlog"
    queue.dispatch_wanted = False


def _say_deliveries(
    broker: Broker,
    queue: Queue,
    subscription: Subscription,
    seqs: Array,
    until: int,
    barrier: bool,
    again: bool = False,
) -> None:
    """Say that these messages go out. again: as they went out before; nothing is counted (C2)."""
    spool = broker.spool
    ids = queue.gather(seqs, "id")
    counts = queue.gather(seqs, "deliveries")
    expires = queue.gather(seqs, "expires")
    expires[expires == NEVER] = 0
    contents = spool.contents(ids)
    flow = None
    if subscription.transport_acks and not barrier:
        flow = transport.number(subscription, seqs, broker.now)
    id_list, count_list = ids.tolist(), counts.tolist()
    broker.say(
        Deliveries(
            queue=queue.definition.name,
            subscription=subscription.id,
            topic=subscription.topic,
            partition=subscription.partition,
            framing=subscription.framing,
            lease_ms=0 if until == NEVER or barrier else max(until - broker.now, 1),
            epoch=broker.header.epoch,
            barrier=barrier,
            ids=id_list,
            numbers=queue.gather(seqs, "delivery").tolist(),
            counts=count_list,
            priorities=spool.gather(ids, "priority").tolist(),
            expires=expires.tolist(),
            times=spool.gather(ids, "time").tolist(),
            payloads=[c[0] for c in contents],
            keys=[c[1] for c in contents],
            headers=[c[2] for c in contents],
            dead=_dead_of(queue, seqs),
            flow=flow,
            again=again,
        )
    )
    if again:
        queue.count("retransmitted", len(seqs))
        return
    repeated = counts > 1
    queue.count("delivered", len(seqs))
    if barrier:
        broker.record("barrier_delivered", queue, id_list, subscription=subscription.id)
    elif not repeated.any():
        broker.record("delivered", queue, id_list, counts=1, subscription=subscription.id)
    else:
        queue.count("redelivered", int(repeated.sum()))
        for event, mask in (("delivered", ~repeated), ("redelivered", repeated)):
            broker.record(
                event, queue, ids[mask].tolist(),
                counts=counts[mask].tolist(), subscription=subscription.id,
            )  # fmt: skip


def send_again(broker: Broker, queue: Queue) -> None:
    """Send what a client did not confirm in time once more, as it was (C2)."""
    for subscription, seqs in transport.overdue(queue, broker.now):
        until = queue.gather(seqs, "until")
        for end in np.unique(until).tolist():
            these = seqs[until == end]
            _say_deliveries(broker, queue, subscription, these, end, barrier=False, again=True)


def _dead_of(queue: Queue, seqs: Array) -> dict[int, dict]:
    """What dead messages among these carry, by position."""
    dead: dict[int, dict] = {}
    for page, rows, where in queue.rows(seqs):
        if page.extras:
            positions = range(len(seqs)) if isinstance(where, slice) else where.tolist()
            for position, row in zip(positions, rows.tolist(), strict=True):
                if row in page.extras:
                    dead[position] = page.extras[row]
    return dead


def _barrier(broker: Broker, queue: Queue) -> bool:
    """Deliver the first barrier to all that match it, once all before it has left (O3)."""
    seq = queue.header.barriers[0]
    if queue.first_live() != seq:
        return False
    page, row = queue.row(seq)
    if page.state[row] != READY:
        return False
    place = np.array([seq], np.int64)
    receivers = [
        s for s in queue.header.subscriptions
        if s.filter is None or matching(broker, queue, place, s.filter)[0]
    ]  # fmt: skip
    if not receivers:
        return False
    page.deliveries[row] += 1
    for subscription in receivers:
        page.delivery[row] = queue.header.next_delivery
        queue.header.next_delivery += 1
        _say_deliveries(broker, queue, subscription, place, NEVER, barrier=True)
    ids = queue.remove(page, np.array([row], np.intp))
    queue.count("acknowledged")
    broker.record("acknowledged", queue, ids.tolist(), reason="barrier")
    broker.spool.release(queue.number, ids)
    return True
