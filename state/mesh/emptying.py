"""A broker that is removed gives what it has of distributed queues to a broker that stays (Q5, H4).

The directory no longer names it as a host; then each other broker has said that it knows
(`Aware`): it grants nothing more here, and takes what comes from here, whatever its quotas say, for
it is stored already (S1). And this broker hears no clients any more. So nothing can come, and what
is here goes, as where a queue moves: subscriptions end, and all is granted in its order, to the
initial owner where the queue has one, else to the first that stays, which will read on what clients
have said to this one, acks among it. A message is here until it is there.

What dies meanwhile goes to its dead message queue here, and from there in another round. Queues
stay, empty, until the broker is gone: where a removal is given up, the directory names it again,
and each goes on as it was.

Before that it ends reading captured topics (`last_reading`), so no record enters here any more.
Of a queue that keeps its last message only (S10) it gives that one, and of two the later one stays
(`last_value.keep_latest`).

Barriers go with the other messages, and those of all hosts wait for this one as before
(`barrier_moves`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...protocol import commands as c
from ...protocol.carrying import Entry
from ...protocol.farewells import HandIn
from ..commands.leases import MOVED
from ..commands.turns import begin
from ..routing import Routes
from ..rules.deferred import take_over
from . import barrier_moves, known_places
from .hosting import initial_owner
from .peers import first_beside
from .placement import LOCAL
from .saying import say

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue


# ---------------------------------------------------------------- the keeper


def why_it_stays(
    broker: Broker, vpn: str, name: str, entry: Entry, leaver: int, captured: set[int]
) -> str | None:
    """What of a distributed queue keeps a host of it in the home; None: nothing. captured: the
    numbers of queues whose topic is there."""
    queue = broker.find(vpn, name)
    if queue is None or len(entry.hosts) <= len(broker.header.peers):
        return "is hosted by some of the brokers only"
    d, header, names = queue.definition, queue.header, known_places.names_of(broker)
    there = next(name for name, number in names.items() if number == leaver)
    if d.initial_owner == there:
        return "has it as its initial_owner"
    if there in d.group:
        return "names it in its group"
    if not d.max_spool_usage:  # each host reads all records: nobody goes on for another
        return None
    if not broker.header.notes_reads and (header.plain or queue.number in captured):
        return "takes plain Kafka records, and an earlier version did not note how far it read them"
    return None


def captures(broker: Broker, topics: list[str]) -> set[int]:
    """The numbers of the queues here that capture one of these topics."""
    routes = Routes(broker)
    return {q.number for topic in topics for _, found in routes.of_record(topic) for q in found}


# ---------------------------------------------------------------- who is removed


def is_empty(broker: Broker) -> bool:
    """Whether nothing is left here; what can be done for that is done. Nothing can come any more:
    who gets the rest of each queue is told what it was."""
    left = [queue for vpn, queue in _queues(broker) if not _is_empty(broker, vpn, queue)]
    if left:
        return False
    for vpn, queue in _queues(broker):
        _hand_in(broker, vpn, queue)
        barrier_moves.say_last(broker, queue)
    return True


def _queues(broker: Broker) -> Iterator[tuple[str, Queue]]:
    for vpn in sorted(broker.header.vpns):
        for name in broker.queue_names(vpn):
            queue = broker.find(vpn, name)
            if queue is not None and queue.number not in broker.header.trails:
                yield vpn, queue


def _is_empty(broker: Broker, vpn: str, queue: Queue) -> bool:
    header, name = queue.header, queue.definition.name
    if not header.leaving:
        entry = known_places.find(broker, vpn, name)
        hosted = entry is None or broker.header.number in entry.hosts
        if hosted or queue.definition.type == LOCAL:
            return False
        owner = initial_owner(broker, queue)
        heir = first_beside(broker, broker.header.number)
        header.leaving = [heir if owner is None else owner, 0]
        for one in list(header.subscriptions):
            ends = c.Unsubscribe(queue=name, subscription=one.id)
            begin(broker, vpn, queue, ends, MOVED, bounded=False)
    if header.depth > header.moving and queue.number not in broker.header.pending:
        to = broker.header.peers[header.leaving[0]].name
        begin(broker, vpn, queue, c.MoveQueue(queue=name, broker=to), bounded=False)
    return not (header.depth or header.kept)


def _hand_in(broker: Broker, vpn: str, queue: Queue) -> None:
    """What was counted here counts there from now on."""
    header = queue.header
    said = HandIn(
        vpn, queue.definition.name, dict(header.counters), dict(header.rejected),
        dict(header.discarded), header.invalid, queue.early.overview(),
    )  # fmt: skip
    header.counters, header.rejected, header.discarded = {}, {}, {}
    header.invalid = 0
    queue.early.drop()
    say(broker, header.leaving[0], said)


# ---------------------------------------------------------------- who stays


def handed_in(broker: Broker, sender: int, said: HandIn) -> None:
    """All that a broker had of a queue is here."""
    queue = broker.find(said.vpn, said.queue)
    if queue is None:
        return
    header = queue.header
    for own, more in (
        (header.counters, said.counters), (header.rejected, said.rejected),
        (header.discarded, said.discarded),
    ):  # fmt: skip
        for name, n in more.items():
            own[name] = own.get(name, 0) + n
    header.invalid += said.invalid
    take_over(broker, queue, said.deferred)
