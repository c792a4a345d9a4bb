"""Dead messages: expired, canceled or delivered too often, rejected (X5, X6, L5, L6, C7).

A dead message moves to the queue's dead message queue with its id, payload and headers. It is
discarded if no such queue can take it. Its content is not stored again: its match moves. The
publisher's TTL does not count there, only that queue's own expiration.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...protocol.errors import Reason
from ..limits import Budget
from ..queue.broker import Broker
from ..queue.change import enter
from ..queue.queue import Queue
from ..storage.row import DELAYED, MOVING, NEVER, TTL_OVER, Row
from .after_entry import apply_early_ack, keep_last, will_leave
from .edits import AGAIN, FIRST, TRANSIT, carried_on, dead_part, edits_part
from .entry_checks import Match, expires_at, has_already, match, over_quota, plain_match
from .filter_matching import afforded

NOT_ELIGIBLE, FULL = "not eligible", "dead message queue full"
DEAD_OF = ", dead of "  # in the journal, before the reason of an earlier death


def bury(broker: Broker, queue: Queue, rows: list[Row], reason: str, detail: str = "") -> None:
    """Move the matches of messages that left as dead, or release them."""
    if not rows:
        return
    target, unusable = _target(broker, queue)
    moved: list[Row] = []
    discarded: dict[str, list[Row]] = {}  # by the reason
    for row in rows:
        why = unusable if row.dmq else NOT_ELIGIBLE
        if target is not None and row.dmq and over_quota(target, row.size):
            why = FULL
        if why or target is None:
            discarded.setdefault(why, []).append(row)
            continue
        moved.append(row)
        about = {
            "reason": reason, "queue": queue.definition.name, "time": broker.now,
            "deliveries": row.deliveries, "detail": detail, **carried_on(row.extras),
        }  # fmt: skip
        _move(broker, queue, target, row, about)
    name = queue.definition.dead_message_queue
    if moved:
        queue.count("dead_lettered", len(moved))
        broker.record("dead_lettered", queue, [row.id for row in moved], reason=name or "")
    for why, lost in discarded.items():
        queue.count("discarded", len(lost))
        broker.record("discarded", queue, [row.id for row in lost], reason=why)
        broker.spool.release(lost, queue.header.vpn_number)
        if name and why != NOT_ELIGIBLE:
            broker.queue_event(
                queue, "dead_message_queue_unusable", dead_message_queue=name, why=why,
                messages=len(lost),
            )  # fmt: skip


def find_any(broker: Broker, vpn: str, name: str) -> Queue | None:
    """A queue by its name; for a queue at another broker its stand-in (M6)."""
    queue = broker.find(vpn, name)
    return broker.mesh.stand_in(vpn, name) if queue is None else queue


def _target(broker: Broker, queue: Queue) -> tuple[Queue | None, str]:
    """The dead message queue, or why there is none."""
    name = queue.definition.dead_message_queue
    if not name:
        return None, "no dead message queue"
    target = find_any(broker, queue.definition.vpn, name)
    if target is None:
        return None, "dead message queue missing"
    if not target.header.ingress:
        return None, "dead message queue shut down"
    return target, ""


def _reads_dead(target: Queue) -> bool:
    """Whether a dead message queue reads the payloads of the messages that enter it."""
    d = target.definition
    return bool(d.priority or d.barrier_expression or d.partition_key)


def reads_what_dies(broker: Broker, queue: Queue) -> bool:
    """Whether the payloads of messages that die in a queue are read."""
    d = queue.definition
    target = broker.find(d.vpn, d.dead_message_queue or "")
    return target is not None and _reads_dead(target)


def afford_deaths(broker: Broker, queue: Queue, rows: list[Row], budget: Budget) -> int:
    """How many of these messages may die now, from the first on, at least one. Takes what that
    reads from the budget."""
    return afforded(broker, rows, "", budget) if reads_what_dies(broker, queue) else len(rows)


def _move(broker: Broker, queue: Queue, target: Queue, row: Row, about: dict[str, Any]) -> None:
    """Put a message into the dead message queue. A queue has a message only once."""
    if has_already(broker, target, row):
        join(broker, target, row.id, about)
        broker.spool.release([row], queue.header.vpn_number)
        return
    content, found = None, None
    if _reads_dead(target):
        content = broker.spool.content(row)
    if content is not None:
        found = match(target, content[0], row.priority, content[1], is_dead=True)
    moved = put(broker, found or plain_match(target), row, NEVER, about)
    broker.record("spooled", target, [row.id], reason=str(Reason(about["reason"])))
    apply_early_ack(broker, target, moved)
    keep_last(broker, target)


def put(
    broker: Broker, found: Match, row: Row, until: int, extras: dict[str, Any] | None,
    ttl_ends: int = TTL_OVER,
) -> Row:  # fmt: skip
    """Enter a message that left another queue, with its match; returns its row. Its deliveries
    count from zero. By default the publisher's TTL does not count any more (X5)."""
    target = found.queue
    if target.header.stands_for:
        extras = {**(extras or {}), TRANSIT: {"until": until}}
        until = NEVER
    moved = msgspec.structs.replace(
        row, seq=0, ttl_ends=ttl_ends, expires=expires_at(target.definition, broker.now, ttl_ends),
        level=found.level, generation=0, lane=found.lane, until=until,
        barrier=found.barrier and not will_leave(target, row.id, broker.now),
        holder=0, deliveries=0, cancels=0, number=0, extras=extras or None,
    )  # fmt: skip
    enter(broker, target, [moved])
    return moved


def record_entry(broker: Broker, queue: Queue, rows: list[Row], source: str) -> None:
    """Journal that messages from elsewhere have entered a queue: with their counts and delays, and
    of what they died before. source: where from."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        died_of = (dead_part(row.extras) or {}).get("reason")
        groups.setdefault(f"{source}{DEAD_OF}{died_of}" if died_of else source, []).append(row)
    for reason, some in groups.items():
        ids, counts = [row.id for row in some], [row.deliveries for row in some]
        ends = [row.until if row.state == DELAYED else NEVER for row in some]
        broker.record("spooled", queue, ids, counts, reason=reason, until=ends)


def join(broker: Broker, target: Queue, number: int, about: dict[str, Any]) -> None:
    """Note that a message that is in the dead message queue already died in one more queue, so that
    it can be redriven there too (X6)."""
    row = target.live_row(number)
    assert row is not None
    extras, new = row.extras, names_of(about)
    dead = dead_part(extras)
    if dead is None:  # it was published to the dead message queue as well
        row.extras = {**about, **edits_part(extras)}
    elif extras is not None:
        new = [name for name in new if name not in names_of(dead)]
        if new:
            row.extras = {**extras, "also": [*dead.get("also", ()), *new]}
    if new and row.state == MOVING and row.extras is not None:  # it was sent without this
        transit = row.extras.get(TRANSIT, {})
        row.extras[TRANSIT] = {**transit, AGAIN: [*transit.get(AGAIN, ()), *new]}
    broker.touch(target)


def names_of(dead: dict[str, Any]) -> list[str]:
    """The queues in which a message died."""
    return [dead["queue"], *dead.get("also", ())]


def take_later_deaths(row: Row) -> bool:
    """Whether a message died in more queues after it was sent to another broker. If so, it is sent
    once more, as dead in these queues only: the other broker may have redriven it to the first ones
    already."""
    transit = (row.extras or {}).get(TRANSIT, {})
    names = transit.pop(AGAIN, None)
    if names:
        dead = dead_part(row.extras)
        assert dead is not None
        row.extras = {**died_in(dead, names), **edits_part(row.extras), TRANSIT: transit}
    return bool(names)


def died_in(dead: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The data of a dead message for only these of the queues in which it died."""
    changed = {**dead, "queue": names[0], "also": names[1:]}
    if not names[1:]:
        del changed["also"]
    if names[0] != dead["queue"]:
        changed.pop(FIRST, None)
    return changed
