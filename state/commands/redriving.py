"""Redrive: dead messages go back to the queue they died in (X6, X5).

A message keeps its id, payload, key and headers; what it carried as a dead message is gone. It
enters its queue anew, behind what is there: its filter, priority and barrier expressions are
evaluated, deliveries and cancels count from nothing, and the publisher's TTL no longer counts. It
is not stored again, so only the queue's own checks apply.

A message of which several matches died into the same queue is there once, and goes back to each of
its queues. What cannot go back stays where it is, for the queues that did not take it. Why: the
reasons of S3, and those below.
"""

from __future__ import annotations

from ...protocol.commands import Redrive
from ...protocol.ids import parse_ranges
from ..limits import Budget
from ..queue.broker import Broker
from ..queue.change import apply
from ..queue.header import Task
from ..queue.queue import Queue
from ..queue.table import Event
from ..rules.command_targets import wanted
from ..rules.dead import died_in, find_any, names_of
from ..rules.edits import back_in, dead_part, edits_part
from ..rules.entry_checks import Match, program_of, way_in
from ..storage.row import LEASED, NEVER, Row
from .moving import ALREADY_THERE, LEASED_HERE, LOST, copy_into, is_there, settle

NOT_DEAD = "not_dead"  # it was published here
NO_QUEUE = "no_such_queue"


def redrive(broker: Broker, queue: Queue, task: Task, command: Redrive, budget: Budget) -> bool:
    """Carry out the command; answers how many moved, to which queues, and why others stayed."""
    ranges = parse_ranges(command.ids) if command.ids is not None else None
    part = wanted(broker, queue, task, command.where, ranges, budget, read=True)
    counts: dict[str, int] = task.done.setdefault("queues", {})
    stayed: dict[str, int] = task.done.setdefault("why", {})
    entered: dict[int, list[Row]] = {}  # by queue
    gone = [row for row in part.rows if _take_back(broker, queue, row, entered, stayed)]
    apply(broker, queue, gone, Event.REDRIVE)
    broker.touch(queue)
    for number, rows in sorted(entered.items()):
        target = broker.queues[number]
        reason = f"redriven from {queue.definition.name}"
        broker.record("spooled", target, [row.id for row in rows], reason=reason)
        name = target.header.stands_for or target.definition.name
        counts[name] = counts.get(name, 0) + len(rows)
        settle(broker, target, rows)
    if not part.last:
        return False
    moved, left = sum(counts.values()), sum(stayed.values())
    task.result = {"moved": moved, "stayed": left, "queues": dict(counts), "why": dict(stayed)}
    broker.event(
        "redriven", broker.vpn_of(queue), queue.definition.name, moved=moved, stayed=left,
        why=dict(stayed),
    )  # fmt: skip
    return True


def _take_back(
    broker: Broker, source: Queue, row: Row, entered: dict[int, list[Row]], stayed: dict[str, int]
) -> bool:
    """A message enters the queues in which it died; whether that is all of them."""
    dead = dead_part(row.extras)
    if dead is None or row.state == LEASED:
        why = NOT_DEAD if dead is None else LEASED_HERE
        stayed[why] = stayed.get(why, 0) + 1
        return False
    left: list[str] = []
    for name in names_of(dead):
        found = _way_back(broker, source, name, row)
        if isinstance(found, str):
            left.append(name)
            stayed[found] = stayed.get(found, 0) + 1
            continue
        along = back_in(name, row.extras)
        copy = copy_into(broker, found, row, NEVER, along, NEVER, own_only=True)
        entered.setdefault(found.queue.number, []).append(copy)
    if left:
        row.extras = {**died_in(dead, left), **edits_part(row.extras)}
    return not left


def _way_back(broker: Broker, source: Queue, name: str, row: Row) -> Match | str:
    """How a message enters a queue in which it died, or why it cannot."""
    target = find_any(broker, broker.vpn_of(source), name)
    if target is None:
        return NO_QUEUE
    if target is source or is_there(broker, target, row):
        return ALREADY_THERE
    if program_of(target) is None:  # nobody looks into it
        return way_in(target, row.size, row.priority, b"", None)
    content = broker.spool.content(row)
    if content is None:
        return LOST
    return way_in(target, row.size, row.priority, content[0], content[1])
