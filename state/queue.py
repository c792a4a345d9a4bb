"""One queue during one step: its header, its rows, its ready index, its page directory.

A queue's messages stand in rows in the order in which they were taken in (O1): row *seq* is the
place in the queue. Rows stand in *queue pages* of 1,024, so a place finds its page by a shift.
This file moves rows between states and keeps the counts true; what may happen when is decided
elsewhere (`delivery`, `settling`, `expiry`, `admission`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from ..definitions import QueueDefinition
from .columns import NEVER, PAGE_BITS, PAGE_ROWS, ROW_MASK, Array, ColumnPage, by_page
from .directory import Directory
from .lifecycle import DELAYED, GONE, LEASED, READY
from .ready import SEQ_BITS, SEQ_MASK, ReadyIndex, key_of
from .store import Store


class QueuePage(ColumnPage):
    """One message of the queue per row. `extras[row]`: what a dead message carries (X5)."""

    FIELDS = (
        ("id", "<u8", 0),
        ("state", "|u1", GONE),
        ("barrier", "|u1", 0),
        ("priority", "<u8", 0),  # by the queue's expression (O2)
        ("size", "<u4", 0),
        ("entered", "<i8", 0),  # epoch ms
        ("expires", "<i8", NEVER),
        ("until", "<i8", NEVER),  # leased: end of the lease; delayed: when ready
        ("holder", "<u4", 0),  # number of the subscription that leases it
        ("deliveries", "<u4", 0),
        ("cancels", "<u4", 0),
        ("delivery", "<u8", 0),  # number of the newest delivery: what names it on the wire
    )
    __slots__ = tuple(name for name, _, _ in FIELDS)
    id: Array
    state: Array
    barrier: Array
    priority: Array
    size: Array
    entered: Array
    expires: Array
    until: Array
    holder: Array
    deliveries: Array
    cancels: Array
    delivery: Array


class Subscription(msgspec.Struct):
    """One consumer's flow bound to the queue. What stands above `max_backlog` never changes."""

    id: str
    number: int  # within the queue; the order of subscribing
    name: str
    session: str
    topic: str
    partition: int
    framing: str
    removes_on_send: bool
    filter: str | None
    max_backlog: int | None  # its own; changed by set_backlog (B3)
    held: int = 0  # leased to it now
    priority: int = 0  # who is asked first under `fast` (F1)
    # Of its flow (`transport`): who does not want transport acks leaves these as they are.
    transport_acks: bool = False
    sent: int = 0  # number of the last message sent
    base: int = 1  # numbers below are confirmed, or were sent again under others
    unconfirmed: list[list[int]] = []  # per step [last number, sent at, first, last place]
    patience: int = 2_000  # ms that the oldest entry waits

    def again_at(self) -> int:
        """When what is not confirmed is sent again, epoch ms (C2)."""
        if not self.unconfirmed or not self.held:
            return NEVER
        return self.unconfirmed[0][1] + self.patience


class QueueHeader(msgspec.Struct):
    """What changes in almost every step, and what is needed in every step, of one queue."""

    number: int
    vpn_number: int
    definition: QueueDefinition
    created: int
    next_seq: int = 0
    next_subscription: int = 1
    next_delivery: int = 1
    depth: int = 0
    leased: int = 0
    delayed: int = 0
    bytes: int = 0
    counters: dict[str, int] = {}
    rejected: dict[str, int] = {}
    discarded: dict[str, int] = {}  # on entry, by reason (S4)
    subscriptions: list[Subscription] = []
    served: int = 0  # number of the subscription served last (F2)
    barriers: list[int] = []  # places of barriers that wait, ascending (O3)
    deferred: list[list[int]] = []  # [first id, last id, expires] of acks that came early (L9)
    cursors: dict[str, list[int]] = {}  # per filter: [high, low] key up to which none matches (F5)
    rechecks: dict[str, list[list[int]]] = {}  # keys that came back before a cursor
    scan_again: bool = False  # a filter's scan stopped at its budget
    lines: dict[int, list[int]] = {}
    leaves: list[list[int]] = []
    next_leaf: int = 0
    usage_high: bool = False  # the alert of the spool's usage is set (S9)
    flows_high: list[str] = []  # subscriptions whose alert is set (B4)
    marks: list[list[int]] = []  # earlier levels, for their rates
    ingress: bool = True
    egress: bool = True


COUNTERS = (
    "spooled", "delivered", "redelivered", "acknowledged", "canceled", "returned", "lease_ended",
    "expired", "dead_lettered", "discarded", "consumer_rejected", "purged", "replaced", "redriven",
    "ack_ignored", "retransmitted",
)  # fmt: skip


@dataclass(slots=True)
class Arrivals:
    """Messages that enter the queue in this step, in columns of one length."""

    ids: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    expires: list[int] = field(default_factory=list)
    until: list[int] = field(default_factory=list)  # NEVER: ready now; else delayed till then
    barriers: list[int] = field(default_factory=list)
    dead: dict[int, dict[str, Any]] = field(default_factory=dict)
    bytes: int = 0


_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(QueueHeader)


class Queue:
    """A queue during a step. Rows are addressed by place (*seq*)."""

    def __init__(self, store: Store, header: QueueHeader) -> None:
        self._store = store
        self.header = header
        self.number = header.number
        self.definition = header.definition
        self.directory = Directory(store, f"d/{self.number}/", header.lines)
        self.ready = ReadyIndex(
            store, f"o/{self.number}/", header.leaves, header.next_leaf
        )
        self._pages: dict[int, QueuePage] = {}
        self.arrivals = Arrivals()
        self.leased_before = header.leased
        self.by_priority = header.definition.priority is not None
        self.dispatch_wanted = False
        self.deleted = False

    # ------------------------------------------------------------ load and save

    @classmethod
    def load(cls, store: Store, number: int) -> Queue | None:
        """The queue with this number, or None."""
        data = store.get(f"q/{number}")
        return cls(store, _decoder.decode(data)) if data else None

    def flush(self) -> None:
        """Write what changed; the header always."""
        header = self.header
        for number, page in sorted(self._pages.items()):
            if page.dirty:
                self._summarise(page)
                tail = number >= header.next_seq >> PAGE_BITS
                if tail or page.state[: page.used].any():
                    self._store.put(f"p/{self.number}/{number}", page.pack())
                else:
                    self._store.delete(f"p/{self.number}/{number}")
        self.directory.flush()
        self.ready.flush()
        header.leaves = self.ready.directory()
        header.next_leaf = self.ready.pages
        self._store.put(f"q/{self.number}", _encode(header))

    def drop(self) -> None:
        """Delete every page of the queue."""
        for number in list(self.directory.live()):
            self._store.delete(f"p/{self.number}/{number}")
        self._store.delete(f"p/{self.number}/{self.header.next_seq >> PAGE_BITS}")
        self.directory.drop()
        self.ready.drop()
        self.ready.flush()
        self._store.delete(f"q/{self.number}")
        self.deleted = True

    def page(self, number: int, create: bool = False) -> QueuePage | None:
        """A queue page, or None if all its messages are gone."""
        page = self._pages.get(number)
        if page is None:
            data = self._store.get(f"p/{self.number}/{number}")
            if data:
                page = self._pages[number] = QueuePage.unpack(number, data)
            elif create:
                page = self._pages[number] = QueuePage(number)
        return page

    def rows(self, seqs: Array) -> list[tuple[QueuePage, Array, Array | slice]]:
        """The rows of places, grouped by page; places whose page is gone are left out."""
        return [
            (page, rows, where)
            for number, rows, where in by_page(np.asarray(seqs, np.int64))
            if (page := self.page(number)) is not None
        ]

    def row(self, seq: int) -> tuple[QueuePage, int]:
        """The page and row of one place that is known to be there."""
        page = self.page(seq >> PAGE_BITS)
        assert page is not None, f"page of place {seq} is gone"
        return page, seq & ROW_MASK

    def gather(self, seqs: Array, name: str) -> Array:
        """One column for many places."""
        dtype = next(d for n, d, _ in QueuePage.FIELDS if n == name)
        out = np.zeros(len(seqs), dtype=dtype)
        for page, rows, where in self.rows(seqs):
            out[where] = getattr(page, name)[rows]
        return out

    def _summarise(self, page: QueuePage) -> None:
        states = page.state[: page.used]
        leased = int((states == LEASED).sum())
        live = int((states != GONE).sum())
        deadline = NEVER
        if live:
            alive = states != GONE
            expires = page.expires[: page.used]
            deadline = int(np.where(alive, expires, NEVER).min())
            timed = (states == LEASED) | (states == DELAYED)
            if timed.any():
                until = page.until[: page.used]
                deadline = min(deadline, int(np.where(timed, until, NEVER).min()))
        self.directory.update(page.number, live, leased, deadline)

    def settle(self) -> None:
        """Bring the directory up to date with the rows."""
        for page in self._pages.values():
            if page.dirty:
                self._summarise(page)

    def count(self, name: str, n: int = 1) -> None:
        """Add to a counter."""
        counters = self.header.counters
        counters[name] = counters.get(name, 0) + n

    # ------------------------------------------------------------ in

    def next_place(self) -> int:
        """The place that the next arrival gets."""
        return self.header.next_seq + len(self.arrivals.ids)

    def arrive(
        self, first: int, sizes: list[int], priority: int, expires: int, until: int, barrier: bool
    ) -> None:
        """Add arrivals with ids from ``first`` on; they get their rows when they are taken in."""
        arrivals, n = self.arrivals, len(sizes)
        arrivals.ids += range(first, first + n)
        arrivals.sizes += sizes
        arrivals.priorities += [priority] * n
        arrivals.expires += [expires] * n
        arrivals.until += [until] * n
        arrivals.barriers += [int(barrier)] * n
        arrivals.bytes += sum(sizes)

    def take_in(self, now: int) -> None:
        """Give the arrivals of this step their rows."""
        arrivals = self.arrivals
        total = len(arrivals.ids)
        if not total:
            return
        header = self.header
        first = header.next_seq
        states = np.array([READY if u == NEVER else DELAYED for u in arrivals.until], np.uint8)
        done = 0
        while done < total:
            seq = first + done
            row = seq & ROW_MASK
            n = min(PAGE_ROWS - row, total - done)
            page = self.page(seq >> PAGE_BITS, create=True)
            assert page is not None
            rows, part = slice(row, row + n), slice(done, done + n)
            page.id[rows] = arrivals.ids[part]
            page.state[rows] = states[part]
            page.barrier[rows] = arrivals.barriers[part]
            page.priority[rows] = arrivals.priorities[part]
            page.size[rows] = arrivals.sizes[part]
            page.entered[rows] = now
            page.expires[rows] = arrivals.expires[part]
            page.until[rows] = arrivals.until[part]
            page.used = row + n
            page.dirty = True
            done += n
        for at, dead in arrivals.dead.items():
            page, row = self.row(first + at)
            page.extras[row] = dead
        self._index_arrivals(first, states)
        header.next_seq += total
        header.depth += total
        header.delayed += int((states == DELAYED).sum())
        header.bytes += arrivals.bytes
        self.count("spooled", total)
        self.arrivals = Arrivals()
        self.dispatch_wanted = True

    def _index_arrivals(self, first: int, states: Array) -> None:
        arrivals = self.arrivals
        barriers = [first + i for i, b in enumerate(arrivals.barriers) if b]
        self.header.barriers += barriers
        plain = [
            i
            for i, (state, barrier) in enumerate(
                zip(states.tolist(), arrivals.barriers, strict=True)
            )
            if state == READY and not barrier
        ]
        if self.by_priority:
            keys = sorted(key_of(first + i, arrivals.priorities[i]) for i in plain)
            self.ready.add(keys)
            self._recheck(keys)
        elif len(plain) == len(states):
            self.ready.add(list(range(first, first + len(plain))))
        else:
            self.ready.add([first + i for i in plain])

    # ------------------------------------------------------------ between states

    def keys(self, seqs: Array) -> list[int]:
        """The ready keys of places, ascending."""
        if not self.by_priority:
            return sorted(seqs.tolist())
        priorities = self.gather(seqs, "priority").tolist()
        return sorted(
            key_of(seq, p) for seq, p in zip(seqs.tolist(), priorities, strict=True)
        )

    def lease(self, seqs: Array, holders: Array, until: int) -> None:
        """Ready places become leased; they were taken out of the ready index already."""
        numbers = np.arange(len(seqs), dtype=np.uint64) + np.uint64(self.header.next_delivery)
        self.header.next_delivery += len(seqs)
        for page, rows, where in self.rows(seqs):
            page.state[rows] = LEASED
            page.delivery[rows] = numbers[where]
            page.holder[rows] = holders[where]
            page.until[rows] = until
            page.deliveries[rows] += 1
            page.dirty = True
        self.header.leased += len(seqs)

    def unlease(self, page: QueuePage, rows: Array) -> None:
        """Count leased rows as no longer held; their state is set by the caller."""
        for subscription in self.header.subscriptions:
            if subscription.held:
                subscription.held -= int((page.holder[rows] == subscription.number).sum())
        self.header.leased -= len(rows)
        page.holder[rows] = 0

    def put_back(self, page: QueuePage, rows: Array) -> None:
        """Leased or delayed rows (already counted out) become ready, at their old place (L7)."""
        page.state[rows] = READY
        page.until[rows] = NEVER
        page.dirty = True
        seqs = rows.astype(np.int64) + (page.number << PAGE_BITS)
        if self.header.barriers:  # a barrier that was delayed waits on its own
            seqs = seqs[page.barrier[rows] == 0]
        keys = self.keys(seqs)
        self.ready.add(keys)
        self._recheck(keys)
        self.dispatch_wanted = True

    def _recheck(self, keys: list[int]) -> None:
        """Filters whose scan has passed these keys have to look at them."""
        for text, (high, low) in self.header.cursors.items():
            cursor = high << SEQ_BITS | low
            passed = [[k >> SEQ_BITS, k & SEQ_MASK] for k in keys if k < cursor]
            if passed:
                self.header.rechecks[text] = sorted(self.header.rechecks.get(text, []) + passed)

    def delay(self, page: QueuePage, rows: Array, until: int) -> None:
        """Leased rows (already counted out) wait until a time, then become ready (L11)."""
        page.state[rows] = DELAYED
        page.until[rows] = until
        page.dirty = True
        self.header.delayed += len(rows)

    def remove(self, page: QueuePage, rows: Array) -> Array:
        """Rows in any live state are gone; returns their ids."""
        states = page.state[rows]
        held = rows[states == LEASED]
        if len(held):
            self.unlease(page, held)
        self.header.delayed -= int((states == DELAYED).sum())
        waiting = rows[(states == READY) & (page.barrier[rows] == 0)]
        base = page.number << PAGE_BITS
        if len(waiting):
            self.ready.discard(self.keys(waiting.astype(np.int64) + base))
        if self.header.barriers:
            gone = set((rows[page.barrier[rows] == 1].astype(np.int64) + base).tolist())
            if gone:
                self.header.barriers = [b for b in self.header.barriers if b not in gone]
        page.state[rows] = GONE
        page.dirty = True
        self.header.depth -= len(rows)
        self.header.bytes -= int(page.size[rows].sum(dtype=np.int64))
        for row in rows.tolist() if page.extras else ():
            page.extras.pop(row, None)
        self.dispatch_wanted = True
        return page.id[rows]

    # ------------------------------------------------------------ looking

    def subscription(self, name: str) -> Subscription | None:
        """The subscription with this id, or None."""
        return next((s for s in self.header.subscriptions if s.id == name), None)

    def first_live(self) -> int | None:
        """The earliest place that still holds a message."""
        self.settle()
        for number in self.directory.live():
            page = self.page(number)
            assert page is not None
            return (number << PAGE_BITS) + int(np.flatnonzero(page.state[: page.used])[0])
        return None

    def deadline(self) -> int:
        """When the queue next needs a tick, epoch ms."""
        self.settle()
        deferred = min((d[2] for d in self.header.deferred), default=NEVER)
        again = 0 if self.header.scan_again else NEVER
        unheard = min((s.again_at() for s in self.header.subscriptions), default=NEVER)
        return min(self.directory.deadline(), deferred, again, unheard)
