"""A broker during one step: what all the ideas in this room work on.

A broker holds message VPNs, their queues, sessions, producers and one spool. Everything is loaded
when it is first touched and written back once at the end of the step.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from ..core.queue.broker_facts import Home
from ..definitions import SystemLimits, VpnLimits
from ..protocol.journal import Journal, Segment
from ..protocol.outputs import InVain, Output
from .header import QueueHeader
from .limits import Budget, Limits
from .mesh.peer import Parting, Peer
from .queue import Queue
from .storage import Calendar, Spool, SpoolHeader, Store, ValuePages

FORMAT = 7
EVENTS_PER_PAGE = 50
BUCKETS = 64
DETAIL_CHARACTERS_MAX = 1_000


class Undecided(msgspec.Struct, array_like=True):
    """Publishes about which brokers have not agreed yet (S5). next: number of the last bundle that
    was offered; rows, bytes: of what this broker has offered; kept: bytes that are counted as
    stored, by VPN, of its own messages and of others'."""

    next: int = 0
    rows: int = 0
    bytes: int = 0
    kept: dict[int, int] = {}


class BrokerHeader(msgspec.Struct):
    """What every step needs. format: version of the state's layout."""

    format: int
    name: str
    number: int
    epoch: int = 0  # of the home; 0 on memory
    step: int = 0
    time: int = 0
    next_queue: int = 1
    vpns: dict[str, int] = {}  # name → number
    vpn_limits: dict[str, VpnLimits] = {}
    begun: list[str] = []  # VPNs whose commands of this epoch have begun
    regex_vpns: list[str] = []  # VPNs with at least one regular expression
    topics: dict[str, list[int]] = {}  # per VPN: topic subscriptions by kind
    system: SystemLimits = msgspec.field(default_factory=SystemLimits)
    spool: SpoolHeader = msgspec.field(default_factory=SpoolHeader)
    earliest: dict[int, int] = {}
    unacked: int = 0  # leased over all queues (B4)
    waiting: dict[int, bool] = {}  # queues held back by `max_delivered_unacked`, in that order
    unserved: bool = False  # a budget ended before all of these were served
    pending: dict[int, bool] = {}  # queues with commands that go on, the next first: in bulk?
    turn: int = 0  # the queue that delivery served last
    alerts: list[str] = []  # set now, of the broker and of VPNs (S9)
    marks: dict[str, list[list[int]]] = {}  # earlier levels of these, for their rates
    events: int = 0  # notable events so far
    peers: dict[int, Peer] = {}  # the home's other brokers, by number
    group: str = ""  # the group of brokers that this one is in; none: empty
    parting: Parting | None = None  # a broker is being removed
    partings: int = 0  # at the keeper: how often it has begun with that; else: the last given up
    unread: list[int] = []  # numbers of queues for which records are put aside meanwhile
    notes_reads: bool = False  # it has always noted how far captured topics were read (`positions`)
    captures: list[str] = []  # VPNs of which it knows what queues of the home capture
    heirs: dict[int, str] = {}  # removed brokers whose producers this one answers
    keeper: int = 0  # the broker that keeps the directory
    yet_to_know: list[int] = []  # at the keeper: who has not said that it knows it as that
    knew: list[int] = []  # who has said so before this broker heard that it is the keeper
    removed: list[int] = []  # numbers of brokers that were; nobody gets one of them again
    next_ticket: int = 0  # what other brokers carry out for this one, and how much of it is open
    tickets_open: int = 0
    links: dict[int, str] = {}  # endpoints of bridges by their numbers, with what lanes (H1)
    crossing: dict[int, bool] = {}  # of these, those that bring to another VPN in the next step
    trails: dict[int, str] = {}  # of these, those that follow a queue, with its name
    ways: dict[int, str] = {}  # to dead message queues on other brokers, with their names (X5)
    auth: bool = False  # commands must be signed
    queues: dict[str, int] = {}  # how many each VPN has
    client_pages: list[str] = []  # where the clients' keys stand
    short: dict[int, int] = {}  # queues that had no room for what was granted: spool bytes then
    away: dict[str, list[int]] = {}  # per VPN: patterns that others' queues take, by kind
    went: int = 0  # queues that have moved away from here
    entries_said: int = 0  # in the directory, by its keeper
    rebuilt: int = 0  # when it was made again: what was published before may be confirmed (R3)
    undecided: Undecided = msgspec.field(default_factory=Undecided)
    # Receipts that wait for the Delta tables, see `durable`. tables: are they written? None: nobody
    # has said so; the row of those that wait, and whether the first of it may be said.
    tables: bool | None = None
    held_first: int = 0
    held_next: int = 0
    held_due: bool = False


_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(BrokerHeader)


def bucket(name: str) -> int:
    """The bucket of a name in paged maps."""
    return crc32(name.encode()) % BUCKETS


class Broker:
    """One broker, one step."""

    def __init__(
        self, store: Store, header: BrokerHeader, now: int, limits: Limits | None = None
    ) -> None:
        self.store = store
        self.header = header
        self.now = now
        self.limits = limits or Limits()
        self.values = ValuePages(store)
        self.spool = Spool(store, header.spool, header.number, self.limits)
        self.calendar = Calendar(self.values, header.earliest, self.limits)
        self.outputs: list[Output] = []
        self.journal = Journal(header.name, header.step, now)
        self.unacked_total = header.unacked  # as of the last `count_unacked`, kept by delivery
        self.reconfigured = False
        self.more_to_do = False  # in the next step, at once
        self.early: list[tuple[Queue, int]] = []  # arrivals that were acknowledged before (L9)
        self.arrived_in: list[Queue] = []  # queues that got messages since the last look
        self.routes_changed: dict[tuple[str, int, str], None] = {}  # patterns to tell others of
        self.read_to: dict[tuple[str, int], int] = {}  # of captured topics, not yet written down
        self.voted: dict[str, None] = {}  # lanes of which something may be decided now (S5)
        self.command_budget = Budget(self.limits.command_rows)
        self.bulk_budget = Budget(self.limits.bulk_rows, self.limits.bulk_bytes)
        self.secret = b""  # of the home
        self.speaker: Any = None  # who says what is being carried out (`identity.Speaker`)
        self.at: Any = None  # what is being done, should it fail: see `isolation`
        self.vain: dict[tuple[str, int], int] = {}  # commands that changed nothing, by partition
        self._queues: dict[int, Queue | None] = {}
        self._vpn_names = {number: name for name, number in header.vpns.items()}

    @classmethod
    def load(cls, store: Store, home: Home, now: int, limits: Limits, first: bool = True) -> Broker:
        """The broker at the start of its next step; time never runs backwards. first: False goes on
        with the step that has begun."""
        data = store.get("broker")
        if data:
            header = _decoder.decode(data)
        else:
            header = BrokerHeader(FORMAT, home.name, home.number, home.epoch)
            header.notes_reads = True
        header.step += first
        header.time = max(header.time, now)
        broker = cls(store, header, header.time, limits)
        broker.secret = home.secret
        return broker

    # ------------------------------------------------------------ queues

    def vpn_number(self, vpn: str) -> int:
        """The VPN's number, given at first use."""
        number = self.header.vpns.get(vpn)
        if number is None:
            number = self.header.vpns[vpn] = len(self.header.vpns) + 1
            self._vpn_names[number] = vpn
        return number

    def vpn_name(self, number: int) -> str:
        """The VPN's name."""
        return self._vpn_names[number]

    def vpn_of(self, queue: Queue) -> str:
        """The VPN of a queue."""
        return self._vpn_names[queue.header.vpn_number]

    def queue_number(self, vpn: str, name: str) -> int | None:
        """The number of a queue by its name."""
        names = self.values.read(f"n/{vpn}/{bucket(name)}")
        return names.get(name) if names else None

    def queue(self, number: int) -> Queue | None:
        """A queue by its number, also one that is being deleted; None when it is gone."""
        if number not in self._queues:
            self._queues[number] = Queue.load(self.store, number, self.limits)
        queue = self._queues[number]
        return None if queue is None or queue.dropped else queue

    def find(self, vpn: str, name: str) -> Queue | None:
        """A queue by its name."""
        number = self.queue_number(vpn, name)
        return None if number is None else self.queue(number)

    def add_queue(self, header: QueueHeader) -> Queue:
        """A queue that did not exist."""
        queue = Queue(self.store, header, self.limits)
        self._queues[header.number] = queue
        return queue

    def queue_names(self, vpn: str) -> list[str]:
        """The names of all queues of a VPN, sorted; reads every bucket."""
        names: list[str] = []
        for number in range(BUCKETS):
            names += self.values.read(f"n/{vpn}/{number}") or ()
        return sorted(names)

    def loaded(self) -> list[Queue]:
        """The queues that this step loaded, by number, also those that it dropped."""
        return [q for _, q in sorted(self._queues.items()) if q is not None]

    def touched(self) -> list[Queue]:
        """The queues that this step loaded and that are there."""
        return [q for q in self.loaded() if not q.dropped]

    def active(self) -> list[Queue]:
        """Of these, the queues in which something may happen by itself."""
        return [q for q in self.touched() if not (q.header.deleted or q.header.faulted)]

    def count_unacked(self) -> int:
        """Messages that are leased now, over all queues (B4)."""
        changed = sum(
            (0 if q.dropped else q.header.leased) - q.leased_before
            for q in self._queues.values() if q is not None
        )  # fmt: skip
        self.unacked_total = self.header.unacked + changed
        return self.unacked_total

    # ------------------------------------------------------------ what is said

    def emit(self, output: Output) -> None:
        """Add an output."""
        self.outputs.append(output)

    def record(self, event: str, queue: Queue, ids: list[int], **more: Any) -> None:
        """Add to the journal what happened to messages of a queue."""
        if ids and self.spool.foreign.pages:
            ids = self.spool.origins(np.array(ids, np.uint64)).tolist()
        if ids:
            self.journal.segments.append(
                Segment(event, self.vpn_of(queue), queue.definition.name, ids, **more)
            )

    def in_vain(self) -> None:
        """Count the command that is being carried out as one that changes nothing: who reads
        commands may let a partition that is full of these wait."""
        if isinstance(self.at, tuple):
            place = self.at[0], self.at[1]
            self.vain[place] = self.vain.get(place, 0) + 1

    def event(self, event: str, vpn: str, queue: str = "", **details: Any) -> None:
        """A notable event: into the journal and the ring that `admin.events()` shows."""
        details = {k: _cut(v) for k, v in details.items()}
        text = ", ".join(f"{k}={v}" for k, v in details.items())
        self.note(event, vpn, queue, details.get("subscription") or "", _cut(text))
        number = self.header.events
        key = f"e/{number // EVENTS_PER_PAGE}"
        page = self.values.read(key) or []
        self.values.write(key, [*page, [event, vpn, queue, self.now, details]])
        self.header.events += 1
        old = (number - self.limits.events) // EVENTS_PER_PAGE - 1
        if old >= 0 and number % EVENTS_PER_PAGE == 0:
            self.values.write(f"e/{old}", None)

    def note(self, event: str, vpn: str, queue: str, subscription: str, text: str) -> None:
        """What is no message's event and for the journal only."""
        self.journal.segments.append(
            Segment(event, vpn, queue, subscription=subscription, reason=text)
        )

    def newest_events(self) -> list[list[Any]]:
        """The events that are remembered, oldest first."""
        last = self.header.events // EVENTS_PER_PAGE
        first = max(self.header.events - self.limits.events, 0) // EVENTS_PER_PAGE
        pages = [self.values.read(f"e/{n}") or [] for n in range(first, last + 1)]
        return [e for page in pages for e in page][-self.limits.events :]

    # ------------------------------------------------------------ end

    def next_due(self) -> int:
        """When the next step is due, epoch ms, or NEVER; what is left to do is due at once."""
        if self.more_to_do or self.header.pending:
            return self.now
        return self.calendar.next()

    def flush(self) -> None:
        """Write everything that changed."""
        self.outputs += [InVain(*place, count) for place, count in self.vain.items()]
        self.header.unacked = self.count_unacked()
        for queue in self.touched():
            self.at = queue
            if not queue.header.deleted:
                self.calendar.set(f"q{queue.number}", queue.deadline())
            queue.flush()
        self.at = None
        self.more_to_do |= self.spool.flush()
        self.values.flush()
        self.store.put("broker", _encode(self.header))


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > DETAIL_CHARACTERS_MAX:
        return value[:DETAIL_CHARACTERS_MAX] + "…"
    return value
