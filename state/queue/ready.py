"""What goes out next: the live ready rows of a queue, by delivery order (O1, O2, O4, F5).

Theory. Heaps are lazy: an entry ``(key, id)`` counts only while its row is live, ready, has this
key and, in a lane, is next of it. So nothing is ever searched for to be removed, a returned message
finds its old place by its key (L7), and one that left and came in anew has a new one.

*Lanes* (O4). At most one message per lane is next: one that is under way (leased, delayed, or
given out before and back again), else the first in order. Only that one stands in the heaps, and
only while it is ready. A lane whose message is held, delayed or retried holds back nothing else.
What waits behind it may be cold: whoever meets such rows leaves them where they are, and the lane
remembers in which segments (`park`). When it is their turn the lane *asks* for the first of these.

*Views* (F5). Each distinct filter of the queue's consumers has a heap of its own of what matches. A
view looks at a row once, when it is asked for its first message: until then the row is *unseen*.
Barriers (O3) stand in none of these.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import msgspec

from ..storage.row import READY, Row, by_key

Entry = tuple[int, int]  # key, id
_SLACK = 64


class Lane:
    """The live messages of one partition key, the next one first."""

    __slots__ = ("announced", "asked", "heap", "number", "parked", "rows")

    def __init__(self, number: int) -> None:
        self.number = number
        self.heap: list[tuple[bool, int, int]] = []  # is it fresh?, key, id
        self.rows = 0
        self.announced = 0  # the id that stands in the heaps of ready rows
        # Heap of what is cold and waits for others of the lane: key of the first, segment. Its rows
        # may have become live since, or have left.
        self.parked: list[tuple[int, int]] = []
        self.asked: int | None = None  # the key in `Ready.asking`

    def first(self, live: dict[int, Row]) -> Row | None:
        """The live message that is next, ready or not; None where a cold one comes before."""
        row = self._first(live)
        if row is None or (self.parked and row.key > self.parked[0][0] and is_fresh(row)):
            return None
        return row

    def holds_back(self, key: int, live: dict[int, Row]) -> bool:
        """Whether a cold message of this lane with this key has to wait for another."""
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
    """Whether a message is not under way in its lane: ready, and never given out."""
    return row.state == READY and not row.deliveries


class ViewState(msgspec.Struct, array_like=True):
    """What a filter has seen: a broker that is loaded must not have to look again, since looks have
    a budget, and then it would do in another step what it did in this one. Rows by their ids."""

    text: str
    number: int
    matched: list[int]
    others: list[int]
    skipped: list[tuple[int, str]]  # lanes and keys, which are longer than 64 bits
    behind: list[int]


class FilterView:
    """What one filter has seen of the live rows. number: names it in segments (`looked`)."""

    __slots__ = ("behind", "held_back", "matched", "number", "seen", "skipped", "text", "unseen")

    def __init__(self, text: str, number: int) -> None:
        self.text = text
        self.number = number
        self.unseen: list[Entry] = []
        self.matched: list[Entry] = []
        self.seen: dict[int, bool] = {}  # verdicts on live rows, by id
        # Lanes of which it left messages in the cold part, with the key of the first one: what it
        # wants of them waits behind that (O4). LOWEST: that one has left. behind: of which lanes
        # something waits; held_back: what of it is live.
        self.skipped: dict[int, int] = {}
        self.behind: set[int] = set()
        self.held_back: list[Entry] = []

    def leave(self, row: Row) -> None:
        """It looked at a row, and left it in the cold part."""
        if row.lane:
            key = by_key(row)
            self.skipped[row.lane] = min(self.skipped.get(row.lane, key), key)

    def waits(self, row: Row) -> bool:
        """Whether a row that it wants stands behind one of its lane that it left. One that was
        given out before goes first in its lane."""
        return not row.deliveries and self.skipped.get(row.lane, by_key(row)) < by_key(row)

    def state(self) -> ViewState:
        """As the queue's page keeps it."""
        return ViewState(
            self.text, self.number,
            sorted(number for number, matches in self.seen.items() if matches),
            sorted(number for number, matches in self.seen.items() if not matches),
            [(lane, f"{key:x}") for lane, key in sorted(self.skipped.items())],
            sorted(self.behind),
        )  # fmt: skip

    def look_again(self, number: int) -> None:
        """It does not know any more what it left. Segments do not know the new number."""
        self.number = number
        self.skipped.clear()
        self.behind.clear()
        self.matched += self.held_back
        heapify(self.matched)
        self.held_back = []


class Ready:
    """The order of a queue's live ready rows. live: the queue's rows by id, kept by the queue."""

    __slots__ = ("asking", "heap", "lanes", "live", "views")

    def __init__(self, live: dict[int, Row]) -> None:
        self.live = live
        self.heap: list[Entry] = []
        self.asking: list[tuple[int, int, int]] = []  # heap, lazy: key, segment, lane
        self.lanes: dict[int, Lane] = {}
        self.views: dict[str, FilterView] = {}

    # ------------------------------------------------------------ rows come, change and go

    def add(self, rows: list[Row]) -> None:
        """Rows have become live."""
        alone = []
        for row in rows:
            if row.barrier:
                continue
            if row.lane:
                lane = self._lane(row.lane)
                lane.rows += 1
                self._follow(row, lane)
            elif row.state == READY:
                alone.append(row)
        self._push(alone)

    def changed(self, row: Row) -> None:
        """A live row has another state, or was given out."""
        if row.barrier:
            return
        if row.lane:
            self._follow(row, self.lanes[row.lane])
        elif row.state == READY:
            self._push([row])

    def left(self, row: Row) -> None:
        """A row is no longer live."""
        for view in self.views.values():
            view.seen.pop(row.id, None)
        if row.lane and not row.barrier:
            lane = self.lanes[row.lane]
            lane.rows -= 1
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
        heappush(lane.heap, (is_fresh(row), row.key, row.id))
        if len(lane.heap) > 2 * lane.rows + _SLACK:
            live = self.live
            rows = {number: live[number] for _, _, number in lane.heap if number in live}
            lane.heap = [(is_fresh(r), r.key, r.id) for r in rows.values()]
            heapify(lane.heap)
        self._announce(lane, row)

    def _announce(self, lane: Lane, row: Row | None) -> None:
        """Put the next message of a lane into the heaps, unless it stands there. row: what has
        changed, whose earlier entries may have been taken."""
        first = lane.first(self.live)
        if first is None or first.state != READY:
            lane.announced = 0  # whoever stood there is not next, so its entry may be dropped
            if first is None and lane.parked and lane.asked != lane.parked[0][0]:
                lane.asked = lane.parked[0][0]
                heappush(self.asking, (*lane.parked[0], lane.number))
            return
        if first is row or first.id != lane.announced:
            lane.announced = first.id
            self._push([first])

    def _push(self, rows: list[Row]) -> None:
        heap = self.heap
        entries = [(by_key(row), row.id) for row in rows]
        for entry in entries:
            heappush(heap, entry)
        if len(heap) > 2 * len(self.live) + _SLACK:
            self._tidy()
        for view in self.views.values():
            for entry in entries:
                self._show(view, entry)

    @staticmethod
    def _show(view: FilterView, entry: Entry) -> None:
        verdict = view.seen.get(entry[1])
        if verdict is None:
            heappush(view.unseen, entry)
        elif verdict:
            heappush(view.matched, entry)

    def _tidy(self) -> None:
        """Leave out entries that do not count any more."""
        self.heap[:] = sorted({entry for entry in self.heap if self._counts(entry)})
        for view in self.views.values():
            view.unseen[:] = sorted({entry for entry in view.unseen if self._counts(entry)})
            view.matched[:] = sorted({entry for entry in view.matched if self._counts(entry)})

    def _counts(self, entry: Entry) -> bool:
        row = self.live.get(entry[1])
        if row is None or row.state != READY or by_key(row) != entry[0]:
            return False
        return self.is_next(row)

    # ------------------------------------------------------------ lanes with cold rows

    def has_to_wait(self, row: Row) -> bool:
        """Whether a cold row waits for another message of its lane."""
        lane = self.lanes.get(row.lane)
        return lane is not None and lane.holds_back(row.key, self.live)

    def part(self, rows: list[Row]) -> tuple[list[Row], list[Row]]:
        """Rows of a segment: those that may go out, and those that wait for others."""
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
        """Messages of a lane wait in a segment, the first one with this key."""
        lane = self._lane(number)
        heappush(lane.parked, (key, segment))
        self._announce(lane, None)

    def park_rows(self, rows: list[Row], segment: int) -> None:
        """These rows of a segment wait there for others of their lanes."""
        firsts: dict[int, int] = {}
        for row in rows:
            firsts.setdefault(row.lane, row.key)
        for number, key in firsts.items():
            self.park(number, key, segment)

    def parked(self) -> list[tuple[int, str, int]]:
        """What `park` was told, and still holds."""
        lanes = self.lanes.items()
        return sorted((n, f"{key:x}", at) for n, lane in lanes for key, at in lane.parked)

    def by_turns(self, rows: list[Row]) -> list[tuple[int, Row]]:
        """Rows in order, but the first of each lane before the second of any, with the number of
        its turn; later by one where it waits for another that is under way."""
        turns: dict[int, int] = {}
        ranked: list[tuple[int, Row]] = []
        for row in rows:
            turn = 0
            if row.lane:
                first = self.lanes[row.lane].announced == row.id
                turn = turns.get(row.lane, 0 if first else 1)
                turns[row.lane] = turn + 1
            ranked.append((turn, row))
        ranked.sort(key=_turn)
        return ranked

    def unpark(self, lane: Lane) -> None:
        """The first segment of a lane was looked up."""
        heappop(lane.parked)
        lane.asked = None
        self._go_on(lane)

    def asks(self) -> tuple[int, int, Lane] | None:
        """The lane whose cold message is next, with its key and segment."""
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

    # ------------------------------------------------------------ what is next

    def is_next(self, row: Row) -> bool:
        """Whether no other message of a row's lane goes before it (O4)."""
        if not row.lane:
            return True
        lane = self.lanes.get(row.lane)  # none yet: it is becoming live
        return lane is not None and lane.first(self.live) is row

    def top(self, heap: list[Entry]) -> Row | None:
        """The first row of a heap; entries that do not count are dropped."""
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

    def take(self, heap: list[Entry], end: int, most: int, size: int) -> list[Row]:
        """Take the first rows out of a heap: below a key, up to so many, until they have so many
        bytes. One may stand there twice."""
        live = self.live
        found: list[Row] = []
        sort = len(heap) <= 8 * most  # what is sorted is a heap, too, and most often it is already
        if sort:
            heap.sort()
        at = 0
        while at < len(heap) and len(found) < most and size > 0:
            key, number = heap[at]
            if key >= end:
                break
            row = live.get(number)
            if (
                row is not None and row.state == READY and by_key(row) == key
                and (not row.lane or self.is_next(row))
            ):  # fmt: skip
                found.append(row)
                size -= row.size
            if sort:
                at += 1
            else:
                heappop(heap)
        del heap[:at]
        return found

    def followers(self, first: Row, most: int) -> list[Row]:
        """The ready rows that come behind the first one of its lane, up to so many; none behind one
        that is cold or under way."""
        lane = self.lanes[first.lane]
        end = lane.parked[0][0] if lane.parked else None
        lane.heap.sort()  # what is sorted is a heap, too, and most often it is already
        found: list[Row] = []
        for fresh, key, number in lane.heap:
            row = self.live.get(number)
            if row is None or not fresh or not is_fresh(row) or key != by_key(row):
                continue
            if row is first or (found and row is found[-1]):  # it may stand there twice
                continue
            if len(found) >= most or (end is not None and key > end):
                break
            found.append(row)
        return found

    def put_back(self, heap: list[Entry], rows: list[Row]) -> None:
        """Rows that were taken stay in the order."""
        for row in rows:
            heappush(heap, (by_key(row), row.id))

    def first(self) -> Row | None:
        """The first ready row, whoever may take it."""
        return self.top(self.heap)

    # ------------------------------------------------------------ views

    def view(self, text: str, number: int) -> FilterView:
        """Begin to look with a filter: everything is unseen."""
        view = self.views[text] = FilterView(text, number)
        view.unseen = [entry for entry in self.heap if self._counts(entry)]
        heapify(view.unseen)
        return view

    def restore(self, state: ViewState) -> None:
        """A view as it was when the queue was packed."""
        view = self.views[state.text] = FilterView(state.text, state.number)
        view.seen = {**dict.fromkeys(state.matched, True), **dict.fromkeys(state.others, False)}
        view.skipped = {lane: int(key, 16) for lane, key in state.skipped}
        view.behind = set(state.behind)
        for entry in self.heap:
            if self._counts(entry):
                self._show(view, entry)

    def hold_back(self, view: FilterView, row: Row) -> None:
        """The first match of a view waits, because it left an earlier message of its lane (O4)."""
        view.behind.add(row.lane)
        view.held_back.append(heappop(view.matched))

    def judge(self, view: FilterView, row: Row, matches: bool) -> None:
        """What a view found out about its first unseen row."""
        heappop(view.unseen)
        view.seen[row.id] = matches
        if matches:
            heappush(view.matched, (row.key, row.id))

    def keep_cold(self, rows: list[Row]) -> list[int]:
        """Rows leave for the cold part: the numbers of the views that want none of them."""
        found = []
        for view in self.views.values():
            if all(view.seen.get(row.id) is False for row in rows):
                found.append(view.number)
                for row in rows:
                    view.leave(row)
        return found


def _turn(ranked: tuple[int, Row]) -> int:
    return ranked[0]
