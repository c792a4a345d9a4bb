"""Selection: the messages to deliver now, and their receivers (B1–B4, F1–F5, R5).

The subscriptions of a queue with the same filter text form a *class*: they can take the same
messages. With one class, many messages are shared out at once. With several, selection goes message
by message: the earliest one that a subscription with room can take goes to the one whose turn it
is.
"""

from __future__ import annotations

from heapq import heappop, heappush

import msgspec

from ..limits import Budget
from ..queue.broker import Broker
from ..queue.consumers import UNLIMITED, Candidate, Kind, Order
from ..queue.queue import Queue
from ..queue.ready import FilterView
from ..rules.active_set import first_inactive
from ..rules.dead import afford_deaths
from ..rules.filter_matching import Blocks, matching
from ..rules.returned_leases import expire
from ..storage.row import HIGHEST, LOWEST, Row
from ..storage.segments import Segment


class Chosen(msgspec.Struct):
    """Messages and the receiver of each. unfinished: a budget ended the search; last: no
    subscription can take another message."""

    rows: list[Row] = []
    receivers: list[Candidate] = []
    unfinished: bool = False
    last: bool = False


def choose_messages(
    broker: Broker, queue: Queue, free_unacked: int, budget: Budget, looks: Budget
) -> Chosen:
    """The next messages and their receivers. Takes them from the budgets."""
    definition, header = queue.header.definition, queue.header
    room = UNLIMITED  # for leases; without room, nobody gets a message (B1)
    if definition.max_backlog is not None:
        room = max(definition.max_backlog - header.leased, 0)
    consumers = queue.consumers
    own = consumers.order(definition)
    chosen = _chosen(broker, queue, own, room, free_unacked, budget, looks)
    if free_unacked <= 0 or not consumers.others:
        return chosen
    others = consumers.order_of_others(definition)
    if not others.kinds or chosen.rows or chosen.unfinished:
        chosen.last = chosen.last and not others.kinds
        return chosen
    # Other brokers get what no consumer here can take (H4).
    return _chosen(broker, queue, others, UNLIMITED, free_unacked, budget, looks)


def _chosen(
    broker: Broker, queue: Queue, order: Order, room: int, free_unacked: int, budget: Budget,
    looks: Budget,
) -> Chosen:  # fmt: skip
    header = queue.header
    kinds = list(order.kinds.values())
    if free_unacked <= 0:  # this limit concerns leases only (B4)
        kinds = [kind for kind in kinds if kind.free]
    if not kinds or room <= 0:
        return Chosen()
    if len(kinds) == 1:
        (kind,) = kinds
        rooms = kind.room
        most = min(rooms, budget.rows, most_at_once(queue))
        if not kind.free:  # else they leave on send, without a lease
            most = min(most, room, free_unacked)
        # With filters or lanes, other ready messages may come before those that are taken.
        skips = kind.filter is not None or queue.ready.lanes
        search = Search(broker, queue, budget, looks, None if skips else most)
        rows = search.take(kind.filter, most, kind.free)
        receivers = order.share(kind, len(rows), header.served)
        last = len(rows) == rooms
    else:
        last = False
        search = Search(broker, queue, budget, looks)
        rows, receivers = _one_by_one(queue, search, order, kinds, room, free_unacked)
    if receivers:
        header.served = receivers[-1].number
    return Chosen(rows, receivers, search.unfinished or budget.spent, last)


def most_at_once(queue: Queue) -> int:
    """How many messages are chosen at once: fewer than remain live after a spill."""
    return queue.limits.live_rows // 2


class Search:
    """Finds the first messages that a class can take: not behind a barrier, not expired. most: of
    the first ready ones; None if others may come between."""

    def __init__(
        self, broker: Broker, queue: Queue, budget: Budget, looks: Budget, most: int | None = None
    ) -> None:
        self.broker, self.queue, self.budget, self.looks = broker, queue, budget, looks
        self.end = _end_of_order(queue, most)
        self.unfinished = False

    def take(self, text: str | None, most: int, free: bool) -> list[Row]:
        """Take up to ``most`` first messages for the class with this filter, within the budget.
        They are removed from the order, so the caller must deliver them. free: they leave on send,
        so the search stops after a message of a lane: then the next one of that lane is due (O4).
        """
        found: list[Row] = []
        budget, ready, now = self.budget, self.queue.ready, self.broker.now
        heap = ready.heap if text is None else self.queue.view_of(text).matched
        while len(found) < most and not budget.spent:
            before, end, enough = len(found), self.end, most
            if text is None:
                cold = self.queue.first_cold() if self.queue.cold.rows else None
                if cold is not None and cold < end:
                    end = cold  # the rows behind it have to wait for it
            else:  # the filter may have to be evaluated on another row before the next one
                first = self.first(text)
                if first is None:
                    break
                end, enough = first.key + 1, before + 1
            size = ready.take(heap, found, end, now, enough, budget.bytes, free)
            if size > budget.bytes and len(found) > 1:  # the last one is too large
                size -= found[-1].size
                ready.put_back(heap, [found.pop()])
                self.unfinished = True
            budget.take(len(found) - before, size)
            if self.unfinished or (free and found and found[-1].lane):
                break
            if len(found) == before and self.first(text) is None:
                break  # there is none; else `first` has made it live, or removed overdue ones
        return found

    def first(self, text: str | None) -> Row | None:
        """The first message for a class. It stays in the order."""
        while True:
            row = self._first_of_all() if text is None else self._first_of(text)
            if row is None or row.key >= self.end:
                return None
            if row.expires > self.broker.now:
                return row
            if self.looks.spent:
                self.unfinished = True
                return None
            # It is overdue: a budget ended before it expired.
            self.looks.take(afford_deaths(self.broker, self.queue, [row], self.looks))
            expire(self.broker, self.queue, [row])

    def _first_of_all(self) -> Row | None:
        """The first ready row. Cold rows before it become live."""
        queue = self.queue
        while True:
            row, first = queue.ready.first(), queue.first_cold()
            if first is None or (row is not None and row.key < first) or first >= self.end:
                return row
            if not queue.ready.lanes:
                queue.thaw_first()
            elif self.looks.spent:
                self.unfinished = True
                return None
            else:
                self.looks.take(queue.thaw_next())

    # ------------------------------------------------------------ with a filter

    def _first_of(self, text: str) -> Row | None:
        """The first row that matches a filter. Evaluates the filter on live rows in order, and on
        the segments before them, once each."""
        queue = self.queue
        view = queue.view_of(text)
        while True:
            row = self._search_live(view)
            if self.unfinished:
                return None
            if not self._search_cold(view, row):
                if self.unfinished:
                    return None
                if row is None or not view.waits(row):
                    return row
                if view.skipped[row.lane] == LOWEST:
                    queue.look_again(view)
                else:
                    queue.ready.hold_back(view, row)

    def _search_live(self, view: FilterView) -> Row | None:
        """The first live row that matches. Evaluates the filter on unseen rows before it."""
        ready = self.queue.ready
        while True:
            row, unseen = ready.top(view.matched), ready.top(view.unseen)
            if unseen is None or (row is not None and row.key < unseen.key):
                return row
            verdict = view.seen.get(unseen.id)
            if verdict is None:
                if self.looks.spent:
                    self.unfinished = True
                    return None
                self.looks.take(1, unseen.size + len(view.text))
                verdict = matching(self.broker, [unseen], view.text)[0]
            ready.judge(view, unseen, verdict)

    def _search_cold(self, view: FilterView, row: Row | None) -> bool:
        """Search the next segment that may have a match before ``row``; returns whether there was
        one. Its matches become live, unless they wait for others of their lanes."""
        queue = self.queue
        asks, segment = queue.ready.asks(), queue.cold.unseen(view.number)
        if asks is not None and (segment is None or asks[0] < segment.first):
            first, segment = asks[0], None
        elif segment is not None:
            first = segment.first
        else:
            return False
        if (row is not None and first > row.key) or first >= self.end:
            return False
        if self.looks.spent:
            self.unfinished = True
            return False
        if segment is None:
            self.looks.take(queue.thaw_asked())
        else:
            self._search_segment(view, segment)
        return True

    def _search_segment(self, view: FilterView, segment: Segment) -> None:
        queue = self.queue
        rows = queue.cold.read(segment)
        blocks = Blocks(self.broker)
        opened = sum(map(blocks.opens, rows))
        self.looks.take(
            len(rows) + self.broker.limits.block_rows * opened,
            segment.bytes + len(rows) * len(view.text),
        )
        matches: list[Row] = []
        behind: set[int] = set()
        for one, verdict in zip(rows, matching(self.broker, rows, view.text), strict=True):
            if verdict and not view.waits(one):
                matches.append(one)
                continue
            if verdict:
                behind.add(one.lane)
            view.leave(one)
        if any(view.skipped[lane] == LOWEST for lane in behind):
            queue.look_again(view)
            return
        view.behind |= behind
        wanted, waiting = queue.ready.part(matches)
        queue.leave_cold(segment, view.number, waiting)
        if wanted:
            view.seen.update((one.id, True) for one in wanted)
            ids = {one.id for one in wanted}
            queue.thaw(queue.cold, segment, wanted, [one for one in rows if one.id not in ids])

    def evaluate_filter(self, text: str | None, row: Row) -> bool:
        """Whether the class with this filter can take a message found for another class."""
        if text is None:
            return True
        view = self.queue.view_of(text)
        verdict = view.seen.get(row.id)
        if verdict is None:
            self.looks.take(1, row.size + len(text))
            verdict = view.seen[row.id] = matching(self.broker, [row], text)[0]
            if verdict:
                heappush(view.matched, (row.key, row.id))
        return verdict


def _end_of_order(queue: Queue, most: int | None) -> int:
    """Nothing can be delivered from this key on: that of the first row behind the oldest barrier
    (O3), or of the first inactive row (R5)."""
    header, end = queue.header, HIGHEST
    if header.definition.target_queue_depth is not None:
        inactive = first_inactive(queue, most)
        end = HIGHEST if inactive is None else inactive
    if header.barriers:
        end = min(end, (next(iter(header.barriers)) + 1 << 128) - (((1 << 64) - 1) << 64))
    return end


def _one_by_one(
    queue: Queue, search: Search, order: Order, kinds: list[Kind], room: int, free_unacked: int
) -> tuple[list[Row], list[Candidate]]:
    """Select message by message: the earliest that a subscription can take, for the one whose turn
    it is."""
    served = queue.header.served
    classes: dict[str | None, list[Kind]] = {}
    for kind in sorted(kinds, key=lambda kind: kind.numbers[0]):
        classes.setdefault(kind.filter, []).append(kind)
    taken: list[Row] = []
    receivers: list[Candidate] = []
    aside: dict[int, Row] = {}  # selected but not delivered yet: their heap entries are skipped
    budget, ready = search.budget, queue.ready

    def may_take(kind: Kind) -> bool:
        return bool(kind.ranked) and room > 0 and (kind.free or free_unacked > 0)

    def head_of(text: str | None) -> Row | None:
        while True:
            row = search.first(text)
            if row is None or row.id not in aside:
                return row
            heappop(ready.heap if text is None else queue.view_of(text).matched)

    most = min(budget.rows, most_at_once(queue))
    while len(taken) < most and not budget.spent:
        able_classes = [text for text, group in classes.items() if any(map(may_take, group))]
        if taken and search.looks.rows < len(able_classes):  # one message may need this many
            search.unfinished = True
            break
        heads = [head for text in able_classes if (head := head_of(text)) is not None]
        if not heads:
            break
        row = min(heads, key=lambda one: one.key)
        able = [
            kind for text in able_classes if search.evaluate_filter(text, row)
            for kind in classes[text] if may_take(kind)
        ]  # fmt: skip
        one = order.choose(able, served)
        if not one.free:
            order.place(one, one.backlog, one.held + 1, one.room - 1)
            queue.consumers.changed(one.subscription)  # if it is not delivered after all
            room -= 1
            free_unacked -= 1
        served = one.number
        aside[row.id] = row
        taken.append(row)
        receivers.append(one)
        budget.take(1, row.size)
        if one.free and row.lane:  # the next message of its lane is due (O4)
            break
    return taken, receivers
