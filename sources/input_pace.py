"""Slows down two kinds of input that would delay others: captured records and useless commands.

**Captured topics** (`CapturedPace`, decision 0027). Other programs may have written gigabytes to
one, and no client waits for a single record. Each byte is written to the spool, the state's log and
the tables. At full speed that would saturate processors and disk, and producers would wait. So
captured bytes have a limited rate while messages are being published. Records of a usual size never
reach it.

**Slow partitions** (`SlowLanes`, decision 0026). Malformed or refused commands, and acks that
settle nothing, cost a broker as much as real work. A commands partition is *slow* if many of its
recent commands, and more than half of them, changed nothing. While other partitions are active, it
gets a small part of a step, and pauses after each such step for several times its cost. Otherwise
it is read as usual. Nothing is refused or lost: the commands wait in Kafka. Deadlines do not wait
for them (`LiveInputs.up_to`); otherwise a flood would delay all deadlines. Other clients in the
same partition wait, too.

The log records what each step read, so both may depend on the clock and start over after a restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from ..protocol.steplog import Range
from ..protocol.topics import is_instruction
from .step_batch import PartitionId, is_command

BYTES_PER_S = 32_000_000
SAVED_S = 0.05  # seconds of the rate that may be read at once after a pause
RECENT_S = 1.0

Clock = Callable[[], float]


class CapturedPace:
    """The pace of a broker. clock: seconds, monotonic."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._published_at = self._free_at = float("-inf")

    def rest_s(self) -> float:
        """How long captured records still wait, in seconds."""
        return max(0.0, min(self._free_at, self._published_at + RECENT_S) - self._clock())

    def took(self, published: int, captured: int) -> None:
        """Record how many bytes of each kind a step read."""
        now = self._clock()
        if published:
            self._published_at = now
        if now - self._published_at >= RECENT_S:
            self._free_at = now  # records that were read alone do not count
        elif captured:
            self._free_at = max(self._free_at, now - SAVED_S) + captured / BYTES_PER_S


MANY = 256  # useless commands, counted with the half-life below; fewer do no harm
HALF_LIFE_S = 1.0
PART = 1 / 64  # part of a step's limits, for all slow partitions together
REST = 4.0  # pause in seconds for each second of a step that read a slow partition
REST_S_MIN, REST_S_MAX = 0.04, 0.2  # a step costs more than its decisions
OTHERS_RECENT_S = 5.0
AGAIN_S = 60.0  # between two reports of the same partition


class SlowLanes:
    """Finds out from each step which partitions are slow. places: these; clock: seconds,
    monotonic."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.places: frozenset[PartitionId] = frozenset()
        self._clock = clock
        # The time of the last step; its commands and its useless ones, with the half-life.
        self._lately: dict[PartitionId, tuple[float, float, float]] = {}
        self._heard: dict[PartitionId, float] = {}  # when each partition last had a record
        self._others_at = self._rests_until = float("-inf")
        self._told: dict[PartitionId, float] = {}

    def part(self) -> float | None:
        """The part of a step's limits that slow partitions may use now; None: no limit of their
        own."""
        if not self.places or self._clock() - self._others_at > OTHERS_RECENT_S:
            return None
        return 0.0 if self.rest_s() else PART

    def rest_s(self) -> float:
        """How long slow partitions still pause, in seconds."""
        if not self.places:
            return 0.0
        now = self._clock()
        ends = min(self._rests_until, self._others_at + OTHERS_RECENT_S)
        return max(0.0, ends - now)

    def took(
        self, ranges: Iterable[Range], in_vain: Mapping[PartitionId, int], seconds: float
    ) -> list[PartitionId]:
        """Record what a step read, how many of those commands were useless, and its processor time.
        Returns the partitions that became slow and must be reported."""
        # the usual case, checked first because every step runs this
        if not (self.places or in_vain or self._lately):
            return []
        now, is_slow = self._clock(), False
        for r in ranges:
            place = r.topic, r.partition
            is_slow = is_slow or place in self.places
            if not is_instruction(place[0]):  # the engine's own commands do not count
                self._heard[place] = now
            if is_command(place[0]) and (place in in_vain or place in self._lately):
                self._learn(place, now, r.count, in_vain.get(place, 0))
        if is_slow:
            self._rests_until = now + min(max(REST * seconds, REST_S_MIN), REST_S_MAX)
        new = self._update_slow(now)
        if not self._lately:
            self._heard.clear()
        others = (at for place, at in self._heard.items() if place not in self.places)
        self._others_at = max(others, default=float("-inf"))
        return new

    def _learn(self, place: PartitionId, now: float, taken: int, useless: int) -> None:
        old, useless_old = self._then(place, now)
        self._lately[place] = now, old + taken, useless_old + useless

    def _then(self, place: PartitionId, now: float) -> tuple[float, float]:
        at, taken, useless = self._lately.get(place, (now, 0.0, 0.0))
        left = 0.5 ** ((now - at) / HALF_LIFE_S)
        return taken * left, useless * left

    def _update_slow(self, now: float) -> list[PartitionId]:
        slow = set()
        for place in list(self._lately):
            taken, useless = self._then(place, now)
            was = place in self.places  # lower limits for a slow partition, so it cannot flap
            if useless >= (MANY / 4 if was else MANY) and useless > taken / (4 if was else 2):
                slow.add(place)
            elif taken < 1:
                del self._lately[place]
        if slow == self.places:
            return []
        new = [p for p in slow - self.places if now - self._told.get(p, -AGAIN_S) >= AGAIN_S]
        self._told.update(dict.fromkeys(new, now))
        self.places = frozenset(slow)
        return sorted(new)
