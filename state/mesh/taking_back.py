"""Dead messages come back to the queue in which they died, from another broker (X6).

See `going_back`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.dead_letters import GoBack, WentBack
from ..message import enter
from ..rules.entering import Match, program_of, way_in
from ..rules.lifetime import expires_at
from ..storage import NEVER
from . import known_places, ownership
from .columns_said import stage
from .dead_ways import place_of
from .hosting import initial_owner
from .saying import say

if TYPE_CHECKING:
    from ...expressions import Program
    from ..broker import Broker
    from ..queue import Queue

NO_QUEUE = "no_such_queue"
MOVES = "queue_moves"  # to another broker just now
FAILED = "failed"  # its broker could not take the record, and has said so (`mesh_refused`)
ALREADY_THERE = "already_there"  # the queue has this message again, or still


def take_back(broker: Broker, sender: int, said: GoBack) -> None:
    """Dead messages for a queue that may be here: it takes what passes its checks, as from a
    redrive on this broker. They are stored here anew, so quotas of the broker and the VPN count."""
    queue = broker.find(said.vpn, said.queue)
    owner = None if queue is None else initial_owner(broker, queue)
    if queue is None or owner is not None:
        place = place_of(broker, said.vpn, said.queue) if owner is None else owner
        if place is None:
            _answer(broker, sender, said, [], {NO_QUEUE: said.refs})
        else:
            _answer(broker, sender, said, [], {}, said.refs, place)
        return
    if known_places.is_moving(queue):
        _answer(broker, sender, said, [], {MOVES: said.refs})
        return
    taken: list[int] = []
    stayed: dict[str, list[int]] = {}
    rows: list[int] = []
    program = program_of(queue)
    for at, ref in enumerate(said.refs):
        found = _way_in(broker, queue, program, said, at)
        if isinstance(found, Match):
            rows.append(_store(broker, queue, said, at, found))
            taken.append(ref)
        else:
            stayed.setdefault(found, []).append(ref)
    if rows:
        broker.spool.settle_staged()
        enter(broker, queue)
        broker.arrived_in.append(queue)
        broker.record("spooled", queue, rows, reason=f"redriven from {said.source}")
    _answer(broker, sender, said, taken, stayed)


def _way_in(
    broker: Broker, queue: Queue, program: Program | None, said: GoBack, at: int
) -> Match | str:
    """How one of them enters the queue, or why it cannot."""
    if broker.spool.held_under(said.ids[at], queue.number) is not None:
        return ALREADY_THERE
    size, priority = said.sizes[at], said.priorities[at]
    full = ownership.no_room(broker, queue, size)
    if full is not None:
        return full.value
    return way_in(queue, program, size, priority, said.payloads[at], said.keys[at])


def _store(broker: Broker, queue: Queue, said: GoBack, at: int, found: Match) -> int:
    """Store it; gives its row."""
    arrivals = queue.arrivals
    number = stage(broker, queue, said, at)
    if said.dead[at]:
        arrivals.dead[len(arrivals.ids)] = said.dead[at]
    expires = expires_at(queue.definition, broker.now, NEVER, own_only=True)
    arrivals.add(
        number, [said.sizes[at]], found.priority, expires, NEVER, found.barrier, found.lane
    )
    return number


def refuse_all(broker: Broker, sender: int, said: GoBack) -> None:
    """The record failed here."""
    _answer(broker, sender, said, [], {FAILED: said.refs})


def _answer(
    broker: Broker, sender: int, said: GoBack, taken: list[int], stayed: dict[str, list[int]],
    missed: list[int] | None = None, to: int = -1,
) -> None:  # fmt: skip
    told = WentBack(said.vpn, said.queue, said.ticket, taken, stayed, missed or [], to)
    say(broker, sender, told)
