"""The loop: what a worker keeps of a broker between batches, and what it does in one.

    batch ─▶ the same worker as last time? ─▶ go on with the cache
             else ─▶ fence, load, read the log, replay ─▶ go on

A batch ends after 30 s, or when enough was written, or when taking its steps again would take more
than 2 s, whichever comes first; then all outputs are in Kafka, the pages and the snapshot go to the
operator's state, and Spark commits them. Nothing here is ever the truth: whatever goes wrong, the
loop is thrown away, and the next one begins from the state and the log.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..protocol import topics
from ..sinks.log_writer import StepLog
from ..sinks.outbox import Outbox
from ..sources.again import ReadAgain
from ..sources.discovery import Discovery, captured_topics
from ..sources.live import InputLimits, LiveInputs, own_inputs, places_of
from ..sources.log_reader import read_steps
from ..state import Home
from .cache import PageCache
from .driver import Driver, Snapshot
from .figures import Figures
from .state_store import StatePages

log = logging.getLogger("lakequeue.loop")

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(Snapshot).decode
IDLE_S = 0.5  # how often a loop without work looks whether pages have settled
STOPPED_S = 0.3


@dataclass(frozen=True)
class Options:
    """What the engine tells the loop. keep: batches that Spark may go back to; run: the engine's
    name on the control topic."""

    kafka: dict[str, Any]
    broker: str
    number: int
    epoch: int
    vpns: list[str]
    captured: list[str]
    code: str
    run: str
    keep: int = 8
    batch_s: float = 30.0
    batch_bytes: int = 128_000_000
    replay_s: float = 2.0
    cache_bytes: int = 160_000_000
    limits: InputLimits = field(default_factory=InputLimits)


def clock() -> int:
    """Epoch ms."""
    return int(time.time() * 1000)


class Loop:
    """One broker, in one worker."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.failed = False
        self.saved = -1  # the step that this worker saved last
        self._stop_seen = False
        self._ended = 0.0
        self._parts: list[Any] = []
        self._news: dict[str, int] | None = None
        self._reads: set[str] = set()

    # ------------------------------------------------------------ a batch

    def batch(self, state: StatePages) -> tuple[Figures, list[str]]:
        """A whole batch: go on, step, save. Raises what went wrong; the loop is over then."""
        figures = Figures()
        try:
            if self.saved < 0:
                self._open(state, figures)
            else:
                self._cache.begin(state)
                figures.gap_ms = round((time.monotonic() - self._ended) * 1000)
            if self._inputs.stopped:
                time.sleep(STOPPED_S)  # the engine is about to end the query
            else:
                self._log.begin()
                self._steps(figures)
                self._outbox.drain()
                self._log.commit()
            self._save(state, figures)
        except BaseException:
            self.close()
            raise
        return figures, self._notes()

    def _steps(self, figures: Figures) -> None:
        o, driver, cache, inputs = self.options, self.driver, self._cache, self._inputs
        begun, misses, cost = time.monotonic(), cache.misses, driver.cost_s
        waited, longest = inputs.waited_s, 0.0
        first, records, size, out = driver.step, inputs.records, inputs.bytes, self._outbox.records
        captured = len(driver.captured)
        inputs.ages_ms.clear()
        while not inputs.stopped:
            left = begun + o.batch_s - time.monotonic()
            full = cache.written_bytes + cache.dirty_bytes >= o.batch_bytes
            if left <= 0 or full or driver.cost_s - cost >= o.replay_s:
                break
            if self._news is not None:
                self._learn()
            at, idle = time.monotonic(), inputs.waited_s
            driver.one(inputs, min(left, IDLE_S))
            longest = max(longest, time.monotonic() - at - (inputs.waited_s - idle))
            cache.write_behind()
            if len(driver.captured) != captured:
                captured = len(driver.captured)
                self._discovery.want(driver.captured)
        self._ended = time.monotonic()
        figures.steps = driver.step - first
        busy = self._ended - begun - (inputs.waited_s - waited)
        figures.busy_ms, figures.step_ms = round(busy * 1000), round(1000 * (driver.cost_s - cost))
        figures.step_max_ms = round(1000 * longest)
        figures.records_in, figures.bytes_in = inputs.records - records, inputs.bytes - size
        figures.records_out = self._outbox.records - out
        figures.cache_pages_read = cache.misses - misses
        figures.waited(inputs.ages_ms)

    def _save(self, state: StatePages, figures: Figures) -> None:
        begun, driver, cache = time.monotonic(), self.driver, self._cache
        snapshot = driver.snapshot(self.options.keep)
        cache.save()
        state.save(_encode(snapshot))
        self.saved = driver.step
        if len(snapshot.marks) == self.options.keep:
            self._discovery.trim(self._topic, snapshot.marks[0])
        figures.save_ms = round((time.monotonic() - begun) * 1000)
        figures.cache_bytes = cache.held_bytes
        figures.state_pages, figures.state_bytes = cache.written_pages, cache.written_bytes

    def _notes(self) -> list[str]:
        notes, self.driver.notes = self.driver.notes, []
        notes += self._outbox.notes + self._inputs.notes
        self._outbox.notes, self._inputs.notes = [], []
        if self._inputs.stopped:
            notes.append(f"stopped:{self.options.broker}")
        return notes

    # ------------------------------------------------------------ opening

    def _open(self, state: StatePages, figures: Figures) -> None:
        o = self.options
        self._topic = topics.topic(o.broker, topics.STEPS)
        control = topics.topic(o.broker, topics.CONTROL)
        self._inputs = LiveInputs(o.kafka, o.limits, control, o.run)
        self._log = StepLog(o.kafka, self._topic, self._stopped, o.batch_s)  # others are fenced
        self._outbox = Outbox(o.kafka, self._stopped)
        self._cache = PageCache(state, o.cache_bytes)
        self._discovery = Discovery(
            o.kafka, self._found, self._inputs.places, self._inputs.watch
        )
        self._parts = [self._inputs, self._discovery, self._cache]
        saved = state.load()
        snapshot = Snapshot() if saved is None else _decode(saved)
        home = Home(o.broker, o.number, o.epoch)
        self.driver = Driver(
            home, o.code, self._cache, snapshot, self._log, self._outbox, clock
        )
        self.driver.captured.update(dict.fromkeys(o.captured))
        self._replay(figures)
        self._news = self._discovery.sizes()
        self._learn()
        self._inputs.start({})
        self._discovery.start()
        self._discovery.want(self.driver.captured)

    def _replay(self, figures: Figures) -> None:
        logged = read_steps(self.options.kafka, self._topic, self.driver.log_at)
        todo = [r for _, r in logged if r.step > self.driver.step]
        again = ReadAgain(self.options.kafka, todo)
        begun = time.monotonic()
        try:
            spoken = self.driver.replay(logged, again)
        finally:
            again.close()
        figures.replayed = len(todo)
        if todo:
            figures.replay_ms = round(1000 * (time.monotonic() - begun))
            figures.replayed_life_ms = todo[-1].now - todo[0].now
            log.warning("%s: %d steps again, outputs of %s", self._topic, len(todo), spoken)

    def _stopped(self) -> bool:
        return self._inputs.stopped

    def _found(self, sizes: dict[str, int]) -> None:
        """In the thread that looks for topics."""
        self._news = sizes
        self._inputs.arrived.set()

    def _learn(self) -> None:
        """Topics as they are now: for replies, and to be read."""
        sizes, self._news = self._news or {}, None
        driver = self.driver
        driver.learn(sizes)
        captured = captured_topics(sizes, driver.captured)
        driver.notes += [f"topic:{name}" for name in captured if name not in self._reads]
        self._reads |= set(captured)
        places = places_of(sizes, own_inputs(self.options.vpns) + captured)
        self._inputs.also({place: driver.offsets.get(place, 0) for place in places})

    def close(self) -> None:
        """Let go of everything, unsaved."""
        self.failed = True
        for part in self._parts:
            part.close()
