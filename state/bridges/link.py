"""The link of a bridge: what waits at its endpoint goes to the far broker, lane by lane (H1–H3).

Theory. Between two brokers there is a channel that delivers once and in order (`mesh.channel`), so
the link repeats nothing and needs no time-out: what it sends is leased to it until the far end's
receipt says what was taken. That leaves the queue; so a message is at one end always, and at both
only while it is on its way.

Of a lane one record at most is on its way. What the far end refuses is returned, with all that
follows it in its lane, and the lane is *held*: its first message is delayed, longer each time, and
then tried alone. A held lane is nothing but a row that is delayed, so any number of them costs
nothing; all others go on (H3). With one lane for all, the first that is refused holds the link
(H2).

Where the bridge leads to another VPN of the same broker, nothing is said: a phase of the next step
hands over what it sends, and has the receipt at once (`cross`).

Where the bridge leads to another home, what it sends is copied there by the engine, and comes at
least once; so it carries the link's own numbers (`protocol.home_bridges`). Nothing is sent before
the engine has said that the way is open.

What is on its way is bounded by a window in rows and bytes (`Limits.bridge_rows`, `bridge_bytes`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ...definitions.bridge import BridgeDefinition
from ...protocol import topics
from ...protocol.bridges import BridgeReceipt, BridgeSend
from ...protocol.home_bridges import OPEN, WAITING, HomeSend, bridge_key
from ...protocol.mesh import PART_BYTES, PART_ROWS
from ...protocol.outputs import HomeRecord
from ..limits import Budget
from ..mesh import known_places
from ..mesh.saying import say
from ..message import LEASED, Event, apply
from ..rules.edits import BRIDGED
from ..rules.order import seq_of
from ..storage import NEVER, Array
from . import holds
from .holds import HeldLane, held_ms

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue

Here = Callable[[BridgeSend], BridgeReceipt]
HEADS = 1_000  # lanes that one record looks at
ELSEWHERE = -1  # the number of the far broker, where that is in another home
SUBSCRIPTION = "#link"  # what the journal says of who leases


class Link(msgspec.Struct):
    """The near end of a bridge, but for its endpoint: one page. flights: sent at, rows, bytes of
    each record on its way, by number (its lanes and places stand in a page of their own); held: by
    lane, the first `Limits.bridge_holds` of them."""

    vpn: str
    bridge: str
    to: int
    to_name: str
    lanes: str
    far_vpn: str = ""  # where that is another one
    next_send: int = 1
    flights: dict[int, tuple[int, int, int]] = {}
    held: dict[int, HeldLane] = {}
    sent: int = 0  # messages; these three: since the bridge was made
    taken: int = 0
    refused: int = 0
    way: str = WAITING
    why: str = ""
    way_since: int = 0
    opened: bool = False
    gone: int = 0  # messages that had left otherwise as `holds.forget_empty` last looked
    queue: str = ""  # that it follows, wherever that is (`trails`)

    def on_its_way(self) -> tuple[int, int]:
        """Rows and bytes."""
        flights = self.flights.values()
        return sum(f[1] for f in flights), sum(f[2] for f in flights)


def new(bridge: BridgeDefinition, far: int) -> Link:
    """The link of a new bridge; far: the number of the broker that it leads to."""
    number = ELSEWHERE if bridge.leaves else far
    far_vpn = bridge.far_vpn or ""
    return Link(bridge.vpn, bridge.name, number, bridge.to, bridge.lanes, far_vpn)


def load(broker: Broker, number: int) -> Link | None:
    """The link of the endpoint with this number."""
    if number not in broker.header.links:
        return None
    return msgspec.convert(broker.values.read(f"L/{number}"), Link)


def save(broker: Broker, number: int, link: Link) -> None:
    """Keep what changed."""
    broker.values.write(f"L/{number}", msgspec.to_builtins(link))


def forget(broker: Broker, number: int) -> None:
    """The bridge is deleted; what is on its way hears no answer any more."""
    link = load(broker, number)
    assert link is not None
    for flight in link.flights:
        broker.values.write(f"L/{number}/{flight}", None)
    broker.values.write(f"L/{number}", None)
    del broker.header.links[number]
    broker.header.trails.pop(number, None)


# ---------------------------------------------------------------- sending


def forward(broker: Broker, queue: Queue, budget: Budget, here: Here | None = None) -> bool:
    """Send what may go now; whether a budget ended it. here: takes what is for another VPN of this
    broker; without it, that waits for the next step."""
    link = load(broker, queue.number)
    assert link is not None
    holds.forget_empty(broker, queue, link)
    if link.queue and not link.flights:
        _aim(broker, link)
    crosses = link.to == broker.header.number
    if (link.to == ELSEWHERE and not link.opened) or (crosses and here is None):
        save(broker, queue.number, link)
        if crosses and queue.header.egress and queue.ready:
            broker.header.crossing[queue.number] = broker.more_to_do = True
        return False
    handed: list[BridgeSend] = []
    limits = broker.limits
    rows, size = link.on_its_way()
    room = Budget(limits.bridge_rows - rows, limits.bridge_bytes - size)
    while queue.header.egress and not room.spent and not budget.spent and queue.ready:
        lanes = _next_record(queue, link, min(room.rows, budget.rows))
        if not lanes:
            break
        sent_rows, sent_bytes = _send(broker, queue, link, lanes, handed)
        for one in (room, budget):
            one.take(sent_rows, sent_bytes)
    save(broker, queue.number, link)
    for sent in handed:
        assert here is not None
        receipt(broker, link.to, here(sent))
    return budget.spent and bool(queue.ready) and not room.spent


def _aim(broker: Broker, link: Link) -> None:
    """The queue that it follows may be elsewhere by now."""
    link.to = broker.header.number
    if broker.find(link.vpn, link.queue) is None:
        entry = known_places.find(broker, link.vpn, link.queue)
        gone = known_places.gone_to(broker, link.vpn, link.queue)
        if gone is not None:
            link.to = gone
        elif entry is not None:
            link.to = entry.hosts[0]
    peer = broker.header.peers.get(link.to)
    link.to_name = broker.header.name if peer is None else peer.name


def _next_record(queue: Queue, link: Link, most: int) -> list[tuple[int, Array]]:
    """Lanes, and places of each, for one record: of each lane the first ones, a fair share."""
    most = min(most, PART_ROWS)
    heads = [seq_of(key) for key in queue.ready.peek(min(most, HEADS))]
    share = max(most // len(heads), 1) if heads else 0
    lanes = queue.gather(np.array(heads, np.int64), "lane").tolist()
    chosen: list[tuple[int, Array]] = []
    size = rows = 0
    for lane in lanes:
        held = link.held.get(lane)
        alone = held is not None and not held.opening
        seqs = np.array(queue.lanes.places(lane, 1 if alone else min(share, most - rows)), np.int64)
        sizes = queue.gather(seqs, "size")
        n = Budget(share, PART_BYTES - size).fits(sizes)
        if chosen and int(sizes[:n].sum(dtype=np.int64)) + size > PART_BYTES:
            break
        chosen.append((lane, seqs[:n]))
        size += int(sizes[:n].sum(dtype=np.int64))
        rows += n
        if rows >= most or size >= PART_BYTES:
            break
    return chosen


def _send(
    broker: Broker, queue: Queue, link: Link, lanes: list[tuple[int, Array]],
    handed: list[BridgeSend],
) -> tuple[int, int]:  # fmt: skip
    """Lease these to the link and say them; gives rows and bytes. handed: what is for this
    broker."""
    seqs = np.concatenate([places for _, places in lanes])
    ids = queue.gather(seqs, "id")
    contents = broker.spool.contents(ids)
    if None in contents:
        holds.lose(broker, queue, seqs[np.array([c is None for c in contents], bool)])
        return len(seqs), 0  # what is left of these lanes goes in the next record
    size = int(queue.gather(seqs, "size").sum(dtype=np.int64))
    again = queue.gather(seqs, "deliveries") > 0
    for event, part in ((Event.DELIVER, seqs[~again]), (Event.REDELIVER, seqs[again])):
        apply(broker, queue, part, event, subscription=SUBSCRIPTION)
    _set_expiry(queue, seqs, np.full(len(seqs), NEVER, np.int64))
    number = link.next_send
    link.next_send += 1
    link.sent += len(seqs)
    link.flights[number] = (broker.now, len(seqs), size)
    flight = [[lane, places.tolist()] for lane, places in lanes]
    broker.values.write(f"L/{queue.number}/{number}", flight)
    spool = broker.spool
    ttl_ends = spool.gather(ids, "ttl_ends")
    ttl_ends[ttl_ends == NEVER] = 0
    beside = [_beside(queue, seq) for seq in seqs.tolist()]
    places = {name: at for at, name in enumerate(dict.fromkeys(to for to, _ in beside))}
    _say(
        broker, link, handed,
        BridgeSend(
            link=queue.number, bridge=link.bridge, vpn=link.far_vpn or link.vpn, number=number,
            destinations=list(places), lanes=[len(one) for _, one in lanes],
            to=[places[to] for to, _ in beside],
            payloads=[c[0] for c in contents if c], keys=[c[1] for c in contents if c],
            headers=[c[2] for c in contents if c], times=spool.gather(ids, "time").tolist(),
            ttl_ends=ttl_ends.tolist(), priorities=spool.gather(ids, "priority").tolist(),
            dmq=spool.gather(ids, "dmq").astype(bool).tolist(),
            due=[due for _, due in beside], came_from=link.vpn if link.far_vpn else "",
        ),
    )  # fmt: skip
    return len(seqs), size


def _say(broker: Broker, link: Link, handed: list[BridgeSend], sent: BridgeSend) -> None:
    """To the far broker, over the channel or by way of the engine; to this one by hand."""
    if link.to == broker.header.number:
        handed.append(sent)
        return
    if link.to != ELSEWHERE:
        say(broker, link.to, sent)
        return
    header = broker.header
    said = HomeSend(header.epoch, header.name, min(link.flights), sent)
    topic = topics.topic(header.name, topics.BRIDGE_OUT)
    broker.emit(HomeRecord(topic, None, bridge_key(link.vpn, link.bridge), said))


def set_way(broker: Broker, queue: Queue, state: str, why: str) -> None:
    """The engine says how it is with the way to the other home."""
    link = load(broker, queue.number)
    if link is None or (link.way, link.why) == (state, why):
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
        queue.wanted = True
    save(broker, queue.number, link)


def _beside(queue: Queue, seq: int) -> tuple[str, int]:
    """Where a message goes, and when it is to be delivered there."""
    page, row = queue.row(seq)
    to, due = page.extras[row][BRIDGED]
    return to, due


def _set_expiry(queue: Queue, seqs: Array, expires: Array) -> None:
    """What is on its way has no time to live here: the far end counts it on (X4). What comes back
    has its own again."""
    for page, rows, where in queue.rows(seqs):
        page.expires[rows] = expires[where]
        queue.changed(page)


# ---------------------------------------------------------------- receipts


def receipt(broker: Broker, sender: int, answer: BridgeReceipt) -> None:
    """The far end says what it took of a record."""
    link, queue = load(broker, answer.link), broker.queue(answer.link)
    if link is None or queue is None or answer.number not in link.flights or sender != link.to:
        return  # the bridge was deleted meanwhile
    key = f"L/{queue.number}/{answer.number}"
    flight = broker.values.read(key)
    broker.values.write(key, None)
    del link.flights[answer.number]
    refused = {lane: (taken, reason, name) for lane, taken, reason, name in answer.refused}
    for at, (lane, places) in enumerate(flight):
        n, reason, endpoint = refused.get(at, (len(places), "", ""))
        taken, back = places[:n], places[n:]
        link.taken += len(taken)
        apply(
            broker, queue, _still_leased(queue, taken), Event.ACKNOWLEDGE,
            subscription=SUBSCRIPTION,
        )  # fmt: skip
        if back:
            link.refused += 1
            _return(broker, queue, link, lane, back, reason, endpoint, bool(taken))
        elif lane in link.held:
            holds.went_through(broker, queue, link, lane)
    save(broker, queue.number, link)
    if link.queue:
        from .trails import close_if_done

        close_if_done(broker, queue)


def _still_leased(queue: Queue, places: list[int]) -> Array:
    """Of these the ones that are: an administrator may have removed some meanwhile."""
    kept = []
    for seq in places:
        page = queue.page(seq >> queue.bits)
        if page is not None and page.state[seq & queue.mask] == LEASED:
            kept.append(seq)
    return np.array(kept, np.int64)


def _return(
    broker: Broker, queue: Queue, link: Link, lane: int, places: list[int], reason: str,
    endpoint: str, progress: bool,
) -> None:  # fmt: skip
    """A lane's messages come back, the first of them after a while."""
    back = _still_leased(queue, places)
    if not len(back):
        return
    destination, _ = _beside(queue, int(back[0]))
    held = holds.hold(broker, queue, link, lane, destination, reason, endpoint, progress)
    ttl_ends = broker.spool.gather(queue.gather(back, "id"), "ttl_ends")
    _set_expiry(queue, back, ttl_ends.astype(np.int64))
    apply(
        broker, queue, back[:1], Event.HOLD, subscription=SUBSCRIPTION, reason=reason,
        until=broker.now + held_ms(held),
    )  # fmt: skip
    apply(broker, queue, back[1:], Event.HAND_BACK, subscription=SUBSCRIPTION)
