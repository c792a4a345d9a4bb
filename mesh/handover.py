"""Messages that another broker hands over enter a queue here (M2, M3, M6, H4, X4).

They keep their ids. What waited in a stand-in is a message like a published one, but for its
receipt, which was given: its queue's checks decide whether it is stored, thrown away (S4), or
refused for now. What was granted keeps its counts and its life, and is looked at by no check: the
queue asked for it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..protocol.errors import Reason
from ..protocol.mesh_messages import HandOver, NotTaken, Stored
from ..state.phases.admission_checks import NACK, count_discarded, of_broker, outcome
from ..state.queue.broker import Broker
from ..state.queue.change import enter
from ..state.queue.header import is_remembered
from ..state.queue.queue import Queue
from ..state.rules.after_entry import apply_early_ack, keep_last
from ..state.rules.dead import join
from ..state.rules.edits import WAY, dead_part
from ..state.rules.entry_checks import dead_match, expires_at, refusal
from ..state.storage.row import DELAYED, IN_MEMORY, NEVER, READY, Row
from ..state.storage.spool import Content
from .channel import say
from .facts import MeshFacts, born_of, credit_key, entry_of, key_of
from .stand_ins import ELSEWHERE

_rows = msgspec.msgpack.Decoder(list[Row])


def handed_over(broker: Broker, facts: MeshFacts, sender: int, said: HandOver) -> None:
    """Take messages in, and say which are stored, and from where on none is."""
    if said.waiting and facts.refusing.get(_lane_key(sender, said), 0) >= said.attempt:
        return  # it was under way when one before it was refused, and comes again
    if said.waiting and facts.peers[sender].is_behind:
        return  # one before it may be lost; all come again, in their order
    rows = _rows.decode(said.rows)
    queue = _queue_of(broker, facts, said)
    if queue is None:
        _without_queue(broker, facts, sender, said, rows)
        return
    _count_used(facts, sender, said, len(rows))
    done: list[int] = []
    entered: list[int] = []
    why = ""
    for row, content in zip(rows, said.contents, strict=True):
        reason = _refusal(broker, said.vpn, queue, row) if said.waiting else None
        is_known = said.again and is_remembered(queue.header.taken, row.id)
        was_here = is_known and said.waiting and _is_first_time(row)
        if was_here or queue.holds(row.id):
            dead = dead_part(row.extras)
            if dead is not None:  # it died here, or at another broker, as well
                join(broker, queue, row.id, dead)
        elif reason is not None and outcome(queue) == NACK:
            why = reason.value
            break
        elif reason is not None:
            count_discarded(broker, queue, reason)
            broker.record("discarded", queue, [row.id], reason=reason.value)
        else:
            take_in(broker, queue, row, content, said.waiting)
            entered.append(row.id)
        done.append(row.id)
    peer = facts.peers[sender].name
    broker.record("spooled", queue, entered, reason=f"from broker {peer}")
    for number in entered:
        apply_early_ack(broker, queue, queue.live[number])
    keep_last(broker, queue)
    queue.spill_over()
    if done:
        say(broker, facts, sender, Stored(said.vpn, said.queue, said.waiting, done, said.born))
    if why:
        rejected = queue.header.rejected
        rejected[why] = rejected.get(why, 0) + 1
        broker.touch(queue)
        _refuse(broker, facts, sender, said, why, rows)


def _queue_of(broker: Broker, facts: MeshFacts, said: HandOver) -> Queue | None:
    """The queue that is meant, and not another of its name; None: it is not here, or leaves."""
    queue = broker.find(said.vpn, said.queue)
    if born_of(facts, said.vpn, said.queue) != said.born:
        return None
    if said.waiting and key_of(said.vpn, said.queue) in facts.leaving:
        return None
    return queue


def _is_first_time(row: Row) -> bool:
    """Whether a message was published to this queue. A dead one, or one that is moved or redriven,
    may have been here before, and comes again."""
    return dead_part(row.extras) is None and "own_only" not in (row.extras or {}).get(WAY, {})


def _count_used(facts: MeshFacts, sender: int, said: HandOver, n: int) -> None:
    """Messages that were asked for have come. Their owner counts them when it hears what became of
    them (`stand_ins.stored`, `stand_ins.refused`), so both count the same."""
    credit = facts.asked.get(credit_key(sender, said.vpn, said.queue, said.filter))
    if credit is not None and not said.waiting:
        credit.used += n
        facts.credits_changed = True


def _lane_key(sender: int, said: HandOver) -> str:
    return f"{sender}/{said.vpn}/{said.queue}"


def _refuse(
    broker: Broker, facts: MeshFacts, sender: int, said: HandOver, why: str, rows: list[Row]
) -> None:
    """Of what waited nothing more of this attempt is taken: what is still under way is passed over.
    Of what was granted only these messages are not taken."""
    ids: list[int] = []
    if said.waiting:
        facts.refusing[_lane_key(sender, said)] = said.attempt
        facts.credits_changed = True
    else:
        ids = [row.id for row in rows]
    about = said.vpn, said.queue, said.waiting, said.attempt
    say(broker, facts, sender, NotTaken(*about, why, ids, said.born))


def _without_queue(
    broker: Broker, facts: MeshFacts, sender: int, said: HandOver, rows: list[Row]
) -> None:
    """The queue was deleted: what waited for it is gone (S7), and what was granted goes with the
    sender's. Or it is elsewhere, or this broker has not heard of it yet: then the sender will find
    it."""
    entry = entry_of(facts, said.vpn, said.queue)
    is_gone = said.born <= facts.edition if entry is None else said.born < entry.born
    if not said.waiting:
        if not is_gone:
            _refuse(broker, facts, sender, said, "no_such_queue", rows)
    elif is_gone:
        ids = [row.id for row in rows]
        say(broker, facts, sender, Stored(said.vpn, said.queue, True, ids, said.born))
        broker.event("arrived_for_deleted", said.vpn, said.queue, messages=len(ids))
    else:
        _refuse(broker, facts, sender, said, ELSEWHERE, rows)


def failed(broker: Broker, facts: MeshFacts, sender: int, said: HandOver) -> None:
    """Taking messages in failed, and nothing of it was done. They are tried one by one. Of those
    that waited, one that fails alone is gone: it stands in `<vpn>.rejected`, and would hold its
    lane for ever."""
    rows = _rows.decode(said.rows)
    if said.waiting and len(rows) == 1:
        say(broker, facts, sender, Stored(said.vpn, said.queue, True, [rows[0].id], said.born))
        return
    if len(rows) == 1:  # several come again, one by one
        _count_used(facts, sender, said, 1)
        queue = broker.find(said.vpn, said.queue)
        if queue is not None:  # its consumers have room still
            broker.touch(queue)
    _refuse(broker, facts, sender, said, Reason.MALFORMED.value, rows)


def _refusal(broker: Broker, vpn: str, queue: Queue, row: Row) -> Reason | None:
    """The first check of S3 that fails."""
    reason = of_broker(broker, vpn, row.size, 0)
    if reason is None and broker.spool.file_room(broker.header.system.max_spool_files) <= 0:
        reason = Reason.SPOOL_FILES
    return reason or refusal(queue, [row.size], row.size, row.priority)


def take_in(broker: Broker, queue: Queue, row: Row, content: Content, waiting: bool) -> None:
    """One message is stored here. waiting: it waited in a stand-in, and had no owner."""
    extras: dict[str, Any] = dict(row.extras or {})
    way = extras.pop(WAY, {})
    payload, key, headers = content
    vpn = queue.header.vpn_number
    row.stored = broker.spool.store(vpn, [(payload, key, headers)], row.size, 1)
    row.block, row.index = IN_MEMORY, 0
    row.state, row.until, row.holder, row.generation = READY, NEVER, 0, 0
    row.extras = extras or None
    if waiting:
        found = dead_match(queue, payload, row.priority, key)
        row.level, row.lane, row.barrier = found.level, found.lane, found.barrier
        row.deliveries = row.cancels = row.number = 0
        own_only = way.get("own_only", dead_part(row.extras) is not None)
        row.expires = expires_at(queue.definition, broker.now, row.ttl_ends, own_only=own_only)
        until = way.get("until", NEVER)
        if broker.now < until < NEVER:
            row.until = until
        if queue.header.stands_for and broker.mesh is not None:  # a bridge's endpoint
            broker.mesh.wait(queue, [row], way["to"])
        elif row.until != NEVER:
            row.state = DELAYED
    enter(broker, queue, [row])
