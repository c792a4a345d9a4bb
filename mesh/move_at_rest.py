"""Moves a queue to another broker while both are at rest (M4).

Messages keep their ids, times, counts, states and order, and leases keep their ends: a subscription
moves with its leased messages. If the other broker has its part of a distributed queue already, the
messages go behind the ones there, as granted messages do (H4). Quotas are not checked: the home has
as many bytes as before.
"""

from __future__ import annotations

import msgspec

from ..state.commands.sessions import unbind
from ..state.queue.broker import Broker
from ..state.queue.broker_facts import KnownSession
from ..state.queue.header import ENTERED_MAX, QueueHeader
from ..state.queue.queue import Queue
from ..state.rules.after_entry import apply_early_ack, keep_last
from ..state.rules.dead import record_entry
from ..state.rules.routing import withdraw
from ..state.storage.ranges import union
from ..state.storage.row import DELAYED, IN_MEMORY, LEASED, NEVER, Row, by_arrival

LOST_BLOCK = (1 << 32) - 1  # no block has this number: its contents count as lost
PART = 1_000  # rows that are written to blocks at once
SUMS = ("counters", "rejected", "discarded")
SIZES = ("depth", "leased", "delayed", "bytes")
# By both brokers and the content's number: a row that has the content, and its VPN. Each counts as
# one more match until all has moved, because a queue may release what the next one still needs.
Shared = dict[tuple[int, int, int], tuple[Row, int]]


def rows_of(queue: Queue) -> list[Row]:
    """All messages of a queue in order of arrival."""
    rows = list(queue.live.values())
    for runs in (queue.cold, queue.later):
        for segment in runs.segments():
            rows += runs.read(segment)
    return sorted(rows, key=by_arrival)


def move_queue(
    source: Broker, queue: Queue, target: Broker, shared: Shared, into: Queue | None
) -> None:
    """Move a queue to another broker, or its messages into a queue there. The caller removes the
    old queue, with its broker or by `leave_behind`. shared: contents of several queues."""
    rows = [msgspec.structs.replace(row) for row in rows_of(queue)]
    before = set() if into is None else {row.id for row in rows_of(into)}
    ids = [row.id for row in rows]
    holders: dict[int, int] = {}
    if into is None:
        into = target.add_queue(_header(source, queue, target))
        holders = {one.number: one.number for one in queue.header.subscriptions}
    else:
        rows = _without_twins(source, queue, rows, before)
        add_counts(queue.header, into.header)
        for name in SIZES:
            setattr(into.header, name, getattr(into.header, name) + getattr(queue.header, name))
        _renumber(rows, into.header)
        for one in queue.header.subscriptions:
            holders[one.number] = one.number = into.header.next_subscription
            into.header.next_subscription += 1
            one.id = _free(one.id, into, source.header.number)
            into.consumers.add(one)
    for row in rows:
        row.holder = holders.get(row.holder, 0)
    for at in range(0, len(rows), PART):
        part = rows[at : at + PART]
        _store(source, target, part, into.header.vpn_number, shared)
        _admit(into, part)
    _take_subscriptions(source, queue, target, into)
    source.record("transferred", queue, ids, reason=f"to broker {target.header.name}")
    _record(target, into, rows, f"from broker {source.header.name}")
    for first, last, until in queue.early.state():
        into.early.put(first, last, until, target.limits.early_acks)
    if into.early.ranges:
        for row in rows:
            if row.id in into.live:
                apply_early_ack(target, into, row)
    into.wanted = True
    into.header.due_at = NEVER
    target.touch(into)
    # With quota 0 (S10), the message that entered last stays, wherever it was.
    keep_last(target, into, lambda row: (row.entered, row.id in before, row.seq))


def _record(target: Broker, into: Queue, rows: list[Row], came: str) -> None:
    """Journal the messages that have moved, and their leases, which go on."""
    record_entry(target, into, rows, came)
    for one in into.header.subscriptions:
        held = [row for row in rows if row.holder == one.number]
        ids, counts = [row.id for row in held], [row.deliveries for row in held]
        ends = [row.until for row in held]
        target.record("renewed", into, ids, counts, one.id, came, ends)


def leave_behind(broker: Broker, queue: Queue) -> None:
    """Remove a queue that has moved away from a broker that stays."""
    header, number = queue.header, queue.number
    if rows := rows_of(queue):
        broker.spool.release(rows, header.vpn_number)
    broker.unacked -= header.leased
    for one in header.subscriptions:
        session = one.session.removesuffix(f"@{broker.header.number}")
        unbind(broker, queue, one.id, session)
    header.depth = header.bytes = header.leased = header.delayed = 0
    withdraw(broker, queue)
    broker.touched.pop(number, None)
    broker.header.pending.pop(number, None)
    broker.header.merging = [n for n in broker.header.merging if n != number]
    broker.drop_queue(queue)


def _without_twins(source: Broker, queue: Queue, rows: list[Row], before: set[int]) -> list[Row]:
    """The messages that the other part of a queue does not have. A command may have moved a message
    into both parts from different queues; a part stores no id twice. before: the ids there."""
    header, kept = queue.header, []
    for row in rows:
        if row.id not in before:
            kept.append(row)
            continue
        queue.count("transferred")
        header.depth -= 1
        header.bytes -= row.size
        if row.state == DELAYED:
            header.delayed -= 1
        elif row.state == LEASED:
            header.leased -= 1
            source.unacked -= 1
            for one in header.subscriptions:
                one.held -= one.number == row.holder
    return kept


# ---------------------------------------------------------------- facts


def _header(source: Broker, queue: Queue, target: Broker) -> QueueHeader:
    number = target.header.next_queue
    target.header.next_queue += 1
    vpn_number = target.vpn_number(queue.definition.vpn)
    topics = list(queue.header.topics)  # `withdraw` empties the other list
    return msgspec.structs.replace(
        queue.header, number=number, vpn_number=vpn_number, topics=topics
    )


def add_counts(from_: QueueHeader, to: QueueHeader) -> None:
    """Add what one part of a queue has counted to another's (`describe`)."""
    for name in SUMS:
        counts: dict[str, int] = getattr(to, name)
        for what, n in getattr(from_, name).items():
            counts[what] = counts.get(what, 0) + n
    to.invalid += from_.invalid
    to.next_delivery = max(to.next_delivery, from_.next_delivery)
    to.taken = union([*to.taken, *from_.taken])[-ENTERED_MAX:]


def _renumber(rows: list[Row], header: QueueHeader) -> None:
    for row in rows:
        row.seq = header.next_seq
        header.next_seq += 1


def _free(name: str, queue: Queue, number: int) -> str:
    """A subscription's id, changed if the queue has this id already."""
    ids = {one.id for one in queue.header.subscriptions}
    return name if name not in ids else f"{name}@{number}"


def _take_subscriptions(source: Broker, queue: Queue, target: Broker, into: Queue) -> None:
    """Move the sessions of a removed broker with their subscriptions. They get names of their own,
    so that they are not confused with a client's next session here, and keep their deadlines."""
    target.unacked += queue.header.leased
    vpn = queue.definition.vpn
    for one in queue.header.subscriptions:
        old = source.sessions.get((vpn, one.session))
        if old is None:
            continue
        one.session = name = f"{one.session}@{source.header.number}"
        one.max_backlog = 0  # it keeps its leases; its client binds again where the queue is
        session = target.sessions.get((vpn, name))
        if session is None:
            session = target.sessions[vpn, name] = KnownSession(old.until)
            target.watch("s", (vpn, name), old.until)
        session.bound.append((into.number, one.id))
        target.changed("s", (vpn, name))


# ---------------------------------------------------------------- rows


def _store(source: Broker, target: Broker, rows: list[Row], vpn: int, shared: Shared) -> None:
    """Store contents in the other spool, once for all queues there."""
    spool = target.spool
    new: list[Row] = []
    for row in rows:
        key = source.header.number, target.header.number, row.stored
        first, _ = shared.get(key, (None, vpn))
        content = None
        if first is None:
            content = source.spool.content(row)
            if source.spool.matches(row.stored) > 1:
                shared[key] = row, vpn
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
