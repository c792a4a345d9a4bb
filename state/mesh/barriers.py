"""A barrier of a distributed queue waits for all owners (O3, H4).

Barriers of all hosts stand in one order: by their generation, of one generation by the number of
the broker. Each host counts generations as a clock: a barrier that enters has the present one and
ends it, and tells all hosts, which then are in a later one themselves (`Line`). So a message of
generation *n* is behind all barriers of generations below *n*, wherever they are, and before all
others; it keeps its generation where it moves.

Of the first barrier that waits at each host all of them know (`Hold`), and nothing behind it is
delivered. For the very first they drain: what no consumer of its own can take a host gives to that
barrier's owner, and from there it goes to who wants it. A host that has nothing left before it says
that it is *drained*, with how many messages it ever gave to and got from each other; while a number
given is not the number that came, something is on its way, and the owner waits. Then the barrier
goes to all consumers of all hosts, and is released; in the same breath it is said which one of this
host is next. An owner whose barrier is gone (expired, purged) releases it.

Nobody is drained for a barrier while it has an earlier one, or while a host has not heard that one
of its own went out: so consumers anywhere get barriers in their order. What enters anywhere after
its host has heard of a barrier is in a later generation: so when one goes out, none that is earlier
can come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...expressions import compile_program, is_true
from ...protocol.granting import Drained, Hold, Line, Release, Released
from ...protocol.journal import Segment
from ...protocol.mesh import BROKERS_MAX
from ...protocol.outputs import Deliveries
from ..header import ForeignBarrier, Holding, Subscription
from ..message import MOVING
from ..rules.order import barrier_key, first_key_of, generation_of, seq_of
from ..storage import NEVER, Content
from . import barrier_moves
from .barrier_moves import counts
from .hosting import barrier_hosts, initial_owner
from .saying import say

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue


# ---------------------------------------------------------------- the order


def _first_own(broker: Broker, queue: Queue) -> int | None:
    """The barrier of this host that is next, as `order.barrier_key`, also while it is given away;
    not one that goes to its first owner, where it will enter."""
    barrier, header = queue.first_barrier(), queue.header
    if barrier is None or initial_owner(broker, queue) is None:
        return barrier
    seq = seq_of(barrier)
    page, row = queue.row(seq)
    if page.state[row] != MOVING:
        return None if seq >= header.pushed else barrier
    holding = header.holding
    known = holding is not None and (
        holding.to >= 0 or holding.number == number_at(broker, queue, seq)
    )
    return barrier if header.leaving or known else None


def holder(broker: Broker, queue: Queue) -> int | None:
    """The broker whose barrier is the first of all; None where that is this one's, or none."""
    if not queue.header.held:
        return None
    first = min((held.generation, host) for host, held in queue.header.held.items())
    own = _first_own(broker, queue)
    if own is not None and (generation_of(own), broker.header.number) < first:
        return None
    return first[1]


def fence(queue: Queue) -> int | None:
    """The generation from which on messages are held back, behind a barrier here or elsewhere."""
    barrier = queue.first_barrier()
    waiting = [] if barrier is None else [generation_of(barrier)]
    waiting += [held.generation for held in queue.header.held.values()]
    waiting += barrier_moves.awaited(queue)
    return min(waiting) + 1 if waiting else None


def _is_drained(broker: Broker, queue: Queue, barrier: tuple[int, int]) -> bool:
    """Whether nothing is left here before a barrier, given as generation and broker, but itself."""
    header, below = queue.header, first_key_of(barrier[0] + 1)
    if not header.depth:
        return True
    own = queue.barriers.peek(1, barrier_key(0, barrier[0] + 1))
    if own and (generation_of(own[0]), broker.header.number) < barrier:
        return False
    if own:  # of this generation; others may have come from brokers that were removed
        own = queue.barriers.peek(BROKERS_MAX, barrier_key(0, barrier[0] + 1))
    if not header.ordered:
        return header.depth == len(own)
    places = [seq_of(one) for one in own]
    first = queue.first_live()
    assert first is not None
    if first < header.ordered_from and first not in places:
        return False
    before = {*queue.ready.peek(1, below), *queue.aside.peek(len(own) + 1, below)}
    return before <= set(queue.keys(np.array(places, np.int64)))


def advance(queue: Queue, generation: int) -> None:
    """Others are in this generation: what enters from now on is in it too."""
    header = queue.header
    header.generation = max(header.generation, generation)
    header.told = max(header.told, generation)


def hear_line(broker: Broker, sender: int, said: Line) -> None:
    """A barrier has entered at another broker: what enters here from now on is behind it."""
    queue = broker.find(said.vpn, said.queue)
    if queue is not None:
        advance(queue, said.generation)


# ---------------------------------------------------------------- who holds


def receivers(queue: Queue, content: Content, priority: int) -> list[Subscription]:
    """The consumers here that a barrier is for."""
    header = queue.header
    going = [s for s in header.subscriptions if not s.ending]
    passed: dict[str | None, bool] = {None: True}
    for text in {s.filter for s in going if s.filter is not None}:
        passed[text] = is_true(compile_program((text,)).run(content[0], priority, content[1])[0])
    return [s for s in going if passed[s.filter]]


def is_next(broker: Broker, queue: Queue, barrier: int) -> bool:
    """Whether all that is before a barrier has left here; what came earlier may be behind it."""
    return _is_drained(broker, queue, (generation_of(barrier), broker.header.number))


def may_pass(broker: Broker, queue: Queue, seq: int, receiving: int) -> bool:
    """Whether the first barrier may go out: all before it has left, everywhere, and somebody is
    there whom it is for. receiving: how many that are here."""
    holding, hosts = queue.header.holding, barrier_hosts(broker, queue)
    page, row = queue.row(seq)
    if not _is_drained(broker, queue, (int(page.generation[row]), broker.header.number)):
        return False
    if not hosts:
        return receiving > 0
    if holding is None or holding.number != number_at(broker, queue, seq):
        return False
    if holder(broker, queue) is not None or barrier_moves.awaited(queue):
        return False
    if not all(holding.drained.get(host) for host in hosts):
        return False
    return _nothing_moves(broker, queue, hosts) and (
        receiving > 0 or any(holding.drained[host][2] for host in hosts)
    )


def number_at(broker: Broker, queue: Queue, seq: int) -> int:
    """The id of the message at this place, under which all know it."""
    page, row = queue.row(seq)
    return int(broker.spool.origins(page.id[row : row + 1])[0])


def _hold_for(broker: Broker, queue: Queue, barrier: int, hosts: list[int]) -> None:
    """Tell the other hosts of the first barrier here, those that do not know of it."""
    seq, generation = seq_of(barrier), generation_of(barrier)
    number, d = number_at(broker, queue, seq), queue.definition
    holding = queue.header.holding = queue.header.holding or Holding(number)
    missing = [host for host in hosts if host not in holding.drained]
    ids = queue.gather(np.array([seq], np.int64), "id")
    content = broker.spool.contents(ids)[0] if missing else None
    if content is None:
        return
    priority, time = (int(broker.spool.gather(ids, name)[0]) for name in ("priority", "time"))
    expires = int(queue.gather(np.array([seq], np.int64), "expires")[0])
    for host in missing:
        holding.drained[host] = []
        said = Hold(
            d.vpn, d.name, number, generation, *content, priority, time,
            0 if expires == NEVER else expires,
        )  # fmt: skip
        say(broker, host, said)
    if missing == hosts:
        queue.header.told = max(queue.header.told, generation + 1)


def _nothing_moves(broker: Broker, queue: Queue, hosts: list[int]) -> bool:
    """Whether what each host gave to another is what came there."""
    assert queue.header.holding is not None
    own, drained = broker.header.number, queue.header.holding.drained
    there: dict[int, Any] = {own: counts(queue), **{host: drained[host] for host in hosts}}
    gone = {n: last for n, last in queue.header.last_counts.items() if n not in there}
    both = {**there, **gone}
    return all(
        both[one][1].get(other, 0) == both[other][0].get(one, 0)
        for one in both for other in both if one != other and (one in there or other in there)
    )  # fmt: skip


def has_passed(broker: Broker, queue: Queue) -> None:
    """The barrier went out here: it goes out at the others too."""
    let_go(broker, queue, True, _first_own(broker, queue))


def joined(broker: Broker, queue: Queue, host: int) -> None:
    """A host has the queue from now on: it is told of what waits, and of the generation."""
    header, d = queue.header, queue.definition
    if header.generation:
        say(broker, host, Line(d.vpn, d.name, header.generation))
    header.unreleased.pop(host, None)
    for last in header.last_counts.values():  # what went to it before has not come
        for numbers in last:
            numbers.pop(host, None)
    if header.holding is not None:
        header.holding.drained.pop(host, None)


def hold_again(queue: Queue) -> None:
    """There was no room here for what is left at the others, and some has come free."""
    if queue.header.holding is not None:
        queue.header.holding.drained.clear()


def is_full(queue: Queue, host: int) -> None:
    """The broker that holds has no room for what is left here: it stays, until that holds again."""
    if host in queue.header.held:
        queue.header.held[host].full = True


def let_go(broker: Broker, queue: Queue, goes: bool, following: int | None) -> None:
    """Release the barrier that others know of, or say to whom it was given. following: the one
    that is first here then."""
    holding, d = queue.header.holding, queue.definition
    if holding is None:
        return
    queue.header.holding = None
    next_one = None if following is None else generation_of(following)
    for host in broker.header.peers:
        if host in holding.drained:
            if goes:
                queue.header.unreleased[host] = holding.number
            say(broker, host, Release(d.vpn, d.name, holding.number, goes, next_one, holding.to))


def drained(broker: Broker, sender: int, said: Drained) -> None:
    """Another host has nothing left before its line."""
    queue = broker.find(said.vpn, said.queue)
    holding = None if queue is None else queue.header.holding
    if queue is not None and holding is not None and holding.number == said.number:
        holding.drained[sender] = [said.got, said.given, said.receivers]
        queue.wanted = True


# ---------------------------------------------------------------- who drains


def hold(broker: Broker, sender: int, said: Hold) -> None:
    """A barrier is next at another broker."""
    queue = broker.find(said.vpn, said.queue)
    if queue is None:
        say(broker, sender, Drained(said.vpn, said.queue, said.number, {}, {}, 0))
        return
    queue.header.held[sender] = ForeignBarrier(
        said.number, said.generation, said.priority, said.time, said.expires
    )
    broker.values.write(_page(queue, sender), [said.payload, said.key, said.headers])
    advance(queue, said.generation + 1)
    queue.wanted = True


def report(broker: Broker, queue: Queue) -> None:
    """At the end of a step: tell of barriers that have come, release what is gone, and say that
    this queue is drained, if it is and that is new."""
    header, hosts, d = queue.header, barrier_hosts(broker, queue), queue.definition
    first = _first_own(broker, queue)
    number = None if first is None else number_at(broker, queue, seq_of(first))
    if header.holding is not None and header.holding.number != number:
        let_go(broker, queue, False, first)
    if first is not None and hosts:
        _hold_for(broker, queue, first, hosts)
    barrier_moves.tell(broker, queue)  # the others know what is first here
    if header.told < header.generation and hosts:
        header.told = header.generation
        for other in hosts:
            say(broker, other, Line(d.vpn, d.name, header.generation))
    host = holder(broker, queue)
    if host is None:
        return
    held = header.held[host]
    if not held.number or any(other in header.unreleased for other in hosts):
        return
    if not _is_drained(broker, queue, (held.generation, host)):
        return
    waiting = receivers(queue, _content(broker, queue, host), held.priority)
    got, given = counts(queue)
    going = len(waiting) if header.egress else 0
    if held.said != [got, given, going]:
        held.said = [got, given, going]
        say(broker, host, Drained(d.vpn, d.name, held.number, got, given, going))


def release(broker: Broker, sender: int, said: Release) -> None:
    """The barrier goes to the consumers here, if it goes; and another may be next there."""
    if said.goes:
        say(broker, sender, Released(said.vpn, said.queue, said.number))
    queue = broker.find(said.vpn, said.queue)
    held = None if queue is None else queue.header.held.get(sender)
    if queue is not None and said.to >= 0:
        barrier_moves.passed_on(broker, queue, sender, said)
    if queue is None or held is None or held.number != said.number:
        return
    if said.goes and queue.header.egress:
        content = _content(broker, queue, sender)
        for subscription in receivers(queue, content, held.priority):
            _deliver(broker, queue, subscription, held, content)
    _end(broker, queue, sender)
    if said.following is not None:
        queue.header.held[sender] = ForeignBarrier(0, said.following, 0, 0, 0)
    queue.wanted = True


def released(broker: Broker, sender: int, said: Released) -> None:
    """Another host has heard that a barrier went out here."""
    queue = broker.find(said.vpn, said.queue)
    if queue is not None and queue.header.unreleased.get(sender) == said.number:
        del queue.header.unreleased[sender]
        queue.wanted = True


def _end(broker: Broker, queue: Queue, host: int) -> None:
    """Nothing is held for this broker any more."""
    del queue.header.held[host]
    broker.values.write(_page(queue, host), None)


def _page(queue: Queue, host: int) -> str:
    return f"y/{queue.number}/{host}"


def _content(broker: Broker, queue: Queue, host: int) -> Content:
    payload, key, headers = broker.values.read(_page(queue, host))
    return payload, key, headers


def leave(broker: Broker, queue: Queue) -> None:
    """The queue is deleted here: it holds nobody, and nobody waits for it."""
    let_go(broker, queue, False, None)
    d, (got, given) = queue.definition, counts(queue)
    for host, held in list(queue.header.held.items()):
        say(broker, host, Drained(d.vpn, d.name, held.number, got, given, 0))
        _end(broker, queue, host)


def _deliver(
    broker: Broker, queue: Queue, subscription: Subscription, held: ForeignBarrier, content: Content
) -> None:
    header = queue.header
    broker.emit(
        Deliveries(
            queue=queue.definition.name, subscription=subscription.id, topic=subscription.topic,
            partition=subscription.partition, framing=subscription.framing, lease_ms=0,
            epoch=broker.header.epoch, barrier=True, ids=[held.number],
            numbers=[header.next_delivery], counts=[1], priorities=[held.priority],
            expires=[held.expires], times=[held.time], payloads=[content[0]], keys=[content[1]],
            headers=[content[2]],
        )
    )  # fmt: skip
    header.next_delivery += 1
    queue.count("delivered")
    broker.journal.segments.append(  # `record` takes numbers for those of messages that are here
        Segment(
            "barrier_delivered", broker.vpn_of(queue), queue.definition.name, [held.number],
            subscription=subscription.id,
        )
    )  # fmt: skip
