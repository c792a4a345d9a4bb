"""One broker in one process: the real driver, with everything around it that may fail.

A `Site` is what survives a worker: the log of steps, the saved states, and the current worker. A
`Worker` is one attempt to run the broker. It dies where `point` decides; some of its records in
flight arrive in Kafka all the same. A worker that is replaced while it lives is a zombie: it
continues until Kafka refuses its log.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from crc32c import crc32c
from lakequeue.mesh.facts import MeshFacts, load_facts
from lakequeue.mesh.mesh import Mesh
from lakequeue.protocol import topics
from lakequeue.protocol.steplog import Range
from lakequeue.protocol.wire import WireRecord
from lakequeue.replica.clock import BrokerClock
from lakequeue.replica.driver import UNSAID_MAX, Clocks, Driver, Snapshot, Taken
from lakequeue.sources.step_batch import to_batch
from lakequeue.state import Batch, DictStore, Home, Limits, check

from .kafka import Fenced, Kafka, PartitionId, StepsLog

KEEP = 3  # snapshots to which the store may go back
VPN = "default"
PUBLISH_USED = 2  # partitions of a broker that clients write to
POINTS = (
    "append", "appended", "written", "send", "landed", "snapshot", "page", "commit", "committed",
    "loaded", "fenced", "replayed",
)  # fmt: skip


class Died(BaseException):
    """The worker died. No step can catch that."""


@dataclass
class Saved:
    """One commit in the store. torn: it cannot be read."""

    snapshot: bytes | None
    pages: dict[str, bytes]
    torn: bool = False

    def offsets(self) -> dict[PartitionId, int]:
        """Its reading positions."""
        if self.snapshot is None:
            return {}
        known = msgspec.msgpack.decode(self.snapshot, type=Snapshot)
        return {(topic, n): at for topic, n, at in known.offsets}


@dataclass
class Site:
    """All of a broker that survives its workers. origin: the state after which its steps begin, for
    the judge; begins: the positions after each step that changed the home, for the judge; marks:
    digests of the pages by step, for the judge; skew: of its machine's clock, ms; dies_at: the next
    point at which a worker dies, and how often it is passed before."""

    name: str
    number: int
    limits: Limits
    log: StepsLog = field(default_factory=StepsLog)
    saved: list[Saved] = field(default_factory=lambda: [Saved(None, {})])
    origin: Saved = field(default_factory=lambda: Saved(None, {}))
    marks: dict[int, int] = field(default_factory=dict)
    attempts: int = 0
    skew: float = 0.0
    is_cut: bool = False
    dies_at: tuple[str, int] | None = None
    worker: Worker | None = None
    begins: dict[int, dict[PartitionId, int]] = field(default_factory=dict)
    captured: list[str] = field(default_factory=list)  # plain topics that all brokers read
    speaks_for: list[int] = field(default_factory=list)  # removed brokers
    epoch: int = 7
    doors: list[PartitionId] = field(default_factory=list)  # where records of other homes arrive

    def directory(self) -> dict[str, Any]:
        """Its copy of the home's directory, and the edition; 0 if it is alone."""
        assert self.worker is not None
        facts = self.facts
        queues = [one for entries in facts.entries.values() for one in entries.items()]
        return {name: msgspec.json.encode(one) for name, one in queues} | {"": facts.edition}

    @property
    def facts(self) -> MeshFacts:
        """Its facts about the others."""
        assert self.worker is not None
        mesh = self.worker.driver._replica.broker.mesh
        assert isinstance(mesh, Mesh)
        return mesh.facts

    def places(self) -> list[PartitionId]:
        """The partitions that it reads."""
        found = [(topics.topic(self.name, topics.INSTRUCTIONS), 0)]
        found.append((topics.topic(self.name, topics.MESH), 0))
        for number in (self.number, *self.speaks_for):
            found.append((topics.topic(VPN, topics.COMMANDS), number))
            first = topics.publish_partitions(number)[0]
            found += [(topics.topic(VPN, topics.PUBLISH), first + n) for n in range(PUBLISH_USED)]
        return found + self.doors + [(topic, n) for topic in self.captured for n in range(2)]


class Worker:
    """One attempt to run a broker; `Log`, `OutputWriter`, `Inputs` and `Again` of its driver."""

    def __init__(self, site: Site, kafka: Kafka, rng: random.Random) -> None:
        site.attempts += 1
        self.site, self.kafka, self.rng = site, kafka, rng
        self.attempt = site.attempts
        self.is_frozen = self.is_over = self.has_fenced = False
        self._before: Worker | None = None
        self.lag = 0  # records of outputs in flight
        self.slow = 0  # records of the log in flight
        self.most = 5  # records of a partition in one step
        self._log_flight: deque[bytes] = deque()
        self._reported: list[int] = []
        self._flight: deque[tuple[int, WireRecord]] = deque()
        self._cpu = 0.0
        self._at: dict[PartitionId, int] = {}  # after the inputs of the step in progress
        self._coming: tuple[bytes, int, dict[str, bytes], dict[str, bytes]] | None = None
        self.clock = BrokerClock(lambda: kafka.now + site.skew, lambda: kafka.now / 1000)

    # ------------------------------------------------------------ start

    def open(self) -> None:
        """Start from the newest readable state, and the log."""
        site, before = self.site, self.site.worker
        site.worker = self
        while site.saved[-1].torn:
            site.saved.pop()
        saved = site.saved[-1]
        snapshot = Snapshot()
        if saved.snapshot is not None:
            snapshot = msgspec.msgpack.decode(saved.snapshot, type=Snapshot)
        self.store = DictStore(saved.pages)
        self.clock.start(snapshot.now)
        home = Home(site.name, site.number, site.epoch)
        self.driver = Driver(
            home, "v1", self.store, snapshot, self, self,
            Clocks(self.clock, lambda: self.kafka.now / 1000, self._used), site.limits,
            Mesh.load,
        )  # fmt: skip
        self._watch_marks()
        self.point("loaded")
        self._before = before
        self.replay()
        self.fence()
        self.point("fenced")
        self.replay()
        self.clock.start(self.driver.now)
        self.driver.learn(self.kafka.sizes)
        self.point("replayed")

    def fence(self) -> None:
        """From now on nobody else writes the log; just before, somebody may have."""
        if self.has_fenced:
            return
        self.has_fenced, before = True, self._before
        if before is not None and not before.is_over:
            before.land_log(self.rng.randint(0, 3))
        self.site.log.owner = self.attempt

    def replay(self) -> None:
        """The log's steps after our state."""
        self.driver.replay(self.site.log.read(self.driver.log_at), self)

    def _watch_marks(self) -> None:
        """A repeated mark writes the same pages as before."""
        replica = self.driver._replica
        mark = replica.mark

        def watched() -> None:
            step = self.driver.step
            mark()
            known = self.site.marks.get(step)
            found = digest(self.store.pages)
            assert known in (None, found), f"the mark at step {step} has other pages"

        replica.mark = watched  # type: ignore[method-assign]

    def _used(self) -> float:
        self._cpu += 0.0001
        return self._cpu

    # ------------------------------------------------------------ life and death

    def point(self, name: str) -> None:
        """The worker may die here."""
        fate = self.site.dies_at
        if fate is None or fate[0] != name or self.site.worker is not self:
            return
        if fate[1] > 0:
            self.site.dies_at = name, fate[1] - 1
            return
        self.site.dies_at = None
        raise Died(name)

    def die(self) -> None:
        """A part of its records in flight arrives."""
        if self.is_over:
            return
        self.is_over = True
        if not self.site.is_cut:
            self.land_log(self.rng.randint(0, len(self._log_flight)))
            self._scatter()

    def land_log(self, n: int) -> None:
        """So many records of the log arrive, if they still may."""
        for _ in range(min(n, len(self._log_flight))):
            if self.site.log.owner == self.attempt:
                self._reported.append(
                    self.site.log.append(self.attempt, self._log_flight.popleft())
                )

    def _scatter(self) -> None:
        """Of each partition the first outputs in flight arrive."""
        by_place: dict[PartitionId, list[WireRecord]] = {}
        for _, record in self._flight:
            by_place.setdefault((record.topic, record.partition or 0), []).append(record)
        for place, records in by_place.items():
            for record in records[: self.rng.randint(0, len(records))]:
                self.kafka.said(place, record)
        self._flight.clear()

    def is_stuck(self) -> bool:
        """Whether it can only wait for Kafka."""
        return self.site.is_cut and len(self.driver._unsaid) >= UNSAID_MAX

    def step(self) -> bool:
        """Take a step; returns whether there was one."""
        if self.is_stuck():
            return False
        took = self.driver.one(self, 0.0) is not None
        # a worker that lost the log may have read steps of the next owner
        if took and self.site.log.owner == self.attempt:
            check(self.driver._replica.broker)
            facts = self.driver._replica.broker.mesh.facts  # type: ignore[attr-defined]
            assert len(facts.waiting) <= self.site.limits.unconfirmed_changes
        return took

    # ------------------------------------------------------------ the log

    def append(self, value: bytes) -> None:
        self.point("append")
        self.fence()  # a step in replay may fail before
        self._log_flight.append(value)
        self.point("appended")

    def written(self, timeout_s: float) -> list[int]:
        slow = 0 if timeout_s else self.slow
        if self.site.is_cut and timeout_s:
            self.site.is_cut = False  # it waits until the link is back
        if self._reported:  # it learns of these before it learns that it is fenced
            slow = len(self._log_flight)
        while len(self._log_flight) > slow and not self.site.is_cut:
            self._reported.append(self.site.log.append(self.attempt, self._log_flight.popleft()))
        self.point("written")
        found, self._reported = self._reported, []
        return found

    # ------------------------------------------------------------ outputs

    def send(self, step: int, records: Iterable[WireRecord]) -> None:
        self.point("send")
        self._flight += [(step, record) for record in records]
        self.land(self.lag)

    def acked(self) -> int | None:
        self.land(self.lag)
        return self._flight[0][0] - 1 if self._flight else None

    def land(self, lag: int) -> None:
        """Outputs arrive, except so many records."""
        while len(self._flight) > lag and not self.site.is_cut:
            self.point("landed")
            _, record = self._flight.popleft()
            self.kafka.said((record.topic, record.partition or 0), record)

    # ------------------------------------------------------------ inputs

    def take(self, what: Any) -> Any:
        """`Again` for ranges, `Inputs` for a time."""
        if isinstance(what, tuple):
            return self._again(what)
        if self.site.is_cut:
            return None
        found, self._at = {}, {}
        for place in self.site.places():
            most = self.rng.choice((0, self.most, self.most)) if self.most < 100 else self.most
            if records := self.kafka.read(place, self.driver.offsets.get(place, 0), most):
                found[place] = records
                self._at[place] = records[-1].at + 1
        if not found:
            return None
        read = to_batch(found)  # type: ignore[arg-type]
        return Taken(live(read.batch), read.ranges, ())

    def _again(self, ranges: tuple[Range, ...]) -> Batch:
        return live(self.kafka.again(ranges))

    def _unread(self) -> list[int]:
        """The times of commands that are still to be taken."""
        found = []
        for place in self.site.places():
            if place[0].endswith((topics.COMMANDS, topics.INSTRUCTIONS)):
                at = max(self._at.get(place, 0), self.driver.offsets.get(place, 0))
                found += [record.time for record in self.kafka.read(place, at, 1)]
        return found

    def up_to(self) -> int | None:
        unread = self._unread()
        return min([*unread, self.clock()]) if unread else None

    def current(self) -> bool:
        return not self.site.is_cut and not self._unread()

    # ------------------------------------------------------------ marks

    def begin_mark(self) -> None:
        """Begin to save the present state. Raises Fenced."""
        if self.site.is_cut or self._coming is not None:
            return
        if self.site.log.owner != self.attempt:
            raise Fenced("its mark is of no use")
        self.driver.flush()
        self.site.log.end_transaction()
        self.point("snapshot")
        written: dict[str, bytes] = {}
        pages = self.store.put

        def put(key: str, value: bytes) -> None:
            self.point("page")
            pages(key, value)
            written[key] = value

        snapshot = msgspec.msgpack.encode(self.driver.snapshot(KEEP, put))
        mesh = self.driver._replica.broker.mesh
        assert isinstance(mesh, Mesh)
        if mesh.keeps_directory:
            saved, held = (msgspec.msgpack.encode(f) for f in (load_facts(self.store), mesh.facts))
            assert saved == held, "a mark leaves out facts of the mesh"
        self._coming = snapshot, self.driver.step, dict(self.store.pages), written

    def commit(self, torn: bool = False, full: bool = False) -> bool:
        """Complete the mark; returns whether one is saved. Raises Died where the disk is full, or a
        page differs from what was written."""
        if self._coming is None or self.site.is_cut:
            return False
        if self.site.worker is not self:
            raise Fenced("its batch was given to somebody else")
        snapshot, step, pages, written = self._coming
        while self.driver.pack(2):
            pass
        self._coming = None
        self.land(0)
        self.point("commit")
        if full:
            raise Died("the disk is full")
        pages |= written
        self.site.marks.setdefault(step, digest(pages))
        self.site.saved = [*self.site.saved, Saved(snapshot, pages, torn)][-KEEP:]
        if torn:
            raise Died("a page is torn")
        known = msgspec.msgpack.decode(snapshot, type=Snapshot)
        if len(known.marks) == KEEP:
            self.site.log.trim(known.marks[0])
        self.point("committed")
        return True


def digest(pages: dict[str, bytes]) -> int:
    """Equal for equal pages."""
    found = 0
    for key, page in sorted(pages.items()):
        found = crc32c(page, crc32c(key.encode(), found))
    return found


def live(batch: Any) -> Batch:
    """The batch as the core expects it."""
    return Batch(batch.commands, batch.publishes, batch.mesh)
