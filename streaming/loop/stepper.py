"""The thread that takes a broker's steps, even while Spark is between two batches.

    batch:  visit ──────────▶ mark: save, commit, plan ─▶ visit ─────────▶ mark …
    steps:  ─1─2─3─4─5─6─7─8─┤9─10─11─12─13─14─15─16─17─18─19─20─21─22─23─┤24─25 …

A batch *visits* the thread: it brings Spark's state. At the end of a visit the thread makes a
*mark* between two steps: the state at that moment, which the batch saves. Steps then continue with
the pages in the cache, since Spark's next batch comes to the same worker. If none comes, they stop
after `alone_s`, or when replaying them would take too long. If another worker runs the broker too,
the log fences one of them (`sinks.log_writer`).

A visit ends after `batch_s`, when enough was written, or when replaying all steps since the last
mark would take more than `replay_s`. Steps that were replayed at the start count too, so that the
next crash does not take as long again. When the engine stops, the visit ends at once, and no step
follows its mark.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from confluent_kafka import KafkaException

from ...replica.driver import Refused, Snapshot
from ...sinks.log_writer import StepLog
from ...sinks.outbox import Outbox
from ...sources.discovery import captured_topics
from ...sources.live import LiveInputs, own_places, places_of, resting_places
from ...sources.step_batch import PartitionId
from .figures import Figures
from .loop_driver import LoopDriver
from .loop_options import Options
from .page_cache import PageCache
from .worker_process import StackDump

log = logging.getLogger("lakequeue.loop")

IDLE_S = 0.5  # how often a loop without work writes pages that no longer change
MARK_ROWS, ALL_ROWS = 10_000, 1 << 62  # rows of a mark that are written between two steps
JOIN_S = 3.0  # the longest wait for a thread that is blocked by Kafka: it is fenced anyway


def went_back(broker: str, places: list[PartitionId]) -> str:
    """The error for a Kafka that has lost records which the broker has read."""
    (topic, partition), more = places[0], len(places) - 1
    also = f" and {more} more" if more else ""
    return (
        f"Kafka went back in time: broker {broker!r} has read beyond the present end of partition "
        f"{partition} of topic {topic!r}{also}. Kafka's data was probably replaced by a copy that "
        "is older than this home. Restore Kafka's newest data, or start with "
        "--accept-other-kafka: the queues are kept, and the engine reads records that come from "
        "now on"
    )


@dataclass(slots=True)
class Mark:
    """The state between two steps, which a batch saves, with its figures and notes."""

    snapshot: Snapshot
    figures: Figures
    notes: list[str]


class Stepper(threading.Thread):
    """Takes the steps of one broker."""

    def __init__(
        self,
        driver: LoopDriver,
        cache: PageCache,
        inputs: LiveInputs,
        step_log: StepLog,
        outbox: Outbox,
        options: Options,
    ) -> None:
        super().__init__(daemon=True, name="lakequeue-steps")
        self._driver, self._cache, self._inputs = driver, cache, inputs
        self._log, self._outbox, self._options = step_log, outbox, options
        self._changed = threading.Condition()
        self._visited = False
        self._since = -1e9  # when the visit began, or the last mark
        self._mark: Mark | None = None
        self._coming: Mark | None = None  # some of its pages are still to be written
        self._failure: BaseException | None = None
        self._closing = False
        self._news: dict[str, int] | None = None
        self._paused_s = 0.0
        self._longest_s = 0.0
        self._dump = StackDump()
        # the cost of the steps that the state already has; a replay begins after them
        self._saved_s = 0.0

    # ------------------------------------------------------------ the batch's thread

    def begin(self, figures: Figures, look: Callable[[], None]) -> None:
        """Start the thread. figures: of the replay; look: called when queues capture more
        topics."""
        self._opened, self._look = figures, look
        self._take_topics()
        if self._inputs.went_back and not self._options.accepts_other_kafka:
            raise Refused(went_back(self._options.broker, self._inputs.went_back))
        self._sums = self._sums_now()  # at the last mark
        self.start()

    def visit(self) -> Mark:
        """Let the thread take steps until a mark is due; returns the mark. Raises the error that
        ended the thread."""
        with self._changed:
            self._visited, self._since = True, time.monotonic()
            self._changed.notify_all()
            while self._mark is None:
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()
            mark, self._mark = self._mark, None
            return mark

    def found(self, sizes: dict[str, int]) -> None:
        """Pass the thread all topics with their numbers of partitions. Any thread may call it."""
        self._news = sizes
        self._inputs.arrived.set()

    def close(self) -> None:
        """End the thread, which may be in a step that Kafka blocks."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._inputs.arrived.set()
        self._cache.writer.close()
        if self.is_alive():
            self.join(JOIN_S)

    # ------------------------------------------------------------ the thread

    def run(self) -> None:
        try:
            self._log.begin()
            while self._may_step():
                self._dump.reset()
                if self._coming is not None:
                    self._write_more(MARK_ROWS)
                if self._mark_is_due():
                    self._make_mark()
                else:
                    self._one()
        except BaseException as error:  # raised in the batch that waits in `visit`
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        finally:
            self._dump.stop()

    def _may_step(self) -> bool:
        """Wait while no batch could save another step. Returns False when the thread must end."""
        begun = time.monotonic()
        if not (self._closing or self._visited or self._alone()):
            if self._coming is not None:
                self._write_more(ALL_ROWS)
            self._driver.flush()
            self._dump.stop()
        with self._changed:
            while not (self._closing or self._visited or self._alone()):
                self._changed.wait()
        self._paused_s += time.monotonic() - begun
        return not self._closing

    def _alone(self) -> bool:
        o, dirty = self._options, self._cache.dirty_bytes
        return (
            not self._inputs.stopped
            and time.monotonic() - self._since < o.alone_s
            and self._driver.cost_s - self._saved_s < o.replay_s
            and dirty < o.batch_bytes
        )

    def _mark_is_due(self) -> bool:
        o, cache = self._options, self._cache
        return self._visited and (
            self._inputs.stopped
            or self._inputs.wants_mark
            or time.monotonic() - self._since >= o.batch_s
            or cache.written_bytes + cache.dirty_bytes >= o.batch_bytes
            or self._driver.cost_s - self._saved_s >= o.replay_s
        )

    def _one(self) -> None:
        driver, inputs = self._driver, self._inputs
        if self._news is not None:
            self._take_topics()
        captured = len(driver.captured)
        room = self._options.batch_bytes - self._cache.dirty_bytes
        inputs.room_bytes = None if self._visited else room  # unsaved pages are limited
        at, idle = time.monotonic(), inputs.waited_s
        left = self._since + self._options.batch_s - at if self._visited else IDLE_S
        if self._coming is not None:
            left = 0.0  # there is a mark to write
        cost, log_at = driver.cost_s, driver.log_at
        taken = driver.one(inputs, min(IDLE_S, max(0.0, left)))
        if driver.log_at < log_at:  # the log was recreated, without the steps since the last mark
            inputs.wants_mark = True
        ranges, in_vain = ((), {}) if taken is None else (taken.ranges, driver.in_vain)
        if taken is None:  # otherwise the step did this
            self._outbox.acked()  # Kafka may have refused an output
        inputs.took(ranges, in_vain, driver.cost_s - cost)
        took = time.monotonic() - at - (inputs.waited_s - idle)
        self._longest_s = max(self._longest_s, took)
        if self._visited:
            self._cache.write_behind()
        if len(driver.captured) != captured:
            self._look()

    def _take_topics(self) -> None:
        """Update the topics to which replies may go, and read new ones."""
        sizes, self._news = self._news or {}, None
        driver = self._driver
        driver.learn(sizes)
        o, read = self._options, driver.offsets
        if o.resting:
            places = resting_places(sizes, o.broker)
        else:
            places = own_places(sizes, o.vpns, o.broker, o.number, o.alone, o.removed)
            places += places_of(sizes, captured_topics(sizes, driver.captured))
        # This broker may have read there before, as the only one; a removed broker then read on.
        at = {p: max(read.get(p, 0), o.read.get(p, 0)) for p in places}
        try:
            self._inputs.also(at, driver.ids)
        except KafkaException as error:  # Kafka is down: the next look tries again
            log.info("%s: new topics are not read yet: %s", o.broker, error)
            self._news = self._news or sizes

    # ------------------------------------------------------------ marks

    def _make_mark(self) -> None:
        begun = time.monotonic()
        self._inputs.wants_mark = False
        self._driver.flush()
        self._log.mark()  # raises if this worker was fenced: its mark is useless
        snapshot = self._driver.snapshot(self._options.keep, self._cache.put_to_state)
        self._cache.hand_over()
        self._paused_s += time.monotonic() - begun
        self._coming = Mark(snapshot, self._figures(), self._notes())
        self._cache.count_anew()
        self._saved_s = self._driver.cost_s
        self._visited, self._since = False, time.monotonic()
        self._write_more(MARK_ROWS)

    def _write_more(self, rows: int) -> None:
        """Write about this many more rows of the mark. Once all are written, the batch gets the
        mark to save."""
        begun = time.monotonic()
        more = self._driver.pack(rows)
        self._paused_s += time.monotonic() - begun
        if not more:
            with self._changed:
                self._mark, self._coming = self._coming, None
                self._changed.notify_all()

    def _sums_now(self) -> dict[str, float]:
        inputs, driver = self._inputs, self._driver
        stood_s = self._paused_s + self._cache.writer.waited_s
        return {
            "steps": driver.step,
            "records_in": inputs.records,
            "bytes_in": inputs.bytes,
            "records_out": self._outbox.records,
            "refused": self._outbox.refused,
            "cache_pages_read": self._cache.misses,
            "step_ms": 1000 * driver.cost_s,
            "gap_ms": 1000 * stood_s,
            "busy_ms": 1000 * (time.monotonic() - stood_s - inputs.waited_s),
        }

    def _figures(self) -> Figures:
        before, self._sums = self._sums, self._sums_now()
        figures = replace(
            self._opened,
            **{name: round(now - before[name]) for name, now in self._sums.items()},
            step_max_ms=round(1000 * self._longest_s),
            lag_records=self._inputs.behind,
            slow_partitions=len(self._inputs.slow.places),
            cache_bytes=self._cache.held_bytes,
            state_pages=self._cache.written_pages,
            state_bytes=self._cache.written_bytes,
        )
        self._opened, self._longest_s = Figures(), 0.0
        figures.waited(self._inputs.ages_ms)
        self._inputs.ages_ms.clear()
        return figures

    def _notes(self) -> list[str]:
        notes = self._driver.notes + self._outbox.notes + self._inputs.notes
        self._driver.notes, self._outbox.notes, self._inputs.notes = [], [], []
        if self._inputs.stopped:
            notes.append(f"stopped:{self._options.broker}")
        return notes
