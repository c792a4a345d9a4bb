"""A broker: its queues, sessions, producers and spool, as live objects.

Between two marks a step changes ordinary Python objects in place. `mark` writes what has changed
since the last mark. Loading reads the facts only; a queue's rows are read when they are first
needed (`queue`).
"""

from __future__ import annotations

from collections import deque
from typing import Any
from zlib import crc32

import msgspec

from ...definitions import QueueDefinition
from ...protocol.journal import NO_END, Journal, JournalSegment
from ...protocol.outputs import InVain, Output
from ...protocol.signing import Speaker
from ..limits import Budget, Limits, divisor
from ..storage.calendar import Calendar
from ..storage.row import NEVER, Row
from ..storage.spool import Spool
from ..storage.store import Store
from .broker_facts import (
    FORMAT,
    BrokerHeader,
    HeldReceipt,
    Home,
    KnownSession,
    Name,
    RecordPosition,
)
from .header import QueueHeader
from .mesh_interface import MeshInterface
from .producers import ProducerHistory, answering_broker
from .queue import Put, Queue

BUCKETS = 256  # pages of sessions, and pages of producers
EVENTS_PER_PAGE = 50
DETAIL_CHARACTERS_MAX = 1_000
ROWS_OF_A_PAGE = 50  # writing a queue's page costs as much as this many rows, besides its rows

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode
_header = msgspec.msgpack.Decoder(BrokerHeader)
_sessions = msgspec.msgpack.Decoder(dict[str, dict[str, KnownSession]])


def bucket(name: Name) -> int:
    """The page of a session or a producer."""
    return crc32(f"{name[0]}/{name[1]}".encode()) % BUCKETS


class Broker:
    """One broker, from one step to the next."""

    # A step reads them all the time. Python finds more than 30 attributes slowly without this.
    __slots__ = (
        "_buckets", "_bulk_budget", "_changed", "_due_names", "_due_queues", "_first_new",
        "_new_events", "_records", "_to_pack", "at", "command_budget", "faulted", "header", "held",
        "home", "journal", "limits", "mesh", "more_to_do", "names", "now", "outputs", "producers",
        "queues", "receipts", "recent", "reconfigured", "routes", "sessions", "speaker", "spool",
        "store", "touched", "unacked", "unwritten", "vain",
    )  # fmt: skip

    def __init__(self, store: Store, header: BrokerHeader, home: Home, limits: Limits) -> None:
        self.store, self.header, self.home = store, header, home
        self.limits = limits
        self.now = header.time
        self.spool = Spool(store, header.number, header.spool, limits)
        self.queues: dict[int, Queue] = {}
        self.names: dict[Name, Queue] = {}  # without the deleted ones
        self.sessions: dict[Name, KnownSession] = {}
        self.producers: dict[Name, ProducerHistory] = {}
        self.recent: deque[list[Any]] = deque(maxlen=limits.events)  # notable events
        self.held: deque[HeldReceipt] = deque(header.held)
        self.unacked = 0  # leased over all queues (B4)
        self._due_names = Calendar[tuple[str, Name]](self._time_of_name)  # sessions, producers
        self._due_queues = Calendar[int](self._time_of_queue)
        self._buckets: dict[str, dict[int, set[Name]]] = {"s": {}, "p": {}}  # the names in each
        self._changed: dict[str, set[Name]] = {"s": set(), "p": set()}  # since the last mark
        self._new_events = 0
        self.unwritten: dict[int, Queue] = {}  # queues with contents that are in no block
        self._to_pack: deque[Queue] = deque()  # queues that the current mark still has to write
        self.mesh = MeshInterface()  # other brokers and bridges
        self.routes: dict[tuple[str, str], Any] = {}  # a cache, see `routing`
        self.speaker: Speaker | None = None  # the client whose command is being carried out
        self.at: RecordPosition | Queue | None = None  # being processed, for `StepFailed`
        self.begin(header.time)

    @classmethod
    def load(cls, store: Store, home: Home, limits: Limits) -> Broker:
        """The broker from its pages; a new one if there are none."""
        data = store.get("broker")
        if data is None:
            header = BrokerHeader(FORMAT, home.name, home.number, home.epoch)
            return cls(store, header, home, limits)
        broker = cls(store, _header.decode(data), home, limits)
        for number in broker.header.queues:
            queue = Queue.load(store, broker.spool, number, limits)
            broker._register(queue)
            broker.unacked += queue.header.leased
        broker._load_names()
        return broker

    def _load_names(self) -> None:
        for number in range(BUCKETS):
            for kind, read in (("s", self._read_sessions), ("p", self._read_producers)):
                data = self.store.get(f"{kind}/{number}")
                if data is not None:
                    self._buckets[kind][number] = read(data)
        last, first = self.header.events, max(self.header.events - self.limits.events, 0)
        for page in range(first // EVENTS_PER_PAGE, last // EVENTS_PER_PAGE + 1):
            data = self.store.get(f"e/{page}")
            self.recent.extend(_decode(data) if data else ())

    def _read_sessions(self, data: bytes) -> set[Name]:
        pages = _sessions.decode(data)
        found = {(vpn, name): one for vpn, page in pages.items() for name, one in page.items()}
        for name, session in found.items():
            self.watch("s", name, session.until)
        self.sessions |= found
        return set(found)

    def _read_producers(self, data: bytes) -> set[Name]:
        found: dict[Name, ProducerHistory] = {}
        for where, name, state in _decode(data):
            producer = ProducerHistory(*answering_broker(where, self.home.number), name)
            found[where, name] = producer
            producer.restore(state)
            self.watch("p", (where, name), producer.forgotten_at)
        self.producers |= found
        return set(found)

    # ------------------------------------------------------------ a step

    def begin(self, now: int, records: int = NEVER) -> None:
        """Begin a step. Time never runs backwards. records: of the step, see `part`; by default the
        limits of background work are not divided."""
        if now > self.now:
            self.now = now
        self._records = records
        self.faulted: dict[int, str] = {}  # queues that failed in an earlier attempt, and why
        self.outputs: list[Output] = []
        self.journal = Journal(self.header.name, self.header.step, self.now)
        self.touched: dict[int, Queue] = {}  # queues in which something happens in this step
        self.receipts: dict[Name, ProducerHistory] = {}  # producers that are answered in this step
        self.reconfigured = False
        self.more_to_do = False  # the next step is due at once
        self.command_budget = Budget(self.limits.command_rows, self.limits.bulk_bytes)
        self._bulk_budget: Budget | None = None
        self._first_new = self.spool.next_counter
        self.vain: dict[tuple[str, int], int] = {}  # commands that changed nothing, by partition

    def part(self, most: int) -> int:
        """This step's share of a limit of background work."""
        return max(most // divisor(self.limits, self._records), 1)

    @property
    def bulk_budget(self) -> Budget:
        """The budget that is left to the step's bulk commands."""
        if self._bulk_budget is None:
            limits = self.limits
            rows, size = self.part(limits.bulk_rows), self.part(limits.bulk_bytes)
            self._bulk_budget = Budget(rows, size)
        return self._bulk_budget

    def end(self) -> int:
        """End a step; returns when the next one is due, epoch ms, or NEVER."""
        if self.vain:
            self.outputs += [InVain(*partition, count) for partition, count in self.vain.items()]
        for queue in self.touched.values():
            if not queue.dropped:
                # Stored, so that a broker that is loaded serves the same queues in the next step.
                queue.header.again = queue.wanted
                self.schedule(queue)
        header = self.header
        header.time = self.now
        header.more_to_do = self.more_to_do
        if self.more_to_do or header.pending:
            return self.now
        return min(self._due_names.next(), self._due_queues.next(), self.mesh.deadline())

    def has_due(self) -> bool:
        """Whether a deadline may have passed. Cheap: only False is certain."""
        now = self.now
        return self._due_names.may_be_due(now) or self._due_queues.may_be_due(now)

    @property
    def came_in(self) -> int:
        """How many messages this step has stored."""
        return self.spool.next_counter - self._first_new

    def touch(self, queue: Queue) -> None:
        """Note that a queue changes. The step looks at it before it ends, and the mark writes
        it."""
        self.touched[queue.number] = queue
        queue.dirty = True

    def enter(self, queue: Queue, rows: list[Row]) -> None:
        """Add rows to a queue. Their contents are in memory until `write_contents` or a mark."""
        queue.enter(rows)
        self.unwritten[queue.number] = queue

    # ------------------------------------------------------------ time

    def watch(self, kind: str, name: Name, at: int) -> None:
        """Set the deadline of a session ("s") or a producer ("p")."""
        self._due_names.watch((kind, name), at)

    def schedule(self, queue: Queue) -> None:
        """Set the deadline of a queue."""
        at = NEVER if queue.header.deleted else queue.deadline()
        if at != queue.header.due_at:
            queue.header.due_at = at
            self._due_queues.watch(queue.number, at)

    def due_queues(self, most: int) -> list[Queue]:
        """Up to ``most`` queues with a deadline that has passed, the longest overdue first."""
        found = [self.queues[number] for number in self._due_queues.take(self.now, most)]
        for queue in found:
            queue.header.due_at = NEVER
            queue.dirty = True
        return found

    def due_names(self, most: int) -> list[tuple[str, Name]]:
        """Up to ``most`` sessions and producers with a deadline that has passed."""
        return self._due_names.take(self.now, most)

    def _time_of_queue(self, number: int) -> int:
        queue = self.queues.get(number)
        return NEVER if queue is None else queue.header.due_at

    def _time_of_name(self, due: tuple[str, Name]) -> int:
        kind, name = due
        if kind == "s":
            session = self.sessions.get(name)
            return NEVER if session is None else session.until
        producer = self.producers.get(name)
        return NEVER if producer is None else producer.forgotten_at

    # ------------------------------------------------------------ names

    def vpn_number(self, vpn: str) -> int:
        """The VPN's number. A new VPN gets one."""
        number = self.header.vpns.get(vpn)
        if number is None:
            number = self.header.vpns[vpn] = len(self.header.vpns) + 1
        return number

    def find(self, vpn: str, name: str) -> Queue | None:
        """A queue by its name."""
        return self.names.get((vpn, name))

    def queue(self, number: int) -> Queue | None:
        """A queue by its number, also while it is being deleted; None once it is gone."""
        queue = self.queues.get(number)
        return None if queue is None or queue.dropped else queue

    def make_queue(self, definition: QueueDefinition, **facts: Any) -> Queue:
        """Make a queue. facts: of its header."""
        number = self.header.next_queue
        self.header.next_queue += 1
        vpn_number = self.vpn_number(definition.vpn)
        return self.add_queue(QueueHeader(number, vpn_number, definition, **facts))

    def add_queue(self, header: QueueHeader) -> Queue:
        """Add a new queue."""
        queue = Queue.new(self.store, self.spool, header, self.limits)
        self._register(queue)
        self.touch(queue)
        self.isolate(queue)
        return queue

    def isolate(self, queue: Queue) -> None:
        """Stop everything in a queue that failed in an earlier attempt at this step, until somebody
        defines it again. It may be new."""
        why = self.faulted.get(queue.number, "")
        if why and not queue.header.faulted:
            queue.header.faulted = why
            queue.header.given = b""  # the next definition counts, even if it is the same
            self.touch(queue)
            self.queue_event(queue, "queue_faulted", why=why)

    def name_queue(self, queue: Queue) -> None:
        """Let `find` return the queue under its name."""
        self.names[queue.definition.vpn, queue.definition.name] = queue

    def forget_name(self, queue: Queue) -> None:
        """Let `find` no longer return the queue."""
        name = queue.definition.vpn, queue.definition.name
        if self.names.get(name) is queue:
            del self.names[name]

    def drop_queue(self, queue: Queue) -> None:
        """Remove a deleted queue, which is empty."""
        queue.drop()
        del self.queues[queue.number]

    def _register(self, queue: Queue) -> None:
        self.queues[queue.number] = queue
        if not queue.header.deleted and not queue.header.arriving:
            self.name_queue(queue)
        self._due_queues.watch(queue.number, queue.header.due_at)

    def in_order(self) -> list[Queue]:
        """The touched queues, by number."""
        touched = self.touched
        if len(touched) < 2:  # most often
            return list(touched.values())
        return [touched[number] for number in sorted(touched)]

    # ------------------------------------------------------------ sessions and producers

    def changed(self, kind: str, name: Name) -> None:
        """Note that the mark must write a session ("s") or a producer ("p")."""
        self._changed[kind].add(name)

    def producer(self, where: str, name: str) -> ProducerHistory:
        """The history of a producer, which gets a receipt in this step. where: see
        `histories_at`."""
        key = where, name
        history = self.receipts.get(key)
        if history is not None:
            return history
        history = self.producers.get(key)
        if history is None:
            history = ProducerHistory(*answering_broker(where, self.home.number), name)
            self.producers[key] = history
        idle = self.limits.producer_idle_ms
        if history.forgotten_at < self.now + idle - idle // 8:  # not in every step
            if not history.forgotten_at:
                self.watch("p", key, self.now + idle)
            history.forgotten_at = self.now + idle
        history.begin()
        self.receipts[key] = history
        self.changed("p", key)
        return history

    def forget_producer(self, name: Name) -> None:
        """Forget a producer's history."""
        self.producers.pop(name, None)
        self.changed("p", name)

    # ------------------------------------------------------------ outputs

    def emit(self, output: Output) -> None:
        """Add an output."""
        self.outputs.append(output)

    def record(
        self, event: str, queue: Queue, ids: list[int], counts: list[int] | int = 0,
        subscription: str = "", reason: str = "", until: list[int] | int = NO_END,
    ) -> None:  # fmt: skip
        """Add an event of messages to the journal."""
        if ids:
            vpn, name = queue.header.definition.vpn, queue.header.definition.name
            self.journal.segments.append(
                JournalSegment(
                    event, vpn, name, ids, counts, subscription, reason, "", None, None, None, until
                )
            )  # fmt: skip

    def in_vain(self) -> None:
        """Count the current command as one that changed nothing. The reader of commands slows down
        partitions with many of these."""
        if isinstance(self.at, tuple):
            partition = self.at[0], self.at[1]
            self.vain[partition] = self.vain.get(partition, 0) + 1

    def event(self, event: str, vpn: str, queue: str = "", **details: Any) -> None:
        """Write a notable event to the journal and to the ring that `admin.events()` shows."""
        details = {k: _cut(v) for k, v in details.items()}
        text = ", ".join(f"{k}={v}" for k, v in details.items())
        self.note(event, vpn, queue, details.get("subscription") or "", _cut(text))
        self.recent.append([event, vpn, queue, self.now, details])
        self.header.events += 1
        self._new_events += 1

    def queue_event(self, queue: Queue, event: str, **details: Any) -> None:
        """Write a notable event of a queue."""
        self.event(event, queue.definition.vpn, queue.definition.name, **details)

    def note(self, event: str, vpn: str, queue: str, subscription: str, text: str) -> None:
        """Write an event that concerns no message to the journal only."""
        self.journal.segments.append(
            JournalSegment(event, vpn, queue, subscription=subscription, reason=text)
        )

    def count_refused(self, vpn: str, reason: str) -> None:
        """Count a refusal that concerns no queue."""
        counts = self.header.refused.setdefault(vpn, {})
        counts[reason] = counts.get(reason, 0) + 1

    # ------------------------------------------------------------ marks

    def mark(self) -> None:
        """Write all changes since the last mark. No steps are taken meanwhile."""
        self.begin_mark(self.store.put)
        self.pack(NEVER)

    def begin_mark(self, put: Put) -> None:
        """Begin a mark of the present state. Writes everything but the queues; `pack` writes these
        while steps go on. put: see `Queue.begin_pack`."""
        self.pack(NEVER)  # finish the mark before
        for queue in self.unwritten.values():
            queue.write_contents()
        self.unwritten.clear()
        for _, queue in sorted(self.queues.items()):
            if queue.dirty and not queue.dropped:
                queue.begin_pack(put)
                self._to_pack.append(queue)
        self.mesh.mark()
        self.spool.mark()
        self._write_names()
        self._write_events()
        header = self.header
        header.spool = self.spool.state()
        header.queues = sorted(n for n, q in self.queues.items() if not q.dropped)
        header.held = list(self.held)
        self.store.put("broker", _encode(header))

    def pack(self, most: int) -> bool:
        """Write queues of the current mark, for about ``most`` rows; returns whether there are
        more."""
        to_pack = self._to_pack
        while to_pack and most > 0:
            most -= to_pack.popleft().pack() + ROWS_OF_A_PAGE
        return bool(to_pack)

    def write_contents(self, most: int) -> None:
        """Write contents of about ``most`` rows to blocks, queue by queue, ahead of the mark."""
        while self.unwritten and most > 0:
            queue = self.unwritten.pop(next(iter(self.unwritten)))
            if not queue.dropped:
                most -= queue.write_contents()

    def _write_names(self) -> None:
        """Write the buckets with changes."""
        for kind, all_of_kind in (("s", self.sessions), ("p", self.producers)):
            changed: dict[int, set[Name]] = {}
            for name in self._changed[kind]:
                changed.setdefault(bucket(name), set()).add(name)
            for number, names in sorted(changed.items()):
                members = self._buckets[kind].setdefault(number, set())
                members |= names
                members &= all_of_kind.keys()
                if members:
                    self.store.put(f"{kind}/{number}", self._packed(kind, sorted(members)))
                else:
                    self.store.delete(f"{kind}/{number}")
            self._changed[kind].clear()

    def _packed(self, kind: str, members: list[Name]) -> bytes:
        """A bucket's page."""
        if kind == "p":
            return _encode([[*name, self.producers[name].state()] for name in members])
        sessions: dict[str, dict[str, KnownSession]] = {}
        for vpn, name in members:
            sessions.setdefault(vpn, {})[name] = self.sessions[vpn, name]
        return _encode(sessions)

    def _write_events(self) -> None:
        """Write the pages with new events, and delete the oldest pages."""
        if not self._new_events:
            return
        last = self.header.events
        start = max(last - self._new_events, last - len(self.recent), 0) // EVENTS_PER_PAGE
        rows = list(self.recent)
        begin = last - len(rows)
        for page in range(start, (last - 1) // EVENTS_PER_PAGE + 1):
            first = max(page * EVENTS_PER_PAGE - begin, 0)
            part = rows[first : (page + 1) * EVENTS_PER_PAGE - begin]
            self.store.put(f"e/{page}", _encode(part))
        old = (last - self._new_events - self.limits.events) // EVENTS_PER_PAGE - 1
        for page in range(max(old, 0), (last - self.limits.events) // EVENTS_PER_PAGE):
            self.store.delete(f"e/{page}")
        self._new_events = 0


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > DETAIL_CHARACTERS_MAX:
        return value[:DETAIL_CHARACTERS_MAX] + "…"
    return value
