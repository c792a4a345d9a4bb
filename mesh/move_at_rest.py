"""Messages and what belongs to them go to a queue of another broker while both are at rest (M4).

They keep ids, times, counts, states and their order, and leases their ends: a subscription goes
with what it holds. A queue that nobody has there is the same queue then. Where the other broker has
its part of a distributed queue already, what comes stands behind what is there, as what is granted
does (H4). Quotas are not asked: the home holds as much as before.
"""

from __future__ import annotations

import msgspec

from ..state.commands.sessions import unbind
from ..state.queue.broker import Broker
from ..state.queue.broker_facts import KnownSession
from ..state.queue.change import apply
from ..state.queue.header import ENTERED_MAX, QueueHeader
from ..state.queue.queue import Queue
from ..state.queue.table import Event
from ..state.rules.after_entry import apply_early_ack
from ..state.rules.routing import drop_route, set_topics
from ..state.storage.row import IN_MEMORY, LEASED, NEVER, Row
from .handover import take_in

LOST_BLOCK = (1 << 32) - 1  # there is none with this number: what lies in it is lost
PART = 1_000  # rows that are put into blocks at once
SUMS = ("counters", "rejected", "discarded")
# By both brokers and the content's number there: a row that has it, and its VPN. Each holds the
# content once more until all has moved: a queue may let go at once what the next one needs.
Shared = dict[tuple[int, int, int], tuple[Row, int]]


def rows_of(queue: Queue) -> list[Row]:
    """All messages of a queue, in the order of their places."""
    rows = list(queue.live.values())
    for runs in (queue.cold, queue.later):
        for segment in runs.segments():
            rows += runs.read(segment)
    return sorted(rows, key=_seq)


def _seq(row: Row) -> int:
    return row.seq


def move_queue(
    source: Broker, queue: Queue, target: Broker, shared: Shared, into: Queue | None = None
) -> Queue:
    """A queue goes to another broker, or what it has into another queue. The old one is given up
    with its broker, or by `give_up`. shared: contents that several queues have."""
    rows = rows_of(queue)
    holders: dict[int, int] = {}
    if into is None:
        into = target.add_queue(_header(source, queue, target))
        holders = {one.number: one.number for one in queue.header.subscriptions}
    else:
        _add(queue.header, into.header)
        _stand_behind(rows, into.header)
        for one in queue.header.subscriptions:
            holders[one.number] = one.number = into.header.next_subscription
            into.header.next_subscription += 1
            one.id = _free(one.id, into, source.header.number)
            into.header.subscriptions.append(one)
    before = into.header.leased if source is target else None
    for row in rows:
        row.holder = holders.get(row.holder, 0)
    for at in range(0, len(rows), PART):
        part = rows[at : at + PART]
        if source is not target:
            _store(source, target, part, into.header.vpn_number, shared)
        _admit(into, part)
    assert before in (None, into.header.leased), "what moves within a broker is leased to nobody"
    _take_subscriptions(source, queue, target, into)
    for first, last, until in queue.early.state():
        into.early.put(first, last, until, target.limits.early_acks)
    if into.early.ranges:
        for row in rows:
            if row.id in into.live:
                apply_early_ack(target, into, row)
    into.header.again = into.wanted = True
    into.header.due_at = NEVER
    target.touch(into)
    return into


def arrive(source: Broker, queue: Queue, target: Broker, into: Queue) -> None:
    """What waited for a queue is in it: it cannot be refused, for there is nobody to wait."""
    rows, before = rows_of(queue), set(into.live)
    arrived = [msgspec.structs.replace(row) for row in rows]
    for row, new in zip(rows, arrived, strict=True):
        content = source.spool.content(row) or (b"", None, None)
        if source is target:
            source.spool.release([row], queue.header.vpn_number)
        take_in(target, into, new, content, waiting=True)
    tell_moved(source, queue, target, into, [row.id for row in rows])
    for new in arrived:
        apply_early_ack(target, into, new)
    keep_later(target, into, before)
    into.spill_over()


def give_up(broker: Broker, queue: Queue) -> None:
    """What a queue had is in another one now."""
    queue.remove(list(queue.live.values()))
    header = queue.header
    header.depth = header.bytes = header.leased = header.delayed = 0
    broker.forget_name(queue)
    broker.touched.pop(queue.number, None)
    for known in (broker.header.waiting, broker.header.pending):
        known.pop(queue.number, None)
    broker.header.merging = [n for n in broker.header.merging if n != queue.number]
    broker.drop_queue(queue)


def leave_behind(broker: Broker, queue: Queue, rows: list[Row]) -> None:
    """A queue is at another broker now, and this one goes on. rows: what it had, as it was here."""
    header = queue.header
    if rows:
        broker.spool.release(rows, header.vpn_number)
    broker.unacked -= header.leased
    vpn = broker.vpn_of(queue)
    for one in header.subscriptions:
        session = one.session.removesuffix(f"@{broker.header.number}")
        unbind(broker, (vpn, session), (queue.number, one.id))
    header.depth = header.bytes = header.leased = header.delayed = 0
    set_topics(broker, queue, [])
    drop_route(broker, queue.definition, queue.number)
    broker.forget_name(queue)
    broker.touched.pop(queue.number, None)
    broker.header.waiting.pop(queue.number, None)
    broker.header.merging = [n for n in broker.header.merging if n != queue.number]
    broker.drop_queue(queue)


def keep_later(broker: Broker, queue: Queue, before: set[int]) -> None:
    """Of a queue that keeps its last message (S10) the later one stays. before: ids that were
    there."""
    if queue.definition.max_spool_usage or queue.header.depth < 2:
        return
    rows = sorted(queue.live.values(), key=lambda row: (row.entered, row.id in before, row.seq))
    apply(broker, queue, rows[:-1], Event.REPLACE)


# ---------------------------------------------------------------- facts


def _header(source: Broker, queue: Queue, target: Broker) -> QueueHeader:
    number = target.header.next_queue
    target.header.next_queue += 1
    vpn_number = target.vpn_number(source.vpn_of(queue))
    return msgspec.structs.replace(queue.header, number=number, vpn_number=vpn_number)


def _add(from_: QueueHeader, to: QueueHeader) -> None:
    """Counts of two parts of a queue are the sum of both (`describe`)."""
    for name in SUMS:
        counts: dict[str, int] = getattr(to, name)
        for what, n in getattr(from_, name).items():
            counts[what] = counts.get(what, 0) + n
    for name in ("depth", "leased", "delayed", "bytes", "invalid"):
        setattr(to, name, getattr(to, name) + getattr(from_, name))
    to.next_delivery = max(to.next_delivery, from_.next_delivery)
    to.taken = _union([*to.taken, *from_.taken])


def _union(ranges: list[list[int]]) -> list[list[int]]:
    joined: list[list[int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return joined[-ENTERED_MAX:]


def _stand_behind(rows: list[Row], header: QueueHeader) -> None:
    for row in rows:
        row.seq = header.next_seq
        header.next_seq += 1


def _free(name: str, queue: Queue, number: int) -> str:
    """A subscription's id; another where the queue has one of this id already."""
    known = {one.id for one in queue.header.subscriptions}
    return name if name not in known else f"{name}@{number}"


def _take_subscriptions(source: Broker, queue: Queue, target: Broker, into: Queue) -> None:
    """Sessions that speak to a removed broker go with their subscriptions, under names of their
    own: nobody can confuse them with what a client binds here next, and they live as long as they
    would have."""
    if source is target:
        return
    target.unacked += queue.header.leased
    vpn = source.vpn_of(queue)
    for one in queue.header.subscriptions:
        known = source.sessions.get((vpn, one.session))
        if known is None:
            continue
        one.session = name = f"{one.session}@{source.header.number}"
        one.max_backlog = 0  # it keeps what it holds; its client binds again where the queue is
        session = target.sessions.get((vpn, name))
        if session is None:
            session = target.sessions[vpn, name] = KnownSession(known.until)
            target.watch("s", (vpn, name), known.until)
        session.bound.append((into.number, one.id))
        target.session_changed((vpn, name))


# ---------------------------------------------------------------- rows


def _store(source: Broker, target: Broker, rows: list[Row], vpn: int, shared: Shared) -> None:
    """Contents go into the other spool, each once for all queues there."""
    spool = target.spool
    new: list[Row] = []
    for row in rows:
        known = source.header.number, target.header.number, row.stored
        first, _ = shared.get(known, (None, vpn))
        content = None
        if first is None:
            content = source.spool.content(row)
            if source.spool.matches(row.stored) > 1:
                shared[known] = row, vpn
                new.append(row)
        row.block, row.index, row.length = IN_MEMORY, 0, 0
        if first is not None:
            row.stored = first.stored
            for name in ("block", "index", "length", "key_length", "header_length"):
                setattr(row, name, getattr(first, name))
            spool.add_match(row)
        elif content is not None:
            row.stored = spool.store(vpn, [content], row.size, 1)
        else:
            row.stored = spool.skip_id()
            spool.adopt(row.stored, vpn, None, row.size)
            row.block, row.length = LOST_BLOCK, 1
    spool.write_to_blocks(rows, live=True)
    for row in new:
        spool.add_match(row)


def _admit(queue: Queue, rows: list[Row]) -> None:
    queue.admit(rows)
    held = sorted((row for row in rows if row.state == LEASED), key=lambda row: row.number)
    for row in held:
        queue.leases.setdefault(row.holder, {})[row.id] = row
    queue.spill_over()


def tell_moved(of: Broker, queue: Queue, to: Broker, target: Queue, ids: list[int]) -> None:
    """Messages left a queue of one broker, and are in one of another."""
    of.record("transferred", queue, ids, reason=f"to broker {to.header.name}")
    to.record("spooled", target, ids, reason=f"from broker {of.header.name}")
