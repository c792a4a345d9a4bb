"""Redrive: dead messages go back to the queue they died in (X6, X5).

A message keeps its id, payload, key and headers; what it carried as a dead message is gone. It
enters its queue anew, behind what is there: its filter, priority and barrier expressions are
evaluated, deliveries and cancels count from nothing. A publisher's TTL that is spent no longer
counts, one that is not still does. It is not stored again, so only the queue's own checks apply.

A message of which several matches died into the same queue is there once, and goes back to each of
its queues. What cannot go back stays where it is, for the queues that did not take it. Why: the
reasons of S3, and those below.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..expressions import Program
from ..protocol.commands import Redrive
from .administration import chosen
from .broker import Broker
from .entering import Match, match, program_of, refusal
from .last_value import keep_last
from .lifecycle import LEASED
from .lifetime import expires_at
from .queue import Queue, QueuePage
from .storage import NEVER

NOT_DEAD = "not_dead"  # it was published here
LEASED_HERE = "leased"  # a consumer of the dead message queue holds it
NO_QUEUE = "no_such_queue"
FILTERED = "filter"
ALREADY_THERE = "already_there"  # the queue has this message again, or still
KEPT_LAST = "keeps_last_message"  # its queue keeps one message, and has one that is newer


class _Work:
    """One redrive: where messages went, and why others stayed."""

    def __init__(self, broker: Broker, source: Queue) -> None:
        self.broker = broker
        self.source = source
        self.programs: dict[int, Program | None] = {}
        self.moved: dict[int, tuple[Queue, list[int]]] = {}
        self.stayed: dict[str, int] = {}
        self.gone: list[int] = []  # those that left, having gone back to all their queues

    def page(self, page: QueuePage, rows: np.ndarray) -> None:
        """Take back what can go back of one page."""
        spool = self.broker.spool
        ids = page.id[rows]
        columns = zip(
            rows.tolist(), ids.tolist(), page.size[rows].tolist(), page.state[rows].tolist(),
            spool.gather(ids, "priority").tolist(), spool.gather(ids, "ttl_ends").tolist(),
            self.broker.contents(ids), strict=True,
        )  # fmt: skip
        gone: list[int] = []
        for row, number, size, state, priority, ttl_ends, (payload, key, _) in columns:
            dead = page.extras.get(row)
            if dead is None or state == LEASED:
                self.stay(NOT_DEAD if dead is None else LEASED_HERE)
                continue
            left: list[str] = []
            for name in (dead["queue"], *dead.get("also", ())):
                found = self.way(name, number, size, priority, payload, key)
                if isinstance(found, str):
                    self.stay(found)
                    left.append(name)
                else:
                    self.enter(found, number, size, ttl_ends)
            if left:
                page.extras[row] = _from(dead, left)
                page.dirty = True
            else:
                gone.append(row)
        if gone:
            done = self.source.remove(page, np.array(gone, np.intp))
            spool.release(self.source.number, done)
            self.gone += done.tolist()

    def stay(self, why: str) -> None:
        """Count a message that does not go back to one of its queues."""
        self.stayed[why] = self.stayed.get(why, 0) + 1

    def way(
        self, name: str, number: int, size: int, priority: int, payload: bytes, key: bytes | None
    ) -> Match | str:
        """How a message enters the queue it came from, or why it cannot."""
        broker = self.broker
        target = broker.find(broker.vpn_of(self.source), name)
        if target is None:
            return NO_QUEUE
        if broker.spool.holds(number, target.number):
            return ALREADY_THERE
        reason = refusal(target, size, priority)
        if reason is not None:
            return reason.value
        if not target.definition.max_spool_usage and target.header.depth:
            return KEPT_LAST
        if target.number not in self.programs:
            self.programs[target.number] = program_of(target)
        return match(target, self.programs[target.number], payload, priority, key) or FILTERED

    def enter(self, found: Match, number: int, size: int, ttl_ends: int) -> None:
        """The message gets a match with its queue again."""
        broker, target = self.broker, found.queue
        broker.spool.add(number, (target.number, target.next_place()))
        if ttl_ends <= broker.now:
            ttl_ends = NEVER
        expires = expires_at(target.definition, broker.now, ttl_ends)
        target.arrive(number, [size], found.priority, expires, NEVER, found.barrier)
        self.moved.setdefault(target.number, (target, []))[1].append(number)

    def close(self) -> dict[str, Any]:
        """Give what moved its rows; the answer."""
        broker, source = self.broker, self.source
        name = source.definition.name
        queues: dict[str, int] = {}
        for _, (target, ids) in sorted(self.moved.items()):
            target.take_in(broker.now)
            keep_last(broker, target)
            broker.record("spooled", target, ids, reason=f"redriven from {name}")
            queues[target.definition.name] = len(ids)
        source.count("redriven", len(self.gone))
        broker.record("redriven", source, self.gone)
        moved, stayed = sum(queues.values()), sum(self.stayed.values())
        vpn = broker.vpn_of(source)
        broker.note("redriven", vpn, name, moved=moved, stayed=stayed, why=dict(self.stayed))
        return {"moved": moved, "stayed": stayed, "queues": queues, "why": self.stayed}


def _from(dead: dict[str, Any], left: list[str]) -> dict[str, Any]:
    """What a dead message carries when it has gone back to all its queues but these."""
    changed = {**dead, "queue": left[0], "also": left[1:]}
    if not left[1:]:
        del changed["also"]
    return changed


def redrive(broker: Broker, queue: Queue, command: Redrive) -> dict[str, Any]:
    """Carry out the command; answers how many moved, to which queues, and why others stayed."""
    work = _Work(broker, queue)
    for page, rows in list(chosen(broker, queue, command.where, command.ids)):
        work.page(page, rows)
    return work.close()
