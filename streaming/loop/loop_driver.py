"""The core in the loop: `replica.Driver` with Kafka, Spark's state and real clocks.

A broker learns about other brokers from the engine, or from their records (`Mesh.load`).

A step that fails ends the loop and the batch. Spark discards the pages that were written since the
last mark, and runs the batch again. The next loop begins from the state, and the log names the
input to leave out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from ...earlier.carry_over import carry_over
from ...earlier.pages import FORMAT as EARLIER_FORMAT
from ...mesh.mesh import Mesh
from ...protocol.steplog import StepRecord
from ...replica.clock import BrokerClock
from ...replica.driver import Clocks, Driver, Log, OutputWriter, Refused, Snapshot, Taken
from ...replica.micro_batch import MicroBatch
from ...replica.pace import Pace
from ...state import FORMAT, Home, Limits, Store
from .page_cache import Pages
from .state_store import StatePages

Logged = tuple[int, StepRecord]


class _Layout(msgspec.Struct):
    """The field that the broker's page has in every format."""

    format: int = 0


BATCH_LIMITS = Limits(beside=1)  # a batch takes at least 100 ms, even if its steps do little
_snapshot = msgspec.msgpack.Decoder(Snapshot).decode
_layout = msgspec.msgpack.Decoder(_Layout).decode


def wall() -> float:
    """Epoch ms; may jump."""
    return time.time() * 1000


class LoopDriver(Driver):
    """One broker's steps. saved: the state's snapshot; limits: tests make them tiny; resting: the
    broker's clock stands still. Then nothing becomes due, such as a lane's retry each second, and
    no session ends for lack of heartbeats: brokers only answer each other until the home is at
    rest."""

    def __init__(
        self, home: Home, code: str, store: Store, saved: bytes | None, log: Log,
        outbox: OutputWriter, limits: Limits = Limits(),  # noqa: B008 (frozen)
        resting: bool = False,
    ) -> None:  # fmt: skip
        _check_format(home, store)
        snapshot = Snapshot() if saved is None else _snapshot(saved)
        self._clock = BrokerClock(wall, time.monotonic)
        self._clock.start(snapshot.now)
        self._pace = Pace()
        self._time = (lambda: self.now) if resting else self._clock
        clocks = Clocks(self._time, time.monotonic, time.thread_time)
        mesh = Mesh.load
        super().__init__(home, code, store, snapshot, log, outbox, clocks, limits, mesh)

    def one(self, inputs: Any, timeout_s: float) -> Taken | None:
        """Like the driver's. inputs: `LiveInputs`."""
        self._keep_pace(inputs)
        return super().one(_Inputs(inputs, self._time, self._pace), timeout_s)

    def _keep_pace(self, inputs: Any) -> None:
        """Wait until the next step may begin. Meanwhile send the outputs of steps that are in the
        log."""
        begun = time.monotonic()
        while (rest := self._pace.rest_s(time.monotonic())) > 0:
            if self._unsaid:
                self._send_written(rest)
            else:
                time.sleep(rest)
            inputs.waited_s += time.monotonic() - begun
            begun = time.monotonic()

    def replay(self, logged: list[tuple[int, StepRecord]], again: Any) -> list[int]:
        """Like the driver's, with `ReplayInputs`. The broker's clock then continues from the last
        step."""
        spoken = super().replay(logged, again)
        self._clock.start(self.now)
        return spoken


def micro_batch(home: Home, store: Pages) -> MicroBatch:
    """Begin a micro-batch. Converts pages of the earlier core."""
    if _format_of(store) == EARLIER_FORMAT:
        _convert(home, store)
    _check_format(home, store)
    return MicroBatch(home, store, BATCH_LIMITS, Mesh.load)


class _Inputs:
    """Live inputs that report each step to the pace."""

    def __init__(self, inputs: Any, clock: Callable[[], int], pace: Pace) -> None:
        self._inputs, self._clock, self._pace = inputs, clock, pace
        self.current = inputs.current

    def take(self, timeout_s: float) -> Taken | None:
        taken: Taken | None = self._inputs.take(timeout_s)
        if taken is not None:
            self._pace.began(time.monotonic(), sum(r.count for r in taken.ranges))
        return taken

    def up_to(self) -> int | None:
        """The inputs' time, but not after the broker's clock: Kafka's own clock may have jumped
        ahead."""
        at: int | None = self._inputs.up_to()
        return None if at is None else min(at, self._clock())


def _format_of(store: Store) -> int | None:
    page = store.get("broker")
    return None if page is None else _layout(page).format


def _check_format(home: Home, store: Store) -> None:
    """Raise Refused for pages in another format."""
    found = _format_of(store)
    if found not in (None, FORMAT):
        raise Refused(
            f"the state of broker {home.name!r} has format {found}, and this version reads "
            f"{FORMAT}: use the version that wrote it, or begin with an empty home"
        )


def change_over(
    home: Home, pages: StatePages, saved: bytes, log_from: Callable[[int], list[Logged]]
) -> bytes:
    """Convert the pages of the earlier core. saved: its snapshot. log_from: reads the log from an
    offset on. Returns the new snapshot, or the same one if the pages have this core's format
    already. Raises Refused if the home did not stop cleanly: this version cannot replay its last
    steps."""
    if _format_of(pages) != EARLIER_FORMAT:
        return saved
    own = _snapshot(saved)  # the earlier core had one more digest
    if any(record.step > own.step for _, record in log_from(own.log_at)):
        raise Refused(
            f"broker {home.name!r} did not stop cleanly, and this version cannot replay the "
            "last steps of the earlier core again: start the version that took them once more and "
            "stop it"
        )
    _convert(home, pages)
    changed: bytes = msgspec.msgpack.encode(own)
    pages.save(changed)
    return changed


def _convert(home: Home, pages: Pages) -> None:
    """Convert pages of the earlier core. If it raises Refused, nothing has changed."""
    keys = pages.keys()
    found = carry_over(pages, keys, home, Limits())
    for key in sorted(keys - found.pages.keys()):
        pages.delete(key)
    for key, page in found.pages.items():
        pages.put(key, page)
