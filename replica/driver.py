"""Steps over a log: the order in which things must happen, without Kafka, Spark or a clock.

    take inputs ─▶ append the step's record ─▶ compute ─▶ the log has it ─▶ outputs go out
                      take inputs ─▶ append ─▶ compute ────▶ the log has it ─▶ outputs go out

Before a step's outputs go out, its record stands in the log; so nobody can ever have heard of a
step that another attempt does not know. A few more steps are taken meanwhile: nobody has heard of
those either, and they are thrown away with the live state should the log refuse. A driver that
finds an older snapshot takes the logged steps again, with the same inputs at the same time, and
makes marks where they were made. What the steps say must be the same: a digest in the next record
tells. Only the last of them, whose outputs may not all be in Kafka, speak again, and say the same
bytes.

A step that fails has spoiled the live state. Another record of the same step says what it leaves
out, and the driver ends (`StepPutAside`); the next one begins from the snapshot and takes the step
without what failed.

`Inputs`, `Again`, `Log` and `OutputWriter` are Kafka in the job and lists in the tests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

import msgspec
from crc32c import crc32c

from ..protocol import steplog, wire
from ..protocol.errors import LakequeueError
from ..protocol.journal import JournalSegment
from ..protocol.recreated_topics import told_of_anew
from ..protocol.steplog import Opened, Range, StepRecord
from ..protocol.wire import WireRecord
from ..state import FORMAT, Batch, Broker, Home, Limits, StepFailed, Store
from ..state.queue.mesh_interface import MeshInterface
from .journal_buffer import JournalBuffer
from .replica import Decided, Replica, put_aside, sorted_out

Put = Callable[[str, bytes], None]  # writes a page
UNSAID_MAX = 4  # steps that wait for the log
LOG_S = 0.5
# While steps wait for the log, how long until it is looked again whether there is more to do.
GLANCE_S = 0.001
# Work that can wait leaves most of the time to whoever sent something just now: so much rest for
# each second of it. For a purge or a redrive somebody waits, but others should hardly notice; for
# the rest of a million messages that have expired nobody does. And it is not the step alone that
# costs: its events go through Kafka into the tables, on the same cores.
REST_OF_BULK, REST_OF_DUE = 4.0, 40.0
REST_S_MAX = 0.2  # a lease that ends meanwhile is noticed so late at most
RECENT_S = 1.0


class Refused(LakequeueError):
    """The engine must not go on: it would say other things than it said before."""


class StepPutAside(LakequeueError):
    """A step failed and stands in the log again, without what failed: begin from the snapshot."""


class Clocks(NamedTuple):
    """now: the broker's time, epoch ms; monotonic: seconds; cpu: seconds of this thread."""

    now: Callable[[], int]
    monotonic: Callable[[], float]
    cpu: Callable[[], float]


class Snapshot(msgspec.Struct):
    """All that outlives a batch beside the pages.

    offsets: (topic, partition) → the next record; ids: the same → the topic's id; log_at: offset
    behind the last step's record; marks: `log_at` of the snapshots before, newest last; sizes:
    topics with their numbers of partitions; outputs: the last step's digest; journal, since: see
    `JournalBuffer`.
    """

    step: int = 0
    now: int = 0
    offsets: list[tuple[str, int, int]] = []
    log_at: int = 0
    marks: list[int] = []
    sizes: dict[str, int] = {}
    captured: list[str] = []
    outputs: int = 0
    journal: list[JournalSegment] = []
    since: int = 0
    ids: list[tuple[str, int, str]] = []

    def rehomed(
        self, step: int, now: int, offsets: Mapping[tuple[str, int], int],
        ids: Mapping[tuple[str, int], str], captured: list[str], journal: list[JournalSegment],
    ) -> Snapshot:  # fmt: skip
        """This one behind a change of the home's brokers (`mesh.rehome`): its step, time and what
        it is read from; journal: what the change did."""
        return msgspec.structs.replace(
            self, step=step, now=max(self.now, now),
            offsets=[(*place, at) for place, at in sorted(offsets.items())],
            ids=[(*place, one) for place, one in sorted(ids.items())],
            captured=captured, journal=[*self.journal, *journal],
            since=self.since if self.journal else now,
        )  # fmt: skip


class Taken(NamedTuple):
    """A step's inputs, and where they stand; opened: what is read from elsewhere from here on."""

    batch: Batch
    ranges: tuple[Range, ...]
    opened: tuple[Opened, ...] = ()


class Inputs(Protocol):
    """What comes in now."""

    def take(self, timeout_s: float) -> Taken | None:
        """A step's worth, within its limits; None when nothing came in time."""

    def up_to(self) -> int | None:
        """Commands that are still to be taken came after this time, epoch ms; None: there are
        none."""

    def current(self) -> bool:
        """Whether what is known is all that came until now; asks Kafka."""


class Again(Protocol):
    """What came in before."""

    def take(self, ranges: tuple[Range, ...]) -> Batch:
        """The same records once more; raises Refused when they are gone."""


class Log(Protocol):
    """The log of steps."""

    def append(self, value: bytes) -> None:
        """Begin to write a record."""

    def written(self, timeout_s: float) -> list[int]:
        """Offsets of the records that were written since the last call, in order; waits at most so
        long for one. Raises for one that may not write any more."""


class OutputWriter(Protocol):
    """Outputs on their way."""

    def send(self, step: int, records: Iterable[WireRecord]) -> None:
        """Begin to write a step's outputs."""

    def acked(self) -> int | None:
        """The newest step of which, and of all before, nothing is on its way; None: nothing is."""


def digest_of(batch: Batch) -> int:
    """What a step takes in, as a number: what it looks at, for the tables keep no more. Of commands
    and words of brokers that is their value; the header `lq` is a message's."""
    digest, messages = 0, batch.publishes
    columns = [messages.values, messages.metas, messages.keys]
    for records in (batch.commands, batch.mesh):
        columns += [records.values, records.keys]
    for column in columns:
        for value in column:
            if value:
                digest = crc32c(value, digest)
    return digest


class Driver:
    """One broker's steps, from a snapshot on. store: the pages of that snapshot; mesh: see
    `Replica`."""

    def __init__(
        self, home: Home, code: str, store: Store, snapshot: Snapshot, log: Log,
        outbox: OutputWriter, clocks: Clocks, limits: Limits = Limits(),  # noqa: B008 (frozen)
        mesh: Callable[[Broker], MeshInterface] | None = None,
    ) -> None:  # fmt: skip
        self.home, self.code = home, code
        self._replica = Replica(home, store, limits, mesh)
        self._log, self._outbox, self._clocks = log, outbox, clocks
        self.step, self.now, self.log_at = snapshot.step, snapshot.now, snapshot.log_at
        self.offsets = {(topic, at): offset for topic, at, offset in snapshot.offsets}
        self.ids = {(topic, at): topic_id for topic, at, topic_id in snapshot.ids}
        self.sizes = dict(snapshot.sizes)
        self.captured = dict.fromkeys(snapshot.captured)
        self._marks = snapshot.marks
        self._digest = snapshot.outputs
        self._journal = JournalBuffer(home.name, list(snapshot.journal), snapshot.since)
        self._deadline = 1  # what came due while nobody watched
        # A mark was made since the last step. One that was loaded counts: whoever takes the steps
        # again from an earlier snapshot has to make it.
        self._marked = snapshot.step > 0
        self._news: dict[str, int] = {}
        self._unsaid: deque[tuple[int, list[WireRecord]]] = deque()  # what waits for the log
        self._said = snapshot.step  # up to here outputs were sent
        self.notes: list[str] = []
        self.cost_s = 0.0  # what the steps took, and would take again
        self.in_vain: dict[tuple[str, int], int] = {}  # what of the last step changed nothing
        self._heard = self._rested = float("-inf")  # when something came; when rest ends

    # ------------------------------------------------------------ live

    def due_in(self) -> float | None:
        """Seconds until a step is due without any input; None: never."""
        at = min(filter(None, (self._deadline, self._journal.due())), default=0)
        rest = 0.0
        if 0 < self._deadline <= self.now:
            rest = self._rested - self._clocks.monotonic()
        return max(0.0, (at - self._clocks.now()) / 1000, rest) if at else None

    def learn(self, sizes: dict[str, int]) -> None:
        """Topics and their numbers of partitions as they are now: from the next step on."""
        known = self.sizes | self._news
        self._news |= {t: n for t, n in sizes.items() if known.get(t) != n}
        self._news |= {t: 0 for t, n in known.items() if n and t not in sizes}

    def one(self, inputs: Inputs, timeout_s: float) -> Taken | None:
        """Wait for input or a deadline, at most so long, and take one step; None: no step.

        While steps wait for the log it is only looked whether there is input, and returned soon.
        Raises StepPutAside.
        """
        self._let_out(UNSAID_MAX - 1)
        due = self.due_in()
        timeout_s = 0.0 if self._unsaid else timeout_s if due is None else min(timeout_s, due)
        taken = inputs.take(timeout_s)
        if taken is None:
            if self._unsaid:
                self._send_written(GLANCE_S)
                return None
            if self.due_in() != 0 or not inputs.current():
                return None
            taken = Taken(Batch(), ())
        # Time does not run ahead of commands that came in time: whoever sent heartbeats and acks
        # while the engine was away is not late. A home that begins has nobody who could be.
        up_to = inputs.up_to() if self.now else None
        now = max(self.now, self._clocks.now() if up_to is None else up_to)
        acked = self._outbox.acked()
        record = StepRecord(
            steplog.FORMAT, self.step + 1, now, self._said if acked is None else acked, 0,
            self._digest, self.code, taken.ranges, self._news, taken.opened,
            inputs=digest_of(taken.batch), marked=self._marked, core=FORMAT,
        )  # fmt: skip
        self._log.append(steplog.encode(record))
        before = self.cost_s
        # While the log is written: of the steps before, and of this one.
        decided = self._first_try(record, taken.batch, len(self._unsaid) + 1)
        self._rest(bool(taken.ranges), bool(decided.said), self.cost_s - before)
        records = self._encoded(decided)
        self._unsaid.append((self.step, records))
        self._send_written(0.0)
        self._news, self._marked = {}, False
        return taken

    def _rest(self, heard: bool, spoke: bool, cost_s: float) -> None:
        """Work that can wait leaves time to others, if somebody was heard just now."""
        now = self._clocks.monotonic()
        if heard:
            self._heard = now
        elif not spoke and now - self._heard < RECENT_S:
            rest = REST_OF_DUE if self._deadline < self.now else REST_OF_BULK  # due since then
            self._rested = now + min(rest * cost_s, REST_S_MAX)

    def settle(self) -> None:
        """Wait until the log has all steps, and their outputs are sent."""
        self._let_out(0)

    def _let_out(self, most: int) -> None:
        """Wait until no more than so many steps wait for the log."""
        while len(self._unsaid) > most:
            self._send_written(LOG_S)

    def _send_written(self, timeout_s: float) -> None:
        """Send the outputs of steps that the log has by now."""
        for at in self._log.written(timeout_s) if self._unsaid else ():
            step, records = self._unsaid.popleft()
            self.log_at, self._said = at + 1, step
            self._outbox.send(step, records)

    def _first_try(self, record: StepRecord, batch: Batch, waiting: int) -> Decided:
        """Take a step that nobody has taken. One that fails stands in the log once more, without
        what failed. waiting: records that the log does not have yet."""
        try:
            return self._compute(record, batch)
        except StepFailed as failed:
            put_aside(batch, failed)
            skipped = tuple((*place, why) for place, why in sorted(batch.skipped.items()))
            again = msgspec.structs.replace(record, skipped=skipped, faulted=batch.faulted)
            self._log.append(steplog.encode(again))
            waiting += 1
            while waiting > 0:
                waiting -= len(self._log.written(LOG_S))
            raise StepPutAside(str(failed)) from failed

    # ------------------------------------------------------------ again

    def replay(self, logged: list[tuple[int, StepRecord]], again: Again) -> list[int]:
        """Take the logged steps behind the snapshot once more; the steps that spoke again. Raises
        StepPutAside if the last of them fails, which nobody has taken before."""
        last = {r.step: (at, r) for at, r in logged if r.step > self.step}
        todo = list(last.values())  # of a step that was put aside the last record counts
        mute_to = max((r.acked for _, r in todo), default=self.step)
        spoken = []
        silent = False  # the step before was not encoded: its digest is not known
        begins = not self.step  # there is no snapshot: the log must begin with this home
        for at, record in todo:
            self._check(record, silent, begins)
            if record.marked:
                self._replica.mark()
            batch = again.take(record.ranges)
            if digest_of(batch) != record.inputs:
                raise self._other(record.step, "took other records", begins)
            batch.skipped = {(t, p, o): why for t, p, o, why in record.skipped}
            batch.faulted = dict(record.faulted)
            if at == todo[-1][0]:
                decided = self._first_try(record, batch, waiting=0)
            else:
                decided = self._compute(record, batch)
            silent = record.step <= mute_to
            if silent:
                self._journal.take(record.now)
            else:
                self._outbox.send(self.step, self._encoded(decided))
                spoken.append(self.step)
            self.log_at, self._said, self._marked = at + 1, record.step, False
        return spoken

    def _check(self, record: StepRecord, silent: bool, begins: bool) -> None:
        """The log goes on where we stand, and the step before had the same outcome."""
        if record.code != self.code:
            raise Refused(
                f"broker {self.home.name!r} did not stop in good order, and steps from "
                f"{record.step} on were taken by version {record.code}; this is {self.code}: "
                "start that version once more and stop it, then start this one (`lakequeue "
                "--version` says which one an installation is)"
            )
        if record.core != FORMAT:
            raise Refused(
                f"step {record.step} of broker {self.home.name!r} was taken by another core: start "
                "the version that took it once more and stop it, then start this one"
            )
        if record.step != self.step + 1:
            raise Refused(
                f"the log of broker {self.home.name!r} goes on with step {record.step} where "
                f"{self.step + 1} is due: it is the log of another home, or it was cut; use that "
                "home, or begin with an empty one and a Kafka with fresh topics"
            )
        if not silent and record.outputs != self._digest:
            raise self._other(self.step, "came out differently", begins)

    def _other(self, step: int, what: str, begins: bool) -> Refused:
        """A step is not what it was."""
        do = "keep the home and report it"
        if begins:
            do = (
                "this home has no snapshot, so the log is most likely another home's; use that "
                "home, make one from its tables (lakequeue rebuild), or begin with a Kafka with "
                "fresh topics"
            )
        return Refused(
            f"step {step} of broker {self.home.name!r} {what} when it was taken again: {do}"
        )

    # ------------------------------------------------------------ both

    def _compute(self, record: StepRecord, batch: Batch) -> Decided:
        begun = self._clocks.cpu()
        told = told_of_anew(batch.commands, self.home.name, record.opened, self.offsets, self.ids)
        if told is not batch.commands:
            batch = replace(batch, commands=told)
        decided = sorted_out(self._replica.take(batch, record.now))
        self.cost_s += self._clocks.cpu() - begun
        self.step, self.now = record.step, record.now
        for one in record.opened:
            self.offsets[one.topic, one.partition] = one.at
            self.ids[one.topic, one.partition] = one.topic_id
        for r in record.ranges:
            if r.first < self.offsets.get((r.topic, r.partition), 0):  # of another topic, untold
                self.ids.pop((r.topic, r.partition), None)
            self.offsets[r.topic, r.partition] = r.last + 1
        for topic, size in record.sizes.items():
            if size:
                self.sizes[topic] = size
            else:
                self.sizes.pop(topic, None)
        self._deadline = decided.deadline
        self.in_vain = decided.in_vain
        self.captured.update(dict.fromkeys(decided.captures))
        self.notes += decided.notes
        if decided.journal is not None:
            if decided.journal.step != self.step:
                raise Refused(
                    f"step {self.step} of broker {self.home.name!r} is {decided.journal.step} in "
                    "its state: the checkpoint and the log belong to different homes"
                )
            self._journal.add(decided.journal)
        return decided

    def _encoded(self, decided: Decided) -> list[WireRecord]:
        """What the step says, with the journal where that is due."""
        journal = self._journal.take(self.now)
        said = decided.said if journal is None else [*decided.said, journal]
        records = list(wire.encode(said, self.sizes))
        digest = 0
        for r in records:
            place = f"{r.topic}/{r.partition}/{r.headers}".encode()
            digest = crc32c(r.value or b"", crc32c(r.key or b"", crc32c(place, digest)))
        self._digest = digest
        return records

    def snapshot(self, keep: int, put: Put | None = None) -> Snapshot:
        """Make a mark: the store gets the pages that changed, and this goes with them. keep: how
        many snapshots Spark may go back to. Nothing in either changes any more: they are saved
        while steps go on. All steps are settled.

        put: writes a page to what is saved, whatever the store gets meanwhile. The queues' pages
        are written with it later then, while steps go on: the mark is complete when `pack` says
        so."""
        assert not self._unsaid, "a snapshot of what the log does not have"
        if put is None:
            self._replica.mark()
        else:
            self._replica.begin_mark(put)
        self._marked = True
        self._marks = [*self._marks, self.log_at][-keep:]
        return Snapshot(
            self.step, self.now, [(*place, at) for place, at in sorted(self.offsets.items())],
            self.log_at, self._marks, dict(self.sizes), list(self.captured), self._digest,
            list(self._journal.segments), self._journal.since,
            [(*place, topic_id) for place, topic_id in sorted(self.ids.items())],
        )  # fmt: skip

    def pack(self, rows: int) -> bool:
        """Write about so many rows of the mark that was begun; whether there are more."""
        return self._replica.pack(rows)
