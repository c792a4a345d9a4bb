"""How fast comes in what queues capture, while producers publish as well.

What others' programs wrote to a captured topic may have waited for a night: gigabytes, and nobody
waits for one record of it. Each of its bytes is written to the spool, to the state's log and to the
tables; taken in as fast as steps can, that fills the processors and what the disk still has to
write, and who publishes something just then stands behind it: Kafka too, which shares both. So
while messages were published lately, captured bytes have a rate, and when nobody else is there they
have none. Records as small as messages mostly are never come near it.

What a step took is in its log, so this may follow the clock.

Partitions of commands that wait, since most of what they bring is of no use.

Who floods a broker with nonsense, with what is refused, or with acks that settle nothing, costs it
as much time as one who does real work. So a partition of commands of which much, and most, changed
nothing lately is *slow*: while any other has brought something within some seconds, it gives a
small part of what a step may take, and rests after each such step for several times what that cost.
When nobody else is there, it is taken like any other.

Nothing is refused for that, and nothing lost: its commands wait in Kafka. Time does not wait for
them as it does for others' (`LiveInputs.up_to`), else a flood would hold up everybody's deadlines.
A client that shares the partition with who floods it waits too, and longer for all this.

What a step took is in its log, so all this may be learnt, from the clock too, and forgotten: after
a restart each begins as an ordinary one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from ..protocol.steplog import Range
from ..protocol.topics import is_instruction
from .step_batch import PartitionId, is_command

BYTES_PER_S = 32_000_000
SAVED_S = 0.05  # of the rate, what may come at once after a silence
RECENT_S = 1.0

Clock = Callable[[], float]


class CapturedPace:
    """Of one broker. clock: seconds, monotonic."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._published_at = self._free_at = float("-inf")

    def rest_s(self) -> float:
        """How long what is captured waits still, seconds."""
        return max(0.0, min(self._free_at, self._published_at + RECENT_S) - self._clock())

    def took(self, published: int, captured: int) -> None:
        """A step takes so many bytes of each."""
        now = self._clock()
        if published:
            self._published_at = now
        if now - self._published_at >= RECENT_S:
            self._free_at = now  # what came in alone is no debt
        elif captured:
            self._free_at = max(self._free_at, now - SAVED_S) + captured / BYTES_PER_S


MANY = 256  # useless commands, counted with the half-life below: less than that hurts nobody
HALF_LIFE_S = 1.0
PART = 1 / 64  # of a step's limits, of all slow ones together
REST = 4.0  # seconds for each second of a step with something of a slow one
REST_S_MIN, REST_S_MAX = 0.04, 0.2  # a step costs more than its decisions
OTHERS_RECENT_S = 5.0
AGAIN_S = 60.0  # how soon the same partition is told of again


class SlowLanes:
    """Learns from each step which partitions are slow. places: these; clock: seconds, monotonic."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.places: frozenset[PartitionId] = frozenset()
        self._clock = clock
        self._lately: dict[
            PartitionId, tuple[float, float, float]
        ] = {}  # when; taken, useless by then
        self._heard: dict[PartitionId, float] = {}  # when each brought something
        self._others_at = self._rests_until = float("-inf")
        self._told: dict[PartitionId, float] = {}

    def part(self) -> float | None:
        """What part of a step's limits slow ones may take now; None: as all others."""
        if not self.places or self._clock() - self._others_at > OTHERS_RECENT_S:
            return None
        return 0.0 if self.rest_s() else PART

    def rest_s(self) -> float:
        """How long they rest still, seconds."""
        if not self.places:
            return 0.0
        now = self._clock()
        ends = min(self._rests_until, self._others_at + OTHERS_RECENT_S)
        return max(0.0, ends - now)

    def took(
        self, ranges: Iterable[Range], in_vain: Mapping[PartitionId, int], seconds: float
    ) -> list[PartitionId]:
        """A step took these, of which so many were of no use, and so much processor time. Returns
        partitions that became slow, to be told of."""
        if not (self.places or in_vain or self._lately):  # as ever: on the way of every step
            return []
        now, is_slow = self._clock(), False
        for r in ranges:
            place = r.topic, r.partition
            is_slow = is_slow or place in self.places
            if not is_instruction(place[0]):  # the engine's own are no traffic
                self._heard[place] = now
            if is_command(place[0]) and (place in in_vain or place in self._lately):
                self._learn(place, now, r.count, in_vain.get(place, 0))
        if is_slow:
            self._rests_until = now + min(max(REST * seconds, REST_S_MIN), REST_S_MAX)
        new = self._judged(now)
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

    def _judged(self, now: float) -> list[PartitionId]:
        slow = set()
        for place in list(self._lately):
            taken, useless = self._then(place, now)
            was = place in self.places  # who was is believed a little later
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
