"""Records that were read ahead, by partition, and taken in turn (deficit round robin).

A step takes a limited number of records and bytes. In order of arrival, a partition with large or
very many records would delay all others. So each partition has a *lane*. In its turn a lane uses up
its grant, gets another one, and goes to the end of the line. If a record costs more than the grant,
the lane saves up for it over several turns and steps. So busy lanes get equal shares, short lanes
are emptied, and the order in a partition is kept.

A record's price is its size, and at least the step's bytes divided by the step's records, so that
one budget enforces both limits. A step's last record may overdraw the budget, so records of any
size are taken. But when room is short, a record that is too large waits, and others pass it.

The time of a step also depends on its content: a thousand subscriptions are more work than a
thousand messages. So a third limit adapts to the time: after a long, nearly full step the next one
takes half, down to one of `SHARES` parts, and later ones more again. The log records what each step
took, so a replay does not depend on the time.

*Slow* partitions (`input_pace`) share a small part of a step, or get nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from typing import Generic, TypeVar

from .step_batch import PartitionId

TURNS = 64  # in a step, if every lane is full
LONG_S = 0.05  # seconds of processor time that a step should take
SHARES = 8  # a step may always take one part in this many of its limits

T = TypeVar("T")


class _Lane(Generic[T]):
    """The waiting records of one partition, each with its size; their sums; and the rest of the
    lane's grant."""

    __slots__ = ("bytes", "grant", "price", "waiting")

    def __init__(self, grant: int) -> None:
        self.waiting: deque[tuple[int, T]] = deque()
        self.bytes = self.price = 0
        self.grant = grant


class ReadAhead(Generic[T]):
    """The records between two threads: one puts, one takes. records, bytes_max: a step's limits.

    bytes: the size of all waiting records. share: the current part of the limits that a step takes.
    slow: partitions that `take` can limit.
    """

    def __init__(self, size_of: Callable[[T], int], records: int, bytes_max: int) -> None:
        self._size_of = size_of
        self._budget = bytes_max
        self._price_min = -(-bytes_max // records)
        self.grant = max(1, bytes_max // TURNS)
        self.share = 1.0
        self.slow: Collection[PartitionId] = frozenset()
        self._taken = 0  # the price of the last step's records
        self._lock = threading.Lock()
        # No lane is empty; the first one is next.
        self._lanes: OrderedDict[PartitionId, _Lane[T]] = OrderedDict()
        self._price = 0  # the sum over all waiting records
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def put(self, place: PartitionId, found: Iterable[T]) -> None:
        """Add the next records of a partition."""
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
        """The first waiting record of each partition that has one."""
        with self._lock:
            return {place: lane.waiting[0][1] for place, lane in self._lanes.items()}

    def holding(self, least: int) -> list[PartitionId]:
        """Partitions with at least ``least`` waiting bytes."""
        with self._lock:
            return [place for place, lane in self._lanes.items() if lane.bytes >= least]

    def has_others(self) -> bool:
        """Whether a partition that is not slow has records."""
        with self._lock:
            return any(place not in self.slow for place in self._lanes)

    def take(
        self, most: int | None = None, slow_part: float | None = None
    ) -> tuple[dict[PartitionId, list[T]], int]:
        """Remove a step's records; returns each partition's, in order, and their bytes. most: a
        strict limit in bytes. slow_part: the part of a step's limits for all slow partitions
        together; None: no limit of their own."""
        if not self._lanes:  # in most steps two of the three readers are empty
            self._taken = 0
            return {}, 0
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
        """Adapt the share to a step's processor time."""
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
        passed: set[PartitionId] = set()  # the next record is too large for a small budget
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
