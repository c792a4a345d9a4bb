"""Redrive: dead messages go back to the queue they died in (X6, X5).

A message keeps its id, payload, key and headers; what it carried as a dead message is gone. It
enters its queue anew, behind what is there: its filter, priority and barrier expressions are
evaluated, deliveries and cancels count from nothing, and the publisher's TTL no longer counts. It
is not stored again, so only the queue's own checks apply. Where its queue is on another broker,
that one decides (`mesh.going_back`), and the answer waits for it.

A message of which several matches died into the same queue is there once, and goes back to each of
its queues. What cannot go back stays where it is, for the queues that did not take it. Why: the
reasons of S3, and those below.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...expressions import Program
from ...protocol.commands import Redrive
from ...protocol.ids import parse_ranges
from ..broker import Broker
from ..dead import died_in, names_of, takes_as_they_are
from ..limits import Budget
from ..mesh.going_back import is_elsewhere, send_back
from ..mesh.known_places import is_moving
from ..mesh.redrive_tickets import answer_of, finish, tell_event
from ..mesh.taking_back import ALREADY_THERE, MOVES, NO_QUEUE
from ..message import LEASED, Event, apply, enter
from ..queue import Queue
from ..rules.deferred import settle_arrivals
from ..rules.edits import EDITED, FIRST, back_in, dead_part, edits_part
from ..rules.entering import Match, program_of, way_in
from ..rules.lifetime import expires_at
from ..storage import NEVER, Array
from .answers import ELSEWHERE
from .places import messages_at, wanted_rows
from .task import Task

NOT_DEAD = "not_dead"  # it was published here
LEASED_HERE = "leased"  # a consumer of the dead message queue holds it
_BESIDE = {"also", EDITED, FIRST}  # in a row's extras: to be looked at by itself
AWAY = ""  # no reason to stay: another broker has its queue


class _RedrivePart:
    """A part of a redrive: where messages went, and why others stayed. away: of places, the queues
    on other brokers to which they are to go."""

    def __init__(self, broker: Broker, source: Queue) -> None:
        self.broker = broker
        self.source = source
        self.away: list[tuple[int, list[str]]] = []
        self.programs: dict[int, Program | None] = {}
        self.moved: dict[int, tuple[Queue, list[int]]] = {}
        self.stayed: dict[str, int] = {}
        self.gone: list[int] = []  # places of those that go back to all their queues

    def take(self, seqs: Array) -> None:
        """Take back what can go back, in its order: neighbours that came from one queue together,
        where it takes them as they are."""
        states = self.source.gather(seqs, "state").tolist()
        runs: list[tuple[str, list[int]]] = []
        for seq, state in zip(seqs.tolist(), states, strict=True):
            page, row = self.source.row(seq)
            dead = page.extras.get(row) or {}
            simple = _BESIDE.isdisjoint(dead) and state != LEASED
            name = dead.get("queue", "") if simple else ""
            if not runs or runs[-1][0] != name:
                runs.append((name, []))
            runs[-1][1].append(seq)
        for name, places in runs:
            run = np.array(places, np.int64)
            if not name or not self.take_together(name, run):
                self.take_one_by_one(run)

    def take_together(self, name: str, seqs: Array) -> bool:
        """Give messages back to the queue they came from, if it takes all of them as they are."""
        broker, source = self.broker, self.source
        target = broker.find(broker.vpn_of(source), name)
        sizes = source.gather(seqs, "size")
        if target is None or is_moving(target) or not target.header.ingress:
            return False
        d = target.definition
        limited = d.reject_low_priority_msg_limit is not None or sizes.max() > d.max_message_size
        if limited or not takes_as_they_are(target, int(sizes.sum())):
            return False
        ids = source.gather(seqs, "id")
        spool = broker.spool
        if not spool.may_move(ids, source.number, target.number).all():
            return False
        if spool.may_stand_twice(ids).any():
            return False
        broker.spool.move_all(ids, source.number, target.number, target.next_place())
        expires = expires_at(d, broker.now, NEVER, own_only=True)
        target.arrivals.add_moved(ids.tolist(), sizes.tolist(), expires)
        self.moved.setdefault(target.number, (target, []))[1].extend(ids.tolist())
        self.gone += seqs.tolist()
        return True

    def take_one_by_one(self, seqs: Array) -> None:
        """Take back what can go back, with a look at each."""
        for seq, number, size, state, priority, content in messages_at(
            self.broker, self.source, seqs
        ):
            page, row = self.source.row(seq)
            extra = page.extras.get(row)
            dead = dead_part(extra)
            if dead is None or state == LEASED or content is None:
                self.stay(NOT_DEAD if dead is None else LEASED_HERE)
                continue
            left: list[str] = []
            away: list[str] = []
            for name in names_of(dead):
                found = self.match(name, number, size, priority, content)
                if isinstance(found, Match):
                    self.enter(found, number, size, back_in(name, extra))
                    continue
                left.append(name)
                if found == AWAY:
                    away.append(name)
                else:
                    self.stay(found)
            if away:
                self.away.append((seq, away))
            if left:
                page.extras[row] = {**died_in(dead, left), **edits_part(extra)}
                self.source.changed(page)
            else:
                self.gone.append(seq)

    def stay(self, why: str) -> None:
        """Count a message that does not go back to one of its queues."""
        self.stayed[why] = self.stayed.get(why, 0) + 1

    def match(
        self, name: str, number: int, size: int, priority: int, content: tuple[Any, ...]
    ) -> Match | str:
        """How a message enters the queue it came from, or why it cannot; AWAY: it is not here."""
        broker = self.broker
        vpn = broker.vpn_of(self.source)
        target = broker.find(vpn, name)
        if target is None:
            return AWAY if is_elsewhere(broker, vpn, name) else NO_QUEUE
        if is_moving(target):
            return MOVES
        if broker.spool.held_as(number, target.number) is not None:
            return ALREADY_THERE
        if target.number not in self.programs:
            self.programs[target.number] = program_of(target)
        program = self.programs[target.number]
        return way_in(target, program, size, priority, content[0], content[1])

    def enter(self, found: Match, number: int, size: int, along: dict[str, Any]) -> None:
        """The message gets a match with its queue again."""
        broker, target = self.broker, found.queue
        broker.spool.add(number, (target.number, target.next_place()))
        expires = expires_at(target.definition, broker.now, NEVER, own_only=True)
        if along:
            target.arrivals.dead[len(target.arrivals.ids)] = along
        target.arrivals.add(
            number, [size], found.priority, expires, NEVER, found.barrier, found.lane
        )
        self.moved.setdefault(target.number, (target, []))[1].append(number)

    def close(self) -> dict[str, int]:
        """Give what moved its rows; how many went to each queue."""
        broker, source = self.broker, self.source
        apply(broker, source, np.array(self.gone, np.int64), Event.REDRIVE)
        queues: dict[str, int] = {}
        for _, (target, ids) in sorted(self.moved.items()):
            enter(broker, target)
            broker.arrived_in.append(target)
            reason = f"redriven from {source.definition.name}"
            broker.record("spooled", target, ids, reason=reason)
            queues[target.definition.name] = len(ids)
        settle_arrivals(broker)
        return queues


def _add(total: dict[str, int], more: dict[str, int]) -> None:
    for name, n in more.items():
        total[name] = total.get(name, 0) + n


def redrive(broker: Broker, queue: Queue, task: Task, command: Redrive, budget: Budget) -> bool:
    """Carry out the command; answers how many moved, to which queues, and why others stayed."""
    ranges = parse_ranges(command.ids) if command.ids is not None else None
    if not task.done:
        task.done = {"queues": {}, "why": {}}
    done = False
    while not done and not budget.spent:
        part = wanted_rows(broker, queue, task, command.where, ranges, budget, read=True)
        done, task.cursor = part.last, part.next
        work = _RedrivePart(broker, queue)
        work.take(part.seqs)
        _add(task.done["queues"], work.close())
        _add(task.done["why"], work.stayed)
        send_back(broker, queue, task, work.away)
    if not done:
        return False
    if finish(broker, task, command):
        task.result = ELSEWHERE
        return True
    task.result = answer_of(task.done["queues"], task.done["why"])
    tell_event(broker, broker.vpn_of(queue), queue.definition.name, task.result)
    return True
