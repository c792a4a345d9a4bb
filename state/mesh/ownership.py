"""Distributed queues: each message has one owner, and ownership moves in transactions (Q5, H4).

A queue that several brokers host is, at each of them, a queue as any other, with the messages that
this broker owns: those it took in, and those it was granted. A host whose consumers have room and
for whom nothing is ready *wants* messages: it says so to the other hosts, with the filters of these
consumers. An owner that has ready messages which no consumer of its own can take *grants* them,
each once, to who asked first. A message that is granted is *moving*: nobody gets it here, it does
not expire here, and no backlog counts it. The other stores it as its own and says so; then it is
gone here (`transferred`). If there is no room for it there, it is returned to its place.

So a message is deliverable at one broker at most at any moment, since it stops being ready before
the other hears of it, and it is stored at one at least, since it goes when the other has stored it.
The channel says everything exactly once and in order, so neither can be lost nor done twice,
whoever dies when. It keeps its id, its place among what is granted with it, its counts and the end
of its life; where it goes then (a cancel, a return, the dead message queue) is the new owner's
affair.

Credits are counted from the beginning on both sides, so a want says what may be on its way at
most: `limit` = what came + what may come. A broker whose consumers have gone or are full takes back
what it had asked for.

A message of a `GroupLocalQueue` that enters elsewhere goes to the initial owner first (`push`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...protocol.errors import Reason
from ...protocol.granting import CREDITS_MAX, FILTERS_MAX, Grant, Here, TakenOver, Want
from ..header import Asked, RoomWanted
from ..limits import Budget
from ..message import DELAYED, MOVING, READY, Event, apply, enter
from ..phases.selection import choose_for
from ..rules.edits import extras_of
from ..rules.entering import over_quota
from ..rules.fairness import candidates_of
from ..rules.last_value import keep_latest
from ..storage import NEVER, Array
from . import barrier_moves, barriers, queue_moving
from .columns_said import columns, stage
from .hosting import initial_owner, other_hosts
from .saying import say

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue


# ---------------------------------------------------------------- coming and going


def join(broker: Broker, queue: Queue) -> None:
    """The queue is new here: hosts that have it may ask."""
    for host in other_hosts(broker, queue):
        say(broker, host, Here(queue.definition.vpn, queue.definition.name))


def joined(broker: Broker, sender: int, said: Here) -> None:
    """Another broker hosts the queue: what was asked of it before was asked of nobody."""
    queue = broker.find(said.vpn, said.queue)
    if queue is not None:
        queue.header.asked.pop(sender, None)
        before = queue.header.wanted.pop(sender, None)
        if before is not None:  # what is on its way will come to the new one
            on_its_way = max(before.given - before.confirmed, 0)
            queue.header.wanted[sender] = RoomWanted(given=on_its_way)
            for text in before.filters:
                forget_filter(queue, text)
        barriers.joined(broker, queue, sender)
        queue.wanted = True


def leave(broker: Broker, queue: Queue) -> None:
    """The queue is deleted here: it wants nothing any more, and holds nobody."""
    d = queue.definition
    for host in other_hosts(broker, queue):
        asked = queue.header.asked.get(host)
        if asked is not None and asked.limit > asked.got:
            say(broker, host, Want(d.vpn, d.name, asked.got, 0, []))
    barriers.leave(broker, queue)


# ---------------------------------------------------------------- wanting


def want(broker: Broker, queue: Queue) -> None:
    """Say to the other hosts what this one has room for, where that has changed enough."""
    hosts = other_hosts(broker, queue)
    if not hosts or queue.wanted:  # a budget ended delivery: what is here comes first
        return
    room, filters = _room(broker, queue)
    for host in hosts:
        asked = queue.header.asked.get(host)
        if asked is None:
            if not room:
                continue
            asked = queue.header.asked[host] = Asked()
        coming = max(asked.limit - asked.got, 0)
        if room:
            enough = coming * 2 >= room and coming <= room * 2 and asked.filters == filters
        else:
            enough = not coming and not asked.filters
        if not enough:
            asked.limit, asked.filters = asked.got + room, filters
            d = queue.definition
            say(broker, host, Want(d.vpn, d.name, asked.got, room, filters))


def _room(broker: Broker, queue: Queue) -> tuple[int, list[str | None]]:
    """How many messages consumers here could take beside those that are here, and their filters."""
    header, definition = queue.header, queue.definition
    if not header.egress or queue.number in broker.header.short:
        return 0, []
    if queue.barriers and barriers.holder(broker, queue) is None:  # all that is left comes here
        return 0, []
    room = CREDITS_MAX
    if definition.max_backlog is not None:
        room = min(room, definition.max_backlog - header.leased)
    candidates = candidates_of(definition, header.subscriptions)
    leases_left = broker.header.system.max_delivered_unacked - broker.unacked_total
    if leases_left <= 0:
        candidates = [c for c in candidates if c.free]
    room = min(room, sum(c.room for c in candidates))
    if room <= 0:
        return 0, []
    texts = {c.subscription.filter for c in candidates}
    filters: list[str | None] = []
    filters += [None] if None in texts else sorted(text for text in texts if text)[:FILTERS_MAX]
    return room, filters


def look_for_room(broker: Broker) -> None:
    """Queues that had no room for what they were granted are served when some has come free."""
    for number in short_no_more(broker):
        del broker.header.short[number]
        queue = broker.queue(number)
        if queue is not None:
            barriers.hold_again(queue)
            queue.wanted = True


def short_no_more(broker: Broker) -> list[int]:
    """Queues that were short of room, and some has come free since."""
    size = broker.spool.header.bytes
    return [number for number, level in broker.header.short.items() if size < level]


def wanted(broker: Broker, sender: int, said: Want) -> None:
    """Another host has room, or has none any more."""
    queue = broker.find(said.vpn, said.queue)
    if queue is None:
        return
    known = queue.header.wanted
    one = known.setdefault(sender, RoomWanted())
    texts = set(one.filters) - set(said.filters)
    if one.limit <= one.given:  # who begins to ask stands behind those who do already
        known[sender] = known.pop(sender)
    one.limit, one.filters = said.got + said.credits, list(said.filters)
    queue.wanted = True
    for text in texts:
        forget_filter(queue, text)


def forget_filter(queue: Queue, text: str | None) -> None:
    """A filter that nobody has any more, here or among those who want, remembers nothing."""
    header = queue.header
    if text is None or any(s.filter == text for s in header.subscriptions):
        return
    if not any(text in one.filters for one in header.wanted.values()):
        queue.filters.forget(text)


# ---------------------------------------------------------------- granting


def grant(broker: Broker, queue: Queue, budget: Budget, looks: Budget) -> bool:
    """Give what no consumer here can take to hosts that want it, the first first; whether a budget
    ended it."""
    header = queue.header
    if not header.egress or header.leaving:
        return False
    holder = barriers.holder(broker, queue)
    if holder is not None:  # until its barrier is through, all that is left goes there
        if header.held[holder].full or holder in header.without:  # it goes to who will have that
            return False
        return _grant_to(broker, queue, holder, [None], NEVER, budget, looks)
    for host, one in list(header.wanted.items()):
        stays = host in broker.header.peers and host not in header.without
        room = one.limit - one.given if stays else 0
        if _grant_to(broker, queue, host, one.filters, room, budget, looks):
            return True
    return False


def _grant_to(
    broker: Broker, queue: Queue, host: int, filters: list[str | None], room: int,
    budget: Budget, looks: Budget,
) -> bool:  # fmt: skip
    """Give a host up to so many messages; whether a budget ended it."""
    while room > 0:
        if budget.spent:
            return True
        most = min(room, budget.rows)
        seqs, unfinished = choose_for(broker, queue, filters, most, budget, looks)
        if not len(seqs):
            return unfinished
        give(broker, queue, host, seqs)
        budget.take(len(seqs))
        room -= len(seqs)
    return False


def push(broker: Broker, queue: Queue, budget: Budget) -> bool:
    """What entered a `GroupLocalQueue` here goes to its initial owner first; whether a budget ended
    it. What was granted here has been there."""
    header = queue.header
    owner = initial_owner(broker, queue)
    if owner is None:
        header.pushed = header.next_seq
        return False
    while header.pushed < header.next_seq:
        if budget.spent:
            return True
        start = header.pushed
        stop = min(start + max(budget.rows, 1), header.next_seq, (start | queue.mask) + 1)
        page = queue.page(start >> queue.bits)
        header.pushed = stop
        if page is None:
            continue
        rows = np.arange(start & queue.mask, stop - page.base)
        rows = rows[(page.state[rows] == READY) | (page.state[rows] == DELAYED)]
        rows = rows[broker.spool.gather(page.id[rows], "origin") == 0]
        seqs = rows.astype(np.int64) + page.base
        n = budget.fits(page.size[rows]) if len(rows) else 0
        if n < len(rows):
            header.pushed = int(seqs[n])
        give(broker, queue, owner, seqs[:n], fresh=True)
        budget.take(stop - start, int(page.size[rows[:n]].sum(dtype=np.int64)))
    return False


def give(broker: Broker, queue: Queue, host: int, seqs: Array, fresh: bool = False) -> None:
    """Grant the messages at these places to a broker. fresh: they have had no owner yet."""
    contents = broker.spool.contents(queue.gather(seqs, "id"))
    there = np.array([content is not None for content in contents], bool)
    if not there.all():
        apply(broker, queue, seqs[~there], Event.LOSE, reason="payload missing")
        seqs = seqs[there]
    if not len(seqs):
        return
    found = [content for content in contents if content is not None]

    def rows(name: str) -> Any:
        return queue.gather(seqs, name).tolist()

    said = Grant(
        queue.definition.vpn, queue.definition.name, fresh, **columns(broker, queue, seqs, found),
        levels=rows("priority"), lanes=rows("lane"), generations=rows("generation"),
        barriers=[bool(n) for n in rows("barrier")],
        expires=rows("expires"), until=rows("until"), entered=rows("entered"),
        deliveries=rows("deliveries"), cancels=rows("cancels"), dead=extras_of(queue.rows(seqs)),
    )  # fmt: skip
    name = broker.header.peers[host].name
    apply(broker, queue, seqs, Event.GRANT, holder=host + 1, subscription=f"broker:{name}")
    queue.header.wanted.setdefault(host, RoomWanted()).given += len(seqs)
    say(broker, host, said)


def taken(broker: Broker, sender: int, said: TakenOver) -> None:
    """The other broker has what it was granted, or refused it."""
    queue = broker.find(said.vpn, said.queue)
    if queue is None:
        return
    name = f"broker:{broker.header.peers[sender].name}"
    one = queue.header.wanted.setdefault(sender, RoomWanted())
    one.confirmed += len(said.refs) + len(said.refused)
    seqs = moving_to(broker, queue, sender, said.refs)
    barrier_moves.given_away(broker, queue, seqs, sender)
    apply(broker, queue, seqs, Event.TRANSFER, subscription=name)
    if said.refused:
        barriers.is_full(queue, sender)
    for ref, expires, until in said.refused:
        seqs = moving_to(broker, queue, sender, [ref])
        if not len(seqs):
            continue
        page, row = queue.row(int(seqs[0]))
        page.expires[row] = expires
        event = Event.REFUSE if until == NEVER else Event.REFUSE_LATER
        apply(broker, queue, seqs, event, until=until, subscription=name, reason="no room there")
    queue.wanted = True
    keep_latest(broker, queue)
    if queue.header.leaving:
        queue_moving.look(broker, queue)


def moving_to(broker: Broker, queue: Queue, host: int, refs: list[int]) -> Array:
    """The places of these rows, of those that are on their way to a broker."""
    _, seqs = broker.spool.held_by([(ref, ref) for ref in refs], queue.number)
    if not len(seqs):
        return seqs
    ours = (queue.gather(seqs, "state") == MOVING) & (queue.gather(seqs, "holder") == host + 1)
    found: Array = seqs[ours]
    return found


# ---------------------------------------------------------------- being granted


def granted(broker: Broker, sender: int, said: Grant) -> None:
    """Messages that this broker is to own: stored as its own, or refused where there is no room."""
    queue = broker.find(said.vpn, said.queue)
    refs: list[int] = []
    refused: list[tuple[int, int, int]] = []
    if queue is not None:
        asked = queue.header.asked.setdefault(sender, Asked())
        asked.got += len(said.refs)
    for at, ref in enumerate(said.refs):
        here = queue is not None and (
            queue.header.arriving
            or sender in queue.header.without  # it is removed, and all has to go somewhere
            or (not over_quota(queue, said.sizes[at]) and has_room(broker, queue, said.sizes[at]))
        )
        if queue is not None and here:
            _store(broker, queue, said, at)
            refs.append(ref)
        else:
            refused.append((ref, said.expires[at], said.until[at]))
    if queue is not None and refs:
        broker.spool.settle_staged()
        name = f"transferred from {broker.header.peers[sender].name}"
        ids = list(queue.arrivals.ids)
        enter(broker, queue)
        broker.record("spooled", queue, ids, reason=name)
        keep_latest(broker, queue)
    if queue is not None and refused:
        broker.header.short[queue.number] = broker.spool.header.bytes
    say(broker, sender, TakenOver(said.vpn, said.queue, refs, refused))


def has_room(broker: Broker, queue: Queue, size: int) -> bool:
    """Whether the quotas of the broker and the VPN have room for a message."""
    return no_room(broker, queue, size) is None


def no_room(broker: Broker, queue: Queue, size: int) -> Reason | None:
    """Which of these has no room for a message (S3, S8)."""
    spool, system = broker.spool.header, broker.header.system
    limits = broker.header.vpn_limits.get(broker.vpn_of(queue))
    if spool.bytes + size > system.max_spool_usage:
        return Reason.BROKER_QUOTA
    if limits is not None and limits.max_spool_usage is not None:
        used = spool.vpn_bytes.get(queue.header.vpn_number, 0)
        if used + size > limits.max_spool_usage:
            return Reason.VPN_QUOTA
    if broker.spool.file_room(system.max_spool_files) < size:
        return Reason.SPOOL_FILES
    return None


def _store(broker: Broker, queue: Queue, said: Grant, at: int) -> None:
    number = stage(broker, queue, said, at)
    arrivals = queue.arrivals
    position = len(arrivals.ids)
    arrivals.before[position] = (said.entered[at], said.deliveries[at], said.cancels[at])
    if not said.fresh:
        arrivals.generations.append(said.generations[at])
    if at in said.dead:
        arrivals.dead[position] = said.dead[at]
    arrivals.add(
        number, [said.sizes[at]], said.levels[at], said.expires[at], said.until[at],
        said.barriers[at], said.lanes[at],
    )  # fmt: skip
