"""Move and edit: an administrator puts messages into another queue, or changes their headers (R6).

A moved message keeps its id, payload, key, headers, what it carries as a dead message, and the time
until which it is delayed. It enters the other queue behind what is there, by that queue's own
checks and expressions, and counts deliveries from nothing there. The publisher's TTL counts on,
unless it was spent before (as after a redrive). It is not stored again.

Both say in the journal who did it and why. `dry_run` changes nothing, and answers what would be
done now; the quotas of the other queue are those before the first message.
"""

from __future__ import annotations

from ...protocol.commands import Change, Edit, Move
from ...protocol.errors import ConfigError
from ...protocol.ids import parse_ranges
from ..limits import Budget
from ..queue.broker import Broker
from ..queue.change import apply
from ..queue.header import Task
from ..queue.queue import Queue
from ..queue.table import Event
from ..rules.command_targets import in_place, wanted
from ..rules.dead import find_any, put
from ..rules.deferred import settle_arrival
from ..rules.edits import CHARACTERS_MAX, dead_part, with_edits
from ..rules.entry_checks import Match, may_be_elsewhere, way_in
from ..rules.last_value import keep_last
from ..storage.row import DELAYED, LEASED, NEVER, Row

LEASED_HERE = "leased"  # a consumer holds it
ALREADY_THERE = "already_there"  # the other queue has this message
LOST = "payload_missing"
TOO_MUCH = "edited_too_much"
MOVED_FROM, DEAD_OF = "moved from ", ", dead of "


def because(command: Change, *first: str) -> str:
    """Who asked for a change, and why, for the journal."""
    who = f"by {command.who}" if command.who else ""
    return ", ".join(text for text in (*first, who, command.why) if text)


def is_there(broker: Broker, target: Queue, row: Row) -> bool:
    """Whether another queue holds a message too; most messages are in one queue only."""
    return may_be_elsewhere(broker, row) and target.holds(row.id)


def copy_into(
    broker: Broker, found: Match, row: Row, until: int, extras: dict[str, object] | None,
    ttl_ends: int, own_only: bool,
) -> Row:  # fmt: skip
    """One more queue holds a message from now on; its row there."""
    broker.spool.add_match(row)
    put(broker, found, row, until, extras, ttl_ends, own_only)
    return found.queue.live[row.id]


def settle(broker: Broker, target: Queue, rows: list[Row]) -> None:
    """What follows when messages have entered a queue: those that were acknowledged before they
    came go, and a queue with quota 0 keeps its last message only (L9, S10)."""
    for row in rows:
        settle_arrival(broker, target, row)
    keep_last(broker, target)


# ---------------------------------------------------------------- move


def move(broker: Broker, queue: Queue, task: Task, command: Move, budget: Budget) -> bool:
    """Carry out the command; answers how many moved, and why others stayed."""
    vpn, name = broker.vpn_of(queue), queue.definition.name
    target = find_any(broker, vpn, command.to)
    if target is None or target is queue:
        wrong = "it is this queue" if target is queue else f"there is no such queue in VPN {vpn!r}"
        raise ConfigError(f"to: {command.to!r} – {wrong}")
    if target.header.stands_for and target.definition.name == command.to:
        raise ConfigError(f"to: {command.to!r} – only the engine puts messages there")
    ranges = parse_ranges(command.ids) if command.ids is not None else None
    part = wanted(
        broker, queue, task, command.where, ranges, budget, read=True, thaw=not command.dry_run,
        moving=True,
    )  # fmt: skip
    here, others = in_place(broker, queue, command, part.rows)
    stayed: dict[str, int] = task.done.setdefault("why", {})
    going: list[tuple[Row, Match]] = []
    entered: list[Row] = []
    for row in here:
        found = _way_out(broker, target, row)
        if isinstance(found, str):
            stayed[found] = stayed.get(found, 0) + 1
            continue
        going.append((row, found))
        if not command.dry_run:  # at once: the next one's quota counts it
            entered.append(_enter(broker, found, row))
    gone = [row for row, _ in going]
    if entered:
        _write_down(broker, queue, target, gone, entered, because(command, f"to {command.to}"))
    task.done["n"] = task.done.get("n", 0) + len(gone) + others
    count, left = task.done["n"], sum(stayed.values())
    task.result = {"count": count, "stayed": left, "why": dict(stayed)}
    if part.last and not command.dry_run:
        broker.event(
            "moved", vpn, name, to=command.to, moved=count, stayed=left, who=command.who,
            why=command.why,
        )  # fmt: skip
    return part.last


def _way_out(broker: Broker, target: Queue, row: Row) -> Match | str:
    """How a message enters the other queue, or why it stays."""
    if row.state == LEASED:
        return LEASED_HERE
    content = broker.spool.content(row)
    if content is None:
        return LOST
    if is_there(broker, target, row):
        return ALREADY_THERE
    return way_in(target, row.size, row.priority, content[0], content[1])


def _enter(broker: Broker, found: Match, row: Row) -> Row:
    spent = dead_part(row.extras) is not None or row.ttl_ends <= broker.now
    until = row.until if row.state == DELAYED else NEVER
    return copy_into(broker, found, row, until, row.extras, row.ttl_ends, spent)


def _write_down(
    broker: Broker, queue: Queue, target: Queue, gone: list[Row], entered: list[Row], why: str
) -> None:
    """Messages leave, and the journal says where from the other queue got them."""
    apply(broker, queue, gone, Event.MOVE, reason=why)
    groups: dict[tuple[str, bool], list[Row]] = {}
    for row in entered:
        of = str((dead_part(row.extras) or {}).get("reason", ""))
        groups.setdefault((of, row.until == NEVER), []).append(row)
    for (of, now), rows in groups.items():
        reason = MOVED_FROM + queue.definition.name + (DEAD_OF + of if of else "")
        ends = NEVER if now else [row.until for row in rows]
        broker.record("spooled", target, [row.id for row in rows], reason=reason, until=ends)
    settle(broker, target, entered)


# ---------------------------------------------------------------- edit


def edit(broker: Broker, queue: Queue, task: Task, command: Edit, budget: Budget) -> bool:
    """Carry out the command; answers how many messages have other headers, and why others not."""
    _check_headers(command)
    ranges = parse_ranges(command.ids) if command.ids is not None else None
    part = wanted(broker, queue, task, command.where, ranges, budget, thaw=False, moving=True)
    here, others = in_place(broker, queue, command, part.rows)
    changed: list[int] = []
    for row in here:
        extras = with_edits(row.extras, command.headers)
        if extras is None:
            continue
        changed.append(row.id)
        if not command.dry_run:
            row.extras = extras
    if changed and not command.dry_run:
        part.write_back(queue)
        broker.touch(queue)
        why = because(command, "headers " + " ".join(sorted(command.headers)))
        broker.record("edited", queue, changed, reason=why)
    done = task.done
    done["n"] = done.get("n", 0) + len(changed) + others
    done["left"] = left = done.get("left", 0) + len(here) - len(changed)
    task.result = {"count": done["n"], "stayed": left, "why": {TOO_MUCH: left} if left else {}}
    return part.last


def _check_headers(command: Edit) -> None:
    """What may be written into a message's headers."""
    if not command.headers:
        raise ConfigError("headers: {} – say which header gets which text, null removes it")
    for name in command.headers:
        if not name or name == "lq" or name.startswith("lq-"):
            raise ConfigError(f"headers: {name!r} – allowed are names that do not begin with lq-")
        if "\0" in name:  # Kafka's C library ends a name there
            raise ConfigError(f"headers: {name!r} – allowed are names without NUL characters")
    if with_edits(None, command.headers) is None:
        raise ConfigError(f"headers: they have more than {CHARACTERS_MAX:,} characters in all")
