"""Move, edit and redrive: messages change queues or headers (R6, X5, X6).

Move. A message keeps its id, payload, key, headers, delay, and its data as a dead message. It
enters the other queue last, by that queue's checks and expressions; deliveries count from zero. The
publisher's TTL keeps running, unless it no longer counted (as after a redrive). The content is not
stored again.

Move and edit write into the journal who asked for it and why. `dry_run` changes nothing and answers
what would happen now, against the quotas before the first message.

Redrive. Dead messages go back to the queue they died in. A message keeps its id, payload, key and
headers, and loses its data as a dead message. It enters last, as a new message: expressions are
evaluated again, deliveries and cancels count from zero, and the publisher's TTL no longer applies.
Only the queue's own checks apply, since nothing is stored. A message that died in several queues is
in their dead message queue once and goes back to each of them. If one refuses it (S3, or the
reasons below), it stays dead for that queue.
"""

from __future__ import annotations

from ...protocol.commands import Change, Edit, Move, Redrive
from ...protocol.errors import ConfigError, no_such_queue
from ...protocol.ids import parse_ranges
from ..limits import Budget
from ..queue.broker import Broker
from ..queue.change import apply
from ..queue.header import Task
from ..queue.queue import Queue
from ..queue.table import Event
from ..rules.after_entry import apply_early_ack, keep_last
from ..rules.command_targets import split_moving, wanted
from ..rules.dead import died_in, find_any, names_of, put, record_entry
from ..rules.edits import CHARACTERS_MAX, Edits, back_in, dead_part, edits_part, with_edits
from ..rules.entry_checks import Match, has_already, match_stored, program_of
from ..rules.returned_leases import expire
from ..storage.blocks import Content
from ..storage.row import DELAYED, LEASED, NEVER, TTL_OVER, Row

LEASED_HERE = "leased"  # a consumer holds it
ALREADY_THERE = "already_there"  # the other queue has this message already
LOST = "payload_missing"
TOO_MUCH = "edited_too_much"


def because(command: Change, *first: str) -> str:
    """The client that requested a change, and its reason, for the journal."""
    who = f"by {command.who}" if command.who else ""
    return ", ".join(text for text in (*first, who, command.why) if text)


def in_time(broker: Broker, queue: Queue, rows: list[Row], dry_run: bool) -> list[Row]:
    """The messages whose time is not over. The others expire now: the budget of deadlines has not
    reached them yet, and they must not live on in another queue (X1)."""
    over = [row for row in rows if row.expires <= broker.now]
    if not over:  # most often
        return rows
    if not dry_run:
        expire(broker, queue, over)
    return [row for row in rows if row.expires > broker.now]


def finish_entry(broker: Broker, target: Queue, rows: list[Row]) -> None:
    """Apply what follows the entry of messages: early acks remove theirs (L9), and a queue with
    quota 0 keeps only its last message (S10)."""
    for row in rows:
        apply_early_ack(broker, target, row)
    keep_last(broker, target)


# ---------------------------------------------------------------- move


def move(broker: Broker, queue: Queue, task: Task, command: Move, budget: Budget) -> bool:
    """Carry out `Move`; answers how many messages moved, and why the others stayed."""
    vpn = queue.definition.vpn
    target = find_any(broker, vpn, command.to)
    if target is None:
        raise no_such_queue(command.to, vpn, "to")
    if target is queue:
        raise ConfigError(f"to: {command.to!r} – is this queue")
    if target.header.stands_for and target.definition.name == command.to:
        raise ConfigError(f"to: {command.to!r} – only the engine puts messages into this queue")
    ranges = parse_ranges(command.ids) if command.ids is not None else None
    part = wanted(
        broker, queue, task, command.where, ranges, budget, read=True, thaw=not command.dry_run,
        moving=True,
    )  # fmt: skip
    here, others = split_moving(broker, queue, command, part.rows)
    here = in_time(broker, queue, here, command.dry_run)
    stayed: dict[str, int] = task.done.setdefault("why", {})
    going: list[Row] = []
    entered: list[Row] = []
    for row in here:
        found = _match_of_moved(broker, target, row)
        if isinstance(found, str):
            stayed[found] = stayed.get(found, 0) + 1
            continue
        going.append(row)
        if not command.dry_run:  # now, so that the quota check of the next message counts it
            is_over = dead_part(row.extras) is not None or row.ttl_ends <= broker.now
            ttl_ends = TTL_OVER if is_over else row.ttl_ends
            until = row.until if row.state == DELAYED else NEVER
            broker.spool.add_match(row)
            entered.append(put(broker, found, row, until, row.extras, ttl_ends))
    if entered:
        apply(broker, queue, going, Event.MOVE, reason=because(command, f"to {command.to}"))
        record_entry(broker, target, entered, f"moved from {queue.definition.name}")
        finish_entry(broker, target, entered)
    count, left = task.add("n", len(going) + others), sum(stayed.values())
    task.result = {"count": count, "stayed": left, "why": dict(stayed)}
    if part.last and not command.dry_run:
        broker.queue_event(
            queue, "moved", to=command.to, moved=count, stayed=left, who=command.who,
            why=command.why,
        )  # fmt: skip
    return part.last


def _match_of_moved(broker: Broker, target: Queue, row: Row) -> Match | str:
    """How a message enters the other queue, or the reason why it stays."""
    if row.state == LEASED:
        return LEASED_HERE
    content = broker.spool.content(row)
    if content is None:
        return LOST
    if has_already(broker, target, row):
        return ALREADY_THERE
    return match_stored(target, row, content)


# ---------------------------------------------------------------- edit


def edit(broker: Broker, queue: Queue, task: Task, command: Edit, budget: Budget) -> bool:
    """Carry out `Edit`; answers how many messages were changed, and why the others were not."""
    check_headers(command.headers)
    ranges = parse_ranges(command.ids) if command.ids is not None else None
    change = not command.dry_run
    part = wanted(broker, queue, task, command.where, ranges, budget, thaw=change, moving=True)
    here, others = split_moving(broker, queue, command, part.rows)
    changed: list[int] = []
    for row in here:
        extras = with_edits(row.extras, command.headers)
        if extras is None:
            continue
        changed.append(row.id)
        if change:
            row.extras = extras
    if changed and change:
        broker.touch(queue)
        why = because(command, "headers " + " ".join(sorted(command.headers)))
        broker.record("edited", queue, changed, reason=why)
    count, left = task.add("n", len(changed) + others), task.add("left", len(here) - len(changed))
    task.result = {"count": count, "stayed": left, "why": {TOO_MUCH: left} if left else {}}
    return part.last


def check_headers(headers: Edits) -> None:
    """Raise ConfigError for headers that nobody may set."""
    if not headers:
        raise ConfigError("headers: {} – name at least one header and its text; null removes one")
    for name in headers:
        if not name or name == "lq" or name.startswith("lq-"):
            raise ConfigError(f"headers: {name!r} – allowed are names that do not begin with lq-")
        if "\0" in name:  # Kafka's C library ends a name there
            raise ConfigError(f"headers: {name!r} – allowed are names without NUL characters")
    if with_edits(None, headers) is None:
        raise ConfigError(f"headers: more than {CHARACTERS_MAX:,} characters in all, shorten them")


# ---------------------------------------------------------------- redrive


NOT_DEAD = "not_dead"  # it was published to this queue
NO_QUEUE = "no_such_queue"


def redrive(broker: Broker, queue: Queue, task: Task, command: Redrive, budget: Budget) -> bool:
    """Carry out `Redrive`; answers how many messages moved, to which queues, and why the others
    stayed."""
    ranges = parse_ranges(command.ids) if command.ids is not None else None
    part = wanted(broker, queue, task, command.where, ranges, budget, read=True)
    counts: dict[str, int] = task.done.setdefault("queues", {})
    stayed: dict[str, int] = task.done.setdefault("why", {})
    entered: dict[int, list[Row]] = {}  # by queue
    here = in_time(broker, queue, part.rows, dry_run=False)
    gone = [row for row in here if _take_back(broker, queue, row, entered, stayed)]
    apply(broker, queue, gone, Event.REDRIVE)
    broker.touch(queue)
    for number, rows in sorted(entered.items()):
        target = broker.queues[number]
        record_entry(broker, target, rows, f"redriven from {queue.definition.name}")
        name = target.header.stands_for or target.definition.name
        counts[name] = counts.get(name, 0) + len(rows)
        finish_entry(broker, target, rows)
    if not part.last:
        return False
    moved, left = sum(counts.values()), sum(stayed.values())
    task.result = {"moved": moved, "stayed": left, "queues": dict(counts), "why": dict(stayed)}
    broker.queue_event(queue, "redriven", moved=moved, stayed=left, why=dict(stayed))
    return True


def _take_back(
    broker: Broker, source: Queue, row: Row, entered: dict[int, list[Row]], stayed: dict[str, int]
) -> bool:
    """Put a message back into the queues in which it died; returns whether all took it."""
    dead = dead_part(row.extras)
    if dead is None or row.state == LEASED:
        why = NOT_DEAD if dead is None else LEASED_HERE
        stayed[why] = stayed.get(why, 0) + 1
        return False
    left: list[str] = []
    for name in names_of(dead):
        found = _match_of_redriven(broker, source, name, row)
        if isinstance(found, str):
            left.append(name)
            stayed[found] = stayed.get(found, 0) + 1
            continue
        broker.spool.add_match(row)
        copy = put(broker, found, row, NEVER, back_in(name, row.extras))
        entered.setdefault(found.queue.number, []).append(copy)
    if left:
        row.extras = {**died_in(dead, left), **edits_part(row.extras)}
    return not left


def _match_of_redriven(broker: Broker, source: Queue, name: str, row: Row) -> Match | str:
    """How a message enters a queue in which it died, or the reason why it cannot."""
    target = find_any(broker, source.definition.vpn, name)
    if target is None:
        return NO_QUEUE
    if target is source or has_already(broker, target, row):
        return ALREADY_THERE
    content: Content | None = (b"", None, None)
    if program_of(target) is not None:  # else no expression reads the payload
        content = broker.spool.content(row)
    return LOST if content is None else match_stored(target, row, content)
