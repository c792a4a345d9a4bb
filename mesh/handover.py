"""Messages that another broker hands over enter a queue here (M2, M3, M6, H4, X4).

They keep their ids. A message from a stand-in is like a published one whose receipt was sent: its
queue's checks decide whether it is stored, discarded (S4), or refused for now. A granted message
keeps its counts and its expiry, and is not checked: the queue asked for it. So does a message of a
queue that moves here, and it keeps its position too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ..protocol.errors import Reason
from ..protocol.mesh_messages import Answer, HandOver
from ..state.phases.admission_checks import NACK, count_discarded, of_broker, outcome
from ..state.queue.broker import Broker
from ..state.queue.change import enter
from ..state.queue.queue import Queue
from ..state.rules.after_entry import apply_early_ack, keep_last
from ..state.rules.dead import join, record_entry
from ..state.rules.edits import TRANSIT, dead_part
from ..state.rules.entry_checks import expires_at, match, plain_match, refusal
from ..state.storage.blocks import Content
from ..state.storage.row import IN_MEMORY, MOVING, NEVER, Row
from .channel import say
from .credit import count_come
from .facts import MeshFacts, born_of, entry_of, key_of
from .moves import arrive, enter_in_place
from .stand_ins import CROSSED, ELSEWHERE

NO_FILES = Reason.SPOOL_FILES  # no queue discards for it (S8)

_rows = msgspec.msgpack.Decoder(list[Row])


def handed_over(broker: Broker, facts: MeshFacts, sender: int, message: HandOver) -> None:
    """Store messages; answer which ones, and from which one on they are refused."""
    refused = facts.credits.refused.get((message.vpn, message.queue), {}).get(sender, 0)
    if message.waiting and refused >= message.attempt:
        return  # it was sent before the refusal of an earlier one, and will come again
    rows = _rows.decode(message.rows)
    queue = _queue_of(broker, facts, message)
    if queue is None:
        if message.waiting:  # granted ones go with the sender's queue
            _without_queue(broker, facts, sender, message, rows)
        return
    count_come(facts, sender, message, len(rows))
    contents = message.contents
    if not message.waiting:
        rows, contents = _without_crossed(broker, facts, sender, message, queue, rows)
    done: list[int] = []
    entered: list[Row] = []
    why = ""
    for row, content in zip(rows, contents, strict=True):
        reason = _refusal(broker, message.vpn, queue, row) if message.waiting else None
        if queue.holds(row.id):
            dead = dead_part(row.extras)
            if dead is not None:  # it died here, or at another broker, as well
                join(broker, queue, row.id, dead)
        elif reason is not None and (reason is NO_FILES or outcome(queue) == NACK):
            why = reason.value
            break
        elif reason is not None:
            count_discarded(broker, queue, reason)
            broker.record("discarded", queue, [row.id], reason=reason.value)
        else:
            take_in(broker, queue, row, content, message.waiting)
            entered.append(row)
        done.append(row.id)
    record_entry(broker, queue, entered, f"from broker {facts.peers[sender].name}")
    for row in entered:
        apply_early_ack(broker, queue, row)
    keep_last(broker, queue)
    queue.spill_over()
    if why:
        rejected = queue.header.rejected
        rejected[why] = rejected.get(why, 0) + 1
        broker.touch(queue)
    if done or why:
        _answer(broker, facts, sender, message, done, why)
    if message.whole:
        arrive(broker, facts, sender, message, queue)


def _without_crossed(
    broker: Broker, facts: MeshFacts, sender: int, message: HandOver, queue: Queue, rows: list[Row]
) -> tuple[list[Row], list[Content]]:
    """Refuse granted messages that are still in transit from here, and return the others. They went
    to a third host, which granted them on, and whose answer is on its way."""
    own = {row.id: queue.live.get(row.id) for row in rows}
    crossed = {number for number, row in own.items() if row is not None and row.state == MOVING}
    if crossed:
        refused = [row for row in rows if row.id in crossed]
        _answer(broker, facts, sender, message, [], CROSSED, refused)
    left = [at for at, row in enumerate(rows) if row.id not in crossed]
    return [rows[at] for at in left], [message.contents[at] for at in left]


def _queue_of(broker: Broker, facts: MeshFacts, message: HandOver) -> Queue | None:
    """The queue of a record, not another one of its name; None if it is not here, or leaving. While
    a queue arrives, all messages that are granted to it are those that it has had."""
    key = key_of(message.vpn, message.queue)
    if born_of(facts, message.vpn, message.queue) != message.born:
        return None
    if message.waiting and key in facts.leaving:
        return None
    if not message.waiting and key in facts.arriving:
        return broker.queues[facts.arriving[key]]
    return broker.find(message.vpn, message.queue)


def _answer(
    broker: Broker, facts: MeshFacts, sender: int, message: HandOver, stored: list[int],
    why: str = "", rows: Iterable[Row] = (),
) -> None:  # fmt: skip
    """Answer which messages are stored, and why the others are refused. For messages of a stand-in,
    the rest of the attempt, still in transit, is skipped too; for granted ones, only these rows."""
    if why and message.waiting:
        refused_here = facts.credits.refused.setdefault((message.vpn, message.queue), {})
        refused_here[sender] = message.attempt
        facts.credits_changed = True
    about = message.vpn, message.queue, message.waiting, message.attempt, message.born
    refused = [] if message.waiting else [row.id for row in rows]
    say(broker, facts, sender, Answer(*about, stored, why, refused))


def _without_queue(
    broker: Broker, facts: MeshFacts, sender: int, message: HandOver, rows: list[Row]
) -> None:
    """Answer messages that waited for a queue that is not here. If it was deleted, they are gone
    (S7). If it is elsewhere, the sender tries again."""
    entry = entry_of(facts, message.vpn, message.queue)
    if entry is None or message.born < entry.born:
        _answer(broker, facts, sender, message, [row.id for row in rows])
        broker.event("arrived_for_deleted", message.vpn, message.queue, messages=len(rows))
    else:
        _answer(broker, facts, sender, message, [], ELSEWHERE)


def failed(broker: Broker, facts: MeshFacts, sender: int, message: HandOver) -> None:
    """Answer for messages that could not be stored because of an error; nothing has changed. The
    sender tries them one by one. A message of a stand-in that fails alone is dropped, because it
    would block its lane for ever; it is in `<vpn>.rejected`."""
    rows = _rows.decode(message.rows)
    if message.waiting and len(rows) == 1:
        _answer(broker, facts, sender, message, [rows[0].id])
        return
    if len(rows) == 1:  # several will come again, one by one
        count_come(facts, sender, message, 1)
        queue = broker.find(message.vpn, message.queue)
        if queue is not None:  # its consumers still have room
            broker.touch(queue)
    _answer(broker, facts, sender, message, [], Reason.MALFORMED.value, rows)


def _refusal(broker: Broker, vpn: str, queue: Queue, row: Row) -> Reason | None:
    """The first check of S8 and S3 that a message fails; None if it passes."""
    if broker.spool.file_room(broker.header.system.max_spool_files) < max(row.size, 1):
        return NO_FILES
    reason = of_broker(broker, vpn, row.size, 0)
    return reason or refusal(queue, [row.size], row.size, row.priority)


def take_in(broker: Broker, queue: Queue, row: Row, content: Content, waiting: bool) -> None:
    """Store one message. waiting: it comes from a stand-in, not from another host of the queue."""
    extras: dict[str, Any] = dict(row.extras or {})
    transit = extras.pop(TRANSIT, {})
    payload, key, headers = content
    vpn = queue.header.vpn_number
    row.stored = broker.spool.store(vpn, [(payload, key, headers)], row.size, 1)
    row.block, row.index = IN_MEMORY, 0
    row.holder, row.extras = 0, extras or None
    if queue.header.arriving:
        enter_in_place(broker, queue, row)
        return
    row.until, row.generation = NEVER, 0
    if waiting:
        found = match(queue, payload, row.priority, key, is_dead=True) or plain_match(queue)
        row.level, row.lane, row.barrier = found.level, found.lane, found.barrier
        row.deliveries = row.cancels = row.number = 0
        row.expires = expires_at(queue.definition, broker.now, row.ttl_ends)
        until = transit.get("until", NEVER)
        if broker.now < until < NEVER:
            row.until = until
        if queue.header.stands_for:  # a bridge's endpoint
            broker.mesh.prepare_stand_in(queue, [row], transit["to"])
    enter(broker, queue, [row])
