"""Dead messages: expired, canceled or delivered too often, rejected (X5, X6, L5, L6, C7).

A dead message moves to the queue's dead message queue, keeping id, payload and headers, or is
discarded where there is none that can take it. It is not stored again: its match moves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..expressions import as_priority, is_true
from ..protocol.errors import Reason
from .broker import Broker
from .deferred import came_early, remove_arrivals
from .entering import over_quota, program_of
from .last_value import keep_last
from .lifetime import expires_at
from .queue import Queue, QueuePage
from .storage import NEVER, Array


def bury(
    broker: Broker, queue: Queue, page: QueuePage, rows: Array, reason: Reason, detail: str = ""
) -> None:
    """Live rows leave the queue as dead messages."""
    if not len(rows):
        return
    counts = page.deliveries[rows].tolist()
    sizes = page.size[rows].tolist()
    ids = queue.remove(page, rows)
    if reason is Reason.REJECTED:
        queue.count("consumer_rejected", len(rows))
        broker.record("consumer_rejected", queue, ids.tolist(), counts=counts, reason=detail)
    else:
        queue.count("expired", len(rows))
        broker.record("expired", queue, ids.tolist(), counts=counts, reason=reason.value)
    allowed = broker.spool.gather(ids, "dmq").astype(bool)
    target, why = _target(broker, queue)
    discarded: list[int] = []
    moved: list[int] = []
    early: list[int] = []
    for number, count, size, may in zip(
        ids.tolist(), counts, sizes, allowed.tolist(), strict=True
    ):
        refusal = why if may else "not eligible"
        if target is not None and may:
            refusal = _refusal(target, size)
        if refusal or target is None:
            discarded.append(number)
            why = refusal or why
            continue
        moved.append(number)
        if broker.spool.holds(number, target.number):
            # Another queue's copy is there already; a queue holds a message once.
            _join(broker, queue, target, number, count, reason, detail)
            broker.spool.release(queue.number, np.array([number], np.uint64))
            continue
        if target.header.deferred and came_early(target, number):
            early.append(target.next_place())
        _move(broker, queue, target, number, size, count, reason, detail)
    if moved and target is not None:
        target.take_in(broker.now)
        remove_arrivals(broker, target, early)
        keep_last(broker, target)
    _account(broker, queue, moved, discarded, why)


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
            broker.note(
                "dead_message_queue_unusable", broker.vpn_of(queue), queue.definition.name,
                dead_message_queue=name, why=why, messages=len(discarded),
            )  # fmt: skip


def _target(broker: Broker, queue: Queue) -> tuple[Queue | None, str]:
    """The dead message queue, or why there is none."""
    name = queue.definition.dead_message_queue
    if not name:
        return None, "no dead message queue"
    target = broker.find(broker.vpn_of(queue), name)
    if target is None:
        return None, "dead message queue missing"
    if not target.header.ingress:
        return None, "dead message queue shut down"
    return target, ""


def _refusal(target: Queue, size: int) -> str:
    return "dead message queue full" if over_quota(target, size) else ""


def _about(
    broker: Broker, queue: Queue, count: int, reason: Reason, detail: str
) -> dict[str, Any]:
    """What a dead message carries."""
    return {
        "reason": reason.value,
        "queue": queue.definition.name,
        "time": broker.now,
        "deliveries": count,
        "detail": detail,
    }


def _join(
    broker: Broker, queue: Queue, target: Queue, number: int, count: int, reason: Reason,
    detail: str,
) -> None:  # fmt: skip
    """One more match of a message died into the queue that holds it: remember from where, so that
    it can go back there too (X6)."""
    _, seqs = broker.spool.held_by([(number, number)], target.number)
    seq = int(seqs[0])
    dead: dict[int, dict[str, Any]]
    if seq >= target.header.next_seq:
        dead, at = target.arrivals.dead, seq - target.header.next_seq
    else:
        page, at = target.row(seq)
        page.dirty = True
        dead = page.extras
    known = dead.get(at)
    name = queue.definition.name
    if known is None:  # it was published to the dead message queue as well
        dead[at] = _about(broker, queue, count, reason, detail)
    elif name not in (known["queue"], *known.get("also", ())):
        dead[at] = {**known, "also": [*known.get("also", ()), name]}


def _move(
    broker: Broker,
    queue: Queue,
    target: Queue,
    number: int,
    size: int,
    count: int,
    reason: Reason,
    detail: str,
) -> None:
    """Put a message into the dead message queue. A publisher's TTL that is spent no longer
    counts there, one that is not still does (X5)."""
    broker.spool.move(number, queue.number, (target.number, target.next_place()))
    arrivals = target.arrivals
    arrivals.dead[len(arrivals.ids)] = _about(broker, queue, count, reason, detail)
    one = np.array([number], np.uint64)
    ttl_ends = int(broker.spool.gather(one, "ttl_ends")[0])
    if ttl_ends <= broker.now:
        ttl_ends = NEVER
    expires = expires_at(target.definition, broker.now, ttl_ends)
    level, barrier = 0, False
    program = program_of(target)
    if program is not None:  # its place there, by its expressions; no filter keeps it out
        payload, key, _ = broker.contents(one)[0]
        priority = int(broker.spool.gather(one, "priority")[0])
        _, by_queue, is_barrier = program.run(payload, priority, key)
        level = 0 if target.definition.priority is None else as_priority(by_queue)
        barrier = is_true(is_barrier)
    target.arrive(number, [size], level, expires, NEVER, barrier)
    broker.record("spooled", target, [number], reason=reason.value)
