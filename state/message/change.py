"""The one place where the state of a message changes.

`apply` does to messages of a queue what the table says for an event: it checks the states they are
in, moves the rows, keeps the queue's counts, the ready index and the filters' indexes true, writes
the journal, counts, and lets the spool's match go or hands it to the dead message queue. Nothing
else writes a state, and nothing is done by half: what is not in the table changes nothing at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..dead import dead_letter
from ..few import total_of
from ..rules.edits import carried_on
from ..rules.lanes import LaneChange
from ..rules.order import barrier_key
from ..storage import NEVER, Array
from .index import follow_lanes, leave_ready, make_ready, set_aside
from .pages import QueuePage
from .table import (
    DEAD,
    DELAYED,
    EFFECTS,
    GONE,
    LEASED,
    MOVING,
    READY,
    RELEASED,
    SOURCES,
    Event,
)

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import PageRows, Queue

_ALLOWED = {event: bytes(sorted(states)) for event, states in SOURCES.items()}
_DELIVERED = frozenset({Event.DELIVER, Event.REDELIVER})
_CANCELED = frozenset({Event.CANCEL, Event.CANCEL_LATER, Event.CANCEL_LAST})


class IllegalTransition(Exception):
    """A message is in a state in which this cannot happen to it: a mistake in the engine."""


class _Moved:
    """What one `apply` has seen, in the order of the places it was given."""

    def __init__(self, n: int) -> None:
        self.ids = np.zeros(n, np.uint64)
        self.counts = np.zeros(n, np.uint32)
        self.sizes = np.zeros(n, np.int64)
        self.holders = np.zeros(n, np.uint32)
        self.was_ready: list[Array] = []  # places that leave the ready index
        self.is_ready: list[Array] = []  # places that enter it
        self.barriers: list[int] = []  # keys of those that are gone
        self.along: dict[int, dict[str, Any]] = {}  # `carried_on` of those that are gone, by id


def apply(
    broker: Broker,
    queue: Queue,
    seqs: Array,
    event: Event,
    *,
    subscription: str = "",
    holder: int = 0,
    until: int = NEVER,
    reason: str = "",
    detail: str = "",
) -> Array:
    """Let an event happen to the messages at these places; gives their ids.

    subscription: who did it, for the journal; holder: number of the subscription that gets them, or
    of the broker that is to own them;
    until: epoch ms, the end of the lease or of the delay. Raises IllegalTransition.
    """
    if not len(seqs):
        return np.zeros(0, np.uint64)
    effect = EFFECTS[event]
    pages = queue.rows(seqs)
    for page, rows, _ in pages:
        others = page.state[rows].tobytes().translate(None, _ALLOWED[event])
        if others:
            raise IllegalTransition(f"{queue.definition.name}: {event} from state {others[0]}")
    moved = _Moved(len(seqs))
    header = queue.header
    lanes = LaneChange(queue, seqs) if header.keyed else None
    if effect.to == LEASED and event in _DELIVERED:
        _deliver(queue, pages, holder)
    for page, rows, where in pages:
        _move(queue, page, rows, where, effect.to, until, moved, event)
        if effect.to == MOVING:  # what is left of its life is the next owner's affair
            page.holder[rows], page.expires[rows] = holder, NEVER
    _index(broker, queue, moved)
    changed = np.asarray(seqs, np.int64)
    if lanes is not None:
        changed = np.concatenate((changed, follow_lanes(broker, queue, lanes)))
    if event is not Event.RENEW:
        set_aside(queue, changed)
    if not header.depth:  # nothing is left whose order would have to be kept
        header.ordered = header.keyed = False
        if not broker.header.peers or queue.definition.type == "LocalQueue":
            header.generation = 0  # else other hosts count on from it
    for name in effect.counts:
        queue.count(name, len(seqs))
    if event is Event.ACKNOWLEDGE:
        moved.holders[:] = 0  # who acknowledges is named, not who held it
    ends = until if effect.to in (LEASED, DELAYED) else NEVER
    _write_down(broker, queue, moved, effect.journal, subscription, reason, detail, ends)
    if effect.match == RELEASED:
        broker.spool.release(queue.number, moved.ids)
    elif effect.match == DEAD:
        dead_letter(
            broker, queue, moved.ids, moved.sizes, moved.counts, reason, detail, moved.along
        )
    if effect.to != LEASED:
        queue.wanted = True
    return moved.ids


def _deliver(queue: Queue, pages: PageRows, holder: int) -> None:
    """What only a delivery changes besides: who holds it, its attempt, its number."""
    header = queue.header
    total = sum(len(rows) for _, rows, _ in pages)
    numbers = np.arange(header.next_delivery, header.next_delivery + total, dtype=np.uint64)
    header.next_delivery += total
    for page, rows, where in pages:
        page.holder[rows] = holder
        page.deliveries[rows] += 1
        page.delivery[rows] = numbers[where]
    for subscription in header.subscriptions:
        if subscription.number == holder:
            subscription.held += total


def _move(
    queue: Queue, page: QueuePage, rows: Array, where: Array | slice, to: int, until: int,
    moved: _Moved, event: Event,
) -> None:  # fmt: skip
    """The rows of one page change their state."""
    header = queue.header
    states = page.state[rows]
    before = states.tobytes()
    leased = before.count(LEASED)
    moved.ids[where] = page.id[rows]
    if event in (Event.HAND_BACK, Event.HOLD):  # L5: handed back untouched is no attempt
        page.deliveries[rows] -= 1
    elif event in _CANCELED:
        page.cancels[rows] += 1
    moved.counts[where] = page.deliveries[rows]
    if leased:
        held = rows
        moved.holders[where] = page.holder[rows]
        if leased < len(rows):  # of some, as seldom
            held = rows[states == LEASED]
            moved.holders[where] = np.where(states == LEASED, page.holder[rows], 0)
        if to != LEASED:
            _let_go(queue, page, held)
    if to == LEASED:
        header.leased += len(rows) - leased
    header.delayed += (to == DELAYED) * len(rows) - before.count(DELAYED)
    if header.moving:
        moving = rows[states == MOVING]
        header.moving -= len(moving)
        page.holder[moving] = 0
    header.moving += (to == MOVING) * len(rows)
    plain = page.barrier[rows] == 0 if queue.barriers else None
    free = rows  # of lanes only the next one is in the index (O4), and barriers are not (O3)
    if plain is not None or header.keyed:
        free = rows[(page.barrier[rows] == 0) & (page.lane[rows] == 0)]
    base = page.base
    leaving = free[page.state[free] == READY] if before.count(READY) else free[:0]
    if len(leaving):
        moved.was_ready.append(leaving.astype(np.int64) + base)
    ends = until if to in (LEASED, DELAYED) else NEVER
    page.state[rows] = to
    page.until[rows] = ends
    if to == READY:
        moved.is_ready.append(free.astype(np.int64) + base)
    elif to == GONE:
        sizes = page.size[rows]
        moved.sizes[where] = sizes
        header.depth -= len(rows)
        header.bytes -= total_of(sizes)
        if plain is not None:
            gone = rows[~plain]
            ranks = zip(gone.tolist(), page.generation[gone].tolist(), strict=True)
            moved.barriers += [barrier_key(base + row, rank) for row, rank in ranks]
        for row in rows.tolist() if page.extras else ():
            if along := carried_on(page.extras.pop(row, None)):
                moved.along[int(page.id[row])] = along
    queue.changed(page, ends)


def _let_go(queue: Queue, page: QueuePage, rows: Array) -> None:
    """Leased rows are no longer held."""
    holders = page.holder[rows]
    for subscription in queue.header.subscriptions:
        if subscription.held:
            subscription.held -= int(np.count_nonzero(holders == subscription.number))
    queue.header.leased -= len(rows)
    page.holder[rows] = 0


def _index(broker: Broker, queue: Queue, moved: _Moved) -> None:
    """Ready index and filters follow the states."""
    if moved.was_ready:
        leave_ready(queue, np.concatenate(moved.was_ready))
    if moved.is_ready:
        make_ready(broker, queue, np.concatenate(moved.is_ready))
    queue.barriers.discard(sorted(moved.barriers))


def _write_down(
    broker: Broker, queue: Queue, moved: _Moved, events: tuple[str, ...], subscription: str,
    reason: str, detail: str, until: int,
) -> None:  # fmt: skip
    """Into the journal: a row for each message and event. Where the engine itself ends leases, by
    whom each was held."""
    if not events:
        return
    ids, counts = moved.ids, moved.counts
    last = len(events) - 1
    for at, event in enumerate(events):
        why = (detail or reason) if event == "consumer_rejected" else reason if at == last else ""
        if subscription or not moved.holders.any():
            broker.record(
                event, queue, ids.tolist(), counts=_column(counts), subscription=subscription,
                reason=why, until=until,
            )  # fmt: skip
            continue
        names = {s.number: s.id for s in queue.header.subscriptions}
        for number in np.unique(moved.holders).tolist():
            mine = moved.holders == number
            broker.record(
                event, queue, ids[mine].tolist(), counts=_column(counts[mine]),
                subscription=names.get(number, ""), reason=why, until=until,
            )  # fmt: skip


def _column(counts: Array) -> list[int] | int:
    values: list[int] = counts.tolist()
    return values[0] if values.count(values[0]) == len(values) else values
