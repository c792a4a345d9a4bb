"""The link of a bridge: sends the messages of its endpoint to the far end, lane by lane (H1–H3).

A sent message is in transit (`MOVING`) until the far end's receipt. Nothing else can happen to it,
so it never ends at both ends. Messages that the far end stored leave. A refused message becomes
ready again with all later ones of its lane, and the lane is *held*: its first message is delayed,
longer each time, and then tried alone. A held lane is only a delayed row, so any number of them
costs nothing, and all other lanes go on (H3). With a single lane, the first refusal holds the whole
link (H2).

At most one record of a lane is in transit, with as many messages as there are. A lane that waited
for a receipt after each message would be slow.

To another VPN of the home, messages go over the channel between the two brokers, which delivers
once; if both VPNs are on one broker, it reads its own record in its next step. To another home, the
engine copies them, at least once, so they carry the link's own numbers (`protocol.home_bridges`).
Nothing is sent before the engine has said that the connection is open.

A window in rows and bytes bounds the messages in transit (`Limits.bridge_rows`, `bridge_bytes`).
"""

from __future__ import annotations

from collections.abc import Callable

from ...protocol import topics
from ...protocol.home_bridges import OPEN, HomeSend, bridge_key
from ...protocol.mesh_messages import PART_BYTES, PART_ROWS, BridgeReceipt, BridgeSend
from ...protocol.outputs import HomeRecord
from ...state.limits import Budget
from ...state.phases.delivery import lose
from ...state.phases.selection import Search
from ...state.queue.broker import Broker
from ...state.queue.change import apply
from ...state.queue.queue import Queue
from ...state.queue.table import Event
from ...state.rules.edits import edited
from ...state.storage.blocks import Content
from ...state.storage.row import MOVING, NEVER, Row
from .bridge_facts import ELSEWHERE, BridgeFacts, Flight, Link
from .endpoint import (
    NUMBER,
    SUBSCRIPTION,
    destination_and_due,
    forget_empty,
    held_ms,
    hold_lane,
    went_through,
)

Say = Callable[[Link, BridgeSend], None]  # sends to the far end
Lanes = list[tuple[int, list[Row]]]
HEADS = 1_000  # the most lanes in one record


def forward_all(broker: Broker, facts: BridgeFacts, say: Say) -> None:
    """At the end of a step, send what can be sent."""
    limits = broker.limits
    budget = Budget(limits.delivery_rows, limits.delivery_bytes)
    for number, link in facts.links.items():
        if link.wanted or number in broker.touched:
            forward(broker, link, budget, say)
    broker.at = None


def forward(broker: Broker, link: Link, budget: Budget, say: Say) -> None:
    """Send what can be sent."""
    queue = broker.queues[link.queue]
    if queue.header.faulted:
        return
    broker.at = queue
    forget_empty(broker, link)
    link.wanted = False
    if not queue.header.egress or not _has_next(queue):
        return
    if link.to == ELSEWHERE and not link.opened:
        return
    sent: list[BridgeSend] = []
    limits = broker.limits
    rows, size = link.in_transit()
    room = Budget(limits.bridge_rows - rows, limits.bridge_bytes - size)
    looks = Budget(limits.looks, limits.look_bytes)
    while not room.spent and not budget.spent:
        lanes = _next_record(broker, queue, link, min(room.rows, budget.rows), looks)
        if not lanes:
            break
        sent_rows, sent_bytes = _send(broker, queue, link, lanes, sent)
        for one in (room, budget):
            one.take(sent_rows, sent_bytes)
    if (budget.spent or looks.spent) and not room.spent and _has_next(queue):
        link.wanted = broker.more_to_do = True
    for record in sent:
        say(link, record)


def _has_next(queue: Queue) -> bool:
    """Whether there is a message that waits for no other of its lane."""
    header = queue.header
    if header.depth == header.leased + header.delayed:
        return False
    return queue.ready.first() is not None or queue.first_cold() is not None


def _next_record(broker: Broker, queue: Queue, link: Link, most: int, looks: Budget) -> Lanes:
    """Lanes for one record, with a fair share of the first messages of each."""
    most = min(most, PART_ROWS)
    search = Search(broker, queue, Budget(most, 1 << 62), looks)
    heads = search.take(None, min(most, HEADS), False)
    share = max(most // len(heads), 1) if heads else 0
    chosen: Lanes = []
    size = n = at = 0
    while at < len(heads) and n < most and size < PART_BYTES:
        head = heads[at]
        held = link.held.get(head.lane)
        alone = held is not None and not held.opening
        rows = [head]
        if not alone and share > 1:
            rows += queue.ready.followers(head, min(share, most - n) - 1)
        fits = Budget(len(rows), PART_BYTES - size).fits([row.size for row in rows])
        if chosen and size + sum(row.size for row in rows[:fits]) > PART_BYTES:
            break
        chosen.append((head.lane, rows[:fits]))
        size += sum(row.size for row in rows[:fits])
        n += fits
        at += 1
    queue.ready.put_back(queue.ready.heap, heads[at:])
    return chosen


def _send(
    broker: Broker, queue: Queue, link: Link, lanes: Lanes, sent: list[BridgeSend]
) -> tuple[int, int]:
    """Put messages in transit, and append their record to ``sent``; returns rows and bytes."""
    rows = [row for _, part in lanes for row in part]
    contents = broker.spool.contents(rows)
    if None in contents:
        lose(broker, queue, rows, contents)
        return len(rows), 0  # the next record has the rows that are left
    (holder,) = (one for one in queue.header.subscriptions if one.number == NUMBER)
    apply(broker, queue, rows, Event.GRANT, holder=holder, subscription=SUBSCRIPTION)
    number, size = link.next_send, sum(row.size for row in rows)
    link.next_send += 1
    link.sent += len(rows)
    ids = [(lane, [row.id for row in part]) for lane, part in lanes]
    link.flights[number] = Flight(broker.now, size, ids)
    sent.append(_bridge_send(link, number, lanes, rows, contents))
    return len(rows), size


def _bridge_send(
    link: Link, number: int, lanes: Lanes, rows: list[Row], contents: list[Content | None]
) -> BridgeSend:
    """The record of messages."""
    own = [edited(row, content) for row, content in zip(rows, contents, strict=True) if content]
    about = [destination_and_due(row) for row in rows]
    places = {name: at for at, name in enumerate(dict.fromkeys(to for to, _ in about))}
    return BridgeSend(
        link=link.number, bridge=link.bridge, vpn=link.far_vpn or link.vpn, number=number,
        destinations=list(places), lanes=[len(part) for _, part in lanes],
        to=[places[to] for to, _ in about],
        payloads=[content[0] for content in own], keys=[content[1] for content in own],
        headers=[content[2] for content in own], times=[row.time for row in rows],
        ttl_ends=[0 if row.ttl_ends == NEVER else row.ttl_ends for row in rows],
        priorities=[row.priority for row in rows], dmq=[row.dmq for row in rows],
        due=[due for _, due in about], came_from=link.vpn if link.far_vpn else "",
    )  # fmt: skip


def with_messages(broker: Broker, link: Link, sent: BridgeSend, budget: Budget) -> BridgeSend:
    """A record that is repeated, with those of its messages that are still in transit."""
    queue, flight = broker.queues[link.queue], link.flights.get(sent.number)
    if flight is None:
        return sent
    lanes: Lanes = []
    contents: list[Content | None] = []
    for lane, ids in flight.lanes:
        part = _moving(queue, ids)
        own = broker.spool.contents(part)
        lost = [row for row, content in zip(part, own, strict=True) if content is None]
        apply(
            broker, queue, lost, Event.REFUSE, subscription=SUBSCRIPTION, reason="payload missing"
        )
        if len(lost) < len(part):
            lanes.append((lane, [row for row in part if row.state == MOVING]))
            contents += [content for content in own if content is not None]
    flight.lanes = [(lane, [row.id for row in part]) for lane, part in lanes]
    rows = [row for _, part in lanes for row in part]
    budget.take(len(rows), flight.size)
    return _bridge_send(link, sent.number, lanes, rows, contents)


def send_to_home(broker: Broker, link: Link, sent: BridgeSend) -> None:
    """Send to another home, through the engine."""
    header = broker.header
    message = HomeSend(header.epoch, header.name, min(link.flights), sent)
    topic = topics.topic(header.name, topics.BRIDGE_OUT)
    broker.emit(HomeRecord(topic, None, bridge_key(link.vpn, link.bridge), message))


def set_connection_state(broker: Broker, link: Link, state: str, why: str) -> None:
    """Set the state of the connection to the other home, as the engine says."""
    if (link.way, link.why) == (state, why):
        return
    changed = link.way != state or not link.way_since
    link.way, link.why = state, why
    if changed:
        link.way_since = broker.now
        link.opened = link.opened or state == OPEN
        broker.event(
            "bridge_open" if state == OPEN else "bridge_waits", link.vpn, bridge=link.bridge,
            to=link.to_name, why=why,
        )  # fmt: skip
        link.wanted = True


# ---------------------------------------------------------------- receipts


def receipt(broker: Broker, link: Link, answer: BridgeReceipt) -> None:
    """Handle the far end's receipt for a record."""
    queue, flight = broker.queues[link.queue], link.flights.pop(answer.number, None)
    if flight is None:
        return  # a repetition
    refused = {lane: (taken, reason, name) for lane, taken, reason, name in answer.refused}
    for at, (lane, ids) in enumerate(flight.lanes):
        n, reason, endpoint = refused.get(at, (len(ids), "", ""))
        taken, back = _moving(queue, ids[:n]), _moving(queue, ids[n:])
        link.taken += n
        apply(broker, queue, taken, Event.ARRIVE, subscription=SUBSCRIPTION)
        if n < len(ids):
            link.refused += 1
            _return(broker, queue, link, lane, back, reason, endpoint, n > 0)
        elif lane in link.held:
            went_through(broker, link, lane)
    broker.touch(queue)


def _moving(queue: Queue, ids: list[int]) -> list[Row]:
    """The messages that are still in transit: the queue may be being deleted."""
    rows = [queue.live.get(number) for number in ids]
    return [row for row in rows if row is not None and row.state == MOVING]


def _return(
    broker: Broker, queue: Queue, link: Link, lane: int, back: list[Row], reason: str,
    endpoint: str, progress: bool,
) -> None:  # fmt: skip
    """Take back a lane's messages; the first one is delayed."""
    if not back:
        return
    destination, _ = destination_and_due(back[0])
    held = hold_lane(broker, link, lane, destination, reason, endpoint, progress)
    apply(
        broker, queue, back[:1], Event.REFUSE_LATER, subscription=SUBSCRIPTION, reason=reason,
        until=broker.now + held_ms(held),
    )  # fmt: skip
    apply(broker, queue, back[1:], Event.REFUSE, subscription=SUBSCRIPTION, reason=reason)
