"""The live ready rows of a queue in delivery order (O1, O2, O4, F5).

*Heaps* are lazy. An entry ``(key, id)`` counts only while its row is live and ready, has this key,
and is the next of its lane. So no entry is removed from the middle of a heap. A returned message
has its old key, and so its old position (L7).

*Lanes* (O4). At most one message per lane is next: the message in progress (leased, or delivered
before and returned, maybe with a delay), else the first in order, which may be due later (L12).
Only the next message is in the heaps, and only while it is ready. Lanes do not hold each other
back. Cold messages of a lane stay in their
segments, and the lane remembers these segments (`park`). When a cold message is next, the lane
*asks* for its segment.

*Views* (F5). Each different filter has a view: a heap of the rows that it matches. A filter is
evaluated once per row, and only when the view needs its next message. Until then the row is
*unseen*. Barriers (O3) are in none of these heaps.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify, heappop, heappush
from operator import itemgetter

import msgspec

from ..storage.row import DELAYED, READY, Row, by_key

Entry = tuple[int, int]  # key, id
_SLACK = 64


class Lane:
    """The live messages of one partition key, the next one first."""

    __slots__ = ("announced", "asked", "heap", "number", "parked", "rows")

    def __init__(self, number: int) -> None:
        self.number = number
        self.heap: list[tuple[bool, int, int]] = []  # is_fresh, key, id
        self.rows = 0
        self.announced = 0  # the id that is in the heaps of ready rows
        # Heap of (key of the first row, segment): segments with cold rows that wait for the lane.
        # The rows may have become live or left since.
        self.parked: list[tuple[int, int]] = []
        self.asked: int | None = None  # the key in `Ready.asking`

    def first(self, live: dict[int, Row]) -> Row | None:
        """The next message, ready or not; None if it is cold or there is none."""
        row = self._first(live)
        if row is None or (self.parked and row.key > self.parked[0][0] and is_fresh(row)):
            return None
        return row

    def holds_back(self, key: int, live: dict[int, Row]) -> bool:
        """Whether a cold message with this key waits for another message of the lane."""
        row = self._first(live)
        if row is not None and (row.key < key or not is_fresh(row)):
            return True
        return bool(self.parked) and self.parked[0][0] < key

    def _first(self, live: dict[int, Row]) -> Row | None:
        heap = self.heap
        while heap:
            fresh, key, number = heap[0]
            row = live.get(number)
            if row is not None and fresh == is_fresh(row) and key == by_key(row):
                return row
            heappop(heap)
        return None


def is_fresh(row: Row) -> bool:
    """Whether a message was never delivered; else it is in progress in its lane."""
    return not row.deliveries and (row.state == READY or row.state == DELAYED)


class ViewState(msgspec.Struct, array_like=True):
    """A `FilterView` in the queue's page, by row ids. It is stored because evaluations have a
    budget: a loaded broker that repeated them would deliver later than before."""

    text: str
    number: int
    matched: list[int] = []
    others: list[int] = []
    skipped: list[tuple[int, str]] = []  # lanes and keys, which are longer than 64 bits
    behind: list[int] = []


class FilterView:
    """The live rows that one filter has seen. number: of the filter, in `Segment.looked`."""

    __slots__ = ("behind", "held_back", "matched", "number", "seen", "skipped", "text", "unseen")

    def __init__(self, text: str, number: int) -> None:
        self.text = text
        self.number = number
        self.unseen: list[Entry] = []
        self.matched: list[Entry] = []
        self.seen: dict[int, bool] = {}  # whether it matches, for live rows, by id
        # Lane → the key of the first message that the filter left in the cold part. Later matches
        # of the lane wait behind it (O4). LOWEST: that message has left. behind: the lanes with
        # waiting matches; held_back: the waiting matches that are live.
        self.skipped: dict[int, int] = {}
        self.behind: set[int] = set()
        self.held_back: list[Entry] = []

    def leave(self, row: Row) -> None:
        """Note that the filter has read a row and left it in the cold part."""
        if row.lane:
            key = by_key(row)
            self.skipped[row.lane] = min(self.skipped.get(row.lane, key), key)

    def waits(self, row: Row) -> bool:
        """Whether a match waits for a message of its lane that the filter left. A row that was
        delivered before never waits: it is first in its lane."""
        return not row.deliveries and self.skipped.get(row.lane, by_key(row)) < by_key(row)

    def state(self) -> ViewState:
        """Its form in the queue's page."""
        return ViewState(
            self.text, self.number,
            sorted(number for number, matches in self.seen.items() if matches),
            sorted(number for number, matches in self.seen.items() if not matches),
            [(lane, f"{key:x}") for lane, key in sorted(self.skipped.items())],
            sorted(self.behind),
        )  # fmt: skip

    def look_again(self, number: int) -> None:
        """Forget the rows that the filter left. With a new number it reads all segments again."""
        self.number = number
        self.skipped.clear()
        self.behind.clear()
        self.matched += self.held_back
        heapify(self.matched)
        self.held_back = []


class Ready:
    """The order of a queue's live ready rows. live: the queue's own dict of rows by id."""

    __slots__ = ("asking", "heap", "lanes", "live", "pinned", "views")

    def __init__(self, live: dict[int, Row]) -> None:
        self.live = live
        self.heap: list[Entry] = []
        self.asking: list[tuple[int, int, int]] = []  # heap, lazy: key, segment, lane
        self.lanes: dict[int, Lane] = {}
        self.views: dict[str, FilterView] = {}
        self.pinned: set[int] = set()  # ids of live rows that are delayed or returned in a lane

    # ------------------------------------------------------------ rows enter, change and leave

    def add(self, rows: list[Row]) -> None:
        """Add rows that have become live."""
        alone: list[Entry] = []
        for row in rows:
            if row.barrier:
                continue
            if row.lane:
                lane = self._lane(row.lane)
                lane.rows += 1
                self._follow(row, lane)
            elif row.state == READY:
                key = by_key(row) if row.level or row.generation else row.seq
                alone.append((key, row.id))
        self._push(alone)

    def changed(self, row: Row) -> None:
        """Update a live row that has another state or was delivered."""
        if row.barrier:
            return
        if row.lane:
            self._follow(row, self.lanes[row.lane])
        elif row.state == READY:
            self._push([(by_key(row), row.id)])

    def left(self, row: Row) -> None:
        """Remove a row that is no longer live."""
        for view in self.views.values():
            view.seen.pop(row.id, None)
        if row.lane and not row.barrier:
            lane = self.lanes[row.lane]
            lane.rows -= 1
            self.pinned.discard(row.id)
            self._go_on(lane)

    def _lane(self, number: int) -> Lane:
        lane = self.lanes.get(number)
        if lane is None:
            lane = self.lanes[number] = Lane(number)
        return lane

    def _go_on(self, lane: Lane) -> None:
        if lane.rows or lane.parked:
            self._announce(lane, None)
        else:
            del self.lanes[lane.number]

    def _follow(self, row: Row, lane: Lane) -> None:
        fresh = is_fresh(row)
        heappush(lane.heap, (fresh, row.key, row.id))
        if row.state == DELAYED or (row.state == READY and not fresh):
            self.pinned.add(row.id)
        else:
            self.pinned.discard(row.id)
        if len(lane.heap) > 2 * lane.rows + _SLACK:
            live = self.live
            rows = {number: live[number] for _, _, number in lane.heap if number in live}
            lane.heap = [(is_fresh(r), r.key, r.id) for r in rows.values()]
            heapify(lane.heap)
        self._announce(lane, row)

    def _announce(self, lane: Lane, row: Row | None) -> None:
        """Put the next message of a lane into the heaps, unless it is there. row: has changed, so
        its earlier entries may be gone."""
        first = lane.first(self.live)
        if first is None or first.state != READY:
            lane.announced = 0  # its row is no longer next, so its entry is invalid
            if first is None and lane.parked and lane.asked != lane.parked[0][0]:
                lane.asked = lane.parked[0][0]
                heappush(self.asking, (*lane.parked[0], lane.number))
            return
        if first is row or first.id != lane.announced:
            lane.announced = first.id
            self._push([(first.key, first.id)])

    def _push(self, entries: list[Entry]) -> None:
        heap = self.heap
        if len(entries) > len(heap):  # many have become live
            heap += entries
            heap.sort()  # a sorted list is a heap, too
        else:
            for entry in entries:
                heappush(heap, entry)
        self._tidy(heap)
        for view in self.views.values():
            for entry in entries:
                self._show(view, entry)
            self._tidy(view.unseen)
            self._tidy(view.matched)

    @staticmethod
    def _show(view: FilterView, entry: Entry) -> None:
        verdict = view.seen.get(entry[1])
        if verdict is None:
            heappush(view.unseen, entry)
        elif verdict:
            heappush(view.matched, entry)

    def cut(self, key: int) -> None:
        """Drop the entries from this key on: without lanes, all rows from there on became cold."""
        for heap in self._heaps():
            heap.sort()  # a sorted list is a heap, too, and most often it is sorted
            del heap[bisect_left(heap, (key, 0)) :]

    def _heaps(self) -> list[list[Entry]]:
        return [self.heap, *(h for v in self.views.values() for h in (v.unseen, v.matched))]

    def _tidy(self, heap: list[Entry]) -> None:
        """Drop invalid and duplicate entries, if there are too many: nobody may take from the heap
        of a consumer that is full."""
        if len(heap) > 2 * len(self.live) + _SLACK:
            heap[:] = sorted({entry for entry in heap if self._is_valid(entry)})

    def _is_valid(self, entry: Entry) -> bool:
        row = self.live.get(entry[1])
        if row is None or row.state != READY or by_key(row) != entry[0]:
            return False
        return self.is_next(row)

    # ------------------------------------------------------------ lanes with cold rows

    def has_to_wait(self, row: Row) -> bool:
        """Whether a cold row must wait for another message of its lane."""
        lane = self.lanes.get(row.lane)
        return lane is not None and lane.holds_back(row.key, self.live)

    def part(self, rows: list[Row]) -> tuple[list[Row], list[Row]]:
        """The deliverable rows of a segment, and the rows that wait for others of their lanes."""
        free: list[Row] = []
        waiting: list[Row] = []
        taken: set[int] = set()
        for row in rows:
            if row.lane and (row.lane in taken or self.has_to_wait(row)):
                waiting.append(row)
            else:
                free.append(row)
                taken.add(row.lane)
        return free, waiting

    def park(self, number: int, key: int, segment: int) -> None:
        """Remember that a segment has waiting messages of a lane. key: of the first one."""
        lane = self._lane(number)
        heappush(lane.parked, (key, segment))
        self._announce(lane, None)

    def park_rows(self, rows: list[Row], segment: int) -> None:
        """Remember that these rows of a segment wait for others of their lanes."""
        firsts: dict[int, int] = {}
        for row in rows:
            firsts.setdefault(row.lane, row.key)
        for number, key in firsts.items():
            self.park(number, key, segment)

    def parked(self) -> list[tuple[int, str, int]]:
        """Lane, key and segment of everything that is parked."""
        lanes = self.lanes.items()
        return sorted((n, f"{key:x}", at) for n, lane in lanes for key, at in lane.parked)

    def by_turns(self, rows: list[Row]) -> list[tuple[int, Row]]:
        """Rows with their turn, sorted by turn, then in the old order. Each lane's first row has
        turn 0, its second 1, and so on; all one more if another message of the lane is in progress.
        """
        turns: dict[int, int] = {}
        ranked: list[tuple[int, Row]] = []
        for row in rows:
            turn = 0
            if row.lane:
                first = self.lanes[row.lane].announced == row.id
                turn = turns.get(row.lane, 0 if first else 1)
                turns[row.lane] = turn + 1
            ranked.append((turn, row))
        ranked.sort(key=itemgetter(0))
        return ranked

    def forget_lanes(self) -> None:
        """The queue is empty: what is parked is in segments that are gone."""
        self.lanes.clear()
        self.asking.clear()

    def unpark(self, lane: Lane) -> None:
        """Remove the first parked segment of a lane."""
        heappop(lane.parked)
        lane.asked = None
        self._go_on(lane)

    def asks(self) -> tuple[int, int, Lane] | None:
        """Key and segment of the first cold message that is next in its lane, and the lane."""
        while self.asking:
            key, segment, number = self.asking[0]
            lane = self.lanes.get(number)
            if lane is not None:
                if lane.parked[:1] == [(key, segment)] and lane.first(self.live) is None:
                    return key, segment, lane
                lane.asked = None
            heappop(self.asking)
            if lane is not None:
                self._announce(lane, None)
        return None

    # ------------------------------------------------------------ the next message

    def is_next(self, row: Row) -> bool:
        """Whether no other message of a row's lane comes before it (O4)."""
        if not row.lane:
            return True
        lane = self.lanes.get(row.lane)  # None: the row is just becoming live
        return lane is not None and lane.first(self.live) is row

    def top(self, heap: list[Entry]) -> Row | None:
        """The first row of a heap. Drops invalid entries before it."""
        live = self.live
        while heap:
            key, number = heap[0]
            row = live.get(number)
            if (
                row is not None and row.state == READY and by_key(row) == key
                and (not row.lane or self.is_next(row))
            ):  # fmt: skip
                return row
            heappop(heap)
        return None

    def take(
        self, heap: list[Entry], found: list[Row], end: int, now: int, most: int, room: int,
        free: bool,
    ) -> int:  # fmt: skip
        """Move the first rows of a heap to ``found``; returns their bytes. Stops at the key
        ``end``, at an overdue row, at ``most`` rows or ``room`` bytes. free: also stops after a row
        with a lane."""
        live, size = self.live, 0
        # A sorted list is a heap, too, and most often it is sorted.
        sort = len(heap) <= 8 * (most - len(found))
        if sort:
            heap.sort()
        at = 0
        while at < len(heap) and len(found) < most and size < room:
            key, number = heap[at]
            if key >= end:
                break
            row = live.get(number)
            if (
                row is not None and row.state == READY
                and (by_key(row) if row.level or row.generation else row.seq) == key
                and (not row.lane or self.is_next(row))
                and not (found and row is found[-1])  # it has two entries
            ):  # fmt: skip
                if row.expires <= now:
                    break
                found.append(row)
                size += row.size
                if free and row.lane:
                    most = 0
            if sort:
                at += 1
            else:
                heappop(heap)
        del heap[:at]
        return size

    def followers(self, first: Row, most: int) -> list[Row]:
        """At most ``most`` ready rows that follow the first one of a lane, up to the first cold
        one."""
        lane = self.lanes[first.lane]
        end = lane.parked[0][0] if lane.parked else None
        lane.heap.sort()  # a sorted list is a heap, too, and most often it is sorted
        found: list[Row] = []
        for fresh, key, number in lane.heap:
            row = self.live.get(number)
            if row is None or not fresh or not is_fresh(row) or key != by_key(row):
                continue
            if row is first or (found and row is found[-1]):  # an entry may be there twice
                continue
            if len(found) >= most or (end is not None and key > end) or row.state != READY:
                break
            found.append(row)
        return found

    def put_back(self, heap: list[Entry], rows: list[Row]) -> None:
        """Return rows that were taken from a heap."""
        for row in rows:
            heappush(heap, (by_key(row), row.id))

    def first(self) -> Row | None:
        """The first ready row, for any consumer."""
        return self.top(self.heap)

    # ------------------------------------------------------------ views

    def add_view(self, state: ViewState) -> FilterView:
        """Add a view, as it is in a queue's page. To a new one, all rows are unseen."""
        view = self.views[state.text] = FilterView(state.text, state.number)
        view.seen = {**dict.fromkeys(state.matched, True), **dict.fromkeys(state.others, False)}
        view.skipped = {lane: int(key, 16) for lane, key in state.skipped}
        view.behind = set(state.behind)
        for entry in self.heap:
            if self._is_valid(entry):
                self._show(view, entry)
        return view

    def hold_back(self, view: FilterView, row: Row) -> None:
        """Hold back a view's first match: an earlier message of its lane is cold (O4)."""
        view.behind.add(row.lane)
        view.held_back.append(heappop(view.matched))

    def judge(self, view: FilterView, row: Row, matches: bool) -> None:
        """Note whether a view's first unseen row matches."""
        heappop(view.unseen)
        view.seen[row.id] = matches
        if matches:
            heappush(view.matched, (row.key, row.id))

    def keep_cold(self, rows: list[Row]) -> list[int]:
        """Prepare rows to become cold; returns the numbers of the views that match none of them."""
        found = []
        for view in self.views.values():
            if all(view.seen.get(row.id) is False for row in rows):
                found.append(view.number)
                for row in rows:
                    view.leave(row)
        return found
