"""A local queue moves to another broker with its messages, while it is in use.

    keeper          the broker that has it          the broker where it goes
      │ Carry ─────────▶ │ Arrive ──────────────────────▶ │ room? it *arrives*
      │                  │ ◀────────────────────── Expected │
      │            it *leaves*                              │
      │                  │ Grant, Grant … ────────────────▶ │ stored
      │                  │ ◀──────────────────────── Taken  │
      │                  │ HandOver ──────────────────────▶ │ it is here
      │ ◀──────────────────────────────────────── Carried   │

Until the other broker has said that there is room nothing changes. Then the queue leaves: what was
asked of it before is done first, its subscriptions end as at a disconnect, and its messages are
granted in their order, as those of a distributed queue are (`ownership`). They keep ids, counts,
times, priorities. What is said to a queue that leaves, or arrives, is refused as *moved*: clients
ask again until the directory says where it is. The channel says everything once and in order, so
nothing is lost and nothing comes twice, whoever dies when; a broker that is away only delays it.

What comes to a broker and not to a queue, over a bridge or as a plain Kafka record, goes on coming
to the broker where the queue was made, and follows it from there (`bridges.trails`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...definitions import parse_definition, to_wire
from ...protocol import commands as c
from ...protocol.carrying import Carried
from ...protocol.errors import ConfigError, LakequeueError
from ...protocol.queue_moves import Arrive, Expected, HandOver, QueueState
from ..bridges import trails
from ..bridges.bases import base_of
from ..commands import administration
from ..commands.leases import MOVED
from ..commands.task import Task
from ..commands.topic_subscriptions import add, remove, topics_of
from ..commands.turns import begin
from ..limits import Budget
from ..message import DELAYED, READY
from ..rules.deferred import take_over
from . import ownership
from .known_places import names_of, note_gone
from .placement import LOCAL
from .saying import say, tell
from .topic_routes import tell_routes, tell_went

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue


# ---------------------------------------------------------------- where it is


def set_out(broker: Broker, vpn: str, ticket: int, command: c.MoveQueue) -> None:
    """The keeper wants a queue to go from here. Raises what is wrong with that."""
    queue = broker.find(vpn, command.queue)
    name = command.queue
    if queue is None:
        raise ConfigError(f"queue: {name!r} – there is no such queue in VPN {vpn!r}")
    if queue.header.faulted:
        raise LakequeueError(f"queue {name!r}: failed ({queue.header.faulted}); define it again")
    _announce(broker, names_of(broker)[command.broker], ticket, queue)


def _announce(broker: Broker, to: int, ticket: int, queue: Queue) -> None:
    """Ask the other broker whether there is room, and have it expect the queue."""
    d = queue.definition
    topics = topics_of(broker, queue)
    size, base = queue.header.bytes, base_of(broker, queue)
    say(broker, to, Arrive(ticket, d.vpn, d.name, to_wire(d), size, topics, base))


def expected(broker: Broker, sender: int, said: Expected) -> None:
    """The other broker has room, or has not."""
    queue = broker.find(said.vpn, said.queue)
    error = said.error
    if queue is None:
        error = error or f"queue {said.queue!r}: is gone"
    elif error is None and topics_of(broker, queue) != said.topics:  # they have changed meanwhile
        _announce(broker, sender, said.ticket, queue)
    elif error is None:
        queue.header.leaving = [sender, said.ticket]
        name = queue.definition.name
        for one in list(queue.header.subscriptions):
            ends = c.Unsubscribe(queue=name, subscription=one.id)
            begin(broker, said.vpn, queue, ends, MOVED, bounded=False)
        to = broker.header.peers[sender].name
        going = c.MoveQueue(queue=name, broker=to)
        begin(broker, said.vpn, queue, going, bounded=False)
    if error is not None:
        tell(broker, broker.header.keeper, Carried(said.ticket, error))


def give_all(
    broker: Broker, queue: Queue, task: Task, command: c.MoveQueue, budget: Budget
) -> bool:
    """Grant what the queue holds, in its order; whether that is all."""
    if not queue.header.leaving:  # it stays after all
        return True
    to = queue.header.leaving[0]
    for page, rows in queue.live_rows(task.cursor):
        rows = rows[(page.state[rows] == READY) | (page.state[rows] == DELAYED)]
        while len(rows):
            if budget.spent:
                task.cursor = page.base + int(rows[0])
                return False
            n = max(budget.fits(page.size[rows]), 1)
            budget.take(n, int(page.size[rows[:n]].sum(dtype=np.int64)))
            ownership.give(broker, queue, to, rows[:n].astype(np.int64) + page.base)
            rows = rows[n:]
    look(broker, queue)
    return True


def look(broker: Broker, queue: Queue) -> None:
    """Where the other broker has all messages of a local queue that leaves, it has the queue."""
    header = queue.header
    if queue.definition.type != LOCAL:  # `emptying` looks
        return
    if not header.leaving or header.depth or header.kept or header.deleted or header.unread:
        return
    vpn, definition = broker.vpn_of(queue), queue.definition
    to, ticket = header.leaving
    topics = topics_of(broker, queue)
    state = QueueState(
        header.created, header.ingress, header.egress, header.next_delivery, header.counters,
        header.rejected, header.discarded, header.invalid, queue.early.overview(), topics,
    )  # fmt: skip
    say(broker, to, HandOver(ticket, vpn, definition.name, state))
    tell_went(broker, vpn, queue, topics, to)
    note_gone(broker, vpn, definition.name, to)
    administration.forget(broker, vpn, queue)
    queue.drop()
    trails.leave(broker, queue, topics)
    broker.header.went += 1
    broker.event("went", vpn, definition.name, to=broker.header.peers[to].name)


def follow(broker: Broker, queue: Queue, first: int) -> None:
    """What enters from this place on, since it was kept before the queue left (S5), goes after it;
    or nothing came of it."""
    if not queue.header.leaving:
        return
    if queue.number not in broker.header.pending:  # else `give_all` comes to it
        seqs = np.arange(first, queue.header.next_seq)
        states = queue.gather(seqs, "state") if len(seqs) else seqs
        seqs = seqs[(states == READY) | (states == DELAYED)]
        if len(seqs):
            ownership.give(broker, queue, queue.header.leaving[0], seqs)
    look(broker, queue)


def follow_all(broker: Broker, queue: Queue) -> None:
    """What was on its way to a third broker has stayed here after all, or is gone."""
    if queue.definition.type == LOCAL and queue.header.depth > queue.header.moving:
        to = broker.header.peers[queue.header.leaving[0]].name
        going = c.MoveQueue(queue=queue.definition.name, broker=to)
        begin(broker, broker.vpn_of(queue), queue, going, bounded=False)
    look(broker, queue)


# ---------------------------------------------------------------- where it goes


def arrive(broker: Broker, sender: int, said: Arrive) -> None:
    """A queue wants to come here."""
    error = None
    queue = broker.find(said.vpn, said.queue)
    try:
        if queue is None or not queue.header.arriving:
            _check_room(broker, said)
            definition = parse_definition({"vpn": said.vpn, **said.definition})
            base = -1 if said.base == broker.header.number else said.base
            queue = administration.create(broker, said.vpn, definition, base=base)
            queue.header.arriving = True
        remove(broker, said.vpn, queue, sorted({*topics_of(broker, queue)} - {*said.topics}))
        add(broker, said.vpn, queue, said.topics)
        tell_routes(broker)  # before its old broker can let it go
    except (LakequeueError, ValueError) as why:
        error = str(why)
    say(broker, sender, Expected(said.ticket, said.vpn, said.queue, error, said.topics))


def _check_room(broker: Broker, said: Arrive) -> None:
    name, spool = broker.header.name, broker.spool.header
    if broker.find(said.vpn, said.queue) is not None:
        raise LakequeueError(f"queue {said.queue!r}: broker {name!r} has one of this name")
    limits, number = broker.header.vpn_limits.get(said.vpn), broker.header.vpns.get(said.vpn, 0)
    rooms = [("max_spool_usage", broker.header.system.max_spool_usage - spool.bytes)]
    if limits is not None and limits.max_spool_usage is not None:
        used = spool.vpn_bytes.get(number, 0)
        rooms.append((f"VPN {said.vpn!r}: max_spool_usage", limits.max_spool_usage - used))
    for what, room in rooms:
        if said.size > room:
            raise LakequeueError(
                f"queue {said.queue!r}: holds {said.size} bytes, broker {name!r} has room for "
                f"{max(room, 0)} ({what})"
            )


def handed_over(broker: Broker, sender: int, said: HandOver) -> None:
    """The queue is here, as it was there."""
    queue = broker.find(said.vpn, said.queue)
    if queue is None or not queue.header.arriving:
        raise ValueError(f"hand_over: {said.queue!r} – is not expected")
    header, state = queue.header, said.state
    counters = dict(state.counters)
    for name, n in header.counters.items():
        counters[name] = counters.get(name, 0) + n
    counters["spooled"] = counters.get("spooled", 0) - counters.pop("transferred", 0)
    header.counters = counters
    header.rejected, header.discarded = dict(state.rejected), dict(state.discarded)
    header.invalid += state.invalid
    header.created, header.ingress, header.egress = state.created, state.ingress, state.egress
    header.next_delivery = max(header.next_delivery, state.next_delivery)
    take_over(broker, queue, state.deferred)
    header.asked, header.arriving = {}, False
    add(broker, said.vpn, queue, state.topics)
    queue.wanted = True
    trails.arrived(broker, said.vpn, queue)
    there = broker.header.peers[sender].name
    broker.event("arrived", said.vpn, said.queue, came_from=there, messages=header.depth)
    tell(broker, broker.header.keeper, Carried(said.ticket))
