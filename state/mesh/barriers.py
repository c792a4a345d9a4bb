"""A barrier of a distributed queue waits for all owners (O3, H4).

When a barrier enters at its owner, the owner *holds*: it tells the other hosts. Each of them draws
a line as it hears that: what entered before is delivered, what enters behind it belongs to a later
generation and is held back. What no consumer of its own can take goes to the owner of the barrier,
and from there to who wants it; nobody else grants meanwhile, so what is on its way is always to or
from the owner. A host that has nothing left before its line says that it is *drained*, with how
many messages it ever gave to and got from each other; while a number given is not the number that
came, something is on its way, and the owner waits. Then the barrier goes to all consumers of all
hosts, and the hold is released.

If two brokers hold, the one with the lower number goes first: the other releases, and holds again
later. An owner whose barrier is gone (expired, purged) releases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...expressions import compile_program, is_true
from ...protocol.granting import Drained, Hold, Release
from ...protocol.outputs import Deliveries
from ..header import ForeignBarrier, Holding, Subscription
from ..rules.order import first_key_of, generation_of, seq_of
from ..storage import NEVER, Content
from .hosting import other_hosts
from .saying import say

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue


# ---------------------------------------------------------------- lines


def holder(broker: Broker, queue: Queue) -> int | None:
    """The broker for whose barrier this queue drains now; None where for none, or its own."""
    header = queue.header
    first = min(header.held, default=None)
    if first is None or (header.holding is not None and broker.header.number < first):
        return None
    return first


def fence(broker: Broker, queue: Queue) -> int | None:
    """The generation from which on messages are held back, behind a barrier here or elsewhere."""
    barrier = queue.first_barrier()
    fences = [] if barrier is None else [generation_of(barrier) + 1]
    first = holder(broker, queue)
    if first is not None:
        fences.append(queue.header.held[first].generation)
    return min(fences, default=None)


def entering(broker: Broker, queue: Queue) -> int | None:
    """The generation of what is granted here: before the line while there is one, since it entered
    the queue before; None: the newest."""
    held_by = holder(broker, queue) is not None or queue.header.holding is not None
    line = fence(broker, queue) if held_by else None
    return None if line is None else line - 1


def _is_drained(broker: Broker, queue: Queue) -> bool:
    """Whether nothing is left before the line but barriers that stand there."""
    header, barrier = queue.header, queue.first_barrier()
    own = [] if barrier is None else [seq_of(barrier)]
    if not header.depth:
        return True
    line = fence(broker, queue)
    if line is None or not header.ordered:
        return header.depth == len(own)
    first = queue.first_live()
    assert first is not None
    if first < header.ordered_from and [first] != own:
        return False
    below = first_key_of(line)
    barriers = set(queue.keys(np.array(own, np.int64)))
    before = {*queue.ready.peek(1, below), *queue.aside.peek(2, below)}
    return before <= barriers


# ---------------------------------------------------------------- who holds


def receivers(queue: Queue, content: Content, priority: int) -> list[Subscription]:
    """The consumers here that a barrier is for."""
    header = queue.header
    going = [s for s in header.subscriptions if not s.ending]
    passed: dict[str | None, bool] = {None: True}
    for text in {s.filter for s in going if s.filter is not None}:
        passed[text] = is_true(compile_program((text,)).run(content[0], priority, content[1])[0])
    return [s for s in going if passed[s.filter]]


def may_pass(broker: Broker, queue: Queue, seq: int, receiving: int) -> bool:
    """Whether the first barrier may go out: all before it has left, everywhere, and somebody is
    there whom it is for. receiving: how many that are here."""
    holding, hosts = queue.header.holding, other_hosts(broker, queue)
    if not hosts:
        return receiving > 0
    if holding is None or holding.number != _number_at(broker, queue, seq):
        return False
    if holder(broker, queue) is not None or not _is_drained(broker, queue):
        return False
    if not all(holding.drained.get(host) for host in hosts):
        return False
    return _nothing_moves(broker, queue, hosts) and (
        receiving > 0 or any(holding.drained[host][2] for host in hosts)
    )


def _number_at(broker: Broker, queue: Queue, seq: int) -> int:
    """The id of the message at this place, under which all know it."""
    page, row = queue.row(seq)
    return int(broker.spool.origins(page.id[row : row + 1])[0])


def _hold_for(broker: Broker, queue: Queue, seq: int) -> None:
    """Tell the other hosts of the first barrier here, those that do not know of it."""
    number, d = _number_at(broker, queue, seq), queue.definition
    holding = queue.header.holding = queue.header.holding or Holding(number)
    missing = [host for host in other_hosts(broker, queue) if host not in holding.drained]
    ids = queue.gather(np.array([seq], np.int64), "id")
    content = broker.spool.contents(ids)[0] if missing else None
    if content is None:
        return
    priority, time = (int(broker.spool.gather(ids, name)[0]) for name in ("priority", "time"))
    expires = int(queue.gather(np.array([seq], np.int64), "expires")[0])
    for host in missing:
        holding.drained[host] = []
        said = Hold(
            d.vpn, d.name, number, *content, priority, time, 0 if expires == NEVER else expires
        )
        say(broker, host, said)


def _nothing_moves(broker: Broker, queue: Queue, hosts: list[int]) -> bool:
    """Whether what each host gave to another is what came there."""
    assert queue.header.holding is not None
    own = broker.header.number
    counts: dict[int, Any] = {own: _counts(queue), **queue.header.holding.drained}
    numbers = [own, *hosts]
    return all(
        counts[one][1].get(other, 0) == counts[other][0].get(one, 0)
        for one in numbers for other in numbers if one != other
    )  # fmt: skip


def _counts(queue: Queue) -> tuple[dict[int, int], dict[int, int]]:
    """How many messages this queue got from and gave to others, by broker."""
    header = queue.header
    got = {n: asked.got for n, asked in header.asked.items() if asked.got}
    given = {n: wanted.given for n, wanted in header.wanted.items() if wanted.given}
    return got, given


def has_passed(broker: Broker, queue: Queue) -> None:
    """The barrier went out here: it goes out at the others too."""
    let_go(broker, queue, True)


def joined(queue: Queue, host: int) -> None:
    """A host has the queue from now on: it is told of what holds."""
    if queue.header.holding is not None:
        queue.header.holding.drained.pop(host, None)


def hold_again(queue: Queue) -> None:
    """There was no room here for what is left at the others, and some has come free."""
    if queue.header.holding is not None:
        queue.header.holding.drained.clear()


def is_full(queue: Queue, host: int) -> None:
    """The broker that holds has no room for what is left here: it stays, until that holds again."""
    if host in queue.header.held:
        queue.header.held[host].full = True


def let_go(broker: Broker, queue: Queue, goes: bool) -> None:
    """Release the other hosts, if they are held."""
    holding, d = queue.header.holding, queue.definition
    if holding is None:
        return
    queue.header.holding = None
    for host in other_hosts(broker, queue):
        if host in holding.drained:
            say(broker, host, Release(d.vpn, d.name, holding.number, goes))


def drained(broker: Broker, sender: int, said: Drained) -> None:
    """Another host has nothing left before its line."""
    queue = broker.find(said.vpn, said.queue)
    holding = None if queue is None else queue.header.holding
    if queue is not None and holding is not None and holding.number == said.number:
        holding.drained[sender] = [said.got, said.given, said.receivers]
        queue.wanted = True


# ---------------------------------------------------------------- who drains


def hold(broker: Broker, sender: int, said: Hold) -> None:
    """A barrier is next at another broker: draw the line."""
    queue = broker.find(said.vpn, said.queue)
    if queue is None:
        say(broker, sender, Drained(said.vpn, said.queue, said.number, {}, {}, 0))
        return
    header = queue.header
    known = header.held.get(sender)
    if known is None or known.number != said.number:
        header.generation += 1
        line = header.generation
    else:
        line = known.generation
    header.held[sender] = ForeignBarrier(said.number, line, said.priority, said.time, said.expires)
    broker.values.write(_page(queue, sender), [said.payload, said.key, said.headers])
    if sender < broker.header.number:
        let_go(broker, queue, False)
    queue.wanted = True


def report(broker: Broker, queue: Queue) -> None:
    """At the end of a step: hold for a barrier that has come, release others if there is none any
    more, and say that this queue is drained, if it is and that is new."""
    header = queue.header
    barrier = queue.first_barrier()
    first = None if barrier is None else seq_of(barrier)
    number = None if first is None else _number_at(broker, queue, first)
    if header.holding is not None and header.holding.number != number:
        let_go(broker, queue, False)
    if first is not None and holder(broker, queue) is None:
        _hold_for(broker, queue, first)
    host = holder(broker, queue)
    if host is None or not _is_drained(broker, queue):
        return
    held = header.held[host]
    waiting = receivers(queue, _content(broker, queue, host), held.priority)
    got, given = _counts(queue)
    going = len(waiting) if header.egress else 0
    if held.said != [got, given, going]:
        held.said = [got, given, going]
        d = queue.definition
        say(broker, host, Drained(d.vpn, d.name, held.number, got, given, going))


def release(broker: Broker, sender: int, said: Release) -> None:
    """The hold is over; the barrier goes to the consumers here, if it goes."""
    queue = broker.find(said.vpn, said.queue)
    held = None if queue is None else queue.header.held.get(sender)
    if queue is None or held is None or held.number != said.number:
        return
    if said.goes and queue.header.egress:
        content = _content(broker, queue, sender)
        for subscription in receivers(queue, content, held.priority):
            _deliver(broker, queue, subscription, held, content)
    _end(broker, queue, sender)
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
    let_go(broker, queue, False)
    d, (got, given) = queue.definition, _counts(queue)
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
    broker.record("barrier_delivered", queue, [held.number], subscription=subscription.id)
