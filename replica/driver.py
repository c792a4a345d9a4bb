"""Steps over a log: the order in which things must happen, without Kafka, Spark or a clock.

    take inputs ─▶ append the step's record ─▶ compute ─▶ the log has it ─▶ outputs go out
                      take inputs ─▶ append ─▶ compute ────▶ the log has it ─▶ outputs go out

A step's outputs are sent only after its record is in the log, so every step with visible outputs
can be replayed. While it waits for the log, the driver runs a few more steps. If the log refuses a
record, these steps are discarded with the live state; their outputs were never sent. A driver that
starts from a snapshot replays the logged steps, with the same inputs, times and marks. The outputs
must be the same: each record has the digest of the previous step. Only outputs that may not be in
Kafka yet are sent again, as the same bytes.

A step that fails leaves the live state invalid. The driver logs the step again, with the record or
queue to skip, and ends (`StepPutAside`). The next driver starts from the snapshot and skips it.

`Inputs`, `Again`, `Log` and `OutputWriter` are Kafka in the job and lists in the tests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

import msgspec
from crc32c import crc32c

from ..protocol import steplog, wire
from ..protocol.errors import LakequeueError
from ..protocol.journal import JournalSegment
from ..protocol.steplog import Opened, Range, StepRecord, with_recreated_topics
from ..protocol.wire import WireRecord
from ..state import FORMAT, Batch, Broker, Home, Limits, StepFailed, Store
from ..state.queue.mesh_interface import MeshInterface
from .journal_buffer import JournalBuffer
from .replica import Decided, Replica, put_aside, sort_outputs

Put = Callable[[str, bytes], None]  # writes a page
UNSAID_MAX = 4  # steps that wait for the log
LOG_S = 0.5
GLANCE_S = 0.001  # while steps wait for the log, how often to check for new input
# Background work leaves most of the time to clients that have just sent something: this many
# seconds of rest per second of work. A client waits for a purge or a redrive; none waits for the
# rest of a million expired messages. A step costs more than its own time: its events go through
# Kafka into the tables, on the same cores.
REST_OF_BULK, REST_OF_DUE = 4.0, 40.0
REST_S_MAX = 0.2  # the longest delay of a deadline that this may cause
RECENT_S = 1.0


class Refused(LakequeueError):
    """The engine must not continue, because its outputs would differ from those it has sent."""


class Differs(Refused):
    """A replayed step had other outputs. problem: the step and the difference, without a remedy."""

    def __init__(self, problem: str, do: str) -> None:
        super().__init__(f"{problem}: {do}")
        self.problem = problem


class StepPutAside(LakequeueError):
    """A step failed and was logged again with the record or queue to skip: start again from the
    snapshot."""


class Clocks(NamedTuple):
    """now: the broker's time, epoch ms; monotonic: seconds; cpu: seconds of this thread."""

    now: Callable[[], int]
    monotonic: Callable[[], float]
    cpu: Callable[[], float]


class Snapshot(msgspec.Struct):
    """Everything besides the pages that outlives a batch.

    offsets: (topic, partition) → the next record; ids: (topic, partition) → the topic's id; log_at:
    the offset behind the last step's record; marks: `log_at` of earlier snapshots, newest last;
    sizes: topics with their numbers of partitions; outputs: the digest of the last step's outputs;
    journal, since: see `JournalBuffer`.
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
        """This snapshot after a change of the home's brokers (`mesh.rehome`). journal: the events
        of the change."""
        return msgspec.structs.replace(
            self, step=step, now=max(self.now, now),
            offsets=[(*position, at) for position, at in sorted(offsets.items())],
            ids=[(*position, one) for position, one in sorted(ids.items())],
            captured=captured, journal=[*self.journal, *journal],
            since=self.since if self.journal else now,
        )  # fmt: skip


class Taken(NamedTuple):
    """A step's inputs and their ranges. opened: partitions that are read from another offset from
    this step on."""

    batch: Batch
    ranges: tuple[Range, ...]
    opened: tuple[Opened, ...] = ()


class Inputs(Protocol):
    """New inputs."""

    def take(self, timeout_s: float) -> Taken | None:
        """The inputs of a step, within its limits; None if none arrive in time."""

    def up_to(self) -> int | None:
        """The time before which no waiting command arrived, epoch ms; None if none waits."""

    def current(self) -> bool:
        """Whether every record in Kafka was taken. Asks Kafka."""


class Again(Protocol):
    """Earlier inputs."""

    def take(self, ranges: tuple[Range, ...]) -> Batch:
        """Read the same records again. Raises Refused if they are gone."""


class Log(Protocol):
    """The log of steps."""

    def append(self, value: bytes) -> None:
        """Start writing a record."""

    def written(self, timeout_s: float) -> list[int]:
        """The offsets of the records that were written since the last call, in order; waits up to
        the timeout for one. Raises if another writer has taken over."""


class OutputWriter(Protocol):
    """Sends outputs."""

    def send(self, step: int, records: Iterable[WireRecord]) -> None:
        """Start writing a step's outputs."""

    def acked(self) -> int | None:
        """The newest step up to which Kafka has all outputs; None if nothing is being written."""


def digest_of(batch: Batch) -> int:
    """A digest of a step's inputs, over the parts that the tables keep: key, value and, for
    messages, the header `lq`."""
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
    """The steps of one broker from a snapshot on. store: the snapshot's pages; mesh: see
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
        self._deadline = 1  # at once: deadlines may have passed since the snapshot
        # Whether a mark was made since the last step. The loaded snapshot counts: a replay from an
        # earlier one must make this mark.
        self._marked = snapshot.step > 0
        self._news: dict[str, int] = {}
        self._unsaid: deque[tuple[int, list[WireRecord]]] = deque()  # outputs waiting for the log
        self._sent_up_to = snapshot.step  # outputs were sent up to this step
        self.notes: list[str] = []
        self.cost_s = 0.0  # CPU time of the steps so far, which a replay would take too
        self.in_vain: dict[tuple[str, int], int] = {}  # see `Decided`, of the last step
        self._heard = self._rested = float("-inf")  # the time of the last input; the end of rest

    # ------------------------------------------------------------ live

    def due_in(self) -> float | None:
        """Seconds until a step is due without input; None: never."""
        at = min(filter(None, (self._deadline, self._journal.due())), default=0)
        rest = 0.0
        if 0 < self._deadline <= self.now:
            rest = self._rested - self._clocks.monotonic()
        return max(0.0, (at - self._clocks.now()) / 1000, rest) if at else None

    def learn(self, sizes: dict[str, int]) -> None:
        """Use these numbers of partitions from the next step on."""
        before = self.sizes | self._news
        self._news |= {t: n for t, n in sizes.items() if before.get(t) != n}
        self._news |= {t: 0 for t, n in before.items() if n and t not in sizes}

    def one(self, inputs: Inputs, timeout_s: float) -> Taken | None:
        """Wait for input or a deadline, up to the timeout, and run one step; None if there was no
        step.

        While steps wait for the log, it only checks for input and returns soon. Raises
        StepPutAside.
        """
        self._wait_for_log(UNSAID_MAX - 1)
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
        # Time does not run ahead of waiting commands, so heartbeats and acks from the time when the
        # engine was down are not late. A new home has no clients yet.
        up_to = inputs.up_to() if self.now else None
        now = max(self.now, self._clocks.now() if up_to is None else up_to)
        acked = self._outbox.acked()
        record = StepRecord(
            steplog.FORMAT, self.step + 1, now, self._sent_up_to if acked is None else acked, 0,
            self._digest, self.code, taken.ranges, self._news, taken.opened,
            inputs=digest_of(taken.batch), marked=self._marked, core=FORMAT,
        )  # fmt: skip
        self._log.append(steplog.encode(record))
        before = self.cost_s
        # While the log writes this record and maybe earlier ones.
        decided = self._first_try(record, taken.batch, len(self._unsaid) + 1)
        self._rest(bool(taken.ranges), bool(decided.said), self.cost_s - before)
        records = self._encoded(decided)
        self._unsaid.append((self.step, records))
        self._send_written(0.0)
        self._news, self._marked = {}, False
        return taken

    def _rest(self, heard: bool, spoke: bool, cost_s: float) -> None:
        """After background work, leave time to clients that have just sent something."""
        now = self._clocks.monotonic()
        if heard:
            self._heard = now
        elif not spoke and now - self._heard < RECENT_S:
            rest = REST_OF_DUE if self._deadline < self.now else REST_OF_BULK  # deadlines are late
            self._rested = now + min(rest * cost_s, REST_S_MAX)

    def flush(self) -> None:
        """Wait until the log has all steps and their outputs are sent."""
        self._wait_for_log(0)

    def _wait_for_log(self, most: int) -> None:
        """Wait until at most ``most`` steps wait for the log."""
        while len(self._unsaid) > most:
            self._send_written(LOG_S)

    def _send_written(self, timeout_s: float) -> None:
        """Send the outputs of steps whose records are in the log."""
        for at in self._log.written(timeout_s) if self._unsaid else ():
            step, records = self._unsaid.popleft()
            self.log_at, self._sent_up_to = at + 1, step
            self._outbox.send(step, records)

    def _first_try(self, record: StepRecord, batch: Batch, waiting: int) -> Decided:
        """Run a new step. If it fails, log it again with the record or queue to skip. waiting: the
        number of records that the log does not have yet."""
        try:
            return self._compute(record, batch)
        except StepFailed as failed:
            put_aside(batch, failed)
            skipped = tuple((*position, why) for position, why in sorted(batch.skipped.items()))
            again = msgspec.structs.replace(record, skipped=skipped, faulted=batch.faulted)
            self._log.append(steplog.encode(again))
            waiting += 1
            while waiting > 0:
                waiting -= len(self._log.written(LOG_S))
            raise StepPutAside(str(failed)) from failed

    # ------------------------------------------------------------ replay

    def replay(self, logged: list[tuple[int, StepRecord]], again: Again) -> list[int]:
        """Replay the logged steps after the snapshot; returns the steps whose outputs were sent
        again. Raises StepPutAside if the last one fails, which may be its first attempt."""
        last = {r.step: (at, r) for at, r in logged if r.step > self.step}
        todo = list(last.values())  # a step that failed has several records; use the last one
        mute_to = max((r.acked for _, r in todo), default=self.step)
        spoken = []
        silent = False  # the step before was not encoded, so its digest is unknown
        begins = not self.step  # without a snapshot, the log must begin with this home
        for at, record in todo:
            self._check(record, silent, begins)
            if record.marked:
                self._replica.mark()
            batch = again.take(record.ranges)
            if digest_of(batch) != record.inputs:
                raise self._differs(record.step, "had other inputs", begins)
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
            self.log_at, self._sent_up_to, self._marked = at + 1, record.step, False
        return spoken

    def _check(self, record: StepRecord, silent: bool, begins: bool) -> None:
        """Raise Refused unless the log continues this state, and the previous step had the same
        outputs."""
        if record.code != self.code:
            raise Refused(
                f"broker {self.home.name!r} was not stopped cleanly, and version {record.code} "
                f"ran the steps from {record.step} on; this is {self.code}: start that version "
                "again and stop it, then start this one (`lakequeue --version` shows an "
                "installation's version)"
            )
        if record.core != FORMAT:
            raise Refused(
                f"step {record.step} of broker {self.home.name!r} was run by a version with "
                "another state format: start that version again and stop it, then start this one"
            )
        if record.step != self.step + 1:
            raise Refused(
                f"the log of broker {self.home.name!r} continues with step {record.step} instead "
                f"of {self.step + 1}: it belongs to another home, or records are missing; use that "
                "home, or rebuild this one from its tables (lakequeue rebuild)"
            )
        if not silent and record.outputs != self._digest:
            raise self._differs(self.step, "had other outputs", begins)

    def _differs(self, step: int, what: str, begins: bool) -> Differs:
        """The error for a replayed step that differs from its first time."""
        do = "keep the home and report it"
        if begins:
            do = (
                "this home has no snapshot, so the log is most likely another home's; use that "
                "home, rebuild it from its tables (lakequeue rebuild), or begin with a Kafka with "
                "new topics"
            )
        return Differs(f"step {step} of broker {self.home.name!r} {what} in the replay", do)

    # ------------------------------------------------------------ both

    def _compute(self, record: StepRecord, batch: Batch) -> Decided:
        begun = self._clocks.cpu()
        completed = with_recreated_topics(
            batch.commands, self.home.name, record.opened, self.offsets, self.ids
        )
        if completed is not batch.commands:
            batch = msgspec.structs.replace(batch, commands=completed)
        decided = sort_outputs(self._replica.take(batch, record.now))
        self.cost_s += self._clocks.cpu() - begun
        self.step, self.now = record.step, record.now
        for one in record.opened:
            self.offsets[one.topic, one.partition] = one.at
            self.ids[one.topic, one.partition] = one.topic_id
        for r in record.ranges:
            if r.first < self.offsets.get((r.topic, r.partition), 0):  # the topic was recreated
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
                    f"step {self.step} of broker {self.home.name!r} has number "
                    f"{decided.journal.step} in its state: the checkpoint and the log belong to "
                    "different homes; use the ones that belong together"
                )
            self._journal.add(decided.journal)
        return decided

    def _encoded(self, decided: Decided) -> list[WireRecord]:
        """The step's output records, with the journal if it is due."""
        journal = self._journal.take(self.now)
        said = decided.said if journal is None else [*decided.said, journal]
        records = wire.encode(said, self.sizes)
        digest = 0
        for r in records:
            position = f"{r.topic}/{r.partition}/{r.headers}".encode()
            digest = crc32c(r.value or b"", crc32c(r.key or b"", crc32c(position, digest)))
        self._digest = digest
        return records

    def snapshot(self, keep: int, put: Put | None = None) -> Snapshot:
        """Make a mark: write the changed pages to the store, and return their snapshot. Neither
        changes later, so they can be saved while steps continue. Call `flush` first.

        keep: how many snapshots Spark may go back to. put: writes a page into this snapshot, even
        if the store has later pages; then `pack` writes the queues' pages while steps continue, and
        the mark is complete when `pack` returns False.
        """
        assert not self._unsaid, "a snapshot of steps that the log does not have"
        if put is None:
            self._replica.mark()
        else:
            self._replica.begin_mark(put)
        self._marked = True
        # Larger offsets belong to a log that was deleted.
        self._marks = [*(at for at in self._marks if at <= self.log_at), self.log_at][-keep:]
        return Snapshot(
            self.step, self.now, [(*position, at) for position, at in sorted(self.offsets.items())],
            self.log_at, self._marks, dict(self.sizes), list(self.captured), self._digest,
            list(self._journal.segments), self._journal.since,
            [(*position, topic_id) for position, topic_id in sorted(self.ids.items())],
        )  # fmt: skip

    def pack(self, rows: int) -> bool:
        """Write about this many rows of the current mark; returns whether there are more."""
        return self._replica.pack(rows)
