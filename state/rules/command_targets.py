"""The messages that a command concerns, part by part within the budget.

*By ids* (L8–L10, L13): few ids are looked up one by one; for many ids the queue is scanned. *By
scanning* (R6, X6): first the delayed rows by due time, then the others in delivery order, live and
cold ones merged. A scan over several steps misses no row: a delayed row that becomes ready is found
later, and a ready row does not become delayed, because a queue's commands wait for each other.

A command concerns the rows that were there when it began: their sequence is below `end`. An
expression concerns only active rows, with a key below `inactive` (R5). Cold rows that a command
changes become live.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from ...expressions import predicate
from ...protocol.commands import Ack
from ...protocol.ids import (
    COUNTER_BITS,
    COUNTER_MASK,
    ID_MAX,
    Ranges,
    count_ids,
    join_ranges,
    make_id,
    within,
)
from ..limits import PASSED_OVER, Budget
from ..queue.broker import Broker
from ..queue.header import Task, entered_between, has_entered
from ..queue.queue import Queue
from ..storage.ranges import without
from ..storage.row import DELAYED, LOWEST, MOVING, Row, by_arrival
from ..storage.runs import Runs
from ..storage.segments import Segment
from . import after_entry
from .active_set import first_inactive
from .filter_matching import afforded, matching

LOOK_UP_MAX = 1_024  # up to this many ids are always looked up one by one
EXACT_RANGES_MAX = 64  # up to this many ranges are looked up exactly in the set of ids


class Part(msgspec.Struct):
    """The next targets of a command. last: there are no more; named: the ids that were looked up,
    if some may be missing."""

    rows: list[Row] = []
    last: bool = False
    named: Ranges = []


# ---------------------------------------------------------------- scanning a queue


@dataclass(slots=True)
class RowWindow:
    """Consecutive rows. end: they are complete up to this key; None: up to the last row; cold: the
    segments that were read, with all their rows."""

    rows: list[Row]
    end: int | None
    cold: list[tuple[Segment, list[Row]]]


def window(
    live: Iterable[Row], runs: Runs, start: int, most: int, ranges: Ranges | None = None
) -> RowWindow:
    """The rows from a key on: live ones, and cold ones up to the end of the first segment.

    ranges: rows with other ids may be missing. most: about this many rows are enough.
    """
    by = runs.by
    segments = runs.segments()
    if ranges is not None and len(ranges) <= EXACT_RANGES_MAX:
        segments = runs.with_ids(ranges)
    elif ranges is not None:
        segments = [one for one in segments if _meets(ranges, one.id_first, one.id_last)]
    ahead = [segment for segment in segments if segment.last >= start]
    end = ahead[0].last if ahead else None
    cold: list[tuple[Segment, list[Row]]] = []
    rows = [row for row in live if start <= by(row) and (end is None or by(row) <= end)]
    rows, end = _nearest(rows, end, most, by)
    for segment in ahead:
        if end is None or segment.first > end:
            break
        found = runs.read(segment)
        cold.append((segment, found))
        rows += found[bisect_left(found, start, key=by) : bisect_right(found, end, key=by)]
        rows, end = _nearest(rows, end, most, by)
    return RowWindow(rows, end, cold)


def _nearest(
    rows: list[Row], end: int | None, most: int, by: Callable[[Row], int]
) -> tuple[list[Row], int | None]:
    """About ``most`` first rows in order, and the key up to which they are complete. Segments
    behind it need not be read."""
    rows.sort(key=by)
    return (rows, end) if len(rows) <= most else (rows[:most], by(rows[most - 1]))


def wanted(
    broker: Broker, queue: Queue, task: Task, where: str | None, ranges: Ranges | None,
    budget: Budget, *, read: bool = False, thaw: bool = True, moving: bool = False,
    only: Callable[[Row], bool] | None = None,
) -> Part:  # fmt: skip
    """The next messages for which an expression is true and whose ids are in ranges, in order of
    arrival.

    read: the command reads their payloads; thaw: cold ones become live; moving: include messages
    that are moving to another broker; only: without those for which it is false.
    """
    if "end" not in task.done:
        if where is not None:
            predicate("where", where)  # refuse a bad one even if nothing is stored
        inactive = None if where is None else first_inactive(queue)
        task.done["end"] = queue.header.next_seq
        task.done["inactive"] = None if inactive is None else f"{inactive:x}"  # above 64 bits
    end, inactive = task.done["end"], task.done["inactive"]
    active = None if inactive is None else int(inactive, 16)
    part = Part()
    later, start = True, LOWEST  # among the delayed rows?, and the key
    if task.cursor:
        later, start = task.cursor[0] == "d", int(task.cursor[1:])
    while not budget.spent and not part.last:
        runs = queue.later if later else queue.cold
        live = [row for row in queue.live.values() if (row.state == DELAYED) is later]
        found = window(live, runs, start, max(budget.rows, 1), ranges)
        rows = [row for row in found.rows if row.seq < end and (moving or row.state != MOVING)]
        if active is not None:
            rows = [row for row in rows if row.key < active]
        if ranges is not None:
            rows = [row for row in rows if within(row.id, ranges)]
        n = min(len(rows), max(budget.rows, 1))
        if read or where is not None:
            n = afforded(broker, rows[:n], where or "", budget)
        passed = sum(len(all_rows) for _, all_rows in found.cold) - n
        budget.take(n + max(passed // PASSED_OVER, 1) if found.cold else n)
        following = None if found.end is None else found.end + 1
        if n < len(rows):
            following = runs.by(rows[n])
            del rows[n:]
        if where is not None:
            verdicts = matching(broker, rows, where)
            rows = [row for row, yes in zip(rows, verdicts, strict=True) if yes]
        if only is not None:
            rows = [row for row in rows if only(row)]
        part.rows += rows
        if thaw:
            _thaw(queue, runs, found.cold, rows)
        if following is not None:
            start = following
        elif later:
            later, start = False, LOWEST
        else:
            part.last = True
    task.cursor = f"{'d' if later else 'r'}{start}"
    part.rows.sort(key=by_arrival)
    return part


def split_moving(
    broker: Broker, queue: Queue, command: Any, rows: list[Row]
) -> tuple[list[Row], int]:
    """Split the rows that a command means: those that stay here, and the number of those that are
    moving to another broker, to which the command is forwarded."""
    ids = [row.id for row in rows if row.state == MOVING]
    if not ids:
        return rows, 0
    here = [row for row in rows if row.state != MOVING]
    if getattr(command, "dry_run", False):
        return here, len(ids)
    return here, broker.mesh.forward_for_moving(queue, command, ids)


def _thaw(
    queue: Queue, runs: Runs, cold: list[tuple[Segment, list[Row]]], meant: list[Row]
) -> None:
    """Make the rows that are meant live."""
    ids = {row.id for row in meant} if cold else set()
    for segment, rows in cold:
        here = [row for row in rows if row.id in ids]
        if here:
            queue.thaw(runs, segment, here, [row for row in rows if row.id not in ids])


def _meets(ranges: Ranges, first: int, last: int) -> bool:
    """Whether ascending ranges overlap the range from first to last."""
    at = bisect_right(ranges, (last, ID_MAX)) - 1
    return at >= 0 and ranges[at][1] >= first


# ---------------------------------------------------------------- by ids


def by_ids(
    broker: Broker, queue: Queue, task: Task, ranges: Ranges, budget: Budget, *,
    read: bool = False, moving: bool = False,
) -> Part:  # fmt: skip
    """The next messages of a queue whose ids are in these ranges. read, moving: see `wanted`."""
    if "until" not in task.done:
        part = None if read else _all_live(queue, ranges, budget)
        if part is not None:  # most often
            return part
        task.done["until"] = broker.spool.next_id()  # ids from here on do not exist yet
        # With more ids than messages, scanning the queue is cheaper.
        spanned = count_ids(_existing(broker, task, ranges))
        task.done["wide"] = spanned > max(LOOK_UP_MAX, queue.header.depth)
    ranges = _existing(broker, task, ranges)
    if task.done["wide"]:
        return wanted(broker, queue, task, None, ranges, budget, read=read, moving=moving)
    has_cold, most = queue.cold.rows or queue.later.rows, budget.rows
    if has_cold:  # reading a segment for each must not overdraw the budget
        most = min(most, most * PASSED_OVER // broker.limits.segment_rows + 1)
    part = Part()
    part.named, following = _clip(ranges, int(task.cursor or 0), most)
    live = queue.live
    missing: list[int] = []
    for low, high in part.named:
        for number in range(low, high + 1):
            row = live.get(number)
            if row is None or (row.state == MOVING and not moving):
                missing.append(number)
            else:
                part.rows.append(row)
    budget.take(count_ids(part.named))
    n = afforded(broker, part.rows, "", budget) if read else len(part.rows)
    if n < len(part.rows):  # go on with the first that is too much
        following = part.rows[n].id
        part.rows, missing = part.rows[:n], [one for one in missing if one < following]
    if has_cold and missing:
        _find_cold(queue, part, missing, budget)
        budget.take(0, sum(row.size for row in part.rows[n:]) if read else 0)
    task.cursor, part.last = str(following or 0), following is None
    return part


def _all_live(queue: Queue, ranges: Ranges, budget: Budget) -> Part | None:
    """All named messages, if they are few and all live; else None."""
    live, most = queue.live, min(budget.rows, LOOK_UP_MAX)
    rows: list[Row] = []
    for low, high in ranges:
        if high - low >= most - len(rows):
            return None
        for number in range(low, high + 1):
            row = live.get(number)
            if row is None or row.state == MOVING:
                return None
            rows.append(row)
    budget.take(len(rows))
    return Part(rows, True)


def _existing(broker: Broker, task: Task, ranges: Ranges) -> Ranges:
    """These ids without those that this broker had not given out when the command began."""
    until, last = task.done["until"], make_id(broker.home.number, COUNTER_MASK)
    if not ranges or ranges[-1][1] < until or ranges[0][0] > last:  # most often
        return ranges
    existing: Ranges = []
    for low, high in ranges:
        existing += [(low, min(high, until - 1)), (max(low, last + 1), high)]
    return [(low, high) for low, high in existing if low <= high]


def _clip(ranges: Ranges, start: int, most: int) -> tuple[Ranges, int | None]:
    """Up to ``most`` ids of ranges, from ``start`` on, and the id to go on with; None at the
    end."""
    part: Ranges = []
    at = max(bisect_right(ranges, (start, ID_MAX)) - 1, 0)
    for low, high in ranges[at:]:
        low = max(low, start)
        if low > high:
            continue
        if most <= 0:
            return part, low
        last = min(high, low + most - 1)
        part.append((low, last))
        most -= last - low + 1
        if last < high:
            return part, last + 1
    return part, None


def _find_cold(queue: Queue, part: Part, missing: list[int], budget: Budget) -> None:
    """Add the named messages that are cold. They become live."""
    ids = set(missing)
    ranges = join_ranges([(number, number) for number in missing])
    for runs in (queue.cold, queue.later):
        for segment in runs.with_ids(ranges):
            rows = runs.read(segment)
            meant = [row for row in rows if row.id in ids]
            part.rows += meant
            budget.take(len(rows) // PASSED_OVER)
            _thaw(queue, runs, [(segment, rows)], meant)


# ---------------------------------------------------------------- acks without effect


def ignore(broker: Broker, queue: Queue, ids: list[int], subscription: str, why: str) -> None:
    """Count and journal acks without effect (L8)."""
    if ids:
        queue.count("ack_ignored", len(ids))
        broker.touch(queue)
        broker.record("ack_ignored", queue, ids, subscription=subscription, reason=why)


def ignore_missing(
    broker: Broker, queue: Queue, task: Task, part: Part, ranges: Ranges, command: Ack
) -> None:
    """Handle named ids that the queue does not have. An ack for an id that has left is ignored
    (L8), for an id that never entered it is kept (L9). The journal names ids that were looked up; a
    scan only counts them."""
    if "until" not in task.done:
        return  # all are here
    if "gone" not in task.done:
        _keep_early_acks(broker, queue, task, ranges, command)
    if command.quiet:
        return
    if task.done["wide"]:
        gone = task.add("gone", -len(part.rows))
        if part.last and gone > 0:
            queue.count("ack_ignored", gone)
            broker.touch(queue)
            why, d = f"{gone} of {ranges[0][0]}-{ranges[-1][1]}: not in the queue", queue.definition
            broker.note("ack_ignored", d.vpn, d.name, command.subscription, why)
        return
    here, taken = {row.id for row in part.rows}, queue.header.taken
    ids = [
        number for low, high in part.named for number in range(low, high + 1)
        if number not in here  # ids of other brokers may be anywhere
        and (number >> COUNTER_BITS != broker.home.number or has_entered(taken, number))
    ]  # fmt: skip
    ignore(broker, queue, ids, command.subscription, "not in the queue")


def _keep_early_acks(
    broker: Broker, queue: Queue, task: Task, ranges: Ranges, command: Ack
) -> None:
    """Keep an ack for this broker's ids that have never been in the queue, and count those that
    have. `quiet`: other brokers get the same ack, so only ids that do not exist yet are kept."""
    first, last = make_id(broker.home.number, 0), make_id(broker.home.number, COUNTER_MASK)
    named, until = [[low, high] for low, high in ranges], task.done["until"]
    entered = entered_between(queue.header.taken, ranges[0][0], ranges[-1][1], first)
    never, ahead = without(named, entered), [[until, last]]
    task.done["gone"] = count_ids(without(named, ahead)) - count_ids(without(never, ahead))
    early = without(never, [[0, (until if command.quiet else first) - 1], [last + 1, ID_MAX]])
    after_entry.keep_early_acks(broker, queue, early, command.subscription)
