"""The whole log of a broker once more, from its first state and in one go.

The live broker was loaded from snapshots in between, wherever workers died. So each step must have
the same outputs as then, and each mark the same pages: a loaded state equals the live one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from lakequeue.mesh.mesh import Mesh
from lakequeue.protocol import steplog
from lakequeue.protocol.steplog import Range
from lakequeue.protocol.wire import WireRecord
from lakequeue.replica.driver import Clocks, Driver, Snapshot
from lakequeue.state import Batch, DictStore, Home

from .kafka import Kafka
from .worker import Site, digest, live


class _Quiet:
    """`Log`, `OutputWriter` and `Again` of a driver that only replays."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def append(self, value: bytes) -> None:
        raise AssertionError("a replay appends nothing")

    def written(self, timeout_s: float) -> list[int]:
        raise AssertionError("a replay appends nothing")

    def send(self, step: int, records: Iterable[WireRecord]) -> None:
        """The digest in the next step's record shows whether they are the same."""

    def acked(self) -> int | None:
        return None

    def take(self, ranges: tuple[Range, ...]) -> Batch:
        return live(self._kafka.again(ranges, gone=True))


def judge_replay(site: Site, kafka: Kafka) -> None:
    """Raises Refused if a step has other outputs, AssertionError if a mark or the last state has
    other pages."""
    quiet: Any = _Quiet(kafka)
    snapshot = Snapshot()
    if site.origin.snapshot is not None:
        snapshot = msgspec.msgpack.decode(site.origin.snapshot, type=Snapshot)
    store = DictStore(site.origin.pages)
    driver = Driver(
        Home(site.name, site.number, site.epoch), "v1", store, snapshot, quiet, quiet,
        Clocks(lambda: 0, lambda: 0.0, lambda: 0.0), site.limits, Mesh.load,
    )  # fmt: skip
    mark = driver._replica.mark

    def watched() -> None:
        mark()
        known, found = site.marks.get(driver.step), digest(store.pages)
        assert known in (None, found), f"{site.name}: at step {driver.step} a mark has other pages"

    driver._replica.mark = watched  # type: ignore[method-assign]
    whole = [(at, steplog.decode(value)) for at, value in site.log.whole.items()]
    behind = [(at, msgspec.structs.replace(r, acked=0)) for at, r in whole if at >= snapshot.log_at]
    driver.replay(behind, quiet)
    worker = site.worker
    assert worker is not None
    worker.driver.flush()
    last = worker.driver
    assert (driver.step, driver._digest) == (last.step, last._digest), f"{site.name}: the last step"
    watched()
    last._replica.mark()
    differ = [
        key for key in {*store.pages, *worker.store.pages}
        if store.pages.get(key) != worker.store.pages.get(key)
    ]  # fmt: skip
    assert not differ, f"{site.name}: pages differ from a replay's: {differ}"
