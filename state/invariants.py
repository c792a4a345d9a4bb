"""What must hold of the whole state after every step. Reads everything: for tests, and for an
operator who wants to be sure.

Each message is in exactly one state per queue; counts in headers are the sums of the rows; leases
stay within backlog limits; spool bytes are the sum of what is stored; counters add up; nothing
behind a waiting barrier is leased; the active set is as large as it may be and first in order.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from .bridges.endpoint import is_endpoint
from .broker import Broker, _decoder
from .commands.topic_subscriptions import topics_of
from .limits import Limits
from .mesh import bundles
from .message.pages import QueuePage
from .message.table import DELAYED, ENDINGS, GONE, LEASED, MOVING, READY
from .phases.alerts import is_over, level_of
from .queue import Queue
from .rules.active_set import active_rows, first_inactive
from .rules.filters import matching
from .rules.order import barrier_key, generation_of, seq_of
from .storage import NEVER, PAST, DictStore, MessagePage


def check(store: DictStore, now: int, limits: Limits = Limits()) -> None:  # noqa: B008 (frozen)
    """Raises AssertionError naming what does not hold. limits: those of the steps before."""
    data = store.get("broker")
    if data is None:
        return
    header = _decoder.decode(data)
    broker = Broker(store, header, now, limits)
    queues = {}
    for vpn in header.vpns:
        for name in broker.queue_names(vpn):
            queue = broker.find(vpn, name)
            assert queue is not None, f"queue {name} is named, but has no header"
            queues[queue.number] = queue
            assert not queue.header.deleted, f"queue {name} is deleted, but named"
    for number in header.pending:
        queue = broker.queue(number)
        assert queue is not None, f"queue {number} has commands that wait, but is gone"
        queues.setdefault(number, queue)
    for queue in queues.values():
        _check_queue(broker, queue)
    _check_spool(store, broker, queues)
    _check_kept(store, broker, queues)
    _check_topics(store, broker, queues)
    leased = sum(queue.header.leased for queue in queues.values())
    assert header.unacked == leased, f"delivered and unacked: {header.unacked}, leased {leased}"
    assert set(header.waiting) <= set(queues), "a deleted queue waits for acks"
    full = header.unserved or header.unacked >= header.system.max_delivered_unacked
    assert full or not header.waiting, f"there is room for what waits: {header.waiting}"
    _check_alerts(broker, queues)


def _check_queue(broker: Broker, queue: Queue) -> None:
    header, name = queue.header, queue.definition.name
    states: dict[int, int] = {}
    size, held = 0, {s.number: 0 for s in header.subscriptions}
    ready_seqs: set[int] = set()
    barriers: list[int] = []
    first_barrier = queue.first_barrier()
    fence = None if first_barrier is None else seq_of(first_barrier)
    lanes: dict[int, list[tuple[int, ...]]] = {}
    for number in list(queue.directory.live()):
        page = queue.page(number)
        assert page is not None, f"{name}: page {number} is missing"
        live = np.flatnonzero(page.state[: page.used] != GONE)
        size += int(page.size[live].sum(dtype=np.int64))
        for row in live.tolist():
            state = int(page.state[row])
            states[state] = states.get(state, 0) + 1
            seq = (number << queue.bits) + row
            if page.barrier[row]:
                barriers.append(barrier_key(seq, int(page.generation[row])))
            elif page.lane[row]:
                lanes.setdefault(int(page.lane[row]), []).append(
                    (state == READY and not page.deliveries[row], *_order(page, row, seq), state)
                )
            elif state == READY:
                ready_seqs.add(seq)
            if state == LEASED:
                holder = int(page.holder[row])
                if not is_endpoint(name):  # what is on its way over a bridge has no subscription
                    assert holder in held, f"{name}: place {seq} is leased to nobody known"
                    held[holder] += 1
                if first_barrier is not None:
                    passed = int(page.generation[row]) > generation_of(first_barrier)
                    assert not passed, f"{name}: {seq} went out past barrier {fence}"
            elif state == MOVING:
                assert page.holder[row] > 0, f"{name}: place {seq} is on its way to nobody"
            else:
                assert page.holder[row] == 0, f"{name}: place {seq} has a holder, but no lease"
    for lane, members in lanes.items():  # O4
        *_, seq, state = min(members)
        assert queue.lanes.next_of(lane) == seq, f"{name}: place {seq} is next in its lane"
        ready_seqs.update([seq] if state == READY else [])
        leased = [m for m in members if m[-1] == LEASED]
        alone = len(leased) <= 1 or is_endpoint(name)
        assert alone, f"{name}: {len(leased)} messages of one key are leased"
    assert len(queue.lanes) == sum(map(len, lanes.values())), f"{name}: lanes"
    assert header.keyed or not lanes, f"{name}: lanes that the header does not know"
    assert header.depth == sum(states.values()), f"{name}: depth"
    assert header.leased == states.get(LEASED, 0), f"{name}: leased"
    assert header.delayed == states.get(DELAYED, 0), f"{name}: delayed"
    assert header.moving == states.get(MOVING, 0), f"{name}: moving"
    assert header.bytes == size, f"{name}: spool bytes {header.bytes}, rows hold {size}"
    assert list(queue.barriers.scan()) == sorted(barriers), f"{name}: barriers that wait"
    keys = list(queue.ready.scan())
    assert keys == sorted(keys), f"{name}: the ready index is out of order"
    index = [seq_of(k) for k in keys]
    assert keys == queue.keys(np.array(index, np.int64)), f"{name}: keys"
    assert len(index) == len(set(index)), f"{name}: a place stands twice in the ready index"
    assert set(index) == ready_seqs, f"{name}: ready index {sorted(set(index) ^ ready_seqs)[:5]}"
    _check_aside(queue, set(index))
    keeps_last = queue.definition.max_spool_usage == 0
    there = header.depth - header.moving
    assert not keeps_last or there <= 1, f"{name}: quota 0 holds {there}"
    _check_filters(broker, queue, keys)
    _check_early(queue)
    _check_limits(queue, held)
    _check_active(queue)
    _check_counters(queue)


def _check_aside(queue: Queue, ready: set[int]) -> None:
    """The ready index and what stands aside are all that is stored, where order is not by place."""
    header, name = queue.header, queue.definition.name
    stored = [(p.base + int(row)) for p, rows in queue.live_rows() for row in rows]
    wanted = [s for s in stored if header.ordered and s >= header.ordered_from and s not in ready]
    assert list(queue.aside.scan()) == queue.keys(np.array(wanted, np.int64)), f"{name}: aside"


def _order(page: QueuePage, row: int, seq: int) -> tuple[int, int, int]:
    return int(page.generation[row]), -int(page.priority[row]), seq


def _check_filters(broker: Broker, queue: Queue, keys: list[int]) -> None:
    """The index of a filter holds what it lets through of all it has looked at (F5)."""
    texts = {s.filter for s in queue.header.subscriptions if s.filter}
    texts |= {text for one in queue.header.wanted.values() for text in one.filters if text}
    assert set(queue.header.filters) <= texts, f"{queue.definition.name}: filters of nobody"
    for one in queue.filters.all():
        passed = [k for k in keys if k < one.cursor]
        seqs = np.array([seq_of(k) for k in passed], np.int64)
        fits = matching(broker, queue, seqs, one.text)
        wanted = [k for k, yes in zip(passed, fits, strict=True) if yes]
        unseen = set(one.unseen.scan())
        assert unseen <= set(passed), f"{queue.definition.name}: unseen by {one.text}"
        wanted = [k for k in wanted if k not in unseen]
        assert list(one.index.scan()) == wanted, f"{queue.definition.name}: filter {one.text}"


def _check_early(queue: Queue) -> None:
    """No id waits twice for its message, and each range is found by its time (L9)."""
    name, ranges = queue.definition.name, queue.early.overview()
    for one, other in pairwise(ranges):
        assert one[1] < other[0], f"{name}: acks that wait: {one} and {other}"
    by_end = sorted([one.first, one.last, one.until] for one in queue.early.over(NEVER, 1 << 62))
    assert by_end == ranges, f"{name}: acks that wait, by their time"


def _check_active(queue: Queue) -> None:
    """R5. What is leased may stand behind the active set when the limit was lowered (Q9); that
    nothing behind it goes out is asserted where leases are given."""
    limit, name = queue.definition.target_queue_depth, queue.definition.name
    active = sum(len(rows) for _, rows in active_rows(queue))
    depth = queue.header.depth
    assert active == min(depth, limit or depth), f"{name}: {active} active of {depth}"
    end = first_inactive(queue)
    assert (end is None) == (active == depth), f"{name}: the active set ends at {end}"


def _check_limits(queue: Queue, held: dict[int, int]) -> None:
    """What subscriptions hold. A limit may be lowered below what is held (B3, Q9), so that leases
    stay within limits is asserted where they are given (`delivery`)."""
    header, definition = queue.header, queue.definition
    for s in header.subscriptions:
        last = [e[0] for e in s.unconfirmed]
        assert last == sorted(set(last)), f"{definition.name}: {s.id}: entries {last}"
        assert not last or (s.transport_acks and s.base <= last[0] <= last[-1] == s.sent), (
            f"{definition.name}: {s.id}: entries {last} of a flow from {s.base} to {s.sent}"
        )
        assert s.held == held[s.number], f"{definition.name}: {s.id} holds {held[s.number]}"


def _check_counters(queue: Queue) -> None:
    header = queue.header
    n = header.counters.get
    gone = sum(n(name, 0) for name in ENDINGS)
    assert n("spooled", 0) == header.depth + gone, (
        f"{queue.definition.name}: spooled {n('spooled', 0)} != depth {header.depth} + gone {gone}"
    )
    dead = n("expired", 0) + n("consumer_rejected", 0)
    assert n("dead_lettered", 0) <= dead, f"{queue.definition.name}: dead messages"


def _check_spool(store: DictStore, broker: Broker, queues: dict[int, Queue]) -> None:
    spool = broker.header.spool
    size = messages = 0
    matches: dict[int, int] = {}
    for key, data in store.pages.items():
        if not key.startswith("m/"):
            continue
        page = MessagePage.unpack(int(key[2:]), data, broker.limits.page_bits)
        for row in np.flatnonzero(page.queue[: page.used]).tolist():
            messages += 1
            size += int(page.size[row])
            counter = page.base + row
            for number, seq in [(page.queue[row], page.seq[row]), *page.extras.get(row, [])]:
                if seq == PAST:
                    continue
                queue = queues.get(int(number))
                assert queue is not None, f"message {counter}: match of a queue that is gone"
                matches[queue.number] = matches.get(queue.number, 0) + 1
                where, at = queue.row(int(seq))
                assert where.state[at] != GONE, f"message {counter}: its place is empty"
                assert int(where.id[at]) & (1 << 48) - 1 == counter, f"message {counter}: place"
            block = store.get(f"b/{page.block[row]}")
            assert block is not None or page.length[row] == 0, f"message {counter}: block is gone"
    kept = sum(broker.header.undecided.kept.values())
    stored = spool.bytes - kept
    assert stored == size, f"spool: {stored} bytes counted, {size} stored"
    assert spool.messages == messages, f"spool: {spool.messages} counted, {messages} stored"
    assert sum(spool.vpn_bytes.values()) - kept == size, "spool: bytes of the VPNs"
    for number, queue in queues.items():
        found = matches.get(number, 0)
        assert queue.header.depth == found, f"{queue.definition.name}: {found} matches"
    _check_foreign(store, broker)
    _check_files(store, broker)


def _check_kept(store: DictStore, broker: Broker, queues: dict[int, Queue]) -> None:
    """What brokers have not agreed on counts as stored, and nothing else does (S5)."""
    found: dict[int, list[int]] = {}
    rows = 0
    for key in store.pages:
        kind, _, rest = key.partition("/")
        if kind == "offer":
            bundle = bundles.bundle_of(broker, int(rest))
            rows += len(bundle.seqs)
            kept = bundle.kept
        elif kind == "offered" and "/" in rest:
            entry, number = map(int, rest.split("/"))
            found_kept = bundles.offered(broker, entry, number)
            assert found_kept is not None
            assert number in bundles.offered_by(broker, entry)
            kept = found_kept
        else:
            continue
        for row, matches in kept.matches.items():
            for match in matches:
                of_queue = found.setdefault(match[0], [0, 0])
                of_queue[0] += 1
                of_queue[1] += kept.sizes[row]
    for number, queue in queues.items():
        kept_here = [queue.header.kept, queue.header.kept_bytes]
        wanted = found.get(number, [0, 0])
        assert kept_here == wanted, f"{queue.definition.name}: {kept_here} kept, not {wanted}"
    undecided = broker.header.undecided.rows
    assert undecided == rows, f"{undecided} messages undecided, {rows} are kept"


def _check_foreign(store: DictStore, broker: Broker) -> None:
    """Each message that another broker took in is found by its id."""
    rows = []
    for key, data in store.pages.items() if broker.spool.foreign.pages else ():
        if key.startswith("m/"):
            page = MessagePage.unpack(int(key[2:]), data, broker.limits.page_bits)
            live = np.flatnonzero((page.queue[: page.used] > 0) & (page.origin[: page.used] > 0))
            rows += [(int(page.origin[row]), page.base + row) for row in live.tolist()]
    found = broker.spool.foreign.within(0, (1 << 64) - 1, len(rows) + 1)
    assert found == sorted(rows), f"ids of others: {found} are known, {sorted(rows)} are there"


def _check_files(store: DictStore, broker: Broker) -> None:
    """Per file what lives is the sum of its messages, and its blocks are what is stored (S8)."""
    spool, files = broker.header.spool, broker.spool.overview()["by_file"]
    live: dict[int, list[int]] = {}
    for key, data in store.pages.items():
        if not key.startswith("m/"):
            continue
        page = MessagePage.unpack(int(key[2:]), data, broker.limits.page_bits)
        rows = np.flatnonzero(page.queue[: page.used])
        for file, span in zip(page.file[rows].tolist(), page.spans(rows).tolist(), strict=True):
            sums = live.setdefault(file, [0, 0])
            sums[0] += 1
            sums[1] += span
    counted = {n: [f["messages"], f["live_bytes"]] for n, f in files.items() if f["messages"]}
    assert counted == live, f"spool files: {counted} counted, {live} in them"
    assert spool.files == len(counted), f"spool files: {spool.files} counted, {len(counted)} in use"
    assert spool.live_bytes == sum(n for _, n in counted.values()), "spool: live bytes"
    stored = {int(k[2:]): len(d) for k, d in store.pages.items() if k.startswith("b/")}
    known = {
        block for f in files.values()
        for block in range(f["first_block"], f["first_block"] + f["blocks"])
    }  # fmt: skip
    assert set(stored) <= known, f"spool blocks of no file: {sorted(set(stored) - known)[:5]}"
    assert spool.stored_bytes >= sum(stored.values()), "spool: stored bytes"


def _check_topics(store: DictStore, broker: Broker, queues: dict[int, Queue]) -> None:
    """Each topic subscription stands once with its queue and once where topics are looked up."""
    of_queues = {
        (queue.definition.vpn, number, pattern)
        for number, queue in queues.items()
        for pattern in topics_of(broker, queue)
    }
    looked_up = [
        (key.split("/")[1], number, pattern)
        for key in store.pages if key.startswith("t/")
        for pattern, numbers in broker.values.read(key).items() for number in numbers
    ]  # fmt: skip
    assert sorted(of_queues) == sorted(looked_up), "topic subscriptions"
    counted = sum(sum(counts) for counts in broker.header.topics.values())
    assert counted == len(looked_up), f"topic subscriptions: {counted} counted"


def _check_alerts(broker: Broker, queues: dict[int, Queue]) -> None:
    """An alert is set exactly where its level says so (S9)."""
    header, system = broker.header, broker.header.system

    def check(name: str, there: bool, level: int, limit: int, high: float, clear: float) -> None:
        assert is_over(level, limit, high, clear, there) == there, f"alert {name}: {level}/{limit}"

    for queue in queues.values():
        level, limit, _, _ = level_of(queue)
        d = queue.definition
        high, clear = d.spool_usage_high_percent, d.spool_usage_clear_percent
        check(d.name, queue.header.usage_high, level, limit, high, clear)
        flows = {s.id for s in queue.header.subscriptions}
        assert set(queue.header.flows_high) <= flows, f"alert of a flow that ended: {d.name}"
    for what, level, limit in (
        ("spool_usage", header.spool.bytes, system.max_spool_usage),
        ("spool_files", header.spool.files, system.max_spool_files),
        ("delivered_unacked", header.unacked, system.max_delivered_unacked),
    ):
        high = getattr(system, f"{what}_high_percent")
        clear = getattr(system, f"{what}_clear_percent")
        check(what, what in header.alerts, level, limit, high, clear)
