"""The link of a bridge: what waits at its endpoint goes to the far end, lane by lane (H1–H3).

Theory. A message that is sent is on its way (`MOVING`) until the far end's receipt says what was
taken: nothing else can happen to it, so it never ends at both ends. What was taken leaves. What was
refused is ready again, with all that follows it in its lane, and the lane is *held*: its first
message is delayed, longer each time, and then tried alone. A held lane is nothing but a row that is
delayed, so any number of them costs nothing; all others go on (H3). With one lane for all, the
first that is refused holds the link (H2).

Of a lane one record at most is on its way, with as many messages as are there: a lane in which one
message at a time waited for its receipt would be slow.

Where the bridge leads to another VPN of the same broker, the next step hands over what it sends,
and has the receipt at once (`cross`). To a VPN's end at another broker of the home it goes over the
channel between the two, which says everything once. Where it leads to another home, what it sends
is copied there by the engine, and comes at least once; so it carries the link's own numbers
(`protocol.home_bridges`). Nothing is sent before the engine has said that the way is open.

What is on its way is bounded by a window in rows and bytes (`Limits.bridge_rows`, `bridge_bytes`).
"""

from __future__ import annotations

from collections.abc import Callable

from ...protocol import topics
from ...protocol.bridges import BridgeReceipt, BridgeSend
from ...protocol.home_bridges import OPEN, HomeSend, bridge_key
from ...protocol.mesh_envelope import PART_BYTES, PART_ROWS
from ...protocol.outputs import HomeRecord
from ...state.limits import Budget
from ...state.phases.selection import Search
from ...state.queue.broker import Broker
from ...state.queue.change import apply
from ...state.queue.queue import Queue
from ...state.queue.table import Event
from ...state.rules.edits import edited
from ...state.storage.row import MOVING, NEVER, READY, Row
from ...state.storage.spool import Content
from . import held_lanes
from .bridge_facts import ELSEWHERE, BridgeFacts, Flight, Link
from .endpoint import NUMBER, SUBSCRIPTION, beside

Say = Callable[[Link, BridgeSend], None]  # to the far end
Lanes = list[tuple[int, list[Row]]]
HEADS = 1_000  # lanes that one record looks at


def forward_all(broker: Broker, facts: BridgeFacts, say: Say) -> None:
    """At the end of a step: send what may go now."""
    limits = broker.limits
    budget = Budget(limits.delivery_rows, limits.delivery_bytes)
    for number, link in facts.links.items():
        if link.wanted or number in broker.touched:
            _of_queue(broker, link, budget, say, crosses=False)
    broker.at = None


def cross(
    broker: Broker, facts: BridgeFacts, here: Callable[[BridgeSend], BridgeReceipt]
) -> None:  # fmt: skip
    """Hand over what bridges bring to other VPNs of this broker. here: takes it in."""
    limits = broker.limits
    budget = Budget(limits.delivery_rows, limits.delivery_bytes)
    for link in facts.links.values():
        if not link.crossing:
            continue
        link.crossing = False

        def told(link: Link, sent: BridgeSend) -> None:
            broker.at = (f"#{link.queue}", 0, sent.number)  # what the journal says of where it was
            answer = here(sent)
            broker.at = broker.queue(link.queue)
            receipt(broker, link, answer)

        _of_queue(broker, link, budget, told, crosses=True)
    broker.at = None


def _of_queue(broker: Broker, link: Link, budget: Budget, say: Say, crosses: bool) -> None:
    queue = broker.queue(link.queue)
    if queue is None or queue.header.deleted or queue.header.faulted:
        return
    broker.at = queue
    forward(broker, queue, link, budget, say, crosses)


def forward(
    broker: Broker, queue: Queue, link: Link, budget: Budget, say: Say, crosses: bool
) -> None:
    """Send what may go now. crosses: to another VPN of this broker; else what is for that waits for
    the next step."""
    held_lanes.forget_empty(broker, link)
    link.wanted = False
    if not queue.header.egress or not _has_next(queue):
        return
    if link.to == ELSEWHERE and not link.opened:
        return
    if link.to == broker.header.number and not crosses:
        link.crossing = broker.more_to_do = True
        return
    sent: list[BridgeSend] = []
    limits = broker.limits
    rows, size = link.on_its_way()
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
    """Whether a message may be sent: one that waits for no other of its lane."""
    header = queue.header
    if header.depth == header.leased + header.delayed:
        return False
    return queue.ready.first() is not None or queue.first_cold() is not None


def _next_record(broker: Broker, queue: Queue, link: Link, most: int, looks: Budget) -> Lanes:
    """Lanes, and messages of each, for one record: of each lane the first ones, a fair share."""
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
    """These messages are on their way now; gives rows and bytes. sent: what is to be said."""
    rows = [row for _, part in lanes for row in part]
    contents = broker.spool.contents(rows)
    if None in contents:
        _lose(broker, queue, rows, contents)
        return len(rows), 0  # what is left of these lanes goes in the next record
    (holder,) = (one for one in queue.header.subscriptions if one.number == NUMBER)
    apply(broker, queue, rows, Event.GRANT, holder=holder, subscription=SUBSCRIPTION)
    number, size = link.next_send, sum(row.size for row in rows)
    link.next_send += 1
    link.sent += len(rows)
    ids = [(lane, [row.id for row in part]) for lane, part in lanes]
    link.flights[number] = Flight(broker.now, size, ids)
    sent.append(_said(link, number, lanes, rows, contents))
    return len(rows), size


def _said(
    link: Link, number: int, lanes: Lanes, rows: list[Row], contents: list[Content | None]
) -> BridgeSend:
    """Messages, as they are said."""
    own = [edited(row, content) for row, content in zip(rows, contents, strict=True) if content]
    about = [beside(row) for row in rows]
    places = {name: at for at, name in enumerate(dict.fromkeys(to for to, _ in about))}
    return BridgeSend(
        link=link.queue, bridge=link.bridge, vpn=link.far_vpn or link.vpn, number=number,
        destinations=list(places), lanes=[len(part) for _, part in lanes],
        to=[places[to] for to, _ in about],
        payloads=[content[0] for content in own], keys=[content[1] for content in own],
        headers=[content[2] for content in own], times=[row.time for row in rows],
        ttl_ends=[0 if row.ttl_ends == NEVER else row.ttl_ends for row in rows],
        priorities=[row.priority for row in rows], dmq=[row.dmq for row in rows],
        due=[due for _, due in about], came_from=link.vpn if link.far_vpn else "",
        oldest=min(link.flights),
    )  # fmt: skip


def send_again(broker: Broker, link: Link, say: Say) -> None:
    """All that is on its way, under its numbers: it may be lost, or the answer. The far end passes
    over what it had, and answers as it did."""
    queue = broker.queue(link.queue)
    for number, flight in link.flights.items() if queue is not None else ():
        assert queue is not None
        lanes = [(lane, _moving(queue, ids)) for lane, ids in flight.lanes]
        rows = [row for _, part in lanes for row in part]
        contents = broker.spool.contents(rows)
        if len(rows) == flight.rows and None not in contents:
            say(link, _said(link, number, lanes, rows, contents))


def _lose(broker: Broker, queue: Queue, rows: list[Row], contents: list[Content | None]) -> None:
    """Messages whose payloads are missing from the state are lost, and that is said."""
    gone = [row for row, content in zip(rows, contents, strict=True) if content is None]
    apply(broker, queue, gone, Event.LOSE, reason="payload missing")
    for row in rows:
        if row.state == READY:
            queue.ready.changed(row)
    broker.event(
        "payload_missing", broker.vpn_of(queue), queue.definition.name, messages=len(gone),
        first=str(gone[0].id),
    )  # fmt: skip


def say_home(broker: Broker, link: Link, sent: BridgeSend) -> None:
    """To another home, by way of the engine."""
    header = broker.header
    said = HomeSend(header.epoch, header.name, min(link.flights), sent)
    topic = topics.topic(header.name, topics.BRIDGE_OUT)
    broker.emit(HomeRecord(topic, None, bridge_key(link.vpn, link.bridge), said))


def set_way(broker: Broker, link: Link, state: str, why: str) -> None:
    """The engine says how it is with the way to the other home."""
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
    """The far end says what it took of a record."""
    queue = broker.queue(link.queue)
    if queue is None or answer.number not in link.flights:
        return  # it came before
    flight = link.flights.pop(answer.number)
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
            held_lanes.went_through(broker, link, lane)
    broker.touch(queue)


def _moving(queue: Queue, ids: list[int]) -> list[Row]:
    """Of these the ones that are still on their way: the queue may be about to be deleted."""
    rows = [queue.live.get(number) for number in ids]
    return [row for row in rows if row is not None and row.state == MOVING]


def _return(
    broker: Broker, queue: Queue, link: Link, lane: int, back: list[Row], reason: str,
    endpoint: str, progress: bool,
) -> None:  # fmt: skip
    """A lane's messages come back, the first of them after a while."""
    if not back:
        return
    destination, _ = beside(back[0])
    held = held_lanes.hold(broker, link, lane, destination, reason, endpoint, progress)
    apply(
        broker, queue, back[:1], Event.REFUSE_LATER, subscription=SUBSCRIPTION, reason=reason,
        until=broker.now + held_lanes.held_ms(held),
    )  # fmt: skip
    apply(broker, queue, back[1:], Event.REFUSE, subscription=SUBSCRIPTION, reason=reason)
