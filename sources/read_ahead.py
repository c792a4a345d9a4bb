"""What was read and is not taken yet, by partition, taken by turns (deficit round robin).

A step takes so many records and bytes at most. Were they taken as they came, a partition full of
large records, or of very many, would stand before every other one. So each partition has a *lane*.
In its turn a lane may use up a grant, is granted as much again, and goes to the end of the line;
what a record costs beyond the grant it saves up for, over turns and steps. So lanes that always
hold something get the same share, whatever the size of their records; one that holds little gets
all of it; and within a partition the order stays.

A record's price is its size, and at least the step's bytes over the step's records: one budget
keeps both limits. The last record of a step may overdraw it, so one of any size is taken; but not
where a step may take less than usual since nobody saves what it brings: then what is too large
waits, and others pass it.

How long a step takes depends on what it brings, too: a thousand subscriptions are more work than a
thousand messages. So there is a third limit, which is learnt: where a step took most of what it
may, and long, the next one takes half, down to a `SHARES`th, and later ones more again where they
do not. What is taken is written to the log, so no decision depends on the time.

Partitions that are *slow* (`slow_lanes`) may be told to stand aside: then they share a small part
of a step, or get nothing of it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from typing import Generic, TypeVar

from .step_batch import PartitionId

TURNS = 64  # in a step, where every lane is full
LONG_S = 0.05  # of processor time, a step
SHARES = 8  # one of so many parts of its limits a step may always take

T = TypeVar("T")


class _Lane(Generic[T]):
    """Of one partition: what waits, with its size, the sums of that, and what the lane may still
    use."""

    __slots__ = ("bytes", "grant", "price", "waiting")

    def __init__(self, grant: int) -> None:
        self.waiting: deque[tuple[int, T]] = deque()
        self.bytes = self.price = 0
        self.grant = grant


class ReadAhead(Generic[T]):
    """Of two threads: one puts, one takes. records, bytes: what a step takes at most.

    bytes: what is here; share: the part of these limits that a step takes, as it was learnt; slow:
    partitions that can be told to stand aside.
    """

    def __init__(self, size_of: Callable[[T], int], records: int, bytes_max: int) -> None:
        self._size_of = size_of
        self._budget = bytes_max
        self._price_min = -(-bytes_max // records)
        self.grant = max(1, bytes_max // TURNS)
        self.share = 1.0
        self.slow: Collection[PartitionId] = frozenset()
        self._taken = 0  # the price of the last step's
        self._lock = threading.Lock()
        self._lanes: OrderedDict[PartitionId, _Lane[T]] = (
            OrderedDict()
        )  # none is empty; who is next
        self._price = 0  # of all that is here
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def put(self, place: PartitionId, found: Iterable[T]) -> None:
        """Add what comes next in a partition."""
        sized = [(self._size_of(one), one) for one in found]
        if not sized:
            return
        with self._lock:
            lane = self._lanes.get(place)
            if lane is None:
                lane = self._lanes[place] = _Lane(self.grant)
            lane.waiting += sized
            size = sum(size for size, _ in sized)
            price = sum(max(size, self._price_min) for size, _ in sized)
            lane.bytes += size
            lane.price += price
            self.bytes += size
            self._price += price

    def next_of_each(self) -> dict[PartitionId, T]:
        """The first that waits in each partition where one does."""
        with self._lock:
            return {place: lane.waiting[0][1] for place, lane in self._lanes.items()}

    def holding(self, least: int) -> list[PartitionId]:
        """Partitions of which so many bytes or more are here."""
        with self._lock:
            return [place for place, lane in self._lanes.items() if lane.bytes >= least]

    def has_others(self) -> bool:
        """Whether something is here of a partition that is not slow."""
        with self._lock:
            return any(place not in self.slow for place in self._lanes)

    def take(
        self, most: int | None = None, slow_part: float | None = None
    ) -> tuple[dict[PartitionId, list[T]], int]:
        """A step's worth, each partition's in its order; and its bytes. most: of these, and not one
        more; slow_part: what part of a step's limits slow ones may take, in all; None: as others.
        """
        usual = int(self._budget * self.share)
        budget = usual if most is None else min(most, usual)
        firm = budget < usual
        found: dict[PartitionId, list[T]] = {}
        with self._lock:
            before, price = self.bytes, self._price
            aside: OrderedDict[PartitionId, _Lane[T]] = OrderedDict()
            if slow_part is not None:
                for place in [place for place in self._lanes if place in self.slow]:
                    aside[place] = self._lanes.pop(place)
                own = int(budget * slow_part)
                found = self._by_turns(aside, own, firm)
                budget -= min(own, price - self._price)
            others = self._price - sum(lane.price for lane in aside.values())
            if others > budget:
                found |= self._by_turns(self._lanes, budget, firm)
                lanes: OrderedDict[PartitionId, _Lane[T]] = OrderedDict()
            else:
                lanes, self._lanes = self._lanes, OrderedDict()
                self._price -= others
                self.bytes -= sum(lane.bytes for lane in lanes.values())
            self._lanes.update(aside)
            self._taken = price - self._price
            size = before - self.bytes
        for place, lane in lanes.items():
            found[place] = [one for _, one in lane.waiting]
        return found, size

    def took(self, seconds: float) -> None:
        """The step took so much processor time: learn from it."""
        if seconds > LONG_S:
            if self._taken > self._budget * self.share / 2:
                self.share = max(self.share / 2, 1 / SHARES)
        elif self.share < 1 and seconds < LONG_S / 2:
            self.share = min(self.share * 1.25, 1.0)

    def _by_turns(
        self, lanes: OrderedDict[PartitionId, _Lane[T]], budget: int, firm: bool
    ) -> dict[PartitionId, list[T]]:
        found: dict[PartitionId, list[T]] = {}
        left = budget
        grant = max(1, int(self.grant * self.share))
        passed: set[PartitionId] = set()  # their next is too large for a small budget
        while left > 0 and len(passed) < len(lanes):
            place, lane = next(iter(lanes.items()))
            waiting = lane.waiting
            while waiting and left > 0:
                size = waiting[0][0]
                price = max(size, self._price_min)
                if price > left and firm:
                    passed.add(place)
                    lanes.move_to_end(place)
                    break
                if price > lane.grant:
                    lane.grant += grant
                    lanes.move_to_end(place)
                    break
                lane.grant -= price
                left -= price
                lane.price -= price
                lane.bytes -= size
                self._price -= price
                self.bytes -= size
                found.setdefault(place, []).append(waiting.popleft()[1])
            if not waiting:
                del lanes[place]
        return found
