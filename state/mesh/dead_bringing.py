"""Dead messages are brought along their way, and what the other end says decides (X5, Q5).

See `dead_ways`: one record at a time is on its way, so the order in which messages died holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...protocol.dead_letters import DeadCounted, DeadLetters, DeadTaken
from ...protocol.mesh import PART_BYTES
from ..dead import died_in, names_of
from ..limits import Budget
from ..message import Event, apply
from ..rules.edits import dead_part, edits_part, extras_of
from ..rules.order import seq_of
from ..storage import Array
from .columns_said import columns
from .dead_counts import counted
from .dead_ways import DeadWay, find, load, place_of, save
from .ownership import moving_to
from .saying import tell

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue

PART = 1_000  # messages in one record: what they carry as dead messages has no size of its own
PAUSE_MS, PAUSE_MS_MAX = 500, 8_000
MISSING = "dead message queue missing"


def bring(broker: Broker, way: Queue, budget: Budget) -> bool:
    """Send the next messages to where the dead message queue is now; whether more can go at
    once."""
    header, page = way.header, load(broker, way)
    if header.moving or header.delayed or not header.egress or not way.ready:
        return False
    vpn, name = broker.vpn_of(way), broker.header.ways[way.number]
    most = 1 if page.tries else min(PART, max(budget.rows, 1))
    seqs = np.array([seq_of(key) for key in way.ready.peek(most)], np.int64)
    sizes = way.gather(seqs, "size")
    seqs = seqs[: Budget(most, min(PART_BYTES, budget.bytes)).fits(sizes)]
    budget.take(len(seqs), int(sizes[: len(seqs)].sum(dtype=np.int64)))
    to = place_of(broker, vpn, name, page.better)
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
    ids = way.gather(seqs, "id")
    contents = [content for content in broker.spool.contents(ids) if content is not None]
    extras = extras_of(way.rows(seqs))
    page.said = {
        ref: len(names_of(extras[at])) for at, ref in enumerate(ids.tolist())
    }  # fmt: skip
    save(broker, way, page)
    said = DeadLetters(
        broker.vpn_of(way), name, **columns(broker, way, seqs, contents),
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


# ---------------------------------------------------------------- what became of them


def taken(broker: Broker, sender: int, said: DeadTaken) -> None:
    """The other end says what it took."""
    way = find(broker, said.vpn, said.queue)
    if way is None:
        return
    page = load(broker, way)
    before, page.said = page.said, {}
    page.better = said.to
    page.tries = page.tries + 1 if said.back else 0
    save(broker, way, page)
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
