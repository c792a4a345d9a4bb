"""A broker that is removed takes part in barriers as long as it is there, and gives its own to a
broker that stays (O3, H4).

*As any host.* A barrier waits for it too, is held there, and goes to its consumers, until it is
gone. So nobody need know when another heard of the removal, and one that is given up has changed
nothing. Only what is left before a barrier of its own is not given to it any more: that barrier is
about to go to a broker that will get it.

*Its counts stay.* Before it leaves it says how many messages it got from each and gave to each. It
has none then, and nothing is on its way; but another host may have said that it was drained before
it was given some of these. With these numbers the sums go on adding up only when that host has said
so anew.

*Its barriers move* as other messages do, with their generation. Everybody knows of the first of
them (`Hold`), and nothing behind it goes out, at no moment:

    who gives it              who gets it                       each other host
      │ Grant ─────────────────▶ │ it is first here?                │
      │ ◀───────────────── Taken │ Hold ───────────────────────────▶│
      │ Release (to) ──────────▶ │                                  │
      │ Release (to) ─────────────────────────────────────────────▶ │ it goes on holding back
      │                          │ Inherited ─────────────────────▶ │ till here: it knows of all

Whoever hears `Inherited` has heard what is first at the new owner, which is that barrier, an
earlier one, or, where it is gone already, what is behind it. The last two words may come in either
order. A barrier has its place by its generation and, of these, by the broker where it is; what is
behind one of a generation is behind all of it, so it may change places with these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.farewells import LastCounts
from ...protocol.granting import Inherited, Release
from ..header import PassedOn
from .hosting import barrier_hosts, other_hosts
from .saying import say

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue
    from ..storage import Array


def counts(queue: Queue) -> tuple[dict[int, int], dict[int, int]]:
    """How many messages this queue got from and gave to others, by broker."""
    header = queue.header
    got = {n: asked.got for n, asked in header.asked.items() if asked.got}
    given = {n: wanted.given for n, wanted in header.wanted.items() if wanted.given}
    return got, given


# ---------------------------------------------------------------- who gives


def given_away(broker: Broker, queue: Queue, seqs: Array, host: int) -> None:
    """The messages at these places are that broker's now; the barrier that others know of may be
    among them."""
    holding = queue.header.holding
    if holding is not None and len(seqs):
        numbers = broker.spool.origins(queue.gather(seqs, "id")).tolist()
        if holding.number in numbers:
            holding.to = host


def say_last(broker: Broker, queue: Queue) -> None:
    """Nothing is here, and nothing will be: say what was given and got. It counts when this broker
    is gone: where it stays, it is said anew before that."""
    d, (got, given) = queue.definition, counts(queue)
    for host in other_hosts(broker, queue):
        say(broker, host, LastCounts(d.vpn, d.name, got, given))


# ---------------------------------------------------------------- who gets, who hears


def passed_on(broker: Broker, queue: Queue, sender: int, said: Release) -> None:
    """The barrier that was at a broker is at another now, which may be this one."""
    known, held = queue.header.passed_on, queue.header.held.get(sender)
    if said.to == broker.header.number:
        known[said.number] = PassedOn(by=sender)
    elif known.pop(said.number, None) is None and held is not None and held.number == said.number:
        known[said.number] = PassedOn(held.generation)


def tell(broker: Broker, queue: Queue) -> None:
    """The other hosts know what is first here: those that came count as told of."""
    known, d = queue.header.passed_on, queue.definition
    for number, one in [(number, one) for number, one in known.items() if one.by >= 0]:
        del known[number]
        for host in barrier_hosts(broker, queue):
            if host != one.by:
                say(broker, host, Inherited(d.vpn, d.name, number))


def inherited(broker: Broker, sender: int, said: Inherited) -> None:
    """A barrier is that broker's, and what is first there is known here."""
    queue = broker.find(said.vpn, said.queue)
    if queue is not None:
        if queue.header.passed_on.pop(said.number, None) is None:
            queue.header.passed_on[said.number] = PassedOn()
        queue.wanted = True


def awaited(queue: Queue) -> list[int]:
    """The generations of barriers whose new owner has yet to tell of them."""
    return [one.generation for one in queue.header.passed_on.values() if one.generation >= 0]


def hear_last_counts(broker: Broker, sender: int, said: LastCounts) -> None:
    """Who is removed has nothing of the queue any more."""
    queue = broker.find(said.vpn, said.queue)
    if queue is not None:
        queue.header.last_counts[sender] = [said.got, said.given]
