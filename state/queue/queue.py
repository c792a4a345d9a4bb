"""One queue: its facts, its live rows, and the cold ones behind them (R5, S12).

Theory. *Live* are all leased rows and the front of the order: what is delivered next, what is due
soon, what has just arrived. When there are more than `Limits.live_rows` the far end is *spilled*:
contents into blocks, rows into runs. `cold` holds ready rows in delivery order, `later` delayed
rows by the time when they are due. Before a row goes out, every cold row before it has become live
again, so the two parts are one order.

A queue that nobody touches is not read: the live part is made from its page when it is first asked
for (`__getattr__`). The same look-up packs a queue that a mark has begun to pack: what its page has
is hidden until then, so nobody changes it before (`begin_pack`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import msgspec

from ...definitions import QueueDefinition
from ..limits import Limits
from ..storage.id_ranges import IdRanges
from ..storage.row import (
    DELAYED,
    GONE,
    IN_MEMORY,
    LOWEST,
    MOVING,
    NEVER,
    READY,
    Row,
    by_key,
    by_until,
)
from ..storage.runs import Runs
from ..storage.segments import NO_FILTER, RunsState, Segment
from ..storage.spool import Spool
from ..storage.store import Store
from .header import QueueHeader, Subscription
from .ready import FilterView, Ready, ViewState

FRESH_SLACK = 1_000


class QueuePage(msgspec.Struct):
    """What a mark writes of a queue, without its cold rows."""

    header: QueueHeader
    cold: RunsState
    later: RunsState
    early: list[list[int]]
    rows: list[Row]
    views: list[ViewState] = []
    parked: list[tuple[int, str, int]] = []  # of lanes: key (longer than 64 bits), segment


class Facts(msgspec.Struct):
    """Of that page what is needed before the rows are."""

    header: QueueHeader


_encode = msgspec.msgpack.encode
_page = msgspec.msgpack.Decoder(QueuePage)
_facts = msgspec.msgpack.Decoder(Facts)
_LIVE = ("live", "ready", "deadlines", "leases", "cold", "later", "early")
Put = Callable[[str, bytes], None]  # writes a page of a mark


class Queue:
    """A queue of a broker."""

    __slots__ = (
        "_by_id", "_hidden", "_listed", "_put", "cold", "deadlines", "dirty", "dropped", "early",
        "fresh", "header", "later", "leases", "limits", "live", "number", "plain_match", "program",
        "program_of", "ready", "spool", "store", "wanted",
    )  # fmt: skip

    header: QueueHeader
    live: dict[int, Row]  # by id
    ready: Ready
    deadlines: list[tuple[int, int]]  # heap of (time, id): ends of lives, leases and delays
    leases: dict[int, dict[int, Row]]  # by the holder's number, in the order of delivery
    cold: Runs  # ready rows in delivery order
    later: Runs  # delayed rows, by when they are due
    early: IdRanges  # acks that came before their messages (L9)

    def __init__(self, store: Store, spool: Spool, header: QueueHeader, limits: Limits) -> None:
        self.store, self.spool, self.limits = store, spool, limits
        # Of what is to be packed first; nobody changes a queue who looks at neither.
        self._hidden: dict[str, Any] = {}
        self.fresh: list[Row] = []  # that entered since the last mark: others are settled
        self._put: Put = store.put
        self.header = header
        self.number = header.number
        self.wanted = header.again  # something changed that may let a message go out
        self.dirty = True  # it differs from its page
        self.dropped = False
        self.program: Any = None  # its expressions, see `entry_checks`
        self.plain_match: Any = None  # likewise
        self.program_of: QueueDefinition | None = None
        self._listed: list[Subscription] | None = None  # what the next line is of
        self._by_id: dict[str, Subscription] = {}

    @classmethod
    def new(cls, store: Store, spool: Spool, header: QueueHeader, limits: Limits) -> Queue:
        """A queue that did not exist."""
        queue = cls(store, spool, header, limits)
        queue._live_of(QueuePage(header, RunsState(), RunsState(), [], []))
        return queue

    @classmethod
    def load(cls, store: Store, spool: Spool, number: int, limits: Limits) -> Queue | None:
        """The queue with this number; its rows are read when they are needed."""
        data = store.get(f"q/{number}")
        if data is None:
            return None
        queue = cls(store, spool, _facts.decode(data).header, limits)
        queue.dirty = False
        return queue

    def __getattr__(self, name: str) -> Any:
        if name not in _LIVE and name != "header":
            raise AttributeError(name)
        if self._hidden:
            self.pack()
            return getattr(self, name)
        data = self.store.get(f"q/{self.number}")
        assert data is not None, f"the page of queue {self.number} is gone"
        self._live_of(_page.decode(data))
        return object.__getattribute__(self, name)

    def _live_of(self, page: QueuePage) -> None:
        number, limits, store = self.number, self.limits, self.store
        self.cold = Runs.load(store, f"c/{number}/", page.cold, limits, by_key)
        self.later = Runs.load(store, f"d/{number}/", page.later, limits, by_until)
        self.early = IdRanges(page.early)
        self.live = {row.id: row for row in page.rows}
        self.ready = Ready(self.live)
        self.deadlines = []
        self.leases = {}
        for row in sorted(page.rows, key=_number):
            if row.holder:
                self.leases.setdefault(row.holder, {})[row.id] = row
        self.ready.add(page.rows)
        for row in page.rows:
            self.watch(row)
        for lane, key, segment in page.parked:
            self.ready.park(lane, int(key, 16), segment)
        for view in page.views:
            self.ready.restore(view)

    @property
    def definition(self) -> QueueDefinition:
        """The queue's definition as it stands now."""
        return self.header.definition

    def subscription(self, name: str) -> Subscription | None:
        """The subscription with this id, or None: at once, though there may be thousands. They are
        appended to the header's list, or it is another list without the one that ends."""
        listed, known = self.header.subscriptions, self._by_id
        if listed is not self._listed:
            self._listed, self._by_id = listed, {one.id: one for one in listed}
        elif len(known) < len(listed):
            known.update((one.id, one) for one in listed[len(known) :])
        return self._by_id.get(name)

    def count(self, name: str, n: int = 1) -> None:
        """Add to a counter."""
        counters = self.header.counters
        counters[name] = counters.get(name, 0) + n

    # ------------------------------------------------------------ time

    def watch(self, row: Row) -> None:
        """Remember when something becomes due for a live row."""
        deadlines = self.deadlines
        if row.expires != NEVER:
            heappush(deadlines, (row.expires, row.id))
        if row.until != NEVER:
            heappush(deadlines, (row.until, row.id))
        if len(deadlines) > 4 * len(self.live) + 64:
            self.deadlines = [
                (at, one.id) for one in self.live.values() for at in (one.expires, one.until)
                if at != NEVER
            ]  # fmt: skip
            heapify(self.deadlines)

    def due(self, now: int, most: int) -> list[Row]:
        """Rows of which something is due, about so many, each once, in the order of their arrival;
        they are live, and not watched any more. The longest overdue come first, live or not. What
        is read from a segment comes at once: it would be spilled again before its turn."""
        found: dict[int, Row] = {}
        while len(found) < most:
            at = self._next_deadline()
            rows = self._due_cold(min(at, now), now)
            if not rows and at <= now:
                rows = [self.live[heappop(self.deadlines)[1]]]
            if not rows:
                break
            found.update((row.id, row) for row in rows)
        return sorted(found.values(), key=_seq)

    def _due_cold(self, since: int, now: int) -> list[Row]:
        """Rows of which something is due now, of a segment where it has been since this time; none
        if there is no such segment. They become live."""
        for runs in (self.cold, self.later):
            segment = runs.first_due(since)
            if segment is None:
                continue
            rows = runs.read(segment)
            over = [row for row in rows if row.due <= now]
            rest = [row for row in rows if row.due > now]
            is_front = segment is runs.segments()[0]
            if is_front and (runs is self.later or not self.ready.lanes):
                self.thaw(runs, segment, rows, [])  # most often they are due soon, one by one
            else:
                self.thaw(runs, segment, over, rest)
            return over
        return []

    def _next_deadline(self) -> int:
        """When something of a live row is due. Entries that do not count any more are dropped: a
        broker that is loaded has none of them, and must come to the same."""
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
        if header.faulted:
            return NEVER
        if header.again:
            return 0
        at = self._next_deadline() if self.deadlines else NEVER
        if self.early.ranges:
            at = min(at, self.early.next_end())
        if self.cold.rows or self.later.rows:
            at = min(at, self.cold.due(), self.later.due())
        for one in header.subscriptions:
            if one.unconfirmed or one.again:
                at = min(at, one.again_at())
        return at

    # ------------------------------------------------------------ live and cold

    def admit(self, rows: list[Row]) -> None:
        """Rows become live."""
        live = self.live
        for row in rows:
            live[row.id] = row
            if row.expires != NEVER or row.until != NEVER:
                self.watch(row)
        self.ready.add(rows)

    def enter(self, rows: list[Row]) -> None:
        """Rows come in; their contents are in memory."""
        fresh = self.fresh
        fresh += rows
        if len(fresh) > len(self.live) + FRESH_SLACK:
            self.fresh = [row for row in fresh if row.block == IN_MEMORY and row.state != GONE]
        self.admit(rows)

    def remove(self, rows: list[Row]) -> None:
        """Rows are live no longer."""
        live, ready = self.live, self.ready
        for row in rows:
            del live[row.id]
            if row.lane or ready.views:
                ready.left(row)

    def spill_over(self) -> None:
        """Put the far end of the order into the cold part, if there is more than may be live."""
        if len(self.live) - self.header.leased > self.limits.live_rows:
            self.spill(self.limits.live_rows * 3 // 4)

    def spill(self, keep: int) -> None:
        """Keep about so many ready and so many delayed rows live."""
        ready: list[Row] = []
        delayed: list[Row] = []
        in_order = self.definition.target_queue_depth is not None  # by place: see `active_set`
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

    def _freeze(self, rows: list[Row], runs: Runs, seen: Sequence[int] = ()) -> None:
        """Rows leave the live part, in order. seen: `NO_FILTER` if they wait for others."""
        self.spool.write_to_blocks(rows)
        step, ready = self.limits.segment_rows, self.ready
        if runs is self.cold and (ready.views or ready.lanes):
            parts = [rows[at : at + step] for at in range(0, len(rows), step)]
            looked = [ready.keep_cold(part) for part in parts]
        else:
            parts, looked = [rows], [[]]
        self.remove(rows)
        for part, numbers in zip(parts, looked, strict=True):
            for segment in runs.add(part, [*numbers, *seen]):
                if NO_FILTER in segment.looked:
                    ready.park_rows(part, segment.number)
        self.dirty = True

    def thaw(self, runs: Runs, segment: Segment, rows: list[Row], rest: list[Row]) -> None:
        """Rows of a segment become live; the rest of it stays."""
        runs.replace(segment, rest)
        self.admit(rows)
        self._left_cold(rows)
        self.dirty = True

    def thaw_delayed(self) -> bool:
        """Where an active set is counted (R5), what is delayed becomes live, a segment of it at
        once; whether there was something."""
        if self.definition.target_queue_depth is None or not self.later.rows:
            return False
        self.admit(self.later.take())
        self.dirty = self.header.again = True
        return True

    def thaw_first(self) -> int:
        """The cold rows that come first become live; how many."""
        rows = self.cold.take()
        self.admit(rows)
        self._left_cold(rows)
        self.dirty = True
        if len(self.live) - self.header.leased > 2 * self.limits.live_rows:
            self.spill(self.limits.live_rows)
        return len(rows)

    def first_cold(self) -> int | None:
        """The key of the first cold row that may go out. With keys (O4): of those that wait for
        others of their lane only the ones whose turn it is."""
        if not self.ready.lanes:
            return self.cold.first()
        asks, unseen = self.ready.asks(), self.cold.unseen(NO_FILTER)
        if asks is not None and (unseen is None or asks[0] < unseen.first):
            return asks[0]
        return None if unseen is None else unseen.first

    def thaw_next(self) -> int:
        """With keys: cold rows that may go out become live, of the segment where `first_cold` is;
        how many rows were looked at."""
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
        """It is a cold message's turn in its lane: its segment becomes live, as far as no filter
        would have to look again; how many rows were looked at."""
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
        """A filter has looked at a segment; these rows wait there for others of their lanes."""
        self.cold.see(segment, filter_number, bool(waiting))
        self.ready.park_rows(waiting, segment.number)
        self.dirty = True

    def _left_cold(self, rows: list[Row]) -> None:
        """Cold rows have left: what waits behind one of these in its lane may go (O4)."""
        for view in self.ready.views.values():
            first = {row.lane for row in rows if view.skipped.get(row.lane) == row.key}
            view.skipped.update(dict.fromkeys(first, LOWEST))
            if not view.behind.isdisjoint(first):
                self.look_again(view)

    def look_again(self, view: FilterView) -> None:
        """A filter does not know any more what of a lane it left."""
        view.look_again(self.header.next_filter)
        self.header.next_filter += 1

    def view_of(self, text: str) -> FilterView:
        """What a filter has seen; a new one has seen nothing."""
        view = self.ready.views.get(text)
        if view is None:
            view = self.ready.view(text, self.header.next_filter)
            self.header.next_filter += 1
        return view

    def forget_view(self, text: str | None) -> None:
        """A subscription with this filter has ended; with the last one what it saw goes."""
        if text is not None and not any(s.filter == text for s in self.header.subscriptions):
            self.ready.views.pop(text, None)

    # ------------------------------------------------------------ ids

    def finds(self, number: int) -> tuple[Row, Runs | None, Segment | None] | None:
        """Where a message stands: its row, and for a cold one in which segment of which runs."""
        row = self.live.get(number)
        if row is not None:
            return row, None, None
        for runs in (self.cold, self.later):
            for segment in runs.with_ids([(number, number)]) if runs.rows else ():
                for one in runs.read(segment):
                    if one.id == number:
                        return one, runs, segment
        return None

    def holds(self, number: int) -> bool:
        """Whether a message is here."""
        return number in self.live or self.cold.has(number) or self.later.has(number)

    # ------------------------------------------------------------ pages

    def write_contents(self) -> int:
        """Contents of live rows get places in blocks; of how many."""
        rows = [row for row in self.fresh if row.block == IN_MEMORY and row.state != GONE]
        self.fresh = []
        self.spool.write_to_blocks(rows, live=True)
        self.dirty = True
        return len(rows)

    def begin_pack(self, put: Put) -> None:
        """The queue's page is what it has now, with contents that are settled: `pack` writes it,
        before anybody looks at the queue. put: writes to what the mark is saved in, whatever was
        written elsewhere since."""
        self._put, self.dirty = put, False
        self._hidden["header"] = self.header
        del self.header
        try:
            self._hidden["live"] = object.__getattribute__(self, "live")
        except AttributeError:
            return  # nobody has read its rows
        del self.live
        self.cold.write()
        self.later.write()

    def pack(self) -> int:
        """Write the page that is to be written; how many rows it has."""
        hidden, self._hidden = self._hidden, {}
        for name, value in hidden.items():
            setattr(self, name, value)
        if not hidden:
            return 0
        page = QueuePage(
            self.header, self.cold.state(), self.later.state(), self.early.state(),
            list(self.live.values()), [view.state() for view in self.ready.views.values()],
            self.ready.parked(),
        )  # fmt: skip
        self._put(f"q/{self.number}", _encode(page))
        return len(page.rows)

    def drop(self) -> None:
        """Delete what is left of an empty queue."""
        assert not self.header.depth, f"{self.definition.name} still holds messages"
        self.cold.drop()
        self.later.drop()
        self.store.delete(f"q/{self.number}")
        self.dropped = True


def _number(row: Row) -> int:
    return row.number


def _seq(row: Row) -> int:
    return row.seq
