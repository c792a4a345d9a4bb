"""The loop: runs a broker in a worker, and keeps it there between batches.

    batch ─▶ the same worker as last time? ─▶ continue with the cache
             else ─▶ fence other workers, load the state, read the log, replay ─▶ continue

A thread takes the steps (`stepper`). A batch gives it Spark's state and waits until a snapshot is
due. When Kafka has all outputs up to the mark, the batch writes pages and snapshot to Spark's
state, and Spark commits them while steps continue. After any error the loop is discarded, and the
next one starts from the state and the log.

Spark gives a broker's next batch to the same worker while that worker lives, since each query has
its own entry in the workers' environment. So `_loops` outlives a batch. A loop is used again only
if the state is the one that it saved last.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from ...protocol import topics
from ...protocol.state_files import is_newer, restore
from ...protocol.steplog import StepRecord
from ...replica.driver import Snapshot
from ...sinks.log_writer import StepLog
from ...sinks.outbox import Outbox
from ...sources.discovery import Discovery
from ...sources.live import LiveInputs
from ...sources.replay_inputs import ReplayInputs, read_steps
from ...state import Home
from .figures import Figures, rows
from .loop_driver import LoopDriver, change_over
from .loop_options import Options
from .page_cache import PageCache
from .state_store import StatePages
from .stepper import Mark, Stepper
from .worker_process import return_free_memory, set_priorities

log = logging.getLogger("lakequeue.loop")

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(Snapshot).decode
STOPPED_S = 0.3


class Loop:
    """One broker, in one worker."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.failed = False
        self.saved = -1  # the step that this worker saved last
        self._parts: list[Any] = []
        # (time, offset at which the log may begin)
        self._unneeded: deque[tuple[float, int]] = deque()

    # ------------------------------------------------------------ a batch

    def batch(self, state: StatePages) -> tuple[Figures, list[str]]:
        """A whole batch: step, wait, save. Any error ends the loop."""
        try:
            if self.saved < 0:
                self._open(state)
            else:
                self._cache.writer.attach(state)
            if self._inputs.stopped:
                time.sleep(STOPPED_S)  # the engine is about to end the query
            return self._save(state, self._stepper.visit())
        except BaseException:  # after any error the next loop begins from the state
            self.close()
            raise

    def _save(self, state: StatePages, mark: Mark) -> tuple[Figures, list[str]]:
        begun = time.monotonic()
        writer = self._cache.writer
        writer.settle()
        self._outbox.drain(mark.snapshot.step)
        writer.call(lambda: state.save(_encode(mark.snapshot)))
        writer.detach()
        self.saved = mark.snapshot.step
        if len(mark.snapshot.marks) == self.options.keep:
            self._trim(mark.snapshot.marks[0])
        mark.figures.save_ms = round((time.monotonic() - begun) * 1000)
        return mark.figures, mark.notes

    def _trim(self, before: int) -> None:
        """Trim the log up to this offset, before which no snapshot needs it, `log_kept_s` later:
        the tables may still need it."""
        now = time.monotonic()
        self._unneeded.append((now, before))
        while now - self._unneeded[0][0] >= self.options.log_kept_s:
            self._discovery.trim(self._topic, self._unneeded.popleft()[1])
            if not self._unneeded:
                return

    # ------------------------------------------------------------ opening

    def _open(self, state: StatePages) -> None:
        o = self.options
        self._topic = topics.topic(o.broker, topics.STEPS)
        control = topics.topic(o.broker, topics.CONTROL)
        self._inputs = LiveInputs(o.kafka, o.limits, control, o.run)
        self._log = StepLog(o.kafka, self._topic, self._stopped, o.batch_s)  # fences others
        instructions = topics.topic(o.broker, topics.INSTRUCTIONS)
        self._outbox = Outbox(o.kafka, self._stopped, instructions)
        saved = state.load()
        if o.rebuilt and (saved is None or is_newer(Path(o.rebuilt), saved)):
            replaces = saved is not None
            saved = restore(Path(o.rebuilt), state, replaces)  # Spark commits it with this batch
        home = Home(o.broker, o.number, o.epoch, o.secret)
        if saved is not None:
            saved = change_over(home, state, saved, self._logged)
        self._cache = PageCache(state, o.cache_bytes)
        self.driver = LoopDriver(
            home, o.code, self._cache, saved, self._log, self._outbox, resting=o.resting
        )
        self._stepper = Stepper(self.driver, self._cache, self._inputs, self._log, self._outbox, o)
        self._discovery = Discovery(
            o.kafka, self._stepper.found, self._inputs.places, self._inputs.watch
        )
        self._parts = [
            self._stepper, self._inputs, self._discovery, self._cache.writer, self._outbox
        ]  # fmt: skip
        figures = Figures()
        self._replay(figures)  # read the log while other workers are being fenced
        self._log.fenced()
        self._replay(figures)  # then the records that they still wrote
        self._stepper.found(self._discovery.sizes())
        self._discovery.start()
        self.driver.notes.append(f"worker:{socket.gethostname()}/{os.getpid()}")
        self._stepper.begin(figures, self._discovery.look)
        # only now, with all partitions known: a waiting reader would notice new ones late
        self._inputs.start({})

    def _logged(self, start: int) -> list[tuple[int, StepRecord]]:
        return read_steps(self.options.kafka, self._topic, start, self.options.accepts_other_kafka)

    def _replay(self, figures: Figures) -> None:
        logged = self._logged(self.driver.log_at)
        todo = [r for _, r in logged if r.step > self.driver.step]
        again = ReplayInputs(self.options.kafka, todo)
        begun = time.monotonic()
        try:
            spoken = self.driver.replay(logged, again)
        finally:
            again.close()
        figures.replayed += len(todo)
        if todo:
            figures.replay_ms += round(1000 * (time.monotonic() - begun))
            figures.replayed_life_ms += todo[-1].now - todo[0].now
            log.warning(
                "%s: %d steps repeated, outputs of %s sent again", self._topic, len(todo), spoken
            )

    def _stopped(self) -> bool:
        return self.failed or self._inputs.stopped

    def close(self) -> None:
        """Close everything without saving."""
        self.failed = True
        for part in self._parts:
            part.close()


_loops: dict[str, Loop] = {}  # of this worker, by broker


def batch_rows(options: Options, state: StatePages) -> pd.DataFrame:
    """Run one batch of one broker; returns its figures and notes as rows of the query."""
    loop = _loop(options, state)
    if loop.saved >= 0:  # until the first mark Java is busy starting the engine
        set_priorities(options.alone)
    figures, notes = loop.batch(state)
    return_free_memory()
    return pd.DataFrame(rows(figures, notes))


def _loop(options: Options, state: StatePages) -> Loop:
    """The loop of this worker, if the state is the one that it saved last; else a new one."""
    loop = _loops.get(options.broker)
    if loop is not None:
        saved = state.load()
        same = saved is not None and _decode(saved).step == loop.saved
        if same and not loop.failed and loop.options == options:
            return loop
        loop.close()
    loop = _loops[options.broker] = Loop(options)
    return loop
