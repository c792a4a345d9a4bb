"""The surroundings of `loop.memory`, for the driver of the live core."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field

from lakequeue.core import Batch, DictStore, Home, Limits
from lakequeue.protocol.steplog import Range
from lakequeue.replica.driver import Clocks, Driver, Snapshot, Taken
from loop.memory import COMMANDS, INSTRUCTIONS, PLACES, POINTS, PUBLISH, SIZES, Crashed
from loop.memory import Some as OldSome
from loop.memory import World as OldWorld

__all__ = ["COMMANDS", "INSTRUCTIONS", "PLACES", "POINTS", "PUBLISH", "SIZES", "Crashed"]

HOME = Home("broker-0", 0, 7)
# Every boundary is crossed: rows spill, segments merge, blocks close.
LIMITS = Limits(live_rows=4, segment_rows=2, block_bytes=40, file_bytes=200)


def clocks(world: OldWorld) -> Clocks:
    """The world's time; rests as long as they are."""
    return Clocks(lambda: world.now, time.monotonic, time.thread_time)


@dataclass
class World(OldWorld):
    """Everything that outlives a driver."""

    saved: tuple[Snapshot, DictStore] = field(default_factory=lambda: (Snapshot(), DictStore()))
    limits: Limits = LIMITS

    def open(self) -> Driver:
        """A new worker: from the last snapshot and the log."""
        self.flight.clear()
        snapshot, store = copy.deepcopy(self.saved)
        driver = Driver(HOME, self.code, store, snapshot, self, self, clocks(self), self.limits)
        todo = self.logged(driver.log_at)
        self.heard = len(self.log)
        driver.replay(todo, self)
        self.replayed += len(todo)
        driver.learn(SIZES)
        return driver

    def save(self, driver: Driver, store: DictStore) -> None:
        """A batch ends well: all steps are in the log, all outputs in Kafka."""
        driver.settle()
        self.land(0)
        snapshot = driver.snapshot(5)
        self.saved = copy.deepcopy((snapshot, store))

    def take(self, ranges: tuple[Range, ...]) -> Batch:
        """`Again`."""
        batch = super().take(ranges)
        return Batch(batch.commands, batch.publishes)


class Some(OldSome):
    """Live inputs: at most so many records of each partition."""

    def take(self, timeout_s: float) -> Taken | None:
        taken = super().take(timeout_s)
        if taken is None:
            return None
        return Taken(Batch(taken.batch.commands, taken.batch.publishes), taken.ranges)
