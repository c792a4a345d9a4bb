"""The cold part of a queue: sorted rows in immutable segments, merged as in an LSM tree.

A *segment* is a page of about `Limits.segment_rows` sorted rows; its summary stays in memory. A
*group* is a list of segments in order. Spilled rows are appended to the end of a group if the order
allows it, so a FIFO queue has one group that is never rewritten. Otherwise they become a group of
their own. A group's level depends on its number of rows: each level has four times as many as the
one below. Four groups of one level are merged into one of the next, in slices. A *merge* moves rows
from the fronts of its inputs to the end of its output. All rows stay readable meanwhile, because
the inputs and the output are sorted groups like any other.

Two kinds of segments stay in memory: the fronts of merging groups, so that each slice need not
decode them, and the last segment of a growing group (`extend`), which is written when it is full or
at a mark.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter

from ..limits import Limits
from .calendar import Calendar
from .id_set import IdSet
from .row import NEVER, Row
from .segment_pages import SegmentPages, Settle
from .segments import NO_FILTER, Group, Merge, RunsState, Segment, StoredGroup, common
from .store import Store

FAN = 4  # how many groups of one level are merged into one
MOVED_COST = 16  # moving a segment without reading it counts as this many rows
SPARSE = 3  # a group with segments less than a third full is rewritten

_FIRST, _LAST, _LOWEST = attrgetter("first"), attrgetter("last"), attrgetter("level", "number")


class Runs:
    """Cold rows in ascending order of ``by``. Keys and ids are unique."""

    __slots__ = (
        "_due", "_first", "_groups", "_ids", "_last", "_limits", "_merges", "_next",
        "_ordered", "_pages", "_segments", "_unseen", "by", "bytes", "rows",
    )  # fmt: skip

    def __init__(
        self, store: Store, prefix: str, state: RunsState, limits: Limits,
        by: Callable[[Row], int], settle: Settle,
    ) -> None:  # fmt: skip
        self._limits, self.by = limits, by
        self.rows = 0
        self.bytes = 0
        self._next = state.next_number
        self._groups: list[Group] = []  # the oldest first
        self._segments: dict[int, Segment] = {}  # by number
        self._merges: list[Merge] = []
        self._ids = IdSet(store, f"{prefix}i/", state.ids)
        self._pages = SegmentPages(store, prefix, settle)
        self._due = Calendar[int](self._due_of)  # by the segments' numbers
        self._first: Segment | None = None
        self._last: Segment | None = None  # the one that ends last
        self._ordered: list[Segment] | None = []  # None: must be sorted again
        self._unseen: dict[int, Segment | None] = {}  # a cache for `unseen`
        levels = dict(state.merges)
        for stored in state.groups:
            self._load_group(stored, levels)
        self._changed()

    def _load_group(self, stored: StoredGroup, levels: dict[int, int]) -> None:
        group = Group([], stored.merge)
        group.segments += [segment.unpacked(group) for segment in stored.segments]
        if not stored.merge:
            self._groups.append(group)
        elif self._merges and self._merges[-1].number == stored.merge:
            self._merges[-1].inputs.append(group)
        else:
            self._merges.append(Merge(stored.merge, levels[stored.merge], group))
        for segment in group.segments:
            self._segments[segment.number] = segment
            self.rows += segment.rows
            self.bytes += segment.bytes
            group.rows += segment.rows
            self._due.watch(segment.number, segment.due)

    def write(self) -> None:
        """Write all segments without a page."""
        for segment in list(self._pages.unwritten.values()):
            self._pages.write(segment)
        self._ids.write()

    def state(self) -> RunsState:
        """Write, and return the part for the queue's page."""
        self.write()
        return RunsState(
            self._next,
            [StoredGroup(g.merge, [s.packed() for s in g.segments]) for g in self._all_groups()],
            self._ids.state(),
            [(merge.number, merge.level) for merge in self._merges],
        )

    def drop(self) -> None:
        """Delete all pages. The queue is empty by then, so they are few."""
        for _, segment in sorted(self._segments.items()):
            self._pages.delete(segment)
        self._ids.drop()
        self.rows = self.bytes = 0
        self._groups, self._segments, self._merges = [], {}, []
        self._changed()

    # ------------------------------------------------------------ looking

    def first(self) -> int | None:
        """The key of the first cold row."""
        return None if self._first is None else self._first.first

    def last(self) -> int | None:
        """The key of the last cold row."""
        return None if self._last is None else self._last.last

    def due(self) -> int:
        """The earliest deadline of a cold row, or NEVER."""
        return self._due.next()

    def first_due(self, since: int) -> Segment | None:
        """The segment with the earliest deadline, if that is not after this time; of several with
        the same deadline the first."""
        number, first = self._due.due(since), self._first
        if number is None or first is None:
            return None
        segment = self._segments[number]
        return first if first.due == segment.due else segment

    def segments(self) -> list[Segment]:
        """All segments, in order of their first keys. They may overlap."""
        if self._ordered is None:
            self._ordered = sorted(self._segments.values(), key=_FIRST)
        return self._ordered

    def segment(self, number: int) -> Segment | None:
        """The segment with this number, or None if it is gone."""
        return self._segments.get(number)

    def unseen(self, number: int) -> Segment | None:
        """The first segment that a filter has not read."""
        if number not in self._unseen:
            self._unseen[number] = next(
                (segment for segment in self.segments() if not segment.was_seen_by(number)), None
            )
        return self._unseen[number]

    def see(self, segment: Segment, number: int, waiting: bool, known: Collection[int]) -> None:
        """Note that a filter has read a segment. waiting: it left rows that wait there; known: the
        filters that there are; the segment forgets the others."""
        looked = [one for one in segment.looked if abs(one) in known]
        segment.looked = [*looked, -number if waiting else number]
        self._unseen.pop(number, None)

    def has(self, number: int) -> bool:
        """Whether a message is here. Reads no row."""
        return bool(self.rows) and self._ids.has_any(number, number)

    def with_ids(self, ranges: Iterable[tuple[int, int]]) -> list[Segment]:
        """The segments whose ids may be in these ascending ranges, in order. Reads no row."""
        if not self.rows:
            return []
        here = [span for span in ranges if self._ids.has_any(*span)]
        if not here:
            return []
        ends = [high for _, high in here]
        found = []
        for segment in self.segments():
            at = bisect_left(ends, segment.id_first)
            if at < len(here) and here[at][0] <= segment.id_last:
                found.append(segment)
        return found

    def read(self, segment: Segment) -> list[Row]:
        """The rows of a segment, which must not be changed while they are in it. Empty if the
        segment was taken or merged meanwhile."""
        if segment.number not in self._segments:
            return []
        return self._pages.read(segment)

    # ------------------------------------------------------------ changes

    def add(self, rows: Sequence[Row], looked: Sequence[int] = ()) -> list[Segment]:
        """Add sorted rows; returns their segments. looked: filters that have read all of them;
        `NO_FILTER` in it: the rows wait for their lanes (`Ready.park`)."""
        if not rows:
            return []
        self._count(rows)
        group = self._group_for(self.by(rows[0]))
        seen = list(looked)
        if group.segments:
            last = group.segments[-1]
            is_small = 2 * last.rows <= self._limits.segment_rows and NO_FILTER not in seen
            if is_small and set(last.looked) <= set(seen):  # no filter has to read them again
                rows = [*self._pages.read(last), *rows]  # they share a page with the new ones
                seen = list(last.looked)
                self._delete(group, last)
            else:
                self._close(group)
        step = self._limits.segment_rows
        made = []
        for at in range(0, len(rows), step):
            part = rows[at : at + step]
            made.append(self._append(group, part, list(seen)))
            self._pages.put(made[-1], part)
        self._plan()
        self._changed()
        return made

    def extend(self, rows: Sequence[Row]) -> None:
        """Add sorted rows behind all others. No filter has read them. Their page is written later,
        so that single rows do not cost a page each."""
        self._count(rows)
        tail = self._last
        if (
            tail is not None and not tail.group.merge
            and tail.rows + len(rows) < self._limits.segment_rows
        ):  # fmt: skip
            self._grow(tail, rows, [])  # most often
            return
        self._extend(self._group_for(self.by(rows[0])), rows, [])
        self._plan()
        self._changed()

    def take(self) -> list[Row]:
        """Remove the first segment and return its rows. Others may overlap it: compare with `first`
        before each row is delivered."""
        segment = self._first
        if segment is None:
            return []
        rows = self._pages.read(segment)
        self._leave(segment, rows)
        return rows

    def replace(self, segment: Segment, rows: Sequence[Row], gone: Sequence[Row]) -> None:
        """Remove some of a segment's rows. rows: the others; maybe none."""
        n = len(rows) + len(gone)
        assert n == segment.rows, f"segment {segment.number} has {segment.rows} rows, not {n}"
        if not rows:
            self._leave(segment, gone)
            return
        self._ids.remove([row.id for row in gone])
        self.rows -= segment.rows - len(rows)
        self.bytes -= segment.bytes
        segment.group.rows -= segment.rows - len(rows)
        segment.skip = 0
        self._sum_up(segment, rows)
        self.bytes += segment.bytes
        self._pages.put(segment, rows)
        self._plan()
        self._changed()

    # ------------------------------------------------------------ merging

    @property
    def is_merging(self) -> bool:
        """Whether a merge is unfinished."""
        return bool(self._merges)

    def merge(self, budget_rows: int) -> bool:
        """Go on with the merges, for about this many rows; returns whether there is more."""
        left = budget_rows
        while left > 0 and self._merges:
            merge = min(self._merges, key=_LOWEST)
            merge.inputs = [group for group in merge.inputs if group.segments]
            if merge.inputs:
                left -= self._merge_slice(merge, left)
            else:
                self._finish(merge)
            self._changed()
        return bool(self._merges)

    def _merge_slice(self, merge: Merge, most: int) -> int:
        """Move rows from the fronts of the inputs to the end of the output; returns how many."""
        fronts = sorted((group.segments[0].first, at) for at, group in enumerate(merge.inputs))
        group = merge.inputs[fronts[0][1]]
        segment = group.segments[0]
        alone = len(fronts) == 1 or segment.last < fronts[1][0]
        tail = merge.output.segments[-1:]
        if alone and all(2 * s.rows >= self._limits.segment_rows for s in (segment, *tail)):
            self._move_whole(merge, group)
            return MOVED_COST
        heads = [group.segments[0] for group in merge.inputs]
        lists = [self._pages.load(head) for head in heads]
        # Rows are complete only up to the end of the head that ends first: its group may continue.
        bound = min(head.last for head in heads)
        found = [row for rows in lists for row in rows[: self._up_to(rows, bound)]]
        found.sort(key=self.by)
        del found[most:]
        bound = self.by(found[-1])
        looked: list[int] | None = None
        for at, (head, rows) in enumerate(zip(heads, lists, strict=True)):
            n = self._up_to(rows, bound)
            if n:
                looked = common(head.looked if looked is None else looked, head.looked)
                self._cut(merge.inputs[at], head, rows, n)
        self._extend(merge.output, found, looked or [])
        return len(found)

    def _up_to(self, rows: list[Row], bound: int) -> int:
        return bisect_right(rows, bound, key=self.by)

    def _move_whole(self, merge: Merge, group: Group) -> None:
        """Move a whole segment that comes before all other rows."""
        self._close(merge.output)
        segment = group.segments.pop(0)
        merge.output.segments.append(segment)
        segment.group = merge.output
        group.rows -= segment.rows
        merge.output.rows += segment.rows

    def _cut(self, group: Group, head: Segment, rows: list[Row], n: int) -> None:
        """Remove the first rows of a head."""
        if n == len(rows):
            self._delete(group, head)
            return
        moved, rest = rows[:n], rows[n:]
        self._pages.keep(head, rest)
        head.skip += n
        head.first = self.by(rest[0])
        head.rows -= n
        group.rows -= n
        head.bytes -= sum([row.size for row in moved])
        if head.due != NEVER and head.due == min([row.due for row in moved]):
            head.due = min([row.due for row in rest])

    def _extend(self, output: Group, rows: Sequence[Row], looked: list[int]) -> None:
        """Append rows to the last segment of a group, and to new segments once it is full."""
        step, at = self._limits.segment_rows, 0
        while at < len(rows):
            tail = output.segments[-1] if output.segments else None
            if tail is None or tail.rows >= step:
                tail = self._append(output, rows[at : at + step], list(looked))
                self._pages.keep(tail, list(rows[at : at + step]))
                self._pages.unwritten[tail.number] = tail
                at += tail.rows
            else:
                part = rows[at : at + step - tail.rows]
                self._grow(tail, part, looked)
                at += len(part)
            if tail.rows >= step:
                self._close(output)

    def _grow(self, tail: Segment, rows: Sequence[Row], looked: list[int]) -> None:
        """Add rows behind those of a segment. It stays in memory, its page is not written yet."""
        self._pages.load(tail).extend(rows)
        tail.group.rows += len(rows)
        tail.looked = common(tail.looked, looked)
        tail.skip = 0
        self._count_in(tail, rows)
        self._pages.unwritten[tail.number] = tail

    def _close(self, output: Group) -> None:
        """Write the last segment of a group. It gets no more rows."""
        if output.segments:
            self._pages.write(output.segments[-1])
            self._pages.forget(output.segments[-1])

    def _finish(self, merge: Merge) -> None:
        self._close(merge.output)
        self._merges.remove(merge)
        merge.output.merge = 0
        if merge.output.segments:
            self._groups.append(merge.output)
        self._plan()

    def _plan(self) -> None:
        """Begin the merges that are due: four groups of one level, or one sparse group."""
        self._groups = [group for group in self._groups if group.segments]
        if not self._groups:
            return
        levels: dict[int, list[Group]] = {}
        for group in self._groups:
            levels.setdefault(group.level(), []).append(group)
        chosen = [(level, groups[:FAN]) for level, groups in levels.items() if len(groups) >= FAN]
        for level, groups in chosen:
            self._begin(level, groups)
        for group in self._groups[:]:
            if SPARSE * group.rows < (len(group.segments) - 1) * self._limits.segment_rows:
                self._begin(group.level(), [group])

    def _begin(self, level: int, groups: list[Group]) -> None:
        merge = Merge(self._next, level, Group([], self._next), groups)
        self._next += 1
        for group in groups:
            self._close(group)
            group.merge = merge.number
        self._groups = [group for group in self._groups if not group.merge]
        self._merges.append(merge)

    # ------------------------------------------------------------ segments

    def _all_groups(self) -> list[Group]:
        merging = [group for merge in self._merges for group in (merge.output, *merge.inputs)]
        return [*self._groups, *merging]

    def _group_for(self, key: int) -> Group:
        """The group outside merges that ends closest before a key, else a new one."""
        before = [g for g in self._groups if g.segments and g.segments[-1].last < key]
        if not before:
            self._groups.append(Group([]))
            return self._groups[-1]
        return max(before, key=_LAST)

    def _count(self, rows: Sequence[Row]) -> None:
        self.rows += len(rows)
        self.bytes += sum([row.size for row in rows])
        self._ids.add([row.id for row in rows])

    def _append(self, group: Group, rows: Sequence[Row], looked: list[int]) -> Segment:
        """Add a segment to the end of a group. Its page is not written here."""
        segment = Segment(group, self._next, 0, 0, 0, 0, 0, 0, NEVER, looked)
        self._next += 1
        group.segments.append(segment)
        group.rows += len(rows)
        self._segments[segment.number] = segment
        self._sum_up(segment, rows)
        return segment

    def _sum_up(self, segment: Segment, rows: Sequence[Row]) -> None:
        """Make a segment's summary from its rows."""
        segment.first, segment.rows, segment.bytes = self.by(rows[0]), 0, 0
        segment.id_first = segment.id_last = rows[0].id
        segment.due = NEVER
        self._count_in(segment, rows)

    def _count_in(self, segment: Segment, rows: Sequence[Row]) -> None:
        """Add rows at the end of a segment to its summary."""
        due = segment.due
        segment.count(rows, self.by(rows[-1]))
        if segment.due < due:
            self._due.watch(segment.number, segment.due)

    def _leave(self, segment: Segment, rows: Sequence[Row]) -> None:
        """Remove a segment with all its rows."""
        group = segment.group
        self.rows -= segment.rows
        self.bytes -= segment.bytes
        self._ids.remove([row.id for row in rows])
        self._delete(group, segment)
        if not group.segments and not group.merge:
            self._groups.remove(group)
        self._changed()

    def _delete(self, group: Group, segment: Segment) -> None:
        """Delete a segment and its page. Its rows are elsewhere."""
        group.segments.remove(segment)
        group.rows -= segment.rows
        del self._segments[segment.number]
        self._due.forget(segment.number)
        self._pages.delete(segment)

    def _changed(self) -> None:
        """Update what depends on the list of segments and their first keys."""
        self._ordered = None
        self._unseen.clear()
        groups = [group for group in self._all_groups() if group.segments]
        self._first = min([group.segments[0] for group in groups], key=_FIRST, default=None)
        self._last = max([group.segments[-1] for group in groups], key=_LAST, default=None)

    def _due_of(self, number: int) -> int:
        return self._segments[number].due if number in self._segments else NEVER
