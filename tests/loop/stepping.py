"""A worker that steps in its own thread, in a world in memory. The test makes the batches."""

from __future__ import annotations

import copy
import threading
import time
from typing import Any

from lakequeue.replica.driver import Taken
from lakequeue.sources.input_pace import SlowLanes
from lakequeue.state import DictStore, Limits
from lakequeue.streaming.loop.figures import Figures
from lakequeue.streaming.loop.loop import _encode
from lakequeue.streaming.loop.loop_driver import LoopDriver
from lakequeue.streaming.loop.loop_options import Options
from lakequeue.streaming.loop.page_cache import PageCache
from lakequeue.streaming.loop.stepper import Mark, Stepper
from loop.memory import COMMANDS, HOME, PUBLISH, SIZES, Some, World

ALONE_S = 0.6
MESH = {"broker-0.mesh": 1, "default.bridge-in": 16}


class State(DictStore):
    """The operator's state."""

    def keys(self) -> set[str]:
        return set(self.pages)


class Inputs(Some):
    """The interface of `LiveInputs` that the stepper needs: it waits, counts, gets partitions to
    read, and stops."""

    def __init__(self, world: World, driver: LoopDriver) -> None:
        super().__init__(world, driver, 5)
        self.arrived = threading.Event()
        self.told: set[Any] = set()
        self.stopped = self.wants_mark = False
        self.records = self.bytes = self.behind = 0
        self.waited_s = 0.0
        self.room_bytes: int | None = None
        self.ages_ms: list[int] = []
        self.slow = SlowLanes()
        self.notes: list[str] = []
        self.went_back: list[Any] = []
        self.refuses: BaseException | None = None

    def also(self, places: dict[Any, int], ids: dict[Any, str]) -> None:
        assert (COMMANDS, 0) in places
        self.told = set(places)

    def took(self, ranges: Any, in_vain: Any, seconds: float) -> None: ...

    def take(self, timeout_s: float) -> Taken | None:
        if self.refuses is not None:
            raise self.refuses
        taken = super().take(timeout_s)
        if taken is None:
            begun = time.monotonic()
            self.arrived.wait(min(timeout_s, 0.01))
            self.waited_s += time.monotonic() - begun
        else:
            self.records += sum(r.count for r in taken.ranges)
        return taken


class Transactions:
    """The log's fence: whether another worker has opened it."""

    fenced = False

    def begin(self) -> None: ...

    def mark(self) -> None:
        if self.fenced:
            raise RuntimeError("fenced")


class Broker:
    """A world that survives workers, and the current worker. A batch is Spark's part: save, and
    commit some time later."""

    def __init__(
        self, replayed_s: float = 0.0, went_back: bool = False, limits: Limits | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        self.world: Any = World(limits=limits or Limits())
        self.world.records, self.world.refused, self.world.notes = 0, 0, []
        self.world.command(command="begin", epoch=HOME.epoch)
        self.options, self.log = options, Transactions()
        self.state, self.saved = State(), None
        self.open(replayed_s, went_back)

    def open(self, replayed_s: float = 0.0, went_back: bool = False) -> None:
        """Start a worker from the saved state and the log."""
        world = self.world
        self.cache = PageCache(self.state, 1_000_000)
        self.driver = LoopDriver(HOME, "v1", self.cache, self.saved, world, world, world.limits)
        world.heard = len(world.log)
        self.driver.replay(world.logged(self.driver.log_at), world)
        self.driver.cost_s = replayed_s
        self.inputs = Inputs(world, self.driver)
        self.inputs.went_back += [("orders", 3)] * went_back
        o = Options({}, "broker-0", 0, 7, ["default"], "v1", "run", alone_s=ALONE_S, **self.options)
        parts: Any = (self.driver, self.cache, self.inputs, self.log, world, o)
        self.stepper = Stepper(*parts)
        self.stepper.found(SIZES | MESH)
        self.stepper.begin(Figures(), lambda: None)

    def again(self) -> None:
        """The worker dies and the next one starts."""
        self.stepper.close()
        self.cache.writer.attach(self.state)
        self.open()

    def died(self, pages: dict[str, bytes], saved: bytes | None) -> Broker:
        """The worker that would follow if this one died with the state as it is."""
        one = copy.copy(self)
        one.world, one.state, one.saved = copy.deepcopy(self.world), State(pages), saved
        one.open()
        return one

    def batch(self) -> Mark:
        """One visit of the operator, with the part that a batch saves."""
        self.cache.writer.attach(self.state)
        mark = self.stepper.visit()
        self.cache.writer.settle()
        self.cache.writer.detach()
        self.saved = _encode(mark.snapshot)
        return mark

    def define(self, name: str) -> None:
        """A client defines a queue, so that a step has work and writes something."""
        self.world.command(command="define", definition={"name": name, "message_type": "text"})
        self.inputs.arrived.set()

    def publish(self, n: int, to: str = "q") -> None:
        self.world.write((PUBLISH, 0), b"m%d" % n, to=to, producer="p", seq=n)
        self.inputs.arrived.set()

    def depths(self, names: list[str]) -> list[int]:
        """The depths of these queues, without reading those that are waiting to be packed."""
        queues = self.driver._replica.broker.names
        found = [queues.get(("default", name)) for name in names]
        return [0 if q is None else (q._hidden.get("header") or q.header).depth for q in found]

    def depth(self) -> int:
        return self.depths(["q"])[0]
