"""Dead messages whose dead message queue is on another broker: the way there (X5, Q5).

    the broker of the queue             a broker that has the dead message queue
      │ a message dies: it is on the way        │
      │ DeadLetters ──────────────────────────▶ │ stored, under its id
      │ ◀──────────────────────────── DeadTaken │
      │ gone from the way, counted              │

The way is a local queue of the broker in which messages die, by the name `#dead/<name>`, made when
the first needs it. `dead` moves messages into it as it would into the dead message queue itself, so
they keep id, payload, headers and what they carry as dead messages. From there they are granted, as
those of a distributed queue are (`ownership`): one record at a time, so their order holds, and each
is at one end at least, and can be read at one at most.

What the other end says decides what is counted: `dead_lettered` where it is in the queue,
`discarded` where the queue is full, shut down or deleted, as on one broker. The queue in which it
died may have moved meanwhile; then its broker is told (`DeadCounted`). A queue that is about to
move, and a broker without room, send messages back: they wait, and are brought again, the first
alone until it goes through.

A message that dies into the same queue once more while it is on its way stands there already. The
names of the queues it died in are noted with it; those that were not said yet follow (X6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ...definitions import QueueDefinition, parse_definition
from ...definitions.definition_values import DEAD_PREFIX
from ...protocol.dead_letters import DeadCounted, DeadLetters, DeadTaken
from ...protocol.errors import Reason
from ...protocol.journal import Segment
from ...protocol.mesh import PART_BYTES
from ..commands import administration
from ..dead import died_in, join, names_of, place_in
from ..limits import Budget
from ..message import Event, apply, enter
from ..rules.deferred import came_early, settle_arrivals
from ..rules.edits import dead_part, edits_part, extras_of
from ..rules.entering import over_quota
from ..rules.lifetime import expires_at
from ..rules.order import seq_of
from ..storage import NEVER, Array
from . import known_places
from .hosting import initial_owner
from .ownership import has_room, moving_to
from .placement import LOCAL
from .queue_moving import tell
from .saying import say

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue

PART = 1_000  # messages in one record: what they carry as dead messages has no size of its own
PAUSE_MS, PAUSE_MS_MAX = 500, 8_000
ROOM = 1 << 60  # bytes: what is on its way counts as stored, and is bounded by that
MISSING = "dead message queue missing"


class DeadWay(msgspec.Struct, array_like=True):
    """One page of each way. to: where its last record went; better: where the other end said that
    it would be better brought; tries: how often the first was sent back; said: of each row on its
    way, in how many queues it had died."""

    to: int = -1
    better: int = -1
    tries: int = 0
    said: dict[int, int] = {}


def _load(broker: Broker, way: Queue) -> DeadWay:
    raw = broker.values.read(f"W/{way.number}")
    return DeadWay() if raw is None else msgspec.convert(raw, DeadWay)


def _save(broker: Broker, way: Queue, page: DeadWay | None) -> None:
    broker.values.write(f"W/{way.number}", None if page is None else msgspec.to_builtins(page))


# ---------------------------------------------------------------- the way


def way_to(broker: Broker, vpn: str, name: str) -> Queue | None:
    """The way to a dead message queue that is elsewhere, or about to move, or to which others are
    still on their way; None: messages need none, or there is no such queue."""
    way = _find(broker, vpn, name)
    if way is not None and way.header.depth:
        return way
    target = broker.find(vpn, name)
    # One of several brokers takes them here to its last moment, and passes them on itself.
    stays = target is not None and target.definition.type != LOCAL
    here = target is not None and (stays or not known_places.is_moving(target))
    if here or _place_of(broker, vpn, name) is None:
        if way is not None:
            _close(broker, vpn, way)
        return None
    if way is None:
        way = administration.create(broker, vpn, _definition_of(vpn, name), way=name)
    return way


def _find(broker: Broker, vpn: str, name: str) -> Queue | None:
    return broker.find(vpn, DEAD_PREFIX + name) if broker.header.ways else None


def _definition_of(vpn: str, name: str) -> QueueDefinition:
    given = {"name": name, "vpn": vpn, "message_type": "binary", "type": "LocalQueue"}
    own = DEAD_PREFIX + name
    return msgspec.structs.replace(
        parse_definition(given), name=own, underlying_topic=own, default_publish_target=own,
        max_spool_usage=ROOM,
    )  # fmt: skip


def _place_of(broker: Broker, vpn: str, name: str, better: int = -1) -> int | None:
    """The number of a broker that has a queue; None: there is no such queue."""
    number, peers = broker.header.number, broker.header.peers
    if broker.find(vpn, name) is not None:
        return number
    gone = known_places.gone_to(broker, vpn, name)
    if gone is not None:
        return gone
    entry = known_places.find(broker, vpn, name)
    hosts = [host for host in entry.hosts if host in peers] if entry is not None else []
    if not hosts:
        return None
    return better if better in hosts else hosts[number % len(hosts)]


def _close(broker: Broker, vpn: str, way: Queue) -> None:
    """Nothing is in it."""
    _save(broker, way, None)
    del broker.header.ways[way.number]
    administration.forget(broker, vpn, way)
    way.drop()


def close_all(broker: Broker) -> None:
    """This broker is to be removed: ways that are empty keep it from nothing."""
    for number in list(broker.header.ways):
        way = broker.queue(number)
        if way is not None and not way.header.depth:
            _close(broker, broker.vpn_of(way), way)


def waits_for(broker: Broker, number: int) -> bool:
    """Whether a broker has yet to say what it took of dead messages."""
    ways = (broker.queue(one) for one in broker.header.ways)
    return any(w is not None and w.header.moving and _load(broker, w).to == number for w in ways)


# ---------------------------------------------------------------- bringing


def bring(broker: Broker, way: Queue, budget: Budget) -> bool:
    """Send the next messages to where the dead message queue is now; whether more can go at
    once."""
    header, page = way.header, _load(broker, way)
    if header.moving or header.delayed or not header.egress or not way.ready:
        return False
    vpn, name = broker.vpn_of(way), broker.header.ways[way.number]
    most = 1 if page.tries else min(PART, max(budget.rows, 1))
    seqs = np.array([seq_of(key) for key in way.ready.peek(most)], np.int64)
    sizes = way.gather(seqs, "size")
    seqs = seqs[: Budget(most, min(PART_BYTES, budget.bytes)).fits(sizes)]
    budget.take(len(seqs), int(sizes[: len(seqs)].sum(dtype=np.int64)))
    to = _place_of(broker, vpn, name, page.better)
    if to is None:
        _lose(broker, way, seqs, {}, MISSING)
        return bool(way.ready)
    contents = broker.spool.contents(way.gather(seqs, "id"))
    there = np.array([content is not None for content in contents], bool)
    if not there.all():
        apply(broker, way, seqs[~there], Event.LOSE, reason="payload missing")
        return True
    page.to = to
    _grant(broker, way, page, seqs, name)
    return bool(way.ready) and not header.moving and not header.delayed


def _grant(broker: Broker, way: Queue, page: DeadWay, seqs: Array, name: str) -> None:
    """Say these to the broker to which the page points."""
    spool, ids = broker.spool, way.gather(seqs, "id")
    contents = [content for content in spool.contents(ids) if content is not None]
    extras = extras_of(way.rows(seqs))
    page.said = {
        ref: len(names_of(extras[at])) for at, ref in enumerate(ids.tolist())
    }  # fmt: skip
    _save(broker, way, page)
    said = DeadLetters(
        broker.vpn_of(way), name,
        refs=ids.tolist(), ids=spool.origins(ids).tolist(),
        payloads=[c[0] for c in contents], keys=[c[1] for c in contents],
        headers=[c[2] for c in contents], sizes=way.gather(seqs, "size").tolist(),
        priorities=spool.gather(ids, "priority").tolist(),
        times=spool.gather(ids, "time").tolist(),
        ttl_ends=spool.gather(ids, "ttl_ends").tolist(),
        dmq=spool.gather(ids, "dmq").astype(bool).tolist(),
        dead=[dict(extras[at]) for at in range(len(seqs))],
    )  # fmt: skip
    apply(
        broker, way, seqs, Event.GRANT, holder=page.to + 1,
        subscription=_called(broker, page.to),
    )  # fmt: skip
    tell(broker, page.to, said)


def _called(broker: Broker, number: int) -> str:
    """How the journal names a broker."""
    peer = broker.header.peers.get(number)
    return f"broker:{broker.header.name if peer is None else peer.name}"


# ---------------------------------------------------------------- at the other end


def arrived(broker: Broker, sender: int, said: DeadLetters) -> None:
    """Dead messages for a queue that may be here."""
    queue = broker.find(said.vpn, said.queue)
    owner = None if queue is None else initial_owner(broker, queue)
    if queue is None or known_places.is_moving(queue) or owner is not None:
        send_back(broker, sender, said, -1 if owner is None else owner)
        return
    if not queue.header.ingress:
        why = "dead message queue shut down"
        tell(broker, sender, DeadTaken(said.vpn, said.queue, [], said.refs, why, []))
        return
    work = _Arrivals(broker, queue, said, moves=sender == broker.header.number)
    work.take()
    tell(
        broker, sender,
        DeadTaken(
            said.vpn, said.queue, work.taken, work.lost, "dead message queue full", work.back
        ),
    )  # fmt: skip


def send_back(broker: Broker, sender: int, said: DeadLetters, to: int = -1) -> None:
    """Nothing of this can be taken here now."""
    tell(broker, sender, DeadTaken(said.vpn, said.queue, [], [], "", said.refs, to))


class _Arrivals:
    """A record of dead messages, and what becomes of each. moves: they are stored here already, and
    leave their way in this step."""

    def __init__(self, broker: Broker, queue: Queue, said: DeadLetters, moves: bool) -> None:
        self.broker, self.queue, self.said, self.moves = broker, queue, said, moves
        self.taken: list[int] = []
        self.lost: list[int] = []
        self.back: list[int] = []
        self._new: dict[int, str] = {}  # ids that enter now, and the reasons of their deaths

    def take(self) -> None:
        """Take what the queue takes. From the first for which this broker has no room on, all
        wait: their order holds."""
        broker, queue, said = self.broker, self.queue, self.said
        for at, ref in enumerate(said.refs):
            if said.ids[at] in self._new:
                self._enter()
            held = broker.spool.held_under(said.ids[at], queue.number)
            if over_quota(queue, said.sizes[at]):
                self.lost.append(ref)
                continue
            if not (held or self.moves or has_room(broker, queue, said.sizes[at])):
                self.back = said.refs[at:]
                break
            if held is not None:
                for name in names_of(said.dead[at]):
                    join(broker, queue, held, died_in(said.dead[at], [name]))
            else:
                self._store(at)
            self.taken.append(ref)
        self._enter()

    def _store(self, at: int) -> None:
        """Store a message, and give it its place by the queue's expressions."""
        broker, queue, said = self.broker, self.queue, self.said
        size, arrivals = said.sizes[at], queue.arrivals
        if queue.header.deferred and came_early(broker, queue, said.ids[at]):
            broker.early.append((queue, queue.next_place()))
            arrivals.leaving += 1
            arrivals.leaving_bytes += size
        number = broker.spool.stage(
            [said.payloads[at]], said.keys[at], said.headers[at], [size], [said.times[at]],
            said.ttl_ends[at], said.priorities[at], said.dmq[at], queue.header.vpn_number,
            [(queue.number, queue.next_place())], origin=said.ids[at],
        )  # fmt: skip
        arrivals.dead[len(arrivals.ids)] = said.dead[at]
        level, barrier, lane = place_in(
            queue, said.payloads[at], said.priorities[at], said.keys[at]
        )
        expires = expires_at(queue.definition, broker.now, NEVER, own_only=True)
        arrivals.add(number, [size], level, expires, NEVER, barrier, lane)
        self._new[said.ids[at]] = str(Reason(said.dead[at]["reason"]))

    def _enter(self) -> None:
        """Give what was stored its rows, and write it down."""
        if not self._new:
            return
        broker, queue = self.broker, self.queue
        broker.spool.settle_staged()
        enter(broker, queue)
        broker.arrived_in.append(queue)
        settle_arrivals(broker)
        by_reason: dict[str, list[int]] = {}
        for number, reason in self._new.items():
            by_reason.setdefault(reason, []).append(number)
        for reason, ids in by_reason.items():
            _write_down(broker, "spooled", self.said.vpn, self.said.queue, ids, reason)
        self._new = {}


# ---------------------------------------------------------------- what became of them


def taken(broker: Broker, sender: int, said: DeadTaken) -> None:
    """The other end says what it took."""
    way = _find(broker, said.vpn, said.queue)
    if way is None:
        return
    page = _load(broker, way)
    before, page.said = page.said, {}
    page.better = said.to
    page.tries = page.tries + 1 if said.back else 0
    _save(broker, way, page)
    came = moving_to(broker, way, sender, said.taken)
    left = _settle(broker, way, came, before, None)
    gone = np.setdiff1d(came, left)
    called = _called(broker, sender)
    apply(broker, way, gone, Event.TRANSFER, subscription=called)
    apply(broker, way, left, Event.REFUSE, subscription=called, reason="died again")
    _lose(broker, way, moving_to(broker, way, sender, said.lost), before, said.why)
    back = moving_to(broker, way, sender, said.back)
    pause = min(PAUSE_MS << min(max(page.tries - 1, 0), 8), PAUSE_MS_MAX)
    waits = 0 if said.to >= 0 else 1  # who is sent elsewhere goes there at once
    apply(
        broker, way, back[:waits], Event.REFUSE_LATER, until=broker.now + pause,
        subscription=called, reason="not taken now",
    )  # fmt: skip
    apply(broker, way, back[waits:], Event.REFUSE, subscription=called, reason="not taken now")
    way.wanted = True


def _lose(broker: Broker, way: Queue, seqs: Array, said: dict[int, int], why: str) -> None:
    """The dead message queue does not take these, or is gone (X5)."""
    left = _settle(broker, way, seqs, said, why)
    apply(broker, way, np.setdiff1d(seqs, left), Event.PURGE, reason=why)
    apply(broker, way, left, Event.REFUSE, reason="died again")


def _settle(
    broker: Broker, way: Queue, seqs: Array, said: dict[int, int], lost: str | None
) -> Array:
    """Have the queues in which these died count them. Gives the places of those that have died in
    others since they were said: they go once more, for these."""
    if not len(seqs):
        return seqs
    vpn, name = broker.vpn_of(way), broker.header.ways[way.number]
    refs = way.gather(seqs, "id")
    of_queue: dict[str, list[int]] = {}
    left: list[int] = []
    known = broker.spool.origins(refs).tolist()
    for seq, ref, number in zip(seqs.tolist(), refs.tolist(), known, strict=True):
        page, row = way.row(seq)
        extra = page.extras[row]
        names = names_of(extra)
        n = said.get(ref, len(names))
        for one in names[:n]:
            of_queue.setdefault(one, []).append(number)
        if names[n:]:
            dead = dead_part(extra)
            assert dead is not None
            page.extras[row] = {**died_in(dead, names[n:]), **edits_part(extra)}
            way.changed(page)
            left.append(seq)
    for one, ids in of_queue.items():
        if lost is not None:
            broker.event(
                "dead_message_queue_unusable", vpn, one, dead_message_queue=name, why=lost,
                messages=len(ids),
            )  # fmt: skip
        told = DeadCounted(vpn, one, name, ids, lost is not None, lost or "")
        counted(broker, broker.header.number, told)
    return np.array(left, np.int64)


def counted(broker: Broker, sender: int, said: DeadCounted) -> None:
    """Messages that died in a queue have arrived, or are lost. While it moves, some of its deaths
    are counted at its old broker, some at its new one. A queue that was defined anew since has
    nothing to do with those of the one before."""
    queue = broker.find(said.vpn, said.queue)
    n = min(0 if queue is None else _open_deaths(queue), len(said.ids))
    ids, others = said.ids[:n], said.ids[n:]
    if queue is not None and ids:
        event = "discarded" if said.lost else "dead_lettered"
        queue.count(event, n)
        reason = said.why if said.lost else said.dead_message_queue
        _write_down(broker, event, said.vpn, said.queue, ids, reason)
    to = _other_end(broker, said, queue) if others else None
    if to is not None:
        say(broker, to, msgspec.structs.replace(said, ids=others))


def _open_deaths(queue: Queue) -> int:
    """How many messages have died here of which it is not counted what became of them."""
    n = queue.header.counters.get
    dead = n("expired", 0) + n("consumer_rejected", 0)
    return max(dead - n("dead_lettered", 0) - n("discarded", 0), 0)


def _other_end(broker: Broker, said: DeadCounted, queue: Queue | None) -> int | None:
    """The other broker that has a queue, or has it too, as it moves."""
    if queue is not None and not queue.header.arriving:
        return queue.header.leaving[0] if queue.header.leaving else None
    gone = known_places.went_to(broker, said.vpn, said.queue)
    entry = known_places.find(broker, said.vpn, said.queue)
    hosts = [gone] if gone is not None else entry.hosts if entry is not None else []
    return next((host for host in hosts if host in broker.header.peers), None)


def _write_down(
    broker: Broker, event: str, vpn: str, queue: str, ids: list[int], reason: str
) -> None:
    """Into the journal, by ids as they are known."""
    broker.journal.segments.append(Segment(event, vpn, queue, ids, reason=reason))
