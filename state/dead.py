"""Dead messages: expired, canceled or delivered too often, rejected (X5, X6, L5, L6, C7).

A dead message moves to the queue's dead message queue, keeping id, payload and headers, or is
discarded where there is none that can take it. It is not stored again: its match moves. The
publisher's TTL, spent or not, does not count there: only that queue's own expiration does.

Where that queue is on another broker, its way takes the messages meanwhile (`mesh.dead_ways`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..expressions import as_priority, is_true
from ..protocol.errors import Reason
from .message.entry import enter
from .rules.deferred import came_early, settle_arrivals
from .rules.edits import FIRST, GOING_BACK, dead_part, edits_part
from .rules.entering import lane_of, over_quota, program_of
from .rules.lifetime import expires_at
from .storage import NEVER, Array

if TYPE_CHECKING:
    from .broker import Broker
    from .queue import Queue


def dead_letter(
    broker: Broker, queue: Queue, ids: Array, sizes: Array, counts: Array, reason: str,
    detail: str, along: dict[int, dict[str, Any]],
) -> None:  # fmt: skip
    """Messages have left the queue as dead: their matches move, or are let go. along: what goes
    along with some (`carried_on`), by id."""
    target, why = _target(broker, queue)
    allowed = broker.spool.gather(ids, "dmq").astype(bool)
    moved: list[int] = []
    discarded: list[int] = []
    about = _about(broker, queue, reason, detail)
    plain = np.zeros(len(ids), bool)
    if target is not None and takes_as_they_are(target, int(sizes.sum())):
        plain = allowed & broker.spool.may_move(ids, queue.number, target.number)
        plain &= ~broker.spool.may_stand_twice(ids)
        if along:
            plain &= ~np.isin(ids, np.fromiter(along, np.uint64, len(along)))
    # In their order: what goes together goes together with its neighbours only.
    for run in np.split(np.arange(len(ids)), np.flatnonzero(np.diff(plain)) + 1):
        if target is not None and plain[run[0]]:
            _move_all(broker, queue, target, ids[run], sizes[run], counts[run], about)
            moved += ids[run].tolist()
            continue
        for at in run.tolist():
            number, size = int(ids[at]), int(sizes[at])
            refusal = why if allowed[at] else "not eligible"
            if target is not None and allowed[at] and over_quota(target, size):
                refusal = "dead message queue full"
            if refusal or target is None:
                discarded.append(number)
                why = refusal or why
                continue
            moved.append(number)
            one = {**about, "deliveries": int(counts[at]), **along.get(number, {})}
            _move(broker, queue, target, number, size, one)
    if moved and target is not None:
        enter(broker, target)
        broker.arrived_in.append(target)
        settle_arrivals(broker)
    if target is not None and target.number in broker.header.ways:
        moved = []  # they count when they are there, or lost
    _account(broker, queue, moved, discarded, why)


def _about(broker: Broker, queue: Queue, reason: str, detail: str) -> dict[str, Any]:
    """What a dead message carries."""
    return {
        "reason": reason,
        "queue": queue.definition.name,
        "time": broker.now,
        "deliveries": 0,
        "detail": detail,
    }


def takes_as_they_are(target: Queue, size: int) -> bool:
    """Whether a queue takes messages of this size together in without a look at each: no quota is
    near, no expression is asked, no ack waits for them."""
    d = target.definition
    special = d.max_spool_messages is not None or not d.max_spool_usage
    return not (special or target.early or program_of(target) or over_quota(target, size))


def _move_all(
    broker: Broker, queue: Queue, target: Queue, ids: Array, sizes: Array, counts: Array,
    about: dict[str, Any],
) -> None:  # fmt: skip
    """Put messages into the dead message queue together."""
    if not len(ids):
        return
    broker.spool.move_all(ids, queue.number, target.number, target.next_place())
    arrivals = target.arrivals
    known: dict[int, dict[str, Any]] = {}  # the same for all that were delivered as often
    for at, count in enumerate(counts.tolist(), len(arrivals.ids)):
        arrivals.dead[at] = known.get(count) or known.setdefault(
            count, {**about, "deliveries": count}
        )
    expires = expires_at(target.definition, broker.now, NEVER, own_only=True)
    arrivals.add_moved(ids.tolist(), sizes.tolist(), expires)
    broker.record("spooled", target, ids.tolist(), reason=str(Reason(about["reason"])))


def _account(
    broker: Broker, queue: Queue, moved: list[int], discarded: list[int], why: str
) -> None:
    name = queue.definition.dead_message_queue
    if moved:
        queue.count("dead_lettered", len(moved))
        broker.record("dead_lettered", queue, moved, reason=name or "")
    if discarded:
        queue.count("discarded", len(discarded))
        broker.record("discarded", queue, discarded, reason=why)
        broker.spool.release(queue.number, np.array(discarded, np.uint64))
        if name:
            broker.event(
                "dead_message_queue_unusable", broker.vpn_of(queue), queue.definition.name,
                dead_message_queue=name, why=why, messages=len(discarded),
            )  # fmt: skip


def _target(broker: Broker, queue: Queue) -> tuple[Queue | None, str]:
    """The dead message queue, or the way to it where it is elsewhere, or why there is none."""
    name = queue.definition.dead_message_queue
    if not name:
        return None, "no dead message queue"
    if broker.header.peers or broker.header.ways:
        from .mesh.dead_ways import way_to

        way = way_to(broker, broker.vpn_of(queue), name)
        if way is not None:
            return way, ""
    target = broker.find(broker.vpn_of(queue), name)
    if target is None:
        return None, "dead message queue missing"
    if not target.header.ingress:
        return None, "dead message queue shut down"
    return target, ""


def _move(
    broker: Broker, queue: Queue, target: Queue, number: int, size: int, about: dict[str, Any]
) -> None:
    """Put a message into the dead message queue; a queue holds a message once."""
    held = broker.spool.held_as(number, target.number)
    if held is not None:
        join(broker, target, held, about)
        broker.spool.release(queue.number, np.array([number], np.uint64))
        return
    if target.early and came_early(broker, target, number):
        broker.early.append((target, target.next_place()))
        target.arrivals.leaving += 1
        target.arrivals.leaving_bytes += size
    broker.spool.move(number, queue.number, (target.number, target.next_place()))
    arrivals = target.arrivals
    arrivals.dead[len(arrivals.ids)] = about
    level, barrier, lane = 0, False, 0
    if program_of(target) is not None:
        one = np.array([number], np.uint64)
        content = broker.spool.contents(one)[0]
        if content is not None:
            priority = int(broker.spool.gather(one, "priority")[0])
            level, barrier, lane = place_in(target, content[0], priority, content[1])
    expires = expires_at(target.definition, broker.now, NEVER, own_only=True)
    arrivals.add(number, [size], level, expires, NEVER, barrier, lane)
    broker.record("spooled", target, [number], reason=str(Reason(about["reason"])))


def place_in(
    target: Queue, payload: bytes, priority: int, key: bytes | None
) -> tuple[int, bool, int]:
    """Where a dead message stands in a dead message queue, by its expressions: its priority,
    whether it is a barrier, its lane. No filter keeps it out."""
    program = program_of(target)
    if program is None:
        return 0, False, 0
    _, level, barrier, lane = program.run(payload, priority, key)
    level = 0 if target.definition.priority is None else as_priority(level)
    return level, is_true(barrier), lane_of(lane)


def join(broker: Broker, target: Queue, number: int, about: dict[str, Any]) -> None:
    """One more match of a message died into the queue that holds it: remember from where, so that
    it can go back there too (X6)."""
    _, seqs = broker.spool.held_by([(number, number)], target.number)
    seq = int(seqs[0])
    dead: dict[int, dict[str, Any]]
    if seq >= target.header.next_seq:
        dead, at = target.arrivals.dead, seq - target.header.next_seq
    else:
        page, at = target.row(seq)
        target.changed(page)
        dead = page.extras
    known = dead.get(at)
    name = about["queue"]
    if dead_part(known) is None:  # it was published to the dead message queue as well
        dead[at] = {**about, **edits_part(known)}
        return
    assert known is not None
    going = known.get(GOING_BACK)
    if going is not None and going[0] == name:  # it went, and has died there again
        dead[at] = {**known, GOING_BACK: [*going[:-1], True]}
    elif name not in (known["queue"], *known.get("also", ())):
        dead[at] = {**known, "also": [*known.get("also", ()), name]}


def names_of(dead: dict[str, Any]) -> list[str]:
    """The queues in which a message died."""
    return [dead["queue"], *dead.get("also", ())]


def died_in(dead: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """What a dead message carries where of its queues only these are left."""
    changed = {**dead, "queue": names[0], "also": names[1:]}
    if not names[1:]:
        del changed["also"]
    if names[0] != dead["queue"]:
        changed.pop(FIRST, None)
    return changed
