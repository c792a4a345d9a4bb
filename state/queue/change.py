"""The only module that changes the state of a message.

`enter` puts messages into a queue. `apply` does what the table says for an event: it checks the
states, changes them, updates counts, order, leases and deadlines, writes the journal, and releases
the match in the spool. A message that leaves as dead keeps its match; the caller then buries it
(`rules.dead`).
"""

from __future__ import annotations

from ..storage.row import DELAYED, GONE, LEASED, MOVING, NEVER, READY, Row
from .broker import Broker
from .header import Subscription, note_entered
from .queue import Queue
from .table import RELEASED, TABLE, Event

_CANCELED = frozenset({Event.CANCEL, Event.CANCEL_LATER, Event.CANCEL_LAST})
_ACKNOWLEDGE, _CANCEL_LAST, _RENEW = Event.ACKNOWLEDGE, Event.CANCEL_LAST, Event.RENEW  # faster


class IllegalTransition(Exception):
    """An event that cannot happen in a message's state: a bug in the engine."""


def enter(broker: Broker, queue: Queue, rows: list[Row]) -> None:
    """Put messages into a queue, behind all others (S1, O1).

    rows: with consecutive ids, complete except for their sequence and generation; a row with
    `until` set is delayed (L12). The caller writes the journal.
    """
    header, now = queue.header, broker.now
    seq, size = header.next_seq, 0
    for row in rows:
        row.seq = seq
        seq += 1
        row.entered = now
        size += row.size
        if row.until == NEVER:
            row.state = READY
        else:
            row.state = DELAYED
            header.delayed += 1
        if row.barrier or header.generations:
            _join_generation(queue, row)
        header.depth += 1
    header.next_seq = seq
    header.bytes += size
    header.counters["spooled"] = header.counters.get("spooled", 0) + len(rows)
    note_entered(header.taken, rows[0].id, rows[-1].id)
    broker.enter(queue, rows)
    queue.wanted = True
    broker.touch(queue)


def _join_generation(queue: Queue, row: Row) -> None:
    """Set a row's generation. A barrier is the last of its generation: later messages belong to the
    next one (O3)."""
    header = queue.header
    if not header.generations and header.depth:
        header.generations[header.generation] = header.depth
    row.generation = header.generation
    header.generations[row.generation] = header.generations.get(row.generation, 0) + 1
    if row.barrier:
        row.lane = 0
        header.barriers[row.generation] = row.id
        header.generation += 1


def apply(
    broker: Broker,
    queue: Queue,
    rows: list[Row],
    event: Event,
    *,
    subscription: str = "",
    holder: Subscription | None = None,
    until: int = NEVER,
    reason: str = "",
    detail: str = "",
) -> None:
    """Apply an event to live messages of a queue.

    subscription: who caused it, for the journal; holder: the subscription that gets them; until:
    the end of the lease or delay, epoch ms. Raises IllegalTransition before anything changes.
    """
    if not rows:
        return
    before, to, journal, counts_up, match, _ = TABLE[event]
    for row in rows:
        if row.state not in before:
            raise IllegalTransition(f"{queue.definition.name}: {event} from state {row.state}")
    # The journal names the acknowledging subscription. If the engine itself ends leases, it names
    # each lease's holder.
    parts = [(subscription, rows)]
    if not subscription and event is not _ACKNOWLEDGE:
        parts = by_holder(queue, rows)
    if to == GONE:
        if event is _CANCEL_LAST:
            for row in rows:
                row.cancels += 1
        _leave(broker, queue, rows)
        if match == RELEASED:
            broker.spool.release(rows, queue.header.vpn_number)
    elif to == MOVING:
        assert holder is not None
        _grant(broker, queue, rows, holder)
    elif holder is not None:
        _lease(broker, queue, rows, holder, until)
    elif event is _RENEW:
        _renew(queue, rows, until)
    else:
        _return(broker, queue, rows, event, to, until)
    counters = queue.header.counters
    for name in counts_up:
        counters[name] = counters.get(name, 0) + len(rows)
    if to != LEASED and to != MOVING:
        queue.wanted = True
    broker.touch(queue)
    if to != LEASED and to != DELAYED:
        until = NEVER
    for name in journal:
        why = reason if name == journal[-1] else ""
        if name == "consumer_rejected":
            why = detail or reason
        for who, mine in parts:
            ids: list[int] = []
            counts: list[int] = []
            for row in mine:
                ids.append(row.id)
                counts.append(row.deliveries)
            broker.record(name, queue, ids, counts, who, why, until)


def _lease(broker: Broker, queue: Queue, rows: list[Row], holder: Subscription, until: int) -> None:
    header, number = queue.header, holder.number
    leases = queue.leases.get(number)
    if leases is None:
        leases = queue.leases[number] = {}
    delivery = header.next_delivery
    for row in rows:
        row.state = LEASED
        row.holder = number
        row.until = until
        row.deliveries += 1
        row.number = delivery
        delivery += 1
        leases[row.id] = row
        if until != NEVER:
            queue.watch(row)
        if row.lane:
            queue.ready.changed(row)
    header.next_delivery = delivery
    holder.held += len(rows)
    queue.consumers.changed(holder)
    header.leased += len(rows)
    broker.unacked += len(rows)


def _grant(broker: Broker, queue: Queue, rows: list[Row], holder: Subscription) -> None:
    """Mark messages as moving to another broker. Nothing else happens to them until it confirms
    them. This is no attempt to deliver (H4). Delayed messages keep their due time."""
    leases = queue.leases.setdefault(holder.number, {})
    for row in rows:
        queue.header.delayed -= row.state == DELAYED
        row.state = MOVING
        row.holder = holder.number
        leases[row.id] = row
        if row.lane:
            queue.ready.changed(row)
    holder.held += len(rows)
    queue.header.leased += len(rows)
    broker.unacked += len(rows)


def _renew(queue: Queue, rows: list[Row], until: int) -> None:
    for row in rows:
        row.until = until
        if until != NEVER:
            queue.watch(row)


def _return(
    broker: Broker, queue: Queue, rows: list[Row], event: Event, to: int, until: int
) -> None:
    """Make messages ready or delayed again, at their old position (L7)."""
    _end_leases(broker, queue, rows)
    untouched, canceled = event is Event.HAND_BACK, event in _CANCELED
    for row in rows:
        if row.state == DELAYED:
            queue.header.delayed -= 1
        if untouched:
            row.deliveries -= 1  # handed back untouched does not count as an attempt (L5)
        elif canceled:
            row.cancels += 1
        row.state = to
        row.until = until if to == DELAYED else NEVER
        if to == DELAYED:
            queue.header.delayed += 1
        if to == DELAYED or event is Event.REFUSE:  # moving rows have no deadlines in the heap
            queue.watch(row)
        queue.ready.changed(row)


def _end_leases(broker: Broker, queue: Queue, rows: list[Row]) -> None:
    """End the leases of rows that have one."""
    leases, consumers = queue.leases, queue.consumers
    freed: dict[int, int] = {}
    for row in rows:
        holder = row.holder
        if holder:
            del leases[holder][row.id]
            freed[holder] = freed.get(holder, 0) + 1
            row.holder = 0
    for number, n in freed.items():
        queue.header.leased -= n
        broker.unacked -= n
        one = consumers.by_number[number]
        one.held -= n
        consumers.changed(one)


def _leave(broker: Broker, queue: Queue, rows: list[Row]) -> None:
    """Remove messages from the queue."""
    _end_leases(broker, queue, rows)
    header = queue.header
    size = 0
    for row in rows:
        if row.state == DELAYED:
            header.delayed -= 1
        row.state = GONE
        row.until = NEVER
        size += row.size
    queue.remove(rows)
    if header.generations:
        for row in rows:
            _leave_generation(queue, row)
    header.depth -= len(rows)
    header.bytes -= size
    if header.stands_for:
        broker.mesh.left(queue, rows)
    if not header.depth:  # no message is left whose order matters
        header.generation = 0
        header.generations, header.barriers = {}, {}


def _leave_generation(queue: Queue, row: Row) -> None:
    header = queue.header
    left = header.generations[row.generation] - 1
    if left:
        header.generations[row.generation] = left
    else:
        del header.generations[row.generation]
    if row.barrier:
        del header.barriers[row.generation]


def by_holder(queue: Queue, rows: list[Row]) -> list[tuple[str, list[Row]]]:
    """Rows by the subscription that leases each one."""
    if not any(row.holder for row in rows):  # most often
        return [("", rows)]
    parts: dict[int, list[Row]] = {}
    for row in rows:
        parts.setdefault(row.holder, []).append(row)
    known = queue.consumers.by_number
    return [(known[number].id if number else "", parts[number]) for number in sorted(parts)]
