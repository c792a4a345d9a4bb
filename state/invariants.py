"""What must hold of the whole state after every step. Reads everything: for tests, and for an
operator who wants to be sure.

Each message is in exactly one state per queue; counts in headers are the sums of the rows; leases
stay within backlog limits; spool bytes are the sum of what is stored; counters add up; nothing
behind a waiting barrier is leased.
"""

from __future__ import annotations

import numpy as np

from .broker import Broker, _decoder
from .columns import PAGE_BITS
from .lifecycle import DELAYED, GONE, LEASED, READY
from .queue import Queue
from .ready import SEQ_MASK
from .spool import PAST, MessagePage
from .store import DictStore


def check(store: DictStore, now: int) -> None:
    """Raises AssertionError naming what does not hold."""
    data = store.get("broker")
    if data is None:
        return
    header = _decoder.decode(data)
    broker = Broker(store, header, now)
    queues = {}
    for vpn in header.vpns:
        for name in broker.queue_names(vpn):
            queue = broker.find(vpn, name)
            assert queue is not None, f"queue {name} is named, but has no header"
            queues[queue.number] = queue
            _check_queue(queue)
    _check_spool(store, broker, queues)


def _check_queue(queue: Queue) -> None:
    header, name = queue.header, queue.definition.name
    states: dict[int, int] = {}
    size, held = 0, {s.number: 0 for s in header.subscriptions}
    ready_seqs: set[int] = set()
    barriers: list[int] = []
    for number in list(queue.directory.live()):
        page = queue.page(number)
        assert page is not None, f"{name}: page {number} is missing"
        live = np.flatnonzero(page.state[: page.used] != GONE)
        size += int(page.size[live].sum(dtype=np.int64))
        for row in live.tolist():
            state = int(page.state[row])
            states[state] = states.get(state, 0) + 1
            seq = (number << PAGE_BITS) + row
            if page.barrier[row]:
                barriers.append(seq)
            elif state == READY:
                ready_seqs.add(seq)
            if state == LEASED:
                holder = int(page.holder[row])
                assert holder in held, f"{name}: place {seq} is leased to nobody known"
                held[holder] += 1
                fence = header.barriers[0] if header.barriers else None
                assert fence is None or seq < fence, f"{name}: {seq} went out past barrier {fence}"
            else:
                assert page.holder[row] == 0, f"{name}: place {seq} has a holder, but no lease"
    assert header.depth == sum(states.values()), f"{name}: depth"
    assert header.leased == states.get(LEASED, 0), f"{name}: leased"
    assert header.delayed == states.get(DELAYED, 0), f"{name}: delayed"
    assert header.bytes == size, f"{name}: spool bytes {header.bytes}, rows hold {size}"
    assert header.barriers == barriers, f"{name}: barriers {header.barriers} != {barriers}"
    index = [k & SEQ_MASK for k in queue.ready.scan()]
    assert len(index) == len(set(index)), f"{name}: a place stands twice in the ready index"
    assert set(index) == ready_seqs, f"{name}: ready index {sorted(set(index) ^ ready_seqs)[:5]}"
    _check_limits(queue, held)
    _check_counters(queue)


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
    gone = n("acknowledged", 0) + n("expired", 0) + n("consumer_rejected", 0) + n("purged", 0)
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
        page = MessagePage.unpack(int(key[2:]), data)
        for row in np.flatnonzero(page.queue[: page.used]).tolist():
            messages += 1
            size += int(page.size[row])
            counter = (page.number << PAGE_BITS) + row
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
    assert spool.bytes == size, f"spool: {spool.bytes} bytes counted, {size} stored"
    assert spool.messages == messages, f"spool: {spool.messages} counted, {messages} stored"
    assert sum(spool.vpn_bytes.values()) == size, "spool: bytes of the VPNs"
    for number, queue in queues.items():
        found = matches.get(number, 0)
        assert queue.header.depth == found, f"{queue.definition.name}: {found} matches"
    files = sum(
        1 for k, d in store.pages.items() if k.startswith("f/")
        for entry in _files(d) if entry[0]
    )  # fmt: skip
    assert spool.files == files, f"spool files: {spool.files} counted, {files} in use"


def _files(data: bytes) -> list[list[int]]:
    import msgspec

    return list(msgspec.msgpack.decode(data, strict=False).values())
