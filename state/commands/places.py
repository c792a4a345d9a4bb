"""Which messages a command means: their places in the queue, part by part as the budget allows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...expressions import predicate
from ...protocol.ids import COUNTER_BITS, COUNTER_MASK, ID_MAX, Ranges, make_id
from ..broker import Broker
from ..limits import Budget
from ..message import GONE, LEASED, MOVING
from ..queue import Queue
from ..rules import deferred
from ..rules.active_set import first_inactive
from ..rules.filters import matching
from ..storage import Array, Content
from .task import Task

FEW_PAGES = 4
ROWS_OF_OTHERS = 10_000  # ids that other brokers gave are looked up one by one, up to so many


@dataclass(slots=True)
class FoundPlaces:
    """Places of messages that are meant, and where to go on. ranges: the ids that were looked for,
    ids: those that the queue holds, both for what comes by id."""

    seqs: Array
    next: int
    last: bool
    ranges: Ranges
    ids: Array


_NO_IDS = np.zeros(0, np.uint64)
_NO_SEQS = np.zeros(0, np.int64)


def by_ids(broker: Broker, queue: Queue, task: Task, ranges: Ranges, budget: Budget) -> FoundPlaces:
    """The next messages of a queue whose ids are in these ranges."""
    if "by" not in task.done:
        task.done["by"] = "place" if _is_wide(broker, queue, ranges) else "id"
        task.done["until"] = broker.spool.next_id()  # ids from here on are not given yet
    if task.done["by"] == "place":
        return _in_pages(broker, queue, task.cursor, ranges, budget)
    ranges = broker.spool.rows_of(ranges, ROWS_OF_OTHERS, queue.number)
    ranges = [(low, min(high, task.done["until"] - 1)) for low, high in ranges]
    ranges = [(low, high) for low, high in ranges if low <= high]
    part, following = _clip(ranges, task.cursor, budget.rows)
    budget.take(sum(high - low + 1 for low, high in part))
    ids, seqs = broker.spool.held_by(part, queue.number)
    return FoundPlaces(_staying(queue, seqs), following or 0, following is None, part, ids)


def _staying(queue: Queue, seqs: Array) -> Array:
    """Of places those that are not on their way to another broker."""
    if not queue.header.moving or not len(seqs):
        return seqs
    staying: Array = seqs[queue.gather(seqs, "state") != MOVING]
    return staying


def _is_wide(broker: Broker, queue: Queue, ranges: Ranges) -> bool:
    """Whether the ids span more pages of the spool than the queue has pages at most, or may be many
    of other brokers'."""
    if broker.spool.foreign and sum(high - low for low, high in ranges) > ROWS_OF_OTHERS:
        return True
    low, high = make_id(broker.header.number, 0), broker.spool.next_id()
    clipped = ((max(a, low), min(b, high)) for a, b in ranges)
    spanned = sum((b >> queue.bits) - (a >> queue.bits) + 1 for a, b in clipped if a <= b)
    header = queue.header
    return spanned > max(FEW_PAGES, min(header.depth, (header.next_seq >> queue.bits) + 1))


def _clip(ranges: Ranges, start: int, most: int) -> tuple[Ranges, int | None]:
    """Up to ``most`` ids of ranges from ``start`` on, and the id to go on with, None at the end."""
    part: Ranges = []
    for low, high in ranges:
        if high < start:
            continue
        if most <= 0:
            return part, max(low, start)
        low = max(low, start)
        last = min(high, low + most - 1)
        part.append((low, last))
        most -= last - low + 1
        if last < high:
            return part, last + 1
    return part, None


def _in_pages(
    broker: Broker, queue: Queue, start: int, ranges: Ranges, budget: Budget
) -> FoundPlaces:
    """Rows of the queue's pages whose ids are in these ranges."""
    queue.settle()
    pages = queue.directory.overlapping(ranges, start >> queue.bits)
    if broker.spool.foreign:  # ids by which messages are known are not those of their rows
        pages = queue.directory.live(start >> queue.bits)
    for number in pages if ranges else ():
        page = queue.page(number)
        assert page is not None
        rows = np.flatnonzero(page.state[: page.used] != GONE)
        budget.take(len(rows) + 1)
        hit = _within(broker.spool.origins(page.id[rows]), ranges)
        hit &= page.state[rows] != MOVING
        following = (page.number + 1) << queue.bits
        if hit.any() or budget.spent:
            seqs = rows[hit].astype(np.int64) + page.base
            return FoundPlaces(seqs, following, False, [], _NO_IDS)
    return FoundPlaces(_NO_SEQS, 0, True, [], _NO_IDS)


def _within(ids: Array, ranges: Ranges) -> Array:
    """Which of these ids are in ascending ranges, of which there is one at least. Of very many
    only those near these ids are looked at."""
    if not len(ids):
        return np.zeros(0, bool)
    begin = max(bisect_right(ranges, (int(ids.min()), ID_MAX)) - 1, 0)
    end = bisect_right(ranges, (int(ids.max()), ID_MAX))
    near = ranges[begin : max(end, begin + 1)]
    lows = np.array([low for low, _ in near], np.uint64)
    highs = np.array([high for _, high in near], np.uint64)
    at = np.searchsorted(lows, ids, side="right") - 1
    inside: Array = (at >= 0) & (ids <= highs[np.maximum(at, 0)])
    return inside


def held_pages(
    queue: Queue, start: int, holder: int, budget: Budget, up_to: int | None = None
) -> FoundPlaces:
    """Messages that a subscription leases, from a place on; up_to: with ids not above this."""
    queue.settle()
    for number in queue.directory.leased(start >> queue.bits) if holder else ():
        page = queue.page(number)
        assert page is not None
        used = page.used
        mine = (page.state[:used] == LEASED) & (page.holder[:used] == holder)
        if up_to is not None:
            mine &= page.id[:used] <= np.uint64(up_to)
        rows = np.flatnonzero(mine)
        budget.take(len(rows) + 1)
        if len(rows) or budget.spent:
            seqs = rows.astype(np.int64) + (number << queue.bits)
            return FoundPlaces(seqs, (number + 1) << queue.bits, False, [], _NO_IDS)
    return FoundPlaces(_NO_SEQS, 0, True, [], _NO_IDS)


def meant(queue: Queue, where: str | None) -> int:
    """The place behind the messages that a command means that says no ids: all that are there now,
    of an expression the active ones (R5). What enters or becomes active later is not meant."""
    end = first_inactive(queue) if where is not None else None
    return queue.header.next_seq if end is None else end


def wanted_rows(
    broker: Broker, queue: Queue, task: Task, where: str | None, ranges: Ranges | None,
    budget: Budget, read: bool = False,
) -> FoundPlaces:  # fmt: skip
    """The next messages for which an expression is true and whose ids are in ranges. read: what
    becomes of them reads their payloads."""
    if "end" not in task.done:
        if where is not None:
            predicate("where", where)  # a bad one is refused also where nothing is stored
        task.done["end"] = meant(queue, where)
    end: int = task.done["end"]
    for page, live in queue.live_rows(task.cursor):
        base = page.base
        if base >= end:
            break
        rows = live[live < end - base]
        if queue.header.moving and not queue.header.deleted:
            rows = rows[page.state[rows] != MOVING]
        following = (page.number + 1) << queue.bits
        rows = rows[: max(budget.rows, 1)]
        sizes = page.size[rows] + np.int64(len(where or ""))
        if read or where is not None:
            rows = rows[: budget.fits(sizes)]
        if len(rows) < len(live) and len(rows):
            following = base + int(rows[-1]) + 1
        reads = int(sizes[: len(rows)].sum()) if read or where is not None else 0
        budget.take(len(rows), reads)
        if ranges is not None:
            rows = rows[_within(broker.spool.origins(page.id[rows]), ranges)]
        seqs = rows.astype(np.int64) + base
        if where is not None:
            seqs = seqs[np.array(matching(broker, queue, seqs, where), bool)]
        return FoundPlaces(seqs, following, False, [], _NO_IDS)
    return FoundPlaces(_NO_SEQS, 0, True, [], _NO_IDS)


# ---------------------------------------------------------------- acks without effect


def without_effect_of(broker: Broker, queue: Queue, ids: Array, name: str, why: str) -> None:
    """These acks do nothing: counted and journaled (L8)."""
    if len(ids):
        queue.count("ack_ignored", len(ids))
        broker.record("ack_ignored", queue, ids.tolist(), subscription=name, reason=why)


def early(broker: Broker, queue: Queue, ranges: Ranges, name: str) -> None:
    """Ids of an ack that are not given yet: kept for when their messages come (L9)."""
    next_id, last = broker.spool.next_id(), make_id(broker.header.number, COUNTER_MASK)
    ahead = [(max(low, next_id), min(high, last)) for low, high in ranges if high >= next_id]
    ahead = [(low, high) for low, high in ahead if low <= high]
    deferred.keep(broker, queue, ahead, name)


def without_effect(broker: Broker, queue: Queue, part: FoundPlaces, name: str) -> None:
    """Ids that were named and that the queue does not hold: gone already, or never held (L8, L9).

    The first `Limits.ignored_acks` of a part are looked up; of more nothing is said.
    """
    given: list[Array] = []
    left = broker.limits.ignored_acks
    for low, high in _gaps(part.ranges, sorted(part.ids.tolist())):
        last = min(high, low + left - 1)
        if low <= last:
            given.append(np.arange(low, last + 1, dtype=np.uint64))
            left -= last + 1 - low
    if not given:
        return
    ids = np.concatenate(given)
    held = (ids >> np.uint64(COUNTER_BITS)) != broker.header.number  # others' may be anywhere
    held[~held] = broker.spool.were_held(ids[~held], queue.number)
    without_effect_of(broker, queue, ids[held], name, "not in the queue")
    never = ids[~held]
    runs = np.split(never, np.flatnonzero(np.diff(never) > 1) + 1) if len(never) else []
    deferred.keep(broker, queue, [(int(run[0]), int(run[-1])) for run in runs], name)


def messages_at(
    broker: Broker, queue: Queue, seqs: Array
) -> Iterator[tuple[int, int, int, int, int, Content | None]]:
    """Place, id, size, state, publisher's priority and content of each message there."""
    spool, ids = broker.spool, queue.gather(seqs, "id")
    return zip(
        seqs.tolist(), ids.tolist(), queue.gather(seqs, "size").tolist(),
        queue.gather(seqs, "state").tolist(), spool.gather(ids, "priority").tolist(),
        spool.contents(ids), strict=True,
    )  # fmt: skip


def _gaps(ranges: Ranges, held: list[int]) -> Iterator[tuple[int, int]]:
    """The ids in ranges that are not among some, as ranges; both ascending."""
    at = 0
    for first, high in ranges:
        low = first
        while at < len(held) and held[at] <= high:
            if low < held[at]:
                yield low, held[at] - 1
            low = held[at] + 1
            at += 1
        if low <= high:
            yield low, high
