"""A queue moves to another broker with its messages, while it is in use (M5, L5, P1).

    keeper                     where it goes               where it is
      │ Entries (it moves) ──────▶ │ it *arrives*               │
      │                            │ Come ────────────────────▶ │ it *leaves*
      │                            │ ◀────── HandOver, HandOver │
      │                            │ Answer, Answer ──────────▶ │ it has no messages
      │                            │ ◀──────── HandOver (whole) │ it is gone
      │ ◀───────────────── HasMoved │ it is here                 │
      │ Entries (where it is) ───▶ │                            │

Nothing changes until the other broker is ready (`Come`); until then, moving the queue back cancels
the move. Then its subscriptions end as at a disconnect, earlier commands are finished, and its
messages are sent with everything they have, including their positions, so their order on the way
does not matter. They are granted to a subscription of the new host like those of a distributed
queue (`stand_ins`): they stay here, in transit, until it has confirmed them. Messages published
meanwhile wait in a stand-in, as at all other brokers, and follow the queue.

The arriving queue has no name until it is complete, so nothing finds it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..protocol import commands as c
from ..protocol.errors import LakequeueError
from ..protocol.mesh_messages import (
    NO_ROWS,
    PART_BYTES,
    Answer,
    Come,
    Forward,
    HandOver,
    HasMoved,
    Room,
)
from ..state.commands.leases import MOVED
from ..state.commands.multi_step_commands import IN_TURN, begin
from ..state.limits import Budget
from ..state.queue.broker import Broker
from ..state.queue.change import apply
from ..state.queue.header import QueueHeader, Subscription, Task, note_entered
from ..state.queue.queue import Queue
from ..state.queue.table import Event
from ..state.rules.command_targets import wanted
from ..state.rules.routing import add_route, captures, forget_found, set_topics, withdraw
from ..state.storage.row import DELAYED, NEVER, READY, Row
from . import stand_ins
from .channel import say
from .credit import subscription_to
from .facts import Entry, MeshFacts, born_of, entry_of, hosts_now, keeper_of, key_of
from .move_at_rest import add_counts

AT_REST = (
    "such a queue moves only while the home rests for some seconds (`lakequeue move-queue --pause`)"
)

_encode = msgspec.msgpack.encode
BYTES_IN_TRANSIT = 8 * PART_BYTES
_whole = msgspec.msgpack.Decoder(tuple[QueueHeader, list[list[int]]])  # and its early acks


def _report(broker: Broker, facts: MeshFacts, message: HasMoved) -> None:
    """Tell the keeper that a move has ended."""
    say(broker, facts, keeper_of(facts), message)


# ---------------------------------------------------------------- the new host


def expect(broker: Broker, facts: MeshFacts, vpn: str, name: str, entry: Entry) -> None:
    """Prepare for a queue that is to move here."""
    key = key_of(vpn, name)
    if key in facts.arriving:
        queue = broker.queues[facts.arriving[key]]
        queue.header.definition = entry.definition
        broker.touch(queue)
        return
    if broker.find(vpn, name) is not None:
        return  # it has arrived, and the keeper will know
    queue = broker.make_queue(entry.definition, created=broker.now, arriving=True)
    facts.arriving[key] = queue.number
    room = broker.header.system.max_spool_usage - broker.spool.bytes
    limits = broker.header.vpn_limits.get(vpn)
    if limits is not None and limits.max_spool_usage is not None:
        used = broker.spool.vpn_bytes.get(broker.vpn_number(vpn), 0)
        room = min(room, limits.max_spool_usage - used)
    say(broker, facts, entry.hosts[0], Come(vpn, name, entry.move, max(room, 0)))


def expect_no_more(broker: Broker, facts: MeshFacts, vpn: str, name: str) -> None:
    """Drop a queue whose move here was called off before messages came."""
    number = facts.arriving.pop(key_of(vpn, name), None)
    if number is not None:
        broker.drop_queue(broker.queues[number])


def enter_in_place(broker: Broker, queue: Queue, row: Row) -> None:
    """Put a message into an arriving queue, at the position that it had (see `change.enter`)."""
    header = queue.header
    row.state = READY if row.until == NEVER else DELAYED
    header.generations[row.generation] = header.generations.get(row.generation, 0) + 1
    if row.barrier:
        header.barriers[row.generation] = row.id
    header.delayed += row.state == DELAYED
    header.bytes += row.size
    header.depth += 1
    queue.count("spooled")
    note_entered(header.taken, row.id, row.id)
    broker.enter(queue, [row])
    broker.touch(queue)


def arrive(broker: Broker, facts: MeshFacts, sender: int, message: HandOver, queue: Queue) -> None:
    """Complete a queue, with the facts that it had at the old host."""
    whole, early = _whole.decode(message.whole)
    key, header = key_of(message.vpn, message.queue), queue.header
    entry = facts.entries[message.vpn][message.queue]
    add_counts(whole, header)
    counters = header.counters
    counters["spooled"] = counters.get("spooled", 0) - counters.pop("transferred", 0)
    header.created, header.pointed = whole.created, whole.pointed
    header.next_seq, header.generation = whole.next_seq, whole.generation
    header.barriers = dict(sorted(header.barriers.items()))
    header.generations = dict(sorted(header.generations.items()))
    header.ingress, header.egress = entry.ingress, entry.egress
    if not header.depth or not whole.generation:  # without messages or barriers
        header.generation, header.generations = 0, {}
    for first, last, until in early:
        queue.early.put(first, last, until, broker.limits.early_acks)
    header.definition, header.arriving = entry.definition, False
    del facts.arriving[key]
    broker.name_queue(queue)
    add_route(broker, entry.definition, queue.number)
    set_topics(broker, queue, entry.topics)
    forget_found(broker)
    queue.wanted = True
    broker.touch(queue)
    stand_ins.turn(broker, facts, message.vpn, message.queue)
    peer = facts.peers[sender].name
    broker.event("arrived", message.vpn, message.queue, came_from=peer, messages=header.depth)
    _report(broker, facts, HasMoved(message.vpn, message.queue, entry.move))


# ---------------------------------------------------------------- the old host


def stay(broker: Broker, facts: MeshFacts, vpn: str, name: str, entry: Entry) -> None:
    """Call off a move that has not begun. Raises LakequeueError if it has."""
    key = key_of(vpn, name)
    if key in facts.leaving or broker.find(vpn, name) is None:
        raise LakequeueError(f"queue {name!r}: is moving already, and cannot be called back")
    _end_move(broker, facts, vpn, name, entry, f"queue {name!r}: stays, the move was called back")


def _end_move(
    broker: Broker, facts: MeshFacts, vpn: str, name: str, entry: Entry, why: str
) -> None:
    """End a move that has not begun. Neither the other broker, which may be ready later, nor a
    call-back can end it again here."""
    entry.moves_to, facts.directory_changed = None, True
    _report(broker, facts, HasMoved(vpn, name, entry.move, why))


def failed(broker: Broker, facts: MeshFacts, vpn: str, name: str, move: int) -> None:
    """End a move if it failed here before it began: the queue stays where it is."""
    key, entry = key_of(vpn, name), entry_of(facts, vpn, name)
    if entry is None or (entry.move, entry.moves_to is None) != (move, False):
        return
    has_begun = key in facts.leaving or key in facts.arriving
    if not has_begun and hosts_now(broker, facts, vpn, name, entry) == entry.hosts:
        own = broker.header.name
        why = f"queue {name!r}: stays, its move failed at broker {own!r}, see its log"
        _end_move(broker, facts, vpn, name, entry, why)


def tell_kept(
    broker: Broker, facts: MeshFacts, message: Answer | Room | HandOver | HasMoved, why: str
) -> None:
    """If a kept record delays the end of a move, tell the move's caller."""
    key = key_of(message.vpn, message.queue)
    if isinstance(message, HasMoved):
        delays = key in facts.moves and not message.is_late
    else:
        delays = key in facts.leaving or key in facts.arriving
    if delays:
        _tell_late(broker, facts, message.vpn, message.queue, "the engine's next start", why)


def tell_faulted(broker: Broker, facts: MeshFacts) -> None:
    """At the end of a step, tell the callers of moves whose queues have failed here."""
    for queue in broker.in_order() if facts.leaving else ():
        vpn, name, why = queue.definition.vpn, queue.definition.name, queue.header.faulted
        if why and key_of(vpn, name) in facts.leaving:
            _tell_late(broker, facts, vpn, name, "the queue's next definition", f"failed: {why}")


def _tell_late(
    broker: Broker, facts: MeshFacts, vpn: str, name: str, after: str, why: str
) -> None:  # fmt: skip
    """Tell the caller of a move through the keeper why it ends late, and after what."""
    entry = entry_of(facts, vpn, name)
    if entry is not None:
        text = f"queue {name!r}: its move ends after {after}; broker {broker.header.name!r}: {why}"
        _report(broker, facts, HasMoved(vpn, name, entry.move, text, is_late=True))


def may_come(broker: Broker, facts: MeshFacts, sender: int, message: Come) -> None:
    """Let a queue leave for the other broker, which is ready for it."""
    vpn, name = message.vpn, message.queue
    key, entry, queue = key_of(vpn, name), entry_of(facts, vpn, name), broker.find(vpn, name)
    if entry is None or (entry.move, entry.moves_to) != (message.move, sender):
        return  # it was deleted or called back
    if key in facts.leaving:
        return
    peer = facts.peers[sender]
    why = _obstacle(broker, queue, peer.name, message.room)
    if queue is None or why:
        _end_move(broker, facts, vpn, name, entry, why)
        return
    facts.leaving[key] = sender
    forget_found(broker)
    for one in list(queue.header.subscriptions):
        begin(broker, queue, c.Unsubscribe(queue=name, subscription=one.id), MOVED, False)
    begin(broker, queue, c.MoveQueue(queue=name, broker=peer.name), bounded=False)


def _obstacle(broker: Broker, queue: Queue | None, to: str, room: int) -> str:
    """Why a queue cannot move; empty if it can. None: its broker failed to make it."""
    if queue is None:
        return "the queue could not be made where it is, see the broker's log; define it again"
    header, vpn, name = queue.header, queue.definition.vpn, queue.definition.name
    # Of a topic that Kafka has, a record may come while the queue leaves.
    topics = broker.header.captured or ()
    if header.faulted:
        return f"queue {name!r}: failed ({header.faulted}); define it again"
    # Only at rest is it known where each reader stopped (M5).
    if header.reads_plain or any(captures(broker, vpn, queue, topic) for topic in topics):
        return f"queue {name!r}: takes records of plain Kafka topics; {AT_REST}"
    if header.bytes > room:
        return f"queue {name!r}: has {header.bytes} bytes, broker {to!r} has room for {room}"
    return ""


def leave(broker: Broker, facts: MeshFacts, queue: Queue, task: Task, budget: Budget) -> bool:
    """Hand over the queue's messages within the budget, and the queue when all are confirmed;
    returns whether the queue has left."""
    header, to = queue.header, facts.leaving[key_of(queue.definition.vpn, queue.definition.name)]
    one = subscription_to(facts, queue, to)
    while header.depth > one.held and not _is_full(queue, one) and not budget.spent:
        part = wanted(broker, queue, task, None, None, budget, read=True)
        task.done["generation"] = header.generation  # an empty queue begins anew
        _hand_over(broker, facts, queue, one, part.rows)
        if part.last:  # begin again with messages that entered since
            task.done = {"generation": task.done["generation"]}
            task.cursor = ""
            if not part.rows:
                break
    if header.depth:
        task.waits = one.held == header.depth or _is_full(queue, one)
        return False
    _hand_over_queue(broker, facts, queue, task, to)
    return True


def _is_full(queue: Queue, one: Subscription) -> bool:
    """Whether as many messages are in transit as may be."""
    rows = queue.leases.get(one.number, {}).values()
    return len(rows) >= stand_ins.WINDOW or sum(row.size for row in rows) >= BYTES_IN_TRANSIT


def _hand_over(
    broker: Broker, facts: MeshFacts, queue: Queue, one: Subscription, rows: list[Row]
) -> None:
    contents = broker.spool.contents(rows)
    lost = [row for row, content in zip(rows, contents, strict=True) if content is None]
    apply(broker, queue, lost, Event.LOSE, reason="payload missing")
    kept = [row for row, content in zip(rows, contents, strict=True) if content is not None]
    apply(broker, queue, kept, Event.GRANT, holder=one, subscription=one.id)
    own = [content for content in contents if content is not None]
    stand_ins.send(broker, facts, queue, one, kept, own)


def _hand_over_queue(broker: Broker, facts: MeshFacts, queue: Queue, task: Task, to: int) -> None:
    """Hand over the queue itself, after all its messages, and its waiting commands."""
    vpn, name, header = queue.definition.vpn, queue.definition.name, queue.header
    whole = msgspec.structs.replace(
        header, generation=task.done.get("generation", 0), subscriptions=[], topics=[], tasks=[]
    )
    packed = _encode((whole, queue.early.state()))
    born = born_of(facts, vpn, name)
    say(broker, facts, to, HandOver(vpn, name, False, 0, None, NO_ROWS, [], born, packed))
    for waiting in header.tasks:
        if waiting is not task:
            say(broker, facts, to, Forward(vpn, waiting.command))
    header.tasks = [one for one in header.tasks if one is task]
    del facts.leaving[key_of(vpn, name)]
    withdraw(broker, queue)
    broker.drop_queue(queue)
    stand_ins.turn(broker, facts, vpn, name)
    broker.event("went", vpn, name, to=facts.peers[to].name)


def waits_behind_move(facts: MeshFacts, vpn: str, command: Any) -> bool:
    """Whether a command without a reply waits until its queue has left; it then goes with the
    queue. Raises LakequeueError for one that cannot wait."""
    if key_of(vpn, command.queue) not in facts.leaving:
        return False
    if type(command) not in IN_TURN:
        raise LakequeueError(
            f"queue {command.queue!r}: is moving to another broker; send the command again, with a "
            "reply, to learn where the queue is"
        )
    return True


def is_away(broker: Broker, facts: MeshFacts, vpn: str, name: str) -> bool:
    """Whether a queue is leaving or not here."""
    entry = entry_of(facts, vpn, name)
    if entry is None:
        return False
    hosts = hosts_now(broker, facts, vpn, name, entry)
    return key_of(vpn, name) in facts.leaving or broker.header.number not in hosts
