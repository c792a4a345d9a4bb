"""Stand-ins: internal queues for messages to queues of other brokers (M2, M3, M6, H2, H3).

A message that matches a queue of another broker is stored here with one more match, in the queue's
stand-in. A stand-in has the far queue's filter and message size, and limits of its own. So this
broker can decide the receipt at once, by the usual checks: a full stand-in refuses with the far
queue's name. The stand-in's only consumer is the far broker. A message leaves when the far broker
has stored it. If the far queue refuses, all messages in transit become ready at their positions,
and a moment later the first one is tried again. Each stand-in is a lane of its own: a queue that
refuses holds back no other, and a broker that is down only the messages for its queues.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..definitions import QueueDefinition
from ..definitions.definition_values import WAITING_PREFIX
from ..protocol.errors import Reason
from ..protocol.mesh_messages import Answer, HandOver, encode_body, slices
from ..state.commands.multi_step_commands import resume
from ..state.limits import Budget
from ..state.queue.broker import Broker
from ..state.queue.change import apply
from ..state.queue.header import Subscription
from ..state.queue.queue import Queue
from ..state.queue.table import Event
from ..state.rules.after_entry import keep_last
from ..state.rules.dead import take_later_deaths
from ..state.rules.edits import AGAIN, TRANSIT
from ..state.rules.returned_leases import die
from ..state.rules.routing import forget_found
from ..state.storage.blocks import Content
from ..state.storage.row import MOVING, NEVER, READY, Row, by_arrival
from . import in_transit_commands
from .channel import say
from .facts import (
    Entry,
    MeshFacts,
    OutLane,
    Sent,
    born_of,
    entry_of,
    hosts_now,
    key_of,
)

LANE_BYTES = 500_000_000  # in one stand-in
LANE_MESSAGES = 1_000_000
WINDOW = 1_000  # messages of a lane in transit
RETRY_MS = 1_000
CROSSED = "it is in transit from there"
ELSEWHERE = "elsewhere"  # the other broker is no host of the queue
LANES_SHOWN = 100
OUT = WAITING_PREFIX  # a stand-in's name is this and the name of its queue

_encode = msgspec.msgpack.encode


def find(broker: Broker, vpn: str, name: str) -> Queue | None:
    """The stand-in for a queue of another broker, if it exists."""
    return broker.find(vpn, f"{OUT}{name}")


def stand_in(broker: Broker, facts: MeshFacts, vpn: str, name: str) -> Queue:
    """The stand-in for a queue of another broker, made at first use."""
    text = f"{OUT}{name}"
    found = broker.find(vpn, text)
    if found is not None:
        return found
    entry = facts.entries[vpn][name]
    far, host = entry.definition, target(broker, facts, vpn, name, entry)
    one = subscription_of(f"#{host}", 1, facts.name_of(host), host)
    one.max_backlog = 0 if key_of(vpn, name) in facts.leaving else WINDOW
    queue = broker.make_queue(
        _definition(far, text), created=entry.made, stands_for=name, subscriptions=[one],
        next_subscription=2,
    )  # fmt: skip
    facts.lanes[queue.number] = OutLane(attempt=broker.now)  # above all before
    return queue


def target(broker: Broker, facts: MeshFacts, vpn: str, name: str, entry: Entry) -> int:
    """The host that stores messages published here (H4); for a queue that is leaving this broker,
    its new host."""
    own, owner = broker.header.number, entry.definition.initial_owner
    if owner is not None:
        return facts.brokers[owner]
    leaves_for = facts.leaving.get(key_of(vpn, name))
    if leaves_for is not None:
        return leaves_for
    hosts = hosts_now(broker, facts, vpn, name, entry)
    return own if own in hosts else hosts[own % len(hosts)]


def subscription_of(
    name: str, number: int, of: str, broker: int, text: str | None = None
) -> Subscription:
    """A subscription of another broker. name: its id; of: the broker's name; text: its filter."""
    return Subscription(
        id=name, number=number, name=of, session="", topic="", partition=0, framing="",
        removes_on_send=False, filter=text, max_backlog=0, broker=broker,
    )  # fmt: skip


def turn(broker: Broker, facts: MeshFacts, vpn: str, name: str) -> None:
    """Redirect a stand-in to the queue's host, once all messages in transit are answered."""
    queue = find(broker, vpn, name)
    entry = entry_of(facts, vpn, name)
    if queue is None or entry is None:
        return
    lane, one = facts.lanes[queue.number], queue.header.subscriptions[0]
    host = target(broker, facts, vpn, name, entry)
    if one.broker == host and (one.max_backlog or lane.why or queue.number in facts.retries):
        return
    one.max_backlog = 0
    if one.held or key_of(vpn, name) in facts.leaving:
        return
    one.broker = host
    one.name = facts.name_of(host)
    facts.retries.pop(queue.number, None)
    one.max_backlog = WINDOW if not lane.why else 1
    queue.wanted = True
    broker.touch(queue)


def _definition(far: QueueDefinition, name: str) -> QueueDefinition:
    """A stand-in's definition: the parts of the far queue's that decide whether a message is
    stored, without expiry."""
    return QueueDefinition(
        name=name, vpn=far.vpn, message_type=far.message_type, type="LocalQueue",
        underlying_topic=name, default_publish_target=name, filter=far.filter,
        fairness_model="fast", expiration_model="queue", max_message_size=far.max_message_size,
        on_invalid=far.on_invalid, recovery_point=far.recovery_point, max_spool_usage=LANE_BYTES,
        max_spool_messages=LANE_MESSAGES,
    )  # fmt: skip


def follow(broker: Broker, facts: MeshFacts, vpn: str, name: str) -> None:
    """Update the stand-in of a far queue that was defined again (Q9)."""
    queue = find(broker, vpn, name)
    if queue is not None:
        far = facts.entries[vpn][name].definition
        queue.header.definition = _definition(far, queue.definition.name)
        broker.touch(queue)
        put_back(broker, facts, queue)
    turn(broker, facts, vpn, name)


def put_back(broker: Broker, facts: MeshFacts, queue: Queue) -> None:
    """Put a stand-in that failed back into service."""
    if not queue.header.faulted:
        return
    queue.header.faulted = ""
    queue.wanted = True
    broker.touch(queue)
    resume(broker, queue)
    if queue.number in facts.retries:
        facts.retries[queue.number] = broker.now


# ---------------------------------------------------------------- sending


def send(
    broker: Broker, facts: MeshFacts, queue: Queue, subscription: Subscription, rows: list[Row],
    contents: list[Content],
) -> None:  # fmt: skip
    """Hand messages over, in as many records as they need."""
    lane = facts.lanes.get(queue.number)
    assert subscription.broker is not None
    vpn, name = queue.definition.vpn, queue.header.stands_for or queue.definition.name
    for part in slices(
        [len(content[0]) + row.size for row, content in zip(rows, contents, strict=True)]
    ):
        message = HandOver(
            vpn, name, lane is not None, 0 if lane is None else lane.attempt, subscription.filter,
            _encode(rows[part]), contents[part], born_of(facts, vpn, name),
        )  # fmt: skip
        to, ids = subscription.broker, [row.id for row in rows[part]]
        if queue.number in facts.left_out:  # behind the earlier ones (`failures.send_left_out`)
            body = encode_body(message.without_messages())
            facts.left_out[queue.number].append((to, Sent(0, message.kind, body, ids)))
        else:
            say(broker, facts, to, message, ids)


def source_of(broker: Broker, message: HandOver | Answer) -> Queue | None:
    """The queue here whose messages are handed over."""
    of = find if message.waiting else Broker.find
    return of(broker, message.vpn, message.queue)


def with_messages(
    broker: Broker, queue: Queue, to: int, message: HandOver, ids: list[int], budget: Budget
) -> HandOver:
    """A record that is repeated, with those of its messages that are still in transit."""
    rows: list[Row] = []
    contents: list[Content] = []
    for number, moving in moving_to(queue, to, ids).items():
        (one,) = (one for one in queue.header.subscriptions if one.number == number)
        for row, content in _readable(broker, queue, one, moving):
            rows.append(row)
            contents.append(content)
            budget.take(1, row.size)
    return msgspec.structs.replace(message, rows=_encode(rows), contents=contents)


def _readable(
    broker: Broker, queue: Queue, one: Subscription, rows: list[Row]
) -> list[tuple[Row, Content]]:
    """Messages in transit with their contents. One whose content is missing is ready again, and
    found lost when it is sent next."""
    found = list(zip(rows, broker.spool.contents(rows), strict=True))
    lost = [row for row, content in found if content is None]
    if lost:
        _take_back(broker, queue, one, lost, "payload missing")
    return [(row, content) for row, content in found if content is not None]


def _held(queue: Queue, one: Subscription) -> list[Row]:
    """The messages that another broker's subscription holds, by arrival. In `leases` a load may
    change their order."""
    return sorted(queue.leases.get(one.number, {}).values(), key=by_arrival)


def _source(broker: Broker, facts: MeshFacts, message: Answer) -> Queue | None:
    """The queue that handed messages over; None if it was deleted, even if there is a new one of
    its name."""
    is_same = born_of(facts, message.vpn, message.queue) == message.born
    return source_of(broker, message) if is_same else None


def moving_to(queue: Queue, sender: int, ids: list[int]) -> dict[int, list[Row]]:
    """The messages with these ids that are in transit to a broker, by its subscription here."""
    found: dict[int, list[Row]] = {}
    own = {one.number for one in queue.header.subscriptions if one.broker == sender}
    for number in ids:
        row = queue.live.get(number)
        if row is not None and row.state == MOVING and row.holder in own:
            found.setdefault(row.holder, []).append(row)
    return found


def _count_answered(queue: Queue, one: Subscription, n: int) -> None:
    """Count granted messages that were answered: their room is used (`credit`)."""
    one.max_backlog = max((one.max_backlog or 0) - n, 0)
    end_if_idle(queue, one)


def answered(broker: Broker, facts: MeshFacts, sender: int, message: Answer) -> None:
    """Remove messages that the other broker has stored, and take back those that it refuses."""
    queue = _source(broker, facts, message)
    if queue is None:
        return
    if message.stored:
        _stored(broker, facts, queue, sender, message)
    if message.why and queue.number in facts.lanes:
        _refused(broker, facts, queue, sender, message)
    elif message.why:
        _not_granted(broker, facts, queue, sender, message)
    if queue.header.tasks:  # the queue's move may have waited for this
        queue.header.tasks[0].waits = False
        resume(broker, queue)


def _stored(broker: Broker, facts: MeshFacts, queue: Queue, sender: int, message: Answer) -> None:
    moving = moving_to(queue, sender, message.stored)
    rows = [row for some in moving.values() for row in some]
    again = [row for row in rows if take_later_deaths(row)]
    if again:
        apply(broker, queue, again, Event.REFUSE, reason="died in one more queue")
        keep_last(broker, queue)
        rows = [row for row in rows if row.state == MOVING]
    apply(broker, queue, rows, Event.TRANSFER, reason=f"to broker {facts.peers[sender].name}")
    lane = facts.lanes.get(queue.number)
    if lane is None:
        for one in [one for one in queue.header.subscriptions if one.broker == sender]:
            _count_answered(queue, one, len(moving.get(one.number, ())))
    else:
        if rows:
            _unblock(broker, queue, facts.peers[sender].name, lane)
        turn(broker, facts, message.vpn, message.queue)
    queue.wanted = True
    broker.touch(queue)


def _unblock(broker: Broker, queue: Queue, host: str, lane: OutLane) -> None:
    """Note that the far queue accepts messages. host: the name of its broker."""
    if lane.why:
        broker.event(
            "lane_flows", queue.definition.vpn, queue.header.stands_for, broker=host, why=lane.why,
            blocked_ms=broker.now - lane.since,
        )  # fmt: skip
    lane.why, lane.since = "", 0
    queue.header.subscriptions[0].max_backlog = WINDOW


def end_if_idle(queue: Queue, one: Subscription) -> None:
    """Remove another broker's subscription that has ended, once no message is in transit to it."""
    if one.ending and not one.held:
        queue.consumers.remove(one)
        queue.forget_view(one.filter)
        queue.leases.pop(one.number, None)


def _refused(broker: Broker, facts: MeshFacts, queue: Queue, sender: int, message: Answer) -> None:
    """Take back all messages of a lane that are in transit."""
    lane = facts.lanes[queue.number]
    if lane.attempt != message.attempt:
        return
    one = queue.header.subscriptions[0]
    _take_back(broker, queue, one, _held(queue, one), message.why)
    one.max_backlog = 0
    lane.attempt += 1
    facts.retries[queue.number] = broker.now + RETRY_MS
    turn(broker, facts, message.vpn, message.queue)
    if message.why == ELSEWHERE:  # the directory's next entry will say where it is
        return
    if not lane.why:
        lane.since = broker.now
        broker.event(
            "lane_blocked", message.vpn, message.queue, broker=facts.peers[sender].name,
            why=message.why, waiting=queue.header.depth,
        )  # fmt: skip
    lane.why = message.why


def _take_back(broker: Broker, queue: Queue, one: Subscription, rows: list[Row], why: str) -> None:
    """Make messages ready again here, to be handed over once more later."""
    for row in rows:
        (row.extras or {}).get(TRANSIT, {}).pop(AGAIN, None)
    commands = in_transit_commands.take(rows)
    apply(broker, queue, rows, Event.REFUSE, subscription=one.id, reason=why)
    in_transit_commands.carry_out_kept(broker, queue, commands)
    keep_last(broker, queue)


def _not_granted(
    broker: Broker, facts: MeshFacts, queue: Queue, sender: int, message: Answer
) -> None:
    """Handle granted messages that the other broker cannot store; others in transit are not
    affected. If storing several failed, they are tried one by one. One that fails alone would fail
    anywhere, so it is dead."""
    fails = message.why == Reason.MALFORMED.value
    moving = moving_to(queue, sender, message.refused)
    for one in list(queue.header.subscriptions):
        rows = moving.get(one.number, [])
        if not rows:
            continue
        if fails and len(message.refused) > 1:
            for row, content in _readable(broker, queue, one, rows):
                send(broker, facts, queue, one, [row], [content])
            continue
        _take_back(broker, queue, one, rows, message.why)
        _count_answered(queue, one, len(rows))
        if fails:
            left = [row for row in rows if row.state == READY]
            why = f"to broker {facts.peers[sender].name}"
            die(broker, queue, left, Event.OVERSIZE, Reason(message.why), detail=why)
    queue.wanted = True
    broker.touch(queue)


def retry(broker: Broker, facts: MeshFacts) -> None:
    """Try the first message of each refused lane again, when it is time."""
    for number, at in list(facts.retries.items()):
        broker.at = queue = broker.queues[number]
        if queue.header.faulted:
            facts.retries[number] = NEVER  # until it is put back
        elif at <= broker.now:
            del facts.retries[number]
            _try_first(broker, queue)
    broker.at = None


def _try_first(broker: Broker, queue: Queue) -> None:
    """Let the first message of a refused lane be sent."""
    queue.header.subscriptions[0].max_backlog = 1
    queue.wanted = True
    broker.touch(queue)


def shown(broker: Broker, facts: MeshFacts, vpn: str) -> list[dict[str, Any]]:
    """The stand-ins with messages, for people: the queue and its broker, messages and bytes, why it
    refuses and since when (H2). Refused ones come first."""
    found: list[dict[str, Any]] = []
    for number, lane in facts.lanes.items():
        queue = broker.queues[number]
        header = queue.header
        if queue.definition.vpn == vpn and header.depth:
            why = header.faulted or lane.why or None
            found.append(
                {
                    "queue": header.stands_for, "to": header.subscriptions[0].name,
                    "waiting": header.depth, "bytes": header.bytes, "why": why,
                    "for_s": (broker.now - lane.since) / 1000 if lane.why else None,
                }
            )  # fmt: skip
    found.sort(key=lambda one: (-(one["for_s"] or 0), -one["waiting"], one["queue"]))
    return found[:LANES_SHOWN]


def emptied(broker: Broker, facts: MeshFacts, queue: Queue) -> None:
    """Note that a stand-in is empty: new messages for a queue that has moved here need no longer
    wait behind it. A loaded broker has no such wait either."""
    vpn, name = queue.definition.vpn, queue.header.stands_for or ""
    entry = entry_of(facts, vpn, name)
    if entry is not None and target(broker, facts, vpn, name, entry) == broker.header.number:
        forget_found(broker)
