"""Invariants of a broker, true after every step. The check reads everything, so it is for tests and
for an operator who suspects a fault.

Each message is in exactly one state per queue. Counts equal the sums over the rows. Spool bytes
equal the sum of what is stored. Counters add up. Nothing behind a waiting barrier is leased. Every
ready row can be found by the consumers that may get it. Nothing was delivered after its time (X1).
"""

from __future__ import annotations

from collections import Counter

from ..protocol.outputs import Deliveries
from .phases.alerts import is_over, level_of
from .queue.broker import Broker
from .queue.consumers import Consumers
from .queue.queue import Queue
from .queue.ready import is_fresh
from .queue.table import ENDINGS
from .rules.active_set import first_inactive
from .storage.row import DELAYED, LEASED, MOVING, NEVER, READY, Row
from .storage.segments import NO_FILTER


def check(broker: Broker) -> None:
    """Raises AssertionError that names the broken invariant."""
    matches = Counter[int]()
    sizes: dict[int, tuple[int, int]] = {}  # by id: the VPN, the size
    for queue in broker.queues.values():
        rows = _rows(queue)
        _check_queue(broker, queue, rows)
        for row in rows:
            matches[row.stored] += 1
            sizes[row.stored] = queue.header.vpn_number, row.size
    _check_spool(broker, matches, sizes)
    leased = sum(queue.header.leased for queue in broker.queues.values())
    assert broker.unacked == leased, f"delivered and unacked: {broker.unacked}, leased {leased}"
    assert set(broker.header.waiting) <= set(broker.queues), "a deleted queue waits for acks"
    full = broker.header.unserved or broker.unacked >= broker.header.system.max_delivered_unacked
    assert full or not broker.header.waiting, f"these need not wait: {broker.header.waiting}"
    _check_alerts(broker)
    for sent in broker.outputs:
        if isinstance(sent, Deliveries) and not sent.again:
            late = [end for end in sent.expires if 0 < end <= broker.now]
            assert not late, f"{sent.queue}: delivered at {broker.now}, but expired at {late}"


def _rows(queue: Queue) -> list[Row]:
    rows = list(queue.live.values())
    for runs in (queue.cold, queue.later):
        found = [row for segment in runs.segments() for row in runs.read(segment)]
        assert len(found) == runs.rows, f"{queue.definition.name}: {runs.rows} cold rows"
        state = READY if runs is queue.cold else DELAYED
        assert all(row.state == state for row in found), f"{queue.definition.name}: a cold state"
        rows += found
    return rows


def _check_queue(broker: Broker, queue: Queue, rows: list[Row]) -> None:
    header, name = queue.header, queue.definition.name
    states = [row.state for row in rows]
    assert len({row.id for row in rows}) == len(rows), f"{name}: a message is in it twice"
    sums = {
        "depth": len(rows),
        "leased": states.count(LEASED) + states.count(MOVING),
        "delayed": states.count(DELAYED),
        "bytes": sum(row.size for row in rows),
    }
    noted = {fact: getattr(header, fact) for fact in sums}
    assert noted == sums, f"{name}: {noted}, but its rows are {sums}"
    endings = sum(header.counters.get(ending, 0) for ending in ENDINGS)
    spooled = header.counters.get("spooled", 0)
    assert spooled == header.depth + endings, f"{name}: {spooled} spooled, {endings} gone"
    _check_leases(queue, rows)
    _check_order(queue)
    _check_consumers(queue)
    _check_deadlines(queue)
    if not queue.definition.max_spool_usage:  # S10
        assert header.depth - states.count(MOVING) < 2, f"{name}: quota 0 keeps the last message"
    if broker.header.waiting.get(queue.number):
        assert not header.deleted, f"{name}: a deleted queue waits"


def _check_leases(queue: Queue, rows: list[Row]) -> None:
    header, name = queue.header, queue.definition.name
    held: dict[int, set[int]] = {}
    for row in rows:
        if row.state in (LEASED, MOVING):
            held.setdefault(row.holder, set()).add(row.id)
        else:
            assert not row.holder, f"{name}: {row.id} has a holder but no lease"
        if header.barriers and row.state == LEASED:
            first = next(iter(header.barriers))
            assert row.generation <= first, f"{name}: {row.id} was delivered past a barrier"
    numbers = {s.number: s for s in header.subscriptions}
    assert list(numbers) == sorted(numbers), f"{name}: subscriptions are not in order"
    assert set(held) <= set(numbers), f"{name}: leased to an unknown subscription"
    for number, subscription in numbers.items():
        own = held.get(number, set())
        assert subscription.held == len(own), f"{name}: {subscription.id} holds {len(own)}"
        assert set(queue.leases.get(number, {})) == own, f"{name}: leases of {subscription.id}"
    if header.generations:
        generations = Counter(row.generation for row in rows)
        assert header.generations == generations, f"{name}: {header.generations} {generations}"
    barriers = {row.generation: row.id for row in rows if row.barrier}
    assert header.barriers == barriers, f"{name}: barriers"


def _check_consumers(queue: Queue) -> None:
    """The live facts about the subscriptions are those that a loaded broker would compute."""
    kept, made = queue.consumers, Consumers(queue.header.subscriptions)
    assert (kept.by_id, kept.by_number, kept.others) == (made.by_id, made.by_number, made.others)
    assert kept.again_at() == made.again_at(), f"{queue.definition.name}: sent again too late"
    d = queue.definition
    assert list(kept.spare(d).items()) == list(made.spare(d).items()), f"{d.name}: room by filter"
    orders = [one.order(queue.definition).kinds for one in (kept, made)]
    old, new = (
        {key: (kind.room, kind.numbers, [at[:2] for at in kind.ranked]) for key, kind in o.items()}
        for o in orders
    )
    assert old == new, f"{queue.definition.name}: the consumers' order is not up to date"


def _check_order(queue: Queue) -> None:
    """Every ready row is in the heaps; of a lane only the next one is."""
    name, ready = queue.definition.name, queue.ready
    entries = set(ready.heap)
    lanes: dict[int, list[Row]] = {}
    for row in queue.live.values():
        if row.lane and not row.barrier:
            lanes.setdefault(row.lane, []).append(row)
        elif row.state == READY and not row.barrier:
            assert (row.key, row.id) in entries, f"{name}: {row.id} is ready, but in no heap"
    for lane, members in lanes.items():  # O4
        first = min(members, key=lambda row: (is_fresh(row), row.key))
        parked = ready.lanes[lane].parked
        if parked and is_fresh(first) and parked[0][0] < first.key:
            continue
        assert ready.lanes[lane].first(queue.live) is first, f"{name}: next of lane {lane}"
        if first.state == READY:
            assert (first.key, first.id) in entries, f"{name}: {first.id} is next in its lane"
        leased = [row for row in members if row.state == LEASED]
        assert len(leased) <= 1, f"{name}: {len(leased)} messages of one key are leased"
    waiting = {number for number, lane in ready.lanes.items() if lane.parked}
    assert set(ready.lanes) == set(lanes) | waiting, f"{name}: lanes"
    for segment in queue.cold.segments():
        for row in queue.cold.read(segment) if NO_FILTER in segment.looked else ():
            segments = [at for _, at in ready.lanes[row.lane].parked]
            assert segment.number in segments, f"{name}: {row.id} waits in no parked segment"
    for view in ready.views.values():
        seen = {entry[1] for entry in (*view.unseen, *view.matched, *view.held_back)}
        for row in queue.live.values():
            if row.state == READY and not row.barrier and ready.is_next(row):
                is_listed = row.id in seen or view.seen.get(row.id) is False
                assert is_listed, f"{name}: filter {view.text!r} has no entry for {row.id}"
    end = first_inactive(queue)
    if end is not None:
        active = sum(row.key < end for row in _rows(queue))
        most = queue.definition.target_queue_depth or 0
        fewer = queue.later.rows and active < most  # see `first_inactive`
        assert active == most or fewer, f"{name}: {active} are active"


def _check_deadlines(queue: Queue) -> None:
    """Every deadline of a live row is in the heap."""
    watched = set(queue.deadlines)
    for row in queue.live.values():
        for at in (row.expires, row.until) if row.state != MOVING else ():
            assert at == NEVER or (at, row.id) in watched, (
                f"{queue.definition.name}: {row.id} has a deadline at {at} that is in no heap"
            )


def _check_spool(
    broker: Broker, matches: dict[int, int], sizes: dict[int, tuple[int, int]]
) -> None:
    spool = broker.spool
    for number, n in matches.items():
        assert spool.matches(number) == n, f"{number} has {n} matches, not {spool.matches(number)}"
    assert spool.messages == len(matches), f"spool: {spool.messages} messages, {len(matches)} live"
    total = sum(size for _, size in sizes.values())
    assert spool.bytes == total, f"spool: {spool.bytes} bytes, messages hold {total}"
    of_vpns = Counter[int]()
    for vpn, size in sizes.values():
        of_vpns[vpn] += size
    counted = {vpn: size for vpn, size in spool.vpn_bytes.items() if size}
    assert counted == {vpn: size for vpn, size in of_vpns.items() if size}, "spool: bytes of VPNs"


def _check_alerts(broker: Broker) -> None:
    """An alert is set exactly if its level is over its threshold (S9)."""
    header, system = broker.header, broker.header.system

    def check(name: str, there: bool, level: int, limit: int, high: float, clear: float) -> None:
        assert is_over(level, limit, high, clear, there) == there, f"alert {name}: {level}/{limit}"

    for queue in broker.queues.values():
        if queue.header.deleted or queue.header.faulted:
            continue
        level, limit, _, _ = level_of(queue)
        d = queue.definition
        high, clear = d.spool_usage_high_percent, d.spool_usage_clear_percent
        check(d.name, queue.header.usage_high, level, limit, high, clear)
        flows = {s.id: s.held for s in queue.header.subscriptions if s.broker is None}
        high, clear = d.delivered_unacked_high_percent, d.delivered_unacked_clear_percent
        for flow in flows:
            is_set = flow in queue.header.flows_high
            check(flow, is_set, flows[flow], d.max_delivered_unacked_per_flow, high, clear)
        assert set(queue.header.flows_high) <= set(flows), f"alert of a flow that ended: {d.name}"
    for what, level, limit in (
        ("spool_usage", broker.spool.bytes, system.max_spool_usage),
        ("spool_files", broker.spool.files_in_use(), system.max_spool_files),
        ("delivered_unacked", broker.unacked, system.max_delivered_unacked),
    ):
        high = getattr(system, f"{what}_high_percent")
        clear = getattr(system, f"{what}_clear_percent")
        check(what, what in header.alerts, level, limit, high, clear)
