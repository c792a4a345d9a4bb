"""The live core in the loop: what `replica.Driver` needs of Kafka, of Spark's state and of clocks.

Homes that began with one broker run on it, see decision 0067. Other brokers of the home are met
when the engine names them, or when they speak (`mesh.met_brokers`).

A step that fails ends the loop, and with it the batch: since the last mark, pages went into the
state that only this attempt knows, and Spark throws those away. It starts the batch again, and the
next loop begins from the state, with a log that says what to leave out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol, Self

import msgspec

from ..core import FORMAT, Batch, Home, Limits, Store
from ..mesh.met_brokers import neighbours
from ..protocol.steplog import Range, StepRecord
from ..replica.clock import BrokerClock
from ..replica.driver import Clocks, Driver, Log, OutputWriter, Refused, Snapshot, Taken
from ..replica.micro_batch import MicroBatch
from ..replica.pace import Pace
from ..replica.replica import Decided as LiveDecided
from ..sources.step_batch import Taken as Read
from ..state import Batch as ReadBatch
from ..state import Home as PagedHome
from .earlier.carry_over import NotAlone, carry_over, require_alone
from .earlier.pages import FORMAT as PAGED_FORMAT
from .state_store import StatePages

Logged = tuple[int, StepRecord]


class _Layout(msgspec.Struct):
    """What the broker's page has in every format."""

    format: int = 0


class Reads(Protocol):
    """Pages by their keys."""

    def get(self, key: str) -> bytes | None:
        """The page, or None."""


class AllPages(Store, Protocol):
    """Pages that can be listed."""

    def keys(self) -> set[str]:
        """Every page's key."""


log = logging.getLogger("lakequeue.loop")

BATCH_LIMITS = Limits(beside=1)  # a batch takes 100 ms and more, whatever little its steps do
_snapshot = msgspec.msgpack.Decoder(Snapshot).decode
_layout = msgspec.msgpack.Decoder(_Layout).decode


def wall() -> float:
    """Epoch ms; may jump."""
    return time.time() * 1000


class LiveDriver(Driver):
    """One broker's steps on the live core. saved: the snapshot that the state has; limits: tests
    make them tiny."""

    def __init__(
        self, home: Home, code: str, store: Store, saved: bytes | None, log: Log,
        outbox: OutputWriter, limits: Limits = Limits(),  # noqa: B008 (frozen)
    ) -> None:  # fmt: skip
        _check_format(home, store)
        snapshot = Snapshot() if saved is None else _snapshot(saved)
        self._clock = BrokerClock(wall, time.monotonic)
        self._clock.start(snapshot.now)
        self._pace = Pace()
        clocks = Clocks(self._clock, time.monotonic, time.thread_time)
        super().__init__(home, code, store, snapshot, log, outbox, clocks, limits, neighbours)

    def one(self, inputs: Any, timeout_s: float) -> Taken | None:
        """As the driver's. inputs: `LiveInputs`, whose batches are converted."""
        self._keep_pace(inputs)
        return super().one(_Inputs(inputs, self._clock, self._pace), timeout_s)

    def _keep_pace(self, inputs: Any) -> None:
        """Wait until the next step may begin; meanwhile what the log has by now is sent."""
        begun = time.monotonic()
        while (rest := self._pace.rest_s(time.monotonic())) > 0:
            if self._unsaid:
                self._send_written(rest)
            else:
                time.sleep(rest)
            inputs.waited_s += time.monotonic() - begun
            begun = time.monotonic()

    def replay(self, logged: list[tuple[int, StepRecord]], again: Any) -> list[int]:
        """As the driver's, from `ReadAgain`; the broker has lived through all of it then."""
        spoken = super().replay(logged, _Again(again))
        self._clock.start(self.now)
        return spoken


class LiveBatch:
    """A micro-batch on the live core."""

    def __init__(self, home: PagedHome, store: Store) -> None:
        live_home = Home(home.name, home.number, home.epoch, home.secret)
        _check_format(live_home, store)
        self._work = MicroBatch(live_home, store, BATCH_LIMITS, neighbours)
        self.end = self._work.end

    @classmethod
    def begin(cls, home: PagedHome, store: AllPages) -> Self | None:
        """A batch; pages of the earlier core become the live core's in it. None where they stay:
        that one goes on with them."""
        if _format_of(store) == PAGED_FORMAT:
            try:
                _turn(home, store)
            except NotAlone as why:
                log.info("%s", why)
                return None
        return cls(home, store)

    def take(self, batch: ReadBatch, now: int) -> LiveDecided:
        """Take one step."""
        return self._work.take(_converted(batch), now)


class _Inputs:
    """What comes in now, for the live core."""

    def __init__(self, inputs: Any, clock: BrokerClock, pace: Pace) -> None:
        self._inputs, self._clock, self._pace = inputs, clock, pace
        self.current = inputs.current

    def take(self, timeout_s: float) -> Taken | None:
        taken: Read | None = self._inputs.take(timeout_s)
        if taken is None:
            return None
        self._pace.began(time.monotonic(), sum(r.count for r in taken.ranges))
        return Taken(_converted(taken.batch), taken.ranges, taken.opened)

    def up_to(self) -> int | None:
        """Kafka stamps with the wall clock, and that may have jumped ahead."""
        at: int | None = self._inputs.up_to()
        return None if at is None else min(at, self._clock())


class _Again:
    """What came in before, for the live core."""

    def __init__(self, again: Any) -> None:
        self._again = again

    def take(self, ranges: tuple[Range, ...]) -> Batch:
        return _converted(self._again.take(ranges))


def _converted(batch: ReadBatch) -> Batch:
    """A batch as it was read, for the live core."""
    return Batch(batch.commands, batch.publishes, batch.mesh)


def _format_of(store: Reads) -> int | None:
    page = store.get("broker")
    return None if page is None else _layout(page).format


def _check_format(home: Home, store: Store) -> None:
    """Raise Refused for the pages of another core."""
    found = _format_of(store)
    if found not in (None, FORMAT):
        raise Refused(
            f"the state of broker {home.name!r} has format {found}, and the live core reads "
            f"{FORMAT}: use the version that wrote it, or begin with an empty home"
        )


def stays(home: PagedHome, store: Store) -> bool:
    """Whether these are pages of the earlier core that cannot be carried over."""
    if _format_of(store) != PAGED_FORMAT:
        return False
    try:
        require_alone(home.name, msgspec.msgpack.decode(store.get("broker") or b""))
    except NotAlone as why:
        log.info("%s", why)
        return True
    return False


def change_over(
    home: PagedHome, pages: StatePages, saved: bytes, log_from: Callable[[int], list[Logged]]
) -> bytes:
    """A home of the earlier core goes on here: its pages become the live core's, in the same batch.
    saved: the snapshot that goes with them; log_from: reads the log from an offset on. Gives the
    new snapshot, the same where the pages are the live core's already. Raises Refused where the
    home was not stopped in good order: nobody here can take its last steps."""
    if _format_of(pages) != PAGED_FORMAT:
        return saved
    own = _snapshot(saved)  # the earlier core knew a digest more
    if any(record.step > own.step for _, record in log_from(own.log_at)):
        raise Refused(
            f"broker {home.name!r} did not stop in good order, and this version cannot take the "
            "last steps of the earlier core again: start the version that took them once more and "
            "stop it"
        )
    _turn(home, pages)
    changed: bytes = msgspec.msgpack.encode(own)
    pages.save(changed)
    return changed


def _turn(home: PagedHome, pages: AllPages) -> None:
    """Pages of the earlier core become the live core's. Raises NotAlone, and changes nothing."""
    keys = pages.keys()
    whose = Home(home.name, home.number, home.epoch, home.secret)
    found = carry_over(pages, keys, whose, Limits())
    for key in sorted(keys - found.pages.keys()):
        pages.delete(key)
    for key, page in found.pages.items():
        pages.put(key, page)
