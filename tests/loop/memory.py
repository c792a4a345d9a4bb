"""A broker's surroundings in memory: topics, the log of steps, bridged messages, and crashes.

Kafka's contents survive a crash and the driver's objects do not: `World` is the former, and makes a
new driver from the last snapshot after each crash.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lakequeue.protocol import steplog
from lakequeue.protocol.steplog import Range, StepRecord
from lakequeue.protocol.wire import WireRecord
from lakequeue.replica.driver import Clocks, Driver, Snapshot, Taken
from lakequeue.sources.step_batch import PartitionId, to_batch
from lakequeue.state import Batch, DictStore, Home, Limits

HOME = Home("broker-0", 0, 7)
COMMANDS, PUBLISH, PLAIN = "default.commands", "default.publish", "orders"
INSTRUCTIONS = "broker-0.instructions"
PLACES: list[PartitionId] = [
    (COMMANDS, 0), (PUBLISH, 0), (PUBLISH, 1), (PLAIN, 0), (INSTRUCTIONS, 0),
]  # fmt: skip
SIZES = {
    "default.commands": 1, "default.directory": 1, "default.publish": 2, "default.deliveries": 2,
    "default.receipts": 2, "default.journal": 1, "default.rejected": 1, "orders": 1,
    "broker-0.instructions": 1,
}  # fmt: skip
POINTS = ("appended", "computed", "half sent", "sent")
# Tiny limits cross every boundary: rows spill, segments merge, blocks close.
LIMITS = Limits(live_rows=4, segment_rows=2, block_bytes=40, file_bytes=200)


class Crashed(Exception):
    """The worker died."""


@dataclass
class Message:
    """A record with the interface of the Kafka client's."""

    topic_: str
    partition_: int
    offset_: int
    time: int
    key_: bytes | None
    value_: bytes
    headers_: list[tuple[str, bytes]] | None

    def topic(self) -> str:
        return self.topic_

    def partition(self) -> int:
        return self.partition_

    def offset(self) -> int:
        return self.offset_

    def timestamp(self) -> tuple[int, int]:
        return 1, self.time

    def key(self) -> bytes | None:
        return self.key_

    def value(self) -> bytes:
        return self.value_

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self.headers_


def clocks(world: World) -> Clocks:
    """Clocks that show the world's time; pauses have their real length."""
    return Clocks(lambda: world.now, time.monotonic, time.thread_time)


@dataclass
class World:
    """Everything that survives a driver."""

    now: int = 1_700_000_000_000
    code: str = "v1"
    topics: dict[PartitionId, list[Message]] = field(
        default_factory=lambda: {p: [] for p in PLACES}
    )
    log: list[bytes] = field(default_factory=list)
    said: list[tuple[int, list[WireRecord]]] = field(default_factory=list)  # by attempt
    flight: list[tuple[int, list[WireRecord]]] = field(default_factory=list)  # not in Kafka yet
    saved: tuple[Snapshot, DictStore] = field(default_factory=lambda: (Snapshot(), DictStore()))
    point: str | None = None  # the point at which the next step crashes
    lag: int = 0  # outputs of this many steps are still in flight; a crash loses them
    replayed: int = 0
    slow: int = 0  # the log confirms a record this many steps later
    heard: int = 0  # the driver's confirmed end of the log
    limits: Limits = LIMITS

    def write(self, place: PartitionId, value: bytes, **lq: Any) -> None:
        """A client writes a record."""
        headers = [("lq", json.dumps(lq).encode())] if lq else None
        log = self.topics[place]
        log.append(Message(*place, len(log), self.now, None, value, headers))

    def command(self, **fields: Any) -> None:
        self.write((COMMANDS, 0), json.dumps(fields).encode())

    def instruct(self, **fields: Any) -> None:
        """The engine writes an instruction."""
        log = self.topics[INSTRUCTIONS, 0]
        value = json.dumps(fields).encode()
        log.append(Message(INSTRUCTIONS, 0, len(log), self.now, b"default", value, None))

    def logged(self, start: int = 0) -> list[tuple[int, StepRecord]]:
        return [(at, steplog.decode(v)) for at, v in enumerate(self.log) if at >= start]

    def open(self) -> Driver:
        """Start a worker from the last snapshot and the log."""
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
        """A batch commits: all steps are in the log, all outputs in Kafka."""
        driver.flush()
        self.land(0)
        snapshot = driver.snapshot(5)  # it writes the pages
        self.saved = copy.deepcopy((snapshot, store))

    # ------------------------------------------------------------ the driver's interfaces

    def take(self, ranges: tuple[Range, ...]) -> Batch:
        """`Again`."""
        found = {(r.topic, r.partition): self._slice(r) for r in ranges}
        return to_batch(found).batch

    def _slice(self, r: Range) -> list[Message]:
        return self.topics[r.topic, r.partition][r.first : r.last + 1]

    def append(self, value: bytes) -> None:
        """`Log`."""
        self.log.append(value)
        self._crash("appended")

    def written(self, timeout_s: float) -> list[int]:
        self._crash("computed")
        begin, self.heard = self.heard, len(self.log) - (0 if timeout_s else self.slow)
        self.heard = max(begin, self.heard)
        return list(range(begin, self.heard))

    def send(self, step: int, records: Iterable[WireRecord]) -> None:
        """`Outbox`."""
        whole = list(records)
        half = len(whole) // 2 if self.point == "half sent" else len(whole)
        self.flight.append((step, whole[:half]))
        self.land(self.lag)
        self._crash("half sent")
        self._crash("sent")

    def acked(self) -> int | None:
        self.land(self.lag)
        return self.flight[0][0] - 1 if self.flight else None

    def land(self, lag: int) -> None:
        """Let outputs arrive in Kafka, except those of the last ``lag`` steps."""
        count = max(len(self.flight) - lag, 0)
        self.said += self.flight[:count]
        del self.flight[:count]

    def _crash(self, point: str) -> None:
        if self.point == point:
            self.point = None
            raise Crashed(point)


class Some:
    """Live inputs with a limit of records per partition. until: of the commands that are left."""

    until: int | None = None

    def __init__(self, world: World, driver: Driver, most: int) -> None:
        self._world, self._driver, self._most = world, driver, most

    def up_to(self) -> int | None:
        return self.until

    def current(self) -> bool:
        return self.until is None

    def take(self, timeout_s: float) -> Taken | None:
        found = {}
        for place, messages in self._world.topics.items():
            at = self._driver.offsets.get(place, 0)
            if some := messages[at : at + self._most]:
                found[place] = some
        return to_batch(found) if found else None
