"""Move and edit: an administrator puts messages into another queue, or changes their headers (R6).

A moved message keeps its id, payload, key, headers, what it carries as a dead message, and the time
until which it is delayed. It enters the other queue behind what is there, by that queue's own
checks and expressions, and counts deliveries from nothing there. The publisher's TTL counts on,
unless it was spent before (as after a redrive). It is not stored again.

Both say in the journal who did it and why. `dry_run` changes nothing, and answers what would be
done now; the quotas of the other queue are those before the first message.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...expressions import Program
from ...protocol.commands import Change, Edit, Move
from ...protocol.errors import ConfigError
from ...protocol.ids import parse_ranges
from ..bridges.endpoint import is_endpoint
from ..broker import Broker
from ..limits import Budget
from ..mesh.known_places import moved
from ..message import DELAYED, LEASED, Event, apply, enter
from ..queue import Queue
from ..rules.deferred import settle_arrivals
from ..rules.edits import CHARACTERS_MAX, dead_part, with_edits
from ..rules.entering import Match, program_of, way_in
from ..rules.lifetime import expires_at
from ..storage import NEVER, Array
from .places import messages_at, wanted_rows
from .task import Task

LEASED_HERE = "leased"  # a consumer holds it
ALREADY_THERE = "already_there"  # the other queue has this message
LOST = "payload_missing"
TOO_MUCH = "edited_too_much"
MOVED_FROM, DEAD_OF = "moved from ", ", dead of "


def because(command: Change, *first: str) -> str:
    """Who asked for a change, and why, for the journal."""
    who = f"by {command.who}" if command.who else ""
    return ", ".join(text for text in (*first, who, command.why) if text)


class _MovePart:
    """A part of a move."""

    def __init__(self, broker: Broker, source: Queue, target: Queue, dry_run: bool) -> None:
        self.broker, self.source, self.target = broker, source, target
        self.program: Program | None = program_of(target)
        self.dry_run = dry_run
        self.gone: list[int] = []
        self.entered: dict[tuple[str, bool], tuple[list[int], list[int]]] = {}
        self.stayed: dict[str, int] = {}

    def take(self, seqs: Array) -> None:
        """Move what can be moved, in its order."""
        for seq, number, size, state, priority, content in messages_at(
            self.broker, self.source, seqs
        ):
            if state == LEASED or content is None:
                self.stay(LEASED_HERE if state == LEASED else LOST)
                continue
            found = self.match(number, size, priority, content)
            if isinstance(found, str):
                self.stay(found)
                continue
            self.gone.append(seq)
            if not self.dry_run:
                self.enter(found, seq, number, size)

    def stay(self, why: str) -> None:
        """Count a message that is not moved."""
        self.stayed[why] = self.stayed.get(why, 0) + 1

    def match(self, number: int, size: int, priority: int, content: tuple[Any, ...]) -> Match | str:
        """How a message enters the other queue, or why it cannot."""
        target = self.target
        if self.broker.spool.holds(number, target.number):
            return ALREADY_THERE
        return way_in(target, self.program, size, priority, content[0], content[1])

    def enter(self, found: Match, seq: int, number: int, size: int) -> None:
        """The message gets a match with the other queue."""
        broker, target = self.broker, self.target
        page, row = self.source.row(seq)
        extra = page.extras.get(row)
        dead = dead_part(extra)
        one = np.array([number], np.uint64)
        ttl_ends = int(broker.spool.gather(one, "ttl_ends")[0])
        spent = dead is not None or ttl_ends <= broker.now
        expires = expires_at(target.definition, broker.now, ttl_ends, own_only=spent)
        until = int(page.until[row]) if page.state[row] == DELAYED else NEVER
        broker.spool.add(number, (target.number, target.next_place()))
        arrivals = target.arrivals
        if extra is not None:
            arrivals.dead[len(arrivals.ids)] = extra
        arrivals.add(number, [size], found.priority, expires, until, found.barrier, found.lane)
        of = str((dead or {}).get("reason", ""))
        ids, ends = self.entered.setdefault((of, until == NEVER), ([], []))
        ids.append(number)
        ends.append(until)

    def close(self, why: str) -> None:
        """Give what moved its rows."""
        if self.dry_run or not self.gone:
            return
        broker, source, target = self.broker, self.source, self.target
        apply(broker, source, np.array(self.gone, np.int64), Event.MOVE, reason=why)
        enter(broker, target)
        broker.arrived_in.append(target)
        for (of, now), (ids, ends) in self.entered.items():
            reason = MOVED_FROM + source.definition.name + (DEAD_OF + of if of else "")
            broker.record("spooled", target, ids, reason=reason, until=NEVER if now else ends)
        settle_arrivals(broker)


def move(broker: Broker, queue: Queue, task: Task, command: Move, budget: Budget) -> bool:
    """Carry out the command; answers how many moved, and why others stayed."""
    vpn, name = broker.vpn_of(queue), queue.definition.name
    target = broker.find(vpn, command.to)
    if target is None or target is queue:
        wrong = "it is this queue" if target is queue else f"there is no such queue in VPN {vpn!r}"
        elsewhere = None if target is queue else moved(broker, vpn, command.to)
        if elsewhere is not None:
            wrong = f"{elsewhere}, and messages move within a broker: move the queue first"
        raise ConfigError(f"to: {command.to!r} – {wrong}")
    if is_endpoint(command.to):
        raise ConfigError(f"to: {command.to!r} – is the endpoint of a bridge, which fills it alone")
    ranges = parse_ranges(command.ids) if command.ids is not None else None
    why = because(command, f"to {command.to}")
    done = False
    total: dict[str, Any] = task.done.setdefault("why", {})
    while not done and not budget.spent:
        part = wanted_rows(broker, queue, task, command.where, ranges, budget, read=True)
        done, task.cursor = part.last, part.next
        work = _MovePart(broker, queue, target, command.dry_run)
        work.take(part.seqs)
        work.close(why)
        task.done["n"] = task.done.get("n", 0) + len(work.gone)
        for reason, n in work.stayed.items():
            total[reason] = total.get(reason, 0) + n
    count, stayed = task.done.get("n", 0), sum(total.values())
    task.result = {"count": count, "stayed": stayed, "why": dict(total)}
    if done and not command.dry_run:
        broker.event(
            "moved", vpn, name, to=command.to, moved=count, stayed=stayed, who=command.who,
            why=command.why,
        )  # fmt: skip
    return done


def edit(broker: Broker, queue: Queue, task: Task, command: Edit, budget: Budget) -> bool:
    """Carry out the command; answers how many messages have other headers, and why others not."""
    _check_headers(command)
    ranges = parse_ranges(command.ids) if command.ids is not None else None
    why = because(command, "headers " + " ".join(sorted(command.headers)))
    done = False
    while not done and not budget.spent:
        part = wanted_rows(broker, queue, task, command.where, ranges, budget)
        done, task.cursor = part.last, part.next
        changed: list[int] = []
        for seq in part.seqs.tolist():
            page, row = queue.row(seq)
            extra = with_edits(page.extras.get(row), command.headers)
            if extra is None:
                task.done["left"] = task.done.get("left", 0) + 1
                continue
            changed.append(int(page.id[row]))
            if not command.dry_run:
                page.extras[row] = extra
                queue.changed(page)
        if not command.dry_run:
            broker.record("edited", queue, changed, reason=why)
        task.done["n"] = task.done.get("n", 0) + len(changed)
    left = task.done.get("left", 0)
    task.result = {
        "count": task.done.get("n", 0), "stayed": left, "why": {TOO_MUCH: left} if left else {},
    }  # fmt: skip
    return done


def _check_headers(command: Edit) -> None:
    """What may be written into a message's headers."""
    if not command.headers:
        raise ConfigError("headers: {} – say which header gets which text, null removes it")
    for name in command.headers:
        if not name or name == "lq" or name.startswith("lq-"):
            raise ConfigError(f"headers: {name!r} – allowed are names that do not begin with lq-")
        if "\0" in name:  # Kafka's C library ends a name there
            raise ConfigError(f"headers: {name!r} – allowed are names without NUL characters")
    if with_edits(None, command.headers) is None:
        raise ConfigError(f"headers: they have more than {CHARACTERS_MAX:,} characters in all")
