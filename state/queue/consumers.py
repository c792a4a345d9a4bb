"""A queue's subscriptions: found by id and number, and in the order in which they are served.

A *candidate* is a consumer of this broker that can take more messages, within its backlog limits
(B1–B3). Candidates can take the same messages if they have the same filter, and all lease messages
or all get them without a lease. They are of one *kind*. A kind keeps its candidates by rank: the
fairness models differ only in the rank (F1–F3). Among equals the oldest subscription comes first.

Nothing here is stored. Code that changes what a candidate's place depends on calls `changed`. The
place is computed again when the order is next used. So a step costs what has changed, however many
consumers wait. Other brokers have few subscriptions, so these are looked at each time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heapreplace
from operator import attrgetter

import msgspec

from ...definitions import QueueDefinition
from ..storage.calendar import Calendar
from ..storage.row import NEVER
from .header import Subscription

UNLIMITED = 1 << 62
_number = attrgetter("number")


def backlog_of(definition: QueueDefinition, subscription: Subscription) -> int:
    """The lowest of the queue's limit, the subscription's own (B2) and the flow's (B4)."""
    own = own_backlog(subscription)
    return own if subscription.broker is not None else min(own, _backlog_of_queue(definition))


def _backlog_of_queue(definition: QueueDefinition) -> int:
    """The lower of the queue's own limits."""
    return min(definition.max_per_subscription_backlog, definition.max_delivered_unacked_per_flow)


def leaves_on_send(definition: QueueDefinition, subscription: Subscription) -> bool:
    """Whether messages for a subscription leave when they are sent, without a lease (L2)."""
    return subscription.removes_on_send or definition.semantics == "at-most-once"


def terms_of(definition: QueueDefinition, subscription: Subscription) -> dict[str, int | bool]:
    """The terms by which a consumer acknowledges: it has to know them (L2, C6)."""
    free = leaves_on_send(definition, subscription)
    return {"removes_on_send": free, "backlog": backlog_of(definition, subscription)}


def own_backlog(subscription: Subscription) -> int:
    """The limit that the subscription asks for; 1 if it names none (B2)."""
    return 1 if subscription.max_backlog is None else subscription.max_backlog


class Candidate(msgspec.Struct, eq=False):
    """A subscription in the order. backlog: its limit; held: what it leases, with what is being
    selected for it; room: how many more messages it can take; rank: None while it has no room."""

    subscription: Subscription
    number: int
    free: bool  # its messages leave the queue when they are sent, without a lease (L2)
    backlog: int = 0
    held: int = 0
    room: int = 0
    rank: float | None = None
    spare: int = 0  # of its backlog, also if it gets nothing now or leases nothing


Ranked = tuple[float, int, Candidate]  # rank, number; a tie never reaches the candidate


class Kind:
    """The candidates of one kind."""

    __slots__ = ("filter", "free", "numbers", "ranked", "room")

    def __init__(self, text: str | None, free: bool) -> None:
        self.filter, self.free = text, free
        self.ranked: list[Ranked] = []  # sorted
        self.numbers: list[int] = []  # sorted
        self.room = 0  # of all together


class Order:
    """Candidates, by the fairness model."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.kinds: dict[tuple[str | None, bool], Kind] = {}  # those with candidates

    def place(self, one: Candidate, backlog: int, held: int, room: int) -> None:
        """Give a candidate the place that it has with these; without room it has none."""
        rank, before, number = None, one.rank, one.number
        if room > 0:
            if self.model == "proportional":  # F3
                rank = held / backlog
            elif self.model == "fast":  # F1: the highest consumer priority first
                rank = -one.subscription.priority
            else:  # F2: by number alone
                rank = 0
        else:
            room = 0
        if rank is not None or before is not None:
            key = one.subscription.filter, one.free
            kind = self.kinds.get(key)
            if kind is None:
                kind = self.kinds[key] = Kind(*key)
            kind.room += room - one.room
            if rank != before:
                ranked, numbers = kind.ranked, kind.numbers
                if before is None:
                    insort(numbers, number)
                else:
                    del ranked[bisect_left(ranked, (before, number))]
                if rank is not None:
                    insort(ranked, (rank, number, one))
                elif ranked:
                    del numbers[bisect_left(numbers, number)]
                else:
                    del self.kinds[key]
        one.backlog, one.held, one.room, one.rank = backlog, held, room, rank

    def first(self, kind: Kind, served: int, most: int) -> list[Candidate]:
        """Up to ``most`` candidates of a kind, in the order in which they are served. served: the
        number of the one served last."""
        at, ranked = self._first(kind, served), kind.ranked
        found = ranked[at : at + most]
        if at and len(found) < most:
            found += ranked[: min(at, most - len(found))]
        return [one for _, _, one in found]

    def choose(self, kinds: list[Kind], served: int) -> Candidate:
        """The candidate of any of these kinds that gets the next message."""
        firsts = [kind.ranked[self._first(kind, served)] for kind in kinds]
        if self.model == "round-robin":
            return min(firsts, key=lambda one: (one[1] <= served, one[1]))[2]
        return min(firsts)[2]

    def share(self, kind: Kind, messages: int, served: int) -> list[Candidate]:
        """The candidates of a kind that get ``messages`` messages in a row; together they have room
        for them. Each has room for one at least, so no more candidates than messages are needed."""
        if len(kind.ranked) == 1:  # most often
            return [kind.ranked[0][2]] * messages
        candidates = self.first(kind, served, messages)
        if len(candidates) < 2 or (kind.free and self.model != "round-robin"):
            return candidates[:1] * messages
        if self.model == "proportional":
            return _by_ratio(candidates, messages)
        out: list[Candidate] = []
        given = 0
        while len(out) < messages:
            if self.model == "fast":  # each is filled up
                candidate = candidates[given]
                out += [candidate] * min(candidate.room, messages - len(out))
            else:  # each gets one in turn
                candidates = [one for one in candidates if one.room > given]
                out += candidates[: messages - len(out)]
            given += 1
        return out

    def _first(self, kind: Kind, served: int) -> int:
        """Where the first one is: under `round-robin` behind the one served last (F2)."""
        if self.model != "round-robin":
            return 0
        at = bisect_left(kind.ranked, (0, served + 1))
        return at if at < len(kind.ranked) else 0


def _by_ratio(candidates: list[Candidate], messages: int) -> list[Candidate]:
    heap = [(one.rank, one.number, one.held, one) for one in candidates]  # sorted, so a heap
    out: list[Candidate] = []
    while len(out) < messages:
        _, number, held, one = heap[0]
        out.append(one)
        held += 1
        if held < one.backlog:
            heapreplace(heap, (held / one.backlog, number, held, one))
        else:
            heappop(heap)
    return out


class Bound(msgspec.Struct):
    """This broker's consumers with the same filter that are not ending."""

    numbers: list[int] = []  # sorted
    spare: int = 0  # of all together


class Consumers:
    """All subscriptions of a queue."""

    __slots__ = (
        "_again", "_bound", "_candidates", "_changed", "_definition", "_most", "_order",
        "_unwatched", "_watched_by", "by_id", "by_number", "listed", "others",
    )  # fmt: skip

    def __init__(self, listed: list[Subscription]) -> None:
        self.listed = listed  # the header's list, in order of the numbers
        self.by_id: dict[str, Subscription] = {}
        self.by_number: dict[int, Subscription] = {}
        self.others: dict[int, Subscription] = {}  # of other brokers
        self._again = Calendar[int](self._time_of)
        self._changed: set[int] = set()
        self._unwatched: set[int] = set()
        self._watched_by: QueueDefinition | None = None
        self._candidates: dict[int, Candidate] = {}
        self._bound: dict[str | None, Bound] = {}  # by filter
        self._definition: QueueDefinition | None = None  # that the order was made for
        self._order = Order("")
        for one in listed:
            self._note(one)

    def _note(self, one: Subscription) -> None:
        self.by_id[one.id] = self.by_number[one.number] = one
        if one.broker is not None:
            self.others[one.number] = one
        self.changed(one)
        self.watch(one)

    def add(self, one: Subscription) -> None:
        """Add a subscription, also to the header's list."""
        self.listed.append(one)
        self._note(one)

    def remove(self, one: Subscription) -> None:
        """Remove a subscription, also from the header's list."""
        del self.listed[bisect_left(self.listed, one.number, key=_number)]
        del self.by_id[one.id], self.by_number[one.number]
        self.others.pop(one.number, None)
        self._changed.add(one.number)

    # ------------------------------------------------------------ the order

    def changed(self, one: Subscription) -> None:
        """Note that a subscription leases more or fewer messages, has another backlog, is ending,
        or begins or ceases to get messages again."""
        self._changed.add(one.number)
        self._unwatched.add(one.number)

    def order(self, definition: QueueDefinition) -> Order:
        """The order of this broker's consumers, as of now."""
        if definition is not self._definition:
            self._definition, self._order = definition, Order(definition.fairness_model)
            self._most = _backlog_of_queue(definition)
            self._candidates, self._bound = {}, {}
            self._changed.update(self.by_number)
        if self._changed:
            for number in self._changed:
                self._place(number, definition)
            self._changed.clear()
        return self._order

    def _place(self, number: int, definition: QueueDefinition) -> None:
        one, candidate = self.by_number.get(number), self._candidates.get(number)
        if one is None or one.ending:
            if candidate is not None:
                del self._candidates[number]
                self._order.place(candidate, 0, 0, 0)
                self._leave(candidate)
            return
        if one.broker is not None:
            return
        if candidate is None:
            free = leaves_on_send(definition, one)
            candidate = self._candidates[number] = Candidate(one, number, free)
            insort(self._bound.setdefault(one.filter, Bound()).numbers, number)
        backlog, held, room = 1 if one.max_backlog is None else one.max_backlog, one.held, 0
        if backlog > self._most:
            backlog = self._most
        spare = backlog - held if backlog > held else 0
        if backlog and not one.again:
            room = UNLIMITED if candidate.free else spare
        if spare != candidate.spare:
            self._bound[one.filter].spare += spare - candidate.spare
            candidate.spare = spare
        if held != candidate.held or room != candidate.room or backlog != candidate.backlog:
            self._order.place(candidate, backlog, held, room)

    def _leave(self, candidate: Candidate) -> None:
        text = candidate.subscription.filter
        bound = self._bound[text]
        bound.spare -= candidate.spare
        del bound.numbers[bisect_left(bound.numbers, candidate.number)]
        if not bound.numbers:
            del self._bound[text]

    def spare(self, definition: QueueDefinition) -> dict[str | None, int]:
        """How much of their backlogs this broker's consumers have left, by filter. The filter of
        the oldest consumer comes first."""
        self.order(definition)
        bound = sorted(self._bound.items(), key=lambda item: item[1].numbers[0])
        return {text: one.spare for text, one in bound}

    def order_of_others(self, definition: QueueDefinition) -> Order:
        """The order of other brokers that can take messages. With quota 0 the queue is separate at
        each host (S10)."""
        order = Order(definition.fairness_model)
        for one in self.others.values() if definition.max_spool_usage else ():
            if not one.ending and not one.again:
                candidate, backlog = Candidate(one, one.number, False), own_backlog(one)
                order.place(candidate, backlog, one.held, backlog - one.held)
        return order

    def unwatched(self, definition: QueueDefinition) -> list[Subscription]:
        """This broker's consumers that have changed, or their limit has, since this was last
        asked."""
        if definition is not self._watched_by:
            self._watched_by = definition
            self._unwatched.update(self.by_number)
        numbers, self._unwatched = sorted(self._unwatched), set()
        found = [self.by_number[number] for number in numbers if number in self.by_number]
        return [one for one in found if one.broker is None]

    # ------------------------------------------------------------ messages that are sent again

    def watch(self, one: Subscription) -> None:
        """Note that a flow's messages may have to be sent again, or sooner than before (C2)."""
        self._again.watch(one.number, one.again_at())

    def again_at(self) -> int:
        """When the first flow's messages have to be sent again."""
        return self._again.next()

    def send_again(self, now: int) -> list[Subscription]:
        """The flows whose messages have to be sent again now, oldest first. The caller watches them
        again."""
        return [self.by_number[number] for number in sorted(self._again.take(now))]

    def _time_of(self, number: int) -> int:
        one = self.by_number.get(number)
        return NEVER if one is None else one.again_at()
