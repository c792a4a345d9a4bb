"""One queue: its facts, its live rows, and the cold rows behind them (R5, S12).

*Live* rows are in memory: the leased ones, and those to be delivered next, due soon, or just
arrived. If there are more than `Limits.live_rows`, the end of the order is *spilled*: contents go
to blocks, rows to runs. New rows behind spilled ones are cold at once. `cold` has ready rows in
delivery order, `later` has delayed rows by due time. A row is delivered only after all cold rows
before it have become live, so live and cold rows form one order.

An unused queue is not read: its live part is made from its page on first access (`UnreadQueue`).
While a mark has yet to write a queue, its contents are hidden, and the first access writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

import msgspec

from ...definitions import QueueDefinition
from ..limits import PASSED_OVER, Budget, Limits
from ..storage.id_ranges import IdRanges
from ..storage.row import (
    DELAYED,
    IN_MEMORY,
    LOWEST,
    MOVING,
    NEVER,
    READY,
    Row,
    by_arrival,
    by_key,
    by_until,
    follow,
)  # fmt: skip
from ..storage.runs import Runs
from ..storage.segments import NO_FILTER, RunsState, Segment
from ..storage.spool import Spool
from ..storage.store import Store
from .consumers import Consumers
from .header import QueueFacts, QueueHeader, QueuePage, Subscription
from .ready import FilterView, Ready, ViewState

_encode = msgspec.msgpack.encode
_page = msgspec.msgpack.Decoder(QueuePage)
_facts = msgspec.msgpack.Decoder(QueueFacts)
_LAZY = ("header", "consumers", "live", "ready", "deadlines", "leases", "cold", "later", "early")
Put = Callable[[str, bytes], None]  # writes a page of a mark
SKIPPED_MORE = 64  # rows that a view remembers beyond twice as many as are cold


class Queue:
    """A queue of a broker."""

    __slots__ = (
        "_hidden", "_put", "ages", "ages_end", "cold", "consumers", "deadlines", "dirty",
        "dropped", "early", "header", "later", "leases", "limits", "live", "number",
        "plain_match", "program", "program_of", "ready", "spool", "store", "wanted",
    )  # fmt: skip

    header: QueueHeader
    consumers: Consumers  # of the header's subscriptions
    live: dict[int, Row]  # by id
    ready: Ready
    deadlines: list[tuple[int, int]]  # heap of (time, id): expiry, ends of leases and delays
    leases: dict[int, dict[int, Row]]  # by the holder's number, in order of delivery
    cold: Runs  # ready rows in delivery order
    later: Runs  # delayed rows by due time
    early: IdRanges  # acks that came before their messages (L9)
    ages: list[tuple[int, int]]  # heap of (seq, id), for `describe`; later rows are not in it

    def __init__(self, store: Store, spool: Spool, header: QueueHeader, limits: Limits) -> None:
        self.store, self.spool, self.limits = store, spool, limits
        # "header", "consumers" and "live" while a mark has yet to write the queue. Any change
        # accesses one.
        self._hidden: dict[str, Any] = {}
        self._put: Put = store.put
        self.header, self.number = header, header.number
        self.wanted = header.again  # a message may be deliverable since something changed
        self.dirty = True  # it differs from its page
        self.dropped = False
        self.ages, self.ages_end = [], 0
        self.program: Any = None  # its compiled expressions, see `entry_checks`
        self.plain_match: Any = None  # see `entry_checks`
        self.program_of: QueueDefinition | None = None

    @classmethod
    def new(cls, store: Store, spool: Spool, header: QueueHeader, limits: Limits) -> Queue:
        """A new queue."""
        queue = cls(store, spool, header, limits)
        queue._make_live(QueuePage(header, RunsState(), RunsState(), [], []))
        return queue

    @classmethod
    def load(cls, store: Store, spool: Spool, number: int, limits: Limits) -> Queue:
        """The queue with this number; its rows are read when they are needed."""
        data = store.get(f"q/{number}")
        assert data is not None, f"the page of queue {number} is missing"
        queue = UnreadQueue(store, spool, _facts.decode(data).header, limits)
        queue.dirty = False
        return queue

    def _make_live(self, page: QueuePage) -> None:
        number, limits, store = self.number, self.limits, self.store
        settle = self.spool.write_to_blocks
        self.cold = Runs(store, f"c/{number}/", page.cold, limits, by_key, settle)
        self.later = Runs(store, f"d/{number}/", page.later, limits, by_until, settle)
        self.early = IdRanges(page.early)
        self.live = {row.id: row for row in page.rows}
        self.ready = Ready(self.live)
        self.consumers = getattr(self, "consumers", None) or Consumers(self.header.subscriptions)
        self.deadlines = []
        self.leases = {}
        for row in sorted(page.rows, key=lambda row: row.number):
            if row.holder:
                self.leases.setdefault(row.holder, {})[row.id] = row
        self.ready.add(page.rows)
        for row in page.rows:
            self.watch(row)
        for lane, key, segment in page.parked:
            self.ready.park(lane, int(key, 16), segment)
        for view in page.views:
            self.ready.add_view(view)
        self.__class__ = Queue

    @property
    def definition(self) -> QueueDefinition:
        """The queue's present definition."""
        return self.header.definition

    def subscription(self, name: str) -> Subscription | None:
        """The subscription with this id."""
        return self.consumers.by_id.get(name)

    def count(self, name: str, n: int = 1) -> None:
        """Add to a counter."""
        counters = self.header.counters
        counters[name] = counters.get(name, 0) + n

    # ------------------------------------------------------------ time

    def watch(self, row: Row) -> None:
        """Add a live row's deadlines to the heap."""
        deadlines = self.deadlines
        if row.expires != NEVER:
            heappush(deadlines, (row.expires, row.id))
        if row.until != NEVER:
            heappush(deadlines, (row.until, row.id))
        if len(deadlines) > 4 * len(self.live) + 64:
            live = self.live.values()
            both = [(at, one.id) for one in live for at in (one.expires, one.until)]
            self.deadlines = sorted(entry for entry in both if entry[0] != NEVER)

    def due(self, now: int, budget: Budget) -> list[Row]:
        """Rows with a passed deadline, the longest overdue, by arrival; about as many as the budget
        allows. They become live. All due rows of a segment come together, or they would be spilled
        again."""
        found: dict[int, Row] = {}
        while not budget.spent:
            at = self._next_deadline()
            # Of equal times the live one comes first: cold delayed rows have entered later.
            rows = self._due_cold(min(at - 1, now), now, budget)
            if not rows and at <= now:
                rows = [self.live[heappop(self.deadlines)[1]]]
                budget.take(rows[0].id not in found)  # it may be in the heap several times
            if not rows:
                break
            found.update((row.id, row) for row in rows)
        return sorted(found.values(), key=by_arrival)

    def _due_cold(self, since: int, now: int, budget: Budget) -> list[Row]:
        """The due rows of a segment with a deadline not after ``since``; empty if there is none.
        They become live."""
        for runs in (self.cold, self.later):
            if (segment := runs.first_due(since)) is None:
                continue
            rows = runs.read(segment)
            over = [row for row in rows if row.expires <= now or row.until <= now]
            rest = [row for row in rows if row.expires > now and row.until > now]
            budget.take(len(over) + len(rest) // PASSED_OVER)
            is_front = segment.first == runs.first()
            if is_front and (runs is self.later or not self.ready.lanes):
                self.thaw(runs, segment, rows, [])  # the others are probably due soon, one by one
            else:
                self.thaw(runs, segment, over, rest)
            return over
        return []

    def _next_deadline(self) -> int:
        """The earliest deadline of a live row. Drops invalid entries: a loaded broker has none, and
        must get the same result."""
        deadlines, live = self.deadlines, self.live
        while deadlines:
            at, number = deadlines[0]
            row = live.get(number)
            if row is not None and row.state != MOVING and at in (row.expires, row.until):
                return at
            heappop(deadlines)
        return NEVER

    def deadline(self) -> int:
        """When the queue needs a step, epoch ms, or NEVER."""
        header = self.header
        if header.faulted or header.again:
            return NEVER if header.faulted else 0
        at = self.consumers.again_at() if header.subscriptions else NEVER
        if self.deadlines:
            at = min(at, self._next_deadline())
        if self.early.ranges:
            at = min(at, self.early.next_end())
        if self.cold.rows or self.later.rows:
            at = min(at, self.cold.due(), self.later.due())
        return at

    # ------------------------------------------------------------ live and cold

    def admit(self, rows: list[Row]) -> None:
        """Make rows live."""
        live = self.live
        for row in rows:
            live[row.id] = row
            if row.expires != NEVER or row.until != NEVER:
                self.watch(row)
        self.ready.add(rows)

    def enter(self, rows: list[Row]) -> None:
        """Add new rows, with contents in memory."""
        if self.cold.rows and self._come_last(rows):
            self.cold.extend(rows)
        else:
            self.admit(rows)

    def _come_last(self, rows: list[Row]) -> bool:
        """Whether new rows can be cold at once: behind all cold ones, and nobody looks at them."""
        ready, last = self.ready, self.cold.last()
        if last is None or ready.lanes or ready.views or self.early.ranges:
            return False
        return self.definition.target_queue_depth is None and follow(rows, last)

    def remove(self, rows: list[Row]) -> None:
        """Remove rows from the live part."""
        live, ready = self.live, self.ready
        for row in rows:
            del live[row.id]
            if row.lane or ready.views:
                ready.left(row)
        if ready.lanes and not live and not self.cold.rows:
            ready.forget_lanes()

    def spill_over(self) -> None:
        """Spill the far end of the order, if more rows are live than allowed, besides those that
        have to stay live."""
        live, most = len(self.live), self.limits.live_rows
        if live > most and live - self._have_to_stay() > most:
            self.spill(most * 3 // 4)

    def _have_to_stay(self) -> int:
        """How many live rows cannot be spilled: leased ones, barriers, those in progress in their
        lanes, and with an active set the delayed ones."""
        header, more = self.header, len(self.ready.pinned)
        if self.definition.target_queue_depth is not None:
            more = header.delayed - self.later.rows
        return header.leased + len(header.barriers) + more

    def spill(self, keep: int) -> None:
        """Spill all but about ``keep`` ready and ``keep`` delayed rows."""
        ready: list[Row] = []
        delayed: list[Row] = []
        in_order = self.definition.target_queue_depth is not None  # see `active_set`
        for row in self.live.values():
            if row.state == READY and not row.barrier and not (row.lane and row.deliveries):
                ready.append(row)
            elif row.state == DELAYED and not row.lane and not row.barrier and not in_order:
                delayed.append(row)
        for rows, by, runs in ((ready, by_key, self.cold), (delayed, by_until, self.later)):
            if len(rows) > keep:
                rows.sort(key=by)
                if self.ready.lanes and runs is self.cold:
                    turns = self.ready.by_turns(rows)[keep:]
                    self._freeze(sorted([row for turn, row in turns if not turn], key=by), runs)
                    waiting = sorted([row for turn, row in turns if turn], key=by)
                    self._freeze(waiting, runs, [NO_FILTER])
                else:
                    self._freeze(rows[keep:], runs)
                    if runs is self.cold:
                        self.ready.cut(by_key(rows[keep]))

    def _freeze(self, rows: list[Row], runs: Runs, seen: Sequence[int] = ()) -> None:
        """Move sorted rows from the live to the cold part. seen: `NO_FILTER` if they wait for
        others of their lanes."""
        step, ready = self.limits.segment_rows, self.ready
        parts, looked = [rows], [list[int]()]
        if runs is self.cold and (ready.views or ready.lanes):
            parts = [rows[at : at + step] for at in range(0, len(rows), step)]
            looked = [ready.keep_cold(part) for part in parts]
        self.remove(rows)
        for part, numbers in zip(parts, looked, strict=True):
            for segment in runs.add(part, [*numbers, *seen]):
                if NO_FILTER in segment.looked:
                    ready.park_rows(part, segment.number)
        self.dirty = True

    def thaw(self, runs: Runs, segment: Segment, rows: list[Row], rest: list[Row]) -> None:
        """Make rows of a segment live. rest: the rows that stay in it."""
        runs.replace(segment, rest, rows)
        self._warm(rows)

    def thaw_delayed(self) -> bool:
        """With an active set (R5), make a segment of delayed rows live; returns whether it did."""
        if self.definition.target_queue_depth is None or not self.later.rows:
            return False
        self._warm(self.later.take())
        self.wanted = True
        return True

    def thaw_first(self) -> int:
        """Make the first segment of cold rows live; returns how many rows that are."""
        rows = self.cold.take()
        self._warm(rows)
        if len(self.live) - self._have_to_stay() > 2 * self.limits.live_rows:
            self.spill(self.limits.live_rows)
        return len(rows)

    def first_cold(self) -> int | None:
        """The key of the first cold row that may be delivered. With lanes (O4), a row that waits
        for others of its lane does not count."""
        if not self.ready.lanes:
            return self.cold.first()
        asks, unseen = self.ready.asks(), self.cold.unseen(NO_FILTER)
        if asks is not None and (unseen is None or asks[0] < unseen.first):
            return asks[0]
        return None if unseen is None else unseen.first

    def thaw_next(self) -> int:
        """With lanes: make the deliverable rows of the segment with `first_cold` live; returns how
        many rows were read."""
        segment = self.cold.unseen(NO_FILTER)
        if segment is None or segment.first != self.first_cold():
            return self.thaw_asked()
        rows = self.cold.read(segment)
        wanted, waiting = self.ready.part(rows)
        if 2 * len(wanted) >= len(rows):
            self.thaw(self.cold, segment, rows, [])
        else:
            self.leave_cold(segment, NO_FILTER, waiting)
            if wanted:
                self.thaw(self.cold, segment, wanted, waiting)
        return len(rows)

    def thaw_asked(self) -> int:
        """Make the segment live that a lane asks for (`Ready.asks`), or only that lane's rows if
        filters left others cold; returns how many rows were read."""
        asks = self.ready.asks()
        assert asks is not None, "no lane asks"
        segment, lane = self.cold.segment(asks[1]), asks[2]
        self.ready.unpark(lane)
        if segment is None:
            return 1
        rows, rest = self.cold.read(segment), []
        if any(view.skipped for view in self.ready.views.values()):
            rest = [row for row in rows if row.lane != lane.number]
            rows = [row for row in rows if row.lane == lane.number]
        if rows:
            self.thaw(self.cold, segment, rows, rest)
        return len(rows) + len(rest)

    def leave_cold(self, segment: Segment, filter_number: int, waiting: list[Row]) -> None:
        """Note that a filter has read a segment. waiting: rows that wait for others of their
        lanes."""
        known = {NO_FILTER, *(view.number for view in self.ready.views.values())}
        self.cold.see(segment, filter_number, bool(waiting), known)
        self.ready.park_rows(waiting, segment.number)
        self.dirty = True

    def _warm(self, rows: list[Row]) -> None:
        """Make rows live that have left the cold part. Later rows of their lanes may be deliverable
        now (O4). A view that remembers many more rows than are cold forgets them."""
        self.admit(rows)
        self.dirty = True
        if len(self.ages) > 2 * len(self.live):
            self.ages, self.ages_end = [], 0
        for row in [row for row in rows if row.seq < self.ages_end]:
            heappush(self.ages, (row.seq, row.id))
        most = 2 * self.cold.rows + SKIPPED_MORE
        for view in self.ready.views.values():
            first = {row.lane for row in rows if view.skipped.get(row.lane) == row.key}
            view.skipped.update(dict.fromkeys(first, LOWEST))
            if len(view.skipped) > most or not view.behind.isdisjoint(first):
                self.look_again(view)

    def look_again(self, view: FilterView) -> None:
        """Let a filter read all segments again."""
        view.look_again(self.header.next_filter)
        self.header.next_filter += 1

    def view_of(self, text: str) -> FilterView:
        """The view of a filter, made at first use."""
        view = self.ready.views.get(text)
        if view is None:
            view = self.ready.add_view(ViewState(text, self.header.next_filter))
            self.header.next_filter += 1
        return view

    def forget_view(self, text: str | None) -> None:
        """Remove a filter's view if no subscription has the filter any more."""
        if text is not None and not any(s.filter == text for s in self.header.subscriptions):
            self.ready.views.pop(text, None)

    def live_row(self, number: int) -> Row | None:
        """A message's row; a cold one becomes live."""
        for runs in (self.cold, self.later) if number not in self.live else ():
            for segment in runs.with_ids([(number, number)]):
                rows = runs.read(segment)
                found = [row for row in rows if row.id == number]
                if found:
                    self.thaw(runs, segment, found, [row for row in rows if row.id != number])
        return self.live.get(number)

    def holds(self, number: int) -> bool:
        """Whether the queue has a message."""
        return number in self.live or self.cold.has(number) or self.later.has(number)

    # ------------------------------------------------------------ pages

    def write_contents(self) -> int:
        """Write the contents that are in memory to blocks; returns how many those of live rows
        are."""
        rows = [row for row in self.live.values() if row.block == IN_MEMORY]
        self.spool.write_to_blocks(rows, live=True)
        self.cold.write()
        self.dirty = True
        return len(rows)

    def begin_pack(self, put: Put) -> None:
        """Fix the content of the queue's page as of now; all contents are in blocks. `pack` writes
        it, at the latest when the queue is next accessed. put: writes into this mark."""
        self._put, self.dirty = put, False
        self._hidden = {"header": self.header, "consumers": self.consumers}
        del self.header, self.consumers
        if not isinstance(self, UnreadQueue):
            self._hidden["live"] = self.live
            del self.live
            self.cold.write()
            self.later.write()
            self.__class__ = UnreadQueue

    def pack(self) -> int:
        """Write the page that `begin_pack` fixed, if any; returns its number of rows."""
        hidden, self._hidden = self._hidden, {}
        for name, value in hidden.items():
            setattr(self, name, value)
        if not hidden:
            return 0
        self.__class__ = Queue if "live" in hidden else UnreadQueue
        page = QueuePage(
            self.header, self.cold.state(), self.later.state(), self.early.state(),
            list(self.live.values()), [view.state() for view in self.ready.views.values()],
            self.ready.parked(),
        )  # fmt: skip
        self._put(f"q/{self.number}", _encode(page))
        return len(page.rows)

    def drop(self) -> None:
        """Delete the pages of an empty queue."""
        assert not self.header.depth, f"{self.definition.name} still has messages"
        self.cold.drop()
        self.later.drop()
        self.store.delete(f"q/{self.number}")
        self.dropped = True


class UnreadQueue(Queue):
    """A queue that was not read, or has a page to be written. The first access makes it a `Queue`.
    It is a class of its own because `__getattr__` slows down every attribute of its class."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(name)
        if self._hidden:
            self.pack()
        elif name == "consumers":
            self.consumers = Consumers(self.header.subscriptions)
        else:
            data = self.store.get(f"q/{self.number}")
            assert data is not None, f"the page of queue {self.number} is missing"
            self._make_live(_page.decode(data))
        return getattr(self, name)
